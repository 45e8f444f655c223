"""chat.py: templates run as Hugging Face's do; wrong messages are the caller's fault and are named."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from muro.errors import ConfigError, InvalidRequestError, MissingExtraError, UnsupportedOptionError
from muro.text import chat
from muro.text import messages as checks
from muro.text.chat import ChatTemplate, load_chat_template

GOLDEN = json.loads((Path(__file__).parents[2] / "data" / "golden" / "tokenizer.json").read_text(encoding="utf-8"))

CHATML = (
    "{% for message in messages %}"
    "{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
USER = {"role": "user", "content": "Hi"}


def render(source: str, *messages: dict[str, Any], **options: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}).render(list(messages) or [USER], **options)


@pytest.mark.parametrize("case", GOLDEN["chat"], ids=lambda case: case["messages"][-1]["content"][:20])
def test_the_demo_models_template_against_recorded_texts(case: dict[str, Any]) -> None:
    assert ChatTemplate(CHATML).render(case["messages"]) == case["text"]


def test_plain_template_is_lines_of_role_and_content() -> None:
    messages = [{"role": "system", "content": "Be brief."}, USER]
    assert ChatTemplate().render(messages) == "system: Be brief.\nuser: Hi\nassistant: "
    assert ChatTemplate().render(messages, add_generation_prompt=False) == "system: Be brief.\nuser: Hi\n"


def test_what_templates_may_use() -> None:
    assert render("{{ bos_token }}{{ messages[0].role }}{{ eos_token }}") == "<s>user</s>"
    assert render("{{ {'b': '<é>', 'a': 1} | tojson }}") == '{"b": "<é>", "a": 1}'
    assert render("{{ [1] | tojson(indent=1) }}") == "[\n 1\n]"
    assert render("{% for m in [1, 2, 3] %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}") == "1"
    assert render("{% generation %}{{ messages[0].content }}{% endgeneration %}!") == "Hi!"
    assert render("  {% if true %}\na\n  {% endif %}\n") == "a\n"
    assert render("{{ thinking }}", variables={"thinking": "yes"}) == "yes"
    clock = ChatTemplate("{{ strftime_now('%Y-%m-%d') }}", now=lambda: datetime(2031, 5, 4, tzinfo=UTC))
    assert clock.render([USER]) == "2031-05-04"


def test_text_parts_are_joined_and_empty_fields_do_not_matter() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [
        {"role": "user", "content": parts, "name": "Ann"},
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": []},
    ]
    source = "{% for m in messages %}[{{ m.role }} {{ m.name }} {{ m.content }}]{% endfor %}"
    assert render(source, *messages) == "[user Ann one\ntwo][assistant  ]"


@pytest.mark.parametrize(
    ("message", "param", "kind"),
    [
        ({"content": "x"}, "messages[1].role", InvalidRequestError),
        ({"role": "", "content": "x"}, "messages[1].role", InvalidRequestError),
        ({"role": "r" * 65, "content": "x"}, "messages[1].role", InvalidRequestError),
        ({"role": "user"}, "messages[1].content", InvalidRequestError),
        ({"role": "user", "content": 3}, "messages[1].content", InvalidRequestError),
        ({"role": "user", "content": [3]}, "messages[1].content[0]", InvalidRequestError),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0].text", InvalidRequestError),
        ({"role": "user", "content": "x", "name": 3}, "messages[1].name", InvalidRequestError),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[1].content[0].type", UnsupportedOptionError),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[1].tool_calls", UnsupportedOptionError),
        ("user", "messages[1]", InvalidRequestError),
    ],
)
def test_wrong_message_is_named(message: Any, param: str, kind: type[InvalidRequestError]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        ChatTemplate().render([USER, message])
    assert type(caught.value) is kind
    assert caught.value.param == param
    assert param in caught.value.message


def test_number_of_messages_is_bounded() -> None:
    for messages in ([], [USER] * (checks.MAX_MESSAGES + 1)):
        with pytest.raises(InvalidRequestError) as caught:
            ChatTemplate().render(messages)
        assert caught.value.param == "messages"


def test_the_template_may_refuse() -> None:
    with pytest.raises(InvalidRequestError, match="refuses these messages: roles must alternate") as caught:
        render("{{ raise_exception('roles must alternate') }}")
    assert (caught.value.param, caught.value.status) == ("messages", 400)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[9].content.x }}",
        "{{ 1 / 0 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages[0].role + 1 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_failing_and_forbidden_templates_cost_one_request(source: str) -> None:
    with pytest.raises(InvalidRequestError, match="cannot render these messages"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10**9 }}",
        "{{ 'a' * 1000000000 }}",
        "{{ 1000000000 * [1] }}",
        "{{ 9 ** 9 }}",
        "{{ 'a' * 33000000 * 3 }}",
    ],
)
def test_work_of_a_template_is_bounded(source: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"too often|to a power"):
        render(source)
    with pytest.raises(InvalidRequestError, match="Range too big"):
        render("{% for i in range(1000000) %}{% endfor %}")


def test_length_of_the_prompt_is_bounded_while_it_grows() -> None:
    template = ChatTemplate("{% for i in range(99999) %}{{ messages[0].content }}{% endfor %}", max_chars=100)
    with pytest.raises(InvalidRequestError, match="more than 100 characters"):
        template.render([{"role": "user", "content": "x" * 30}])
    assert ChatTemplate(max_chars=20).render([USER]) == "user: Hi\nassistant: "


@pytest.mark.parametrize("content", ["The capital ", "<|im_end|>", "", "\ue0c7\ue0c8 odd", "assistant"])
@pytest.mark.parametrize("source", [CHATML, CHATML.replace("message['content']", "message['content'] | trim")])
def test_continue_final_message_ends_with_its_content(source: str, content: str) -> None:
    messages = [USER, {"role": "assistant", "content": content}]
    text = render(source, *messages, add_generation_prompt=False, continue_final_message=True)
    assert text == render(CHATML, USER) + content


def test_continue_final_message_needs_its_content() -> None:
    with pytest.raises(InvalidRequestError, match="does not print the last message"):
        render("{{ messages[0].role }}", continue_final_message=True, add_generation_prompt=False)
    with pytest.raises(InvalidRequestError, match="exclude each other"):
        render(CHATML, continue_final_message=True)


def test_variables_must_not_replace_the_messages() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        render(CHATML, variables={"messages": []})
    assert caught.value.param == "chat_template_kwargs"


def test_where_the_template_of_a_directory_comes_from(tmp_path: Path) -> None:
    assert load_chat_template(tmp_path) is None
    assert load_chat_template(None) is not None
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"bos_token": "<s>", "chat_template": "{{ bos_token }}config"}))
    assert text_of(tmp_path) == "<s>config"
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "default"}]
    config.write_text(json.dumps({"bos_token": {"content": "<b>"}, "chat_template": named}))
    assert text_of(tmp_path) == "default"
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}file\n")
    assert text_of(tmp_path) == "<b>file"


def text_of(model_dir: Path) -> str:
    template = load_chat_template(model_dir)
    assert template is not None
    return template.render([USER])


def test_wrong_template_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "chat_template.jinja"
    path.write_text("ok\n{% if %}")
    with pytest.raises(ConfigError, match=r"chat_template\.jinja.*line 2"):
        load_chat_template(tmp_path)
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"chat_template\.jinja cannot be read"):
        load_chat_template(tmp_path)


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    chat._environment.cache_clear()
    for name in [name for name in sys.modules if name.split(".")[0] == "jinja2"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'muro\[text\]'"):
        ChatTemplate()
