"""Operations that every engine answers, unless it declares its own under the same name.

Python front-ends call `get_supported_tasks` and `reset_mm_cache` before they open their door (protocol
section 13); the others are questions with an honest answer for an engine that has no such feature.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from muro.engine.interface import EngineCore, operation
from muro.errors import CallFailedError
from muro.wire.ops import KVCacheGroupMetadata
from muro.wire.request import LoRARequest

Version = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]

_NO_ADAPTERS = "this engine serves no LoRA adapters"


class StandardOperations:
    """Defaults for what front-ends may ask of any engine."""

    def __init__(self, engine: EngineCore) -> None:
        self._engine = engine
        self._info = engine.info()
        self._weight_version = "default"

    @operation
    def get_supported_tasks(self) -> list[str]:
        return list(self._info.supported_tasks)

    @operation
    def reset_mm_cache(self) -> None:
        """No engine without such a cache has anything to do."""

    @operation
    def reset_encoder_cache(self) -> None:
        """No engine without such a cache has anything to do."""

    @operation
    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        return True

    @operation
    def execute_dummy_batch(self) -> None:
        self._engine.execute_dummy_batch()

    @operation
    def get_kv_cache_group_metadata(self) -> list[KVCacheGroupMetadata]:
        """One group of all layers, since a request has one block table for them; none without blocks."""
        if not self._info.num_gpu_blocks:
            return []
        return [KVCacheGroupMetadata(0, "full_attention", self._info.block_size)]

    @operation
    def collective_rpc(
        self, method: str, timeout: float | None = None, args: list[Any] | None = None, kwargs: Any = None
    ) -> list[Any]:
        raise CallFailedError(f"there is no worker method {method[:64]!r}: this engine offers none")

    @operation
    def save_sharded_state(self, path: str, pattern: str | None = None, max_size: int | None = None) -> None:
        raise CallFailedError("weights are never changed here, so there is no state to save: copy the model directory")

    @operation
    def get_weight_version(self) -> str:
        return self._weight_version

    @operation
    def set_weight_version(self, version: Version) -> None:
        """Only remembered, for those who ask: the weights stay what they are."""
        self._weight_version = version

    @operation
    def add_lora(self, lora_request: LoRARequest) -> bool:
        raise CallFailedError(f"{_NO_ADAPTERS}; {lora_request.lora_name[:64]!r} was not loaded")

    @operation
    def pin_lora(self, lora_id: int) -> bool:
        raise CallFailedError(f"{_NO_ADAPTERS}; there is no {lora_id} to pin")

    @operation
    def remove_lora(self, lora_id: int) -> bool:
        """False: no such adapter was loaded."""
        return False

    @operation
    def list_loras(self) -> list[int]:
        return []
