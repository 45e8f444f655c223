"""Engines that hang, and whether their parent notices: limits, and a witness of what a supervisor says."""

import threading
import time
from typing import Any

from muro import AsyncMPClient, SyncMPClient
from muro.launch.events import EngineStalled, Event
from tests.support.counts import count

LIMIT = count(1, 5)
SLACK = 1.0
"""Seconds after the limit by which there must be a verdict."""


class Witness:
    """Notes the events of a client's supervisor, and when they came."""

    def __init__(self, client: SyncMPClient | AsyncMPClient) -> None:
        self.heard: list[tuple[float, Event]] = []
        self.forget = client._link.supervisor.subscribe(lambda event: self.heard.append((time.monotonic(), event)))

    def of(self, kind: type[Event]) -> list[tuple[float, Any]]:
        return [(at, event) for at, event in self.heard if isinstance(event, kind)]


def stalls_within(seconds: float, witness: Witness, stalls: int = 0) -> bool:
    """Whether there is one more verdict within `seconds`."""
    end = time.monotonic() + seconds
    pause = threading.Event()
    while time.monotonic() < end:
        if len(witness.of(EngineStalled)) > stalls:
            return True
        pause.wait(0.05)
    return False
