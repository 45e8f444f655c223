"""The differences between releases 0.25 and 0.33 (protocol section 16), as data.

`FIRST_IN` names the release in which each later field appeared; whatever it does not name is in 0.25. A new
release is a new number here, and new fields at the end of the structs.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from muro.errors import ConfigError
from muro.wire.ops import OPS
from muro.wire.output import EngineCoreOutput, EngineCoreOutputs
from muro.wire.releases.layout import STABLE_OUTPUT_FIELDS, Layout
from muro.wire.request import LoRARequest
from muro.wire.stats import PrefillStats, PrefixCacheStats, SchedulerStats

OLDEST_MINOR: Final = 25
NEWEST_MINOR: Final = 33

FIRST_IN: Final[dict[type[msgspec.Struct], dict[str, int]]] = {
    EngineCoreOutput: {
        "ec_transfer_params": 26,  # inserted at position 9: all positions after it moved
        "mm_cache_miss_hashes": 28,
        "new_sampling_mask": 28,
        "spec_decode_metrics": 29,
        "prompt_token_id_logprobs": 31,
        "error": 33,
    },
    EngineCoreOutputs: {"weight_version": 32},
    SchedulerStats: {"iteration_details": 26, "ec_connector_stats": 31, "num_kv_fetch_reqs_by_stage": 32},
    PrefixCacheStats: {"hits_by_source": 32},
    PrefillStats: {"num_cache_creation_tokens": 26},
}

_LORA_25: Final = (
    "lora_name", "lora_int_id", "lora_path", "base_model_name", None, "load_inplace", "is_3d_lora_weight",
)  # fmt: skip
_LORA_32: Final = LoRARequest.__struct_fields__


def _fields(struct: type[msgspec.Struct], minor: int) -> tuple[str, ...]:
    """The fields of a struct that a release knows."""
    first_in = FIRST_IN.get(struct, {})
    return tuple(name for name in struct.__struct_fields__ if first_in.get(name, OLDEST_MINOR) <= minor)


def _layout(name: str, minor: int, **changes: Any) -> Layout:
    """The layout of release 0.`minor`."""
    later = {
        struct: tuple(name for name in struct.__struct_fields__ if first_in.get(name, OLDEST_MINOR) > minor)
        for struct, first_in in FIRST_IN.items()
        if struct in (SchedulerStats, PrefixCacheStats, PrefillStats)
    }
    row = {
        "minor": minor,
        "output_fields": _fields(EngineCoreOutput, minor),
        "output_floor": 13 if minor < 26 else 14,
        "envelope_fields": len(_fields(EngineCoreOutputs, minor)),
        "lora_fields": _LORA_25 if minor < 32 else _LORA_32,
        "later_keys": {struct: names for struct, names in later.items() if names},
    }
    return Layout(name=name, **{**row, **changes})


LAYOUTS: Final = {f"0.{minor}": _layout(f"0.{minor}", minor) for minor in range(OLDEST_MINOR, NEWEST_MINOR + 1)}
"""A layout per release."""

NEWEST: Final = LAYOUTS[f"0.{NEWEST_MINOR}"]
"""What muro writes for muro."""

SAFE: Final = _layout(
    "safe", OLDEST_MINOR, output_fields=EngineCoreOutput.__struct_fields__[:STABLE_OUTPUT_FIELDS]
)  # fmt: skip
"""What every release reads. Loses prefill statistics, trace headers, routed experts, NaN counts, error reasons."""

SINCE_31: Final = _layout(
    "0.31+", 31, output_fields=EngineCoreOutput.__struct_fields__, lora_fields=_LORA_32
)  # fmt: skip
"""For a front-end of 0.31 or later, which ignores positions that it does not know, except in the envelope."""

_FRONTEND_BY_ADD_LENGTH: Final = {20: SAFE, 21: LAYOUTS["0.28"], 22: SINCE_31}


def layout_for(release: str) -> Layout:
    """The layout of a release as the operator names it: "0.25.1", "0.33", ...; "auto" starts with the safe one.

    Releases after the newest known one read its layout. Raises ConfigError.
    """
    if release == "auto":
        return SAFE
    minor = _minor(release)
    if minor is None or minor < OLDEST_MINOR:
        raise ConfigError(
            f"peer release {release!r} is unknown; "
            f'use "auto" or one of the releases 0.{OLDEST_MINOR} to 0.{NEWEST_MINOR}'
        )
    return LAYOUTS.get(f"0.{minor}", NEWEST)


def layout_for_add_length(length: int) -> Layout | None:
    """The layout to write for a front-end whose first ADD has `length` elements; None if that says nothing.

    20 elements stand for 0.25 to 0.27, which differ: safe. 21 for 0.28 to 0.30, whose Rust front-ends refuse
    positions that they do not know, so nothing after 0.28 is written. 22 and more for 0.31 and later.
    """
    return _FRONTEND_BY_ADD_LENGTH.get(min(length, 22))


def layout_for_call(method: str) -> Layout | None:
    """The layout to write for a front-end that calls an operation which older releases do not have; None for others.

    Readers of 0.27 and later take what 0.27 writes, those of 0.31 and later ignore positions that they do not know.
    """
    since = OPS[method].since if method in OPS else ""
    if not since:
        return None
    return SINCE_31 if int(since.removeprefix("0.")) >= SINCE_31.minor else LAYOUTS["0.27"]


def layout_of_engine(version: str) -> Layout:
    """The layout that an engine of this `vllm_version` writes and reads; the newest if the words say nothing."""
    minor = _minor(version)
    if minor is None:
        return NEWEST
    return LAYOUTS.get(f"0.{max(minor, OLDEST_MINOR)}", NEWEST)


def newest_lora(items: list[Any]) -> list[Any]:
    """An adapter as any release writes it, in the newest layout.

    Up to 0.31 position 4 held a map or nil, and the flags came after it; since then it holds a flag.
    """
    if len(items) > 4 and not isinstance(items[4], bool):
        return items[:4] + items[5:]
    return items


def _minor(release: str) -> int | None:
    """The x of a version 0.x; a very large one for 1.x and later."""
    found = re.match(r"v?(\d{1,4})\.(\d{1,4})(?:\D|$)", release)
    if found is None:
        return None
    major, minor = int(found[1]), int(found[2])
    return minor if major == 0 else 10_000
