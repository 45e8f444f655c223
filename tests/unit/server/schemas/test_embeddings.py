"""embeddings.py: the forms of an input; answers that the official client reads."""

import base64
from typing import Any

import msgspec
import numpy as np
import openai.types
import pytest

from muro.errors import InvalidRequestError
from muro.server.schemas.embeddings import EmbeddingList, EmbeddingRequest, EmbeddingUsage, inputs_of, written
from muro.server.schemas.request import decode_request
from muro.wire.arrays import Tensor


def inputs(given: Any) -> list[str | list[int]]:
    return inputs_of(decode_request(msgspec.json.encode({"input": given}), EmbeddingRequest))


@pytest.mark.parametrize(
    ("given", "expected"),
    [("text", ["text"]), (["one", "two"], ["one", "two"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])],
)
def test_forms_of_an_input(given: Any, expected: list[str | list[int]]) -> None:
    assert inputs(given) == expected


@pytest.mark.parametrize("given", [[], [[]], [[1], []], ["a", 1], [1.5], [-1], {}, 3, ["a"] * 1025])
def test_wrong_inputs(given: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        inputs(given)
    assert caught.value.param is not None and caught.value.param.startswith("input")


def test_the_answer_is_read_by_the_official_client() -> None:
    vector = Tensor("float32", [2], np.array([0.5, -1], "<f4").tobytes())
    answer = EmbeddingList("embd-1", 3, "m", [written(0, vector, "float")], EmbeddingUsage(4, 4))
    read = openai.types.CreateEmbeddingResponse.model_validate_json(msgspec.json.encode(answer), strict=True)
    assert read.data[0].embedding == [0.5, -1.0] and read.usage.total_tokens == 4
    encoded = written(1, vector, "base64").embedding
    assert isinstance(encoded, str) and np.frombuffer(base64.b64decode(encoded), "<f4").tolist() == [0.5, -1.0]
