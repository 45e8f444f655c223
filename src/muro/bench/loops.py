"""What the wall adds to an engine's steps: the gap between two forwards, and from one step to the next.

The engine (`bench.forwards`) holds the stopwatch, in its own process, while a client reads its outputs in
batches. It is compared with a minimal loop around the same engine, and with the bare forward, both run in that
same process while the client waits.
"""

from __future__ import annotations

from typing import Any

import msgspec

from muro.bench.forwards import Kind, Times
from muro.bench.sampling import median
from muro.clients.interface import EngineCoreClient
from muro.wire.request import EngineCoreRequest, SamplingParams

FACTORY = "muro.bench.forwards:create_engine"
STREAMS = 64
GAP_STEP_MS = 2.0
"""Forwards of the gap measurement: short, since only what lies between them counts."""
PERIOD_STEP_MS = 10.0
"""Forwards of the step-to-step measurement: a decode step of a small model, or of a large one on a large device."""


class Steps:
    """Measures one engine; `kind` says which of its forwards."""

    def __init__(self, client: EngineCoreClient, kind: Kind) -> None:
        self._client = client
        self._kind = kind
        self._run = 0
        self._through = Times()
        self._minimal = Times()
        self._bare: list[float] = []

    def through_the_wall(self, steps: int) -> None:
        """So many steps with 64 streams that are read in batches."""
        self._run += 1
        self._client.call("take_times")
        for number in range(STREAMS):
            self._client.add_request(
                EngineCoreRequest(
                    request_id=f"{self._kind}-{self._run}-{number}",
                    prompt_token_ids=[number],
                    sampling_params=SamplingParams(max_tokens=steps),
                )
            )
        unfinished = STREAMS
        while unfinished:
            batch = self._client.get_outputs()
            unfinished -= sum(output.finish_reason is not None for output in batch.outputs)
        _extend(self._through, self._client.call("take_times"))

    def minimal(self, steps: int) -> None:
        """The same engine in a minimal loop."""
        _extend(self._minimal, self._client.call("run_minimal_loop", STREAMS, steps))

    def bare(self, rounds: int) -> None:
        """The forward alone."""
        self._bare += self._client.call("time_bare_forward", rounds)

    @property
    def gaps(self) -> list[float]:
        """Seconds between forwards through the wall."""
        return self._through.gaps

    @property
    def minimal_gaps(self) -> list[float]:
        """Seconds between forwards in the minimal loop."""
        return self._minimal.gaps

    def step_to_step_us(self) -> float:
        """Median, through the wall."""
        return round(median(self._through.periods) * 1e6, 1)

    def bare_forward_us(self) -> float:
        """Median of the forward alone."""
        return round(median(self._bare) * 1e6, 1)


def _extend(times: Times, more: Any) -> None:
    found = msgspec.convert(more, Times)
    times.gaps += found.gaps
    times.periods += found.periods
