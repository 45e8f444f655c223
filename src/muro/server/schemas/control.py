"""Options and answers of the routes that control engines; named as vLLM's server names them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from muro.clients.scaling import DRAIN_TIMEOUT

PauseMode = Literal["abort", "wait", "keep"]
"""What becomes of running requests: they end, are waited for, or stand still."""


class NoOptions(msgspec.Struct):
    """Nothing to choose."""


class SleepOptions(msgspec.Struct):
    """`level` 1 gives the memory of the cache back, 2 that of the weights, too."""

    level: Annotated[int, msgspec.Meta(ge=0, le=2)] = 1
    mode: PauseMode = "abort"


class WakeUpOptions(msgspec.Struct):
    """What to bring back, "weights" or "kv_cache"; none: all. "scheduling" ends a sleep at level 0."""

    tags: list[Literal["weights", "kv_cache", "scheduling"]] | None = None


class PauseOptions(msgspec.Struct):
    """`clear_cache`: forget what the prefix cache holds."""

    mode: PauseMode = "abort"
    clear_cache: bool = True


class PrefixCacheOptions(msgspec.Struct):
    """Whether running requests are computed anew, and whether caches outside the engine are emptied."""

    reset_running_requests: bool = False
    reset_external: bool = False


class CollectiveRpcRequest(msgspec.Struct, kw_only=True):
    """Which method with which arguments; `timeout` in seconds."""

    method: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    args: list[Any] = []
    kwargs: dict[str, Any] | None = None
    timeout: Annotated[float, msgspec.Meta(gt=0)] | None = None


class CollectiveRpcResponse(msgspec.Struct):
    """What each executor gave, engine by engine."""

    results: list[Any]


class ScaleRequest(msgspec.Struct, kw_only=True):
    """How many engines there shall be; those that leave get `drain_timeout` seconds for what they have."""

    engines: int
    drain_timeout: Annotated[float, msgspec.Meta(ge=0)] = DRAIN_TIMEOUT


class Scaled(msgspec.Struct):
    """Which engines serve now."""

    ranks: list[int]


class ScaleElasticEpRequest(msgspec.Struct, kw_only=True):
    """The same by the names of vLLM's server."""

    new_data_parallel_size: int
    drain_timeout: Annotated[float, msgspec.Meta(ge=0)] = DRAIN_TIMEOUT


class Message(msgspec.Struct):
    """What has happened."""

    message: str


class IsSleeping(msgspec.Struct):
    """Whether an engine sleeps."""

    is_sleeping: bool


class IsPaused(msgspec.Struct):
    """Whether an engine is paused."""

    is_paused: bool


class Status(msgspec.Struct):
    """What has become of the engines."""

    status: str


class Success(msgspec.Struct):
    """Whether every engine has done it."""

    success: bool


class WeightVersion(msgspec.Struct):
    """What the weights are called."""

    weight_version: Annotated[str, msgspec.Meta(max_length=256)]
