"""Structured output over HTTP, with an engine whose tokens are bytes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.server import Server

NUMBERS = {"type": "array", "items": {"type": "integer", "minimum": 10, "maximum": 99}, "minItems": 60, "maxItems": 60}
INTERSECTIONS = "start: A\nA: " + " & ".join(f"/.*x{i}.*/" for i in range(32))


ENGINE = ["--engine", "sim", "--engine-option", "tokens=sampled", "--engine-option", "step_us=5000"]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(*ENGINE) as running:
        ask(running.ready(), structured_outputs={"choice": ["a"]})  # now the process for trials is there, too
        yield running


def ask(server: Server, **options: Any) -> httpx.Response:
    body = {"prompt": "hello", "max_tokens": 600, "seed": 1, **options}
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=50)


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        ({"structured_outputs": {"choice": ["yes", "no"]}}, {"yes", "no"}),
        ({"structured_outputs": {"regex": "(ab){3}"}}, {"ababab"}),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": [1, 2]}}}}, {"1", "2"}),
    ],
)
def test_the_answer_is_what_was_asked_for(server: Server, options: dict[str, Any], texts: set[str]) -> None:
    answer = ask(server, **options)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    assert choice["text"] in texts and choice["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("structured_outputs", {"regex": "("}),
        ("structured_outputs", {"json": {"not": {}}}),
        ("structured_outputs", {"regex": "a", "choice": ["b"]}),
        ("structured_outputs", {"grammar": INTERSECTIONS}),
        ("response_format", {"type": "json_schema", "json_schema": {"schema": {"$ref": "#/nowhere"}}}),
    ],
)
def test_a_grammar_that_is_wrong_is_the_callers_fault(server: Server, name: str, value: object, stream: bool) -> None:
    answer = ask(server, **{name: value, "stream": stream})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == name
    assert name in answer.json()["error"]["message"]


def test_a_structure_goes_on_on_the_next_engine() -> None:
    with Server(*ENGINE, "--on-engine-death", "replay") as server:
        _kill_in_the_middle(server.ready())


def _kill_in_the_middle(server: Server) -> None:
    wanted = {"json": NUMBERS, "disable_any_whitespace": True}
    whole = ask(server, seed=3, structured_outputs=wanted).json()["choices"][0]
    assert whole["finish_reason"] == "stop" and len(json.loads(whole["text"])) == 60
    body = {"prompt": "hello", "max_tokens": 600, "seed": 3, "stream": True, "structured_outputs": wanted}
    text, killed = "", False
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=50) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            text += event["choices"][0]["text"]
            if len(text) > 40 and not killed:
                killed = True
                os.kill(server.engine_pid, signal.SIGKILL)
    assert killed
    assert text == whole["text"]
