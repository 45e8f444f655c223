"""The floor: the least that a round trip between two processes over these sockets can cost.

The same socket types, frame counts and sizes as a utility call (ROUTER -> DEALER there, PUSH -> PULL back), and
nothing else: no decoding, no polling, no second thread. The *shaped* floor adds what no design with separate I/O
threads can avoid: the request is handed from a receiver thread to a loop thread and its answer on to a sender
thread, each through a `queue.SimpleQueue`. Knows nothing of what the frames mean; `bench.floors` supplies them.
"""

from __future__ import annotations

import threading
from queue import SimpleQueue

from muro.transport.sockets import Socket, bind_pull, bind_router, close, connect_dealer, connect_push

STOP = b"stop"
"""Single frame that ends the engine's side."""


class FloorClient:
    """The front-end's side: makes round trips, one at a time. Made by `open_floor`."""

    def __init__(self, router: Socket, pull: Socket, request: list[bytes]) -> None:
        self._router = router
        self._pull = pull
        self._request = request
        self._message: list[bytes] = []

    def accept(self, timeout_ms: int) -> bool:
        """Wait for the engine's side to come; whether it did."""
        if not self._router.poll(timeout_ms):
            return False
        self._message = [self._router.recv_multipart()[0], *self._request]
        return True

    def round_trip(self) -> None:
        """Send the request, wait for the answer."""
        self._router.send_multipart(self._message)
        self._pull.recv_multipart()

    def close(self) -> None:
        """Tell the engine's side to end and close both sockets; may be called twice."""
        if self._message and not self._router.closed:
            self._router.send_multipart([self._message[0], STOP])
        close(self._router, 1000)
        close(self._pull)


def open_floor(input_address: str, output_address: str, request: list[bytes]) -> FloorClient:
    """Bind both sockets of the front-end's side. Raises ConfigError."""
    router = bind_router(input_address)
    try:
        pull = bind_pull(output_address)
    except BaseException:
        close(router)
        raise
    return FloorClient(router, pull, request)


def serve(input_address: str, output_address: str, identity: bytes, reply: list[bytes], *, shaped: bool) -> None:
    """The engine's side: answer every request with `reply` until told to stop."""
    dealer = connect_dealer(input_address, identity)
    push = connect_push(output_address)
    dealer.send(b"ready")
    try:
        (_serve_shaped if shaped else _serve_bare)(dealer, push, reply)
    finally:
        close(dealer)
        close(push)


def _serve_bare(dealer: Socket, push: Socket, reply: list[bytes]) -> None:
    while dealer.recv_multipart() != [STOP]:
        push.send_multipart(reply)


def _serve_shaped(dealer: Socket, push: Socket, reply: list[bytes]) -> None:
    inbox: SimpleQueue[list[bytes]] = SimpleQueue()
    outbox: SimpleQueue[list[bytes] | None] = SimpleQueue()

    def receive() -> None:
        frames: list[bytes] = []
        while frames != [STOP]:
            frames = dealer.recv_multipart()
            inbox.put(frames)

    def send() -> None:
        while (frames := outbox.get()) is not None:
            push.send_multipart(frames)

    threads = [threading.Thread(target=target, name=f"floor-{target.__name__}") for target in (receive, send)]
    for thread in threads:
        thread.start()
    while inbox.get() != [STOP]:
        outbox.put(reply)
    outbox.put(None)
    for thread in threads:
        thread.join()
