"""What all routes share: the model that is served, its names, the limits, and whether the door is open."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence

from muro.errors import NotFoundError, OverloadedError
from muro.llm.aio import AsyncLLM

_BODY_BYTES_PER_TOKEN = 64
_LEAST_BODY_BYTES, _MOST_BODY_BYTES = 4 << 20, 64 << 20

RETRY_AFTER_SECONDS = 2.0
"""Hint for callers who come while this server shuts down: another one will have taken over by then."""


class Service:
    """One served model.

    Args:
        llm: the model.
        names: what callers may call it, the best name first.
        max_body_bytes: limit of a request's body; None: as `body_limit`.
    """

    def __init__(self, llm: AsyncLLM, names: Sequence[str], max_body_bytes: int | None = None) -> None:
        self.llm = llm
        self.names = list(names)
        self.max_body_bytes = max_body_bytes or body_limit(llm.words.max_model_len)
        self.created = int(time.time())
        self._closing = False
        self._busy = 0
        self._changed = asyncio.Event()

    @property
    def busy(self) -> int:
        """Generating requests that are not answered completely."""
        return self._busy

    def close_door(self) -> None:
        """From now on refuse new requests; those under way go on."""
        self._closing = True

    def check_open(self) -> None:
        """Raises OverloadedError while shutting down, EngineDeadError after a death. Asks the engine nothing."""
        if self._closing:
            raise OverloadedError("the server is shutting down", retry_after=RETRY_AFTER_SECONDS)
        self.llm.check_health()

    def check_model(self, name: str) -> str:
        """The name to answer with. Raises NotFoundError."""
        if name and name not in self.names:
            raise NotFoundError(f"there is no model {name[:200]!r} here; this server has {self.names[0]!r}")
        return name or self.names[0]

    def created_now(self) -> int:
        """The time of an answer, in Unix seconds."""
        return int(time.time())

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Count a request while it is worked on."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            self._changed.set()

    async def wait_idle(self) -> None:
        """Return when no request is worked on."""
        while self._busy:
            self._changed.clear()
            await self._changed.wait()


def body_limit(max_model_len: int) -> int:
    """Bytes of a request's body: room for several prompts that fill the context, and not much more.

    Reading JSON holds up every stream, for some 25 ms per million token ids.
    """
    return min(max(_LEAST_BODY_BYTES, max_model_len * _BODY_BYTES_PER_TOKEN), _MOST_BODY_BYTES)
