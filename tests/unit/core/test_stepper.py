"""stepper.py with a model that hashes what it reads; `test_stepper_equal.py` shows that all get their own tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muro.core.executor import ExecutorInfo
from muro.core.options import SchedulerConfig
from muro.core.plan import ModelRunnerOutput, SchedulerOutput
from muro.core.stepper import StepperEngine
from muro.engine.interface import EngineCore
from muro.errors import InternalError, PromptTooLongError, RequestFailedError
from muro.testing.hashing import HashingExecutor
from muro.wire.output import EngineCoreOutput, FinishReason
from muro.wire.request import RESUMED_TOKENS, EngineCoreRequest, RepetitionDetection, SamplingParams

VOCAB = 24
MAX_LEN = 30


class Case(msgspec.Struct, frozen=True):
    """A request, the step before which it arrives, and the step during which it is aborted."""

    prompt: list[int]
    sampling: SamplingParams
    arrives: int = 0
    aborted: int | None = None


def add(engine: EngineCore, request_id: str, prompt: list[int], sampling: SamplingParams) -> None:
    engine.add_request(request_id, engine.preprocess(EngineCoreRequest(request_id, prompt, sampling_params=sampling)))


def drive(engine: EngineCore, cases: list[Case]) -> dict[str, list[EngineCoreOutput]]:
    """Run all cases to their end, by the number of the case."""
    outputs: dict[str, list[EngineCoreOutput]] = defaultdict(list)
    steps = 0
    last = max(case.arrives for case in cases)
    while engine.has_work() or steps <= last:
        for number, case in enumerate(cases):
            if case.arrives == steps:
                add(engine, str(number), case.prompt, case.sampling)
        aborts = [str(number) for number, case in enumerate(cases) if case.aborted == steps]
        for output in engine.step(lambda now=aborts: now).outputs:  # type: ignore[misc]
            outputs[output.request_id].append(output)
        steps += 1
        assert steps < 5000, "no progress"
    return outputs


def shown(outputs: list[EngineCoreOutput]) -> list[object]:
    """What a reader of one stream sees of it; times, the number of events and who computed the prompt may differ."""
    prompts = [o.prefill_stats and o.prefill_stats.num_prompt_tokens for o in outputs]
    return [
        (o.new_token_ids, o.new_logprobs, o.new_prompt_logprobs_tensors, o.finish_reason, o.stop_reason, p)
        for o, p in zip(outputs, prompts, strict=True)
    ]


tokens = st.integers(0, VOCAB - 1)
samplings = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_k=st.sampled_from([0, 4]),
    top_p=st.sampled_from([1.0, 0.8]),
    min_p=st.sampled_from([0.0, 0.05]),
    seed=st.integers(-(2**63), 2**63 - 1),
    max_tokens=st.none() | st.integers(2, 20),
    min_tokens=st.integers(0, 2),
    stop_token_ids=st.lists(tokens, max_size=2),
    eos_token_id=st.none() | tokens,
    logprobs=st.sampled_from([None, None, 0, 3]),
    prompt_logprobs=st.sampled_from([None, None, None, 0, 2]),
    logprob_token_ids=st.none() | st.lists(tokens, max_size=3),
    presence_penalty=st.sampled_from([0.0, 0.0, 1.0, -0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.5]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.4]),
    logit_bias=st.none() | st.dictionaries(tokens, st.floats(-3, 3), max_size=3),
    allowed_token_ids=st.none() | st.none() | st.lists(tokens, min_size=8, unique=True),
    bad_words_token_ids=st.none() | st.lists(st.lists(tokens, min_size=1, max_size=2), max_size=6),
    repetition_detection=st.none() | st.builds(RepetitionDetection, st.integers(1, 3), st.just(0), st.just(2)),
)
cases = st.builds(
    Case,
    prompt=st.lists(tokens, min_size=1, max_size=MAX_LEN - 1),
    sampling=samplings,
    arrives=st.integers(0, 25),
    aborted=st.none() | st.none() | st.integers(0, 60),
)


def engine_for(blocks: int, block_size: int, seqs: int, budget: int) -> StepperEngine:
    executor = HashingExecutor(num_blocks=blocks, block_size=block_size, vocab_size=VOCAB, max_model_len=MAX_LEN)
    return StepperEngine(executor, SchedulerConfig(max_num_seqs=seqs, max_num_batched_tokens=budget))


def test_a_tiny_cache_preempts_and_loses_nothing() -> None:
    requests = [Case([i + 1] * 3, SamplingParams(seed=i, max_tokens=20)) for i in range(8)]
    engine = engine_for(blocks=12, block_size=2, seqs=8, budget=8)
    preempted = 0
    for number, outputs in drive(engine, requests).items():
        alone = drive(engine_for(16, 2, 1, 100), [requests[int(number)]])["0"]
        assert shown(outputs) == shown(alone)
        preempted += sum(event.type == 3 for output in outputs for event in output.events or ())
    assert preempted > 0


@given(sampling=samplings, prompt=st.lists(tokens, min_size=1, max_size=8), cut=st.integers(1, 19))
@settings(deadline=None)
def test_a_request_continues_elsewhere_as_if_nothing_had_happened(
    sampling: SamplingParams, prompt: list[int], cut: int
) -> None:
    outputs = drive(engine_for(8, 4, 1, 50), [Case(prompt, sampling)])["0"]
    whole = [token for output in outputs for token in output.new_token_ids]
    cut = max(0, min(cut, len(whole) - 1))
    resumed = msgspec.structs.replace(sampling, extra_args={RESUMED_TOKENS: cut})
    rest = drive(engine_for(9, 4, 2, 3), [Case(prompt + whole[:cut], resumed)])["0"]
    assert [token for output in rest for token in output.new_token_ids] == whole[cut:]
    assert (rest[-1].finish_reason, rest[-1].stop_reason) == (outputs[-1].finish_reason, outputs[-1].stop_reason)
    assert [o.new_logprobs for o in rest] == [o.new_logprobs for o in outputs[cut:]]


def test_the_cache_bounds_what_one_sequence_may_have() -> None:
    engine = engine_for(blocks=3, block_size=4, seqs=2, budget=10)
    info = engine.info()
    assert (info.max_model_len, info.num_gpu_blocks, info.kv_cache_size_tokens) == (13, 3, 12)
    assert info.understands_resumed_tokens and info.honours_sampling_options
    with pytest.raises(PromptTooLongError):
        add(engine, "long", [1] * 13, SamplingParams())
    outputs = drive(
        engine, [Case([1] * 12, SamplingParams(seed=1)), Case([2], SamplingParams(seed=2, max_tokens=None))]
    )
    assert [len(outputs[i]) for i in "01"] == [1, 12]
    assert [outputs[i][-1].finish_reason for i in "01"] == [FinishReason.LENGTH] * 2


def test_an_unseeded_request_varies() -> None:
    streams = drive(engine_for(64, 4, 8, 100), [Case([1], SamplingParams(max_tokens=20))] * 2)
    assert [o.new_token_ids for o in streams["0"]] != [o.new_token_ids for o in streams["1"]]


def test_an_idle_engine_has_no_work_and_runs_nothing() -> None:
    engine = engine_for(4, 4, 2, 8)
    assert not engine.has_work()
    result = engine.step(list)
    assert (result.outputs, result.executed) == ([], False)


class Meddled(HashingExecutor):
    """Lets a test do something with a plan or with its logits."""

    def __init__(self, meddle: Callable[[SchedulerOutput, ModelRunnerOutput], None]) -> None:
        super().__init__(vocab_size=VOCAB)
        self._meddle = meddle

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        result = super().execute(plan)
        self._meddle(plan, result)
        return result


def test_an_error_that_names_a_request_leaves_the_others_whole() -> None:
    def meddle(plan: SchedulerOutput, result: ModelRunnerOutput) -> None:
        if any(s.request_id == "bad" and s.num_computed_tokens > 3 for s in plan.sequences):
            raise RequestFailedError("that one", request_id="bad")

    engine = StepperEngine(Meddled(meddle))
    sampling = SamplingParams(seed=3, max_tokens=9)
    add(engine, "good", [1, 2], sampling)
    add(engine, "bad", [3], sampling)
    seen: list[EngineCoreOutput] = []
    raised = 0
    while engine.has_work():
        try:
            seen += engine.step(list).outputs
        except RequestFailedError as error:
            raised += 1
            engine.abort_requests([error.request_id or ""])  # as the host does
    alone = drive(StepperEngine(HashingExecutor(vocab_size=VOCAB)), [Case([1, 2], sampling)])["0"]
    assert raised == 1
    assert shown([o for o in seen if o.request_id == "good"]) == shown(alone)


def test_unusable_logits_end_their_request_only() -> None:
    def meddle(plan: SchedulerOutput, result: ModelRunnerOutput) -> None:
        sampled = [s.request_id for s in plan.sequences if s.num_logits]
        if "0" in sampled and plan.sequences[0].num_computed_tokens > 4:
            result.logits[sampled.index("0")] = np.nan

    requests = [Case([1, 2], SamplingParams(seed=1, max_tokens=9)), Case([3], SamplingParams(seed=2, max_tokens=9))]
    outputs = drive(StepperEngine(Meddled(meddle)), requests)
    assert outputs["0"][-1].finish_reason is FinishReason.ERROR
    assert (len(outputs["1"]), outputs["1"][-1].finish_reason) == (9, FinishReason.LENGTH)


@pytest.mark.parametrize("wrong", [np.zeros((2, VOCAB), np.float32), np.zeros((1, VOCAB), np.float64)])
def test_logits_of_the_wrong_form_end_the_engine_with_a_reason(wrong: np.ndarray) -> None:
    def meddle(plan: SchedulerOutput, result: ModelRunnerOutput) -> None:
        result.logits = wrong

    engine = StepperEngine(Meddled(meddle))
    add(engine, "a", [1], SamplingParams())
    with pytest.raises(InternalError, match="logits of shape"):
        engine.step(list)


class Recorder:
    """An executor that only notes what it is asked."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def info(self) -> ExecutorInfo:
        return ExecutorInfo(max_model_len=8, num_blocks=1, block_size=8, vocab_size=4, dtype="bfloat16")

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        raise NotImplementedError

    def on_failure(self, callback: object) -> None:
        self.calls.append(callback)

    def shutdown(self) -> None:
        self.calls.append("shutdown")


def test_failure_callback_and_shutdown_reach_the_executor() -> None:
    executor = Recorder()
    engine = StepperEngine(executor)
    engine.on_executor_failure(print)
    engine.shutdown()
    assert executor.calls == [print, "shutdown"]
    assert engine.info().dtype == "bfloat16"
