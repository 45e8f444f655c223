"""What a wire layout is: the positions and keys that one release knows. The rows are in `table`."""

from __future__ import annotations

from typing import Any

import msgspec

from muro.wire.output import EngineCoreOutput
from muro.wire.request import LoRARequest
from muro.wire.stats import PrefillStats, PrefixCacheStats, SchedulerStats

STABLE_OUTPUT_FIELDS = 9
"""Positions of a per-request output that all releases share, and below which every reader takes a short array."""


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """How to write for a peer of one release, or of a range of them.

    `minor` is the 0.x whose map keys the peer knows. `output_fields` are the positions of a per-request
    output, in order; an array is cut after its last set field, but is never shorter than `output_floor` once
    it reaches past the stable ones, because readers tell layouts apart by length. `envelope_fields` counts the
    positions of a message. `lora_fields` are the positions of an adapter; None stands for one that is now gone.
    """

    name: str
    minor: int
    output_fields: tuple[str, ...]
    output_floor: int
    envelope_fields: int
    lora_fields: tuple[str | None, ...]
    later_keys: dict[type[msgspec.Struct], tuple[str, ...]]
    """Map keys that the peer does not know yet."""

    @property
    def wake_up_gives_bool(self) -> bool:
        """Whether the peer wants a bool as the answer to `wake_up` (0.31 and later), or nil."""
        return self.minor >= 31

    @property
    def in_order(self) -> bool:
        """Whether `output_fields` are the first positions of the newest layout."""
        return self.output_fields == EngineCoreOutput.__struct_fields__[: len(self.output_fields)]

    def lora(self, request: LoRARequest) -> list[Any]:
        """An adapter as the peer reads it: the first three elements alone, which all do, if these say it all."""
        values = [None if name is None else getattr(request, name) for name in self.lora_fields]
        if request.load_inplace or request.is_3d_lora_weight:
            return values
        return values[: 4 if request.base_model_name is not None else 3]

    def keys(self, stats: SchedulerStats | PrefillStats | PrefixCacheStats) -> Any:
        """Statistics without the keys that the peer does not know."""
        later = self.later_keys.get(type(stats))
        if later is None:
            return stats
        known = {name: value for name, value in msgspec.structs.asdict(stats).items() if name not in later}
        for name, value in known.items():
            if type(value) is PrefixCacheStats:
                known[name] = self.keys(value)
        return known
