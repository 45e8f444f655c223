"""What a link is put together from, as the link sees it: where doors are, and who watches the engines' processes.

In the process that starts the engines these are `doors.Doors`, `replacing.Replacer` and `launch.supervisor.Supervisor`;
in another one that has the same engines, their stand-ins (see `crew`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from muro.errors import EngineDeadError
from muro.ids import EngineRank, Generation
from muro.launch.events import Event
from muro.launch.rank import RankStatus
from muro.transport.sockets import Socket


class Entry(Protocol):
    """The sockets that the first engines dial."""

    @property
    def inputs(self) -> Socket: ...

    @property
    def outputs(self) -> Socket: ...

    def close(self) -> None: ...


class Successors(Protocol):
    """Where the input sockets of successors are."""

    def adopt(self, rank: EngineRank, generation: Generation) -> Socket | None:
        """The input socket of a successor that is ready; the caller's from now on."""
        ...

    def close(self) -> None:
        """Close what was not adopted; may be called twice."""
        ...


class Start(Protocol):
    """The start of an engine that is under way."""

    @property
    def generation(self) -> Generation: ...

    def cancel(self) -> None:
        """Give it up; does not wait."""
        ...


class Watcher(Protocol):
    """Who knows how the engines' processes are; see `launch.supervisor.Supervisor`."""

    def open(self) -> object: ...

    def subscribe(self, listener: Callable[[Event], None]) -> Callable[[], None]: ...

    def look(self) -> None: ...

    def wait_end(self, rank: EngineRank, timeout: float) -> None: ...

    def notice(self) -> None: ...

    def status(self, rank: EngineRank) -> RankStatus | None: ...

    def lost(self, rank: EngineRank, error: EngineDeadError) -> None: ...

    def grow(self, rank: EngineRank) -> Start: ...

    def let_go(self, rank: EngineRank, timeout: float) -> None: ...

    def stop(self, timeout: float) -> None: ...
