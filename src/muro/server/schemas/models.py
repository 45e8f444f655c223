"""`GET /v1/models`."""

from __future__ import annotations

from typing import Literal

import msgspec


class ModelCard(msgspec.Struct):
    """One model that is served. `max_model_len` (in tokens) is vLLM's addition."""

    id: str
    created: int
    max_model_len: int | None = None
    root: str | None = None
    owned_by: str = "muro"
    object: Literal["model"] = "model"


class ModelList(msgspec.Struct):
    """All models that are served."""

    data: list[ModelCard]
    object: Literal["list"] = "list"
