"""News of engines in processes of their own, for a client without an event loop.

Waiting and taking are two steps: a wait may be interrupted at any point and nothing is lost; what is taken must
be handled. For one thread at a time, save `interrupt`.
"""

from __future__ import annotations

import math

from muro.clients.link import Link
from muro.clients.session import Unreadable
from muro.transport.pump import Pump
from muro.transport.sockets import receive_nowait
from muro.transport.wakeup import Wakeup
from muro.wire.codec import Marker
from muro.wire.coordination import Publication
from muro.wire.output import EngineCoreOutputs

News = EngineCoreOutputs | Unreadable | Publication

_LONGEST_POLL = 3600.0
_MOST = 4096
"""Messages that are read at once before a death is told; the others of a flood come after it."""


class Polling:
    """Polls the output socket of a link, a wake-up, and the coordinator, if there is one."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._pump = Pump()
        self._wakeup = Wakeup()
        self._readable = False
        self._published = False

    def open(self) -> Polling:
        """Begin to watch. Raises what the operating system refuses."""
        self._wakeup.open()
        self._pump.add(self._wakeup.fileno(), self._woken)
        self._pump.add(self._link.outputs, self._has_outputs)
        if self._link.coordination is not None:
            self._pump.add(self._link.coordination.ear, self._has_publications)
        return self

    def wait(self, timeout: float | None) -> bool:
        """Wait for news, at most `timeout` seconds (None: for ever); whether there may be some."""
        silent = self._link.silent
        if silent is not None:
            silent.look()
            timeout = silent.patience(timeout)
        due = self._link.due()
        if due is not None:
            timeout = due if timeout is None else min(timeout, due)
        ready = self._pump.poll(None if timeout is None else math.ceil(min(timeout, _LONGEST_POLL) * 1000))
        return ready > 0 or due is not None

    def take(self) -> list[News]:
        """The next message, or, if an event is due, all that wait; and what the coordinator has published."""
        most = _MOST if self._link.due() == 0 else int(self._readable)
        self._readable = False
        news: list[News] = []
        for _ in range(most):
            if (frames := receive_nowait(self._link.outputs)) is None:
                break
            message = self._link.decode(frames)
            if isinstance(message, Marker):
                self._link.notice()
            elif message is not None:
                news.append(message)
        if self._published and (coordination := self._link.coordination) is not None:
            self._published = False
            if (publication := coordination.read()) is not None:
                news.append(publication)
        return news

    def interrupt(self) -> None:
        """Make `wait` return soon (any thread)."""
        self._wakeup.set()

    def close(self) -> None:
        """Stop watching; nobody waits any more."""
        self._wakeup.close()

    def _woken(self) -> None:
        self._wakeup.clear()

    def _has_outputs(self) -> None:
        self._readable = True

    def _has_publications(self) -> None:
        self._published = True
