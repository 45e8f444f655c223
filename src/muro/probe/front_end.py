"""Play the front-end of a recording to live engines.

Binds what engines dial, gives them INIT, and sends what the recorded front-end sent, each message at its time. One
thread, one poll loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from muro.errors import RemoteProtocolError
from muro.probe.script import Saying, Script
from muro.probe.verdict import Heard, Pace, Result, compare_call, compare_request, notes_of
from muro.transport.endpoint import EndpointDirectory, ipc_endpoint, parse_address, tcp_endpoint
from muro.transport.monitor import Change, Monitor
from muro.transport.pump import Pump
from muro.transport.sockets import (
    Socket,
    bind_pull,
    bind_router,
    bound_address,
    close,
    receive_nowait,
    send_nowait,
)
from muro.transport.wakeup import Wakeup
from muro.wire.codec import Marker, OutputDecoder
from muro.wire.frames import rank_of
from muro.wire.handshake import Addresses, Expected, FrontendHandshake, Init
from muro.wire.output import UtilityOutput

LAST_WORDS_MS: Final = 300
"""How long what an engine said before its end may take to come."""


def as_front_end(script: Script, address: str, pace: Pace, stop: Wakeup, tell: Callable[[str], None]) -> Result:
    """Be the recorded front-end: engines dial `address`.

    Args:
        stop: ends it early when it is set.
        tell: called with what happens, in people's words.

    Raises:
        ConfigError: the address cannot be bound.
    """
    with EndpointDirectory() as directory:
        player = _FrontEnd(script, pace, tell)
        try:
            player.bind(address, directory, stop)
            if player.join():
                player.play()
            return player.result()
        finally:
            player.close()


class _FrontEnd:
    def __init__(self, script: Script, pace: Pace, tell: Callable[[str], None]) -> None:
        self._script = script
        self._pace = pace
        self._tell = tell
        self._pump = Pump()
        self._sockets: list[Socket] = []
        self._monitor: Monitor | None = None
        self._inputs: list[Socket] = []
        self._greeted: set[tuple[int, bytes]] = set()
        self._decoder = OutputDecoder()
        self._heard: dict[tuple[int, str], Heard] = {}
        self._answers: dict[int, UtilityOutput] = {}
        self._open: set[tuple[int, str]] = set()
        self._pending: set[int] = set()
        self._sent: list[Saying] = []
        self._faults: list[str] = []
        self._heard_at = 0.0
        self._stopped = False
        self._died = any(engine.died for engine in script.engines.values())
        self._dead = ""
        """How an engine's death was noticed."""
        self._joined = False

    def bind(self, address: str, directory: EndpointDirectory, stop: Wakeup) -> None:
        endpoint = parse_address(address)

        def beside(role: str) -> str:
            return ipc_endpoint(directory, role) if endpoint.is_ipc else tcp_endpoint(endpoint.host)

        self._pump.add(stop.fileno(), self._stop)
        handshake = self._keep(bind_router(address, handover=True))
        inputs, outputs = [], []
        for client in range(self._script.clients):
            watch = self._watch if client == 0 else None
            socket = self._keep(bind_router(beside(f"i{client}"), linger_ms=1000, prepare=watch))
            output = self._keep(bind_pull(beside(f"o{client}")))
            inputs.append(bound_address(socket))
            outputs.append(bound_address(output))
            self._inputs.append(socket)
            self._pump.add(socket, partial(self._hear_input, client, socket))
            self._pump.add(output, partial(self._hear_output, client, output))
        ranks = {rank_of(peer): Expected() for peer in self._script.engines}
        self._handshake = FrontendHandshake(ranks, Init(Addresses(inputs, outputs), self._script.parallel_config))
        self._pump.add(handshake, partial(self._greet, handshake))
        names = ", ".join(map(str, sorted(ranks)))
        self._tell(f"waiting at {bound_address(handshake)} for engine {names}")

    def join(self) -> bool:
        """Wait for all engines; whether they came."""
        wanted = {(client, peer) for client in range(self._script.clients) for peer in self._script.engines}
        self._heard_at = time.monotonic()
        while not self._stopped and not (self._handshake.done and self._greeted >= wanted):
            if not self._wait():
                missing = "; ".join(f"engine {rank}: {why}" for rank, why in self._handshake.missing().items())
                self._faults.append(f"not all engines joined in {self._pace.patience:g} s ({missing})")
                return False
        self._joined = True
        return not self._stopped

    def play(self) -> None:
        """Send everything at its time, and wait for the answers."""
        self._tell(f"playing {len(self._script.said)} messages")
        said = self._script.said
        first = said[0].at if said else 0.0
        began = time.monotonic()
        for saying in said:
            due = began + self._pace.after(saying.at - first)
            while not (self._stopped or self._dead) and time.monotonic() < due:
                self._pump.poll(int((due - time.monotonic()) * 1000) + 1)
            if self._stopped or self._dead:
                break
            self._send(saying)
            self._pump.poll(0)
        self._heard_at = time.monotonic()
        while (self._open or self._pending or self._died) and not (self._stopped or self._dead):
            if not self._wait():
                self._faults.append(f"nothing was heard for {self._pace.patience:g} s while answers were due")
                break
        while (
            self._dead and not self._stopped and self._pump.poll(LAST_WORDS_MS)
        ):  # what it said may come after its end
            pass

    def result(self) -> Result:
        result = Result(notes=notes_of(self._script), differences=self._faults)
        sent = [saying.asked for saying in self._sent if saying.asked is not None]
        calls = [saying.called for saying in self._sent if saying.called is not None]
        result.counts = {
            "requests": len(sent),
            "answers": sum(heard.ends > 0 for heard in self._heard.values()),
            "calls": len(calls),
        }
        if self._stopped:
            result.notes.append("stopped before its end")
        unsent = len(self._script.said) - len(self._sent)
        if unsent and self._joined and not self._stopped:
            result.differences.append(f"{unsent} messages could not be sent any more")
        for asked in sent:
            heard = self._heard.get((asked.request.client_index, asked.request.request_id))
            result.differences += compare_request(asked, heard)
        for called in calls:
            result.differences += compare_call(called, self._answers.get(called.call.call_id))
        if self._dead and not self._died:
            result.differences.append(f"an engine has died ({self._dead}); in the recording none did")
        elif self._died and not self._dead:
            result.differences.append("no engine has died; in the recording one did")
        return result

    def close(self) -> None:
        if self._monitor is not None:
            self._monitor.close()
        for socket in self._sockets:
            close(socket)

    def _keep(self, socket: Socket) -> Socket:
        self._sockets.append(socket)
        return socket

    def _watch(self, socket: Socket) -> None:
        self._monitor = Monitor.of(socket)
        self._pump.add(self._monitor.socket, self._look)

    def _stop(self) -> None:
        self._stopped = True

    def _wait(self) -> bool:
        """Poll; False if patience has ended."""
        left = self._heard_at + self._pace.patience - time.monotonic()
        if left <= 0:
            return False
        self._pump.poll(int(left * 1000) + 1)
        return True

    def _greet(self, socket: Socket) -> None:
        if (frames := receive_nowait(socket)) is None:
            return
        self._heard_at = time.monotonic()
        try:
            for reply in self._handshake.receive([bytes(frame) for frame in frames]):
                send_nowait(socket, reply)
        except RemoteProtocolError as error:
            self._tell(f"refused: {error.message}")

    def _hear_input(self, client: int, socket: Socket) -> None:
        if (frames := receive_nowait(socket)) is None:
            return
        self._heard_at = time.monotonic()
        peer = bytes(frames[0])
        if client == 0 and (client, peer) not in self._greeted:
            try:
                rank = self._handshake.ready_response([bytes(frame) for frame in frames])
            except RemoteProtocolError as error:
                self._tell(f"refused: {error.message}")
                return
            self._decoder = OutputDecoder(self._handshake.responses[rank].vllm_version)
        self._greeted.add((client, peer))

    def _hear_output(self, client: int, socket: Socket) -> None:
        if (frames := receive_nowait(socket)) is None:
            return
        self._heard_at = time.monotonic()
        try:
            message = self._decoder.decode(frames)
        except RemoteProtocolError as error:
            self._faults.append(f"an output cannot be read: {error.message}")
            return
        if isinstance(message, Marker):
            self._dead = "it has announced that"
            return
        if (answer := message.utility_output) is not None:
            self._answers[answer.call_id] = answer
            self._pending.discard(answer.call_id)
        for output in message.outputs:
            key = client, output.request_id
            if key not in self._heard:
                self._faults.append(f"{output.request_id}: an output for client {client}, which did not ask for it")
                self._heard[key] = Heard()
            self._heard[key].take(output)
            if output.finish_reason is not None:
                self._open.discard(key)

    def _look(self) -> None:
        news = None if self._monitor is None else self._monitor.read()
        if news is not None and news[0] is Change.DOWN and self._joined and not self._dead:
            self._dead = "its connection has ended"

    def _send(self, saying: Saying) -> None:
        if not send_nowait(self._inputs[saying.client], [saying.peer, *saying.frames]):
            self._dead = self._dead or f"engine {rank_of(saying.peer)} is not connected any more"
            return
        self._sent.append(saying)
        if (asked := saying.asked) is not None:
            key = asked.request.client_index, asked.request.request_id
            self._heard[key] = Heard()
            if asked.finish is not None and not asked.aborted:
                self._open.add(key)
        if saying.called is not None and saying.called.answer is not None:
            self._pending.add(saying.called.call.call_id)
