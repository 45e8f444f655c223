"""Outputs of one request for one thread at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from muro.clients.attempt import Attempt
from muro.clients.seat import Waiter
from muro.errors import MuroError, UsageError
from muro.wire.failure import error_from_wire
from muro.wire.output import EngineCoreOutput, FinishReason


class Owner(Protocol):
    """Who waits for a stream, and is told when its reader is gone (in any thread, at any moment)."""

    def wait_for(self, feed: Feed) -> None: ...

    def reader_gone(self, attempt: Attempt) -> None: ...


class Feed:
    """Outputs of one request that were not read yet, and who waits for more."""

    __slots__ = ("error", "outputs", "ring", "waiter")

    def __init__(self, ring: Callable[[Waiter], None]) -> None:
        self.outputs: deque[EngineCoreOutput] = deque()
        self.error: MuroError | None = None
        self.waiter: Waiter | None = None
        self.ring = ring

    def put(self, output: EngineCoreOutput) -> None:
        self.outputs.append(output)
        if self.waiter is not None:
            self.ring(self.waiter)

    def fail(self, error: MuroError) -> None:
        self.error = error
        if self.waiter is not None:
            self.ring(self.waiter)

    def ready(self) -> bool:
        return bool(self.outputs) or self.error is not None


class SyncStream:
    """See `interface.OutputStream`. For one thread at a time. Once it has ended, however it did, it is empty."""

    __slots__ = ("_attempt", "_feed", "_owner")

    def __init__(self, owner: Owner, feed: Feed) -> None:
        self._owner = owner
        self._feed = feed
        self._attempt: Attempt | None = None

    def begin(self, attempt: Attempt) -> SyncStream:
        """The request is on its way; from now on this stream answers for it."""
        self._attempt = attempt
        return self

    def __iter__(self) -> SyncStream:
        return self

    def __next__(self) -> EngineCoreOutput:
        try:
            return self._next()
        except UsageError:
            raise  # not ours to read now; whoever may read it loses nothing
        except BaseException:
            self.close()  # nothing to do if it had ended; else the caller was interrupted
            raise

    def close(self) -> None:
        """Abort the request if it has not ended."""
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            self._owner.reader_gone(attempt)

    def __del__(self) -> None:
        self.close()

    def _next(self) -> EngineCoreOutput:
        if self._attempt is None:
            raise StopIteration
        feed = self._feed
        if not feed.outputs:
            self._owner.wait_for(feed)
        if not feed.outputs and feed.error is not None:
            self._attempt = None
            raise feed.error
        output = feed.outputs.popleft()
        if output.finish_reason is not None:
            self._attempt = None
            if output.finish_reason == FinishReason.ERROR:
                raise error_from_wire(output.error, request_id=output.request_id)
        return output
