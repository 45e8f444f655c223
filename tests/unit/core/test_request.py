"""request.py: the table of states, and the rule by which a request ends (protocol section 8)."""

import numpy as np
import pytest

from muro.core.request import FINISHED, TRANSITIONS, Ended, Request, RequestStatus
from muro.core.sampling import PromptLogprobs, Sampling
from muro.core.sampling.logprobs import Columns
from muro.core.sampling.settings import History, Repetition
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


def with_history(history: History, prompt: list[int], **options: object) -> Request:
    return Request("r", prompt, Sampling(history=history), **({"max_length": 20} | options))  # type: ignore[arg-type]


def test_a_draw_knows_the_tokens_so_far() -> None:
    one = with_history(History(min_tokens=1, stop_ids=np.array([EOS])), [1, 2], min_tokens=1)
    assert [ids.tolist() for ids in one.draw().banned] == [[EOS]]
    one.append(OTHER)
    assert list(one.draw().banned) == []
    assert request().draw().occurrences is None and request().sampler_state is None


@pytest.mark.parametrize(("resumed", "taken"), [(0, [4, 5, 4, 5, 4, 5]), (2, [4, 5, 4, 5])])
def test_a_repetition_ends_the_output(resumed: int, taken: list[int]) -> None:
    history = History(repetition=Repetition(1, 3, 3))
    one = with_history(history, [4, 5, 4, 5], num_resumed_tokens=resumed)
    assert [one.append(token) for token in taken] == [None] * (len(taken) - 1) + [
        (FinishReason.REPETITION, "repetition_detected")
    ]


def test_a_repetition_counts_once_min_tokens_are_there_and_after_the_other_reasons() -> None:
    history = History(repetition=Repetition(1, 1, 2))
    one = with_history(history, [1], min_tokens=4)
    ends = [one.append(token) for token in (3, 3, 3, 3)]
    assert ends == [None, None, None, (FinishReason.REPETITION, "repetition_detected")]
    one = with_history(history, [1], max_length=3)
    assert [one.append(token) for token in (3, 3)] == [None, (FinishReason.LENGTH, None)]
    one = with_history(history, [1], stop_token_ids=frozenset({3}), min_tokens=2)
    assert [one.append(token) for token in (3, 3)] == [None, (FinishReason.STOP, 3)]


def test_rows_of_logits_to_sample_and_for_a_prompt() -> None:
    plain = request()
    assert [plain.logits_wanted(0, 2), plain.logits_wanted(2, 3), plain.logits_wanted(0, 3)] == [0, 1, 1]
    prompt = PromptLogprobs(0, 10)
    one = request(prompt_logprobs=prompt)
    assert [one.logits_wanted(0, 2), one.logits_wanted(2, 3), one.logits_wanted(0, 3)] == [2, 1, 3]
    columns, row = Columns(10), np.zeros(10, np.float32)
    prompt.add(columns, row, 2)
    assert one.wants_prompt_rows
    assert [one.logits_wanted(0, 1), one.logits_wanted(0, 2), one.logits_wanted(0, 3)] == [0, 1, 2], (
        "after a preemption"
    )
    prompt.add(columns, row, 3)
    assert not one.wants_prompt_rows
    assert [one.logits_wanted(0, 2), one.logits_wanted(0, 3)] == [0, 1]


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
