"""What supervision needs of an engine's process, wherever that runs, and of whoever starts one. Pure: only Protocols.

`launch.spawn` starts children of this process; other rooms may start them on other machines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from muro.ids import EngineRank
from muro.launch.death import Death
from muro.wire.failure import FailureRecord
from muro.wire.progress import Progress

if TYPE_CHECKING:
    from muro.launch.plan import LaunchPlan


class ChildHandle(Protocol):
    """An engine's process, seen from here. Any thread may use it; nothing but `wait` and `close` takes time."""

    @property
    def name(self) -> str:
        """In people's words, for instance "engine 0 (echo)"."""
        ...

    @property
    def pid(self) -> int:
        """Process id on the machine where it runs; 0 if that is not known (yet)."""
        ...

    @property
    def sentinel(self) -> int:
        """Descriptor that turns readable when the process has ended; -1 after `close`."""
        ...

    def poll(self) -> int | None:
        """Exit code, or minus the number of the signal that ended it; None while it lives."""
        ...

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it has ended, after waiting at most `timeout` seconds for it (None: as long as it takes)."""
        ...

    def terminate(self) -> None:
        """Ask it to stop."""
        ...

    def kill(self) -> None:
        """End it at once."""
        ...

    def is_stopped(self) -> bool:
        """Whether the operating system says that it is stopped by a signal."""
        ...

    def failure(self) -> FailureRecord | None:
        """The failure that it has reported, if any; may come before it ends."""
        ...

    def dump_stack(self) -> str:
        """What it says of where its threads stand; takes a moment."""
        ...

    def progress(self) -> Progress:
        """What its progress page shows, in times of this machine's clock."""
        ...

    def death(self) -> Death:
        """How it ended, as far as known; ask before `close`."""
        ...

    def close(self) -> None:
        """End it and all that it has started, release everything. May be called again, bounded, and never raises."""
        ...


class Spawner(Protocol):
    """Starts engines."""

    def start(self, plan: LaunchPlan, rank: EngineRank) -> ChildHandle:
        """Begin to start one of the plan's local engines; does not wait for it. Raises ConfigError, StartupError."""
        ...

    def close(self) -> None:
        """Release what starting needed, after the last handle was closed; may be called again."""
        ...
