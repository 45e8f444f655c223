"""The busy loop: take input, step, post outputs. Knows no socket, no signal, no data parallelism.

Invariants:
- Everything of the engine but `preprocess` happens on the thread that runs this loop.
- Idle means blocked on the input queue: no polling, no CPU. Whoever wants the loop's attention, a signal
  handler included, puts an event.
- What is given out while there is more to compute goes through the output queue, so that encoding and sending overlap
  with the next step. The last word before idling has nothing to overlap with and is sent without that detour.
- While there is work the input queue is emptied without blocking between two steps.
- The page says what is being done before it is done: whoever watches from outside must see what hangs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import Empty

from muro.engine.events import (
    Abort,
    Add,
    Call,
    CoordinatorUp,
    Event,
    ExecutorFailed,
    GivenUp,
    PeersStep,
    Routed,
    StartWave,
    Wakeup,
)
from muro.engine.host import EngineHost
from muro.process.lifecycle import Lifecycle, State
from muro.process.policy import TickPolicy
from muro.process.queues import InputQueue, OutputQueue
from muro.transport.page import ProgressPage
from muro.wire.progress import DRAINING, SERVING, phase_bytes

NO_FORWARD_YIELD = 0.001
"""Seconds to let other threads run when there is work but no forward could be done."""
AHEAD_YIELD = 0.05
"""Seconds to wait at most for a sender that is behind; it wakes the loop when it has caught up."""

_ACTIVITIES: dict[type, tuple[bytes, int]] = {
    Add: (b"a new request", 1),
    Abort: (b"an abort", 1),
    StartWave: (b"the start of a wave", 1),
    PeersStep: (b"the call of another rank", 0),
    CoordinatorUp: (b"word of the coordinator", 0),
    GivenUp: (b"requests given up", 0),
    ExecutorFailed: (b"a failed executor", 0),
    Wakeup: (b"a wake-up", 0),
}
"""What the page says while an event is handled, and whether the event came from the receiver."""


class BusyLoop:
    """Turns until the lifecycle has ended.

    Args:
        send_now: sends at once, in this thread, what need not be queued behind anything; whether it did.
        stop_requested: whether somebody asked for a stop (a signal was recorded).
        drain: seconds that running requests get after that.
    """

    def __init__(
        self,
        host: EngineHost,
        inbox: InputQueue,
        outbox: OutputQueue,
        page: ProgressPage,
        policy: TickPolicy,
        lifecycle: Lifecycle,
        *,
        send_now: Callable[[list[Routed]], bool],
        stop_requested: Callable[[], bool],
        drain: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host = host
        self._inbox = inbox
        self._outbox = outbox
        self._page = page
        self._policy = policy
        self._lifecycle = lifecycle
        self._send_now = send_now
        self._stop_requested = stop_requested
        self._drain = drain
        self._clock = clock
        self._shown = SERVING

    def run(self) -> None:
        """Run until stopped. Raises what ends the engine."""
        while not self._lifecycle.ended:
            self._take_input()
            if self._stop_requested():
                self._stop()
            else:
                self._compute()

    def reject_rest(self) -> None:
        """After the end: everything that is still queued gets its answer."""
        while not self._inbox.empty():
            event = self._inbox.get_nowait()
            if not isinstance(event, ExecutorFailed):  # too late to matter
                self._apply(event)

    def _take_input(self) -> None:
        inbox = self._inbox
        if not self._is_busy() and not self._stop_requested():
            self._post(self._host.went_idle() + self._policy.before_idle())
            self._show_phase()
            self._page.idles(self._host.num_live - self._host.num_held, self._host.num_held)
            self._apply(inbox.get())
        while not inbox.empty():
            self._apply(inbox.get_nowait())

    def _is_busy(self) -> bool:
        return self._host.has_work() or self._policy.busy

    def _compute(self) -> None:
        """One step, with requests or, if the policy wants it, without."""
        if self._host.has_work():
            self._step()
        elif self._policy.busy:
            self._page.step_started()
            routed = self._policy.after_step(False, False)
            self._page.step_ended(
                0, self._host.num_live - self._host.num_held, self._host.num_held, self._host.achieved
            )
            self._post(routed)

    def _step(self) -> None:
        host = self._host
        if self._shown != SERVING:
            self._show_phase()
        self._page.step_started()
        routed, executed = host.step()
        self._post(routed)
        tokens = sum(len(o.new_token_ids) for r in routed for o in r.message.outputs)
        held = host.num_held
        self._page.step_ended(tokens, host.num_live - held, held, host.achieved)
        if not tokens:
            self._show_phase()
        has_work = host.has_work()
        self._post(self._policy.after_step(executed, has_work))
        if has_work and not executed and not self._policy.busy:
            self._yield(NO_FORWARD_YIELD)
        elif has_work and self._outbox.runs_ahead():
            self._yield(AHEAD_YIELD)

    def _yield(self, seconds: float) -> None:
        try:
            event = self._inbox.get(timeout=seconds)
        except Empty:
            return
        self._apply(event)

    def _stop(self) -> None:
        """A stop was asked for: drain if there is time for it, then abort what is left."""
        self._host.stop_accepting()
        self._lifecycle.ask_to_stop(self._clock(), self._drain)
        if self._lifecycle.state is State.DRAINING:
            self._show_phase()
            self._compute()
        self._lifecycle.tick(self._clock(), idle=not self._is_busy())
        if self._lifecycle.ended:
            self._post(self._host.abort_all())

    def _show_phase(self) -> None:
        draining = self._lifecycle.state is State.DRAINING
        wanted = self._host.phase() or (DRAINING if draining else SERVING)
        if wanted != self._shown:
            self._shown = wanted
            self._page.set_phase(wanted)

    def _apply(self, event: Event) -> None:
        if isinstance(event, Call):
            activity, counted = phase_bytes(f"call {event.method}"), 1
        else:
            activity, counted = _ACTIVITIES[type(event)]
        self._page.turns_to(activity, counted)
        self._post(self._host.apply(event) + self._policy.heard(event, self._host.has_work()))

    def _post(self, routed: list[Routed]) -> None:
        """Give messages out: to the sender, which overlaps with the next step, or at once if there will be none."""
        if routed and (self._is_busy() or not self._send_now(routed)):
            self._outbox.put(routed)
