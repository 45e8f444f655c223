"""`muro bench wall`: what the wall costs, on this machine, now; `run` returns every figure in one dict.

Whatever is compared with each other is measured in turns within one run: the machine's moods fall on both. Uses
the real parts throughout (echo engine in a process of its own, ipc sockets); the comparisons are described where
they are made: `floors`, `streams.measure_bare_generators`, `forwards.ForwardEngine.run_minimal_loop`.

Keys (times in microseconds unless the name says otherwise):

    floor_us, shaped_floor_us, utility_us, utility_async_us, add_to_finish_us, add_to_finish_async_us: {p50, p99}
    streams: {"1" | "32" | "256" | "1024": {tokens_per_s, generator_tokens_per_s, backlog, generator_backlog,
        client_cpu_us_per_token, engine_cpu_us_per_token, generator_client_cpu_us_per_token}}
    bare_generator_tokens_per_s                256 streams
    loop_gap_us, minimal_loop_gap_us           median over forwards that sleep and forwards that burn
    loop_gaps_us, minimal_loop_gaps_us         {sleeping, burning}: the two apart
    step_to_step_us, bare_forward_us           {releasing, holding}
    startup_s, import_ms, base_import_ms
    rss_mb, idle_cpu_percent                   {client, engine}
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import msgspec

from muro.bench import resources
from muro.bench.floors import Floor
from muro.bench.forwards import Kind
from muro.bench.loops import FACTORY, GAP_STEP_MS, PERIOD_STEP_MS, Steps
from muro.bench.round_trips import AsyncRoundTrips, SyncRoundTrips
from muro.bench.sampling import median, spread_us, take_turns
from muro.bench.streams import Flow, measure_bare_generators, measure_batches, measure_generators
from muro.clients.aio import AsyncMPClient
from muro.clients.connect import connect, connect_async
from muro.clients.sync import SyncMPClient
from muro.config import ConnectConfig, EngineConfig

Progress = Callable[[str], None]

STREAMS = (1, 32, 256, 1024)
BARE_STREAMS = 256


class Effort(msgspec.Struct, frozen=True):
    """How much is measured."""

    turns: int = 6
    round_trips: int = 500
    """Per probe and turn."""
    tokens: int = 400_000
    """Per number of streams and turn; a single stream gets a twentieth."""
    stream_turns: int = 3
    steps: int = 150
    """Per kind of forward and turn."""
    starts: int = 5
    idle_seconds: float = 4.0


QUICK = Effort(turns=1, round_trips=30, tokens=20_000, stream_turns=1, steps=20, starts=1, idle_seconds=0.5)
"""Enough to see that everything runs; the figures mean little."""


def run(effort: Effort | None = None, progress: Progress = lambda _: None) -> dict[str, Any]:
    """Measure everything (about a minute and a half). `progress` hears what is at work."""
    effort = effort or Effort()
    return {
        **_with_echo(effort, progress),
        **_steps(effort, progress),
        **_resources(effort, progress),
    }


def _with_echo(effort: Effort, progress: Progress) -> dict[str, Any]:
    """Round trips and streams: everything that talks to an echo engine."""
    with contextlib.ExitStack() as stack:
        floor = stack.enter_context(Floor(shaped=False))
        shaped = stack.enter_context(Floor(shaped=True))
        loop = asyncio.new_event_loop()
        stack.callback(loop.close)
        blocking = stack.enter_context(connect(_config("echo")))
        cooperative = loop.run_until_complete(connect_async(_config("echo")))
        stack.callback(lambda: loop.run_until_complete(cooperative.aclose()))
        return {
            **_round_trips(effort, progress, (floor, shaped), blocking, cooperative, loop),
            **_streams(effort, progress, blocking, cooperative, loop),
        }


def _round_trips(
    effort: Effort,
    progress: Progress,
    floors: tuple[Floor, Floor],
    blocking: SyncMPClient,
    cooperative: AsyncMPClient,
    loop: asyncio.AbstractEventLoop,
) -> dict[str, Any]:
    sync, aio = SyncRoundTrips(blocking), AsyncRoundTrips(cooperative, loop)
    probes: dict[str, tuple[Callable[[int], None], list[float]]] = {
        "floor_us": (floors[0].measure, floors[0].samples),
        "shaped_floor_us": (floors[1].measure, floors[1].samples),
        "utility_us": (sync.call, sync.utility),
        "utility_async_us": (aio.call, aio.utility),
        "add_to_finish_us": (sync.finish, sync.add_to_finish),
        "add_to_finish_async_us": (aio.finish, aio.add_to_finish),
    }
    for measure, samples in probes.values():  # the first ones pay for caches and connections
        measure(50)
        samples.clear()
    turns = {name: _turn(measure, effort.round_trips) for name, (measure, _) in probes.items()}
    take_turns(turns, effort.turns, progress)
    return {name: spread_us(samples) for name, (_, samples) in probes.items()}


def _turn(measure: Callable[[int], None], amount: int) -> Callable[[], None]:
    return lambda: measure(amount)


def _streams(
    effort: Effort,
    progress: Progress,
    blocking: SyncMPClient,
    cooperative: AsyncMPClient,
    loop: asyncio.AbstractEventLoop,
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    bare: list[float] = []
    run = 0
    for streams in STREAMS:
        tokens = effort.tokens if streams > 1 else effort.tokens // 20
        batches: list[Flow] = []
        generators: list[Flow] = []
        for turn in range(effort.stream_turns):
            run += 1
            progress(f"{streams} streams {turn + 1}/{effort.stream_turns}")
            batches.append(measure_batches(blocking, streams, tokens, run))
            generators.append(loop.run_until_complete(measure_generators(cooperative, streams, tokens, run)))
            if streams == BARE_STREAMS:
                bare.append(loop.run_until_complete(measure_bare_generators(streams, tokens)))
        found[str(streams)] = {
            "tokens_per_s": round(median([flow.tokens_per_s for flow in batches])),
            "generator_tokens_per_s": round(median([flow.tokens_per_s for flow in generators])),
            "backlog": max(flow.backlog for flow in batches),
            "generator_backlog": max(flow.backlog for flow in generators),
            "client_cpu_us_per_token": round(median([flow.client_cpu_us_per_token for flow in batches]), 3),
            "engine_cpu_us_per_token": round(median([flow.engine_cpu_us_per_token for flow in batches]), 3),
            "generator_client_cpu_us_per_token": round(
                median([flow.client_cpu_us_per_token for flow in generators]), 3
            ),
        }
    return {"streams": found, "bare_generator_tokens_per_s": round(median(bare))}


def _steps(effort: Effort, progress: Progress) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:

        def steps(kind: Kind, step_ms: float) -> Steps:
            config = _config(FACTORY, {"kind": kind, "step_ms": step_ms})
            return Steps(stack.enter_context(connect(config)), kind)

        gaps = {kind: steps(kind, GAP_STEP_MS) for kind in ("sleeping", "burning")}
        periods = {kind: steps(kind, PERIOD_STEP_MS) for kind in ("releasing", "holding")}
        turns: dict[str, Callable[[], None]] = {}
        for kind, probe in gaps.items():
            turns[f"{kind} loop"] = _turn(probe.through_the_wall, effort.steps)
            turns[f"{kind} minimal loop"] = _turn(probe.minimal, effort.steps)
        for kind, probe in periods.items():
            turns[f"{kind} steps"] = _turn(probe.through_the_wall, effort.steps)
            turns[f"{kind} bare"] = _turn(probe.bare, effort.steps)
        take_turns(turns, effort.stream_turns, progress)
        return {
            "loop_gap_us": _median_us([gap for probe in gaps.values() for gap in probe.gaps]),
            "minimal_loop_gap_us": _median_us([gap for probe in gaps.values() for gap in probe.minimal_gaps]),
            "loop_gaps_us": {kind: _median_us(probe.gaps) for kind, probe in gaps.items()},
            "minimal_loop_gaps_us": {kind: _median_us(probe.minimal_gaps) for kind, probe in gaps.items()},
            "step_to_step_us": {kind: probe.step_to_step_us() for kind, probe in periods.items()},
            "bare_forward_us": {kind: probe.bare_forward_us() for kind, probe in periods.items()},
        }


def _resources(effort: Effort, progress: Progress) -> dict[str, Any]:
    ours: list[float] = []
    base: list[float] = []
    starts: list[resources.Resident] = []
    turns = {
        "import": lambda: ours.append(resources.import_ms(base=False)),
        "base import": lambda: base.append(resources.import_ms(base=True)),
        "start, memory, idle": lambda: starts.append(resources.observe_resident(effort.idle_seconds)),
    }
    take_turns(turns, effort.starts, progress)
    return {
        "startup_s": round(median([start.startup_s for start in starts]), 3),
        "import_ms": round(median(ours), 1),
        "base_import_ms": round(median(base), 1),
        "rss_mb": {side: median([start.rss_mb[side] for start in starts]) for side in ("client", "engine")},
        "idle_cpu_percent": {
            side: median([start.idle_cpu_percent[side] for start in starts]) for side in ("client", "engine")
        },
    }


def _config(engine: str, options: dict[str, Any] | None = None) -> ConnectConfig:
    return ConnectConfig(engine=EngineConfig(engine=engine, options=options or {}))


def _median_us(seconds: list[float]) -> float:
    return round(median(seconds) * 1e6, 1)
