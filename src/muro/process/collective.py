"""The built-in `Collective`: lockstep ranks agree over ZeroMQ. `parallel.agreement` counts, this moves votes.

Rank 0 listens and passes each vote on to all others. A rank that votes calls all that have not voted: so one that
sleeps learns that others step, whether a coordinator has told it or not.

Invariants:
- The thread makes and closes its own socket. What it shares with the loop's thread is under one lock.
- A vote that gets no answer is said again every `REPEAT` seconds, with a HELLO that asks for what was missed; votes
  that come again are no news. So a connection that was lost for a while costs time, and nothing else.
- A rank that ends says so. The others do not wait for it any more: who is going to stop as well finishes alone what it
  has, anybody else ends with an error.
- Messages of another group at the same address, an earlier one say, are dropped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from muro.config import LockstepConfig
from muro.errors import EngineDeadError, InternalError, RemoteProtocolError
from muro.ids import EngineRank
from muro.parallel.agreement import Agreement
from muro.transport.endpoint import check_clear
from muro.transport.pump import Pump
from muro.transport.sockets import (
    Frame,
    Socket,
    bind_router,
    close,
    connect_dealer,
    receive_nowait,
    send_nowait,
)
from muro.transport.wakeup import Wakeup
from muro.wire.frames import identity_of, rank_of
from muro.wire.lockstep import Ballot, decode_ballot, encode_ballot

REPEAT = 1.0
"""Seconds after which an unanswered vote is said again."""
LEAVE_GRACE = 2.0
"""Seconds within which a rank hears that it is to stop, too, when another has left."""
STOP_PATIENCE = 5.0
"""Seconds that a rank that is to stop waits for the others, who may have been killed."""
BIND_PATIENCE = 5.0
"""Seconds that an earlier group's address may still be in use."""
MAX_MESSAGE_BYTES = 1 << 12
LINGER_MS = 500

log = logging.getLogger(__name__)


class RankCollective:
    """One rank's part in the agreement.

    Args:
        config: the group.
        rank: its own.
        on_awaited: called when another rank has voted and this one has not, with the number of the agreement. From the
            collective's thread or the caller's of `any_rank`.
        stop: set when this rank is asked to stop.
        insecure_tcp: whether the address may be reachable for others.
    """

    def __init__(
        self,
        config: LockstepConfig,
        rank: EngineRank,
        *,
        on_awaited: Callable[[int], None],
        stop: Wakeup,
        insecure_tcp: bool = False,
    ) -> None:
        self._config = config
        self._rank = rank
        self._on_awaited = on_awaited
        self._stop = stop
        self._insecure_tcp = insecure_tcp
        self._agreement = Agreement(rank, config.size)
        self._changed = threading.Condition()
        self._outgoing: deque[Ballot] = deque()
        self._wake = Wakeup()
        self._last: Ballot | None = None
        """Our vote in a round that is not decided."""
        self._called = -1
        self._left: set[int] = set()
        self._stopping = False
        self._over = False
        """Whether this rank goes on alone, because it is to stop and others have."""
        self._closing = False
        self._failure: BaseException | None = None
        self._socket: Socket | None = None
        self._thread = threading.Thread(target=self._run, name="muro-collective", daemon=True)
        self.dropped = 0
        """Messages that were none of this group."""

    def open(self) -> None:
        """Begin to listen, or dial. Raises ConfigError."""
        check_clear(self._config.address, self._insecure_tcp)
        if self._rank == 0:
            self._socket = bind_router(
                self._config.address, handover=True, linger_ms=LINGER_MS, max_bytes=MAX_MESSAGE_BYTES,
                patience=BIND_PATIENCE,
            )  # fmt: skip
        else:
            self._socket = connect_dealer(
                self._config.address,
                identity_of(self._rank),
                linger_ms=LINGER_MS,
                max_bytes=MAX_MESSAGE_BYTES,
            )
        self._wake.open()
        self._thread.start()

    def close(self) -> None:
        """Tell the others that this rank ends, and end. Idempotent."""
        if self._thread.ident is None:
            return
        self._closing = True
        self._wake.set()
        self._thread.join(5.0)
        if not self._thread.is_alive():
            self._wake.close()

    def any_rank(self, mine: bool, timeout: float) -> bool:
        """See `Collective`. Raises EngineDeadError that names who is missing."""
        with self._changed:
            if self._over:
                return mine
            number = self._agreement.vote(mine)
            self._last = Ballot(self._config.token, "vote", self._rank, number, mine)
            self._outgoing.append(self._last)
            self._wake.set()
            deadline = time.monotonic() + timeout
            while (outcome := self._agreement.decide()) is None:
                if self._failure is not None:
                    raise InternalError(f"the collective's thread failed: {self._failure}") from self._failure
                deadline = min(deadline, time.monotonic() + self._patience(timeout))
                if (left := deadline - time.monotonic()) > 0:
                    self._changed.wait(left)
                elif self._stopping:
                    self._over, self._last = True, None
                    return mine
                else:
                    raise self._missing(number, timeout)
            self._last = None
        self._call()  # perhaps for the next round already
        return outcome

    def _patience(self, timeout: float) -> float:
        """Seconds from now on that waiting makes sense."""
        if self._stopping:
            return 0.0 if self._left else STOP_PATIENCE
        return LEAVE_GRACE if self._left else timeout

    def _missing(self, number: int, timeout: float) -> EngineDeadError:
        missing, others = self._agreement.missing(), self._config.size - 1
        if gone := [rank for rank in missing if rank in self._left]:  # who left after it had voted is not to blame
            how = f"lockstep {_ranks(gone)} left the group while this one went on"
        elif self._rank != 0 and len(missing) == others:
            how = f"lockstep rank 0, through which the others are heard, gave no sign of life within {timeout:g} s"
        else:
            how = f"lockstep {_ranks(missing)} did not take part in agreement {number} within {timeout:g} s"
        return EngineDeadError(f"{how} (setting: lockstep.timeout)", rank=self._rank)

    # --- The thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        socket = self._socket
        if socket is None:
            return
        try:
            self._serve(socket)
        except BaseException as error:
            log.exception("the collective's thread failed")
            with self._changed:
                self._failure = error
                self._changed.notify_all()
            self._on_awaited(self._agreement.round)
        finally:
            close(socket)

    def _serve(self, socket: Socket) -> None:
        pump = Pump()
        pump.add(socket, lambda: self._read(socket))
        pump.add(self._wake.fileno(), lambda: self._flush(socket))
        pump.add(self._stop.fileno(), lambda: self._note_stop(pump))
        self._say(socket, Ballot(self._config.token, "hello", self._rank))
        while not self._closing:
            if not pump.poll(int(REPEAT * 1000) if self._last is not None else None) and self._last is not None:
                self._repeat(socket)
        self._say(socket, Ballot(self._config.token, "leave", self._rank))

    def _note_stop(self, pump: Pump) -> None:
        pump.remove(self._stop.fileno())
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def _flush(self, socket: Socket) -> None:
        self._wake.clear()
        while self._outgoing:
            self._say(socket, self._outgoing.popleft())

    def _repeat(self, socket: Socket) -> None:
        """Nobody has said anything for a while, and we wait."""
        last = self._last
        if last is not None:
            self._say(socket, last)
            self._say(socket, Ballot(self._config.token, "hello", self._rank))

    def _say(self, socket: Socket, ballot: Ballot, *, but: int | None = None) -> None:
        """To rank 0, or from there to all others `but` one. Who is not connected asks later."""
        frame = encode_ballot(ballot)
        if self._rank != 0:
            send_nowait(socket, [frame])
        elif ballot.kind != "hello":
            for other in range(1, self._config.size):
                if other != but:
                    send_nowait(socket, [identity_of(other), frame])

    def _read(self, socket: Socket) -> None:
        frames = receive_nowait(socket)
        if frames is None:
            return
        try:
            self._hear(socket, frames)
        except RemoteProtocolError as error:
            self.dropped += 1
            log.log(logging.WARNING if self.dropped == 1 else logging.DEBUG, "dropped a message: %s", error)

    def _hear(self, socket: Socket, frames: list[Frame]) -> None:
        ballot = decode_ballot(frames[-1])
        if ballot.token != self._config.token:
            raise RemoteProtocolError("it is of another group of lockstep ranks")
        if self._rank == 0 and (len(frames) != 2 or rank_of(frames[0]) != ballot.rank):
            raise RemoteProtocolError(f"its sender is not rank {ballot.rank}")
        if ballot.kind == "hello":
            self._answer(socket, ballot.rank)
            return
        with self._changed:
            if ballot.kind == "vote":
                news = self._agreement.hear(ballot.rank, ballot.number, ballot.value)
            else:
                news = ballot.rank not in self._left and 0 <= ballot.rank < self._config.size
                self._left.add(ballot.rank)
            self._changed.notify_all()
        if self._rank == 0 and news:
            self._say(socket, ballot, but=ballot.rank)
        elif not news and ballot.kind == "vote":
            self._remind(socket, ballot.number)
        self._call()

    def _remind(self, socket: Socket, number: int) -> None:
        """Somebody repeats a vote: ours may have been lost, though we have heard all others."""
        with self._changed:
            mine = [vote for vote in self._agreement.votes() if vote[:2] == (self._rank, number)]
        for _, _, value in mine if self._rank != 0 else ():
            self._say(socket, Ballot(self._config.token, "vote", self._rank, number, value))

    def _answer(self, socket: Socket, rank: int) -> None:
        """Rank 0 tells one who asks all that it knows."""
        if self._rank != 0 or not 0 < rank < self._config.size:
            raise RemoteProtocolError(f"a hello of rank {rank} is not for rank {self._rank}")
        with self._changed:
            votes = self._agreement.votes()
        for voter, number, value in votes:
            if voter != rank:
                ballot = Ballot(self._config.token, "vote", voter, number, value)
                send_nowait(socket, [identity_of(rank), encode_ballot(ballot)])

    def _call(self) -> None:
        """Tell the loop that it is waited for, once per round."""
        with self._changed:
            number = self._agreement.round
            if not self._agreement.is_awaited or self._called >= number:
                return
            self._called = number
        self._on_awaited(number)


def _ranks(numbers: list[int]) -> str:
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {', '.join(map(str, numbers))}"
