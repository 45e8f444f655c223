"""`POST /v1/embeddings`: names and meanings are OpenAI's."""

from __future__ import annotations

import base64
from typing import Annotated, Literal, cast

import msgspec

from muro.errors import InvalidRequestError
from muro.server.deadlines import Timeouts
from muro.server.schemas.request import MAX_CHOICES
from muro.wire.arrays import Tensor
from muro.wire.request import TokenId

EncodingFormat = Literal["float", "base64"]


class EmbeddingRequest(msgspec.Struct, kw_only=True):
    """Body of the request; `input` as text, token ids, or a list of either. `normalize` and `add_special_tokens` are
    vLLM's additions, `timeouts` is ours."""

    input: str | Annotated[list[str | TokenId | list[TokenId]], msgspec.Meta(min_length=1)]
    model: str = ""
    encoding_format: EncodingFormat = "float"
    dimensions: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    normalize: bool = True
    add_special_tokens: bool = True
    timeouts: Timeouts | None = None


def inputs_of(request: EmbeddingRequest) -> list[str | list[int]]:
    """The inputs, each as text or as token ids.

    Raises:
        InvalidRequestError: the list mixes forms, a list of token ids is empty, or there are too many.
    """
    given = request.input
    if isinstance(given, str):
        return [given]
    if len(set(map(type, given))) > 1:
        raise InvalidRequestError("input mixes texts, token ids and lists of token ids", param="input")
    inputs = cast("list[str | list[int]]", [given] if isinstance(given[0], int) else given)
    if [] in inputs:
        raise InvalidRequestError("input holds an empty list of token ids", param="input")
    if len(inputs) > MAX_CHOICES:
        raise InvalidRequestError(f"{len(inputs)} inputs are more than {MAX_CHOICES}", param="input")
    return inputs


class EmbeddingUsage(msgspec.Struct):
    """Tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int


class Embedding(msgspec.Struct):
    """The vector of one input: numbers, or their bytes (float32, little-endian) in base64."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class EmbeddingList(msgspec.Struct):
    """The answer. `created` in Unix seconds."""

    id: str
    created: int
    model: str
    data: list[Embedding]
    usage: EmbeddingUsage
    object: Literal["list"] = "list"


def written(index: int, vector: Tensor, encoding: EncodingFormat) -> Embedding:
    """A vector as it is asked for."""
    if encoding == "base64":
        return Embedding(index, base64.b64encode(vector.numpy().astype("<f4").tobytes()).decode())
    return Embedding(index, vector.numpy().tolist())
