"""Callers of several servers behind one port, each on a connection of its own: then the kernel chooses who answers."""

from __future__ import annotations

import asyncio
import json
from time import monotonic
from typing import Any

import httpx

from tests.support.deadline import until
from tests.support.server import Server


def healths(server: Server) -> dict[str, Any]:
    """What one of them says of all."""
    found = httpx.get(f"{server.url}/health", timeout=10).json()
    assert isinstance(found, dict)
    return found


def everybodys(server: Server, number: int) -> dict[int, dict[str, Any]]:
    """What each of them says of all, by the index of who says it."""
    found: dict[int, dict[str, Any]] = {}

    def heard_all() -> bool:
        health = healths(server)
        found[answering(health)] = health
        return len(found) == number

    until(heard_all, within=30, what="each server has answered")
    return found


def answering(health: dict[str, Any]) -> int:
    """Who has given this answer; -1 if nobody knows yet."""
    return next((int(each["server"]) for each in health["servers"] if each["answering"]), -1)


def server_pids(server: Server) -> list[int]:
    return [each["pid"] for each in healths(server)["servers"]]


def engine_pids(server: Server) -> list[int]:
    return [each["pid"] for each in healths(server)["engines"]]


class Stream:
    """One streamed completion, read as it comes.

    Args:
        url: of the port.
        prompt: each byte is a token, and comes back.
        tokens: how many are asked for.
        rank: the engine that shall compute it.
    """

    def __init__(self, url: str, prompt: str, tokens: int, rank: int | None = None) -> None:
        self._address = url.removeprefix("http://").rsplit(":", 1)
        self._tokens = tokens
        self._prompt = prompt
        self._rank = rank
        self.text = ""
        self.pieces = 0
        self.times: list[float] = []
        """When each piece came, in seconds of the monotonic clock."""
        self.error: dict[str, Any] | None = None
        self.reason = ""
        self.whole = False
        """Whether the answer came to its end."""

    async def run(self) -> Stream:
        """Ask, and read to the end, or until the connection breaks."""
        reader, writer = await asyncio.open_connection(self._address[0], int(self._address[1]))
        try:
            writer.write(self._request())
            while line := await reader.readline():
                self._take(line.strip())
        except OSError:
            return self
        finally:
            writer.close()
        return self

    def _request(self) -> bytes:
        body = json.dumps({"prompt": self._prompt, "max_tokens": self._tokens, "stream": True}).encode()
        rank = "" if self._rank is None else f"X-data-parallel-rank: {self._rank}\r\n"
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{rank}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def _take(self, line: bytes) -> None:
        if line == b"data: [DONE]":
            self.whole = True
        elif line.startswith(b"data: "):
            event = json.loads(line.removeprefix(b"data: "))
            self.error = event.get("error", self.error)
            for choice in event.get("choices", ()):
                self.pieces += 1
                self.times.append(monotonic())
                self.text += choice["text"]
                self.reason = choice["finish_reason"] or self.reason
        elif line.startswith(b"HTTP/1.1") and b" 200 " not in line:
            self.error = {"status": line.decode()}
