"""The table of routes as an OpenAPI 3.1 document, and the page that shows it to people: both without a network.

Schemas come from the very structs that read requests and write answers, so they cannot be out of date.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import msgspec

from muro.server.errors import ErrorBody
from muro.server.exchange import JSON, Exchange
from muro.server.table import Entry
from muro.version import VERSION

_REF = "#/components/schemas/{name}"
_PAGE_HEADERS = {
    "content-type": "text/html; charset=utf-8",
    # Nothing is loaded from anywhere, and requests go nowhere but here.
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}


def document(entries: Sequence[Entry], model: str, *, keyed: bool) -> dict[str, Any]:
    """The OpenAPI document.

    Args:
        entries: the table.
        model: the name of what is served.
        keyed: whether callers need an API key.
    """
    kinds = {kind for e in entries for kind in (e.body, e.answer, e.event) if kind is not None}
    named = sorted(kinds | {ErrorBody}, key=lambda kind: kind.__name__)
    schemas = _components(named)
    paths: dict[str, dict[str, Any]] = {}
    for entry in entries:
        path = re.sub(r"\{(\w+):\w+\}", r"{\1}", entry.path)
        paths.setdefault(path, {})[entry.method.lower()] = _operation(entry, path)
    whole: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": f"muro: {model}", "version": VERSION, "description": _ABOUT},
        "paths": paths,
        "components": {"schemas": schemas},
    }
    if keyed:
        whole["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        whole["security"] = [{"key": []}]
    return whole


_ABOUT = "An OpenAI-compatible server. What is not listed here, or the engine cannot do, is refused by its name."


class DocumentRoute:
    """`GET /openapi.json`."""

    def __init__(self, entries: Sequence[Entry], model: str, *, keyed: bool) -> None:
        self._entries = entries
        self._model = model
        self._keyed = keyed
        self._made: bytes | None = None

    async def __call__(self, exchange: Exchange) -> None:
        if self._made is None:
            self._made = msgspec.json.encode(document(self._entries, self._model, keyed=self._keyed))
        await exchange.reply(200, self._made, {"content-type": JSON})


class PageRoute:
    """`GET /docs`."""

    async def __call__(self, exchange: Exchange) -> None:
        page = files("muro.server").joinpath("docs.html").read_bytes()
        await exchange.reply(200, page, _PAGE_HEADERS)


def _components(kinds: Sequence[type[msgspec.Struct]]) -> dict[str, Any]:
    return dict(msgspec.json.schema_components(kinds, ref_template=_REF)[1])


def _operation(entry: Entry, path: str) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "tags": [entry.group],
        "summary": entry.summary,
        "responses": {"200": _answers(entry), "default": {"description": "An error", "content": _json(ErrorBody)}},
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)\}", path)
    ]
    if entry.query is not None:
        described = _components([entry.query])[entry.query.__name__]["properties"]
        parameters += [{"name": name, "in": "query", "schema": schema} for name, schema in described.items()]
    if parameters:
        operation["parameters"] = parameters
    if entry.body is not None:
        operation["requestBody"] = {"required": True, "content": _json(entry.body)}
    return operation


def _answers(entry: Entry) -> dict[str, Any]:
    content: dict[str, Any] = {} if entry.answer is None else _json(entry.answer)
    if entry.event is not None:
        content["text/event-stream"] = {"schema": {"$ref": _REF.format(name=entry.event.__name__)}}
    described = {"description": "With `stream`: one event each, then [DONE]" if entry.event else "Done"}
    return {**described, "content": content} if content else described


def _json(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {JSON: {"schema": {"$ref": _REF.format(name=kind.__name__)}}}
