"""Chat messages as strangers send them, checked and brought into the form that chat templates expect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from muro.errors import InvalidRequestError, UnsupportedOptionError

MAX_MESSAGES = 4096
MAX_ROLE_CHARS = 64
MAX_CALLS = 1024

_TEXT_FIELDS = ("name", "tool_call_id")


def checked_messages(messages: Sequence[Mapping[str, Any]], *, tools: bool) -> list[dict[str, Any]]:
    """The messages, each with role and content (one string), with name, tool calls and `tool_call_id` if given.

    Args:
        messages: OpenAI's form; arguments of calls are JSON in a string there, and become objects here.
        tools: whether the template knows any.

    Raises:
        InvalidRequestError: a message is wrong; `param` names the place.
        UnsupportedOptionError: a message has a part or field that is not text, or that the template does not know.
    """
    return [_message(message, f"messages[{i}]", tools) for i, message in enumerate(_bounded(messages))]


def _bounded(messages: Any) -> Sequence[Mapping[str, Any]]:
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise InvalidRequestError("messages must be a list of objects with role and content", param="messages")
    if not messages:
        raise InvalidRequestError("messages must hold at least one message", param="messages")
    if len(messages) > MAX_MESSAGES:
        what = f"messages holds {len(messages)} messages; at most {MAX_MESSAGES} are taken"
        raise InvalidRequestError(what, param="messages")
    return cast("Sequence[Mapping[str, Any]]", messages)


def _message(message: Mapping[str, Any], where: str, tools: bool) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequestError(f"{where} must be an object with role and content", param=where)
    role = message.get("role")
    if not isinstance(role, str) or not 0 < len(role) <= MAX_ROLE_CHARS:
        raise InvalidRequestError(f"{where}.role must be a short string", param=f"{where}.role")
    out: dict[str, Any] = {"role": role, "content": _content(message.get("content"), role, f"{where}.content")}
    for field, value in message.items():
        if field in out or value is None or value == []:
            continue
        place = f"{where}.{field}"
        if field == "tool_calls" and tools:
            out[field] = _calls(value, place)
        elif field == "name" or (field in _TEXT_FIELDS and tools):
            if not isinstance(value, str):
                raise InvalidRequestError(f"{place} must be a string", param=place)
            out[field] = value
        else:
            raise UnsupportedOptionError(f"{place} is not supported", param=place)
    return out


def _content(content: object, role: str, where: str) -> str:
    if isinstance(content, str):
        return content
    if content is None and role == "assistant":
        return ""
    if not isinstance(content, list):
        raise InvalidRequestError(f"{where} of role {role} must be a string or a list of text parts", param=where)
    return "\n".join(_text_of(part, f"{where}[{i}]") for i, part in enumerate(content))


def _text_of(part: object, where: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise InvalidRequestError(f"{where} must be an object with a type", param=where)
    kind = part.get("type")
    if kind != "text":
        raise UnsupportedOptionError(f"{where}.type is {kind!r}; only text is supported", param=f"{where}.type")
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidRequestError(f"{where}.text must be a string", param=f"{where}.text")
    return text


def _calls(calls: object, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list) or len(calls) > MAX_CALLS:
        raise InvalidRequestError(f"{where} must be a list of at most {MAX_CALLS} calls", param=where)
    return [_call(call, f"{where}[{i}]") for i, call in enumerate(calls)]


def _call(call: object, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        what = f"{where} must be an object with a function, which has a name and arguments"
        raise InvalidRequestError(what, param=where)
    if call.get("type", "function") != "function":
        raise UnsupportedOptionError(f"{where}.type must be function", param=f"{where}.type")
    arguments = _arguments(function.get("arguments"), f"{where}.function.arguments")
    checked = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
    return {"id": call["id"], **checked} if isinstance(call.get("id"), str) else checked


def _arguments(given: object, where: str) -> Mapping[str, Any]:
    """Templates write them as JSON themselves, so they get the object."""
    try:
        value = json.loads(given or "{}") if isinstance(given, str) else given
    except (ValueError, RecursionError):
        value = given
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidRequestError(f"{where} must be a JSON object, in a string", param=where)
    return value
