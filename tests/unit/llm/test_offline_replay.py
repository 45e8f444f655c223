"""offline_replay.py: the requests of one call get every token once, whatever dies in between."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from muro.core.options import SchedulerConfig
from muro.core.plan import ModelRunnerOutput, SchedulerOutput
from muro.core.stepper import StepperEngine
from muro.engines.echo import EchoEngine
from muro.errors import EngineDeadError, InvalidRequestError, RequestFailedError
from muro.llm.offline_replay import Batch
from muro.llm.quarantine import PATIENCE
from muro.llm.replay import DeathPolicy
from muro.testing.hashing import HashingExecutor
from muro.wire.output import EngineCoreOutput, FinishReason
from muro.wire.request import EngineCoreRequest, SamplingParams
from tests.support.counts import count
from tests.support.mortal import MortalBatches, death

REPLAY = DeathPolicy(on_engine_death="replay", restart_wait=7.0)


class Poisonable(HashingExecutor):
    """Dies of sequences that begin with 13."""

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        if any(s.token_ids[0] == 13 and s.num_computed_tokens == 0 for s in plan.sequences):
            raise MemoryError("poisoned")
        return super().execute(plan)


def engine() -> StepperEngine:
    executor = Poisonable(num_blocks=40, block_size=4, vocab_size=64, max_model_len=60)
    return StepperEngine(executor, SchedulerConfig(max_num_seqs=6, max_num_batched_tokens=16))


def batch_over(client: MortalBatches, policy: DeathPolicy = REPLAY) -> Batch:
    return Batch(client, policy)  # type: ignore[arg-type]


def requests(*prompts: list[int], **params: object) -> list[EngineCoreRequest]:
    chosen = {"max_tokens": 8, "seed": 3, **params}
    return [
        EngineCoreRequest(str(number), prompt, sampling_params=SamplingParams(**chosen))  # type: ignore[arg-type]
        for number, prompt in enumerate(prompts)
    ]


def run(batch: Batch, asked: list[EngineCoreRequest]) -> dict[str, list[object]]:
    for request in asked:
        batch.add(request)
    said: dict[str, list[object]] = {request.request_id: [] for request in asked}
    left = set(said)
    while left:
        for output in batch.outputs():
            said[output.request_id].append(shown(output))
            if output.finish_reason is not None:
                left.remove(output.request_id)
    return said


def shown(output: EngineCoreOutput) -> object:
    return output.new_token_ids, output.new_logprobs, output.finish_reason, output.stop_reason


prompts = st.lists(st.lists(st.integers(14, 63), min_size=1, max_size=9), min_size=1, max_size=9)


@given(
    prompts=prompts,
    deaths=st.lists(st.integers(1, 30), max_size=5, unique=True),
    temperature=st.sampled_from([0.0, 0.9]),
    max_tokens=st.integers(1, 20),
    min_tokens=st.integers(0, 1),
    stops=st.lists(st.integers(0, 63), max_size=3),
    swift=st.booleans(),
)
@settings(max_examples=count(40, 2000), deadline=None)
def test_it_reads_like_an_undisturbed_run(
    prompts: list[list[int]],
    deaths: list[int],
    temperature: float,
    max_tokens: int,
    min_tokens: int,
    stops: list[int],
    swift: bool,
) -> None:
    asked = requests(
        *prompts,
        temperature=temperature,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop_token_ids=stops,
        logprobs=1,
    )
    undisturbed = run(batch_over(MortalBatches(engine, {})), asked)
    client = MortalBatches(engine, {step: death(-9) for step in deaths}, swift=swift)
    batch = batch_over(client)
    try:
        said = run(batch, asked)
    except RequestFailedError:
        assume(len(deaths) < PATIENCE)  # so many signals in a row, without a token in between, may well convict
        raise
    assert said == undisturbed
    assert len(batch._quarantine) == 0 and not batch._runs and not batch._idle
    assert set(client.patience) <= {7.0}


def test_a_poisonous_request_fails_its_call() -> None:
    """Two deaths make all suspect; in the third one another request ran that had been cleared just before."""
    client = MortalBatches(engine, {})
    with pytest.raises(RequestFailedError, match=r"4 times .* nothing else explains"):
        run(batch_over(client), requests([20], [13], [21]))
    assert client.generation == 3


def test_many_suspects_are_tried_in_a_few_steps() -> None:
    def wide() -> StepperEngine:
        executor = HashingExecutor(num_blocks=100, block_size=4, vocab_size=64, max_model_len=60)
        return StepperEngine(executor, SchedulerConfig(max_num_seqs=31, max_num_batched_tokens=1000))

    client = MortalBatches(wide, {1: death(-9), 2: death(-9)})
    run(batch_over(client), requests(*([14 + number] for number in range(31)), max_tokens=2))
    assert client.steps < 2 + 12, "4 alone, 2, 4, 8 and 16 at once, and the last of them make two tokens"


def test_an_engine_that_cannot_continue() -> None:
    client = MortalBatches(EchoEngine, {1: death(-9), 4: death(-9)})
    with pytest.raises(RequestFailedError, match=r"2 tokens.*does not know how to continue"):
        run(batch_over(client), requests([20]))
    assert len(run(batch_over(MortalBatches(EchoEngine, {1: death(-9)})), requests([20]))["0"]) == 8


def test_running_requests_fail_where_that_is_the_policy() -> None:
    client = MortalBatches(engine, {3: death(-9)})
    with pytest.raises(EngineDeadError):
        run(batch_over(client, DeathPolicy()), requests([20]))


def test_nothing_is_left_of_a_call_that_was_interrupted() -> None:
    client = MortalBatches(engine, {})
    batch = batch_over(client)
    for request in requests([20], [21]):
        batch.add(request)
    batch.outputs()
    client.die(death(-9))
    with pytest.raises(KeyError):
        while True:
            for output in batch.outputs():
                raise KeyError(output.request_id)
    batch.abort()
    assert len(client.session) == 0
    assert run(batch_over(client), requests([20])) == run(batch_over(MortalBatches(engine, {})), requests([20]))


def test_a_new_call_waits_for_the_engine() -> None:
    for policy in (REPLAY, DeathPolicy(restart_wait=7.0)):
        client = MortalBatches(engine, {})
        client.die(death(-9))
        assert len(run(batch_over(client, policy), requests([20]))["0"]) == 8
        assert client.patience == [7.0]
    client.die(death(-9))
    with pytest.raises(EngineDeadError):
        run(batch_over(client, DeathPolicy(restart_wait=0)), requests([20]))


def test_without_a_successor_all_fail() -> None:
    client = MortalBatches(engine, {3: death(-9, restarting=False)})
    with pytest.raises(EngineDeadError):
        run(batch_over(client), requests([20]))


def test_what_is_refused_is_refused() -> None:
    client = MortalBatches(engine, {})
    batch = batch_over(client)
    batch.add(requests([20])[0])
    batch.outputs()
    batch.add(requests([20])[0])
    with pytest.raises(InvalidRequestError, match="already in flight"):
        batch.outputs()


def test_one_that_has_had_enough_is_ended_for_the_engine_too() -> None:
    client = MortalBatches(engine, {})
    batch = batch_over(client)
    for request in requests([20], [21]):
        batch.add(request)
    batch.outputs()
    batch.end("0")
    batch.end("0")
    assert len(client.session) == 1
    last: list[EngineCoreOutput] = []
    while not (last and last[-1].finish_reason == FinishReason.LENGTH):
        last = batch.outputs()
        assert {output.request_id for output in last} == {"1"}
