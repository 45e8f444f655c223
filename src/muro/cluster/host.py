"""The host of one rank, on the machine where that runs: it starts the engine as a child of its own and reports of it.

The engine is not in the host's process, for three reasons. A host can tell how a killed engine ended, and where a hung
one stands, whoever holds the interpreter lock. The engine has the main thread and the signals that it needs. And what
an engine is spared everywhere else (life-line, warden, log ring, progress page) holds here, too: when the host ends,
for whatever reason, the kernel ends the engine and all that it has started.

Knows nothing of Ray, which calls its methods, several at once, each in a thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque

import msgspec

from muro.cluster.report import Hosted, Order, Report
from muro.errors import ConfigError, UsageError
from muro.launch.spawn import Child, spawn
from muro.version import VERSION

REPORT_EVERY = 0.2
"""Seconds that a report waits for the end of the engine."""
MAX_RECORDS_BYTES = 1 << 20
_encode = msgspec.msgpack.encode


class Records:
    """Log records that wait for the next report: the newest, up to `MAX_RECORDS_BYTES`."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._dropped = 0
        self._lock = threading.Lock()

    def take(self, data: bytes, name: str) -> None:
        """One more; see `launch.logs.Take`."""
        with self._lock:
            self._waiting.append(data)
            self._bytes += len(data)
            while self._bytes > MAX_RECORDS_BYTES:
                self._bytes -= len(self._waiting.popleft())
                self._dropped += 1

    def give(self) -> tuple[list[bytes], int]:
        """All that wait, and how many were dropped since the last time."""
        with self._lock:
            given, dropped = list(self._waiting), self._dropped
            self._waiting.clear()
            self._bytes = self._dropped = 0
        return given, dropped


class RankHost:
    """Hosts one engine, once."""

    def __init__(self) -> None:
        self._child: Child | None = None
        self._records = Records()
        self._last: Report | None = None
        self._lock = threading.Lock()

    def start(self, order: bytes) -> bytes:
        """Start the engine; returns `Hosted`. Raises ConfigError, StartupError."""
        what = msgspec.msgpack.decode(order, type=Order)
        if what.version != VERSION:
            raise ConfigError(f"this machine has muro {VERSION} and the front-end {what.version}; install one")
        child = self._child = spawn(
            what.target,
            what.payload,
            title=what.title,
            env=what.env,
            name=what.name,
            generation=what.generation,
            thresholds=what.thresholds,
            take_record=self._records.take,
        )
        return _encode(Hosted(pid=child.pid, now_ns=time.monotonic_ns()))

    def report(self) -> bytes:
        """A `Report`, at once if the engine has ended, else after `REPORT_EVERY` seconds."""
        child = self._hosted()
        child.wait(REPORT_EVERY)
        with self._lock:
            if self._last is None:
                report = self._look(child)
                if report.status is None:
                    return _encode(report)
                child.close()  # nothing of its tree is left, and all that it logged has been read
                records, dropped = self._records.give()
                self._last = msgspec.structs.replace(
                    report, records=report.records + records, dropped=report.dropped + dropped
                )
            return _encode(self._last)

    def terminate(self) -> None:
        """Ask the engine to stop."""
        self._hosted().terminate()

    def kill(self) -> None:
        """End the engine at once."""
        self._hosted().kill()

    def dump_stack(self) -> bytes:
        """Where the engine's threads stand, as text."""
        return self._hosted().dump_stack().encode()

    def _hosted(self) -> Child:
        if self._child is None:
            raise UsageError("nothing was started here")
        return self._child

    def _look(self, child: Child) -> Report:
        records, dropped = self._records.give()
        return Report(
            status=child.poll(),
            progress=child.progress(),
            stopped=child.is_stopped(),
            failure=child.failure(),
            log_tail=child.log_tail(),
            records=records,
            dropped=dropped,
        )
