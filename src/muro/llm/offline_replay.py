"""The requests of one call over a client for threads, read in batches: they outlive their engine as streams do.

What may go on and how is decided in `replay`, who may run at which time in `quarantine`. Invariants:

- One thread uses it. The record of what was delivered is what `outputs` has given.
- A request is either on an engine or *idle*. Whenever some are idle, as many of them as may run are sent before
  outputs are waited for; then at least one request is on an engine, so that waiting comes to an end.
"""

from __future__ import annotations

import logging
from collections import Counter

from muro.clients.interface import EngineCoreClient
from muro.errors import EngineDeadError
from muro.llm import replay
from muro.llm.quarantine import Quarantine
from muro.llm.replay import DeathPolicy
from muro.wire.output import EngineCoreOutput, FinishReason
from muro.wire.request import EngineCoreRequest

log = logging.getLogger(__name__)


class _Run:
    """One request, and what it has delivered."""

    __slots__ = ("delivered", "request")

    def __init__(self, request: EngineCoreRequest) -> None:
        self.request = request
        self.delivered: list[int] = []


class Batch:
    """Requests until their end, in however many attempts.

    Args:
        client: read in batches by nobody else meanwhile.
        policy: what to do when an engine dies and is replaced.
    """

    def __init__(self, client: EngineCoreClient, policy: DeathPolicy) -> None:
        self._client = client
        self._policy = policy
        self._quarantine = Quarantine()
        self._runs: dict[str, _Run] = {}
        self._idle: dict[str, _Run] = {}
        self._deaths: Counter[int] = Counter()
        """Per rank; tells its engine from the one before."""
        self._death: EngineDeadError | None = None

    def add(self, request: EngineCoreRequest) -> None:
        """Take a request on; it is sent by `outputs`. Raises nothing."""
        self._runs[request.request_id] = self._idle[request.request_id] = _Run(request)
        self._quarantine.enter(request.request_id)

    def outputs(self) -> list[EngineCoreOutput]:
        """Wait for the next outputs of these requests; ERROR is among them, but for deaths that a request survives.

        Raises:
            EngineDeadError: requests were lost, or waited in vain.
            RequestFailedError: a request cannot continue, or is quarantined.
            InvalidRequestError: one was refused.
        """
        self._send()
        lost: list[EngineCoreOutput] = []
        outputs: list[EngineCoreOutput] = []
        batch = self._client.get_outputs()
        for output in batch.outputs:
            if output.request_id in self._runs:  # else of an earlier call that was interrupted
                (lost if _died(output) else outputs).append(output)
        for output in outputs:
            self._take(output)
        if lost:
            self._lose(batch.engine or 0, lost)
        return outputs

    def end(self, request_id: str) -> None:
        """A request has had enough."""
        if request_id in self._runs:
            self._forget(request_id)
            self._client.abort([request_id])

    def abort(self) -> None:
        """End all that have not ended."""
        ids = list(self._runs)
        self._runs.clear()
        self._idle.clear()
        self._client.abort(ids)

    def _send(self) -> None:
        """Send whoever is idle and may run, waiting for an engine if there is none."""
        while self._idle:
            try:
                if self._death is not None:
                    self._client.wait_serving(self._policy.restart_wait)
                    self._death = None
                while self._send_those_who_may():
                    pass
                return
            except EngineDeadError as death:
                if self._death is not None or not self._waits_for(death):
                    raise
                self._death = death

    def _send_those_who_may(self) -> bool:
        """Whether that made way for others: suspects are tried in an order of theirs, and several at once."""
        before = len(self._idle)
        for request_id, run in list(self._idle.items()):
            if self._quarantine.may_run(request_id):
                self._send_one(request_id, run)
        return 0 < len(self._idle) < before

    def _send_one(self, request_id: str, run: _Run) -> None:
        self._check(run)
        rank = self._client.add_request(replay.continued(run.request, run.delivered))
        self._quarantine.began(request_id, (rank, self._deaths[rank]))
        del self._idle[request_id]

    def _take(self, output: EngineCoreOutput) -> None:
        run = self._runs[output.request_id]
        if output.new_token_ids:
            run.delivered += output.new_token_ids
            self._quarantine.delivered(output.request_id, len(output.new_token_ids))
        if output.finish_reason is not None:
            self._forget(output.request_id)

    def _lose(self, rank: int, lost: list[EngineCoreOutput]) -> None:
        """An engine has died with these requests; all others are elsewhere, or idle."""
        death = self._cause(lost[0])
        if self._policy.on_engine_death == "fail" or not self._waits_for(death):
            raise death
        self._death = death
        self._quarantine.died((rank, self._deaths[rank]), death)
        self._deaths[rank] += 1
        for output in lost:
            request_id = output.request_id
            run = self._idle[request_id] = self._runs[request_id]
            self._quarantine.ask(request_id)
            if (verdict := self._quarantine.verdict(request_id)) is not None:
                log.error("request %s is quarantined: %s", request_id, verdict)
                raise verdict
            self._check(run)

    def _cause(self, lost: EngineCoreOutput) -> EngineDeadError:
        """The death; if another engine serves already, only what the output says of it."""
        try:
            self._client.check_health()
        except EngineDeadError as death:
            return death
        return EngineDeadError("" if lost.error is None else lost.error.message, restarting=True)

    def _check(self, run: _Run) -> None:
        if run.delivered:
            engines = [status.ready for status in self._client.engines() if status.ready is not None]
            if (why := replay.obstacle(run.request, len(run.delivered), engines)) is not None:
                raise replay.cannot_continue(run.request.request_id, len(run.delivered), why, self._death)

    def _waits_for(self, death: EngineDeadError) -> bool:
        return death.restarting and self._policy.restart_wait > 0

    def _forget(self, request_id: str) -> None:
        del self._runs[request_id]
        self._idle.pop(request_id, None)
        self._quarantine.leave(request_id)


def _died(output: EngineCoreOutput) -> bool:
    """Whether this is the end of a request whose engine has died and is being replaced."""
    error = output.error
    return (
        output.finish_reason == FinishReason.ERROR
        and error is not None
        and error.code == EngineDeadError.code
        and error.retryable
    )
