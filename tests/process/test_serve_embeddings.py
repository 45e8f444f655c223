"""Embeddings behind HTTP, asked by the official client, against a slow decoder in numpy."""

import base64
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest

from muro.models.config import open_model
from muro.models.prepare import from_gguf
from muro.text.tokenizer import load_tokenizer
from tests.support.gguf_files import tiny_weights, write_tiny_gguf
from tests.support.reference_decoder import hidden_states
from tests.support.server import Server

pytestmark = pytest.mark.timeout(120)

TEXTS = ["hello", "hello w12, and more of it: a text of several blocks of the cache", "w"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    from_gguf(write_tiny_gguf(directory / "tiny.gguf"), directory)
    return directory


@pytest.fixture(scope="module", params=["mean", "last"])
def server(
    model: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Server]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MURO_HOME", str(tmp_path_factory.mktemp("home")))
        options = [
            f"pooling={request.param}",
            "weights=f32",
            "cache_memory_mb=4",
            "threads=1",
            "max_num_batched_tokens=64",
        ]
        flags = [flag for option in options for flag in ("--engine-option", option)]
        with Server(str(model), *flags) as running:
            yield request.param, running.ready(within=100)


def expected(model: Path, ids: list[int], kind: str, *, normalize: bool = True) -> np.ndarray:
    states = hidden_states(open_model(model).config, tiny_weights(), ids)
    vector = states.mean(axis=0) if kind == "mean" else states[-1]
    return vector / np.linalg.norm(vector) if normalize else vector


def test_vectors_of_texts(model: Path, server: tuple[str, Server]) -> None:
    kind, running = server
    tokenizer = load_tokenizer(model)
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.embeddings.create(model="", input=TEXTS)  # the client asks for base64
        plain = client.embeddings.create(model="", input=TEXTS, encoding_format="float")
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(len(tokenizer.encode(text)) for text in TEXTS)
    for text, one, other in zip(TEXTS, answer.data, plain.data, strict=True):
        vector = expected(model, tokenizer.encode(text), kind)
        np.testing.assert_allclose(one.embedding, vector, atol=5e-3)
        np.testing.assert_allclose(one.embedding, other.embedding, atol=1e-6)
    assert [entry.index for entry in answer.data] == [0, 1, 2]


def test_vectors_of_token_ids_and_of_their_own_length(model: Path, server: tuple[str, Server]) -> None:
    kind, running = server
    with running.http() as http:
        body = {"input": [[5, 6, 7], [8]], "normalize": False, "encoding_format": "base64"}
        answer = http.post("/v1/embeddings", json=body).json()
    for ids, entry in zip(body["input"], answer["data"], strict=True):
        vector = np.frombuffer(base64.b64decode(entry["embedding"]), "<f4")
        np.testing.assert_allclose(vector, expected(model, ids, kind, normalize=False), atol=2e-2)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": "a", "dimensions": 8}, None),  # the engine says so, whose errors name no parameter
        ({"input": []}, "input"),
        ({"input": ["a", [1]]}, "input"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "truncate_prompt_tokens": 3}, "truncate_prompt_tokens"),
        ({"input": "a" * 100}, "prompt"),
        ({}, "input"),
    ],
)
def test_what_is_wrong_is_refused_by_name(
    server: tuple[str, Server], body: dict[str, object], param: str | None
) -> None:
    with server[1].http() as http:
        answer = http.post("/v1/embeddings", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert server[1].status() == 200


def test_the_same_model_still_generates(server: tuple[str, Server]) -> None:
    with server[1].http() as http:
        body = {"prompt": "hello", "max_tokens": 3, "ignore_eos": True, "temperature": 0}
        assert http.post("/v1/completions", json=body).json()["usage"]["completion_tokens"] == 3


def test_an_engine_that_gives_none_says_so() -> None:
    with Server("--engine", "echo") as running:
        running.ready()
        answer = httpx.post(f"{running.url}/v1/embeddings", json={"input": "a"}, timeout=10)
    assert answer.status_code in (400, 501)
    assert "pooling" in answer.json()["error"]["message"]
