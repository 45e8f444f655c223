"""Sockets of an engine, for examining a front-end. Judges nothing."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from types import TracebackType
from typing import Any

from muro.errors import ConfigError
from muro.probe.check.asking import Api, UserAsk
from muro.probe.check.engine import check_names
from muro.probe.check.engine_exam import Patience
from muro.probe.check.frontend import FRONTEND_CASES, examine_frontend
from muro.probe.check.frontend_exam import FromFrontend
from muro.probe.check.report import Report
from muro.transport.endpoint import check_clear
from muro.transport.monitor import Change, Monitor
from muro.transport.pump import Pump
from muro.transport.sockets import Frame, Socket, close, connect_dealer, connect_push, receive_nowait, send_nowait
from muro.wire.frames import identity_of
from muro.wire.handshake import Addresses

LINGER_MS = 1000
"""How long last words go on trying to leave."""


def check_frontend(
    address: str,
    *,
    http: str | None = None,
    patience: Patience | None = None,
    rank: int = 0,
    skip: Collection[str] = (),
    insecure_tcp: bool = False,
    progress: Callable[[str], None] = lambda name: None,
) -> Report:
    """Dial the handshake of a front-end as an engine, and examine it.

    Args:
        address: "tcp://HOST:PORT" or "ipc://PATH".
        http: its OpenAI API, as "http://127.0.0.1:8000"; None: only what it sends by itself is judged.
        patience: limits of waiting, in seconds.
        rank: of the engine that is played.
        skip: names of cases that are not run.
        insecure_tcp: dial an address of another machine in the clear.
        progress: called with the name of each case before it is run.

    Raises:
        ConfigError: an address or a name makes no sense.
    """
    check_names(skip, FRONTEND_CASES)
    check_clear(address, insecure_tcp)
    with FrontendSockets(address, rank, Api(http) if http is not None else None) as link:
        return examine_frontend(
            link,
            peer=f"the front-end at {address}",
            patience=patience or Patience(),
            rank=rank,
            skip=skip,
            progress=progress,
        )


class FrontendSockets:
    """The sockets of one engine, and the users of the front-end. Opened by `with`."""

    def __init__(self, address: str, rank: int, api: Api | None) -> None:
        self._address = address
        self._identity = identity_of(rank)
        self._api = api
        self._handshake: Socket | None = None
        self._again: Socket | None = None
        self._inputs: list[Socket] = []
        self._outputs: list[Socket] = []
        self._monitors: list[Monitor] = []
        self._up: set[int] = set()
        self._down: set[int] = set()
        self._heard: deque[FromFrontend] = deque()
        self._pump = Pump()

    def __enter__(self) -> FrontendSockets:
        self._handshake = connect_dealer(self._address, self._identity)
        self._pump.add(self._handshake, partial(self._read, self._handshake, None))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.send_away()
        self.leave()

    @property
    def has_users(self) -> bool:
        return self._api is not None

    def is_lost(self) -> bool:
        return bool(self._down)

    def say(self, payload: bytes) -> None:
        if self._handshake is not None:
            send_nowait(self._handshake, [payload])

    def leave(self) -> None:
        self._pump = Pump()
        for socket in (self._handshake, self._again, *self._inputs, *self._outputs):
            if socket is not None:
                close(socket, LINGER_MS)
        for monitor in self._monitors:
            monitor.close()

    def greet_again(self, hello: bytes) -> None:
        self.say(hello)
        self._again = connect_dealer(self._address, self._identity)
        send_nowait(self._again, [hello])

    def connect(self, addresses: Addresses, within: float) -> str:
        names = [*addresses.inputs, *addresses.outputs]
        try:
            for client, address in enumerate(addresses.inputs):
                socket = connect_dealer(address, self._identity, prepare=partial(self._watch, client))
                self._inputs.append(socket)
                self._pump.add(socket, partial(self._read, socket, client))
            for address in addresses.outputs:
                self._outputs.append(connect_push(address))
        except ConfigError as error:
            return error.message
        end = time.monotonic() + within
        while len(self._up) < len(self._inputs) and (left := end - time.monotonic()) > 0:
            self._pump.poll(int(left * 1000) + 1)
        missing = [names[client] for client in range(len(self._inputs)) if client not in self._up]
        return f"nobody listens on {missing[0]} within {within:g} s" if missing else ""

    def answer(self, client: int, payload: bytes) -> None:
        send_nowait(self._inputs[client], [payload])

    def send(self, client: int, frames: Sequence[Frame]) -> None:
        send_nowait(self._outputs[client], frames)

    def hear(self, within: float) -> FromFrontend | None:
        end = time.monotonic() + within
        while not self._heard and (left := end - time.monotonic()) > 0:
            if len(self._pump):
                self._pump.poll(int(left * 1000) + 1)
            else:
                time.sleep(left)  # it has left: nothing more will be heard
        return self._heard.popleft() if self._heard else None

    def ask(self, body: dict[str, Any]) -> UserAsk:
        if self._api is None:
            raise ConfigError("there is no HTTP API to ask")
        return self._api.ask(body)

    def send_away(self) -> None:
        if self._api is not None:
            self._api.close()

    def healthy(self, within: float) -> bool:
        return self._api is not None and self._api.healthy(within)

    def now(self) -> float:
        return time.monotonic()

    def _watch(self, client: int, socket: Socket) -> None:
        monitor = Monitor.of(socket)
        self._monitors.append(monitor)

        def read() -> None:
            if (news := monitor.read()) is None:
                return
            if news[0] is Change.UP:
                self._up.add(client)
            elif news[0] is Change.DOWN and client in self._up:
                self._down.add(client)

        self._pump.add(monitor.socket, read)

    def _read(self, socket: Socket, client: int | None) -> None:
        if (frames := receive_nowait(socket)) is not None:
            self._heard.append(FromFrontend(client, frames))
