"""Many callers at once, each on a connection of its own: `python -m tests.support.flood URL '{"total": 5000, ...}'`.

Runs as a process of its own, so that what it costs is not mistaken for what the server costs. Prints one JSON object:
how each caller fared, and how long the refused ones waited for that. Bare sockets and epoll: a caller costs less here
than it costs the server.
"""

from __future__ import annotations

import errno
import heapq
import json
import os
import select
import socket
import sys
import time
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

import msgspec


class Flood(msgspec.Struct, frozen=True, kw_only=True):
    """What the callers do. Times in seconds."""

    total: int
    within: float
    """Over how long they come, evenly."""
    body: dict[str, Any]
    leaving: float = 0.0
    """Part of the callers who give up after `patience`."""
    patience: float = 5.0
    sources: int = 1
    """Loopback addresses that they come from."""
    longest: float = 120.0
    """How long the others wait."""


class Fared(msgspec.Struct):
    """`outcomes`: by status, "left", or the error of the connection."""

    outcomes: dict[str, int]
    seconds: float
    refused_p50: float
    refused_p99: float
    without_hint: int
    """503s without Retry-After."""


_MOST_OPEN = 12_000
"""Callers at once, for want of descriptors; others come later."""


class _Caller:
    __slots__ = ("began", "data", "leaves", "sent", "sock")

    def __init__(self, sock: socket.socket, began: float, leaves: bool) -> None:
        self.sock = sock
        self.began = began
        self.leaves = leaves
        self.sent = False
        self.data = b""


class _Crowd:
    def __init__(self, flood: Flood, url: str) -> None:
        parts = urlsplit(url)
        self._flood = flood
        self._address = (str(parts.hostname), int(parts.port or 80))
        body = json.dumps(flood.body).encode()
        head = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (parts.path.encode(), len(body))
        self._request = head + body
        self._epoll = select.epoll()
        self._callers: dict[int, _Caller] = {}
        self._deadlines: list[tuple[float, int, _Caller]] = []
        self.outcomes: Counter[str] = Counter()
        self.waits: list[float] = []
        self.without_hint = 0

    def run(self) -> None:
        began, come = time.monotonic(), 0
        flood = self._flood
        while come < flood.total or self._callers:
            now = time.monotonic()
            due = min(flood.total, int((now - began) / flood.within * flood.total) + 1)
            for _ in range(min(due - come, 64, _MOST_OPEN - len(self._callers))):
                self._come(come, now)
                come += 1
            for descriptor, _ in self._epoll.poll(0.0 if come < due else 0.002, 256):
                self._on_event(self._callers[descriptor])
            while self._deadlines and self._deadlines[0][0] <= now:
                caller = heapq.heappop(self._deadlines)[2]
                if caller.sock.fileno() >= 0:
                    self._end(caller, "left" if caller.leaves else "no answer")

    def _come(self, number: int, now: float) -> None:
        flood = self._flood
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        if flood.sources > 1:
            sock.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT: connect chooses the port
            sock.bind((f"127.0.0.{2 + number % flood.sources}", 0))
        leaves = flood.leaving > 0 and number % round(1 / flood.leaving) == 0
        caller = self._callers[sock.fileno()] = _Caller(sock, now, leaves)
        error = sock.connect_ex(self._address)
        if error not in (0, errno.EINPROGRESS):
            self._callers.pop(sock.fileno())
            sock.close()
            self.outcomes[f"connect: {os.strerror(error)}"] += 1
            return
        self._epoll.register(sock.fileno(), select.EPOLLOUT)
        heapq.heappush(self._deadlines, (now + (flood.patience if leaves else flood.longest), number, caller))

    def _on_event(self, caller: _Caller) -> None:
        try:
            if not caller.sent:
                caller.sock.send(self._request)
                caller.sent = True
                self._epoll.modify(caller.sock.fileno(), select.EPOLLIN)
                return None
            data = caller.sock.recv(65536)
        except BlockingIOError:
            return None
        except OSError as error:
            return self._end(caller, f"{'lost' if caller.sent else 'connect'}: {error.strerror}")
        if not data:
            return self._end(caller, "lost: closed")
        kept = caller.data + data
        caller.data = kept if len(kept) <= 8192 else kept[:4096] + kept[-64:]
        self._look(caller)
        return None

    def _look(self, caller: _Caller) -> None:
        head, end, body = caller.data.partition(b"\r\n\r\n")
        if not end:
            return
        if b"content-length:" in head.lower():
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            whole = len(body) >= length
        else:
            whole = caller.data.endswith(b"0\r\n\r\n")
        if not whole:
            return
        status = head[9:12].decode()
        if status == "503":
            self.waits.append(time.monotonic() - caller.began)
            self.without_hint += b"retry-after:" not in head.lower()
        self._end(caller, status)

    def _end(self, caller: _Caller, outcome: str) -> None:
        del self._callers[caller.sock.fileno()]
        caller.sock.close()
        self.outcomes[outcome] += 1


def run(flood: Flood, url: str) -> Fared:
    """Let them come."""
    crowd, began = _Crowd(flood, url), time.monotonic()
    crowd.run()
    waits = sorted(crowd.waits)
    at = [waits[int(len(waits) * part)] if waits else 0.0 for part in (0.5, 0.99)]
    return Fared(dict(crowd.outcomes), time.monotonic() - began, *at, crowd.without_hint)


if __name__ == "__main__":
    os.nice(10)  # real callers have machines of their own
    print(msgspec.json.encode(run(msgspec.json.decode(sys.argv[2], type=Flood), sys.argv[1])).decode())
