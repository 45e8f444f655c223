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

from muro.core.plan import SchedulerOutput
from muro.core.request import Request
from muro.core.stepper import StepperEngine
from muro.engine.interface import Engine, EngineInfo, FailureCallback, Memory, Report, StepResult, TakeAborts, operation
from muro.engines.faults import Culprit, Fault, commit, parse_fault
from muro.engines.grammars import workshop
from muro.engines.sim.executor import SimExecutor
from muro.engines.sim.lengths import parse_lengths
from muro.engines.sim.options import SimOptions
from muro.engines.sim.scenario import read_scenario
from muro.engines.sim.schedule import IDLE, FaultSchedule, parse_scheduled, spell
from muro.engines.sim.streams import Stream, Streams
from muro.engines.sim.text import BYTES, text_for
from muro.engines.sim.timing import VirtualClock
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
        model: a model directory, of which only the words and the sizes of vocabulary and context count; None: bytes.
        options: see there.
        report: told how far loading is.

    Raises:
        ConfigError: a fault, the scenario, the profile, or a file of the model cannot be read.
        FaultError: that was asked for.
    """
    virtual = VirtualClock(time.monotonic()) if options.time == "virtual" else None
    schedule = FaultSchedule(virtual or time.monotonic, options.fault_seed, time.monotonic)
    for fault, when in [*map(parse_scheduled, options.faults), *_scenario(options)]:
        schedule.arm(fault, when)
    for fault in schedule.due("construct"):
        commit(fault)
    profile = options.resolved()
    config = None if model is None else read_config(Path(model))
    if config is not None:
        length = min(profile.max_model_len, config.max_position_embeddings)
        profile = msgspec.structs.replace(profile, max_model_len=length)
    vocab_size = options.vocab_size or (BYTES if config is None else config.vocab_size)
    text = text_for(vocab_size, options.seed, model)
    for done in range(LOADING_STEPS):
        report("weights", 100 * done / LOADING_STEPS)
        for fault in schedule.due("loading"):
            commit(fault)
        (virtual.sleep if virtual else time.sleep)(options.load_s / LOADING_STEPS)
    executor = SimExecutor(
        profile,
        text,
        vocab_size,
        sampled=options.tokens == "sampled",
        elsewhere=options.async_scheduling,
        seed=options.seed,
        clock=virtual or time.monotonic,
        sleep=virtual.sleep if virtual else time.sleep,
    )
    grammars = workshop(None if model is None else Path(model), executor.info().vocab_size)
    stepper = StepperEngine(executor, options.scheduler(profile), virtual or time.monotonic, grammars=grammars)
    lengths = None if options.lengths is None else parse_lengths(options.lengths)
    streams = Streams(text, options.tokens, lengths, stepper.info().max_model_len)
    engine = SimEngine(stepper, executor, streams, schedule, lockstep=options.lockstep)
    engine.start()
    return engine


def _scenario(options: SimOptions) -> list[Any]:
    return [] if options.scenario is None else read_scenario(options.scenario)


class _Prepared(msgspec.Struct):
    request: Request
    stream: Stream
    fault: Fault | None


class SimEngine(Engine):
    """A `StepperEngine` with faults around it; see the module.

    Args:
        inner: does the work.
        executor: the inner engine's; what requests are told is left there.
        streams: lays that out.
        schedule: the faults that are armed.
        lockstep: see `SimOptions`.
    """

    def __init__(
        self,
        inner: StepperEngine,
        executor: SimExecutor,
        streams: Streams,
        schedule: FaultSchedule,
        *,
        lockstep: bool = False,
    ) -> None:
        self._inner = inner
        self._executor = executor
        self._streams = streams
        self._schedule = schedule
        self._lockstep = lockstep
        self._own: dict[str, Fault] = {}
        """Faults that came with requests, and wait for a step or an output of these."""
        self._culprit = Culprit()
        self._idle = _IdlePlace(schedule, self._commit)
        executor.at_step = self._at_step

    def start(self) -> None:
        """Loading has ended: conditions count from now on."""
        self._schedule.loaded()
        self._idle.look()

    def info(self) -> EngineInfo:
        return msgspec.structs.replace(self._inner.info(), lockstep=self._lockstep)

    def on_executor_failure(self, callback: FailureCallback) -> None:
        self._culprit.executor_failed = callback
        self._inner.on_executor_failure(callback)

    def preprocess(self, request: EngineCoreRequest) -> _Prepared:
        self._schedule.request_comes()
        fault = _requested(request)
        self._reach("preprocess", request.request_id, fault)
        stream, prepared = Stream([], 0), _without_fault(request)
        if prepared.sampling_params is not None:
            stream, params = self._streams.lay_out(prepared.prompt_token_ids or [], prepared.sampling_params)
            prepared = msgspec.structs.replace(prepared, sampling_params=params)
        return _Prepared(self._inner.preprocess(prepared), stream, fault)

    def add_request(self, request_id: str, prepared: _Prepared) -> None:
        self._reach("add", request_id, prepared.fault)
        self._inner.add_request(request_id, prepared.request)
        self._executor.add_stream(request_id, prepared.stream)
        if prepared.fault is not None:
            self._own[request_id] = prepared.fault

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        self._inner.abort_requests(self._forget(list(request_ids)))

    def step(self, take_aborts: TakeAborts) -> StepResult:
        for request_id, fault in [item for item in self._own.items() if item[1].place == "step"]:
            del self._own[request_id]
            self._commit(fault, request_id)
        if self._culprit.barren:
            self._inner.abort_requests(self._forget(take_aborts()))
            return StepResult([])
        result = self._inner.step(lambda: self._forget(take_aborts()))
        if self._own or self._schedule.waits_at("output"):
            for output in result.outputs:
                self._reach_output(output)
        self._forget([output.request_id for output in result.outputs if output.finish_reason is not None])
        if not self._inner.has_work():
            self._schedule.work_ends()
            self._executor.rest()
        return result

    def has_work(self) -> bool:
        return self._inner.has_work()

    def stats(self) -> SchedulerStats:
        return self._inner.stats()

    def phase(self) -> str | None:
        return self._inner.phase()

    def execute_dummy_batch(self) -> None:
        self._inner.execute_dummy_batch()

    def release_memory(self, kind: Memory) -> None:
        self._inner.release_memory(kind)

    def restore_memory(self, kind: Memory) -> None:
        self._inner.restore_memory(kind)

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

    def _at_step(self, plan: SchedulerOutput, prompts_begun: int) -> None:
        """A fault that must name a request, and came with none, takes the first one of the step."""
        self._schedule.step_begins(len(plan.sequences), prompts_begun, self._inner.num_preemptions)
        self._reach("step", plan.sequences[0].request_id)

    def _forget(self, request_ids: Collection[str]) -> Collection[str]:
        for request_id in request_ids:
            self._executor.drop_stream(request_id)
            self._own.pop(request_id, None)
        return request_ids

    def _reach(self, place: str, request_id: str | None = None, own: Fault | None = None) -> None:
        if own is not None and own.place == place:
            self._commit(own, request_id)
        for fault in self._schedule.due(place):
            self._commit(fault, request_id)

    def _reach_output(self, output: EngineCoreOutput) -> None:
        """A refusal here ends one request, and must not cost the others of the step their outputs."""
        own = self._own.get(output.request_id)
        faults = [own] if own is not None and own.place == "output" else []
        for fault in [*faults, *self._schedule.due("output")]:
            try:
                self._commit(fault, output.request_id, output)
            except RequestError as error:
                self._inner.abort_requests([output.request_id])
                output.new_token_ids, output.new_logprobs = [], None
                output.finish_reason, output.error = FinishReason.ERROR, error_to_wire(error)

    def _commit(self, fault: Fault, request_id: str | None = None, output: EngineCoreOutput | None = None) -> None:
        log.warning("committing the fault %s", spell(fault))
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


def _without_fault(request: EngineCoreRequest) -> EngineCoreRequest:
    params = request.sampling_params
    if params is None or not params.extra_args or FAULT not in params.extra_args:
        return request
    others = {name: value for name, value in params.extra_args.items() if name != FAULT}
    return msgspec.structs.replace(request, sampling_params=msgspec.structs.replace(params, extra_args=others))


def _checked(text: str) -> Any:
    try:
        return parse_scheduled(text)
    except MuroError as error:
        raise InvalidRequestError(error.message, param=FAULT) from None
