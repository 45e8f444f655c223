"""What a client says of its engines, put together from those who know."""

import pytest

from muro.clients.engine import KnownEngine
from muro.clients.session import Session
from muro.clients.status import engine_statuses
from muro.errors import EngineDeadError
from muro.ids import EngineRank
from muro.launch.rank import RankStatus

RANK = EngineRank(0)


class Processes:
    """Nobody started here; some are dying."""

    def __init__(self, *errors: EngineDeadError) -> None:
        self._errors = errors

    def supervised(self, rank: EngineRank) -> RankStatus | None:
        return None

    def last_report_age(self, rank: EngineRank) -> float | None:
        return 1.5

    def dying(self) -> dict[EngineRank, EngineDeadError]:
        return dict.fromkeys([RANK], *self._errors) if self._errors else {}


@pytest.mark.parametrize(("restarting", "state"), [(False, "dead"), (True, "restarting")])
def test_who_has_died_is_not_serving_before_the_session_hears_of_it_either(restarting: bool, state: str) -> None:
    engine = KnownEngine(RANK)
    engine.joined(None)
    session = Session({RANK: engine}, nonce="n")
    error = EngineDeadError("killed by SIGKILL", rank=0, restarting=restarting)
    (serving,) = engine_statuses(session, Processes())
    assert (serving.state, serving.error) == ("serving", "")
    assert (serving.last_step_age, serving.last_report_age) == (None, 1.5)
    (dying,) = engine_statuses(session, Processes(error))
    assert (dying.state, dying.error) == (state, "killed by SIGKILL")
    session.died(RANK, 0, error)
    for processes in (Processes(), Processes(error)):
        (dead,) = engine_statuses(session, processes)
        assert (dead.state, dead.error) == (state, "killed by SIGKILL")
