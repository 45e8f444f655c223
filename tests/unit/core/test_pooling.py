"""Requests that are pooled: over an executor whose hidden states tell token and position."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muro.core.options import SchedulerConfig
from muro.core.pooling import Pooling, checked_pooling
from muro.core.stepper import StepperEngine
from muro.errors import InternalError, InvalidRequestError, PromptTooLongError, RequestError, UnsupportedOptionError
from muro.wire.output import EngineCoreOutput, FinishReason
from muro.wire.request import EngineCoreRequest, OutputKind, PoolingParams
from tests.support.pooling import VOCAB, WIDTH, TellingExecutor, expected, generated, pooled


def run(engine: StepperEngine, *requests: EngineCoreRequest) -> dict[str, list[EngineCoreOutput]]:
    for request in requests:
        engine.add_request(request.request_id, engine.preprocess(request))
    found: dict[str, list[EngineCoreOutput]] = {request.request_id: [] for request in requests}
    for _ in range(1000):
        if not engine.has_work():
            return found
        for output in engine.step(lambda: ()).outputs:
            found[output.request_id].append(output)
    raise AssertionError("it does not end")


def vector(outputs: list[EngineCoreOutput]) -> list[float]:
    (output,) = outputs
    assert output.finish_reason is FinishReason.STOP and output.new_token_ids == []
    assert output.pooling_output is not None and output.pooling_output.dtype == "float32"
    return output.pooling_output.numpy().tolist()


PROMPTS = st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=30), min_size=1, max_size=6)


@given(
    prompts=PROMPTS,
    kind=st.sampled_from(["mean", "last"]),
    budget=st.integers(3, 12),
    num_blocks=st.integers(11, 16),
    apart=st.booleans(),
    ahead=st.booleans(),
)
def test_a_vector_whatever_else_is_going_on(
    prompts: list[list[int]], kind: str, budget: int, num_blocks: int, apart: bool, ahead: bool
) -> None:
    """Chunks, a small cache, others that generate and preempt, steps scheduled ahead."""
    config = SchedulerConfig(max_num_seqs=3, max_num_batched_tokens=budget, async_scheduling=ahead)
    engine = StepperEngine(TellingExecutor(kind, num_blocks=num_blocks, apart=apart), config)
    others = [generated(f"other {i}", [1, 2, 3], 20) for i in range(2)]
    outputs = run(engine, others[0], *(pooled(str(i), prompt) for i, prompt in enumerate(prompts)), others[1])
    engine.shutdown()
    for i, prompt in enumerate(prompts):
        assert vector(outputs[str(i)]) == pytest.approx(expected(prompt, kind))
    for other in others:
        assert sum(len(output.new_token_ids) for output in outputs[other.request_id]) == 20


def test_a_mean_needs_every_token_and_the_last_one_only_itself() -> None:
    prompt = list(range(13))
    for kind, computed in (("mean", 13), ("last", 1)):
        executor = TellingExecutor(kind)
        engine = StepperEngine(executor)
        run(engine, generated("first", prompt, 1))
        executor.computed.clear()
        outputs = run(engine, pooled("second", prompt))
        assert vector(outputs["second"]) == pytest.approx(expected(prompt, kind))
        assert sum(count for _, _, count in executor.computed) == computed
        stats = outputs["second"][0].prefill_stats
        assert stats is not None and stats.num_prompt_tokens == 13 and stats.num_computed_tokens == computed


def test_it_has_length_one_unless_told_otherwise() -> None:
    engine = StepperEngine(TellingExecutor())
    for activation in (None, True):
        found = vector(run(engine, pooled("a", [4, 5], use_activation=activation))["a"])
        plain = np.array(expected([4, 5], "mean"))
        assert found == pytest.approx((plain / np.linalg.norm(plain)).tolist())


def test_a_prompt_may_fill_the_context_and_no_more() -> None:
    engine = StepperEngine(TellingExecutor())
    assert "embed" in engine.info().supported_tasks
    assert vector(run(engine, pooled("a", [1] * 40))["a"])[0] == 1
    with pytest.raises(PromptTooLongError, match="it may have 40"):
        engine.preprocess(pooled("a", [1] * 41))
    small = StepperEngine(TellingExecutor(num_blocks=3))
    assert vector(run(small, pooled("a", [1] * 12))["a"])[0] == 1
    with pytest.raises(PromptTooLongError, match="it may have 12"):
        small.preprocess(pooled("a", [1] * 13))


@pytest.mark.parametrize(
    ("params", "kind", "says"),
    [
        ({"task": "classify"}, UnsupportedOptionError, "'classify' is not supported"),
        ({"dimensions": 2}, UnsupportedOptionError, "dimensions is 2"),
        ({"step_tag_id": 1}, UnsupportedOptionError, "step_tag_id"),
        ({"returned_token_ids": [1]}, UnsupportedOptionError, "returned_token_ids"),
        ({"late_interaction_params": ["score_doc", "x", 1]}, UnsupportedOptionError, "late_interaction_params"),
        ({"late_chunking_params": [2]}, UnsupportedOptionError, "late_chunking_params"),
        ({"extra_kwargs": {"a": 1}}, UnsupportedOptionError, "extra_kwargs"),
        ({"output_kind": OutputKind.DELTA}, InvalidRequestError, "FINAL_ONLY"),
    ],
)
def test_what_is_not_offered_is_refused_by_name(params: dict[str, object], kind: type[RequestError], says: str) -> None:
    with pytest.raises(kind, match=says):
        checked_pooling(PoolingParams(**params), "mean", WIDTH)


def test_what_asks_for_nothing_is_taken() -> None:
    params = PoolingParams(
        task="embed", dimensions=WIDTH, returned_token_ids=[], extra_kwargs={}, requires_token_ids=True
    )
    assert checked_pooling(params, "last", WIDTH).num_pooled == 0


def test_a_model_without_pooling() -> None:
    engine = StepperEngine(TellingExecutor(None))
    assert engine.info().supported_tasks == ("generate",)
    with pytest.raises(UnsupportedOptionError, match="no embeddings"):
        engine.preprocess(pooled("a", [1]))
    with pytest.raises(InvalidRequestError, match=r"0 \.\.\. 49"):
        StepperEngine(TellingExecutor()).preprocess(pooled("a", [VOCAB]))


def test_hidden_states_that_are_none() -> None:
    executor = TellingExecutor()
    engine = StepperEngine(executor)
    executor.wrong = np.full((2, WIDTH), np.nan, np.float32)
    (output,) = run(engine, pooled("a", [1, 2]))["a"]
    assert output.finish_reason is FinishReason.ERROR and output.error is not None and "usable" in output.error.message
    executor.wrong = np.zeros((1, WIDTH), np.float32)
    with pytest.raises(InternalError, match=r"float32 of \(2, 3\) were planned"):
        run(engine, pooled("b", [1, 2]))


def test_positions_count_once() -> None:
    pooling = Pooling("mean", normalize=False)
    assert [pooling.hidden_wanted(0, 4, 10), pooling.hidden_wanted(4, 10, 10)] == [4, 6]
    pooling.add(4, np.full((4, 1), 1, np.float32))
    assert [pooling.hidden_wanted(0, 3, 10), pooling.hidden_wanted(0, 6, 10)] == [0, 2]
    pooling.add(3, np.full((3, 1), 9, np.float32))
    pooling.add(6, np.full((6, 1), 3, np.float32))
    tensor = pooling.vector()
    assert tensor is not None and tensor.numpy().tolist() == pytest.approx([(4 * 1 + 2 * 3) / 6])


def test_a_pooled_request_can_be_aborted() -> None:
    engine = StepperEngine(TellingExecutor(), SchedulerConfig(max_num_batched_tokens=4, max_num_seqs=2))
    engine.add_request("a", engine.preprocess(pooled("a", [1] * 10)))
    assert engine.step(lambda: ()).outputs == []
    engine.step(lambda: ["a"])
    assert not engine.has_work() and msgspec.to_builtins(engine.stats())["num_running_reqs"] == 0
