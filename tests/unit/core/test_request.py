"""request.py: the table of states, and the rule by which a request ends (protocol section 8)."""

import pytest

from muro.core.request import FINISHED, TRANSITIONS, Ended, Request, RequestStatus
from muro.core.sampling import Sampling
from muro.errors import InternalError
from muro.wire.output import FinishReason

EOS, STOP, OTHER = 7, 8, 9


def request(**changes: object) -> Request:
    options: dict[str, object] = {"max_length": 6, "eos_token_id": EOS, "stop_token_ids": frozenset({STOP})}
    return Request("r", [1, 2, 3], Sampling(), **(options | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "tokens", "ended"),
    [
        ({}, [EOS], (FinishReason.STOP, None)),
        ({}, [STOP], (FinishReason.STOP, STOP)),
        ({}, [OTHER], None),
        ({}, [OTHER, OTHER, OTHER], (FinishReason.LENGTH, None)),
        ({}, [OTHER, OTHER, EOS], (FinishReason.STOP, None)),
        ({}, [OTHER, OTHER, STOP], (FinishReason.STOP, STOP)),
        ({"eos_token_id": None}, [EOS], None),
        ({"stop_token_ids": frozenset({EOS})}, [EOS], (FinishReason.STOP, None)),
        ({"min_tokens": 2}, [EOS], None),
        ({"min_tokens": 2}, [STOP], None),
        ({"min_tokens": 2}, [EOS, EOS], (FinishReason.STOP, None)),
        ({"min_tokens": 9}, [EOS, STOP, OTHER], (FinishReason.LENGTH, None)),
        ({"min_tokens": 2, "num_resumed_tokens": 1}, [EOS], (FinishReason.STOP, None)),
    ],
)
def test_the_stop_rule(changes: dict[str, object], tokens: list[int], ended: Ended | None) -> None:
    one = request(**changes)
    assert [one.append(token) for token in tokens] == [None] * (len(tokens) - 1) + [ended]
    assert one.token_ids == [1, 2, 3, *tokens]


def test_resumed_tokens_count_as_output() -> None:
    one = request(num_resumed_tokens=2)
    assert (one.num_output_tokens, one.draw().position) == (2, 2)
    one.append(OTHER)
    assert (one.num_output_tokens, one.draw().position, one.num_pending_tokens) == (3, 3, 4)


def test_stop_tokens_are_banned_up_to_min_tokens() -> None:
    one = request(min_tokens=1, banned=[EOS])
    assert one.draw().banned == [EOS]
    one.append(OTHER)
    assert one.draw().banned is None


def test_every_state_has_a_row_and_finished_ones_are_final() -> None:
    assert set(TRANSITIONS) == set(RequestStatus)
    assert all(not TRANSITIONS[status] for status in FINISHED.values())
    assert set(FINISHED.values()) == {s for s in RequestStatus if s.name.startswith("FINISHED")}


@pytest.mark.parametrize("start", RequestStatus)
@pytest.mark.parametrize("end", RequestStatus)
def test_only_listed_changes_are_possible(start: RequestStatus, end: RequestStatus) -> None:
    one = request()
    one.status = start
    if end in TRANSITIONS[start]:
        one.become(end)
        assert one.status is end
    else:
        with pytest.raises(InternalError, match="cannot go"):
            one.become(end)
        assert one.status is start
