"""What can be set about the OpenVINO engine."""

from __future__ import annotations

from typing import Literal

import msgspec

from muro.core.options import SchedulerConfig, SchedulingPolicy, TokenIds, scheduler_config
from muro.errors import ConfigError


class OpenVINOOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the model on the CPU."""

    weights: Literal["int8", "f16", "f32"] = "int8"
    """"int8": per output channel, half the memory traffic of f16 and so nearly twice its speed for few sequences.
    A graph that lies ready in the model directory keeps the format that it has."""
    cache: Literal["f16", "u8"] = "f16"
    """Number format of keys and values in the cache."""
    cache_memory_mb: int = 256
    """Memory for keys and values, in MiB."""
    max_model_len: int | None = None
    """The most tokens of one sequence; None: what the model was trained for, as far as the cache can hold it."""
    threads: int | None = None
    """Threads that compute; None: one for each CPU that is this engine's share (see `config.engine_cpus`)."""
    max_num_seqs: int = 64
    """Sequences that run at once; on a few CPUs more of them bring no more tokens per second."""
    max_num_batched_tokens: int = 256
    """Tokens per step. A long prompt holds up those who stream for the time of so many tokens at once."""

    scheduling_policy: SchedulingPolicy = "fcfs"
    """"fcfs": first come, first served. "priority": the smaller priority first, then first come, first served."""
    enable_prefix_caching: bool = True
    """Whether what the cache still holds of a request's beginning is used instead of computed again."""
    async_scheduling: bool = False
    """Whether a step is scheduled while the one before it runs."""
    max_logprobs: int = 20
    """The most log-probabilities per token that a request may ask for; -1: no bound."""
    thinking_start_token_ids: TokenIds = ()
    """The tokens with which the model begins to think; with these, requests may have a `thinking_token_budget`."""
    thinking_end_token_ids: TokenIds = ()
    """The tokens with which it ends."""
    pooling: Literal["auto", "mean", "last", "none"] = "auto"
    """How a prompt becomes an embedding: the mean of its tokens or the last one; "auto": as the model directory says
    (sentence-transformers' `1_Pooling/config.json`), and not at all if it says nothing."""

    def __post_init__(self) -> None:
        for name in ("cache_memory_mb", "max_model_len", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}; it must be positive")

    def scheduler(self) -> SchedulerConfig:
        """What of this is for the scheduler."""
        return scheduler_config(self)
