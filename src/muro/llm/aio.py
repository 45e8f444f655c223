"""AsyncLLM: words in, words out, over an asyncio client. Belongs to the event loop in which its client was made."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import msgspec

from muro.clients.connect import OnProgress, connect_async
from muro.clients.interface import AsyncEngineCoreClient, AsyncOutputStream, EngineStatus
from muro.config import ConnectConfig
from muro.errors import UsageError
from muro.ids import EngineRank
from muro.llm import pipeline
from muro.llm.aio_replay import AsyncRequests
from muro.llm.generation import Generation, Line
from muro.llm.logprobs import cumulated, joined
from muro.llm.outputs import CompletionOutput, Piece, RequestOutput
from muro.llm.replay import RESTART_WAIT, DeathPolicy, seeded
from muro.llm.words import Prompt, Words, cache_salt_of, effective_length, load_words, make_choice, split_prompt
from muro.observe.metrics import ChoiceClock, ServingMetrics
from muro.wire.arrays import Tensor
from muro.wire.failure import error_from_wire
from muro.wire.request import EngineCoreRequest, OutputKind, PoolingParams, SamplingParams
from muro.wire.stats import SchedulerStats

if TYPE_CHECKING:
    from muro.clients.aio import AsyncMPClient


class Join(Protocol):
    """Makes a client of engines; see `clients.connect.connect_async`."""

    async def __call__(
        self, config: ConnectConfig | None = None, *, on_progress: OnProgress | None = None
    ) -> AsyncMPClient: ...


class AsyncLLM:
    """A model that answers. Made by `start`, or of finished parts.

    Args:
        client: read with `generate` by nobody else.
        words: tokenizer, chat template, length of the context.
        metrics: where to write down what happens.
        clock: monotonic seconds.
        policy: what becomes of requests when an engine dies and is replaced; None: they fail.
    """

    def __init__(
        self,
        client: AsyncEngineCoreClient,
        words: Words,
        metrics: ServingMetrics | None = None,
        clock: Callable[[], float] = time.monotonic,
        policy: DeathPolicy | None = None,
    ) -> None:
        self.client = client
        self.words = words
        self.metrics = metrics or ServingMetrics()
        self._clock = clock
        self._requests = AsyncRequests(client, policy or DeathPolicy(), self.metrics)
        self._numbers = itertools.count()
        self._live: weakref.WeakSet[Generation] = weakref.WeakSet()
        self._embedding: set[str] = set()

    @classmethod
    async def start(
        cls,
        model: str | None = None,
        *,
        on_progress: OnProgress | None = None,
        connect: ConnectConfig | None = None,
        on_engine_death: Literal["fail", "replay"] = "fail",
        restart_wait: float = RESTART_WAIT,
        join: Join = connect_async,
        **choice: Any,
    ) -> AsyncLLM:
        """Start the engine of a model and return when it serves. Cancelling it takes everything down.

        Args:
            model: a model directory, or the name of a model that `muro pull` has fetched.
            on_progress: told how the start goes; called in another thread.
            connect: how many engines, where; of its `engine` all but engine, model and options holds.
            on_engine_death: what becomes of running requests when their engine dies and is replaced: they fail, or go
                on where they were. With "replay" engines are restarted even if `connect` does not ask for it.
            restart_wait: seconds that requests wait for an engine that is being restarted.
            join: makes the client; by default of engines that it starts.
            choice: further fields of `ModelChoice`, for instance `engine="echo"`.

        Raises:
            ConfigError: a setting is wrong.
            StartupError: the engine did not come up.
        """
        chosen = make_choice(model, choice)
        connect = connect or ConnectConfig()
        policy = DeathPolicy(on_engine_death=on_engine_death, restart_wait=restart_wait)
        connect = msgspec.structs.replace(
            connect, engine=chosen.engine_config(connect.engine), restart=policy.restarts(connect.restart)
        )
        tokenizer, template = load_words(chosen)
        client = await join(connect, on_progress=on_progress)
        try:
            length = context_length(client.engines(), chosen.max_model_len)
        except BaseException:
            await client.aclose()
            raise
        words = Words(tokenizer, template, length, chosen.sampling_defaults(), chosen.tool_call_parser)
        return cls(client, words, policy=policy).watch(client)

    def watch(self, client: AsyncMPClient) -> Self:
        """Write down the statistics that the engines report."""
        client.observe_stats(stats_listener(self.metrics))
        return self

    def submit(
        self,
        request_id: str,
        prompts: Sequence[list[int]],
        params: SamplingParams,
        *,
        began: float | None = None,
        standing: pipeline.Standing = pipeline.Standing(),  # noqa: B008 - frozen
    ) -> Generation:
        """Send all choices of all prompts; either every one is accepted or none. Never awaits.

        Args:
            request_id: the caller's own word for it; need not be unique.
            prompts: token ids, checked by `words`.
            params: the caller's parameters.
            began: when the request arrived, in monotonic seconds; None: now.
            standing: what is asked of scheduler and cache.

        Raises:
            InvalidRequestError: an option is wrong.
            EngineDeadError, ClientClosedError: nothing can be served any more.
        """
        pipeline.check_params(params)
        tokenizer, began = self.words.tokenizer, self._clock() if began is None else began
        lines: list[Line] = []
        streams: list[AsyncOutputStream] = []
        try:
            for prompt in prompts:
                fitted = pipeline.engine_params(params, len(prompt), tokenizer, self.words.max_model_len)
                if self._requests.replays:
                    fitted = seeded(fitted, secrets.randbits(62))
                name = f"{request_id}-{next(self._numbers)}"
                requests = pipeline.fan_out(name, prompt, fitted, params.n, external_id=request_id, standing=standing)
                for request in requests:
                    streams.append(self._requests.generate(request))
                    choice = pipeline.Choice(len(lines), request.request_id, params, tokenizer)
                    clock = ChoiceClock(self.metrics, began)
                    lines.append(Line(choice, streams[-1], len(prompt), clock, self._clock))
                self.metrics.prompt_tokens += len(prompt)
        except BaseException:
            self._requests.abort([line.choice.request_id for line in lines])
            raise
        generation = Generation(request_id, prompts, lines)
        self._live.add(generation)
        return generation

    async def embed(
        self,
        request_id: str,
        prompts: Sequence[list[int]],
        params: PoolingParams | None = None,
        *,
        on_vector: Callable[[], None] = lambda: None,
    ) -> list[Tensor]:
        """The embedding of each prompt: all of them, or none. Cancelling it aborts the requests.

        Args:
            request_id: the caller's own word for it; need not be unique.
            prompts: token ids, checked by `words`.
            params: what kind of vector; by default of length 1.
            on_vector: called for each that has come.

        Raises:
            UnsupportedOptionError: the model gives none, or not of this kind.
            RequestError, EngineDeadError: a prompt cannot be served, or nothing can any more.
        """
        params = params or PoolingParams(task="embed")
        name = f"{request_id}-{next(self._numbers)}"
        requests = [
            EngineCoreRequest(f"{name}-{i}", prompt, pooling_params=params, external_req_id=request_id)
            for i, prompt in enumerate(prompts)
        ]
        ids = [request.request_id for request in requests]
        streams: list[AsyncOutputStream] = []
        vectors: list[Tensor] = []
        self._embedding.update(ids)
        try:
            for request in requests:
                streams.append(self._requests.generate(request))  # noqa: PERF401 - what was sent must be ended below
            self.metrics.prompt_tokens += sum(map(len, prompts))
            for stream in streams:
                vectors.append(await _vector(stream))
                on_vector()
        finally:
            self._embedding.difference_update(ids)
            for stream in streams:
                await stream.aclose()
        return vectors

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        priority: int = 0,
        data_parallel_rank: int | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """Outputs of one prompt as they come; what each holds is the parameters' `output_kind`.

        `priority`: smaller runs earlier, on an engine that schedules by it; others refuse it by name.
        `data_parallel_rank`: the engine that computes it; None: any.
        Leaving the loop, or cancelling the task, aborts the request. Raises RequestError, EngineDeadError.
        """
        params = sampling_params or self.words.default_params()
        text, plain = split_prompt(prompt)
        ids = await self.words.encode_async(plain)
        standing = pipeline.Standing(priority, cache_salt_of(prompt), data_parallel_rank)
        generation = self.submit(request_id or "generate", [ids], params, standing=standing)
        request_id = request_id or generation.choices[0].request_id
        sofar = [CompletionOutput(choice.index, "", []) for choice in generation.choices]
        try:
            async for piece in generation:
                news = _gather(piece, sofar, params.output_kind)
                finished = all(output.finished for output in sofar)
                if params.output_kind is OutputKind.FINAL_ONLY and not finished:
                    continue
                first = generation.choices[0]
                yield RequestOutput(request_id, text, ids, news, finished, first.prompt_logprobs, first.cached_tokens)
        finally:
            await generation.aclose()

    def abort_all(self) -> int:
        """End every request in flight: each choice gets a last piece that says "abort". Gives their number."""
        live, embedding = list(self._live), list(self._embedding)
        self._requests.abort(embedding)
        for generation in live:
            with contextlib.suppress(UsageError):
                generation.abort(self._requests.abort)
        return len(live) + len(embedding)

    def engines(self) -> list[EngineStatus]:
        """How each engine is, by rank; asks them nothing."""
        return self.client.engines()

    def check_health(self) -> None:
        """Raises EngineDeadError or ClientClosedError if no request can be served."""
        self.client.check_health()

    async def aclose(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as the client's
        """Stop the engines that were started here."""
        await self.client.aclose(timeout)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


async def _vector(stream: AsyncOutputStream) -> Tensor:
    """What a prompt is pooled into. Raises RequestAbortedError if the request was ended early."""
    output = await stream.__anext__()
    if output.pooling_output is None:
        raise error_from_wire(output.error, output.finish_reason, request_id=output.request_id)
    return output.pooling_output


def context_length(engines: Sequence[EngineStatus], wanted: int | None) -> int:
    """See `words.effective_length`; what the engines said when they were ready."""
    return effective_length([status.ready.max_model_len for status in engines if status.ready], wanted)


def stats_listener(metrics: ServingMetrics) -> Callable[[EngineRank, SchedulerStats], None]:
    """What writes the reports of engines down, with the time of time.monotonic()."""

    def listen(rank: EngineRank, stats: SchedulerStats) -> None:
        cache = stats.prefix_cache_stats
        running, waiting, usage = stats.num_running_reqs, stats.num_waiting_reqs, stats.kv_cache_usage
        metrics.engine_report(rank, running, waiting, usage, cache.queries, cache.hits, time.monotonic())

    return listen


def _gather(piece: Piece, sofar: list[CompletionOutput], kind: OutputKind) -> list[CompletionOutput]:
    """Add a piece to what its choice has; gives what the caller is shown."""
    mine = sofar[piece.index]
    mine.text += piece.text
    mine.token_ids = mine.token_ids + piece.token_ids  # a new list: the caller may keep the old one
    mine.finish_reason, mine.stop_reason = piece.finish_reason, piece.stop_reason
    mine.logprobs = joined(mine.logprobs, piece.logprobs)
    if piece.logprobs is not None:
        mine.cumulative_logprob = (mine.cumulative_logprob or 0.0) + cumulated(piece.logprobs)
    if kind is OutputKind.DELTA:
        news = msgspec.structs.replace(mine, text=piece.text, token_ids=piece.token_ids, logprobs=piece.logprobs)
        return [news]
    return list(_copies(sofar))


def _copies(outputs: Sequence[CompletionOutput]) -> Iterator[CompletionOutput]:
    for output in outputs:
        yield msgspec.structs.replace(output)
