"""Requests to a front-end's HTTP API, as a user's program makes them."""

import json
from collections.abc import Iterator
from typing import Any

import httpx

from tests.interop.peers import MODEL_NAME, Peer

FOREVER = 5_000
"""More tokens than any test waits for, and fewer than fill the context."""


class User:
    """Somebody who talks to a front-end; `http` is his connection."""

    def __init__(self, peer: Peer, http: httpx.Client) -> None:
        self.peer = peer
        self.http = http

    def post(self, path: str, **body: Any) -> httpx.Response:
        """Any answer."""
        return self.http.post(f"/v1/{path}", json={"model": MODEL_NAME, **body})

    def complete(self, prompt: Any = "one two three", **more: Any) -> Any:
        """A completion that succeeds, greedy unless told otherwise."""
        return _read(self.post("completions", **{"prompt": prompt, "temperature": 0, **more}))

    def text(self, prompt: Any = "one two three", **more: Any) -> str:
        """Its text."""
        return str(self.complete(prompt, **more)["choices"][0]["text"])

    def chat(self, words: str = "", **more: Any) -> Any:
        """A chat completion that succeeds, greedy unless told otherwise."""
        return _read(self.post("chat/completions", **{"messages": messages(words), "temperature": 0, **more}))

    def stream(self, path: str = "completions", **more: Any) -> "Stream":
        """A stream that has begun; to be used as a context manager."""
        if path == "completions":
            more = {"prompt": "one two three", "max_tokens": FOREVER, **more}
        body = {"model": MODEL_NAME, "temperature": 0, "stream": True, **more}
        return Stream(self.http, path, body)


def messages(words: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": words}]


class Stream:
    """The events of an answer, as they come."""

    def __init__(self, http: httpx.Client, path: str, body: dict[str, Any]) -> None:
        self._context = http.stream("POST", f"/v1/{path}", json=body)
        self.closed_properly = False
        """Whether "[DONE]" came."""

    def __enter__(self) -> "Stream":
        response = self._context.__enter__()
        assert response.status_code == 200, response.read()
        self._lines = response.iter_lines()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._context.__exit__(*exc)

    def __iter__(self) -> Iterator[Any]:
        for line in self._lines:
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))
            elif line == "data: [DONE]":
                self.closed_properly = True

    def first(self) -> Any:
        """The first event that carries text."""
        return next(event for event in self if event.get("choices") and spoken(event["choices"][0]))

    def rest(self) -> list[Any]:
        """All events that are still to come."""
        return list(self)


def spoken(choice: dict[str, Any]) -> str:
    """The text of a choice of any kind: whole or a part, completion or chat."""
    if "text" in choice:
        return choice["text"] or ""
    return (choice.get("delta") or choice.get("message") or {}).get("content") or ""


def reasons(events: list[Any]) -> list[str]:
    """Why the choices in these events ended."""
    choices = [choice for event in events for choice in event.get("choices") or ()]
    return [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]


def _read(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()
