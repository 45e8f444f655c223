"""Statistics that engines report (protocol section 11): maps, all keys written, counts per step."""

from __future__ import annotations

from typing import Any

import msgspec


class PrefixCacheStats(msgspec.Struct):
    """Prefix cache use since the last report; `queries` and `hits` count tokens."""

    reset: bool = False
    requests: int = 0
    queries: int = 0
    hits: int = 0
    preempted_requests: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0
    hits_by_source: dict[str, int] = msgspec.field(default_factory=dict)


class KVCacheEvictionEvent(msgspec.Struct):
    """One evicted block: its life and its uses, in seconds."""

    lifetime_seconds: float
    idle_seconds: float
    reuse_gaps_seconds: list[float] = msgspec.field(default_factory=list)


class SchedulerStats(msgspec.Struct):
    """State of the scheduler after a step; `kv_cache_usage` is 0 ... 1."""

    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    num_skipped_waiting_reqs: int = 0
    step_counter: int = 0
    current_wave: int = 0
    kv_cache_usage: float = 0.0
    prefix_cache_stats: PrefixCacheStats = msgspec.field(default_factory=PrefixCacheStats)
    connector_prefix_cache_stats: PrefixCacheStats | None = None
    kv_cache_eviction_events: list[KVCacheEvictionEvent] = msgspec.field(default_factory=list)
    spec_decoding_stats: dict[str, Any] | None = None
    kv_connector_stats: dict[str, Any] | None = None
    waiting_lora_adapters: dict[str, int] = msgspec.field(default_factory=dict)
    running_lora_adapters: dict[str, int] = msgspec.field(default_factory=dict)
    cudagraph_stats: dict[str, Any] | None = None
    perf_stats: dict[str, Any] | None = None
    num_kv_fetch_reqs_by_stage: dict[str, int] = msgspec.field(default_factory=dict)
    iteration_details: dict[str, Any] | None = None
    ec_connector_stats: dict[str, Any] | None = None


class PrefillStats(msgspec.Struct):
    """Tokens of one request's prompt; computed = prompt - cached, cached = local + external."""

    num_prompt_tokens: int = 0
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_local_cached_tokens: int = 0
    num_external_cached_tokens: int = 0
    num_cache_creation_tokens: int = 0
