"""Calls of `LLM` that outlive their engine: real engines are killed under batches."""

from __future__ import annotations

import os
import random
import signal
import threading

import pytest

import muro
from muro.config import ConnectConfig, EngineConfig, RestartPolicy
from muro.errors import RequestFailedError
from muro.llm.offline_replay import Batch
from muro.llm.replay import DeathPolicy
from tests.support.asking import ask
from tests.support.deadline import until
from tests.support.replaying_sim import SIM, params_for

pytestmark = pytest.mark.cases


class Killer:
    """Kills the engine of an `LLM`, in a thread of its own, so many times at random moments."""

    def __init__(self, llm: muro.LLM, kills: int) -> None:
        self._llm = llm
        self._left = kills
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        chance, last = random.Random(3), None
        while self._left and not self._over.wait(chance.uniform(0, 0.1)):
            status = self._llm._client.engines()[0]
            if status.state == "serving" and status.pid not in (None, last):
                last = status.pid
                os.kill(last, signal.SIGKILL)
                self._left -= 1


def test_calls_of_llm() -> None:
    prompts = [f"number {number}" for number in range(16)]
    params = [params_for(number) for number in range(16)]

    def shown(outputs: list[muro.RequestOutput]) -> list[tuple[str, list[int], str | None]]:
        choices = [output.outputs[0] for output in outputs]
        return [(choice.text, choice.token_ids, choice.finish_reason) for choice in choices]

    with muro.LLM(engine="sim", options=SIM, on_engine_death="replay") as llm:
        undisturbed = shown(llm.generate(prompts, params))
        with Killer(llm, 3):
            assert shown(llm.generate(prompts, params)) == undisturbed
        until(lambda: llm._client.engines()[0].state == "serving", within=20, what="an engine serves")
        assert shown(llm.generate(prompts, params)) == undisturbed


def test_with_two_engines_a_batch_does_not_wait_for_a_restart() -> None:
    slow = RestartPolicy(policy="on-failure", backoff_first=40, backoff_max=40)
    engine = EngineConfig(engine="sim", options=SIM, log_level="ERROR")
    with muro.connect(ConnectConfig(restart=slow, num_engines=2, engine=engine)) as client:

        def tokens(kill: bool) -> dict[str, list[int]]:
            batch = Batch(client, DeathPolicy(on_engine_death="replay"))
            for number in range(8):
                batch.add(ask(f"r{number}", 300, [number], ignore_eos=True, seed=1))
            found: dict[str, list[int]] = {f"r{number}": [] for number in range(8)}
            ended = 0
            while ended < 8:
                for output in batch.outputs():
                    found[output.request_id] += output.new_token_ids
                    ended += output.finish_reason is not None
                if kill and all(found.values()):
                    kill = False
                    pid = client.engines()[1].pid
                    assert pid is not None
                    os.kill(pid, signal.SIGKILL)
            return found

        undisturbed = tokens(kill=False)
        assert tokens(kill=True) == undisturbed and {len(found) for found in undisturbed.values()} == {300}
        assert [status.state for status in client.engines()] == ["serving", "restarting"]


def test_a_poisonous_request_in_a_call_of_llm() -> None:
    with muro.LLM(engine="sim", options=SIM, on_engine_death="replay") as llm:
        fine = muro.SamplingParams(max_tokens=5, ignore_eos=True)
        poison = muro.SamplingParams(max_tokens=5, extra_args={"fault": "step:signal=SIGSEGV"})
        with pytest.raises(RequestFailedError, match="nothing else explains"):
            llm.generate(["a", "b", "c"], [fine, poison, fine])
        assert len(llm.generate("a", fine)[0].outputs[0].token_ids) == 5
