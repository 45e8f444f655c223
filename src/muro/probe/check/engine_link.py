"""Sockets of a front-end, for examining an engine that dials in. Judges nothing."""

from __future__ import annotations

import os
import select
import signal
import time
from collections import deque
from collections.abc import Collection, Sequence
from functools import partial
from types import TracebackType

from muro.errors import ConfigError
from muro.probe.check.engine import ENGINE_CASES, Progress, check_names, examine_engine
from muro.probe.check.engine_exam import HANDSHAKE, Heard, Patience
from muro.probe.check.report import Report
from muro.transport.endpoint import EndpointDirectory, check_clear, ipc_endpoint, parse_address, tcp_endpoint
from muro.transport.pump import Pump
from muro.transport.sockets import (
    Frame,
    Socket,
    bind_pull,
    bind_router,
    bound_address,
    close,
    receive_nowait,
    send_nowait,
)
from muro.wire.handshake import Addresses
from muro.wire.releases import layout_for

CLIENTS = 2
"""Front-end processes that are played: the fewest that can be mixed up."""


def check_engine(
    address: str,
    *,
    patience: Patience | None = None,
    release: str | None = None,
    skip: Collection[str] = (),
    pid: int | None = None,
    insecure_tcp: bool = False,
    progress: Progress = lambda name: None,
) -> Report:
    """Bind the handshake at an address, wait for an engine that dials it, and examine it.

    Args:
        address: "tcp://HOST:PORT" or "ipc://PATH".
        patience: limits of waiting, in seconds.
        release: of the front-end to be played, as in "0.28"; None: the engine's own.
        skip: names of cases that are not asked.
        pid: the engine's process, which is asked to stop at the end; None: that is not tried.
        insecure_tcp: listen on an address that other machines reach.
        progress: called with the name of each case before it is asked.

    Raises:
        ConfigError: the address, the release or a name makes no sense, or nothing can listen there.
    """
    check_names(skip, ENGINE_CASES)
    if release is not None:
        layout_for(release)
    check_clear(address, insecure_tcp)
    with EngineSockets(address, pid) as link:
        return examine_engine(
            link,
            peer=f"the engine that dialled {address}",
            patience=patience or Patience(),
            release=release,
            skip=skip,
            progress=progress,
        )


class EngineSockets:
    """The handshake socket, and an input and an output socket for each client. Opened by `with`."""

    def __init__(self, address: str, pid: int | None = None) -> None:
        self._address = address
        self._pid = pid
        self._process = -1
        self._directory = EndpointDirectory()
        self._sockets: dict[int, Socket] = {}
        self._outputs: list[Socket] = []
        self._heard: deque[Heard] = deque()
        self._pump = Pump()
        self.addresses = Addresses([], [])

    def __enter__(self) -> EngineSockets:
        try:
            self._open()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def send(self, client: int, identity: bytes, frames: Sequence[Frame]) -> bool:
        return send_nowait(self._sockets[client], [identity, *frames])

    def hear(self, within: float) -> Heard | None:
        end = time.monotonic() + within
        while not self._heard and (left := end - time.monotonic()) > 0:
            self._pump.poll(int(left * 1000) + 1)
        return self._heard.popleft() if self._heard else None

    def now(self) -> float:
        return time.monotonic()

    def terminate(self) -> bool:
        if self._process < 0:
            return False
        signal.pidfd_send_signal(self._process, signal.SIGTERM)
        return True

    def ended(self, within: float) -> bool:
        return bool(select.select([self._process], [], [], within)[0])

    def _open(self) -> None:
        if self._pid is not None:
            try:
                self._process = os.pidfd_open(self._pid)
            except (OSError, OverflowError) as error:
                why = error.strerror if isinstance(error, OSError) else "there is no such number"
                raise ConfigError(f"process {self._pid} cannot be watched: {why}") from error
        endpoint = parse_address(self._address)
        self._add(HANDSHAKE, bind_router(self._address))
        if endpoint.is_ipc:
            self._directory.open()
        for client in range(CLIENTS):
            places = (
                [ipc_endpoint(self._directory, f"{role}-{client}") for role in ("input", "output")]
                if endpoint.is_ipc
                else [tcp_endpoint(endpoint.host)] * 2
            )
            self._add(client, bind_router(places[0]))
            output = bind_pull(places[1])
            self._outputs.append(output)
            self._pump.add(output, partial(self._read, output, client, True))
            self.addresses.inputs.append(bound_address(self._sockets[client]))
            self.addresses.outputs.append(bound_address(output))

    def _add(self, client: int, socket: Socket) -> None:
        self._sockets[client] = socket
        self._pump.add(socket, partial(self._read, socket, client, False))

    def _read(self, socket: Socket, client: int, is_output: bool) -> None:
        if (frames := receive_nowait(socket)) is not None:
            self._heard.append(Heard(client, is_output, frames))

    def _close(self) -> None:
        for socket in [*self._sockets.values(), *self._outputs]:
            close(socket, 0)
        self._directory.close()
        if self._process >= 0:
            os.close(self._process)
            self._process = -1
