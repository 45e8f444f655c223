"""Operations, health, death and closing: the same over every client."""

from collections.abc import Callable, Iterator

import pytest

from muro.errors import (
    CallFailedError,
    CallTimeoutError,
    ClientClosedError,
    EngineDeadError,
    InvalidRequestError,
    UnknownOperationError,
)
from muro.wire.ops import GET_SUPPORTED_TASKS, SLEEP
from tests.support.asking import FOREVER, ask, faulty
from tests.support.clients import KINDS, Face, opened


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def client(kind: str) -> Iterator[Face]:
    with opened(kind, "faulty") as client:
        yield client


def test_operations_of_the_protocol_and_of_the_engine(client: Face) -> None:
    assert client.call(GET_SUPPORTED_TASKS) == ["generate"]
    assert client.call("is_sleeping") is False
    assert client.call("num_live", engine=0) == 0
    assert client.call_all("num_live") == {0: 0}


def test_an_unknown_operation(client: Face) -> None:
    for name in ("nothing", "shutdown", "__init__", "add_request"):
        with pytest.raises(UnknownOperationError, match=name):
            client.call(name)


def test_arguments_that_do_not_fit(client: Face) -> None:
    with pytest.raises(InvalidRequestError):
        client.call(SLEEP, "deep")
    with pytest.raises(InvalidRequestError):
        client.call("give_back", object())
    with pytest.raises(CallFailedError):
        client.call("give_back", 5)
    with pytest.raises(InvalidRequestError, match="no engine 1"):
        client.call("num_live", engine=1)


@pytest.mark.cases
@pytest.mark.parametrize("kind_of_value", ["lock", "type", "big", "deep", "raise=x"])
def test_a_result_that_cannot_be_sent_fails_its_call_alone(client: Face, kind_of_value: str) -> None:
    stream = client.generate(ask("beside", 200))
    next(stream)
    with pytest.raises(CallFailedError, match="give_back"):
        client.call("give_back", kind_of_value)
    assert sum(len(output.new_token_ids) for output in stream) == 199
    assert client.call("num_live") == 0


def test_results_that_can_be_sent_come_back(client: Face) -> None:
    assert sorted(client.call("give_back", "set")) == [1, 2, 3]
    nan = client.call("give_back", "nan")
    assert nan != nan
    assert len(client.call("give_back", "long=3000000")) == 3_000_000


def test_a_call_that_takes_too_long_and_its_late_answer(client: Face, kind: str) -> None:
    if kind == "inproc":
        pytest.skip("the caller's own thread does the work")
    with pytest.raises(CallTimeoutError):
        client.call("inject", "operation:sleep=0.3", timeout=0.02)
    assert client.call("is_sleeping") is False


def test_health_and_status(client: Face, kind: str) -> None:
    client.check_health()
    [status] = client.engines()
    assert (status.rank, status.state, status.error, status.in_flight) == (0, "serving", "", 0)
    if kind != "inproc":
        assert status.pid and status.progress and status.progress.phase == "serving" and status.ready
    stream = client.generate(ask("a", FOREVER))
    next(stream)
    assert client.engines()[0].in_flight == 1
    stream.close()


def test_statistics_reach_their_listener(kind: str) -> None:
    heard: list[int] = []
    with opened(kind, "echo") as client:
        client.observe_stats(lambda rank, stats: heard.append(rank))
        list(client.generate(ask("a")))
    assert set(heard) <= {0}


@pytest.mark.cases
@pytest.mark.parametrize("fault", ["step:raise", "step:executor"])
def test_everybody_hears_of_a_death_and_its_cause(kind: str, fault: str) -> None:
    cause = "fault was asked for" if fault == "step:raise" else "executor"
    with opened(kind, "faulty", step_ms=1) as client:
        streams = [client.generate(ask(f"r{n}", FOREVER)) for n in range(3)]
        next(streams[0])
        killer = client.generate(faulty("killer", fault, FOREVER))
        for stream in [killer, *streams]:
            with pytest.raises(EngineDeadError, match=cause):
                list(stream)
        for use in uses(client):
            with pytest.raises(EngineDeadError, match=cause):
                use()
        assert client.engines()[0].state == "dead" and cause in client.engines()[0].error
        client.close()
        with pytest.raises(ClientClosedError):
            client.check_health()


def test_a_closed_client_says_so(kind: str) -> None:
    with opened(kind, "echo") as client:
        stream = client.generate(ask("a", FOREVER))
        next(stream)
        client.close()
        client.close()
        with pytest.raises(ClientClosedError):
            list(stream)
        for use in uses(client):
            with pytest.raises(ClientClosedError):
                use()


def uses(client: Face) -> list[Callable[[], object]]:
    return [
        lambda: client.generate(ask("late")),
        lambda: client.call("is_sleeping"),
        lambda: client.call_all("is_sleeping"),
        client.check_health,
    ]
