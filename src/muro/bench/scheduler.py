"""What scheduling costs: CPU time of the loop's thread per request and step, with a model that takes no time.

Everything is switched on: prefix cache, chunks, priorities, scheduling ahead, statistics, events. Counted is what the
engine does in `step` and `stats`, less what it spends in the executor and in the sampler. The garbage collector is set
as in an engine's process. Runs in the calling process.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from time import perf_counter, thread_time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from muro.bench.sampling import median
from muro.core.executor import ExecutorInfo
from muro.core.options import SchedulerConfig
from muro.core.plan import ModelRunnerOutput, SchedulerOutput
from muro.core.sampling import Sampled, Sampler
from muro.core.sampling.state import Draw
from muro.core.stepper import StepperEngine
from muro.engine.interface import FailureCallback
from muro.process.proc import GC_THRESHOLD
from muro.wire.output import EngineCoreOutput
from muro.wire.request import EngineCoreRequest, SamplingParams

RUNNING = (1, 32, 256, 1024)
PROMPT_TOKENS = 64
SHARED_TOKENS = 32
BLOCK_SIZE = 16
VOCAB_SIZE = 256


class _Stopwatch:
    """CPU time of this thread that goes elsewhere; the time that looking costs is not counted either."""

    def __init__(self) -> None:
        self.seconds = 0.0
        looks = [thread_time() for _ in range(2001)]
        self.look_seconds = (looks[-1] - looks[0]) / 2000

    def add(self, begin: float) -> None:
        self.seconds += thread_time() - begin + self.look_seconds


class _NoModel:
    """An executor that is done at once."""

    def __init__(self, num_seqs: int, max_model_len: int, watch: _Stopwatch) -> None:
        self._watch = watch
        self._logits: NDArray[np.float32] = np.zeros((num_seqs, VOCAB_SIZE), np.float32)
        self._info = ExecutorInfo(
            max_model_len=max_model_len,
            num_blocks=(num_seqs + 1) * (-(-max_model_len // BLOCK_SIZE) + 1),
            block_size=BLOCK_SIZE,
            vocab_size=VOCAB_SIZE,
        )

    def info(self) -> ExecutorInfo:
        return self._info

    def execute(self, plan: SchedulerOutput) -> Future[ModelRunnerOutput]:
        begin = thread_time()
        done: Future[ModelRunnerOutput] = Future()
        done.set_result(ModelRunnerOutput(self._logits[: sum(s.num_logits for s in plan.sequences)]))
        self._watch.add(begin)
        return done

    def on_failure(self, callback: FailureCallback) -> None:
        """Never fails."""

    def shutdown(self) -> None:
        """Holds nothing."""


class _NoSampler(Sampler):
    """Always the same token."""

    def __init__(self, watch: _Stopwatch) -> None:
        super().__init__(VOCAB_SIZE)
        self._watch = watch

    def sample(self, logits: NDArray[np.float32], draws: Sequence[Draw | None]) -> Sampled:
        begin = thread_time()
        result = Sampled([7] * len(draws), [None] * len(draws))
        self._watch.add(begin)
        return result


def run(*, steps: int = 400, rounds: int = 3, progress: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Measure at 1, 32, 256 and 1024 running requests.

    Args:
        steps: tokens of each request; enough that all of them decode at once for a while (50 and more).
        rounds: measurements of each kind; the median is reported.
        progress: hears what is being measured.

    Returns:
        By number of running requests: `decode_us` and `life_us`, CPU microseconds per request and step: of decoding
        alone, and of all steps from the first request's arrival to the last one's end; `tokens_per_s`.
    """
    gc.collect()
    gc.freeze()
    threshold = gc.get_threshold()
    gc.set_threshold(GC_THRESHOLD, 20, 20)
    try:
        return {str(running): _rounds(running, steps, rounds, progress) for running in RUNNING}
    finally:
        gc.set_threshold(*threshold)
        gc.unfreeze()


def _rounds(running: int, steps: int, rounds: int, progress: Callable[[str], None]) -> dict[str, float]:
    measured = []
    for number in range(rounds):
        progress(f"{running} running, round {number + 1} of {rounds}")
        measured.append(_measure(running, steps))
    return {
        "decode_us": round(median([one[0] for one in measured]), 3),
        "life_us": round(median([one[1] for one in measured]), 3),
        "tokens_per_s": round(median([one[2] for one in measured])),
    }


def _measure(running: int, steps: int) -> tuple[float, float, float]:
    watch = _Stopwatch()
    config = SchedulerConfig(
        max_num_seqs=running,
        max_num_batched_tokens=max(2048, running),
        scheduling_policy="priority",
        enable_prefix_caching=True,
        async_scheduling=True,
    )
    executor = _NoModel(running, PROMPT_TOKENS + steps + 1, watch)
    engine = StepperEngine(executor, config, sampler=_NoSampler(watch))
    for number in range(running):
        _add(engine, number, steps)
    tokens = full_steps = work = 0
    full_seconds = all_seconds = 0.0
    begun = perf_counter()
    outputs: list[EngineCoreOutput] = []
    while engine.has_work():
        outputs = []  # what is sent is freed by the thread that sends it
        watch.seconds = 0.0
        begin = thread_time()
        outputs = engine.step(tuple).outputs
        engine.stats()
        seconds = thread_time() - begin - watch.seconds - watch.look_seconds
        tokens += len(outputs)
        work += max(1, len(outputs))
        all_seconds += seconds
        if len(outputs) == running and not any(output.finish_reason is not None for output in outputs):
            full_steps += 1
            full_seconds += seconds
    return (
        full_seconds / max(1, full_steps * running) * 1e6,
        all_seconds / work * 1e6,
        tokens / (perf_counter() - begun),
    )


def _add(engine: StepperEngine, number: int, steps: int) -> None:
    prompt = [7] * SHARED_TOKENS + [(number * 31 + i * 7) % VOCAB_SIZE for i in range(PROMPT_TOKENS - SHARED_TOKENS)]
    request = EngineCoreRequest(
        f"request-{number}",
        prompt,
        sampling_params=SamplingParams(temperature=0.0, max_tokens=steps, ignore_eos=True),
        priority=number % 3 - 1,
    )
    engine.add_request(request.request_id, engine.preprocess(request))


def text(result: dict[str, Any]) -> str:
    """The figures as a table."""
    lines = ["running   decode us/request/step   whole life us/request/step   tokens/s"]
    lines += [
        f"{running:>7}   {one['decode_us']:>22}   {one['life_us']:>26}   {one['tokens_per_s']:>8}"
        for running, one in result.items()
    ]
    return "\n".join(lines)
