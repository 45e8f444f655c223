"""An engine process without the process: `EngineCoreProc` on a thread, its front-end's sockets in the test's hands.

Every step of the handshake is the test's own, so that it can look around in between and do it wrong.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from muro.config import EngineConfig
from muro.engine.interface import EngineCore, Report
from muro.engines.echo import EchoEngine
from muro.process.proc import EngineCoreProc
from muro.transport.page import ProgressPage
from muro.transport.pump import Pump
from muro.transport.sockets import (
    Frame,
    Socket,
    bind_pull,
    bind_router,
    bind_xpub,
    bound_address,
    close,
    receive_nowait,
    send_nowait,
)
from muro.wire.handshake import Addresses, Features, Init, ReadyResponse, decode_ready_response, encode_init
from tests.support.rawpeer import IDENTITY, PATIENCE, RawClient

Load = Callable[[Report], EngineCore]


class Hosted:
    """One engine on a thread, `clients` clients, and a coordinator if asked for."""

    def __init__(self, directory: str, load: Load, clients: int, gated: bool, settings: dict[str, Any]) -> None:
        self.handshake = bind_router(f"ipc://{directory}/h")
        self.clients = [RawClient(index, directory) for index in range(clients)]
        self.gate = bind_xpub(f"ipc://{directory}/g") if gated else None
        self._reports = bind_pull(f"ipc://{directory}/r") if gated else None
        self.addresses = Addresses(
            [bound_address(client.input) for client in self.clients],
            [bound_address(client.output) for client in self.clients],
            bound_address(self.gate) if self.gate else None,
            bound_address(self._reports) if self._reports else None,
        )
        self.page = ProgressPage.create()
        config = EngineConfig(handshake_address=bound_address(self.handshake), **settings)
        self.proc = EngineCoreProc(config, load, self.page)
        self.error: BaseException | None = None
        """What ended the engine."""
        self.started: bool | None = None
        """What `start()` gave."""
        self.thread = threading.Thread(target=self._live, name="hosted-engine")

    def greet(self) -> None:
        """Start the engine and hear its HELLO."""
        self.thread.start()
        identity, hello = receive(self.handshake)
        assert identity == IDENTITY and b"HELLO" in hello

    def init(self, muro: Features | None = None, **changes: Any) -> None:
        """Answer HELLO; `changes` are addresses of one's own."""
        addresses = Addresses(**{name: changes.get(name, getattr(self.addresses, name)) for name in _ADDRESSES})
        assert send_nowait(self.handshake, [IDENTITY, encode_init(Init(addresses, muro=muro))])

    def ready_responses(self) -> list[ReadyResponse]:
        """The first message on each input socket."""
        messages = [receive(client.input) for client in self.clients]
        assert all(len(frames) == 2 and frames[0] == IDENTITY for frames in messages)
        return [decode_ready_response(frames[1]) for frames in messages]

    def ready(self) -> None:
        """Hear READY."""
        _, ready = receive(self.handshake)
        assert b"READY" in ready

    def join(self, muro: Features | None = None) -> None:
        """The whole handshake."""
        self.greet()
        self.init(muro)
        self.ready_responses()
        self.ready()

    def ended(self) -> BaseException | None:
        """Wait for the end; gives what ended the engine."""
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive(), "the engine does not end"
        return self.error

    def close(self) -> None:
        if self.thread.ident is not None:
            self.proc.ask_to_stop()
            self.thread.join(PATIENCE)
        for client in self.clients:
            client.close()
        for socket in (self.handshake, self.gate, self._reports):
            if socket is not None:
                close(socket, 0)
        self.page.close()
        assert not self.thread.is_alive(), "the engine does not end"

    def _live(self) -> None:
        """As `process.main` does, without signals and exit codes."""
        try:
            self.started = self.proc.start()
            if self.started:
                self.proc.run()
        except BaseException as error:
            self.error = error
            self.proc.announce_death()
        self.proc.close()


@contextlib.contextmanager
def hosted(load: Load | None = None, *, clients: int = 1, gated: bool = False, **settings: Any) -> Iterator[Hosted]:
    """An engine that has not started yet; `load` gives another one than an echo. It is ended afterwards."""
    # Closed sockets remove their own files, later: what is gone already is no error.
    with tempfile.TemporaryDirectory(prefix="host-", ignore_cleanup_errors=True) as directory:
        engine = Hosted(directory, load or (lambda report: EchoEngine()), clients, gated, settings)
        try:
            yield engine
        finally:
            engine.close()


def receive(socket: Socket, within: float = PATIENCE) -> Sequence[Frame]:
    """The next message of a socket."""
    heard: list[Sequence[Frame]] = []

    def read() -> None:
        if (frames := receive_nowait(socket)) is not None:
            heard.append(frames)

    pump = Pump()
    pump.add(socket, read)
    assert pump.poll(int(within * 1000)), f"nothing comes within {within} s"
    return heard[0]


def is_silent(socket: Socket, milliseconds: int) -> bool:
    """Whether nothing comes for so long."""
    pump = Pump()
    pump.add(socket, lambda: None)
    return not pump.poll(milliseconds)


_ADDRESSES = Addresses.__struct_fields__
