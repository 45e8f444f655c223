"""Replay with the demo model: an engine that is killed at random moments, and 32 streams that shall not notice.

Half of them are greedy, half sample with a seed. A model that computes a token in other company rounds otherwise, so
texts can only be compared up to the first step at which the two best scores that decide the token (log-probabilities
over the temperature, plus the drawn noise) are less than 0.02 apart in the undisturbed run.

    MURO_FULL_COUNTS=1 pytest tests/chaos/test_replay_model.py -s      100 kills; 6 without the variable
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time

import msgspec
import numpy as np
import pytest

from muro import AsyncMPClient, connect_async
from muro.config import ConnectConfig, EngineConfig, RestartPolicy, home
from muro.core.sampling.noise import Noise, gumbel, noise_key
from muro.llm import pipeline
from muro.llm.aio_replay import AsyncRequests
from muro.llm.replay import DeathPolicy
from muro.models.pull import pull
from muro.observe.metrics import ServingMetrics
from muro.text.tokenizer import load_tokenizer
from muro.wire.output import EngineCoreOutput
from muro.wire.request import EngineCoreRequest, SamplingParams
from tests.support.counts import count

KILLS = int(os.environ.get("MURO_CHAOS_KILLS", count(6, 100)))
STREAMS = 32
TOKENS = 100
TOP = 20
"""Candidates of a seeded stream; as many as an engine reports log-probabilities for."""
NEAR = 0.02
SEED = int(os.environ.get("MURO_CHAOS_SEED", "11"))
TOPICS = ("rain", "an old clock", "the sea", "a lost dog", "bread", "a chess game", "winter", "the number seven")

pytestmark = [pytest.mark.model, pytest.mark.timeout(5400)]


class Told(msgspec.Struct):
    """What one stream said."""

    tokens: list[int] = []
    margins: list[float] = []
    """How far apart the two best scores were, token by token."""

    def comparable(self) -> int:
        """How many tokens come before the first near-tie."""
        return next((i for i, margin in enumerate(self.margins) if margin < NEAR), len(self.margins))


def params_for(number: int) -> SamplingParams:
    return SamplingParams(
        temperature=0.0 if number % 2 else 0.8,
        top_k=TOP,
        seed=number,
        max_tokens=TOKENS,
        ignore_eos=True,
        logprobs=TOP,
    )


def margin(output: EngineCoreOutput, params: SamplingParams, position: int, noise: Noise) -> float:
    """By how much the token won, from the log-probabilities of the best candidates."""
    logprobs = output.new_logprobs
    assert logprobs is not None
    ids = np.frombuffer(logprobs.ids.data, "<i4")[1:].astype(np.intp)
    scores = np.frombuffer(logprobs.values.data, "<f4")[1:].astype(np.float64)
    if params.temperature > 0:
        assert params.seed is not None
        keys = np.array([noise_key(params.seed, position)], np.uint64)
        scores = scores / params.temperature + gumbel(noise.hashes(keys, np.array([len(ids)]), ids))
    best, second = np.sort(scores)[::-1][:2]
    return float(best - second)


async def tell(requests: AsyncRequests, request: EngineCoreRequest, noise: Noise) -> Told:
    told = Told()
    params = request.sampling_params
    assert params is not None
    async for output in requests.generate(request):
        for token in output.new_token_ids:
            told.margins.append(margin(output, params, len(told.tokens), noise))
            told.tokens.append(token)
        last = output.finish_reason
    assert last is not None and len(told.tokens) == TOKENS, "a token is missing or has come twice"
    return told


async def kill_now_and_then(client: AsyncMPClient, chance: random.Random, killed: list[float]) -> None:
    """Kill whatever serves, at moments between its first and its last work for these streams, and note them."""
    while len(killed) < KILLS:
        await client.wait_serving()
        await asyncio.sleep(chance.uniform(0.0, 12.0))
        status = client.engines()[0]
        if status.state == "serving" and status.pid is not None:
            os.kill(status.pid, signal.SIGKILL)
            killed.append(time.monotonic())
            async with asyncio.timeout(10):
                while client.engines()[0].pid == status.pid and client.engines()[0].state == "serving":  # noqa: ASYNC110
                    await asyncio.sleep(0.01)


def test_kills_under_streams() -> None:
    async def test() -> None:
        demo = pull("demo", home())
        tokenizer = load_tokenizer(demo)
        config = ConnectConfig(
            engine=EngineConfig(engine="openvino", model=str(demo), options={"cache_memory_mb": 256}),
            restart=RestartPolicy(policy="on-failure", backoff_first=0.05, backoff_max=0.05, budget=100_000),
        )
        chance, noise, metrics = random.Random(SEED), Noise(tokenizer.vocab_size + 4096), ServingMetrics()
        async with await connect_async(config) as client:
            requests = AsyncRequests(client, DeathPolicy(on_engine_death="replay"), metrics)
            asked = []
            for number in range(STREAMS):
                prompt = tokenizer.encode(f"{number}. A story about {TOPICS[number % len(TOPICS)]}: Once upon a time")
                params = pipeline.engine_params(params_for(number), len(prompt), tokenizer, 2048)
                asked.append(EngineCoreRequest(f"r{number}", prompt, sampling_params=params))

            async def round_of_streams() -> list[Told]:
                return await asyncio.gather(*(tell(requests, request, noise) for request in asked))

            began = time.monotonic()
            undisturbed = await round_of_streams()
            calm = time.monotonic() - began
            killed: list[float] = []
            killer = asyncio.create_task(kill_now_and_then(client, chance, killed))
            rounds = same = compared = 0
            while not killer.done():
                told = await round_of_streams()
                rounds += 1
                for before, after in zip(undisturbed, told, strict=True):
                    upto = before.comparable()
                    assert after.tokens[:upto] == before.tokens[:upto]
                    same += after.tokens == before.tokens
                    compared += upto
            await killer
            texts = rounds * STREAMS
            print(
                f"\nseed {SEED}: {len(killed)} kills in {time.monotonic() - began:.0f} s, {rounds} rounds of {STREAMS} "
                f"streams ({calm:.1f} s undisturbed), {metrics.replayed} attempts made again; failed 0, missing or "
                f"doubled 0; {same} of {texts} texts the same to the end, and in all of them all {compared} tokens "
                f"before the first near-tie, of {texts * TOKENS}"
            )
            assert metrics.quarantined == 0
            assert len(killed) == KILLS
            assert not len(requests.quarantine)

    asyncio.run(test())
