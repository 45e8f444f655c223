"""stepper.py with every sampling option: what comes out is what the plainest implementation would choose, step by step.

That company, chunks, preemption, caching and pipelining change nothing of it is shown here for log-probabilities of
prompts, and for all else in `test_stepper_equal.py`.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muro.core.options import SchedulerConfig
from muro.core.plan import SchedulerOutput, SequencePlan
from muro.core.scheduler import MAX_PROMPT_ROWS
from muro.core.stepper import StepperEngine
from muro.errors import ConfigError, UnsupportedOptionError
from muro.testing.hashing import HashingExecutor
from muro.wire.output import EngineCoreOutput, FinishReason, Logprobs
from muro.wire.request import RepetitionDetection, SamplingParams
from tests.support.lagging import LaggingExecutor
from tests.support.sampling import plain_forced, plain_repeats, plain_token
from tests.unit.core.test_stepper import MAX_LEN, VOCAB, Case, add, drive, samplings, tokens

THINKING = ((1,), (3, 4))


def executor(blocks: int = 64, max_model_len: int = MAX_LEN) -> HashingExecutor:
    return HashingExecutor(num_blocks=blocks, block_size=4, vocab_size=VOCAB, max_model_len=max_model_len)


def engine(**config: object) -> StepperEngine:
    chosen: dict[str, object] = {"thinking_start_token_ids": THINKING[0], "thinking_end_token_ids": THINKING[1]}
    return StepperEngine(executor(), SchedulerConfig(**(chosen | config)))  # type: ignore[arg-type]


def rows_after(text: list[int]) -> np.ndarray:
    """The model's logits after each token."""
    table = list(range(64))
    plan = SchedulerOutput([SequencePlan("a", text, 0, table, len(text))], len(text))
    return executor(max_model_len=256).execute(plan).logits.copy()


def plain_output(prompt: list[int], params: SamplingParams) -> tuple[list[int], FinishReason]:
    """What a request must get, from the model and the definitions alone."""
    output: list[int] = []
    while True:
        row = rows_after([*prompt, *output])[-1]
        token = None
        if params.thinking_token_budget is not None:
            token = plain_forced([*prompt, *output], *THINKING, params.thinking_token_budget)
        if token is None:
            token = plain_token(row, params, prompt, output)
        if token is None:
            return output, FinishReason.ERROR
        output.append(token)
        enough = len(output) >= params.min_tokens
        if enough and token in {params.eos_token_id, *(params.stop_token_ids or ())}:
            return output, FinishReason.STOP
        if len(output) == params.max_tokens or len(prompt) + len(output) == MAX_LEN:
            return output, FinishReason.LENGTH
        rule = params.repetition_detection
        if enough and rule and plain_repeats(output, 1, rule.max_pattern_size, rule.min_count):
            return output, FinishReason.REPETITION


@given(prompt=st.lists(tokens, min_size=1, max_size=12), params=samplings, thinking=st.none() | st.integers(0, 4))
@settings(max_examples=150, deadline=None)
def test_each_token_is_the_one_that_the_options_say(
    prompt: list[int], params: SamplingParams, thinking: int | None
) -> None:
    params.thinking_token_budget = thinking
    outputs = drive(engine(), [Case(prompt, params)])["0"]
    expected, reason = plain_output(prompt, params)
    assert [token for output in outputs for token in output.new_token_ids] == expected
    assert outputs[-1].finish_reason is reason


def test_a_loop_is_noticed() -> None:
    """All but one token are forbidden, so the output repeats itself."""
    params = SamplingParams(
        allowed_token_ids=[7], max_tokens=20, repetition_detection=RepetitionDetection(2, 1, 4), min_tokens=2
    )
    outputs = drive(engine(), [Case([1], params)])["0"]
    assert [o.new_token_ids for o in outputs] == [[7]] * 4
    assert (outputs[-1].finish_reason, outputs[-1].stop_reason) == (FinishReason.REPETITION, "repetition_detected")


def test_a_thinking_budget_needs_to_know_the_tokens() -> None:
    plain = StepperEngine(executor())
    with pytest.raises(UnsupportedOptionError, match="thinking_token_budget"):
        add(plain, "a", [1], SamplingParams(thinking_token_budget=3))
    with pytest.raises(ConfigError, match="thinking must lie in"):
        engine(thinking_start_token_ids=(VOCAB,))


def check_prompt(found: Logprobs | None, prompt: list[int], top: int) -> None:
    """Against a softmax in double precision of the model's own logits."""
    assert found is not None
    ids, values, ranks = (part.numpy() for part in (found.ids, found.values, found.ranks))
    assert ids.shape == values.shape == (len(prompt) - 1, top + 1)
    for i, row in enumerate(rows_after(prompt)[: len(prompt) - 1]):
        order = np.argsort(-row, kind="stable")
        exact = row.astype(np.float64) - math.log(np.exp(row.astype(np.float64)).sum())
        assert ids[i].tolist() == [prompt[i + 1], *order[:top].tolist()]
        assert values[i] == pytest.approx(exact[ids[i]], abs=1e-5)
        assert ranks[i] == (row > row[prompt[i + 1]]).sum() + 1


def prompts(outputs: list[EngineCoreOutput]) -> list[Logprobs | None]:
    return [output.new_prompt_logprobs_tensors for output in outputs]


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("budget", [2, 5, 100])
@pytest.mark.parametrize("blocks", [9, 64])
def test_log_probabilities_of_prompts_in_chunks_with_a_warm_cache_and_when_preempted(
    ahead: bool, budget: int, blocks: int
) -> None:
    text = [(7 * i + 3) % VOCAB for i in range(17)]
    asked = {0: None, 1: 2, 2: None, 3: 0, 4: 1, 5: 3}
    cases = [
        Case(text[: 17 - number], SamplingParams(seed=number, max_tokens=6, prompt_logprobs=top), arrives=number)
        for number, top in asked.items()
    ]
    model = executor(blocks)
    config = SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=budget, async_scheduling=ahead)
    outputs = drive(StepperEngine(LaggingExecutor(model) if ahead else model, config), cases)
    for number, top in asked.items():
        first, *later = prompts(outputs[str(number)])
        assert later == [None] * 5, "once"
        if top is None:
            assert first is None
        else:
            check_prompt(first, text[: 17 - number], top)
    stats = {n: outputs[n][0].prefill_stats for n in outputs}
    assert all(stats[str(n)].num_cached_tokens == 0 for n in (1, 3, 4, 5))  # type: ignore[union-attr]


@pytest.mark.parametrize("ahead", [False, True])
def test_many_prompts_at_once_wait_for_rows(ahead: bool) -> None:
    """The rows of a step are bounded, whatever its budget of tokens is; nobody is forgotten over it."""
    model = HashingExecutor(num_blocks=400, block_size=4, vocab_size=VOCAB, max_model_len=400)
    most = 0

    class Watched(HashingExecutor):
        def execute(self, plan: SchedulerOutput):  # type: ignore[no-untyped-def]
            nonlocal most
            most = max(most, sum(s.num_logits for s in plan.sequences))
            return model.execute(plan)

    watched = Watched(num_blocks=400, block_size=4, vocab_size=VOCAB, max_model_len=400)
    config = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=4096, async_scheduling=ahead)
    text = [(5 * i * i + 3) % VOCAB for i in range(200)]
    cases = [
        Case(text[n:], SamplingParams(seed=n, max_tokens=2, prompt_logprobs=1 if n % 3 else None)) for n in range(8)
    ]
    outputs = drive(StepperEngine(LaggingExecutor(watched) if ahead else watched, config), cases)
    for number, case in enumerate(cases):
        if number % 3:
            check_prompt(prompts(outputs[str(number)])[0], case.prompt, 1)
    assert MAX_PROMPT_ROWS // 2 < most <= MAX_PROMPT_ROWS + 8


def test_a_prompt_of_one_token_has_no_log_probabilities() -> None:
    (first, *_) = prompts(drive(engine(), [Case([5], SamplingParams(prompt_logprobs=2, max_tokens=2))])["0"])
    assert first is not None and first.ids.shape == [0, 3]
