"""`create_engine`: the simulator as an engine of `muro.engine.interface`.

The scheduler, the cache accounting and the sampling are those of `core`. Here is what goes wrong, and where: each
place of `engines.faults` is reached on the thread on which a real engine would be there. Faults come

- from the start: `--fault hang@time=30`, `--engine-option scenario=FILE`;
- at run time, by the operations `inject_fault`, `list_faults`, `clear_faults`;
- with one request: `"vllm_xargs": {"fault": "step:raise"}` in its body, `extra_args` in the wire's terms.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import msgspec

from muro.core.request import Request
from muro.core.stepper import StepperEngine
from muro.engine.interface import Engine, EngineInfo, FailureCallback, Report, StepResult, TakeAborts, operation
from muro.engines.faults import Culprit, Fault, commit, parse_fault
from muro.engines.sim.executor import SimExecutor
from muro.engines.sim.options import BYTES, SimOptions
from muro.engines.sim.scenario import read_scenario
from muro.engines.sim.schedule import IDLE, FaultSchedule, parse_scheduled
from muro.errors import InvalidRequestError, MuroError, RequestError
from muro.models.config import read_config
from muro.wire.failure import error_to_wire
from muro.wire.output import EngineCoreOutput, FinishReason
from muro.wire.request import EngineCoreRequest
from muro.wire.stats import SchedulerStats

log = logging.getLogger(__name__)

LOADING_STEPS = 4
FAULT = "fault"
"""Key of `extra_args`: a fault that comes with a request."""


def create_engine(model: str | None, options: SimOptions, report: Report) -> SimEngine:
    """Pretend to load a model.

    Args:
        model: a model directory, of which only the size of the vocabulary and of the context count; None: bytes.
        options: see there.
        report: told how far loading is.

    Raises:
        ConfigError: a fault, the scenario or the model's `config.json` cannot be read.
        FaultError: that was asked for.
    """
    schedule = FaultSchedule(time.monotonic, options.fault_seed)
    for fault, when in [*map(parse_scheduled, options.faults), *_scenario(options)]:
        schedule.arm(fault, when)
    for fault in schedule.due("construct"):
        commit(fault)
    config = None if model is None else read_config(Path(model))
    if config is not None:
        length = min(options.max_model_len, config.max_position_embeddings)
        options = msgspec.structs.replace(options, max_model_len=length)
    vocab_size = options.vocab_size or (BYTES if config is None else config.vocab_size)
    for done in range(LOADING_STEPS):
        report("weights", 100 * done / LOADING_STEPS)
        for fault in schedule.due("loading"):
            commit(fault)
        time.sleep(options.load_s / LOADING_STEPS)
    stepper = StepperEngine(SimExecutor(options, vocab_size), options.scheduler())
    engine = SimEngine(stepper, schedule, greedy=options.tokens == "fixed")
    engine.start()
    return engine


def _scenario(options: SimOptions) -> list[Any]:
    return [] if options.scenario is None else read_scenario(options.scenario)


class _Prepared(msgspec.Struct):
    request: Request
    fault: Fault | None


class SimEngine(Engine):
    """A `StepperEngine` with faults around it; see the module.

    Args:
        inner: does the work.
        schedule: the faults that are armed.
        greedy: whether what requests say about sampling is left aside.
    """

    def __init__(self, inner: StepperEngine, schedule: FaultSchedule, *, greedy: bool) -> None:
        self._inner = inner
        self._schedule = schedule
        self._greedy = greedy
        self._live: dict[str, Fault | None] = {}
        self._culprit = Culprit()
        self._idle = _IdlePlace(schedule, self._commit)

    def start(self) -> None:
        """Loading has ended: conditions count from now on."""
        self._schedule.loaded()
        self._idle.look()

    def info(self) -> EngineInfo:
        return self._inner.info()

    def on_executor_failure(self, callback: FailureCallback) -> None:
        self._culprit.executor_failed = callback
        self._inner.on_executor_failure(callback)

    def preprocess(self, request: EngineCoreRequest) -> _Prepared:
        self._schedule.request_comes()
        fault = _requested(request)
        self._reach("preprocess", request.request_id, fault)
        return _Prepared(self._inner.preprocess(self._plain(request)), fault)

    def add_request(self, request_id: str, prepared: _Prepared) -> None:
        self._reach("add", request_id, prepared.fault)
        self._inner.add_request(request_id, prepared.request)
        self._live[request_id] = prepared.fault

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        self._inner.abort_requests(self._forget(list(request_ids)))

    def step(self, take_aborts: TakeAborts) -> StepResult:
        self._schedule.step_begins()
        # A fault that must name a request, and came with none, takes the first one.
        self._reach("step", next(iter(self._live), None))
        for request_id, fault in [(i, f) for i, f in self._live.items() if f is not None and f.place == "step"]:
            self._live[request_id] = None
            self._commit(fault, request_id)
        if self._culprit.barren:
            self._inner.abort_requests(self._forget(take_aborts()))
            return StepResult([])
        result = self._inner.step(lambda: self._forget(take_aborts()))
        for output in result.outputs:
            self._reach_output(output)
        return result

    def has_work(self) -> bool:
        return self._inner.has_work()

    def stats(self) -> SchedulerStats:
        return self._inner.stats()

    def phase(self) -> str | None:
        return self._inner.phase()

    def shutdown(self) -> None:
        self._idle.close()
        self._reach("shutdown")
        self._inner.shutdown()

    @operation
    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """See `StepperEngine.reset_prefix_cache`."""
        return self._inner.reset_prefix_cache(reset_running_requests, reset_connector)

    @operation
    def inject_fault(self, fault: str) -> None:
        """Arm a fault, written as in `schedule.py`; the place `operation` is reached now."""
        self._schedule.arm(*_checked(fault))
        self._idle.look()
        self._reach("operation")

    @operation
    def list_faults(self) -> list[str]:
        """The faults that are armed."""
        return self._schedule.listed()

    @operation
    def clear_faults(self) -> int:
        """Disarm all faults; gives how many there were."""
        return self._schedule.clear()

    def _plain(self, request: EngineCoreRequest) -> EngineCoreRequest:
        """The request as the inner engine may see it."""
        params = request.sampling_params
        if params is None:
            return request
        if self._greedy:
            # One token stands out so far that no temperature in use would draw another: not to draw is cheaper.
            params = msgspec.structs.replace(params, temperature=0.0)
        if params.extra_args and FAULT in params.extra_args:
            others = {name: value for name, value in params.extra_args.items() if name != FAULT}
            params = msgspec.structs.replace(params, extra_args=others)
        return msgspec.structs.replace(request, sampling_params=params)

    def _forget(self, request_ids: Collection[str]) -> Collection[str]:
        for request_id in request_ids:
            self._live.pop(request_id, None)
        return request_ids

    def _reach(self, place: str, request_id: str | None = None, own: Fault | None = None) -> None:
        if own is not None and own.place == place:
            self._commit(own, request_id)
        for fault in self._schedule.due(place):
            self._commit(fault, request_id)

    def _reach_output(self, output: EngineCoreOutput) -> None:
        """A refusal here ends one request, and must not cost the others of the step their outputs."""
        own = self._live.get(output.request_id)
        faults = [own] if own is not None and own.place == "output" else []
        for fault in [*faults, *self._schedule.due("output")]:
            try:
                self._commit(fault, output.request_id, output)
            except RequestError as error:
                self._inner.abort_requests([output.request_id])
                output.new_token_ids, output.new_logprobs = [], None
                output.finish_reason, output.error = FinishReason.ERROR, error_to_wire(error)
        if output.finish_reason is not None:
            self._live.pop(output.request_id, None)

    def _commit(self, fault: Fault, request_id: str | None = None, output: EngineCoreOutput | None = None) -> None:
        log.warning("committing the fault %s:%s %s", fault.place, fault.kind, fault.argument)
        self._culprit.commit(fault, request_id, output)


class _IdlePlace:
    """The place that is reached without work: a thread that exists as long as a fault waits for it."""

    def __init__(self, schedule: FaultSchedule, commit: Callable[[Fault], None]) -> None:
        self._schedule = schedule
        self._commit = commit
        self._wake = threading.Event()
        self._over = False
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """A fault was armed."""
        self._wake.set()
        if self._thread is None and self._schedule.next_idle() is not None:
            self._thread = threading.Thread(target=self._run, name="muro-sim-idle", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread, unless a fault holds it for ever."""
        self._over = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(1.0)

    def _run(self) -> None:
        while not self._over:
            for fault in self._schedule.due(IDLE):
                try:
                    self._commit(fault)
                except MuroError as error:
                    log.warning("the fault %s:%s could not be committed: %s", fault.place, fault.kind, error)
            self._wake.wait(self._schedule.next_idle())
            self._wake.clear()


def _requested(request: EngineCoreRequest) -> Fault | None:
    """The fault that comes with a request, if any. Raises InvalidRequestError."""
    extra = request.sampling_params.extra_args if request.sampling_params else None
    if not extra or (text := extra.get(FAULT)) is None:
        return None
    if not isinstance(text, str):
        raise InvalidRequestError(f"extra_args[{FAULT!r}] is {text!r}; it is a text such as step:raise", param=FAULT)
    try:
        return parse_fault(text)
    except MuroError as error:
        raise InvalidRequestError(error.message, param=FAULT) from None


def _checked(text: str) -> Any:
    try:
        return parse_scheduled(text)
    except MuroError as error:
        raise InvalidRequestError(error.message, param=FAULT) from None
