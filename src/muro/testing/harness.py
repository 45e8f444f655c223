"""StepHarness: an engine behind its host, in one thread and without a socket, a step at a time.

Does what the receiver, the loop and the sender do around an engine, but only when told to, and keeps every
message that would have been sent. Nothing here checks anything: see `testing.conformance`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from muro.config import Limits
from muro.engine.admission import Admission
from muro.engine.checks import prompt_length
from muro.engine.events import Abort, Add, Call, Routed
from muro.engine.host import EngineHost
from muro.engine.interface import EngineCore
from muro.ids import ClientIndex, EngineRank
from muro.testing.clock import ManualClock
from muro.wire.output import EngineCoreOutput, FinishReason, UtilityOutput
from muro.wire.request import EngineCoreRequest, SamplingParams
from muro.wire.stats import SchedulerStats

MAX_STEPS = 1000
"""Steps after which `run` takes an engine for one that never ends."""


def generate_request(
    request_id: str, prompt: Sequence[int] = (1, 2, 3), *, max_tokens: int | None = 4, **sampling: Any
) -> EngineCoreRequest:
    """A greedy request that only `max_tokens` ends; `sampling` adds to or overrides its sampling parameters."""
    params = {"temperature": 0.0, "ignore_eos": True, "max_tokens": max_tokens} | sampling
    return EngineCoreRequest(request_id, list(prompt), sampling_params=SamplingParams(**params))


class StepHarness:
    """Drives one engine for any number of clients.

    Attributes:
        host: the engine's host, for what the harness has no word for.
        messages: everything that would have been sent, in order.
        clock: the time that messages are stamped with; stands still.
    """

    def __init__(self, engine: EngineCore, *, limits: Limits | None = None, log_stats: bool = True) -> None:
        self.clock = ManualClock()
        self.admission = Admission(limits or Limits())
        self.messages: list[Routed] = []
        self.host = EngineHost(
            engine,
            rank=EngineRank(0),
            name=type(engine).__name__,
            admission=self.admission,
            clock=self.clock,
            post_late=self.messages.append,
            log_stats=log_stats,
        )
        self._late_aborts: list[Abort] = []
        self._calls = 0

    def submit(self, request: EngineCoreRequest, *, client: int = 0) -> None:
        """Let a request in, as the receiver and the loop do: check, preprocess, add."""
        index = ClientIndex(client)
        try:
            self.admission.check(0)
            prepared = self.host.prepare(request)
        except Exception as error:
            self.messages.append(self.host.rejection(index, request.request_id, error))
            return
        self.admission.admit(0)
        self.messages += self.host.apply(
            Add(index, index, request.request_id, 0, prepared, prompt=prompt_length(request))
        )

    def abort(self, *request_ids: str, client: int = 0) -> None:
        """A client's ABORT that arrives between two steps."""
        event = Abort(ClientIndex(client), list(request_ids))
        self.host.abort_soon(event)
        self.messages += self.host.apply(event)

    def abort_during_step(self, *request_ids: str, client: int = 0) -> None:
        """A client's ABORT that arrives during the next step: on the fast lane now, in order after the step."""
        event = Abort(ClientIndex(client), list(request_ids))
        self.host.abort_soon(event)
        self._late_aborts.append(event)

    def call(self, method: str, *args: Any, client: int = 0) -> int:
        """Call an operation; returns the id under which `answer` finds what came back."""
        self._calls += 1
        self.messages += self.host.apply(Call(ClientIndex(client), self._calls, method, list(args)))
        return self._calls

    def step(self) -> bool:
        """One step; whether a forward ran. Raises what ends the engine."""
        routed, executed = self.host.step()
        self.messages += routed
        late, self._late_aborts = self._late_aborts, []
        for event in late:
            self.messages += self.host.apply(event)
        if not executed:
            time.sleep(0.001)  # as the loop does: others may have to work so that a forward becomes possible
        return executed

    def run(self, max_steps: int = MAX_STEPS) -> None:
        """Step until there is no work left, then idle. Raises TimeoutError after `max_steps`."""
        for _ in range(max_steps):
            if not self.host.has_work():
                self.messages += self.host.went_idle()
                return
            self.step()
        raise TimeoutError(f"the engine still has work after {max_steps} steps")

    def outputs(self, request_id: str, *, client: int = 0) -> list[EngineCoreOutput]:
        """All outputs that a client got for a request."""
        return [
            output
            for routed in self.messages
            if routed.client == client
            for output in routed.message.outputs
            if output.request_id == request_id
        ]

    def tokens(self, request_id: str, *, client: int = 0) -> list[int]:
        """All tokens that a client got for a request."""
        return [token for output in self.outputs(request_id, client=client) for token in output.new_token_ids]

    def finishes(self, request_id: str, *, client: int = 0) -> list[FinishReason]:
        """The reasons of all final outputs of a request: one, if all is well."""
        outputs = self.outputs(request_id, client=client)
        return [output.finish_reason for output in outputs if output.finish_reason is not None]

    def answer(self, call_id: int, *, client: int = 0) -> UtilityOutput | None:
        """What an operation answered, or None if it has not answered yet."""
        for routed in self.messages:
            answer = routed.message.utility_output
            if routed.client == client and answer is not None and answer.call_id == call_id:
                return answer
        return None

    def stats(self) -> list[SchedulerStats]:
        """All statistics that were sent."""
        sent = [routed.message.scheduler_stats for routed in self.messages]
        return [stats for stats in sent if stats is not None]
