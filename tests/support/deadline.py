"""Waiting for what another thread or process does, never longer than a deadline.

A test that must wait uses one of these instead of sleeping: it goes on as soon as the thing is true and
fails, saying what did not happen, when it is not. Where the system has an event (the end of a process) the
event is awaited; only `until` and `until_async` have to look again and again.
"""

import asyncio
import os
import select
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_LOOK_EVERY = 0.005


def until(condition: Callable[[], T], *, within: float = 10.0, what: str = "") -> T:
    """The first true value of `condition()`; fails the test if there is none `within` seconds."""
    end = time.monotonic() + within
    pause = threading.Event()
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(_said(condition, within, what))
        pause.wait(_LOOK_EVERY)
    return value


async def until_async(condition: Callable[[], T], *, within: float = 10.0, what: str = "") -> T:
    """`until` for coroutines: the event loop runs on meanwhile."""
    end = time.monotonic() + within
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(_said(condition, within, what))
        await asyncio.sleep(_LOOK_EVERY)
    return value


def process_ended(pid: int, *, within: float = 10.0) -> None:
    """Return when the process `pid` has ended, whoever its parent is (a zombie has ended)."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if not select.select([descriptor], [], [], within)[0]:
            raise AssertionError(f"process {pid} still runs after {within} s: {command_line(pid)}")
    finally:
        os.close(descriptor)


def command_line(pid: int) -> str:
    """The command line of a process, empty if it has ended."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _said(condition: Callable[[], object], within: float, what: str) -> str:
    return f"not within {within} s: {what or getattr(condition, '__qualname__', condition)}"
