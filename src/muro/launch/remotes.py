"""Engines that were started elsewhere: notice when one is lost, and let its successor in.

One thread ("muro-remotes"), only where there are such engines. Invariants:

- From `open` to `stop` the handshake socket, the watched connections and the input sockets of those who are joining
  belong to that thread. The input socket of a successor that is ready is handed over by `adopt`, once.
- A successor gets an input socket of its own, so nothing of its predecessor can reach it.
- An identity may be taken over at the handshake socket only while the engine that has it is lost: the old connection
  may live on where nobody answers any more.
- Events are published in order; after `stop` none is.
- What is not the next word of an engine that is awaited is refused, and costs nobody anything.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

import msgspec

from muro.errors import EngineDeadError, RemoteProtocolError, StartupError
from muro.ids import EngineRank, Generation
from muro.launch.arrivals import Arrivals
from muro.launch.events import EngineDied, EngineGivenUp, EngineReplaced, EngineStarted, Event
from muro.launch.remote_rank import RemoteRank, RemoteState
from muro.transport.pump import Pump
from muro.transport.sockets import Frame, Socket, allow_handover, bound_address, close, receive_from, send_nowait
from muro.transport.wakeup import Wakeup
from muro.wire.frames import rank_of
from muro.wire.handshake import Addresses, Expected, Features, FrontendHandshake, Init

log = logging.getLogger(__name__)

_SAME_MOMENT = 1.0
"""Seconds between the end of a connection and an announcement that explains it, at most."""
_JOIN_TIMEOUT = 3.0
_REFUSAL_PAUSE = 0.005
"""Seconds of this thread's life that each refused word costs, so that a flood of them takes nobody else's time."""
RETRY_AFTER = 5.0
"""Seconds after which callers may ask again: nobody knows when a successor dials."""


class Entrance(msgspec.Struct, frozen=True):
    """Where successors come in.

    Attributes:
        handshake: the socket that engines greet at, and its connections.
        bind_inputs: makes an input socket for one of them, with its connections.
        addresses: what INIT carries, given the input socket.
        features: what this front-end offers.
    """

    handshake: Socket
    greeters: Arrivals
    bind_inputs: Callable[[], tuple[Socket, Arrivals]]
    addresses: Callable[[Socket], Addresses]
    features: Features


class _Joining:
    """A successor on its way in."""

    def __init__(self, rank: EngineRank, entrance: Entrance) -> None:
        self.inputs, self.arrivals = entrance.bind_inputs()
        init = Init(entrance.addresses(self.inputs), {}, entrance.features)
        self.handshake = FrontendHandshake({rank: Expected(local=False)}, init)

    def close(self) -> None:
        self.arrivals.close()
        close(self.inputs, 0)


class Remotes:
    """The ranks that were started elsewhere, all of which serve.

    Args:
        ranks: these.
        arrivals: the connections to the input socket that they came through.
        publish: takes events.
        entrance: where successors come in; None: nobody waits for any.
        alone: whether there is one engine in all, so that an announcement can only be its own.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        ranks: Iterable[EngineRank],
        arrivals: Arrivals,
        publish: Callable[[Event], None],
        entrance: Entrance | None,
        *,
        alone: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._alone = alone
        self._ranks = {rank: RemoteRank(rank) for rank in ranks}
        self._arrivals = arrivals
        self._publish = publish
        self._entrance = entrance
        self._clock = clock
        self._joining: dict[EngineRank, _Joining] = {}
        self._early: dict[EngineRank, tuple[list[bytes], int]] = {}
        self._successors: dict[EngineRank, _Joining] = {}
        """Those that serve."""
        self._waiting: dict[tuple[EngineRank, Generation], Socket] = {}
        self._verdicts: deque[tuple[EngineRank, EngineDeadError | None]] = deque()
        self._announced = False
        self._unexplained: tuple[EngineDeadError | None, float] = None, 0.0
        """The last loss that nobody has announced."""
        self._refused = 0
        self._absent: set[EngineRank] = set()
        """Those whose loss was published, and no successor since."""
        self._loss = threading.Condition()
        self._lock = threading.Lock()
        self._pump = Pump()
        self._wakeup = Wakeup()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="muro-remotes", daemon=True)

    def open(self) -> Remotes:
        """Begin. Raises StartupError if no thread can be made."""
        self._wakeup.open()
        try:
            self._thread.start()
        except RuntimeError as error:
            self._wakeup.close()
            raise StartupError(f"no thread could be made to watch the engines: {error}", phase="spawn") from error
        return self

    @property
    def awaits_successors(self) -> bool:
        """Whether those who are lost may be followed by others."""
        return self._entrance is not None

    def announced(self) -> bool:
        """An engine has announced its death, nobody knows which; whether the end of its connection will tell."""
        (error, lost_at), self._unexplained = self._unexplained, (None, 0.0)
        if error is not None and self._clock() - lost_at < _SAME_MOMENT:
            # Its connection ended first, seen from here; nobody has been told yet, for last outputs are read before.
            error.message = _loss(error.rank, announced=True)
            error.args = (error.message,)
        else:
            self._announced = True
            if (
                self._alone and self.awaits_successors
            ):  # its connection may stay for ever: some engines hang when they have failed
                self._verdicts.extend((rank, None) for rank in self._ranks)
                self._wakeup.set()
        return self.awaits_successors

    def take_for_dead(self, rank: EngineRank, error: EngineDeadError) -> None:
        """This engine does nothing any more, says somebody who knows; any thread."""
        self._verdicts.append((rank, error))
        self._wakeup.set()

    def wait_lost(self, rank: EngineRank, timeout: float) -> None:
        """Wait until the loss of this engine was published, because something else says that it has gone."""
        with self._loss:
            self._loss.wait_for(lambda: rank in self._absent or rank not in self._ranks, timeout)

    def adopt(self, rank: EngineRank, generation: Generation) -> Socket | None:
        """The input socket of a successor that is ready; the caller's from now on."""
        with self._lock:
            return self._waiting.pop((rank, generation), None)

    def stop(self) -> None:
        """Watch no longer; any thread, also again."""
        self._stopped = True
        self._wakeup.set()
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_TIMEOUT)

    def release(self) -> None:
        """Close what was not adopted, after `stop`. The sockets of successors must be closed already."""
        if not self._thread.is_alive():
            self._wakeup.close()
        with self._lock:
            while self._waiting:
                close(self._waiting.popitem()[1], 0)
        for successor in self._successors.values():
            successor.arrivals.close()

    def _run(self) -> None:
        self._pump.add(self._wakeup.fileno(), self._woken)
        self._pump.add(self._arrivals.socket, partial(self._miss, self._arrivals))
        if self._entrance is not None:
            self._pump.add(self._entrance.handshake, partial(self._greet, self._entrance))
            self._pump.add(self._entrance.greeters.socket, partial(self._miss_greeters, self._entrance.greeters))
        try:
            while not self._stopped:
                try:
                    self._pump.poll(None)
                except Exception:
                    log.exception("watching the engines that were started elsewhere met a bug of ours; it goes on")
                    time.sleep(0.2)  # whatever it is may happen again at once
        finally:
            for joining in self._joining.values():
                joining.close()

    def _woken(self) -> None:
        self._wakeup.clear()
        while self._verdicts:
            self._lose(*self._verdicts.popleft())

    def _miss(self, arrivals: Arrivals) -> None:
        for rank in arrivals.lost():
            successor = self._successors.get(rank)
            if rank in self._joining and arrivals is self._joining[rank].arrivals:
                self._drop(rank)
            elif arrivals is (self._arrivals if successor is None else successor.arrivals):
                self._lose(rank)  # and not one that was taken for dead, whose connection ends when another one serves

    def _lose(self, rank: EngineRank, error: EngineDeadError | None = None) -> None:
        """The engine that serves a rank has gone: it said so, or its connection has ended, or for the reason given."""
        one = self._ranks.get(rank)
        entrance = self._entrance
        if one is None or not one.lost(self._clock(), awaited=entrance is not None):
            return
        if (successor := self._successors.pop(rank, None)) is not None:
            self._pump.remove(successor.arrivals.socket)
            successor.arrivals.close()
        if error is None:
            announced, self._announced = self._announced, False
            error = EngineDeadError(_loss(rank, announced=announced), rank=rank)
            self._unexplained = (None if announced else error), self._clock()
        error.generation = one.generation
        if entrance is None:
            log.error("%s", error.message)
            self._publish(EngineDied(rank, one.generation, error))
            self._publish(EngineGivenUp(rank, error))
            self._tell_lost(rank)
            return
        log.warning("%s; a successor is waited for at %s", error.message, bound_address(entrance.handshake))
        error.restarting, error.retry_after = True, RETRY_AFTER
        self._publish(EngineDied(rank, one.generation, error, restarting=True))
        self._tell_lost(rank)
        allow_handover(entrance.handshake, True)
        if (early := self._early.pop(rank, None)) is not None:
            self._take(entrance, *early)

    def _tell_lost(self, rank: EngineRank) -> None:
        with self._loss:
            self._absent.add(rank)
            self._loss.notify_all()

    def _greet(self, entrance: Entrance) -> None:
        received = receive_from(entrance.handshake)
        if received is not None:
            self._take(entrance, [bytes(frame) for frame in received[0]], received[1])

    def _take(self, entrance: Entrance, frames: list[bytes], descriptor: int) -> None:
        """A word at the handshake socket."""
        try:
            rank = rank_of(frames[0])
            one = self._ranks.get(rank)
            if one is None or len(frames) != 2:
                known = ", ".join(map(str, sorted(self._ranks)))
                raise RemoteProtocolError(f"engine {rank} is not expected here; expected from elsewhere: {known}")
            if _says_hello(frames[1]):
                if one.state is RemoteState.SERVING and entrance.greeters.is_of(rank, descriptor):
                    raise RemoteProtocolError(f"engine {rank} said HELLO again, and it serves")
                if one.state is RemoteState.SERVING:  # its predecessor has gone, and we shall hear of it
                    self._early[rank] = frames, descriptor
                    return
                self._admit(entrance, one, descriptor)
            if (joining := self._joining.get(rank)) is None:
                raise RemoteProtocolError(f"engine {rank} has not said HELLO")
            for identity, payload in joining.handshake.receive(frames):
                send_nowait(entrance.handshake, [identity, payload])
        except RemoteProtocolError as error:
            self._refuse(error)
            return
        self._settle(one, joining)

    def _admit(self, entrance: Entrance, one: RemoteRank, descriptor: int) -> None:
        """A successor greets."""
        self._drop(one.rank)
        if not one.hello():
            raise RemoteProtocolError(f"engine {one.rank} is given up")
        joining = self._joining[one.rank] = _Joining(one.rank, entrance)
        self._pump.add(joining.inputs, partial(self._hear, one, joining))
        self._pump.add(joining.arrivals.socket, partial(self._miss, joining.arrivals))
        log.warning("engine %d (started elsewhere) joins: generation %d", one.rank, one.generation)
        self._publish(EngineStarted(one.rank, one.generation, 1, 1, "its predecessor was lost"))
        entrance.greeters.note(one.rank, descriptor)
        self._miss_greeters(entrance.greeters)  # it may have gone already

    def _hear(self, one: RemoteRank, joining: _Joining) -> None:
        received = receive_from(joining.inputs)
        if received is None:
            return
        frames = [bytes(frame) for frame in received[0]]
        try:
            joining.handshake.ready_response(frames)
        except RemoteProtocolError as error:
            self._refuse(error)
            return
        joining.arrivals.note(one.rank, received[1])
        self._miss(joining.arrivals)  # it may have gone already
        self._settle(one, joining)

    def _settle(self, one: RemoteRank, joining: _Joining) -> None:
        """See whether a successor is ready."""
        if not joining.handshake.done or self._joining.get(one.rank) is not joining:
            return
        del self._joining[one.rank]
        self._successors[one.rank] = joining
        self._pump.remove(joining.inputs)
        with self._lock:
            self._waiting[one.rank, one.generation] = joining.inputs
        seconds = one.ready(self._clock())
        if self._entrance is not None and all(r.state is RemoteState.SERVING for r in self._ranks.values()):
            allow_handover(self._entrance.handshake, False)
        log.warning("engine %d serves again after %.1f s: generation %d", one.rank, seconds, one.generation)
        response = joining.handshake.responses[one.rank]
        with self._loss:
            self._absent.discard(one.rank)
        self._publish(EngineReplaced(one.rank, one.generation, response, 0, seconds))

    def _miss_greeters(self, greeters: Arrivals) -> None:
        for rank in greeters.lost():
            self._early.pop(rank, None)
            if rank in self._joining:
                log.warning("engine %d (started elsewhere) has gone before it was ready", rank)
                self._drop(rank)

    def _drop(self, rank: EngineRank) -> None:
        """Whoever is joining here is not any more."""
        joining = self._joining.pop(rank, None)
        if joining is not None:
            self._pump.remove(joining.inputs)
            self._pump.remove(joining.arrivals.socket)
            joining.close()
            self._ranks[rank].gone()

    def _refuse(self, error: RemoteProtocolError) -> None:
        self._refused += 1
        if self._refused & (self._refused - 1) == 0:  # 1, 2, 4, 8 ...: a flood stays readable
            log.warning("refused %d words at the handshake socket; the last: %s", self._refused, error)
        time.sleep(_REFUSAL_PAUSE)


def _says_hello(payload: Frame) -> bool:
    """Whether a word is HELLO; whether it is a right one, the handshake decides."""
    try:
        return bool(msgspec.msgpack.decode(payload, type=dict[str, msgspec.Raw])["status"] == _HELLO)
    except (msgspec.DecodeError, KeyError, UnicodeDecodeError, RecursionError):
        return False


_HELLO = msgspec.Raw(msgspec.msgpack.encode("HELLO"))


def _loss(rank: int | None, *, announced: bool) -> str:
    how = "it announced that it failed" if announced else "its connection has ended"
    return f"engine {rank} (started elsewhere) is lost: {how}"
