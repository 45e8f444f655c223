"""All choices of one request as one stream of pieces, for one reader.

Whatever has come for a choice when the reader asks becomes one piece: a slow reader gets fewer, longer pieces, and
nothing piles up but tokens. Leaving the stream, in whatever way, aborts every choice that has not ended: `aclose` at
once, losing it at the latest when it is collected.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from muro.clients.interface import AsyncOutputStream
from muro.llm.outputs import Piece
from muro.llm.pipeline import Choice
from muro.observe.metrics import ChoiceClock


class Usage:
    """Tokens of a request; the prompts once each, all choices together."""

    __slots__ = ("cached_tokens", "completion_tokens", "prompt_tokens")

    def __init__(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int | None = None) -> None:
        self.prompt_tokens = prompt_tokens
        self.completion_tokens = completion_tokens
        self.cached_tokens = cached_tokens
        """Tokens of the prompts that need not be computed; None if no engine has said anything of it."""


class Line:
    """One choice with the stream that feeds it."""

    __slots__ = ("_clock", "_now", "_num_prompt_tokens", "_stream", "choice")

    def __init__(
        self,
        choice: Choice,
        stream: AsyncOutputStream,
        num_prompt_tokens: int,
        clock: ChoiceClock,
        now: Callable[[], float],
    ) -> None:
        self.choice = choice
        self._stream = stream
        self._num_prompt_tokens = num_prompt_tokens
        self._clock = clock
        self._now = now

    async def next(self) -> Piece:
        """Wait for the next piece; the last one has a finish reason. Raises what the stream raises."""
        stream, choice = self._stream, self.choice
        output = await stream.__anext__()
        piece = choice.take([output, *stream.pending()])
        now = self._now()
        if piece.token_ids:
            self._clock.tokens(len(piece.token_ids), now)
        if piece.finish_reason is not None:
            self._clock.finished(piece.finish_reason, self._num_prompt_tokens, choice.queued_seconds, now)
            if choice.stopped_early:
                await stream.aclose()
        return piece

    async def aclose(self) -> None:
        """Abort it if it has not ended."""
        await self._stream.aclose()


class Generation:
    """The stream of pieces of one request: `async for piece in generation`. Close it in the end.

    Args:
        request_id: as the caller knows it.
        prompts: token ids of each prompt.
        lines: `n` for each prompt, in order.
    """

    def __init__(self, request_id: str, prompts: Sequence[list[int]], lines: Sequence[Line]) -> None:
        self.request_id = request_id
        self.prompts = prompts
        self._lines = lines
        self._only = lines[0] if len(lines) == 1 else None
        self._open = len(lines)
        self._crowd: _Crowd | None = None

    @property
    def choices(self) -> list[Choice]:
        """All choices, with what they have delivered so far."""
        return [line.choice for line in self._lines]

    def usage(self) -> Usage:
        """Tokens so far."""
        completion = sum(len(line.choice.token_ids) for line in self._lines)
        firsts = self._lines[:: len(self._lines) // len(self.prompts)]
        cached = [line.choice.cached_tokens for line in firsts if line.choice.cached_tokens is not None]
        return Usage(sum(map(len, self.prompts)), completion, sum(cached) if cached else None)

    def abort(self, abort: Callable[[list[str]], None]) -> None:
        """Have the engine's side ended; every open choice gets a last piece that says "abort"."""
        abort([line.choice.request_id for line in self._lines if line.choice.finish_reason is None])

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> Piece:
        if not self._open:
            raise StopAsyncIteration
        if self._only is not None:
            piece = await self._only.next()
        else:
            if self._crowd is None:
                self._crowd = _Crowd(self._lines)
            piece = await self._crowd.next()
        if piece.finish_reason is not None:
            self._open -= 1
        return piece

    async def aclose(self) -> None:
        """Abort what has not ended. May be called twice."""
        self._open = 0
        if self._crowd is not None:
            self._crowd.close()
        for line in self._lines:
            await line.aclose()


class _Crowd:
    """Several lines read at once: a task for each, and one queue to the reader. The first error ends it."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._pieces: deque[Piece] = deque()
        self._error: BaseException | None = None
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Future[None] | None = None
        self._tasks = [self._loop.create_task(self._read(line)) for line in lines]

    async def next(self) -> Piece:
        while not self._pieces:
            if self._error is not None:
                raise self._error
            self._waiting = self._loop.create_future()
            await self._waiting
        return self._pieces.popleft()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _read(self, line: Line) -> None:
        try:
            while True:
                piece = await line.next()
                self._pieces.append(piece)
                self._wake()
                if piece.finish_reason is not None:
                    return
        except Exception as error:
            self._error = error
            self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
