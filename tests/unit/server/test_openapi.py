"""openapi.py: the document says what the structs say, and the page needs nothing from elsewhere."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import Any

import msgspec
import pytest

from muro.errors import InvalidRequestError
from muro.server.openapi import document
from muro.server.routes.control import CONTROLS, read_query
from muro.server.schemas.completions import Completion, CompletionRequest
from muro.server.schemas.control import PauseOptions, WakeUpOptions
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


def test_every_control_has_a_path_of_its_own_and_options_with_defaults() -> None:
    assert len({(c.method, c.path) for c in CONTROLS}) == len(CONTROLS)
    for control in CONTROLS:
        if not control.in_body:
            control.op.check_args(control.args(control.options()))


def test_options_of_a_query() -> None:
    assert read_query(b"mode=keep&clear_cache=false", PauseOptions) == PauseOptions("keep", False)
    assert read_query(b"tags=weights&tags=kv_cache", WakeUpOptions) == WakeUpOptions(["weights", "kv_cache"])
    assert read_query(b"", WakeUpOptions) == WakeUpOptions()


@pytest.mark.parametrize(
    ("query", "param"), [(b"mode=x", "mode"), (b"clear_cache=5", "clear_cache"), (b"depth=1", "depth")]
)
def test_a_wrong_option_of_a_query_is_named(query: bytes, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        read_query(query, PauseOptions)
    assert caught.value.param == param
