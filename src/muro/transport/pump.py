"""The poll loop that every I/O thread uses.

One thread owns a `Pump` and everything that was added to it; to reach it from another thread, add a `Wakeup`.
Polling is level-triggered: a handler may leave messages behind and is called again. Nothing here is fair by
itself: a handler that takes one message per call keeps one busy socket from starving the others.
"""

from __future__ import annotations

from collections.abc import Callable

import zmq

from muro.errors import InternalError
from muro.transport.sockets import Socket

Handler = Callable[[], object]

_POLLIN = int(zmq.POLLIN)


class Pump:
    """Sockets and descriptors with a handler each; `poll` waits and runs the handlers of what is readable."""

    def __init__(self) -> None:
        self._handlers: dict[Socket | int, Handler] = {}
        self._items: list[tuple[Socket | int, int]] = []

    def add(self, source: Socket | int, handler: Handler) -> None:
        """Call `handler` whenever `source` (a socket, or a descriptor's number) is readable or at its end.

        Adding a source again replaces its handler.
        """
        if source not in self._handlers:
            self._items.append((source, _POLLIN))
        self._handlers[source] = handler

    def remove(self, source: Socket | int) -> None:
        """Forget a source; do so before it is closed. Unknown ones are ignored."""
        if self._handlers.pop(source, None) is not None:
            self._items = [item for item in self._items if item[0] is not source and item[0] != source]

    def poll(self, timeout_ms: int | None = None) -> int:
        """Wait until something is readable, run its handlers; returns how many ran (0: time is up).

        A handler may add and remove sources: one that was removed is not called any more. What a handler
        raises passes through; the other handlers come in the next call.
        """
        if not self._items:
            raise InternalError("polling nothing would either spin or wait for ever")
        ready = zmq.zmq_poll(self._items, -1 if timeout_ms is None else timeout_ms)
        handlers = self._handlers
        for source, _ in ready:
            handler = handlers.get(source)
            if handler is not None:
                handler()
        return len(ready)

    def __len__(self) -> int:
        return len(self._items)
