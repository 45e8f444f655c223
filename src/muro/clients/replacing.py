"""Starts successors of engines that have died, behind doors of their own: one for each, or for a lockstep group.

A successor gets a handshake socket and an input socket that nobody has used before, so nothing of its predecessor can
reach it or be taken for its words; where outputs arrive stays the same. Invariants:

- A start happens in a thread of its own, which owns both sockets until the successor is ready. Then the handshake
  socket is closed, and the input socket waits here for the owner of the link, who `adopt`s it.
- After `close` nothing is kept here: a start that ends later closes its sockets itself.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence

from muro.clients.doors import Doors
from muro.config import ConnectConfig
from muro.errors import StartupError
from muro.ids import EngineRank, Generation
from muro.launch.attempt import OnProgress, Replacement, Replacements
from muro.launch.data_parallel import DataParallel
from muro.launch.handle import Spawner
from muro.launch.plan import plan_replacement
from muro.launch.shutdown import stop
from muro.launch.startup import start
from muro.transport import sockets
from muro.transport.sockets import Socket
from muro.transport.wakeup import Wakeup
from muro.version import VERSION
from muro.wire.handshake import Features


class Replacer:
    """See `launch.attempt.Replace`.

    Args:
        config: the settings of the client.
        doors: those of the first generation; open.
        parallel: what the engines share.
        spawner: starts the processes; closed with this.
    """

    def __init__(self, config: ConnectConfig, doors: Doors, parallel: DataParallel, spawner: Spawner) -> None:
        self._spawner = spawner
        self._config = config
        self._doors = doors
        self._wall = doors.wall
        self._parallel = parallel
        self._keys = doors.engine_keys
        self._lock = threading.RLock()
        self._waiting: dict[tuple[EngineRank, Generation], Socket] = {}
        self._closed = False

    def __call__(
        self, ranks: Sequence[EngineRank], generation: Generation, *, on_progress: OnProgress, cancel: Wakeup
    ) -> Replacements:
        """Start the next generation of ranks, all behind the same doors. Raises StartupError, ConfigError; nothing is
        left then."""
        rank = ranks[0]
        with contextlib.ExitStack() as undo:
            # Whoever is connected needs the files no more; without this each death would leave two behind.
            undo.callback(self._wall.forget, f"hello-{rank}-{generation}", f"input-{rank}-{generation}")
            handshake = self._wall.router(f"hello-{rank}-{generation}")
            undo.callback(sockets.close, handshake, 0)
            with contextlib.ExitStack() as failed:
                inputs = self._wall.router(f"input-{rank}-{generation}")
                failed.callback(sockets.close, inputs, 0)
                plan = plan_replacement(
                    self._config,
                    ranks,
                    generation,
                    self._parallel.addresses(self._doors.addresses_with(inputs, rank, generation)),
                    sockets.bound_address(handshake),
                    Features(VERSION),
                    self._keys,
                    self._parallel.group(generation),
                )
                started = start(plan, handshake, inputs, spawner=self._spawner, on_progress=on_progress, cancel=cancel)
                if not self._offer(ranks, generation, inputs):
                    stop(started.children.values(), 0.0, force=True)
                    raise StartupError("the client was closed", rank=rank, phase="cancelled")
                failed.pop_all()
        return {rank: Replacement(started.children[rank], started.responses[rank]) for rank in ranks}

    def adopt(self, rank: EngineRank, generation: Generation) -> Socket | None:
        """The input socket of a successor that is ready; the caller's from now on."""
        with self._lock:
            return self._waiting.pop((rank, generation), None)

    def close(self) -> None:
        """Close what was not adopted, and the spawner; may be called twice."""
        with self._lock:
            self._closed = True
            while self._waiting:
                sockets.close(self._waiting.popitem()[1], 0)
        self._spawner.close()

    def _offer(self, ranks: Sequence[EngineRank], generation: Generation, inputs: Socket) -> bool:
        with self._lock:
            if not self._closed:
                self._waiting |= {(rank, generation): inputs for rank in ranks}
            return not self._closed
