"""Memory that a model on the CPU gives back and gets again, on a small model; `tests/process` measures a real one."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from muro.engines.openvino.cache import CacheMemory
from muro.engines.openvino.executor import OpenVINOExecutor, create_executor
from muro.engines.openvino.options import OpenVINOOptions
from muro.errors import ConfigError
from tests.support.openvino_models import compiled, compiled_from, family, golden, part, step

NAME = "llama-plain"
TABLE = [3, 0, 2]


def made(reload: Callable[[], Any] | None = None) -> OpenVINOExecutor:
    options = OpenVINOOptions(cache_memory_mb=1)
    return create_executor(compiled(NAME, "f32", "f16"), family(NAME).config, options, None, reload)


def ids() -> list[int]:
    tokens: list[int] = golden(NAME)[-1]["ids"][:40]
    return tokens


def test_the_cache_comes_back_empty_and_works() -> None:
    model = made()
    assert model.releasable == ("kv_cache",)
    expected = step(model, part(ids(), 0, 40, TABLE)).copy()
    model.release_memory("kv_cache")
    model.restore_memory("kv_cache")
    assert model._cache is not None
    assert not any(array.any() for array in model._cache._arrays.values())
    np.testing.assert_array_equal(step(model, part(ids(), 0, 40, TABLE)), expected)
    assert any(array.any() for array in model._cache._arrays.values())


def test_weights_are_let_go_and_loaded_again() -> None:
    loads: list[Any] = []

    def reload() -> Any:
        loads.append(None)
        return compiled_from(family(NAME))

    model = made(reload)
    assert model.releasable == ("kv_cache", "weights")
    expected = step(model, part(ids(), 0, 40, TABLE)).copy()
    model.release_memory("kv_cache")
    model.release_memory("weights")
    assert not model.memory()["weights_loaded"] and set(model.runtime()) == {"openvino"}
    with pytest.raises(RuntimeError, match="were released"):
        step(model, part(ids(), 0, 40, TABLE))
    model.restore_memory("weights")
    model.restore_memory("weights")  # they are there
    model.restore_memory("kv_cache")
    assert len(loads) == 1 and model.memory()["weights_loaded"]
    np.testing.assert_array_equal(step(model, part(ids(), 0, 40, TABLE)), expected)


def test_weights_that_cannot_be_loaded_can_be_tried_again() -> None:
    found: list[Any] = [ConfigError("the file is gone"), compiled_from(family(NAME))]

    def reload() -> Any:
        if isinstance(next_one := found.pop(0), Exception):
            raise next_one
        return next_one

    model = made(reload)
    model.release_memory("weights")
    with pytest.raises(ConfigError, match="is gone"):
        model.restore_memory("weights")
    model.restore_memory("weights")
    assert step(model, part(ids(), 0, 40, TABLE)).shape == (1, 320)


def test_another_model_than_before_is_refused() -> None:
    model = made(lambda: compiled("qwen3-qknorm", "f32", "f16"))
    model.release_memory("weights")
    with pytest.raises(ConfigError, match="another model"):
        model.restore_memory("weights")


def test_what_it_tells_of_itself() -> None:
    model = made()
    told = model.memory()
    assert told["cache"] == (1 << 20) // 8192 * 8192 and told["resident"] > 20e6 and told["weights_loaded"]
    runtime = model.runtime()
    assert runtime["INFERENCE_NUM_THREADS"] == "1" and runtime["openvino"].startswith("20")
    assert all(isinstance(value, str) for value in runtime.values())


def test_a_budget_below_one_block() -> None:
    cache = CacheMemory(compiled(NAME, "f32", "f16"), 8191)
    assert (cache.num_blocks, cache.num_bytes, cache.block_size) == (0, 0, 32)
    cache.release()
