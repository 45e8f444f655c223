"""structured.py: what OpenAI's and vLLM's options become on the wire, and what is refused by name."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from muro.errors import InvalidRequestError
from muro.server.schemas.chat import ChatCompletionRequest
from muro.server.schemas.completions import CompletionRequest
from muro.server.schemas.request import GenerationOptions, decode_request, sampling_params
from muro.wire.request import SamplingParams, StructuredOutputsParams

REQUIRED: dict[type[GenerationOptions], dict[str, Any]] = {
    CompletionRequest: {"prompt": "p"},
    ChatCompletionRequest: {"messages": [{"role": "user", "content": "p"}]},
}
both = pytest.mark.parametrize("kind", REQUIRED)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TAG = {"structures": [{"begin": "<a>", "schema": SCHEMA, "end": "</a>"}], "triggers": ["<a"]}


def asked(kind: type[GenerationOptions], **options: Any) -> StructuredOutputsParams | None:
    request = decode_request(msgspec.json.encode(REQUIRED[kind] | options), kind)
    return sampling_params(request, 9, SamplingParams()).structured_outputs


@both
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": None, "structured_outputs": None}, None),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}, {"json": SCHEMA}),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "description": "d", "strict": True, "schema": SCHEMA},
                }
            },
            {"json": SCHEMA},
        ),
        ({"structured_outputs": {"json": SCHEMA}}, {"json": SCHEMA}),
        (
            {"structured_outputs": {"json": "{}", "whitespace_pattern": " "}},
            {"json": "{}", "whitespace_pattern": " "},
        ),
        ({"structured_outputs": {"regex": "a+"}, "response_format": {"type": "text"}}, {"regex": "a+"}),
        ({"structured_outputs": {"choice": ["a", "b"]}}, {"choice": ["a", "b"]}),
        ({"structured_outputs": {"grammar": "g"}}, {"grammar": "g"}),
        ({"structured_outputs": {"structural_tag": "{}"}}, {"structural_tag": "{}"}),
        ({"structured_outputs": {"structural_tag": {"format": {"a": 1}}}}, {"structural_tag": '{"format":{"a":1}}'}),
    ],
)  # fmt: skip
def test_each_form_arrives(
    kind: type[GenerationOptions], options: dict[str, Any], expected: dict[str, Any] | None
) -> None:
    assert asked(kind, **options) == (None if expected is None else StructuredOutputsParams(**expected))


@both
@pytest.mark.parametrize("tag", [TAG, {"format": {"type": "any_text"}}])
def test_a_structural_tag_arrives_as_a_text(kind: type[GenerationOptions], tag: dict[str, Any]) -> None:
    params = asked(kind, response_format={"type": "structural_tag", **tag})
    assert params is not None and params.structural_tag is not None
    assert json.loads(params.structural_tag) == {"type": "structural_tag", **tag}


@both
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("response_format", {"type": "yaml"}),
        ("response_format", {}),
        ("response_format", {"type": "json_schema"}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "n"}}),
        ("response_format", {"type": "json_schema", "json_schema": {"schema": 5}}),
        ("response_format", "json"),
        ("structured_outputs", {"json": 5}),
        ("structured_outputs", {"guided": 5}),
        ("structured_outputs", {"choice": "a"}),
        ("structured_outputs", []),
    ],
)
def test_what_is_malformed_is_refused_by_name(kind: type[GenerationOptions], name: str, value: object) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        asked(kind, **{name: value})
    assert caught.value.param is not None and caught.value.param.startswith(name)


@both
def test_two_options_that_ask_for_a_structure_are_refused(kind: type[GenerationOptions]) -> None:
    with pytest.raises(InvalidRequestError, match="both"):
        asked(kind, response_format={"type": "json_object"}, structured_outputs={"regex": "a"})
