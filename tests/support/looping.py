"""A busy loop with everything around it, in the test's hands: its input queue raises instead of blocking for ever."""

from collections.abc import Callable
from typing import Any

import pytest

from muro.config import Limits
from muro.engine.admission import Admission
from muro.engine.events import Add, Event, Routed
from muro.engine.host import EngineHost
from muro.engine.interface import StepResult, TakeAborts
from muro.ids import ClientIndex, EngineRank
from muro.process.lifecycle import Lifecycle, Step
from muro.process.loop import BusyLoop
from muro.process.policy import Independent
from muro.process.queues import InputQueue, OutputQueue
from muro.testing.clock import ManualClock
from muro.testing.harness import generate_request
from muro.transport.page import ProgressPage
from muro.wire.output import FinishReason
from tests.support.scripted import Scripted

C0 = ClientIndex(0)
ABORT, LENGTH = FinishReason.ABORT, FinishReason.LENGTH


class Asleep(BaseException):
    """The loop would block until somebody puts an event."""


class Inbox(InputQueue):
    """Notes how it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []
        self.may_block = False

    def get(self, block: bool = True, timeout: float | None = None) -> Event:
        self.reads.append("blocking" if timeout is None else f"up to {timeout} s")
        if timeout is None and self.empty() and not self.may_block:
            raise Asleep
        return super().get(block, timeout)


class Engine(Scripted):
    """Calls `during(n)` inside its n-th forward; `stalled` steps do none."""

    def __init__(self) -> None:
        super().__init__()
        self.during: Callable[[int], None] = lambda step: None
        self.steps = 0
        self.stalled = 0
        self.batches: list[int] = []
        self.why: str | None = None
        self.prompt_tokens = 0

    def phase(self) -> str | None:
        return self.why

    def step(self, take_aborts: TakeAborts) -> StepResult:
        self.steps += 1
        self.during(self.steps)
        if self.stalled:
            self.stalled -= 1
            return StepResult([], executed=False)
        self.batches.append(len(self.held))
        result = super().step(take_aborts)
        result.prompt_tokens = self.prompt_tokens
        return result


class Rig:
    """A loop and everything around it."""

    def __init__(
        self, page: ProgressPage, *, drain: float = 0.0, policy: Any = None, engine: Engine | None = None
    ) -> None:
        self.engine = engine or Engine()
        self.page = page
        self.inbox = Inbox()
        self.outbox: OutputQueue = OutputQueue()
        self.clock = ManualClock()
        self.lifecycle = Lifecycle()
        self.lifecycle.fire(Step.READY)
        self.stop = False
        self.sent_now: list[Routed] | None = None
        """What was sent without the queue; None while that is not possible."""
        self.admission = Admission(Limits())
        self.host = EngineHost(
            self.engine,
            rank=EngineRank(0),
            name="engine",
            admission=self.admission,
            clock=self.clock,
            post_late=lambda routed: self.outbox.put([routed]),
        )
        self.loop = BusyLoop(
            self.host,
            self.inbox,
            self.outbox,
            page,
            policy or Independent(),
            self.lifecycle,
            send_now=self._send_now,
            stop_requested=lambda: self.stop,
            drain=drain,
            clock=self.clock,
        )

    def add(self, request_id: str, max_tokens: int = 3) -> None:
        self.admission.admit(0)
        self.inbox.put(Add(C0, C0, request_id, 0, generate_request(request_id, max_tokens=max_tokens)))

    def ask_to_stop(self) -> None:
        self.stop = True
        self.inbox.wake()

    def run_until_asleep(self) -> None:
        with pytest.raises(Asleep):
            self.loop.run()

    def _send_now(self, routed: list[Routed]) -> bool:
        if self.sent_now is None:
            return False
        self.sent_now += routed
        return True

    def sent(self) -> list[Routed]:
        """Everything posted so far, and not looked at before."""
        found: list[Routed] = []
        while (item := self.outbox.take()) is not None:
            assert isinstance(item, list)
            found += item
        return found

    def finishes(self) -> dict[str, list[FinishReason]]:
        ends: dict[str, list[FinishReason]] = {}
        for routed in self.sent():
            for output in routed.message.outputs:
                if output.finish_reason is not None:
                    ends.setdefault(output.request_id, []).append(output.finish_reason)
        return ends
