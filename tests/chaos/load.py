"""Real HTTP callers: one connection per request, and everything that comes written down as it came.

Reads bytes itself: a library would hide how an answer ends. Knows nothing of what is right.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import msgspec

from tests.chaos.oracle import Asked, Seen

_MAX_LINE = 1 << 20


async def ask(host: str, port: int, asked: Asked, clock: Callable[[], float], limit: float) -> Seen:
    """Send a request and read its answer, `limit` seconds at most; never raises."""
    seen = Seen(began=clock(), texts={}, finishes={})
    patience = limit if asked.leave_after is None else min(limit, asked.leave_after)
    try:
        async with asyncio.timeout(patience):
            await _exchange(host, port, asked, seen)
    except TimeoutError:
        if asked.leave_after is None:
            seen.lost = f"no end within {limit} s"
    except (OSError, asyncio.IncompleteReadError, ValueError, msgspec.MsgspecError) as error:
        seen.lost = f"{type(error).__name__}: {error}"
    seen.ended = clock()
    return seen


async def _exchange(host: str, port: int, asked: Asked, seen: Seen) -> None:
    reader, writer = await asyncio.open_connection(host, port, limit=_MAX_LINE)
    try:
        head = f"POST {asked.path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(asked.body)}\r\nConnection: close\r\n\r\n".encode() + asked.body)
        await _read_answer(reader, asked, seen)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _read_answer(reader: asyncio.StreamReader, asked: Asked, seen: Seen) -> None:
    line = await reader.readuntil(b"\r\n")
    seen.status = int(line.split(b" ", 2)[1])
    headers: dict[bytes, bytes] = {}
    while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
        name, _, value = line.partition(b":")
        headers[name.strip().lower()] = value.strip()
    seen.retry_after = headers.get(b"retry-after", b"").isdigit()
    if headers.get(b"content-type", b"").startswith(b"text/event-stream"):
        await _read_events(reader, seen)
        return
    body = await reader.readexactly(int(headers[b"content-length"]))
    _take_whole(msgspec.json.decode(body), seen)
    seen.whole = True


async def _read_events(reader: asyncio.StreamReader, seen: Seen) -> None:
    """Chunks, in them events; ends with the empty chunk."""
    rest = b""
    done = False
    while size := int(await reader.readuntil(b"\r\n"), 16):
        rest += (await reader.readexactly(size + 2))[:-2]
        *events, rest = rest.split(b"\n\n")
        for event in events:
            data = event.removeprefix(b"data: ")
            if done:
                seen.after_end = True
            elif data == b"[DONE]":
                done = True
            elif not event.startswith(b":"):
                _take_event(msgspec.json.decode(data), seen)
    await reader.readexactly(2)
    seen.whole = done or bool(seen.code)
    if rest:
        seen.lost = f"a piece of an event is left over: {rest[:80]!r}"


def _take_event(event: dict[str, Any], seen: Seen) -> None:
    if seen.code:
        seen.after_end = True
    if "error" in event:
        _take_error(event["error"], seen)
        return
    if event.get("usage"):
        seen.tokens = event["usage"]["completion_tokens"]
    for choice in event.get("choices", ()):
        index = choice["index"]
        text = choice.get("text") or ""
        if "delta" in choice:
            text = choice["delta"].get("content") or ""
        if index in seen.finishes and (text or choice.get("finish_reason")):
            seen.after_end = True
        seen.texts[index] = seen.texts.get(index, "") + text
        if choice.get("finish_reason"):
            seen.finishes[index] = choice["finish_reason"]


def _take_whole(answer: dict[str, Any], seen: Seen) -> None:
    if "error" in answer:
        _take_error(answer["error"], seen)
        return
    seen.tokens = answer["usage"]["completion_tokens"]
    for choice in answer["choices"]:
        seen.texts[choice["index"]] = choice["text"] if "text" in choice else choice["message"]["content"]
        seen.finishes[choice["index"]] = choice["finish_reason"]


def _take_error(error: dict[str, Any], seen: Seen) -> None:
    seen.code, seen.message = str(error.get("code")), str(error.get("message"))
