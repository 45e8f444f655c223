"""The parent's end of a child's log: records that the child sends are logged here, as if they had been made here.

One thread per child, for a handler of the program's may take its time, and then nobody else shall wait for it; if it
takes too long, the child's records are dropped and counted by the child (see `child.logs`). Meanwhile the thread looks
after the ring behind the child's standard streams (see `child.logring`).

Invariants:
- The thread owns its two descriptors, and closes them when it ends: when nobody can write any more, that is when the
  child and all that it has forked are gone.
- It is a daemon: a handler that never returns keeps no program from ending.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable

import msgspec

from muro.child.logring import LOOK_EVERY, set_back
from muro.observe.log import MAX_RECORD_BYTES, decode

log = logging.getLogger(__name__)

_JOIN_TIMEOUT = 2.0

Take = Callable[[bytes, str], None]
"""Called with each record that a child sends, as it came, and the child's name."""


class LogReader:
    """Reads what one child logs.

    Args:
        name: what to call the child.
        ring: its log.
        take: takes its records; None: `show_record`.
    """

    def __init__(self, name: str, ring: int, take: Take | None = None) -> None:
        self._take = show_record if take is None else take
        self._name = name
        self._ring = ring
        self._thread: threading.Thread | None = None

    def open(self, lent: contextlib.ExitStack) -> int:
        """Begin; returns the descriptor for the child, which `lent` closes here. Raises RuntimeError, OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        lent.callback(theirs.close)
        theirs.setblocking(False)
        with contextlib.ExitStack() as undo:
            undo.callback(ours.close)
            ring = os.dup(self._ring)
            undo.callback(os.close, ring)
            arguments = (ours.fileno(), ring, self._name, self._take)
            self._thread = threading.Thread(target=_read, args=arguments, name="muro-log", daemon=True)
            self._thread.start()
            ours.detach()
            undo.pop_all()
        return theirs.fileno()

    def close(self) -> None:
        """Wait, for a bounded time, until everything that was sent has been logged. The writers must be gone."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_TIMEOUT)


def _read(descriptor: int, ring: int, name: str, take: Take) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    look_at = 0.0
    try:
        while True:
            ready = poll.poll(LOOK_EVERY * 1000)
            if (now := time.monotonic()) >= look_at:
                look_at = now + LOOK_EVERY
                with contextlib.suppress(OSError):
                    set_back(ring)
            if ready:
                data = os.read(descriptor, 2 * MAX_RECORD_BYTES)
                if not data:
                    return
                take(data, name)
    except OSError:
        log.debug("the log of %s cannot be read any more", name, exc_info=True)
    finally:
        os.close(descriptor)
        os.close(ring)


def show_record(data: bytes, name: str) -> None:
    """Log a record that a child called `name` has sent, as if it had been made here. Never raises."""
    try:
        word = decode(data)
        if word.dropped:
            log.warning("%d records of %s were dropped: they are logged here too slowly", word.dropped, name)
        logger = logging.getLogger(word.name)
        if logger.isEnabledFor(word.level):
            logger.handle(word.record())
    except msgspec.DecodeError:
        log.warning("%s has sent what is no log record", name)
    except Exception:
        log.debug("a handler of this program failed with a record of %s", name, exc_info=True)
