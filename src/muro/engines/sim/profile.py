"""What a device costs and holds: latency profiles, from a file or by name.

A profile is a TOML or JSON file with the fields of `Profile`; those that ship lie in `profiles/`, and say in `about`
where they were measured, and how. `muro bench profile` measures one.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec

from muro.errors import ConfigError

SHIPPED = Path(__file__).parent / "profiles"

_UNREADABLE = (OSError, UnicodeDecodeError, RecursionError, tomllib.TOMLDecodeError, msgspec.MsgspecError, ConfigError)


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long things take, and what fits. The defaults are about those of a small model on a large device."""

    about: str = ""
    """What was measured, on what, how."""
    step_us: float = 8000.0
    """Microseconds of a step, whatever is in it."""
    sequence_us: float = 20.0
    """Microseconds for each sequence of a step."""
    prefill_us_per_token: float = 25.0
    """Microseconds for each token of a prompt."""
    prefill_us_per_request: float = 0.0
    """Microseconds for each prompt that is begun."""
    jitter: float = 0.0
    """Standard deviation of the logarithm of a step's time: with 0.1, two thirds lie within 10 %."""
    num_blocks: int = 8192
    """Blocks of the key/value cache, which is accounted for like a real one."""
    block_size: int = 16
    """Tokens per block."""
    max_model_len: int = 8192
    """The most tokens of one sequence, prompt and output together."""
    max_num_seqs: int = 256
    """Sequences that run at once."""
    max_num_batched_tokens: int = 2048
    """Tokens per step; longer prompts are computed in chunks."""

    def __post_init__(self) -> None:
        for name in ("step_us", "sequence_us", "prefill_us_per_token", "prefill_us_per_request"):
            if not 0 <= (value := getattr(self, name)) <= 1e12:
                raise ConfigError(f"{name} is {value}; it must lie in 0 ... 1e12")
        if not 0 <= self.jitter <= 2:
            raise ConfigError(f"jitter is {self.jitter}; it must lie in 0 ... 2")
        for name in ("num_blocks", "block_size", "max_model_len"):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"{name} is {value}; it must be positive")

    @property
    def is_instant(self) -> bool:
        """Whether nothing takes any time."""
        return not (self.step_us or self.sequence_us or self.prefill_us_per_token or self.prefill_us_per_request)


def shipped_profiles() -> list[str]:
    """Names of the profiles that ship."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def load_profile(name: str) -> Profile:
    """A profile by its name, if it ships, or by the path of its file. Raises ConfigError."""
    path = Path(name) if name.endswith((".toml", ".json")) else SHIPPED / f"{name}.toml"
    if path.parent == SHIPPED and path.stem not in shipped_profiles():
        raise ConfigError(
            f"profile {name!r} is neither one that ships ({', '.join(shipped_profiles())}) nor a file *.toml or *.json"
        )
    try:
        content = path.read_bytes()
        raw = tomllib.loads(content.decode()) if path.suffix == ".toml" else msgspec.json.decode(content)
        return msgspec.convert(raw, Profile)
    except _UNREADABLE as error:
        raise ConfigError(f"profile {name}: {error}") from None
