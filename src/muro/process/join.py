"""The engine's side of the handshake, over a socket: `wire.handshake` decides, this moves bytes."""

from __future__ import annotations

import time
from collections.abc import Callable

from muro.errors import RemoteProtocolError, StartupError
from muro.ids import EngineRank
from muro.transport.pump import Pump
from muro.transport.sockets import PLAIN, Dial, Socket, close, connect_dealer, receive_nowait, send_nowait
from muro.transport.wakeup import Wakeup
from muro.wire.frames import identity_of
from muro.wire.handshake import EngineHandshake, Init


class Join:
    """One engine's conversation with the owner of the handshake socket.

    Args:
        address: where the handshake socket listens.
        stop: set when the process is asked to stop; ends the wait for INIT.
        dial: how to connect.
    """

    def __init__(
        self, address: str, *, rank: EngineRank, local: bool, headless: bool, stop: Wakeup, dial: Dial = PLAIN
    ) -> None:
        self._address = address
        self._rank = rank
        self._stop = stop
        self._dial = dial
        self._handshake = EngineHandshake(local=local, headless=headless)
        self._socket: Socket | None = None

    def greet(self, timeout: float, clock: Callable[[], float] = time.monotonic) -> Init | None:
        """Say HELLO and wait up to `timeout` seconds for INIT; None if asked to stop meanwhile.

        Raises:
            StartupError: no INIT in time.
            ProtocolError: what came is not INIT.
        """
        socket = self._socket = connect_dealer(self._address, identity_of(self._rank), dial=self._dial)
        send_nowait(socket, [self._handshake.hello()])
        received: list[Init] = []
        stopped: list[bool] = []
        pump = Pump()

        def read() -> None:
            if (frames := receive_nowait(socket)) is not None:
                if len(frames) != 1:
                    raise RemoteProtocolError(f"INIT of {len(frames)} frames; it has one")
                received.append(self._handshake.receive(bytes(frames[0])))

        pump.add(socket, read)
        pump.add(self._stop.fileno(), lambda: stopped.append(True))
        deadline = clock() + timeout
        while not received and not stopped:
            if (left := deadline - clock()) <= 0:
                raise StartupError(
                    f"engine {self._rank} said HELLO to {self._address} and got no INIT in {timeout:g} s; "
                    "is a front-end listening there? (setting: handshake_timeout)",
                    rank=self._rank,
                    phase="handshake",
                )
            pump.poll(int(left * 1000) + 1)
        return received[0] if received else None

    def ready(self) -> None:
        """Say READY: the last message of the handshake."""
        if self._socket is not None:
            send_nowait(self._socket, [self._handshake.ready()])

    def close(self) -> None:
        if self._socket is not None:
            close(self._socket)
            self._socket = None
