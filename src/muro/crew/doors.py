"""The doors of one server: sockets at addresses that are known beforehand, which engines dial; see `doors.Shared`.

As everywhere, the engines of the first generation dial one door, and each successor a door of its own. A server that
was started anew opens the doors of all engines that live. An engine is reached once it has dialled a door; no message
tells that to a server that came later, so it is tried out: with the abort of a request that nobody has.
"""

from __future__ import annotations

import contextlib

from muro.clients.doors import Wall, input_role, output_role
from muro.crew.words import Membership
from muro.ids import EngineRank, Generation
from muro.transport import sockets
from muro.transport.endpoint import EndpointDirectory
from muro.transport.sockets import Socket, send_nowait
from muro.wire.codec import RequestEncoder
from muro.wire.frames import identity_of
from muro.wire.releases import NEWEST

_NOTHING = RequestEncoder(NEWEST).abort(["-"])


class ServerDoors:
    """Fulfils `clients.parts.Entry` and `clients.parts.Successors`. In the thread of the server's loop.

    Args:
        membership: which server's doors these are.
        max_bytes: of a message of an engine; over that the connection ends.
        lockstep: whether the engines are one group, which is followed as a whole, by one door.
    """

    def __init__(self, membership: Membership, max_bytes: int, *, lockstep: bool = False) -> None:
        self._client = membership.index
        self._wall = Wall(EndpointDirectory.attach(membership.directory))
        self._max_bytes = max_bytes
        self._lockstep = lockstep
        self._further: dict[tuple[EngineRank, Generation], Socket] = {}
        """Of successors that were not adopted yet."""

    def open(self) -> ServerDoors:
        """Bind those for the first generation, and for outputs. Raises ConfigError."""
        with contextlib.ExitStack() as undo:
            self._inputs = self._wall.router(input_role(self._client))
            undo.callback(sockets.close, self._inputs, 0)
            self._outputs = self._wall.pull(output_role(self._client), self._max_bytes)
            undo.pop_all()
        return self

    @property
    def inputs(self) -> Socket:
        """What the first generation dials."""
        return self._inputs

    @property
    def outputs(self) -> Socket:
        """Where all of them send."""
        return self._outputs

    def expect(self, rank: EngineRank, generation: Generation) -> None:
        """A successor is about to dial; those before it that never served will not. Raises ConfigError."""
        for known in [key for key in self._further if key[0] == rank and key[1] != generation]:
            sockets.close(self._further.pop(known), 0)
        if generation and (rank, generation) not in self._further:
            self._further[rank, generation] = self._door(rank, generation)

    def _door(self, rank: EngineRank, generation: Generation) -> Socket:
        if not self._lockstep:
            return self._wall.router(input_role(self._client, rank, generation))
        known = [door for key, door in self._further.items() if key[1] == generation]
        return known[0] if known else self._wall.router(input_role(self._client, EngineRank(0), generation))

    def reached(self, rank: EngineRank, generation: Generation) -> bool:
        """Whether an engine that was not adopted yet can be sent to."""
        door = self._further.get((rank, generation), self._inputs if generation == 0 else None)
        return door is not None and send_nowait(door, [identity_of(rank), *_NOTHING])

    def adopt(self, rank: EngineRank, generation: Generation) -> Socket | None:
        return self._further.pop((rank, generation), None)

    def close(self) -> None:
        """Close what was not adopted; may be called twice."""
        while self._further:
            sockets.close(self._further.popitem()[1], 0)
        sockets.close(self._inputs, 0)
        sockets.close(self._outputs, 0)
