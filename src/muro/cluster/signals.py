"""Keep a native library from taking over this process's signals.

Python's own functions cannot: they work in the main thread alone, and know nothing of handlers that native code sets.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
from collections.abc import Iterator

_SIGACTION_BYTES = 512
"""More than a `struct sigaction` has on any system; it is only kept, never looked into."""


@contextlib.contextmanager
def signals_untouched() -> Iterator[None]:
    """Whatever sets handlers inside, afterwards each signal does what it did before. Any thread."""
    sigaction = ctypes.CDLL(None).sigaction
    kept: dict[int, ctypes.Array[ctypes.c_char]] = {}
    for number in map(int, signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}):
        action = ctypes.create_string_buffer(_SIGACTION_BYTES)
        if sigaction(number, None, action) == 0:
            kept[number] = action
    try:
        yield
    finally:
        for number, action in kept.items():
            sigaction(number, action, None)
