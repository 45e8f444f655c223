"""An executor that only keeps time: tokens are looked up in the streams of requests, or scores made up for sampling.

Where requests read nothing but the best id of their logits, it hands out ids (`ModelRunnerOutput.token_ids`), which
costs a fraction of a microsecond for each. Others get rows in which the token of their stream stands out.

With `tokens="sampled"` it keeps, where a model keeps keys and values, a 64-bit digest of all tokens up to a position,
and makes scores of the digest that it finds *through the block table*: so a wrong block, a stale token or a position
off by one gives other tokens.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from muro.core.executor import ExecutorInfo
from muro.core.plan import ModelRunnerOutput, SchedulerOutput, SequencePlan
from muro.engine.interface import FailureCallback, Memory
from muro.engines.sim.profile import Profile
from muro.engines.sim.streams import Stream
from muro.engines.sim.text import Text
from muro.engines.sim.timing import LatencyModel, Pace

_OUT_OF_QUESTION = -1e4
_PEAK = 16.0

_NOBODY = Stream([0], 0, begun=True)
"""What a step is told that is computed for no request."""

AtStep = Callable[[SchedulerOutput, int], None]


def _nothing(plan: SchedulerOutput, prompts_begun: int) -> None:
    """By default nothing happens at a step."""


class SimExecutor:
    """An `Executor`; see the module.

    Args:
        profile: how long things take, and what the cache holds.
        text: what is said.
        vocab_size: width of the logits.
        sampled: whether tokens are drawn from scores.
        elsewhere: whether the time of steps passes in a thread of its own.
        seed: of the jitter.
        clock: seconds.
        sleep: passes time, in seconds, without holding up other threads.
    """

    def __init__(
        self,
        profile: Profile,
        text: Text,
        vocab_size: int,
        *,
        sampled: bool = False,
        elsewhere: bool = False,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._streams: dict[str, Stream] = {}
        self._num_new = 0
        """How many of them have not begun to be computed."""
        self.at_step: AtStep = _nothing
        """Called with each plan, and how many prompts it begins, before anything is done. May raise."""
        self._text = text
        self._sampled = sampled
        self._clock = clock
        self._sleep = sleep
        self._pace = Pace(clock)
        self._latency = None if profile.is_instant else LatencyModel(profile, seed)
        self._block_size = profile.block_size
        self._ids = np.array(text.ids, np.intp)
        self._digests = array("Q", bytes(8 * profile.num_blocks * profile.block_size)) if sampled else array("Q")
        self._no_logits = np.empty((0, vocab_size), np.float32)
        self._logits = self._no_logits
        self._marked: tuple[NDArray[np.intp], NDArray[np.intp]] | None = None
        self._thread = ThreadPoolExecutor(1, "forward") if elsewhere and self._latency is not None else None
        self._info = ExecutorInfo(
            max_model_len=profile.max_model_len,
            num_blocks=profile.num_blocks,
            block_size=profile.block_size,
            vocab_size=vocab_size,
        )

    def info(self) -> ExecutorInfo:
        return self._info

    def add_stream(self, request_id: str, stream: Stream) -> None:
        """What a request is told; before the first plan that it is part of."""
        self._streams[request_id] = stream
        self._num_new += 1

    def drop_stream(self, request_id: str) -> None:
        """The request has ended; unknown ones are ignored."""
        stream = self._streams.pop(request_id, None)
        self._num_new -= stream is not None and not stream.begun

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput | Future[ModelRunnerOutput]:
        """See `Executor.execute`. The requests of the plan have their streams. The next call overwrites the logits."""
        sequences = plan.sequences
        prompt_tokens = prompts_begun = 0
        if plan.total_tokens != len(sequences) or self._num_new:
            prompt_tokens, prompts_begun = self._count_prompts(sequences)
        self.at_step(plan, prompts_begun)
        if self._latency is None:
            return self._result(sequences)
        due = self._pace.due(self._latency.seconds(len(sequences), prompt_tokens, prompts_begun))
        result = self._result(sequences)
        if self._thread is not None:
            return self._thread.submit(self._wait, due, result)
        return self._wait(due, result)

    def rest(self) -> None:
        """There is no work left: the next step does not follow this one."""
        self._pace.rest()

    @property
    def releasable(self) -> tuple[Memory, ...]:
        """As a model on a machine: there is nothing to give back, but what was computed is gone."""
        return "kv_cache", "weights"

    def release_memory(self, kind: Memory) -> None:
        """See `Releasing`."""
        if kind == "kv_cache":
            self._digests = array("Q", bytes(8 * len(self._digests)))

    def restore_memory(self, kind: Memory) -> None:
        """See `Releasing`; takes no time."""

    def on_failure(self, callback: FailureCallback) -> None:
        """Never fails on its own."""

    def shutdown(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()

    def _wait(self, due: float, result: ModelRunnerOutput) -> ModelRunnerOutput:
        if (left := due - self._clock()) > 0:
            self._sleep(left)
        return result

    def _count_prompts(self, sequences: list[SequencePlan]) -> tuple[int, int]:
        """How many tokens of prompts are computed, and how many prompts are begun."""
        tokens = begun = 0
        for sequence in sequences:
            stream = self._streams.get(sequence.request_id, _NOBODY)
            if len(sequence.token_ids) > 1 or not stream.begun:
                tokens += len(sequence.token_ids)
                begun += not stream.begun
                stream.begun = True
        self._num_new -= begun
        return tokens, begun

    def _result(self, sequences: list[SequencePlan]) -> ModelRunnerOutput:
        if self._sampled:
            digests = [digest for sequence in sequences for digest in self._advance(sequence)]
            logits = self._rows(len(digests))
            if digests:
                logits[:, self._ids] = self._scores(np.array(digests, np.uint64))
            return ModelRunnerOutput(logits)
        streams = self._streams
        token_ids = [
            (stream := streams[s.request_id]).tokens[stream.base + s.num_computed_tokens + len(s.token_ids)]
            for s in sequences
            if s.best_only
        ]
        logits = self._no_logits
        if len(token_ids) < len(sequences):
            logits = self._marked_rows([s for s in sequences if s.num_logits and not s.best_only])
        return ModelRunnerOutput(logits, token_ids=token_ids)

    def _rows(self, count: int) -> NDArray[np.float32]:
        if count > len(self._logits):
            self._marked = None
            self._logits = np.full((count, self._info.vocab_size), _OUT_OF_QUESTION, np.float32)
        return self._logits[:count]

    def _marked_rows(self, sequences: list[SequencePlan]) -> NDArray[np.float32]:
        """Rows in which the next token stands out; within a prompt, any token does."""
        tokens = []
        for sequence in sequences:
            stream = self._streams.get(sequence.request_id, _NOBODY)
            end = stream.base + sequence.num_computed_tokens + len(sequence.token_ids) + 1
            tokens += [stream.tokens[i % len(stream.tokens)] for i in range(end - sequence.num_logits, end)]
        if self._marked is not None:
            self._logits[self._marked] = _OUT_OF_QUESTION
        logits = self._rows(len(tokens))
        self._marked = np.arange(len(tokens)), np.array(tokens, np.intp)
        self._logits[self._marked] = _PEAK
        return logits

    def _advance(self, sequence: SequencePlan) -> list[int]:
        """Store the digest at each of the planned positions, and give those that logits are wanted for."""
        size, table, kept, digest_of = self._block_size, sequence.block_table, self._digests, self._text.digest
        position = sequence.num_computed_tokens
        before = position - 1
        digest = kept[table[before // size] * size + before % size] if position else None
        digests = []
        for token in sequence.token_ids:
            digest = digest_of((token,), digest)
            digests.append(digest)
            kept[table[position // size] * size + position % size] = digest
            position += 1
        return digests[len(digests) - sequence.num_logits :]

    def _scores(self, digests: NDArray[np.uint64]) -> NDArray[np.float32]:
        """Scores between 0 and 8, uniformly distributed: [sequences, ids of the text]."""
        mixed = (digests[:, None] ^ self._ids.astype(np.uint64)) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        return ((mixed >> np.uint64(40)) * 2.0**-21).astype(np.float32)
