"""The tutorial: a whole engine in fifteen lines. Repeats each prompt, a token per step; it does not sample."""

from collections.abc import Iterable
from itertools import cycle, islice

from muro.engine import Engine, StepResult
from muro.engine.interface import TakeAborts
from muro.wire.output import EngineCoreOutput, FinishReason
from muro.wire.request import EngineCoreRequest

LENGTH = FinishReason.LENGTH


class EchoEngine(Engine):  # noqa: D101 - the module's docstring
    def __init__(self) -> None:
        self._left: dict[str, list[int]] = {}  # what each request has still to say, last token first

    def add_request(self, request_id: str, request: EngineCoreRequest) -> None:
        self._left[request_id] = list(islice(cycle(request.prompt_token_ids or [0]), self.token_limit(request)))[::-1]

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._left.pop(request_id, None)

    def step(self, take_aborts: TakeAborts) -> StepResult:
        self.abort_requests(take_aborts())
        news = [EngineCoreOutput(i, [t.pop()], finish_reason=None if t else LENGTH) for i, t in self._left.items()]
        self._left = {i: left for i, left in self._left.items() if left}
        return StepResult(news)

    def has_work(self) -> bool:
        return bool(self._left)
