"""What all routes share: the model that is served, its names, the bounds, who waits, and whether the door is open."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence

from muro.crew.interface import Alone, Crew
from muro.errors import EngineDeadError, MuroError, NotFoundError, OverloadedError
from muro.llm.aio import AsyncLLM
from muro.server.admission import Admission
from muro.server.connection import Connections
from muro.server.errors import raw, reply_to
from muro.server.exchange import BodyBounds, request_id_of
from muro.server.grammars import GrammarCheck
from muro.server.limits import HttpLimits, connections_for, file_limit

_BODY_BYTES_PER_TOKEN = 64
_LEAST_BODY_BYTES, _MOST_BODY_BYTES = 4 << 20, 64 << 20
_LEAST_BODY_VALUES = 1 << 19
_CHAT_BODY_VALUES = 1 << 18
_LARGE_BODY = 256 << 10

RETRY_AFTER_SECONDS = 2.0
"""Hint for callers who come while this server shuts down: another one will have taken over by then."""


class Service:
    """One served model.

    Args:
        llm: the model.
        names: what callers may call it, the best name first.
        limits: bounds of the HTTP side.
        waits: whether requests are taken while a dead engine is started again.
        crew: the servers with the same engines; None: there is no other.
        grammars: checks those for engines of another make; None: nobody does.
    """

    def __init__(
        self,
        llm: AsyncLLM,
        names: Sequence[str],
        limits: HttpLimits | None = None,
        *,
        waits: bool = False,
        crew: Crew | None = None,
        grammars: GrammarCheck | None = None,
    ) -> None:
        self.llm = llm
        self.grammars = grammars or GrammarCheck(None)
        self.crew: Crew = crew or Alone()
        llm.client.max_unread_tokens = (limits or HttpLimits()).max_unread_tokens
        self.names = list(names)
        self.limits = limits = limits or HttpLimits()
        self.admission = Admission(limits)
        self.connections = Connections(limits, connections_for(limits.max_connections, file_limit()))
        self.connections.refusal = self._refusal
        self.outcomes: Counter[str] = Counter({"done": 0, "left": 0})
        """How generating requests ended: answered, their caller gone, or by the code of their error."""
        length = llm.words.max_model_len
        size = limits.max_body_bytes or body_limit(length)
        self.body_bounds = BodyBounds(size, max(_LEAST_BODY_VALUES, 2 * length), limits.body_timeout)
        """Prompts as token ids hold as many values as tokens."""
        self.chat_body_bounds = BodyBounds(size, _CHAT_BODY_VALUES, limits.body_timeout)
        self._one_large = asyncio.Semaphore(max(1, len(os.sched_getaffinity(0)) // 2))
        self.created = int(time.time())
        self._waits = waits
        self._closing = False
        self._busy = 0
        self._changed = asyncio.Event()

    @property
    def closing(self) -> bool:
        """Whether no request is taken any more."""
        return self._closing

    def obstacle(self) -> str | None:
        """Why no request could be worked on now; None if one could."""
        try:
            self._check_closing()
            self.llm.check_health()
        except MuroError as error:
            return reply_to(error).body.error.message
        return None

    @property
    def busy(self) -> int:
        """Generating requests that are not answered completely."""
        return self._busy

    def close_door(self) -> None:
        """From now on refuse new requests; those under way go on."""
        self._closing = True

    def check_open(self) -> None:
        """Raises OverloadedError while shutting down, EngineDeadError after a death. Asks the engine nothing.

        While a dead engine is started again requests are let in to wait, if they do.
        """
        self._check_closing()
        try:
            self.llm.check_health()
        except EngineDeadError as error:
            if not (error.restarting and self._waits):
                raise

    def reading(self, size: int) -> contextlib.AbstractAsyncContextManager[object]:
        """To be held while a body of `size` bytes is made into token ids.

        Few large ones at once: each takes a core for a while, and the engine and all others need one too.
        """
        return self._one_large if size > _LARGE_BODY else contextlib.nullcontext()

    def check_model(self, name: str) -> str:
        """The name to answer with. Raises NotFoundError."""
        if name and name not in self.names:
            raise NotFoundError(f"there is no model {name[:200]!r} here; this server has {self.names[0]!r}")
        return name or self.names[0]

    def created_now(self) -> int:
        """The time of an answer, in Unix seconds."""
        return int(time.time())

    def _check_closing(self) -> None:
        if self._closing:
            raise OverloadedError("the server is shutting down", retry_after=RETRY_AFTER_SECONDS)

    def _refusal(self, request_id: bytes) -> bytes | None:
        """The whole answer to one more request, if there is no room for it; see `connection`."""
        if self._closing or not self.admission.full:
            return None
        try:
            self.admission.check()
        except OverloadedError as error:
            self.outcomes[error.code] += 1
            return raw(reply_to(error), request_id_of(request_id))
        return None

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

    Reading JSON holds up every stream: some 3 ms per million bytes of text, and 100 ms per million token ids.
    """
    return min(max(_LEAST_BODY_BYTES, max_model_len * _BODY_BYTES_PER_TOKEN), _MOST_BODY_BYTES)
