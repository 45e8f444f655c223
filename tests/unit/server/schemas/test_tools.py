"""tools.py: what an answer that must be calls is held to."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from muro.errors import InvalidRequestError
from muro.server.schemas.chat import ChatCompletionRequest
from muro.server.schemas.request import decode_request

CITY = {"type": "object", "properties": {"city": {"$ref": "#/$defs/City"}}, "$defs": {"City": {"type": "string"}}}


def tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


def schema(choice: Any, *tools: dict[str, Any], **more: Any) -> Any:
    body = {"messages": [{"role": "user", "content": "x"}], "tools": tools, "tool_choice": choice, **more}
    structure = decode_request(msgspec.json.encode(body), ChatCompletionRequest).structure()
    assert structure is None or structure.option == "tool_choice"
    return None if structure is None else structure.params.json


def test_a_named_tool_asks_for_its_arguments() -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    assert schema(named, tool("time"), tool("weather", parameters=CITY)) == CITY
    assert schema(named, tool("weather"))["additionalProperties"] is False


def test_required_asks_for_a_list_of_calls() -> None:
    made = schema("required", tool("time"), tool("weather", parameters=CITY))
    assert (made["type"], made["minItems"], "maxItems" in made) == ("array", 1, False)
    assert made["$defs"] == {"City": {"type": "string"}}, "where references look for it"
    time, weather = made["items"]["anyOf"]
    assert time["properties"]["name"] == {"const": "time"}
    assert weather["properties"]["parameters"] == {k: v for k, v in CITY.items() if k != "$defs"}
    assert schema("required", tool("time"), parallel_tool_calls=False)["maxItems"] == 1
    other = {**CITY, "$defs": {"City": {"type": "integer"}}}
    with pytest.raises(InvalidRequestError, match="City"):
        schema("required", tool("a", parameters=CITY), tool("b", parameters=other))


def test_an_answer_is_not_held_to_two_things() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        schema("required", tool("time"), response_format={"type": "json_object"})
    assert caught.value.param == "response_format"


@pytest.mark.parametrize("choice", ["auto", "none"])
def test_otherwise_it_is_up_to_the_model(choice: str) -> None:
    assert schema(choice, tool("time")) is None
