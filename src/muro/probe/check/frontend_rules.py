"""What a front-end may never send, whatever its users want: rules for each message to an engine. Pure."""

from __future__ import annotations

from typing import Final

from muro.errors import RemoteProtocolError
from muro.probe.check.report import Case, Findings
from muro.wire.codec import Request, RequestDecoder
from muro.wire.control import AbortRequest, StartDPWave, UtilityRequest
from muro.wire.frames import Frame, RequestType
from muro.wire.request import EngineCoreRequest

RULES: Final = [
    Case("messages", "Every message is one of the protocol, and can be read.", "An engine may end at one that is not."),
    Case(
        "add_layout",
        "An ADD has 20, 21 or 22 elements.",
        "An engine takes the front-end's release from it; fewer than 9 cannot be read.",
    ),
    Case(
        "client_index",
        "Requests and calls carry the index of the input socket on which they come.",
        "Answers go to the output socket of this index.",
    ),
    Case(
        "request_ids", "No id of a request is used while another request has it.", "Their outputs cannot be told apart."
    ),
    Case("call_ids", "No id of a call is used twice, or negative.", "Answers are told apart by it."),
    Case(
        "no_waves",
        "START_DP_WAVE does not come to an engine that is on its own.",
        "Waves are for ranks that step together.",
    ),
]

ADD_LENGTHS: Final = (20, 21, 22)


class FrontendWatch:
    """Takes what one front-end sends to one engine, on input sockets numbered from 0."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._decoder = RequestDecoder()
        self._calls: set[int] = set()
        self.live: dict[str, EngineCoreRequest] = {}
        """Requests that have neither ended nor been aborted; who serves them removes them."""
        self.aborted: set[str] = set()
        self.add_length = 0
        """Elements of the first ADD."""
        self.messages = 0

    def take(self, client: int, frames: list[Frame]) -> Request | None:
        """A message that came on an input socket; None if it cannot be read."""
        self.messages += 1
        if frames[0] == RequestType.ADD and len(frames) > 1:
            self._check_length(self._decoder.add_length(frames))
        try:
            message = self._decoder.decode(frames)
        except RemoteProtocolError as error:
            if not self._findings.failed("add_layout"):
                self._findings.fails("messages", error.message)
            return None
        self._findings.holds("messages", f"{self.messages} messages")
        self._findings.holds("no_waves", f"none of {self.messages} messages")
        if isinstance(message, EngineCoreRequest):
            self._take_request(client, message)
        elif isinstance(message, UtilityRequest):
            self._take_call(client, message)
        elif isinstance(message, AbortRequest):
            self.aborted.update(message.request_ids)
            for request_id in message.request_ids:
                self.live.pop(request_id, None)
        elif isinstance(message, StartDPWave):
            self._findings.fails("no_waves", f"wave {message.wave}")
        return message

    def _check_length(self, length: int) -> None:
        self.add_length = self.add_length or length
        if length not in ADD_LENGTHS:
            self._findings.fails("add_layout", f"{length} elements")
        self._findings.holds("add_layout", f"{length} elements")

    def _check_index(self, client: int, said: int) -> None:
        if said != client:
            self._findings.fails("client_index", f"{said} on input socket {client}")
        self._findings.holds("client_index", f"{client}")

    def _take_request(self, client: int, request: EngineCoreRequest) -> None:
        self._check_index(client, request.client_index)
        if request.request_id in self.live:
            self._findings.fails("request_ids", f"{request.request_id[:40]!r} again, while it was under way")
        self._findings.holds("request_ids", "each its own")
        self.live[request.request_id] = request

    def _take_call(self, client: int, call: UtilityRequest) -> None:
        self._check_index(client, call.client_index)
        if call.call_id in self._calls or call.call_id < 0:
            self._findings.fails("call_ids", f"{call.call_id} {'is negative' if call.call_id < 0 else 'again'}")
        self._findings.holds("call_ids", f"{len(self._calls) + 1} calls")
        self._calls.add(call.call_id)
