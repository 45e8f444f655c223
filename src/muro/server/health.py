"""How the server and its engines are, from memory alone: no engine is asked, so it can be told while one is stuck.

Live: this process answers. Ready: a request would be taken now. What an engine does is read from its progress page,
which an engine that was started elsewhere does not have.
"""

from __future__ import annotations

import os

import msgspec

from muro.clients.interface import EngineStatus
from muro.crew.interface import ServerStatus
from muro.server.errors import without_log
from muro.server.probe import Probed
from muro.server.service import Service


class EngineHealth(msgspec.Struct, kw_only=True):
    """One engine. Times in seconds; None: not known, or never."""

    rank: int
    state: str
    phase: str | None = None
    """What it does, or did when it died."""
    percent: float | None = None
    pid: int | None = None
    generation: int = 0
    uptime: float | None = None
    """Since it is ready."""
    restarts: int = 0
    steps: int | None = None
    """Steps ended since it was started."""
    last_step_age: float | None = None
    """Since its last step ended."""
    step_age: float | None = None
    """Since its present step began; None between steps."""
    running: int | None = None
    waiting: int | None = None
    in_flight: int = 0
    """Requests of this server that it has not ended."""
    error: str | None = None


class QueueHealth(msgspec.Struct):
    """What waits for its first token."""

    requests: int
    tokens: int


class ServerHealth(msgspec.Struct, kw_only=True):
    """One of several server processes with the same engines."""

    server: int
    state: str
    """"starting", "serving", "restarting" or "stopped"."""
    pid: int | None = None
    generation: int = 0
    """How often it was replaced."""
    uptime: float | None = None
    """Since it serves."""
    answering: bool = False
    """Whether it gives this answer."""


class Health(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The body of `/health`. `status` is "ok" or "unavailable"; then `reason` says why."""

    status: str
    reason: str | None = None
    engines: list[EngineHealth]
    queue: QueueHealth
    servers: list[ServerHealth] = []
    """If there are several; `queue` and `in_flight` are those of the one that answers."""
    deep: list[Probed] | None = None


def health(service: Service, now_ns: int) -> Health:
    """The present state; `now_ns` on CLOCK_MONOTONIC."""
    reason = service.obstacle()
    admission = service.admission
    return Health(
        status="ok" if reason is None else "unavailable",
        reason=reason,
        engines=[engine_health(status, now_ns) for status in service.llm.engines()],
        queue=QueueHealth(admission.queued_requests, admission.queued_tokens),
        servers=[server_health(status, now_ns) for status in service.crew.servers()],
    )


def server_health(status: ServerStatus, now_ns: int) -> ServerHealth:
    """What is known of one server."""
    return ServerHealth(
        server=status.index,
        state=status.state,
        pid=status.pid,
        generation=status.generation,
        uptime=None if status.since is None else max(0.0, now_ns / 1e9 - status.since),
        answering=status.pid == os.getpid(),
    )


def engine_health(status: EngineStatus, now_ns: int) -> EngineHealth:
    """What is known of one engine."""
    found = EngineHealth(
        rank=status.rank,
        state=status.state,
        pid=status.pid,
        generation=status.generation,
        uptime=status.uptime,
        restarts=status.restarts,
        in_flight=status.in_flight,
        error=without_log(status.error) or None,
    )
    page = status.progress
    runs = status.state not in ("dead", "restarting")
    if page is not None:
        found.phase, found.percent = page.phase, 100.0 if status.state == "serving" else page.percent
        found.steps = page.steps_ended
        found.last_step_age = _age(page.step_ended_ns, now_ns)
        found.step_age = _age(page.step_started_ns, now_ns) if page.stepping and runs else None
        if runs:
            found.running, found.waiting = page.running, page.waiting
    return found


def _age(since_ns: int, now_ns: int) -> float | None:
    return max(0, now_ns - since_ns) / 1e9 if since_ns else None
