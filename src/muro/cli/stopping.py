"""Stop signals of `muro serve`, from its first line to its last.

While the command is still importing, nothing has been started: a stop signal ends it at once, with exit code 0. From
`begin` on signals are counted and handed to the server, which decides what they mean. The `FORCE_AFTER`th one forces:
engines are killed at once, and `FORCE_PATIENCE` seconds later the process ends, whatever it is doing, with 128 + the
signal's number. After `end` nothing is left to be done, and signals are ignored.

Imports next to nothing, for it must be there before all else. Main thread only; `asked` is called in a handler, between
any two instructions, so it may do no more than `loop.call_soon_threadsafe`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

FORCE_AFTER = 5  # as in child.signals, which would import too much
FORCE_PATIENCE = 3.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Stopping:
    """The stop signals of this process."""

    def __init__(self) -> None:
        self.forced_by = 0
        """The number of the signal that forced the end."""
        self._count = 0
        self._told = 0
        self._begun = False
        self._asked: Callable[[], None] | None = None

    def take(self) -> None:
        """Take the signals over."""
        for number in _SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                signal.signal(number, self._note)

    def begin(self) -> None:
        """From now on there is something to be cleaned up."""
        self._begun = True

    def tell(self, asked: Callable[[], None]) -> None:
        """Call `asked` for each request to stop, those before included."""
        self._asked = asked
        self._tell()

    def end(self) -> None:
        """Everything is done: no signal shall change the exit code now."""
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self._begun:
            os.write(1, b"stopped\n")
            os._exit(0)
        self._count += 1
        if self._count == FORCE_AFTER:
            self._force(number)
        self._tell()

    def _tell(self) -> None:
        while self._asked is not None and self._told < self._count:
            self._told += 1
            self._asked()

    def _force(self, number: int) -> None:
        self.forced_by = number
        os.write(2, b"forced: engines are killed\n")
        if (spawn := sys.modules.get("muro.launch.spawn")) is not None:
            spawn.kill_all()
        timer = threading.Timer(FORCE_PATIENCE, os._exit, (128 + number,))
        timer.daemon = True
        timer.start()


stopping = Stopping()
"""Of this process."""
