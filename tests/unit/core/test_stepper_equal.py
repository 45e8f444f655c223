"""stepper.py: whatever is switched on, each request gets the very tokens that it gets alone, token by token.

The model hashes what it reads through the block tables, so a block that is shared wrongly, lost or written too early
gives other tokens.
"""

from __future__ import annotations

import random
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muro.core.executor import Executor
from muro.core.options import SchedulerConfig
from muro.core.plan import ModelRunnerOutput, SchedulerOutput
from muro.core.stepper import StepperEngine
from muro.errors import InternalError
from muro.testing.hashing import HashingExecutor
from muro.wire.output import EngineCoreOutput, EventType
from muro.wire.request import SamplingParams
from tests.support.counts import count, half, spread
from tests.support.lagging import LaggingExecutor
from tests.unit.core.test_stepper import Case, cases, drive, shown

VOCAB = 24
MAX_LEN = 30
BLOCK_SIZE = 4
ENOUGH = -(-(MAX_LEN - 1) // BLOCK_SIZE)


class Counting(HashingExecutor):
    """Notes how many sequences a step had at most."""

    most = 0

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        self.most = max(self.most, len(plan.sequences))
        return super().execute(plan)


def executor_for(blocks: int, block_size: int = BLOCK_SIZE) -> Counting:
    return Counting(num_blocks=blocks, block_size=block_size, vocab_size=VOCAB, max_model_len=MAX_LEN)


def engine_for(executor: Executor, config: SchedulerConfig) -> StepperEngine:
    """An engine whose executor returns futures if they are of use."""
    return StepperEngine(LaggingExecutor(executor) if config.async_scheduling else executor, config)


@cache
def requests() -> list[Case]:
    """Eighty of them; many begin alike, some are aborted at some time."""
    rng = random.Random(4)
    beginnings = [[rng.randrange(VOCAB) for _ in range(20)] for _ in range(3)]
    made = []
    for number in range(80):
        prompt = rng.choice(beginnings)[: rng.choice([0, 5, 13, 20])]
        prompt = prompt + [rng.randrange(VOCAB) for _ in range(rng.randint(1, 6))]
        sampling = SamplingParams(
            temperature=rng.choice([0.0, 1.0]),
            seed=number,
            max_tokens=rng.randint(1, 25),
            top_k=rng.choice([0, 5]),
            logprobs=rng.choice([None, None, 2]),
            prompt_logprobs=rng.choice([None, None, None, 1]),
            presence_penalty=rng.choice([0.0, 0.0, 1.0]),
            repetition_penalty=rng.choice([1.0, 1.0, 1.5]),
            stop_token_ids=rng.choice([[], [], [rng.randrange(VOCAB)]]),
        )
        aborted = rng.choice([None, None, None, rng.randint(0, 40)])
        made.append(Case(prompt, sampling, arrives=rng.randint(0, 5), aborted=aborted))
    return made


@cache
def alone(number: int) -> list[object]:
    """What a request gets when there is no other, with nothing switched on."""
    case = requests()[number]
    config = SchedulerConfig(enable_prefix_caching=False)
    return shown(drive(engine_for(executor_for(ENOUGH), config), [Case(case.prompt, case.sampling)])["0"])


def events(outputs: dict[str, list[EngineCoreOutput]], kind: EventType) -> int:
    return sum(event.type == kind for one in outputs.values() for output in one for event in output.events or ())


COMBINATIONS = spread([True, False], [True, False], [True, False], [True, False], half([1, 2, 7, 16, 64]))


@pytest.mark.parametrize(("prefix", "chunked", "tiny", "ahead", "batch"), COMBINATIONS)
def test_every_combination_gives_what_a_request_gets_alone(
    prefix: bool, chunked: bool, tiny: bool, ahead: bool, batch: int
) -> None:
    config = SchedulerConfig(
        max_num_seqs=batch,
        max_num_batched_tokens=batch + 3 if chunked else 4096,
        enable_prefix_caching=prefix,
        async_scheduling=ahead,
    )
    # Room for a few requests, or for all of them.
    executor = executor_for(ENOUGH + 2 + batch // 4 if tiny else 700)
    outputs = drive(engine_for(executor, config), requests())
    for number, case in enumerate(requests()):
        seen = shown(outputs[str(number)])
        assert seen == alone(number)[: len(seen) if case.aborted is not None else None]
    cached = [o.prefill_stats.num_cached_tokens for one in outputs.values() for o in one if o.prefill_stats]
    assert any(cached) is prefix
    assert tiny or not events(outputs, EventType.PREEMPTED)
    assert events(outputs, EventType.PREEMPTED) or not tiny or batch == 1
    assert tiny or chunked or executor.most > batch // 2


@given(
    requests=st.lists(cases, min_size=1, max_size=10),
    block_size=st.integers(1, 8),
    spare_blocks=st.integers(0, 12),
    seqs=st.integers(1, 8),
    spare_budget=st.sampled_from([0, 1, 3, 7, 100]),
    prefix=st.booleans(),
    ahead=st.booleans(),
)
@settings(max_examples=count(40, 80), deadline=None)
def test_same_outputs_in_any_company(
    requests: list[Case],
    block_size: int,
    spare_blocks: int,
    seqs: int,
    spare_budget: int,
    prefix: bool,
    ahead: bool,
) -> None:
    enough = -(-(MAX_LEN - 1) // block_size)
    config = SchedulerConfig(
        max_num_seqs=seqs,
        max_num_batched_tokens=seqs + spare_budget,
        enable_prefix_caching=prefix,
        async_scheduling=ahead,
    )
    crowded = drive(engine_for(executor_for(enough + spare_blocks, block_size), config), requests)
    plain = SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=1000, enable_prefix_caching=False)
    for number, case in enumerate(requests):
        seen = shown(crowded[str(number)])
        quiet = engine_for(executor_for(enough, block_size), plain)
        by_itself = shown(drive(quiet, [Case(case.prompt, case.sampling)])["0"])
        assert seen == by_itself[: len(seen) if case.aborted is not None else None]


class Telling(HashingExecutor):
    """Gives ids instead of rows where nothing else is read of a row."""

    told = 0

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        result = super().execute(plan)
        best_only = [s.best_only for s in plan.sequences for _ in range(s.num_logits)]
        best = [int(row.argmax()) for row, only in zip(result.logits, best_only, strict=True) if only]
        self.told += len(best)
        rest = result.logits[[row for row, only in enumerate(best_only) if not only]]
        return ModelRunnerOutput(rest, token_ids=best)


@pytest.mark.parametrize("ahead", [True, False])
def test_an_executor_may_give_ids_instead_of_rows(ahead: bool) -> None:
    executor = Telling(num_blocks=ENOUGH + 6, block_size=BLOCK_SIZE, vocab_size=VOCAB, max_model_len=MAX_LEN)
    config = SchedulerConfig(max_num_seqs=16, max_num_batched_tokens=19, async_scheduling=ahead)
    outputs = drive(engine_for(executor, config), requests())
    for number, case in enumerate(requests()):
        seen = shown(outputs[str(number)])
        assert seen == alone(number)[: len(seen) if case.aborted is not None else None]
    assert executor.told > 20


def test_a_step_may_consist_of_ids_alone() -> None:
    executor = Telling(num_blocks=64, block_size=BLOCK_SIZE, vocab_size=VOCAB, max_model_len=MAX_LEN)
    greedy = [Case([number], SamplingParams(temperature=0.0, max_tokens=9)) for number in range(5)]
    plain = StepperEngine(HashingExecutor(num_blocks=64, vocab_size=VOCAB, max_model_len=MAX_LEN))
    outputs, expected = drive(StepperEngine(executor), greedy), drive(plain, greedy)
    assert [shown(outputs[n]) for n in expected] == [shown(expected[n]) for n in expected]
    assert executor.told == 45


@pytest.mark.parametrize("ids", [[], [1, 2], [VOCAB], [-2]])
def test_ids_that_were_not_planned_are_a_bug_of_the_executor(ids: list[int]) -> None:
    class Wrong(HashingExecutor):
        def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
            return ModelRunnerOutput(super().execute(plan).logits[:0], token_ids=ids)

    with pytest.raises(InternalError, match="token ids"):
        drive(StepperEngine(Wrong(vocab_size=VOCAB)), [Case([1], SamplingParams(temperature=0.0, max_tokens=2))])
