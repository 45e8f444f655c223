"""The other side of a chat: any OpenAI-compatible server, asked for one answer at a time."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Sequence
from http.client import HTTPResponse
from typing import Any

from muro.cli.calling import Caller
from muro.errors import RequestFailedError

Message = dict[str, str]


class Partner:
    """Who answers."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.url = caller.url

    def models(self) -> list[str]:
        """What it serves. Raises ConfigError if nobody answers, RequestFailedError if it refuses."""
        with self._caller.asked("GET", "/v1/models") as response:
            return [str(card["id"]) for card in json.loads(response.read())["data"]]

    def answer(self, messages: Sequence[Message], options: dict[str, Any]) -> Generator[str, None, str]:
        """The next message of the chat as it comes; closing the iterator aborts it. It returns the finish reason.

        Raises RequestFailedError with the server's own words, ConfigError if nobody answers.
        """
        body = {**options, "messages": list(messages), "stream": True}
        reason = ""
        with self._caller.asked("POST", "/v1/chat/completions", json.dumps(body)) as response:
            for event in _events(response):
                if "error" in event:
                    raise RequestFailedError(str(event["error"].get("message", event["error"])))
                for choice in event.get("choices", ()):
                    reason = choice.get("finish_reason") or reason
                    if text := choice.get("delta", {}).get("content"):
                        yield text
        return reason


def _events(response: HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in response:
        data = line.removeprefix(b"data:").strip()
        if line.startswith(b"data:") and data != b"[DONE]":
            yield json.loads(data)
