"""openapi.py: the document says what the structs say, and the page needs nothing from elsewhere."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import Any

import msgspec

from muro.server.openapi import document
from muro.server.schemas.completions import Completion, CompletionRequest
from muro.server.table import DeepOption, Entry


async def nothing(exchange: object) -> None:
    """A handler."""


ENTRIES = [
    Entry(
        method="POST",
        path="/v1/completions",
        handler=nothing,
        group="g",
        summary="Continue",
        body=CompletionRequest,
        answer=Completion,
        event=Completion,
    ),
    Entry(method="GET", path="/v1/models/{name:path}", handler=nothing, group="g", summary="One", query=DeepOption),
]


def references(value: Any) -> set[str]:
    return set(re.findall(r'"\$ref": "#/components/schemas/(\w+)"', json.dumps(value)))


def test_the_document() -> None:
    made = json.loads(msgspec.json.encode(document(ENTRIES, "m", keyed=False)))
    assert references(made) == set(made["components"]["schemas"])
    post = made["paths"]["/v1/completions"]["post"]
    assert set(post["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    properties = made["components"]["schemas"]["CompletionRequest"]["properties"]
    assert set(properties) == set(CompletionRequest.__struct_fields__)
    parameters = made["paths"]["/v1/models/{name}"]["get"]["parameters"]
    assert [(p["name"], p["in"]) for p in parameters] == [("name", "path"), ("deep", "query")]
    assert "security" not in made and "security" in document(ENTRIES, "m", keyed=True)


def test_the_page_loads_nothing_from_anywhere() -> None:
    page = files("muro.server").joinpath("docs.html").read_text()
    assert "http:" not in page and "https:" not in page
    assert re.findall(r"(?:src|href)=\S+", page) == ['href="openapi.json">openapi.json</a>.</noscript>']
    assert re.findall(r"fetch\((.*?)[,)]", page) == ["path.replace(/^\\//", '"openapi.json"']
