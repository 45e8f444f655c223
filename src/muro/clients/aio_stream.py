"""Outputs of one request for one asyncio reader: a deque and at most one future, no asyncio.Queue.

Several outputs that wait are handed out without suspending the reader in between. For a reader who is far behind they
are merged into one, and from a bound on its request is ended: nothing grows for ever because somebody does not read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from muro.clients.attempt import Attempt
from muro.errors import MuroError, SlowReaderError, UsageError
from muro.ids import EngineRank, Generation
from muro.wire.failure import error_from_wire
from muro.wire.output import EngineCoreOutput, FinishReason

MERGE_FROM = 64
"""Outputs that wait for a reader before further ones are merged."""


class Owner(Protocol):
    """Who is told of readers that are gone. May be called in any thread, at any moment: it must only take note."""

    def reader_gone(self, attempt: Attempt) -> None: ...


class Feed:
    """What a session puts the outputs of a request into. Holds nothing of its reader but a future.

    Args:
        most: tokens that may wait, about; None: any number.
    """

    __slots__ = ("_most", "error", "on_overrun", "outputs", "waiting")

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self.on_overrun: Callable[[], object] = lambda: None
        """Called once, when the reader is too far behind: from then on nothing is taken any more."""
        self.outputs: deque[EngineCoreOutput] = deque()
        self.error: MuroError | None = None
        self.waiting: asyncio.Future[None] | None = None

    def put(self, output: EngineCoreOutput) -> None:
        if len(self.outputs) >= MERGE_FROM and self._pile_up(output):
            return
        self.outputs.append(output)
        waiting = self.waiting
        if waiting is not None:
            self.waiting = None
            if not waiting.done():  # its task may have been cancelled meanwhile
                waiting.set_result(None)

    def fail(self, error: MuroError) -> None:
        self.error = error
        waiting, self.waiting = self.waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def _pile_up(self, output: EngineCoreOutput) -> bool:
        """Take an output for a reader who is far behind; false if it has to be kept as it is."""
        if self.error is not None:
            return True
        last = self.outputs[-1]
        merged = _plain(last) and _plain(output)
        if merged:
            last.new_token_ids.extend(output.new_token_ids)
        if self._most is not None and max(len(last.new_token_ids), len(self.outputs)) > self._most:
            self.error = SlowReaderError(
                f"the reader is more than {self._most} tokens behind", request_id=output.request_id
            )
            self.on_overrun()
            return True
        return merged


def _plain(output: EngineCoreOutput) -> bool:
    """Whether it holds tokens alone."""
    return output == EngineCoreOutput(output.request_id, output.new_token_ids)


class AsyncStream:
    """See `interface.AsyncOutputStream`. Once it has ended, however it did, it is empty."""

    __slots__ = ("_attempt", "_feed", "_loop", "_open", "_outputs", "_owner")

    def __init__(self, owner: Owner, attempt: Attempt, feed: Feed, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._attempt = attempt
        self._feed = feed
        self._outputs = feed.outputs
        self._loop = loop
        self._open = True

    @property
    def engine(self) -> tuple[EngineRank, Generation]:
        """See `interface.AsyncOutputStream.engine`."""
        engine = self._attempt.engine
        return engine.rank, engine.generation

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> EngineCoreOutput:
        outputs = self._outputs
        if not outputs:
            await self._wait()
        output = outputs.popleft()
        if output.finish_reason is not None:
            self._open = False
            if output.finish_reason == FinishReason.ERROR:
                raise error_from_wire(output.error, request_id=output.request_id)
        return output

    def pending(self) -> list[EngineCoreOutput]:
        """Take the outputs that have come already; an ERROR is left for the next read, which raises it."""
        outputs = self._outputs
        taken: list[EngineCoreOutput] = []
        while outputs:
            output = outputs[0]
            if output.finish_reason is not None:
                if output.finish_reason == FinishReason.ERROR:
                    break
                self._open = False
            taken.append(outputs.popleft())
        return taken

    async def aclose(self) -> None:
        """Abort the request if it has not ended."""
        self._drop()

    async def _wait(self) -> None:
        """Return when there is an output; else raise."""
        feed = self._feed
        if not self._open:
            raise StopAsyncIteration
        if feed.waiting is not None:
            raise UsageError(f"the stream of request {self._attempt.request_id!r} is read by another task already")
        if feed.error is None:
            waiting = feed.waiting = self._loop.create_future()
            try:
                await waiting
            except BaseException:  # cancelled, or the loop ends
                feed.waiting = None
                self._drop()
                raise
        if not self._outputs and feed.error is not None:
            self._open = False
            raise feed.error
        if not self._outputs:  # closed by another task meanwhile
            raise StopAsyncIteration

    def _drop(self) -> None:
        if self._open:
            self._open = False
            self._outputs = deque()  # what the session may still bring is nobody's
            self._owner.reader_gone(self._attempt)
            waiting, self._feed.waiting = self._feed.waiting, None
            if waiting is not None and not waiting.done():
                waiting.set_result(None)

    def __del__(self) -> None:
        if self._open:
            self._open = False
            self._owner.reader_gone(self._attempt)
