"""Which recorded request or call a live one is answered as. Pure."""

from __future__ import annotations

from muro.probe.script import Asked, Called, Script
from muro.wire.control import UtilityRequest
from muro.wire.request import EngineCoreRequest


class Parts:
    """The recorded answers of one engine, each of which is given once."""

    def __init__(self, script: Script, peer: bytes) -> None:
        self._asked = [asked for asked in script.asked if asked.peer == peer]
        self._called = [called for called in script.called if called.peer == peer and called.answer is not None]

    @property
    def left(self) -> list[Asked]:
        """Requests that nobody has made yet."""
        return self._asked

    def of_request(self, request: EngineCoreRequest) -> Asked | None:
        """The recorded request that comes nearest: by prompt, then by its length, then the next one; None: no more."""
        if not self._asked:
            return None
        best = min(self._asked, key=lambda asked: (_distance(asked, request), asked.number))
        self._asked.remove(best)
        return best

    def of_call(self, call: UtilityRequest) -> Called | None:
        """The next recorded call of the same operation, the last one again if there is no other; None if none was."""
        known = [called for called in self._called if called.call.method == call.method]
        if len(known) > 1:
            self._called.remove(known[0])
        return known[0] if known else None


def _distance(asked: Asked, live: EngineCoreRequest) -> int:
    here, there = live.prompt_token_ids or [], asked.request.prompt_token_ids or []
    if asked.prompt_known and here == there:
        return 0
    return 1 if len(here) == len(there) else 2
