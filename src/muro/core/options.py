"""What can be set about scheduling."""

from __future__ import annotations

from typing import Literal

import msgspec

from muro.errors import ConfigError

SchedulingPolicy = Literal["fcfs", "priority"]


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Order and bounds of what runs."""

    max_num_seqs: int = 256
    """Sequences that run at once."""
    max_num_batched_tokens: int = 2048
    """Tokens per step; longer prompts are computed in chunks. Smaller: smoother for those who stream."""
    max_logprobs: int = 20
    """The most `logprobs` that a request may ask for; -1 for no bound."""
    scheduling_policy: SchedulingPolicy = "fcfs"
    """"fcfs": first come, first served. "priority": the smaller `priority` first, then first come, first served."""
    enable_prefix_caching: bool = True
    """Whether what the cache still holds of a request's beginning is used instead of computed again."""
    async_scheduling: bool = False
    """Whether a step is scheduled while the one before it runs, if the executor can do that (returns futures)."""

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1:
            raise ConfigError(f"max_num_seqs is {self.max_num_seqs}; it must be at least 1")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}; it must be at least max_num_seqs "
                f"({self.max_num_seqs}), one token for each sequence that decodes"
            )
        if self.max_logprobs < -1:
            raise ConfigError(f"max_logprobs is {self.max_logprobs}; it must be -1 (no bound) or more")
