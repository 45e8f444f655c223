"""An executor that only keeps time, and tokens that whoever knows the prompt can foretell.

Where a model keeps keys and values, this one keeps a 64-bit digest of all tokens up to a position, and goes on from
the digest that it finds *through the block table*. So a decoded token costs the same after any length, and a wrong
block, a stale token or a position off by one gives other tokens. What follows some tokens depends on nothing else:
not on batching, chunking or preemption, nor on whether they came as prompt or were generated, so a request that is
continued elsewhere goes on as it would have.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from muro.core.executor import ExecutorInfo
from muro.core.plan import ModelRunnerOutput, SchedulerOutput, SequencePlan
from muro.engine.interface import FailureCallback
from muro.engines.sim.options import BYTES, SimOptions

_MASK64 = 2**64 - 1
_OUT_OF_QUESTION = -1e4
_PEAK = 16.0
_LETTERS = b"etaoinshrdlu    "
"""What bytes are drawn from: it looks like words from afar."""


def alphabet(vocab_size: int) -> Sequence[int]:
    """The token ids that are generated: letters and spaces, or the middle of a vocabulary of another kind.

    Special tokens stand at the ends of a vocabulary, so none is ever generated.
    """
    return _LETTERS if vocab_size <= BYTES else range(vocab_size // 8, vocab_size * 7 // 8)


def digest(tokens: Iterable[int], so_far: int) -> int:
    """The digest of all tokens up to here, from that of those before. Multiply and xor-shift, as in SplitMix64."""
    for token in tokens:
        so_far = ((so_far ^ token) * 0xBF58476D1CE4E5B9 + 0x9E3779B97F4A7C15) & _MASK64
        so_far ^= so_far >> 29
    return so_far


def continuation(prompt: Sequence[int], count: int, *, seed: int = 0, vocab_size: int = BYTES) -> list[int]:
    """The `count` tokens that follow `prompt` (with `tokens="fixed"`): what a test of a front-end must receive."""
    letters = alphabet(vocab_size)
    state, tokens = digest(prompt, seed & _MASK64), []
    for _ in range(count):
        tokens.append(letters[(state >> 32) % len(letters)])
        state = digest(tokens[-1:], state)
    return tokens


class SimExecutor:
    """An `Executor`; see the module.

    Args:
        options: how long things take, and what the cache holds.
        vocab_size: width of the logits.
        clock: monotonic seconds.
        sleep: passes time, in seconds, without holding up other threads.
    """

    def __init__(
        self,
        options: SimOptions,
        vocab_size: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._clock = clock
        self._sleep = sleep
        self._first = options.seed & _MASK64
        self._letters = np.array(list(alphabet(vocab_size)), np.intp)
        self._cache = array("Q", bytes(8 * options.num_blocks * options.block_size))
        self._logits = np.full((options.max_num_seqs, vocab_size), _OUT_OF_QUESTION, np.float32)
        self._thread = ThreadPoolExecutor(1, "forward") if options.async_scheduling else None
        self._marked: tuple[np.ndarray, np.ndarray] | None = None
        self._info = ExecutorInfo(
            max_model_len=options.max_model_len,
            num_blocks=options.num_blocks,
            block_size=options.block_size,
            vocab_size=vocab_size,
        )

    def info(self) -> ExecutorInfo:
        return self._info

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput | Future[ModelRunnerOutput]:
        """See `Executor.execute`. The next call overwrites the logits."""
        return self._forward(plan) if self._thread is None else self._thread.submit(self._forward, plan)

    def _forward(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Digest the planned tokens, and let the rest of the step's time pass."""
        due = self._clock() + self.seconds(plan)
        sampled: list[int] = []
        for sequence in plan.sequences:
            states = self._advance(sequence)
            sampled += states[len(states) - sequence.num_logits :]
        if len(sampled) > len(self._logits):
            self._marked = None
            self._logits = np.full((len(sampled), self._info.vocab_size), _OUT_OF_QUESTION, np.float32)
        logits = self._logits[: len(sampled)]
        if sampled:
            chosen = np.array(sampled, np.uint64)
            if self._options.tokens == "fixed":
                self._mark(chosen)
            else:
                logits[:, self._letters] = self._scores(chosen)
        if (left := due - self._clock()) > 0:
            self._sleep(left)
        return ModelRunnerOutput(logits)

    def seconds(self, plan: SchedulerOutput) -> float:
        """How long a step takes."""
        options = self._options
        decoding = sum(len(s.token_ids) == 1 and s.num_computed_tokens > 0 for s in plan.sequences)
        prompts = plan.total_tokens - decoding
        steady = options.step_us + options.sequence_us * len(plan.sequences)
        return (steady + options.prefill_us_per_token * prompts) * 1e-6

    def on_failure(self, callback: FailureCallback) -> None:
        """Never fails on its own."""

    def shutdown(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()

    def _advance(self, sequence: SequencePlan) -> list[int]:
        """Store the digest at each of the planned positions, and give them."""
        size, table, cache = self._options.block_size, sequence.block_table, self._cache
        position = sequence.num_computed_tokens
        before = position - 1
        state = cache[table[before // size] * size + before % size] if position else self._first
        states = []
        for token in sequence.token_ids:
            state = digest((token,), state)
            states.append(state)
            cache[table[position // size] * size + position % size] = state
            position += 1
        return states

    def _mark(self, states: np.ndarray) -> None:
        """Let one token stand out in each row, and those of the last step no more."""
        if self._marked is not None:
            self._logits[self._marked] = _OUT_OF_QUESTION
        tokens = self._letters[((states >> np.uint64(32)) % np.uint64(len(self._letters))).astype(np.intp)]
        self._marked = np.arange(len(states)), tokens
        self._logits[self._marked] = _PEAK

    def _scores(self, states: np.ndarray) -> np.ndarray:
        """Scores between 0 and 8, uniformly distributed: [sequences, letters]."""
        mixed = (states[:, None] ^ self._letters.astype(np.uint64)) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        return ((mixed >> np.uint64(40)) * 2.0**-21).astype(np.float32)
