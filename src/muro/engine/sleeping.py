"""Sleep and wake up, for any engine: a pause during which it gives memory back. Pure.

Level 0 pauses only. At level 1 the engine gives the memory of computed tokens back, at level 2 the weights too; frozen
requests are computed again later. `wake_up` gets memory back by its tags, "weights" and "kv_cache", and lets everything
go on once nothing is missing; the tag "scheduling" ends a sleep at level 0. What comes meanwhile is held back as in
every pause (`pausing.py`).
"""

from __future__ import annotations

from typing import Literal

from muro.engine.interface import EngineCore, Memory, operation
from muro.engine.pausing import Mode, Pause, PauseWanted
from muro.errors import CallFailedError, InvalidRequestError

Level = Literal[0, 1, 2]

RELEASED: dict[int, tuple[Memory, ...]] = {0: (), 1: ("kv_cache",), 2: ("kv_cache", "weights")}
"""What an engine is without, by level."""
SCHEDULING = "scheduling"
_ORDER: tuple[Memory, ...] = ("weights", "kv_cache")
"""In which memory comes back: there must be a model before there can be a place for what it computes."""


class Sleep:
    """What an engine has given back. Belongs to the host's thread."""

    def __init__(self, engine: EngineCore, pause: Pause) -> None:
        self._engine = engine
        self._releasable = engine.info().releasable
        self._pause = pause
        self._gone: set[Memory] = set()

    @operation
    def sleep(self, level: Level = 1, mode: Mode = "abort") -> PauseWanted:
        """Raises CallFailedError, before anything is paused, if the engine cannot do without that memory."""
        if stuck := [kind for kind in RELEASED[level] if kind not in self._releasable]:
            raise CallFailedError(
                f"this engine cannot give {' and '.join(stuck)} back, as sleep level {level} does; level 0 pauses it"
            )
        return self._pause.begin(mode, PauseWanted(level > 0, lambda: self._fall_asleep(level)))

    @operation
    def wake_up(self, tags: list[str] | None = None) -> bool:
        """Get back what the tags say, or everything; whether the engine is awake now."""
        if unknown := sorted(set(tags or ()) - {*_ORDER, SCHEDULING}):
            raise InvalidRequestError(f"unknown tag {unknown[0][:64]!r}; tags are weights, kv_cache, scheduling")
        if not self._is_drowsy():
            return True
        if tags and set(tags) == {SCHEDULING} and self._gone:
            raise CallFailedError(f"nothing can be scheduled without {' and '.join(sorted(self._gone))}")
        for kind in _ORDER:
            if kind in self._gone and (not tags or kind in tags):
                self._engine.restore_memory(kind)
                self._gone.discard(kind)
        if self._gone or (self._pause.level == 0 and tags and SCHEDULING not in tags):
            return False
        self._pause.end()
        return True

    @operation
    def release_kv_cache_memory(self) -> PauseWanted:
        """Sleep at level 1 in a pause that has been made already. Raises CallFailedError if there is none."""
        if "kv_cache" not in self._releasable:
            raise CallFailedError("this engine cannot give kv_cache back")
        if self._pause.mode is None:
            raise CallFailedError("the engine is not paused: pause it first, or let it sleep at level 1")
        wanted = PauseWanted(True, lambda: self._fall_asleep(1))
        return self._pause.begin(self._pause.mode, wanted, refuses=self._pause.refuses)

    @operation
    def is_sleeping(self) -> bool:
        return self._pause.level is not None

    def _is_drowsy(self) -> bool:
        """Whether it sleeps, or is about to."""
        about_to = any(wanted.then is not None for _, wanted in self._pause.waiting)
        return about_to or self._pause.level is not None

    def _fall_asleep(self, level: int) -> None:
        # Before anything can go wrong: then it can still be woken.
        self._pause.level = max(level, self._pause.level or 0)
        for kind in RELEASED[level]:
            if kind not in self._gone:
                self._engine.release_memory(kind)
                self._gone.add(kind)
