"""Profile the loop: which functions of the engine its time goes to. For any engine.

Operations run on the loop thread, and Python's own profiler watches the thread that starts it: scheduling, sampling and
the routing of outputs are seen; native code, such as a forward pass, as one call each. Files are read with
`python -m pstats FILE`. The engine is slower meanwhile.
"""

from __future__ import annotations

import cProfile
import logging
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from muro.config import home
from muro.engine.interface import operation
from muro.errors import CallFailedError, InvalidRequestError, UnsupportedOptionError

log = logging.getLogger(__name__)

_PREFIX = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
"""A prefix comes from the wire, and must not lead to other directories."""


def _directory() -> Path:
    return home() / "profiles"


class Profiling:
    """At most one profile at a time.

    Args:
        directory: where the files go.
    """

    def __init__(self, directory: Callable[[], Path] = _directory) -> None:
        self._directory = directory
        self._profile: cProfile.Profile | None = None
        self._prefix = ""

    @operation
    def profile(
        self,
        is_start: bool = True,
        prefix: str | None = None,
        delay_iterations: int | None = None,
        max_iterations: int | None = None,
        profiler_kwargs: dict[str, Any] | None = None,
    ) -> None:
        """Start, or stop and write a file; the log tells its path."""
        if not is_start:
            return self._stop()
        if delay_iterations or max_iterations or profiler_kwargs:
            raise UnsupportedOptionError(
                "profiles here have no delay_iterations, max_iterations or profiler_kwargs; start and stop by calls",
                param="delay_iterations" if delay_iterations else "max_iterations" if max_iterations else None,
            )
        if prefix and not _PREFIX.fullmatch(prefix):
            raise InvalidRequestError(
                "the prefix of a profile is a file name's beginning: up to 64 letters, digits and ._-", param="prefix"
            )
        return self._start(prefix or "loop")

    def _start(self, prefix: str) -> None:
        if self._profile is not None:
            raise CallFailedError("a profile is running already; stop it first")
        profile = cProfile.Profile()
        try:
            if sys.getprofile() is not None:  # before Python 3.12 it would be replaced without a word
                raise ValueError("another profiler watches this thread")
            profile.enable()
        except ValueError as error:
            raise CallFailedError(f"no profile can be made: {error}") from None
        self._profile, self._prefix = profile, prefix
        log.info("a profile of the loop has begun")

    def _stop(self) -> None:
        profile, self._profile = self._profile, None
        if profile is None:
            raise CallFailedError("no profile is running")
        profile.disable()
        directory = self._directory()
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = _free(directory, f"{self._prefix}-{os.getpid()}")
            profile.dump_stats(path)
        except OSError as error:
            raise CallFailedError(f"the profile cannot be written: {error}") from error
        # A warning, so that it is seen at the level that servers have: it is the only answer.
        log.warning("profile of the loop: %s (python -m pstats reads it)", path)


def _free(directory: Path, stem: str) -> Path:
    """The first path of this name that is not in use."""
    number = 1
    while (path := directory / f"{stem}-{number}.prof").exists():
        number += 1
    return path
