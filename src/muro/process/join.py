"""The engine's side of the handshake, over a socket: `wire.handshake` decides, this moves bytes.

libzmq dials again by itself until somebody listens. If the connection ends after HELLO and before INIT, HELLO is
lost with it: then the conversation begins anew. So it does, after a pause, when our key was refused or no front-end
listens there: libzmq takes that for final, but the key may be let in later, and the port get another owner.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from muro.errors import RemoteProtocolError, StartupError
from muro.ids import EngineRank
from muro.transport.monitor import Change, Monitor
from muro.transport.pump import Pump
from muro.transport.sockets import PLAIN, Dial, Socket, close, connect_dealer, receive_nowait, send_nowait
from muro.transport.wakeup import Wakeup
from muro.wire.frames import identity_of
from muro.wire.handshake import EngineHandshake, Init

FIRST_WORD_AFTER, NEXT_WORD_AFTER = 10.0, 60.0
"""Seconds of waiting after which the log says so, for the first time and again."""

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0
"""Seconds before the conversation begins anew with one that did not let us in; they double."""

_OBSTACLES = {
    Change.REFUSED: "it refuses the key of this machine; has it been copied to the front-end's peers?",
    Change.GARBLED: "what listens there does not speak our language, or has other keys",
    Change.DOWN: "it hung up before it answered",
}

log = logging.getLogger(__name__)


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
        self._local = local
        self._headless = headless
        self._handshake = EngineHandshake(local=local, headless=headless)
        self._socket: Socket | None = None
        self._monitor: Monitor | None = None
        self._init: Init | None = None
        self._stopped = False
        self._is_up = False
        self._dropped = False
        self._rejected = False
        self._obstacle = ""

    def greet(self, timeout: float | None, clock: Callable[[], float] = time.monotonic) -> Init | None:
        """Say HELLO and wait up to `timeout` seconds (None: for ever) for INIT; None if asked to stop meanwhile.

        Raises:
            StartupError: no INIT in time.
            ProtocolError: what came is not INIT.
        """
        pump = Pump()
        pump.add(self._stop.fileno(), self._was_stopped)
        self._greet_anew(pump)
        began = clock()
        word_at, again_at, pause = began + FIRST_WORD_AFTER, math.inf, FIRST_PAUSE
        while self._init is None and not self._stopped:
            waited = clock() - began
            if timeout is not None and waited >= timeout:
                raise self._unanswered(timeout)
            if clock() >= word_at:
                word_at = clock() + NEXT_WORD_AFTER
                log.warning("no answer from a front-end at %s for %d s%s", self._address, waited, self._because())
            until = min(word_at, again_at, math.inf if timeout is None else began + timeout)
            pump.poll(max(0, int((until - clock()) * 1000)) + 1)
            if self._rejected and again_at == math.inf:
                again_at, pause = clock() + pause, min(2 * pause, LONGEST_PAUSE)
            if self._dropped or clock() >= again_at:
                again_at = math.inf
                self._greet_anew(pump)
        return self._init

    def ready(self, config_hash: str | None = None) -> None:
        """Say READY: the last message of the handshake; lockstep ranks say what must be the same for all of them."""
        if self._socket is not None:
            send_nowait(self._socket, [self._handshake.ready(config_hash)])

    def close(self, *, lost: bool = False) -> None:
        """Close; `lost`: there is nobody who could hear last words."""
        if self._socket is not None:
            close(self._socket, 0 if lost else None)
            self._socket = None
        if self._monitor is not None:
            self._monitor.close()
            self._monitor = None

    def _greet_anew(self, pump: Pump) -> None:
        if self._socket is not None and self._monitor is not None:
            pump.remove(self._socket)
            pump.remove(self._monitor.socket)
            self.close(lost=True)
        self._is_up = self._dropped = self._rejected = False
        self._handshake = EngineHandshake(local=self._local, headless=self._headless)
        socket = self._socket = connect_dealer(
            self._address, identity_of(self._rank), dial=self._dial, prepare=self._watch
        )
        if self._monitor is not None:
            pump.add(self._monitor.socket, self._look)
        pump.add(socket, self._read)
        send_nowait(socket, [self._handshake.hello()])

    def _watch(self, socket: Socket) -> None:
        self._monitor = Monitor.of(socket)

    def _was_stopped(self) -> None:
        self._stopped = True

    def _read(self) -> None:
        if self._socket is not None and (frames := receive_nowait(self._socket)) is not None:
            if len(frames) != 1:
                raise RemoteProtocolError(f"INIT of {len(frames)} frames; it has one")
            self._init = self._handshake.receive(bytes(frames[0]))

    def _look(self) -> None:
        news = None if self._monitor is None else self._monitor.read()
        if news is None:
            return
        if news[0] is Change.UP:
            self._is_up = True
        elif news[0] is not Change.DOWN:
            self._obstacle = _OBSTACLES.get(news[0], self._obstacle)
            self._rejected = True
        elif self._is_up:
            self._obstacle = _OBSTACLES[Change.DOWN]
            self._dropped = True

    def _because(self) -> str:
        return f": {self._obstacle}" if self._obstacle else ""

    def _unanswered(self, timeout: float) -> StartupError:
        return StartupError(
            f"engine {self._rank} said HELLO to {self._address} and got no INIT in {timeout:g} s"
            f"{self._because() or '; is a front-end listening there, and is this one of its ranks?'} "
            "(setting: handshake_timeout; muro serve: --startup-timeout)",
            rank=self._rank,
            phase="handshake",
        )
