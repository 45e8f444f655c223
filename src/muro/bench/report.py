"""The figures of `bench.wall` for people: one line per claim, with what it is measured against."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Line = tuple[str, str, str, bool | None]
"""What, measured, claimed, whether the claim holds (None: nothing is claimed)."""


def lines(result: dict[str, Any]) -> list[Line]:
    """Every figure of a result with its claim."""
    return [*_round_trips(result), *_streams(result), *_steps(result), *_resources(result)]


def text(result: dict[str, Any]) -> str:
    """The lines as a table in plain text; "-" marks a claim that does not hold."""
    marks = {True: "+", False: "-", None: " "}
    return "\n".join(f"{marks[holds]} {what:<44} {found:>24}   {claim}" for what, found, claim, holds in lines(result))


def _round_trips(result: dict[str, Any]) -> Iterator[Line]:
    floor, shaped = result["floor_us"]["p50"], result["shaped_floor_us"]["p50"]
    yield "floor", f"{floor:.0f} us", "", None
    yield "shaped floor", _against(shaped, floor, "us"), "", None
    utility = result["utility_us"]["p50"]
    yield "utility call", _against(utility, floor, "us"), "<= 1.8 x floor", utility <= 1.8 * floor
    yield "  against the shaped floor", _against(utility, shaped, "us"), "<= 1.25 x shaped", utility <= 1.25 * shaped
    aio = result["utility_async_us"]["p50"]
    yield "utility call, asyncio", _against(aio, floor, "us"), "<= 2.8 x floor", aio <= 2.8 * floor
    finish = result["add_to_finish_us"]["p50"]
    yield "ADD to finish", _against(finish, floor, "us"), "<= 2.5 x floor", finish <= 2.5 * floor
    yield "ADD to finish, asyncio", _against(result["add_to_finish_async_us"]["p50"], floor, "us"), "", None


def _streams(result: dict[str, Any]) -> Iterator[Line]:
    bare = result["bare_generator_tokens_per_s"]
    yield "bare generators", f"{bare:,} tokens/s", "256 streams", None
    for streams, flow in result["streams"].items():
        rate, generated = flow["tokens_per_s"], flow["generator_tokens_per_s"]
        cpu = f"CPU {flow['client_cpu_us_per_token']:.2f} + {flow['engine_cpu_us_per_token']:.2f} us"
        if streams == "256":
            yield f"{streams} streams, batches", f"{rate:,} tokens/s", f">= 600,000; {cpu}", rate >= 600_000
            ratio = f">= 0.6 x bare: {generated / bare:.2f}"
            yield f"{streams} streams, generators", f"{generated:,} tokens/s", ratio, generated >= 0.6 * bare
        else:
            yield f"{streams} streams, batches", f"{rate:,} tokens/s", cpu, None
            yield f"{streams} streams, generators", f"{generated:,} tokens/s", "", None


def _steps(result: dict[str, Any]) -> Iterator[Line]:
    gap, minimal = result["loop_gap_us"], result["minimal_loop_gap_us"]
    yield "gap between forwards", _against(gap, minimal, "us"), "<= 2 x minimal loop", gap <= 2 * minimal
    for kind, limit in (("releasing", 1.03), ("holding", None)):
        period, bare = result["step_to_step_us"][kind], result["bare_forward_us"][kind]
        claim = "" if limit is None else f"<= {limit} x bare forward"
        holds = None if limit is None else period <= limit * bare
        yield f"step to step, forward {kind} the lock", _against(period, bare, "us"), claim, holds


def _resources(result: dict[str, Any]) -> Iterator[Line]:
    extra = result["import_ms"] - result["base_import_ms"]
    found = f"{result['import_ms']:.0f} ms ({result['base_import_ms']:.0f} base)"
    yield "import of the asyncio client", found, "<= base + 80 ms", extra <= 80
    yield "start of a client with its engine", f"{result['startup_s']:.2f} s", "", None
    for side in ("client", "engine"):
        yield f"resident memory, {side}", f"{result['rss_mb'][side]:.0f} MB", "", None
        idle = result["idle_cpu_percent"][side]
        yield f"idle CPU, {side}", f"{idle:.2f} %", "< 1 % of a core", idle < 1


def _against(value: float, base: float, unit: str) -> str:
    return f"{value:.0f} {unit} = {value / base:.2f} x"
