"""HashingExecutor: a model without weights whose logits depend on every token of a sequence.

It keeps tokens where a model keeps keys and values, and reads them back *through the block tables*. A wrong block, a
stale token, a position off by one: the logits are others, and so are the outputs. With equal requests and seeds the
outputs are equal for any batching, chunking and preemption, which is what it is here to show.

Plans that no correct scheduler makes raise `InternalError`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from muro.core.executor import ExecutorInfo
from muro.core.plan import ModelRunnerOutput, SchedulerOutput, SequencePlan
from muro.engine.interface import FailureCallback
from muro.errors import InternalError

_EMPTY = -1


class HashingExecutor:
    """An `Executor`. Logits are between 0 and 8, uniformly distributed over the vocabulary."""

    def __init__(
        self, *, num_blocks: int = 64, block_size: int = 4, vocab_size: int = 64, max_model_len: int = 4096
    ) -> None:
        self._info = ExecutorInfo(
            max_model_len=max_model_len, num_blocks=num_blocks, block_size=block_size, vocab_size=vocab_size
        )
        self._cache = np.full(num_blocks * block_size, _EMPTY, np.int64)
        self._ids = np.arange(vocab_size, dtype=np.uint64)

    def info(self) -> ExecutorInfo:
        return self._info

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        """Store the planned tokens, then hash each sampled sequence as its block table shows it."""
        if not plan.sequences:
            raise InternalError("an empty step was planned")
        if plan.total_tokens != sum(len(sequence.token_ids) for sequence in plan.sequences):
            raise InternalError(f"the plan says {plan.total_tokens} tokens and holds others")
        tables = [self._slots(sequence) for sequence in plan.sequences]
        written = [slots[s.num_computed_tokens :] for s, slots in zip(plan.sequences, tables, strict=True)]
        if len(np.unique(np.concatenate(written))) != plan.total_tokens:
            raise InternalError("two tokens of one step go to the same place in the cache")
        for sequence, slots in zip(plan.sequences, written, strict=True):
            self._cache[slots] = sequence.token_ids
        rows = [row for s, slots in zip(plan.sequences, tables, strict=True) for row in self._rows(s, slots)]
        return ModelRunnerOutput(np.array(rows, np.float32).reshape(len(rows), self._info.vocab_size))

    def on_failure(self, callback: FailureCallback) -> None:
        """Never fails on its own."""

    def shutdown(self) -> None:
        """Holds nothing but memory."""

    def _slots(self, sequence: SequencePlan) -> NDArray[np.int64]:
        """Where in the cache the tokens of a sequence lie, up to the last one of this step."""
        length = sequence.num_computed_tokens + len(sequence.token_ids)
        size = self._info.block_size
        table = np.array(sequence.block_table, np.int64)
        if not sequence.token_ids or len(table) * size < length or table.min() < 0:
            raise InternalError(f"{len(table)} blocks of {sequence.request_id} do not cover its {length} tokens")
        if not 0 <= sequence.num_logits <= len(sequence.token_ids):
            raise InternalError(f"{sequence.request_id}: {sequence.num_logits} rows are wanted, of fewer tokens")
        positions = np.arange(length)
        return table[positions // size] * size + positions % size

    def _rows(self, sequence: SequencePlan, slots: NDArray[np.int64]) -> NDArray[np.float32]:
        """The logits after each of the last `num_logits` tokens."""
        tokens = self._cache[slots]
        if (tokens == _EMPTY).any():
            raise InternalError(f"{sequence.request_id} reads tokens that were never stored")
        positions = np.arange(len(tokens), dtype=np.uint64)
        contexts = np.cumsum(_mix(tokens.astype(np.uint64) + _mix(positions)), dtype=np.uint64)
        wanted = contexts[len(tokens) - sequence.num_logits :, None]
        scores = _mix(self._ids + wanted) >> np.uint64(40)
        return (scores * 2.0**-21).astype(np.float32)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The output function of SplitMix64, for arrays."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
