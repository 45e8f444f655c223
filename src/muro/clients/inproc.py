"""InprocClient: the engine in this process, behind the same session and the same client as any other.

For tests, tools and small programs: no process, no socket. Requests go through the encoder and the decoder as
they would over the wire, so that what another client refuses is refused here too. Invariants:

- Whoever holds the client's seat turns the engine, so the engine's methods (all but `preprocess`) are called by
  one thread at a time, though not always by the same one.
- Ctrl-C may hit the engine itself. Everything in flight is then aborted, and it is the engine's business to
  survive an exception in `step`.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn, cast

from muro.clients.engine import KnownEngine
from muro.clients.session import Message, Session
from muro.clients.sync import ThreadsClient
from muro.config import Limits
from muro.engine.admission import Admission
from muro.engine.checks import prompt_length
from muro.engine.events import Abort, Add, Call, Event, ExecutorFailed, Routed, StartWave
from muro.engine.host import EngineHost
from muro.engine.interface import EngineCore
from muro.engine.loader import build_engine, load_engine
from muro.errors import EngineDeadError, LocalProtocolError, UsageError
from muro.ids import ClientIndex, EngineRank, Generation
from muro.launch.events import EngineAdded, EngineDied, EngineGivenUp, EngineReplaced
from muro.launch.events import Event as EngineEvent
from muro.launch.rank import RankStatus
from muro.wire.codec import OutputDecoder, OutputEncoder, RequestDecoder
from muro.wire.control import AbortRequest, StartDPWave, UtilityRequest
from muro.wire.coordination import Publication
from muro.wire.failure import call_failure_text
from muro.wire.output import EngineCoreOutputs, UtilityOutput

_RANK = EngineRank(0)
_CLIENT = ClientIndex(0)
_NO_FORWARD_YIELD = 0.001
"""Seconds to let other threads run when there is work but no forward could be done."""


class LocalEngine:
    """An engine and its host, as a client sees engines elsewhere: `sync.Engines` and `sync.NewsSource` in one."""

    def __init__(self, engine: EngineCore, name: str, *, log_stats: bool = True) -> None:
        self._engine = engine
        self._name = name
        self._owner = os.getpid()
        self._admission = Admission(Limits())
        self._inbox: deque[Event] = deque()
        self._answers: deque[Routed] = deque()
        self._events: deque[EngineEvent] = deque()
        self._bell = threading.Event()
        self._decoder = RequestDecoder()
        self._encoder = OutputEncoder()
        self._reader = OutputDecoder()
        self._over = False
        self._released = False
        self._host = EngineHost(
            engine,
            rank=_RANK,
            name=name,
            admission=self._admission,
            clock=time.monotonic,
            post_late=self._post,
            log_stats=log_stats,
        )
        engine.on_executor_failure(self._executor_failed)

    def check_process(self) -> None:
        """Raises UsageError in a process that has inherited this client by fork."""
        if os.getpid() != self._owner:
            raise UsageError(f"this client belongs to process {self._owner}; make one of its own in each process")

    def send(self, message: Message) -> bool:
        """Hand a message over; the engine takes it in its next turn."""
        if self._over:
            return False
        request = self._decoder.decode(message[1:])
        match request:
            case AbortRequest():
                abort = Abort(_CLIENT, request.request_ids)
                self._host.abort_soon(abort)
                self._inbox.append(abort)
            case UtilityRequest():
                self._inbox.append(Call(_CLIENT, request.call_id, request.method, request.args))
            case StartDPWave():
                self._inbox.append(StartWave(request.wave, request.exclude))
            case _:
                size = sum(map(len, message))
                try:
                    self._admission.check(size)
                    prepared = self._host.prepare(request)
                except Exception as error:
                    self._answers.append(self._host.rejection(_CLIENT, request.request_id, error))
                else:
                    self._admission.admit(size)
                    length = prompt_length(request)
                    self._inbox.append(Add(_CLIENT, _CLIENT, request.request_id, 0, prepared, size, length))
        self._bell.set()
        return True

    def wait(self, timeout: float | None) -> bool:
        """Wait until there is something to do for `take`, at most `timeout` seconds; whether there may be."""
        try:
            return self._host.has_work() or self._bell.wait(timeout)
        except Exception:
            return True  # `take` meets the same error, and buries the engine

    def take(self) -> list[EngineCoreOutputs]:
        """Turn the engine once: take in what was sent, do a step; returns the news."""
        self._bell.clear()
        routed: list[Routed] = []
        try:
            while self._inbox:
                routed += self._host.apply(self._inbox.popleft())
            if self._host.has_work():
                outputs, executed = self._host.step()
                routed += outputs
                if not executed and not outputs:
                    self._bell.wait(_NO_FORWARD_YIELD)
            else:
                routed += self._host.went_idle()
        except Exception as error:
            self._over = True
            self._bury(error)
        return self._messages(routed)

    def interrupt(self) -> None:
        """Make `wait` return soon (any thread)."""
        self._bell.set()

    def look(self) -> None:
        """Nothing: an engine in this process dies in `take`."""

    def refused(self, message: Message) -> None:
        """Nothing: see `look`."""

    def due(self) -> float | None:
        """Events are due at once; see `link.Link` for these."""
        return 0.0 if self._events else None

    def now(self) -> float:
        """A time, for `events`."""
        return 0.0

    def events(self, now: float) -> Iterator[EngineEvent]:
        """The end of the engine."""
        while self._events:
            yield self._events[0]
            self._events.popleft()

    def dying(self) -> dict[EngineRank, EngineDeadError]:
        """Nothing: its death is told with its last outputs."""
        return {}

    def adopt(self, event: EngineReplaced | EngineAdded) -> None:
        """Nothing: it is not replaced, and the only one."""

    def forget(self, rank: EngineRank) -> None:
        """Nothing: it does not leave."""

    def started_here(self) -> list[EngineRank]:
        """Raises UsageError: there is one engine, in this process."""
        raise UsageError("an engine in this process is the only one; for several, use muro.connect")

    def grow(self, rank: EngineRank) -> NoReturn:
        """See `started_here`."""
        raise UsageError("an engine in this process is the only one; for several, use muro.connect")

    def let_go(self, rank: EngineRank) -> None:
        """Nothing: it does not leave."""

    def heard(self, news: Publication) -> None:
        """Nothing: there is no coordinator."""

    def last_report_age(self, rank: EngineRank) -> float | None:
        """Not noted: the engine is turned by whoever asks."""
        return None

    def supervised(self, rank: EngineRank) -> RankStatus | None:
        """Nothing: there is no other process."""
        return None

    def stop(self, timeout: float | None = None) -> None:
        """Take no more messages."""
        self._over = True

    def release(self) -> None:
        """Shut the engine down, once; nobody turns it any more."""
        if not self._released and os.getpid() == self._owner:
            self._released = True
            self._engine.shutdown()

    def abandon(self) -> None:
        """Nobody holds the client any more."""
        self.stop()

    def close(self) -> None:
        """Nothing to give back."""

    def _messages(self, routed: list[Routed]) -> list[EngineCoreOutputs]:
        while self._answers:
            routed.append(self._answers.popleft())
        return [self._as_if_sent(item) if item.message.utility_output else item.message for item in routed]

    def _as_if_sent(self, answer: Routed) -> EngineCoreOutputs:
        """An answer after a journey over the wire: what cannot be encoded becomes the failure of its call."""
        message = answer.message
        try:
            frames = self._encoder.encode(message, bytearray())
        except LocalProtocolError as error:
            output = cast(UtilityOutput, message.utility_output)
            failure = call_failure_text(answer.method, error)
            return EngineCoreOutputs(utility_output=UtilityOutput(output.call_id, failure))
        return cast(EngineCoreOutputs, self._reader.decode(frames))

    def _post(self, answer: Routed) -> None:
        self._answers.append(answer)
        self._bell.set()

    def _executor_failed(self, cause: BaseException) -> None:
        self._inbox.append(ExecutorFailed(cause))
        self._bell.set()

    def _bury(self, cause: Exception) -> None:
        text = f"engine 0 ({self._name}) in this process has died: {type(cause).__name__}: {cause}"
        error = EngineDeadError(text, rank=_RANK, phase="serving")
        error.__cause__ = cause
        self._events += [EngineDied(_RANK, Generation(0), error), EngineGivenUp(_RANK, error)]


class InprocClient(ThreadsClient):
    """The client for threads of an engine in this process. Only its name and how it is made differ."""

    @classmethod
    def create(
        cls,
        engine: str | EngineCore | Callable[..., EngineCore] = "echo",
        *,
        model: str | None = None,
        options: Mapping[str, Any] | None = None,
        log_stats: bool = True,
    ) -> InprocClient:
        """Load an engine here.

        Args:
            engine: a name as for `connect`, a factory (a class or a function), or the engine itself.
            model: model directory, for a factory that names it.
            options: options of the engine.
            log_stats: whether scheduler statistics are reported.

        Raises:
            ConfigError: the name leads nowhere or an option does not fit; and whatever loading raises.
        """
        given = dict(options or {})
        if isinstance(engine, str):
            name, loaded = engine, load_engine(engine, model=model, options=given, report=_ignore)
        elif callable(engine):
            name = getattr(engine, "__name__", type(engine).__name__)
            loaded = build_engine(name, engine, model=model, options=given, report=_ignore)
        else:
            name, loaded = type(engine).__name__, engine
        known = KnownEngine(_RANK)
        known.joined(None)
        local = LocalEngine(loaded, name, log_stats=log_stats)
        return cls(Session({_RANK: known}, nonce="inproc"), local, local)


def _ignore(phase: str, percent: float) -> None:
    """Progress of loading is of no interest to who waits for it in the same thread."""
