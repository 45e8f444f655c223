"""Story: two ranks on two nodes, streams through both, one node dies; what it ran is placed again, nothing is lost."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import muro
from muro.config import ConnectConfig, EngineConfig, RayConfig, RestartPolicy
from muro.wire.request import OutputKind
from tests.cluster.nodes import RANK, add_node, alive, kill_node, main, two_nodes
from tests.support.deadline import until_async

STREAMS = 24
SIM = {"step_us": 5000, "sequence_us": 0, "prefill_us_per_token": 0, "tokens": "sampled"}


async def told(llm: muro.AsyncLLM, number: int, begun: list[int]) -> tuple[list[int], str | None]:
    params = muro.SamplingParams(
        temperature=1.0, seed=number, max_tokens=300, ignore_eos=True, output_kind=OutputKind.DELTA
    )
    tokens: list[int] = []
    reason = None
    async for output in llm.generate(f"number {number}", params):
        tokens += output.outputs[0].token_ids
        reason = output.outputs[0].finish_reason
        begun[number] = 1
    return tokens, reason


async def all_of(llm: muro.AsyncLLM, begun: list[int]) -> list[tuple[list[int], str | None]]:
    return await asyncio.gather(*(told(llm, number, begun) for number in range(STREAMS)))


async def run(cluster: Any, second: Any) -> dict[str, Any]:
    connect = ConnectConfig(
        ray=RayConfig(resources=RANK),
        num_engines=2,
        engine=EngineConfig(log_level="ERROR"),
        restart=RestartPolicy(policy="on-failure"),
        startup_timeout=90,
    )
    async with await muro.AsyncLLM.start(
        engine="sim", options=SIM, connect=connect, on_engine_death="replay", restart_wait=90
    ) as llm:
        pids = [status.pid or 0 for status in llm.engines()]
        undisturbed = await all_of(llm, [0] * STREAMS)
        begun = [0] * STREAMS
        streams = asyncio.ensure_future(all_of(llm, begun))
        await until_async(lambda: sum(begun) == STREAMS, within=20)
        killed = time.monotonic()
        await asyncio.to_thread(kill_node, cluster, second)
        await until_async(lambda: not all(map(alive, pids)), within=40)  # its raylet may be survived for a while
        ended = time.monotonic()
        await until_async(lambda: any(s.state == "restarting" for s in llm.engines()), within=40)
        noticed = time.monotonic() - ended
        (dead,) = [status for status in llm.engines() if status.state == "restarting"]
        await until_async(lambda: "waiting for a place" in llm.engines()[dead.rank].progress.phase, within=40)
        await asyncio.to_thread(add_node, cluster)
        await until_async(lambda: all(s.state == "serving" for s in llm.engines()), within=60)
        back = time.monotonic() - killed
        same = await streams == undisturbed
        both = [status.generation for status in llm.engines()]
        again = await all_of(llm, [0] * STREAMS) == undisturbed
        now = [status.pid or 0 for status in llm.engines()]
        facts = {"same": same, "again": again, "generations": sorted(both), "error": dead.error}
        facts |= {
            "ended": ended - killed,
            "noticed": noticed,
            "back": back,
            "replayed": llm.metrics.replayed,
            "old_alive": alive(pids[dead.rank]),
        }
    return facts | {"left": [pid for pid in now if alive(pid)]}


def story() -> dict[str, Any]:
    with two_nodes() as (cluster, second):
        return asyncio.run(run(cluster, second))


if __name__ == "__main__":
    main(story)
