"""What can be set about the simulator: how long things take, what it holds, what goes wrong."""

from __future__ import annotations

from typing import Literal

import msgspec

from muro.core.options import SchedulerConfig, SchedulingPolicy, TokenIds
from muro.errors import ConfigError

BYTES = 258
"""Vocabulary of the byte-level tokenizer that an engine without a model is served with."""


class SimOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the simulator.

    A step takes `step_us`, plus `sequence_us` for each sequence, plus `prefill_us_per_token` for each token of a
    prompt. The defaults are about those of a small model on a large device.
    """

    step_us: float = 8000.0
    """Microseconds of a step, whatever is in it."""
    sequence_us: float = 20.0
    """Microseconds for each sequence of a step."""
    prefill_us_per_token: float = 25.0
    """Microseconds for each token of a prompt."""
    load_s: float = 0.0
    """Seconds that loading takes."""
    tokens: Literal["fixed", "sampled"] = "fixed"
    """"fixed": the next token depends on the tokens before it alone, whatever a request says about sampling.
    "sampled": the tokens before give scores, from which temperature and seed choose as they do with a model."""
    seed: int = 0
    """Another seed, other tokens."""
    num_blocks: int = 8192
    """Blocks of the key/value cache, which is accounted for like a real one."""
    block_size: int = 16
    """Tokens per block."""
    max_model_len: int = 8192
    """The most tokens of one sequence, prompt and output together."""
    vocab_size: int | None = None
    """Token ids; None: those of the model that was named, or bytes."""
    max_num_seqs: int = 256
    """Sequences that run at once."""
    max_num_batched_tokens: int = 2048
    """Tokens per step; longer prompts are computed in chunks."""
    scheduling_policy: SchedulingPolicy = "fcfs"
    """"fcfs": first come, first served. "priority": the smaller priority first, then first come, first served."""
    enable_prefix_caching: bool = True
    """Whether what the cache still holds of a request's beginning is used instead of computed again."""
    async_scheduling: bool = False
    """Whether a step is scheduled while the one before it runs; the time of steps then passes in a thread apart."""
    max_logprobs: int = 20
    """The most log-probabilities per token that a request may ask for; -1: no bound."""
    thinking_start_token_ids: TokenIds = ()
    """The tokens with which the model begins to think; with these, requests may have a `thinking_token_budget`."""
    thinking_end_token_ids: TokenIds = ()
    """The tokens with which it ends."""
    fault: str | list[str] = []
    """Faults, as `schedule.py` describes them."""
    scenario: str | None = None
    """File with faults: see `scenario.py`."""
    fault_seed: int | None = None
    """Makes faults with a `chance` come alike each time; None: differently."""

    def __post_init__(self) -> None:
        for name in ("step_us", "sequence_us", "prefill_us_per_token", "load_s"):
            if not 0 <= (value := getattr(self, name)) <= 1e12:
                raise ConfigError(f"{name} is {value}; it must lie in 0 ... 1e12")
        for name in ("num_blocks", "block_size", "max_model_len"):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"{name} is {value}; it must be positive")
        if self.vocab_size is not None and self.vocab_size < 128:
            raise ConfigError(
                f"vocab_size is {self.vocab_size}; the simulator speaks ASCII, so it must be at least 128"
            )

    def scheduler(self) -> SchedulerConfig:
        """What of this is for the scheduler."""
        return SchedulerConfig(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            scheduling_policy=self.scheduling_policy,
            enable_prefix_caching=self.enable_prefix_caching,
            async_scheduling=self.async_scheduling,
            max_logprobs=self.max_logprobs,
            thinking_start_token_ids=self.thinking_start_token_ids,
            thinking_end_token_ids=self.thinking_end_token_ids,
        )

    @property
    def faults(self) -> list[str]:
        """The faults that were given one by one."""
        return [self.fault] if isinstance(self.fault, str) else list(self.fault)
