"""What can be set about scheduling."""

from __future__ import annotations

from typing import Literal

import msgspec

from muro.errors import ConfigError

SchedulingPolicy = Literal["fcfs", "priority"]
TokenIds = str | tuple[int, ...]
"""As numbers, or as they are given on a command line: "12" or "12,13"."""


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Order and bounds of what runs, and what must be known of the model's tokens."""

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
    thinking_start_token_ids: TokenIds = ()
    """The tokens with which the model begins to think; with these, requests may have a `thinking_token_budget`."""
    thinking_end_token_ids: TokenIds = ()
    """The tokens with which it ends."""

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
        if bool(self.thinking_start_token_ids) != bool(self.thinking_end_token_ids):
            raise ConfigError("thinking_start_token_ids and thinking_end_token_ids go together: set both, or none")
        self.thinking_markers()

    def thinking_markers(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """`thinking_start_token_ids` and `thinking_end_token_ids` as numbers. Raises ConfigError."""
        start = _numbers("thinking_start_token_ids", self.thinking_start_token_ids)
        return start, _numbers("thinking_end_token_ids", self.thinking_end_token_ids)


def scheduler_config(options: msgspec.Struct, **given: int) -> SchedulerConfig:
    """What of an engine's options is for the scheduler, by name; `given` goes before them. Raises ConfigError."""
    named = {name: getattr(options, name) for name in SchedulerConfig.__struct_fields__}
    return SchedulerConfig(**(named | given))


def _numbers(name: str, ids: TokenIds) -> tuple[int, ...]:
    try:
        return tuple(int(text) for text in ids.split(",") if text.strip()) if isinstance(ids, str) else ids
    except ValueError:
        raise ConfigError(f"{name} is {ids!r}; it must be token ids such as 12 or 12,13") from None
