"""Tool calls over HTTP: an echo of a prompt that is a call, as if the model had written it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.support.server import Server

TEMPLATE = """\
{%- if tools %}{# calls look like <tool_call> #}{% endif -%}
{%- for m in messages %}{{ m.content }}{% for call in m.tool_calls or [] %}{{ call.function.arguments.a }}{% endfor %}
{%- endfor %}"""
TOOLS: Any = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
CALLS = (
    'I add.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n<tool_call>{"name": "sub"}</tool_call>'
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    template: Path = tmp_path_factory.mktemp("template") / "tools.jinja"
    template.write_text(TEMPLATE)
    with Server("--engine", "echo", "--chat-template", str(template)) as running:
        yield running.ready()


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def asked(content: str = CALLS, **more: Any) -> Any:
    messages = [{"role": "user", "content": f"{content}END"}]
    return {"model": "echo", "messages": messages, "max_tokens": 500, "stop": ["END"], **more}


def test_calls_of_a_whole_answer(client: openai.OpenAI) -> None:
    (choice,) = client.chat.completions.create(**asked(tools=TOOLS)).choices
    assert (choice.message.content, choice.finish_reason) == ("I add.", "tool_calls")
    calls: Any = choice.message.tool_calls
    assert [(c.type, c.function.name, c.function.arguments) for c in calls] == [
        ("function", "add", '{"a": 1}'),
        ("function", "sub", "{}"),
    ]
    assert len({call.id for call in calls}) == 2 and all(call.id.startswith("call_") for call in calls)
    (only,) = client.chat.completions.create(**asked(tools=TOOLS, parallel_tool_calls=False)).choices
    assert only.message.tool_calls is not None and len(only.message.tool_calls) == 1
    (bare,) = client.chat.completions.create(**asked(CALLS[7:], tools=TOOLS)).choices
    assert bare.message.content is None


def test_calls_in_a_stream(client: openai.OpenAI) -> None:
    found: dict[int, list[str]] = {}
    content, reasons, pieces = "", [], 0
    for chunk in client.chat.completions.create(**asked(tools=TOOLS, stream=True)):
        choice = chunk.choices[0]
        content += choice.delta.content or ""
        reasons.append(choice.finish_reason)
        for call in choice.delta.tool_calls or []:
            assert call.function is not None
            if call.function.name:
                assert call.id and call.type == "function"
                found[call.index] = [call.function.name, ""]
            found[call.index][1] += call.function.arguments or ""
            pieces += 1
    assert content == "I add."
    assert found == {0: ["add", '{"a": 1}'], 1: ["sub", "{}"]}
    assert reasons[-1] == "tool_calls" and not any(reasons[:-1])
    assert pieces >= 4, "a name comes before its arguments"


def test_without_tools_or_with_none_of_them_it_is_text(client: openai.OpenAI) -> None:
    for more in ({}, {"tools": TOOLS, "tool_choice": "none"}, {"tools": []}):
        (choice,) = client.chat.completions.create(**asked(**more)).choices
        assert (choice.message.content, choice.finish_reason) == (CALLS, "stop")
        assert choice.message.tool_calls is None


def test_a_call_that_is_cut_off_has_the_reason_of_that(client: openai.OpenAI) -> None:
    (choice,) = client.chat.completions.create(**asked(tools=TOOLS) | {"max_tokens": 50}).choices
    calls: Any = choice.message.tool_calls
    assert (choice.finish_reason, len(calls)) == ("length", 1)


def test_calls_and_their_results_come_back_in_the_next_request(client: openai.OpenAI) -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": "yes"}'}}]
    messages: Any = [
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c", "content": "42"},
    ]
    (choice,) = client.chat.completions.create(model="echo", messages=messages, tools=TOOLS, max_tokens=5).choices
    assert choice.message.content == "yes42"


def test_a_template_without_tools_refuses_them_by_name() -> None:
    with Server("--engine", "echo", "--tool-call-parser", "hermes") as server:
        answer = httpx.post(f"{server.ready().url}/v1/chat/completions", json=asked(tools=TOOLS), timeout=20)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == ("tools", "unsupported_option")
    assert "template" in error["message"]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_an_engine_that_cannot_be_held_to_a_call_refuses_it_by_name(server: Server, choice: Any) -> None:
    body = asked(tools=TOOLS, tool_choice=choice)
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=20)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, "tool_choice", "unsupported_option")
    assert "tool_choice" in error["message"]


def test_a_form_that_is_not_known_is_refused_by_name(tmp_path: Path) -> None:
    template = tmp_path / "odd.jinja"
    template.write_text("{{ tools }}{{ messages[0].content }}")
    with Server("--engine", "echo", "--chat-template", str(template)) as server:
        answer = httpx.post(f"{server.ready().url}/v1/chat/completions", json=asked(tools=TOOLS), timeout=20)
        plain = httpx.post(f"{server.url}/v1/chat/completions", json=asked(), timeout=20)
    assert plain.status_code == 200
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")
    assert "--tool-call-parser" in json.dumps(answer.json())
