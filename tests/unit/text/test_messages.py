"""messages.py: tool calls on their way into a template. What else messages may be is shown in test_chat.py."""

from __future__ import annotations

from typing import Any

import pytest

from muro.errors import InvalidRequestError, UnsupportedOptionError
from muro.text.chat import ChatTemplate
from muro.text.messages import checked_messages

CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
ASKED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
ANSWER = {"role": "tool", "tool_call_id": "call_1", "content": "42"}


def test_arguments_become_objects() -> None:
    asked, answer = checked_messages([ASKED, ANSWER], tools=True)
    function = {"name": "f", "arguments": {"a": [1]}}
    assert asked["tool_calls"] == [{"id": "call_1", "type": "function", "function": function}]
    assert (asked["content"], answer) == ("", ANSWER)
    for arguments in ("", None, {}):
        calls = [{"function": {"name": "f", "arguments": arguments}}]
        (message,) = checked_messages([{**ASKED, "tool_calls": calls}], tools=True)
        assert message["tool_calls"][0]["function"]["arguments"] == {}


@pytest.mark.parametrize(
    ("message", "param", "kind"),
    [
        ({**ASKED, "tool_calls": 5}, "messages[0].tool_calls", InvalidRequestError),
        ({**ASKED, "tool_calls": [5]}, "messages[0].tool_calls[0]", InvalidRequestError),
        ({**ASKED, "tool_calls": [{"function": {}}]}, "messages[0].tool_calls[0]", InvalidRequestError),
        (
            {**ASKED, "tool_calls": [{**CALL, "type": "custom"}]},
            "messages[0].tool_calls[0].type",
            UnsupportedOptionError,
        ),
        ({**ANSWER, "tool_call_id": 5}, "messages[0].tool_call_id", InvalidRequestError),
        ({**ANSWER, "refusal": "no"}, "messages[0].refusal", UnsupportedOptionError),
    ],
)
def test_what_is_wrong_is_named(message: dict[str, Any], param: str, kind: type[InvalidRequestError]) -> None:
    with pytest.raises(kind) as caught:
        checked_messages([message], tools=True)
    assert caught.value.param == param


@pytest.mark.parametrize("arguments", ["[1]", "{", 5, "[" * 100_000])
def test_arguments_that_are_no_object(arguments: object) -> None:
    calls = [{"function": {"name": "f", "arguments": arguments}}]
    with pytest.raises(InvalidRequestError) as caught:
        checked_messages([{**ASKED, "tool_calls": calls}], tools=True)
    assert caught.value.param == "messages[0].tool_calls[0].function.arguments"


def test_a_template_without_tools_takes_none() -> None:
    for message, field in ((ASKED, "tool_calls"), (ANSWER, "tool_call_id")):
        with pytest.raises(UnsupportedOptionError) as caught:
            checked_messages([message], tools=False)
        assert caught.value.param == f"messages[0].{field}"
    plain = ChatTemplate()
    assert not plain.knows_tools and plain.tool_form is None
    with pytest.raises(UnsupportedOptionError) as caught:
        plain.render([ANSWER], tools=[{"type": "function"}])
    assert caught.value.param == "tools"


def test_tools_reach_the_template() -> None:
    source = (
        "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}{% for m in messages %}{{ m.tool_calls }}{% endfor %}"
    )
    template = ChatTemplate(source)
    assert template.knows_tools and template.tool_form == "hermes"
    assert template.render([ANSWER], tools=[{"type": "function"}]) == '[{"type": "function"}]<tool_call>'
    assert template.render([ANSWER]) == ""
    assert "'a': [1]" in template.render([ASKED])
