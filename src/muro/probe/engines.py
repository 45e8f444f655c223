"""Play the engines of a recording to a live front-end.

Each joins as the recorded one did, and answers as that was heard to answer: requests are told apart by their prompts if
those were recorded, else by their lengths, else by their order. One thread, one poll loop for all.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from muro.errors import RemoteProtocolError
from muro.probe.parts import Parts
from muro.probe.script import Asked, Called, Engine, Script, made_up
from muro.probe.verdict import Pace, Result, compare_asking, notes_of
from muro.transport.monitor import Change, Monitor
from muro.transport.pump import Pump
from muro.transport.sockets import (
    Frame,
    Socket,
    close,
    connect_dealer,
    connect_push,
    connect_xsub,
    receive_nowait,
    send_nowait,
)
from muro.transport.wakeup import Wakeup
from muro.wire.codec import OutputEncoder, RequestDecoder
from muro.wire.control import AbortRequest, UtilityRequest
from muro.wire.frames import COORDINATOR_READY, ENGINE_CORE_DEAD, SUBSCRIBE, rank_of
from muro.wire.handshake import Addresses, decode_init
from muro.wire.output import EngineCoreOutput, EngineCoreOutputs, FinishReason, UtilityOutput
from muro.wire.releases import SAFE, layout_for_add_length
from muro.wire.request import EngineCoreRequest

QUIET: Final = 2.0
"""Seconds of silence after which a replay ends whose answers have all been given."""

ABORT_PATIENCE: Final = 1.0
"""Seconds that a front-end has for aborting what was aborted in the recording, before it is given an end."""

_LOOK_EVERY_MS: Final = 200


def as_engines(script: Script, address: str, pace: Pace, stop: Wakeup, tell: Callable[[str], None]) -> Result:
    """Be the recorded engines: they dial the front-end's handshake at `address`.

    Args:
        stop: ends it early when it is set.
        tell: called with what happens, in people's words.

    Raises:
        ConfigError: the address makes no sense.
    """
    stage = _Stage(script, pace, tell)
    try:
        stage.enter(address, stop)
        stage.play()
        return stage.result()
    finally:
        stage.close()


class _Stage:
    """All engines of one replay."""

    def __init__(self, script: Script, pace: Pace, tell: Callable[[str], None]) -> None:
        self._script = script
        self._pace = pace
        self._tell = tell
        self._pump = Pump()
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._players: list[_Player] = []
        self._stopped = False
        self.heard_at = time.monotonic()
        """When the front-end was last heard, or something was said to it."""

    def enter(self, address: str, stop: Wakeup) -> None:
        self._pump.add(stop.fileno(), self._stop)
        for engine in self._script.engines.values():
            player = _Player(self, engine, Parts(self._script, engine.peer), self._pump)
            self._players.append(player)
            player.dial(address)
        self._tell(f"{len(self._players)} engine(s) dial the front-end at {address}")

    def play(self) -> None:
        """Answer until nothing is left to be said, or the front-end has gone."""
        while not self._stopped and not all(player.gone for player in self._players):
            now = time.monotonic()
            while self._due and self._due[0][0] <= now:
                heapq.heappop(self._due)[2]()
                self.heard_at = now
            played = not self._due and all(player.played for player in self._players)
            if now - self.heard_at > (QUIET if played else self._pace.patience) and not self._due:
                break
            wait_ms = int((self._due[0][0] - now) * 1000) + 1 if self._due else _LOOK_EVERY_MS
            self._pump.poll(min(wait_ms, _LOOK_EVERY_MS))

    def after(self, seconds: float, action: Callable[[], object], *, more: float = 0.0) -> None:
        """Do something so many recorded seconds from now, and `more` real ones."""
        due = time.monotonic() + self._pace.after(seconds) + more
        heapq.heappush(self._due, (due, next(self._numbers), action))

    def tell(self, words: str) -> None:
        self._tell(words)

    def result(self) -> Result:
        result = Result(notes=notes_of(self._script))
        pairs = [pair for player in self._players for pair in player.pairs]
        result.counts = {
            "requests": len(pairs),
            "answered": sum(player.ended for player in self._players),
            "calls": sum(player.calls for player in self._players),
        }
        for player in self._players:
            result.differences += player.faults
            if not player.joined:
                result.differences.append(f"engine {player.rank} did not join: {player.waits_for}")
            left = len(player.parts.left)
            if left and player.joined:
                result.differences.append(f"engine {player.rank}: {left} recorded requests were not made")
        for asked, live, aborted in pairs:
            result.differences += compare_asking(asked, live, aborted)
        if self._stopped:
            result.notes.append("stopped before its end")
        return result

    def close(self) -> None:
        for player in self._players:
            player.close()

    def _stop(self) -> None:
        self._stopped = True


class _Player:
    """One engine."""

    def __init__(self, stage: _Stage, engine: Engine, parts: Parts, pump: Pump) -> None:
        self.rank = rank_of(engine.peer)
        self.parts = parts
        self.joined = False
        self.gone = False
        self.waits_for = "no INIT came"
        self.faults: list[str] = []
        self.calls = 0
        self._stage = stage
        self._engine = engine
        self._pump = pump
        self._sockets: list[Socket] = []
        self._monitors: list[Monitor] = []
        self._handshake: Socket | None = None
        self._outputs: list[Socket] = []
        self._encoders: dict[int, OutputEncoder] = {}
        self._safe = OutputEncoder(SAFE)
        self._requests = RequestDecoder()
        self._live: dict[str, tuple[Asked, EngineCoreRequest]] = {}
        self._aborted: set[str] = set()
        self._ended: set[str] = set()
        self._made: list[tuple[Asked, EngineCoreRequest]] = []
        self._up = 0

    @property
    def played(self) -> bool:
        """Whether all recorded requests were made and answered."""
        return self.joined and not self.parts.left and not self._live

    @property
    def ended(self) -> int:
        """How many requests were given their end."""
        return len(self._ended)

    @property
    def pairs(self) -> list[tuple[Asked, EngineCoreRequest, bool]]:
        """Recorded requests, what was asked in their place, and whether that was aborted."""
        return [(asked, live, live.request_id in self._aborted) for asked, live in self._made]

    def dial(self, address: str) -> None:
        socket = self._handshake = self._keep(connect_dealer(address, self._engine.peer))
        self._pump.add(socket, partial(self._hear_handshake, socket))
        send_nowait(socket, [self._engine.hello])

    def close(self) -> None:
        for monitor in self._monitors:
            monitor.close()
        for socket in self._sockets:
            close(socket, None if self.joined and not self.gone else 0)

    def _keep(self, socket: Socket) -> Socket:
        self._sockets.append(socket)
        return socket

    def _hear_handshake(self, socket: Socket) -> None:
        frames = receive_nowait(socket)
        if frames is None or self._outputs:
            return
        self._stage.heard_at = time.monotonic()
        try:
            self._enter(decode_init(frames[0]).addresses)
        except RemoteProtocolError as error:
            self.faults.append(f"engine {self.rank}: {error.message}")

    def _enter(self, addresses: Addresses) -> None:
        """INIT has come: connect, and say what the recorded engine said of itself."""
        response = msgspec.msgpack.decode(self._engine.response, type=dict[str, object])
        response.pop("muro", None)  # what it offered beyond the protocol is not offered here
        response["dp_stats_address"] = addresses.frontend_stats_publish_address
        for address in addresses.outputs:
            self._outputs.append(self._keep(connect_push(address)))
        for client, address in enumerate(addresses.inputs):
            socket = self._keep(connect_dealer(address, self._engine.peer, prepare=self._watch))
            self._pump.add(socket, partial(self._hear_input, client, socket))
            send_nowait(socket, [msgspec.msgpack.encode(response)])
        if addresses.coordinator_output is not None:
            self._keep(connect_push(addresses.coordinator_output))
        if addresses.coordinator_input is None:
            self._ready()
            return
        self.waits_for = "the coordinator did not say READY"
        gate = self._keep(connect_xsub(addresses.coordinator_input, self._engine.peer))
        self._pump.add(gate, partial(self._hear_gate, gate))
        send_nowait(gate, [SUBSCRIBE])

    def _hear_gate(self, socket: Socket) -> None:
        if receive_nowait(socket) == [COORDINATOR_READY] and not self.joined:
            self._ready()

    def _ready(self) -> None:
        if self._handshake is not None:
            send_nowait(self._handshake, [self._engine.ready])
        self.joined = True
        self._stage.tell(f"engine {self.rank} has joined")
        for at, client, stats in self._engine.stats:
            message = EngineCoreOutputs(self.rank, scheduler_stats=stats, timestamp=time.monotonic())
            self._stage.after(at - self._engine.ready_at, partial(self._send, client, message))

    def _watch(self, socket: Socket) -> None:
        monitor = Monitor.of(socket)
        self._monitors.append(monitor)
        self._pump.add(monitor.socket, partial(self._look, monitor))

    def _look(self, monitor: Monitor) -> None:
        if (news := monitor.read()) is not None and news[0] is Change.UP:
            self._up += 1
        elif news is not None and news[0] is Change.DOWN and self._up:
            self.gone = True

    def _hear_input(self, client: int, socket: Socket) -> None:
        if (frames := receive_nowait(socket)) is None:
            return
        self._stage.heard_at = time.monotonic()
        try:
            message = self._requests.decode(frames)
        except RemoteProtocolError as error:
            self.faults.append(f"engine {self.rank} was sent what cannot be read: {error.message}")
            return
        match message:
            case EngineCoreRequest():
                self._add(client, message, frames)
            case AbortRequest():
                for request_id in message.request_ids:
                    self._abort(request_id)
            case UtilityRequest():
                self._call(client, message)

    def _add(self, client: int, request: EngineCoreRequest, frames: list[Frame]) -> None:
        if client not in self._encoders:
            layout = layout_for_add_length(self._requests.add_length(frames)) or SAFE
            self._encoders[client] = OutputEncoder(layout)
        asked = self.parts.of_request(request)
        if asked is None:
            self.faults.append(f"{request.request_id}: one request more than was recorded; ended with ERROR")
            end = EngineCoreOutput(request.request_id, [], finish_reason=FinishReason.ERROR)
            self._send(client, EngineCoreOutputs(self.rank, [end], timestamp=time.monotonic()))
            return
        self._made.append((asked, request))
        self._live[request.request_id] = asked, request
        filler = iter([] if asked.tokens_known else made_up(asked.number, len(asked.tokens)))
        for at, output in asked.outputs:
            tokens = output.new_token_ids
            if not asked.tokens_known:
                tokens = list(itertools.islice(filler, len(tokens)))
            live = msgspec.structs.replace(output, request_id=request.request_id, new_token_ids=tokens)
            self._stage.after(at - asked.at, partial(self._output, client, live))
        if asked.finish is None:  # it was aborted, or the recording ended before it
            last = asked.outputs[-1][0] - asked.at if asked.outputs else 0.0
            end = EngineCoreOutput(request.request_id, [], finish_reason=FinishReason.ABORT)
            self._stage.after(last, partial(self._output, client, end), more=ABORT_PATIENCE)

    def _output(self, client: int, output: EngineCoreOutput) -> None:
        if output.request_id not in self._live:
            return
        if output.finish_reason is not None:
            del self._live[output.request_id]
            self._ended.add(output.request_id)
        self._send(client, EngineCoreOutputs(self.rank, [output], timestamp=time.monotonic()))
        if self._engine.died and self.played:
            self._die()

    def _abort(self, request_id: str) -> None:
        self._live.pop(request_id, None)
        if request_id not in self._ended:
            self._aborted.add(request_id)

    def _call(self, client: int, call: UtilityRequest) -> None:
        self.calls += 1
        called: Called | None = self.parts.of_call(call)
        if called is None or called.answer is None:
            why = f"Call to {call.method} method failed: it is not in the recording"
            self.faults.append(f"call {call.method}: not in the recording; answered as failed")
            self._answer(client, UtilityOutput(call.call_id, why))
            return
        at, answer = called.answer
        live = msgspec.structs.replace(answer, call_id=call.call_id)
        self._stage.after(at - called.at, partial(self._answer, client, live))

    def _answer(self, client: int, answer: UtilityOutput) -> None:
        self._send(client, EngineCoreOutputs(self.rank, utility_output=answer, timestamp=time.monotonic()))

    def _die(self) -> None:
        for socket in self._outputs:
            send_nowait(socket, [ENGINE_CORE_DEAD])
        self.gone = True

    def _send(self, client: int, message: EngineCoreOutputs) -> None:
        if self.gone:
            return
        encoder = self._encoders.get(client, self._safe)
        place = client if client < len(self._outputs) else 0
        send_nowait(self._outputs[place], encoder.encode(message, bytearray()))
