"""An echo that goes wrong on command, to test what stands around an engine.

Three ways to ask for a fault (see `engines.faults` for how it is written):

- at start: `--engine faulty --engine-option fault=loading:exit=7`;
- at run time: the operation `inject(fault)`, which arms it for the next time that its place is reached;
- for one request: `extra_args={"fault": "step:raise"}` in its sampling parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from muro.engine.interface import EngineInfo, FailureCallback, Report, StepResult, TakeAborts, operation
from muro.engines.echo import EchoEngine
from muro.engines.faults import Culprit, Fault, commit, parse_fault
from muro.wire.output import EngineCoreOutput
from muro.wire.request import EngineCoreRequest

LOADING_STEPS = 4


class FaultyOptions(msgspec.Struct, frozen=True):
    """`fault`: one fault, armed from the start. `step_ms`: see the paced engine. `max_model_len`: in tokens."""

    fault: str | None = None
    step_ms: float = 0.0
    max_model_len: int = 2**20


class FaultyEngine(EchoEngine):
    """Repeats prompts like `EchoEngine`, until it is told otherwise."""

    def __init__(self, options: FaultyOptions, report: Report) -> None:
        super().__init__()
        self._options = options
        self._armed: list[Fault] = [parse_fault(options.fault)] if options.fault else []
        self._by_request: dict[str, Fault] = {}
        self._culprit = Culprit()
        self._reach("construct")
        for done in range(LOADING_STEPS):
            report("weights", 100 * done / LOADING_STEPS)
            self._reach("loading")

    def info(self) -> EngineInfo:
        return EngineInfo(max_model_len=self._options.max_model_len)

    def on_executor_failure(self, callback: FailureCallback) -> None:
        self._culprit.executor_failed = callback

    def preprocess(self, request: EngineCoreRequest) -> EngineCoreRequest:
        self._reach("preprocess", request.request_id, requested_fault(request))
        return request

    def add_request(self, request_id: str, request: EngineCoreRequest) -> None:
        fault = requested_fault(request)
        self._reach("add", request_id, fault)
        super().add_request(request_id, request)
        if fault is not None:
            self._by_request[request_id] = fault

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        ids = list(request_ids)
        super().abort_requests(ids)
        for request_id in ids:
            self._by_request.pop(request_id, None)

    def step(self, take_aborts: TakeAborts) -> StepResult:
        if self._options.step_ms:
            commit(Fault("step", "sleep", str(self._options.step_ms / 1000)))
        self._reach("step")
        for request_id, fault in list(self._by_request.items()):
            if fault.place == "step":
                del self._by_request[request_id]
                self._culprit.commit(fault, request_id)
        if self._culprit.barren:
            self.abort_requests(take_aborts())
            return StepResult([])
        result = super().step(take_aborts)
        for output in result.outputs:
            self._reach("output", output.request_id, self._by_request.get(output.request_id), output)
            if output.finish_reason is not None:
                self._by_request.pop(output.request_id, None)
        return result

    def shutdown(self) -> None:
        self._reach("shutdown")

    @operation
    def inject(self, fault: str) -> None:
        """Arm a fault for the next time that its place is reached; the place `operation` is reached now."""
        parsed = parse_fault(fault)
        self._armed.append(parsed)
        self._reach("operation")

    @operation
    def give_back(self, kind: str) -> Any:
        """Return something awkward: set, lock, type, big, nan, deep, long=BYTES, or raise=..."""
        name, _, argument = kind.partition("=")
        return AWKWARD[name](argument)

    @operation
    def num_live(self) -> int:
        """Requests that the engine holds."""
        return len(self._left)

    def _reach(
        self,
        place: str,
        request_id: str | None = None,
        of_request: Fault | None = None,
        output: EngineCoreOutput | None = None,
    ) -> None:
        if of_request is not None and of_request.place == place:
            self._culprit.commit(of_request, request_id, output)
        for fault in [f for f in self._armed if f.place == place]:
            self._armed.remove(fault)
            self._culprit.commit(fault, request_id, output)


def requested_fault(request: EngineCoreRequest) -> Fault | None:
    """The fault that a request asks for, if any."""
    extra = request.sampling_params.extra_args if request.sampling_params else None
    text = extra.get("fault") if extra else None
    return parse_fault(text) if isinstance(text, str) else None


def _deep(_: str) -> list[Any]:
    nested: list[Any] = []
    for _level in range(100_000):
        nested = [nested]
    return nested


def _lock(_: str) -> Any:
    import threading

    return threading.Lock()


def _raise(text: str) -> Any:
    raise ValueError({text: object()})


AWKWARD: dict[str, Callable[[str], Any]] = {
    "set": lambda _: {1, 2, 3},
    "lock": _lock,
    "type": lambda _: int,
    "big": lambda _: 2**70,
    "nan": lambda _: float("nan"),
    "deep": _deep,
    "long": lambda size: b"x" * int(size),
    "raise": _raise,
}
