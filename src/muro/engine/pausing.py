"""Pause and resume, for any engine: what the host does about requests meanwhile. Pure.

Three ways to pause (protocol section 13): `abort` ends running requests with ABORT, `wait` lets them finish, `keep`
freezes them where they are. New requests are held back, in order, without the engine seeing them, until somebody
resumes; the answer to the call comes once no request runs, or is frozen. `pause_generation` (0.33) is the same, but
refuses new requests instead of holding them back, unless running ones are kept.

An engine that sleeps (`sleeping.py`) is paused, too; without its memory it cannot be resumed, only woken.

An engine that declares these operations itself is left alone. Who has what to say to whom is the host's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from muro.engine.events import Add, Call
from muro.engine.interface import operation
from muro.engine.operations import Operation
from muro.errors import CallFailedError

Mode = Literal["abort", "wait", "keep"]


class PauseWanted(msgspec.Struct, frozen=True):
    """What a pausing operation returns: its caller is answered when the engine is paused."""

    clear_cache: bool
    then: Callable[[], None] | None = None
    """What else to do before the answer."""


class Pause:
    """Whether the engine is paused, what is held back, who waits for it. Belongs to the host's thread."""

    def __init__(self) -> None:
        self.mode: Mode | None = None
        self.refuses = False
        """Whether new requests are refused instead of held back."""
        self.held: dict[str, Add] = {}
        """Requests that the engine does not know yet, by internal id."""
        self.waiting: list[tuple[Call, PauseWanted]] = []
        """Callers to be answered when the engine is paused."""
        self.level: int | None = None
        """The level at which the engine sleeps."""
        self.unsettled = False
        """Whether the host has something to do about it."""

    @property
    def frozen(self) -> bool:
        """Whether running requests stand still."""
        return self.mode == "keep" or self.lacks_memory

    @property
    def lacks_memory(self) -> bool:
        """Whether the engine has given memory away that a step needs."""
        return bool(self.level)

    @operation
    def pause_scheduler(self, mode: Mode = "abort", clear_cache: bool = True) -> PauseWanted:
        return self.begin(mode, PauseWanted(clear_cache))

    @operation
    def pause_generation(self, mode: Mode = "abort", clear_cache: bool = True) -> PauseWanted:
        return self.begin(mode, PauseWanted(clear_cache), refuses=mode != "keep")

    @operation
    def resume_scheduler(self) -> None:
        if self.lacks_memory:
            raise CallFailedError(f"the engine sleeps at level {self.level}, without its memory; call wake_up first")
        self.end()

    @operation
    def is_scheduler_paused(self) -> bool:
        return self.mode is not None

    def begin(self, mode: Mode, wanted: PauseWanted, *, refuses: bool = False) -> PauseWanted:
        """From now on no request is let in."""
        self.mode, self.refuses, self.unsettled = mode, refuses, True
        return wanted

    def end(self) -> None:
        """Let everything go on."""
        self.unsettled = self.mode is not None
        self.mode, self.refuses, self.level = None, False, None


def clear_caches(operations: Mapping[str, Operation], *, running: bool) -> None:
    """Let the engine forget what it keeps for later requests; with `running` also what it has computed for frozen ones.

    Raises CallFailedError if it could not, and what the operations raise.
    """
    for name, args in (("reset_prefix_cache", [running, False]), ("reset_mm_cache", []), ("reset_encoder_cache", [])):
        if operations[name].run(list(args)) is False:
            raise CallFailedError(f"the engine is paused, but {name} could not be done")
