"""How often this process was asked to stop, for an event loop that waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import threading

from muro.child.signals import heeded


class StopRequests:
    """How often a stop was asked for; to be made in the loop that serves."""

    def __init__(self) -> None:
        self.count = 0
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[int, asyncio.Event]] = []

    def ask(self) -> None:
        """Ask for a stop (in the loop's thread)."""
        self.count += 1
        for times, event in self._waiting:
            if self.count >= times:
                event.set()

    async def asked(self, times: int = 1) -> None:
        """Return when a stop was asked for so often."""
        event = asyncio.Event()
        self._waiting.append((times, event))
        if self.count < times:
            await event.wait()

    def ask_soon(self) -> None:
        """Ask for a stop, from any thread or signal handler; too late is no error."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.ask)

    def take_signals(self) -> None:
        """Let the stop signals ask, if this is the main thread."""
        if threading.current_thread() is threading.main_thread():
            for number in heeded():
                self._loop.add_signal_handler(number, self.ask)
