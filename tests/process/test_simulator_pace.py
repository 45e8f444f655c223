"""200 streams at once, a token each every 100 ms: what callers see of it, through the library and over HTTP.

The bounds are generous, since tests share their machine; what a quiet one keeps is in docs/load-testing.md.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from statistics import median
from time import monotonic

from muro import AsyncLLM, SamplingParams
from tests.support.server import Server

STREAMS, TOKENS = 200, 40
STEP_US = 100_000
OPTIONS = {"step_us": STEP_US, "sequence_us": 0, "prefill_us_per_token": 0, "max_num_batched_tokens": 8192}


def test_through_the_library() -> None:
    per_token: list[float] = []

    async def read(llm: AsyncLLM, number: int) -> None:
        params = SamplingParams(max_tokens=TOKENS, ignore_eos=True)
        came = [(monotonic(), len(out.outputs[0].token_ids)) async for out in llm.generate(f"prompt {number}", params)]
        assert came[-1][1] == TOKENS  # a reader that is slow for a moment gets two tokens at once
        per_token.append((came[-1][0] - came[0][0]) / (TOKENS - 1))

    async def main() -> None:
        llm = await AsyncLLM.start(engine="sim", options=OPTIONS)
        try:
            await asyncio.gather(*(read(llm, number) for number in range(STREAMS)))
        finally:
            await llm.aclose()

    asyncio.run(main())
    assert 0.09 < median(per_token) < 0.2


def test_over_http() -> None:
    flags = [f"--engine-option={name}={value}" for name, value in OPTIONS.items()]
    with Server("--engine", "sim", *flags) as server:
        server.ready()
        counts = [f"--requests={STREAMS}", f"--concurrency={STREAMS}", f"--max-tokens={TOKENS}"]
        command = [sys.executable, "-m", "muro", "bench", "serve", server.url, *counts, "--json"]
        result = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    assert (result["errors"], result["tokens"]) == (0, STREAMS * TOKENS)
    assert 90 < result["per_token_ms"]["p50"] < 200
