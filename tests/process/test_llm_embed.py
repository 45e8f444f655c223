"""`LLM.embed` and `AsyncLLM.embed`, with a tiny model in a process of its own."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import muro
from muro.errors import PromptTooLongError, UnsupportedOptionError
from muro.models.config import open_model
from muro.models.prepare import from_gguf
from tests.support.gguf_files import tiny_weights, write_tiny_gguf
from tests.support.reference_decoder import hidden_states

pytestmark = pytest.mark.timeout(120)

OPTIONS = {"pooling": "mean", "weights": "f32", "cache_memory_mb": 4, "threads": 1, "max_num_batched_tokens": 64}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MURO_HOME", str(tmp_path / "home"))
    directory = tmp_path / "tiny"
    directory.mkdir()
    from_gguf(write_tiny_gguf(directory / "tiny.gguf"), directory)
    return str(directory)


def mean(model: str, ids: list[int]) -> Any:
    return hidden_states(open_model(model).config, tiny_weights(), ids).mean(axis=0)


def unit(vector: Any) -> Any:
    return vector / np.linalg.norm(vector)


def test_lists_of_prompts(model: str) -> None:
    with muro.LLM(model, options=OPTIONS) as llm:
        outputs = llm.embed(["hello", [5, 6, 7] * 15])
        assert isinstance(outputs[0], muro.EmbeddingRequestOutput) and outputs[1].prompt_token_ids == [5, 6, 7] * 15
        for output in outputs:
            assert output.finished
            np.testing.assert_allclose(output.outputs.embedding, unit(mean(model, output.prompt_token_ids)), atol=5e-3)
        plain = llm.embed([3, 4], muro.PoolingParams(use_activation=False))[0]
        np.testing.assert_allclose(plain.outputs.embedding, mean(model, [3, 4]), atol=2e-2)
        assert llm.embed([]) == []
        with pytest.raises(UnsupportedOptionError, match="'classify'"):
            llm.embed(["hello", "w"], muro.PoolingParams(task="classify"))
        with pytest.raises(PromptTooLongError):
            llm.embed([1] * 100)
        assert (
            len(llm.generate("hello", muro.SamplingParams(max_tokens=2, ignore_eos=True))[0].outputs[0].token_ids) == 2
        )


def test_asynchronously(model: str) -> None:
    async def run() -> None:
        async with await muro.AsyncLLM.start(model, options=OPTIONS) as llm:
            counted: list[None] = []
            vectors = await llm.embed("a", [[3, 4], [5]], on_vector=lambda: counted.append(None))
            for vector, ids in zip(vectors, [[3, 4], [5]], strict=True):
                np.testing.assert_allclose(vector.numpy(), unit(mean(model, ids)), atol=5e-3)
            assert len(counted) == 2
            with pytest.raises(UnsupportedOptionError, match="'classify'"):
                await llm.embed("b", [[1], [2]], muro.PoolingParams(task="classify"))
            task = asyncio.create_task(llm.embed("c", [[1]] * 50))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert len(await llm.embed("d", [[1]])) == 1

    asyncio.run(run())


def test_an_engine_that_gives_none() -> None:
    with muro.LLM(engine="echo") as llm, pytest.raises(UnsupportedOptionError, match="no pooling task"):
        llm.embed("hello")
