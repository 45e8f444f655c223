"""The paged-attention executor against an independent float32 implementation, on small models of each family."""

from concurrent.futures import Future

import msgspec
import numpy as np
import pytest

from muro.core.plan import SchedulerOutput, SequencePlan
from muro.engines.openvino.executor import create_executor, step_inputs
from muro.engines.openvino.options import OpenVINOOptions
from muro.errors import ConfigError, InvalidRequestError
from muro.models.checkpoint import open_checkpoint
from tests.support.openvino_models import NAMES, compiled, executor, family, golden, log_softmax, part, step

TABLE = [5, 3, 1, 7]  # blocks in no order
# What the rounding of weights and cache may do to a log-probability.
TOLERANCES = {("f32", "f16"): 0.01, ("f16", "f16"): 0.01, ("int8", "f16"): 0.2, ("int8", "u8"): 0.2}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("weights", "cache"), [("f16", "f16"), ("int8", "u8")])
def test_logits_of_each_family(name: str, weights: str, cache: str) -> None:
    tolerance = TOLERANCES[weights, cache]
    model = executor(name, weights, cache)
    for case in golden(name):
        ids = case["ids"]
        for position in range(len(ids)):
            logits = log_softmax(step(model, part(ids, position, position + 1, TABLE)))[0]
            if case["margin"][position] > 2 * tolerance:
                assert logits.argmax() == case["argmax"][position]
            if (row := case["rows"].get(str(position))) is not None:
                assert np.abs(logits - row).max() < tolerance


@pytest.mark.parametrize(("weights", "cache"), list(TOLERANCES))
def test_a_prompt_in_one_step(weights: str, cache: str) -> None:
    model = executor("llama-plain", weights, cache)
    for case in golden("llama-plain"):
        ids = case["ids"]
        logits = log_softmax(step(model, part(ids, 0, len(ids), TABLE)))[0]
        assert np.abs(logits - case["rows"][str(len(ids) - 1)]).max() < TOLERANCES[weights, cache]


@pytest.mark.parametrize("chunk", [1, 7, 32, 33])
def test_chunks_do_not_matter(chunk: int) -> None:
    ids = golden("llama-plain")[-1]["ids"]
    whole = step(executor(), part(ids, 0, len(ids), TABLE)).copy()
    model = executor()
    for start in range(0, len(ids) - 1, chunk):
        unwanted = part(ids, start, min(start + chunk, len(ids) - 1), TABLE, num_logits=0)
        assert step(model, unwanted).shape == (0, model.info().vocab_size)
    np.testing.assert_allclose(step(model, part(ids, len(ids) - 1, len(ids), TABLE)), whole, atol=5e-3)


def test_logits_after_several_tokens_of_a_chunk() -> None:
    ids = golden("llama-plain")[-1]["ids"]
    model = executor()
    rows = step(model, part(ids, 0, 20, TABLE, num_logits=20)).copy()
    assert rows.shape == (20, model.info().vocab_size)
    for end in (1, 7, 20):
        np.testing.assert_allclose(step(model, part(ids, 0, end, TABLE))[0], rows[end - 1], atol=5e-3)


def test_company_does_not_matter_and_rows_come_in_order() -> None:
    """A decoding sequence, a chunk without a sample, a prompt and a sequence that shares a block, in one step."""
    cases = golden("llama-plain")
    long, other = cases[3]["ids"], cases[2]["ids"]
    alone = executor()
    expected = [
        step(alone, part(long, 0, 40, [0, 1])).copy(),
        step(alone, part(other, 0, 33, [2, 3])).copy(),
        step(alone, part(long, 0, 36, [4, 5])).copy(),
    ]
    model = executor()
    step(model, part(long, 0, 39, [8, 6]))
    together = step(
        model,
        part(long, 39, 40, [8, 6]),
        part(other, 0, 20, [9, 10], num_logits=0),
        part(other, 0, 33, [2, 3]),
        part(long, 32, 36, [8, 11]),  # its first 32 tokens are the first sequence's
    )
    assert together.shape == (3, 320) and together.dtype == np.float32
    for row, logits in zip(together, expected, strict=True):
        np.testing.assert_allclose(row, logits[0], atol=5e-3)


def test_a_plan_becomes_arrays() -> None:
    info = executor().info()
    plan = SchedulerOutput(
        [
            SequencePlan("a", [7], 32, [4, 2, 9], 1),
            SequencePlan("b", [1, 2, 3], 0, [5], 0, 2),
            SequencePlan("c", [8, 9, 3], 31, [6, 1], 2),
        ],
        7,
    )
    inputs = {name: array.tolist() for name, array in step_inputs(plan, info).items()}
    assert inputs == {
        "input_ids": [7, 1, 2, 3, 8, 9, 3],
        "position_ids": [32, 0, 1, 2, 31, 32, 33],
        "past_lens": [32, 0, 31],
        "subsequence_begins": [0, 1, 4, 7],
        "block_indices": [4, 2, 5, 6, 1],
        "block_indices_begins": [0, 2, 3, 5],
        "max_context_len": 34,
        "sampled": [0, 5, 6],
        "pooled": [2, 3],
    }


@pytest.mark.parametrize("token", [-1, 320])
def test_a_token_outside_the_vocabulary_ends_its_request_only(token: int) -> None:
    model = executor()
    plan = SchedulerOutput([SequencePlan("good", [1], 0, [0], 1), SequencePlan("bad", [2, token], 0, [1], 1)], 3)
    with pytest.raises(InvalidRequestError, match=f"token id {token} ") as caught:
        model.execute(plan)
    assert caught.value.request_id == "bad"
    assert step(model, part([1], 0, 1, [0])).shape == (1, 320)


def test_memory_decides_how_many_blocks_there_are() -> None:
    # 2 layers x (keys + values) x 2 heads x 32 tokens x 16 numbers x 2 bytes
    info = executor(cache_memory_mb=1).info()
    assert (info.num_blocks, info.block_size) == ((1 << 20) // 8192, 32)
    assert executor(cache_memory_mb=2).info().num_blocks == 2 * info.num_blocks
    assert executor("llama-plain", "int8", "u8").info().num_blocks > info.num_blocks
    assert info.max_model_len == 512


def test_limits_that_do_not_fit() -> None:
    assert executor(max_model_len=100).info().max_model_len == 100
    with pytest.raises(ConfigError, match="made for 512 tokens"):
        executor(max_model_len=513)


def test_a_cache_too_small_for_one_sequence() -> None:
    config = msgspec.structs.replace(family("llama-plain").config, max_position_embeddings=100_000)
    small = OpenVINOOptions(cache_memory_mb=1)
    model = compiled("llama-plain", "f32", "f16")
    assert create_executor(model, config, small).info().max_model_len == 4096
    with pytest.raises(ConfigError, match="cache_memory_mb=1 holds 4096 tokens"):
        create_executor(model, config, msgspec.structs.replace(small, max_model_len=5000))


def test_after_shutdown_nothing_runs() -> None:
    model = executor()
    model.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        step(model, part([1], 0, 1, [0]))


def test_hidden_states_are_what_the_head_reads() -> None:
    case = golden("llama-plain")[-1]["ids"]
    model = executor("llama-plain", "f32", pooling="mean")
    assert (model.info().hidden_size, model.info().pooling) == (64, "mean")
    plan = SchedulerOutput(
        [
            SequencePlan("a", case[:40], 0, [0, 1], 0, 40),
            SequencePlan("b", case[:3], 0, [2], 1),
            SequencePlan("c", case[:5], 0, [3], 2, 2),
        ],
        48,
    )
    result = model.execute(plan)
    assert result.hidden is not None and result.hidden.shape == (42, 64) and result.logits.shape == (3, 320)
    head = open_checkpoint(family("llama-plain")).read("model.embed_tokens.weight")
    np.testing.assert_allclose(result.hidden[40:] @ head.T, result.logits[1:], atol=1e-3)
    whole = step(model, SequencePlan("d", case[:40], 0, [0, 1], 40)).copy()
    np.testing.assert_allclose(result.hidden[:40] @ head.T, whole, atol=1e-3)


def test_pooling_is_offered_where_it_is_wanted() -> None:
    config, model = family("llama-plain").config, compiled("llama-plain", "f32", "f16")

    def offered(option: str, says: str | None) -> str | None:
        return create_executor(model, config, OpenVINOOptions(cache_memory_mb=1, pooling=option), says).info().pooling

    assert [offered("auto", None), offered("auto", "last"), offered("none", "last")] == [None, "last", None]
    assert [offered("mean", None), offered("last", "mean")] == ["mean", "last"]


def test_apart_it_returns_at_once_what_comes_later() -> None:
    ids = golden("llama-plain")[-1]["ids"]
    expected = step(executor(), part(ids, 0, 70, TABLE)).copy()
    model = executor(async_scheduling=True)
    future = model.execute(SchedulerOutput([part(ids, 0, 70, TABLE)], 70))
    assert isinstance(future, Future)
    np.testing.assert_allclose(future.result(timeout=30).logits, expected, atol=1e-5)
    running = model.execute(SchedulerOutput([part(ids, 0, 70, TABLE)], 70))
    model.shutdown()
    assert running.done()
