"""News of engines in processes of their own, for a client without an event loop.

Waiting and taking are two steps: a wait may be interrupted at any point and nothing is lost; what is taken must
be handled. For one thread at a time, save `interrupt`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from muro.clients.link import LAST_OUTPUTS_GRACE, NOTICE_PATIENCE, Link
from muro.clients.session import Unreadable
from muro.launch.supervisor import EngineDied
from muro.transport.pump import Pump
from muro.transport.sockets import receive_nowait
from muro.transport.wakeup import Wakeup
from muro.wire.codec import Marker
from muro.wire.output import EngineCoreOutputs

News = EngineCoreOutputs | Unreadable | EngineDied

_LONGEST_POLL = 3600.0


class Polling:
    """Polls the output socket, the children and a wake-up of a link."""

    def __init__(self, link: Link, clock: Callable[[], float] = time.monotonic) -> None:
        self._link = link
        self._clock = clock
        self._pump = Pump()
        self._wakeup = Wakeup()
        self._readable = False
        self._bury_at: float | None = None
        self._name_by: float | None = None

    def open(self) -> Polling:
        """Begin to watch. Raises what the operating system refuses."""
        self._wakeup.open()
        self._pump.add(self._wakeup.fileno(), self._woken)
        self._pump.add(self._link.outputs, self._has_outputs)
        for sentinel in self._link.sentinels:
            self._pump.add(sentinel, lambda sentinel=sentinel: self._has_ended(sentinel))  # type: ignore[misc]
        return self

    def wait(self, timeout: float | None) -> bool:
        """Wait for news, at most `timeout` seconds (None: for ever); whether there may be some."""
        mourning = self._bury_at is not None or self._name_by is not None
        if mourning:
            timeout = self._until_due(timeout)
        ready = self._pump.poll(None if timeout is None else math.ceil(min(timeout, _LONGEST_POLL) * 1000))
        return ready > 0 or mourning

    def take(self) -> list[News]:
        """The next message, or deaths that are due."""
        if self._readable:
            self._readable = False
            frames = receive_nowait(self._link.outputs)
            message = None if frames is None else self._link.decode(frames)
            if message is None:
                return []
            return self._noticed() if isinstance(message, Marker) else [message]
        now = self._clock()
        if self._name_by is not None:
            return self._noticed()
        if self._bury_at is not None and now >= self._bury_at:
            self._bury_at = None
            return [*self._link.deaths()]
        return []

    def interrupt(self) -> None:
        """Make `wait` return soon (any thread)."""
        self._wakeup.set()

    def close(self) -> None:
        """Stop watching; nobody waits any more."""
        self._wakeup.close()

    def _until_due(self, timeout: float | None) -> float:
        due = min(at for at in (self._bury_at, self._name_by) if at is not None) - self._clock()
        return max(0.0, due if timeout is None else min(timeout, due))

    def _woken(self) -> None:
        self._wakeup.clear()

    def _has_outputs(self) -> None:
        self._readable = True

    def _has_ended(self, sentinel: int) -> None:
        self._pump.remove(sentinel)
        self._bury_at = self._clock() + LAST_OUTPUTS_GRACE

    def _noticed(self) -> list[News]:
        """An engine has announced its death: it is buried with its cause, if that becomes known soon."""
        now = self._clock()
        died = self._link.announced()
        if died is None and self._name_by is None:
            self._name_by = now + NOTICE_PATIENCE
            return []
        if died is None and self._name_by is not None and now < self._name_by:
            return []
        self._name_by = None
        return [died or self._link.nameless_death()]
