"""What tests of replay over asyncio share: engines that hash, a front-end over a mortal client, steps as a clock."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from muro.core.options import SchedulerConfig
from muro.core.plan import ModelRunnerOutput, SchedulerOutput
from muro.core.stepper import StepperEngine
from muro.llm.aio import AsyncLLM
from muro.llm.aio_replay import AsyncRequests
from muro.llm.replay import DeathPolicy
from muro.llm.words import Words
from muro.observe.metrics import ServingMetrics
from muro.testing.hashing import HashingExecutor
from muro.text.tokenizer import ByteTokenizer
from muro.wire.output import EngineCoreOutput
from muro.wire.request import EngineCoreRequest, SamplingParams
from tests.support.mortal import MortalClient

MAX_LEN = 60
LETTERS = sorted(set("aé☃🙂".encode()))
"""Output of these bytes is full of characters that lie across tokens."""
REPLAY = DeathPolicy(on_engine_death="replay")


def hashing(
    blocks: int = 200, seqs: int = 16, budget: int = 64, kind: type[HashingExecutor] = HashingExecutor
) -> StepperEngine:
    executor = kind(num_blocks=blocks, block_size=4, vocab_size=258, max_model_len=MAX_LEN)
    return StepperEngine(executor, SchedulerConfig(max_num_seqs=seqs, max_num_batched_tokens=budget))


def llm_over(client: MortalClient, policy: DeathPolicy = REPLAY) -> AsyncLLM:
    return AsyncLLM(client, Words(ByteTokenizer(), None, MAX_LEN), policy=policy)  # type: ignore[arg-type]


def requests_over(client: MortalClient, policy: DeathPolicy = REPLAY) -> AsyncRequests:
    return AsyncRequests(client, policy, ServingMetrics())  # type: ignore[arg-type]


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def drive(client: MortalClient, tasks: Sequence[asyncio.Task[Any]], deaths: Sequence[int] = ()) -> None:
    """Step until all tasks are done; before the steps numbered in `deaths` the engine dies, and is replaced."""
    for step in range(5000):
        await settle()
        if all(task.done() for task in tasks):
            return
        if step in deaths:
            client.die()
            await settle()
            client.replace()
            await settle()
        client.step()
    raise TimeoutError("no end in sight")


def only_task(tasks: list[asyncio.Task[Any]]) -> list[Any]:
    return [task.result() for task in tasks]


def nothing_left(requests: AsyncRequests) -> bool:
    gc.collect()
    return not (len(requests.quarantine) or requests._turns or requests.quarantine._running or requests._streams)


class Poisonable(HashingExecutor):
    """Dies of sequences that begin with 13."""

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        if any(s.token_ids[0] == 13 and s.num_computed_tokens == 0 for s in plan.sequences):
            raise MemoryError("poisoned")
        return super().execute(plan)


class LatePoisonable(HashingExecutor):
    """Dies of such sequences a step later, when a token of theirs is out."""

    def __init__(self, **sizes: int) -> None:
        super().__init__(**sizes)
        self._poisoned: set[str] = set()

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        if any(s.request_id in self._poisoned for s in plan.sequences):
            raise MemoryError("poisoned")
        self._poisoned |= {s.request_id for s in plan.sequences if s.token_ids[0] == 13 and not s.num_computed_tokens}
        return super().execute(plan)


def shown(output: EngineCoreOutput) -> object:
    return output.new_token_ids, output.new_logprobs, output.finish_reason, output.stop_reason


async def read(requests: AsyncRequests, request: EngineCoreRequest) -> list[object]:
    return [shown(output) async for output in requests.generate(request)]


def echo_request(**params: Any) -> EngineCoreRequest:
    return EngineCoreRequest("r", [1, 2], sampling_params=SamplingParams(max_tokens=3, **params))
