"""Operations that every engine answers, unless it declares its own under the same name.

Python front-ends call `get_supported_tasks` and `reset_mm_cache` before they open their door (protocol
section 13); the others are questions with an honest answer for an engine that has no such feature.
"""

from __future__ import annotations

from muro.engine.interface import EngineCore, operation


class StandardOperations:
    """Defaults for the operations that front-ends call on their own accord."""

    def __init__(self, engine: EngineCore) -> None:
        self._engine = engine

    @operation
    def get_supported_tasks(self) -> list[str]:
        return list(self._engine.info().supported_tasks)

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
    def is_sleeping(self) -> bool:
        return False

    @operation
    def list_loras(self) -> list[int]:
        return []

    @operation
    def get_weight_version(self) -> str:
        return "default"

    @operation
    def execute_dummy_batch(self) -> None:
        self._engine.execute_dummy_batch()
