"""AsyncLLM.embed: all vectors or none, whatever dies in between, and nothing is left."""

import asyncio

import pytest

from muro.core.options import SchedulerConfig
from muro.core.stepper import StepperEngine
from muro.errors import EngineDeadError, RequestAbortedError, UnsupportedOptionError
from muro.llm.replay import DeathPolicy
from muro.wire.request import PoolingParams
from tests.support.mortal import MortalClient
from tests.support.pooling import TellingExecutor, expected
from tests.support.replaying import drive, llm_over, nothing_left, run, settle

PROMPTS = [[1, 2, 3] * 5, [4], [5, 6] * 9]
PLAIN = PoolingParams(task="embed", use_activation=False)


def pooling() -> StepperEngine:
    return StepperEngine(TellingExecutor(), SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=8))


@pytest.mark.parametrize("deaths", [[], [0], [1], [2, 4], [1, 2, 5]])
def test_vectors_whatever_dies(deaths: list[int]) -> None:
    async def test() -> None:
        client = MortalClient(pooling)
        llm = llm_over(client)
        counted: list[None] = []
        task = asyncio.create_task(llm.embed("a", PROMPTS, PLAIN, on_vector=lambda: counted.append(None)))
        await drive(client, [task], deaths)
        assert client.generation == len(deaths)
        for vector, prompt in zip(task.result(), PROMPTS, strict=True):
            assert vector.numpy().tolist() == pytest.approx(expected(prompt, "mean"))
        assert len(counted) == 3 and llm.metrics.prompt_tokens == sum(map(len, PROMPTS))
        assert nothing_left(llm._requests) and not llm._embedding

    run(test)


def test_an_engine_that_dies_for_good() -> None:
    async def test() -> None:
        client = MortalClient(pooling)
        llm = llm_over(client, DeathPolicy())
        task = asyncio.create_task(llm.embed("a", PROMPTS, PLAIN))
        await settle()
        client.die()
        with pytest.raises(EngineDeadError):
            await task
        assert nothing_left(llm._requests) and not llm._embedding

    run(test)


def test_one_that_is_refused_ends_all() -> None:
    async def test() -> None:
        client = MortalClient(pooling)
        llm = llm_over(client)
        task = asyncio.create_task(llm.embed("a", PROMPTS, PoolingParams(task="score")))
        await drive(client, [task])
        with pytest.raises(UnsupportedOptionError, match="'score'"):
            task.result()
        await settle()
        assert not client.busy and nothing_left(llm._requests)

    run(test)


def test_ended_by_the_server_and_by_the_caller() -> None:
    async def test() -> None:
        client = MortalClient(pooling)
        llm = llm_over(client)
        task = asyncio.create_task(llm.embed("a", PROMPTS, PLAIN))
        await settle()
        assert llm.abort_all() == 3
        with pytest.raises(RequestAbortedError):
            await task
        task = asyncio.create_task(llm.embed("b", PROMPTS, PLAIN))
        await settle()
        assert client.busy
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        client.step()
        assert not client.busy and nothing_left(llm._requests) and not llm._embedding

    run(test)
