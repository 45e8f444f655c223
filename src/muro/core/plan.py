"""The values that pass between scheduler and executor, in both directions.

Values only: nothing here decides or computes. An executor that reads this file and `core/executor.py` knows all
that it has to know about the rest of the engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class SequencePlan(msgspec.Struct, gc=False):
    """What to compute for one sequence in one step.

    The token at index i of `token_ids` stands at position `num_computed_tokens + i` of its sequence, and its key
    and value belong into block `block_table[position // block_size]` at offset `position % block_size`. Everything
    before `num_computed_tokens` is in the cache already. The table covers at least the tokens of this step and may
    be longer. It belongs to the scheduler: read it until the result is given, do not keep or change it. Several tables
    may begin with the same blocks; those are full, and are only read.
    """

    request_id: str
    token_ids: list[int]
    """The tokens to compute now, at least one: a chunk of the prompt, or the last sampled token."""
    num_computed_tokens: int
    """How many tokens of this sequence are in the cache (vLLM's "past length")."""
    block_table: list[int]
    num_logits: int
    """For how many of the last of `token_ids` logits are wanted: 0 for a chunk that ends nothing, 1 to sample what
    comes next, more for log-probabilities of the prompt. At most `len(token_ids)`."""
    num_hidden: int = 0
    """For how many of the last of `token_ids` hidden states are wanted, to be pooled into a vector. At most
    `len(token_ids)`, and 0 where `ExecutorInfo.hidden_size` is 0."""
    best_only: bool = False
    """Whether of its one row of logits nothing is read but which id has the highest: see
    `ModelRunnerOutput.token_ids`."""


class SchedulerOutput(msgspec.Struct):
    """One step: sequences in the order in which their rows come back."""

    sequences: list[SequencePlan]
    total_tokens: int
    """Sum of `len(token_ids)`; never above `max_num_batched_tokens`."""


class ModelRunnerOutput(msgspec.Struct):
    """What came out of one step.

    `logits` is a float32 array of shape [sum of `num_logits`, vocab_size], rows in the order of the plan and of its
    tokens. It is read before the next `execute`, so an executor may hand out the same buffer every time.

    `token_ids` is for executors that know which id has the highest logit without handing the row out: one id, or -1
    if there is no usable score, for each sequence with `best_only`, in the order of the plan. `logits` then has the
    rows of the other sequences alone. None: all rows are there.

    `hidden` holds the last hidden states, those that the logits are computed from, in the same way: float32, shape
    [sum of `num_hidden`, hidden_size]. None is as good as no rows.
    """

    logits: NDArray[np.float32]
    hidden: NDArray[np.float32] | None = None
    token_ids: list[int] | None = None
