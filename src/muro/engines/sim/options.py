"""What can be set about the simulator: how long things take, what it holds, what goes wrong."""

from __future__ import annotations

from typing import Literal

import msgspec

from muro.core.options import SchedulerConfig, SchedulingPolicy, TokenIds, scheduler_config
from muro.engines.sim.lengths import parse_lengths
from muro.engines.sim.profile import Profile, load_profile
from muro.engines.sim.streams import Tokens
from muro.errors import ConfigError


class SimOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the simulator. Those of `Profile` take precedence over the profile that is named."""

    profile: str | None = None
    """What the device costs and holds: the name of a profile that ships, or a file; see `profile.py`."""
    step_us: float | None = None
    sequence_us: float | None = None
    prefill_us_per_token: float | None = None
    prefill_us_per_request: float | None = None
    jitter: float | None = None
    num_blocks: int | None = None
    block_size: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    time: Literal["real", "virtual"] = "real"
    """"virtual": steps take no time, but the clock of events and deadlines moves as if they did; for tests."""
    lockstep: bool = False
    """Whether the engine says of itself that it runs in lockstep with the other data-parallel ranks."""
    load_s: float = 0.0
    """Seconds that loading takes."""
    tokens: Tokens = "fixed"
    """"fixed": words; the next token depends on the tokens before it alone, whatever a request says about sampling.
    "echo": the prompt, again and again.
    "sampled": the tokens before give scores, from which temperature and seed choose as they do with a model."""
    lengths: str | None = None
    """How long answers are: a distribution, see `lengths.py`; None: as long as `max_tokens` allows."""
    seed: int = 0
    """Another seed, other tokens, lengths and jitter."""
    vocab_size: int | None = None
    """Token ids; None: those of the model that was named, or bytes."""
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
        if not 0 <= self.load_s <= 1e12:
            raise ConfigError(f"load_s is {self.load_s}; it must lie in 0 ... 1e12")
        if self.lengths is not None:
            parse_lengths(self.lengths)
        if self.vocab_size is not None and self.vocab_size < 128:
            raise ConfigError(
                f"vocab_size is {self.vocab_size}; the simulator speaks ASCII, so it must be at least 128"
            )

    def resolved(self) -> Profile:
        """The profile, with what was given beside it. Raises ConfigError."""
        profile = Profile() if self.profile is None else load_profile(self.profile)
        given = {name: value for name in Profile.__struct_fields__ if (value := getattr(self, name, None)) is not None}
        return msgspec.structs.replace(profile, **given)

    def scheduler(self, profile: Profile) -> SchedulerConfig:
        """What of this is for the scheduler."""
        return scheduler_config(
            self, max_num_seqs=profile.max_num_seqs, max_num_batched_tokens=profile.max_num_batched_tokens
        )

    @property
    def faults(self) -> list[str]:
        """The faults that were given one by one."""
        return [self.fault] if isinstance(self.fault, str) else list(self.fault)
