"""What our wall costs and what vLLM's own costs, around the same engine with a forward pass that does nothing.

    .interop/vllm/bin/python -m tests.interop.vllm.walls MODEL_DIR [--quick]

Runs in vLLM's environment. Both walls: vLLM 0.25.1's `EngineCore` in a process of its own with `noop.NoopExecutor`, its
scheduler, statistics on; before it vLLM's synchronous client, or ours. They take turns within one run, so that the
machine's moods fall on both. Prints one JSON object: microseconds (median, 99th percentile), and tokens per second.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol

EXECUTOR = "tests.interop.vllm.noop.NoopExecutor"
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 2048,
    "max_num_seqs": 256,
    "distributed_executor_backend": EXECUTOR,
}
STREAMS = (1, 32, 256)
METHOD = "reset_mm_cache"
"""An operation that both pass to the same method of `EngineCore`, which has nothing to do."""


class Wall(Protocol):
    """A client with its engine."""

    def call(self) -> None:
        """One utility call."""
        ...

    def add(self, request_id: str, prompt: list[int], tokens: int) -> None: ...

    def ends(self) -> tuple[int, int]:
        """The next message: how many tokens it has, and how many requests end with it."""
        ...

    def close(self) -> None: ...


class Ours:
    """Our client, our process around vLLM's engine."""

    def __init__(self, model: str) -> None:
        import muro
        from muro.wire.request import EngineCoreRequest, SamplingParams

        self._client = muro.connect(engine="vllm", model=model, options=SETTINGS)
        self._request, self._params = EngineCoreRequest, SamplingParams

    def call(self) -> None:
        self._client.call(METHOD)

    def add(self, request_id: str, prompt: list[int], tokens: int) -> None:
        params = self._params(temperature=0, max_tokens=tokens, ignore_eos=True)
        self._client.add_request(self._request(request_id, prompt, sampling_params=params))

    def ends(self) -> tuple[int, int]:
        return _counted(self._client.get_outputs().outputs)

    def close(self) -> None:
        self._client.close()


class Theirs:
    """vLLM's client, vLLM's process around its engine."""

    def __init__(self, model: str) -> None:
        from vllm import SamplingParams
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine import EngineCoreRequest
        from vllm.v1.engine.core_client import EngineCoreClient
        from vllm.v1.executor import Executor

        config = EngineArgs(model=model, **SETTINGS).create_engine_config()
        self._client = EngineCoreClient.make_client(
            multiprocess_mode=True,
            asyncio_mode=False,
            vllm_config=config,
            executor_class=Executor.get_class(config),
            log_stats=True,
        )
        self._request, self._params = EngineCoreRequest, SamplingParams

    def call(self) -> None:
        self._client.reset_mm_cache()

    def add(self, request_id: str, prompt: list[int], tokens: int) -> None:
        params = self._params(temperature=0, max_tokens=tokens, ignore_eos=True)
        request = self._request(
            request_id=request_id,
            prompt_token_ids=prompt,
            mm_features=None,
            sampling_params=params,
            pooling_params=None,
            arrival_time=0.0,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        self._client.add_request(request)

    def ends(self) -> tuple[int, int]:
        return _counted(self._client.get_output().outputs)

    def close(self) -> None:
        self._client.shutdown()


def _counted(outputs: Any) -> tuple[int, int]:
    tokens = ended = 0
    for output in outputs:
        tokens += len(output.new_token_ids)
        ended += output.finish_reason is not None
    return tokens, ended


class Measured:
    """One wall and its samples."""

    def __init__(self, wall: Wall) -> None:
        self.wall = wall
        self.utility: list[float] = []
        self.first_token: list[float] = []
        self.tokens_per_s: dict[int, list[float]] = {streams: [] for streams in STREAMS}
        self._sent = 0

    def round_trips(self, rounds: int) -> None:
        for _ in range(rounds):
            start = perf_counter()
            self.wall.call()
            self.utility.append(perf_counter() - start)

    def single_tokens(self, rounds: int) -> None:
        """ADD of a request of one token, until that token is in the caller's hands."""
        for _ in range(rounds):
            self._sent += 1
            start = perf_counter()
            self.wall.add(f"one-{self._sent}", [1, 2, 3], 1)
            while not self.wall.ends()[1]:
                pass
            self.first_token.append(perf_counter() - start)

    def streams(self, streams: int, tokens: int) -> None:
        """So many at once, of so many tokens each."""
        start = perf_counter()
        for _ in range(streams):
            self._sent += 1
            self.wall.add(f"many-{self._sent}", [1000 + self._sent % 1000], tokens)
        left, received = streams, 0
        while left:
            news, ended = self.wall.ends()
            received += news
            left -= ended
        if received != streams * tokens:
            raise AssertionError(f"{received} tokens came instead of {streams * tokens}")
        self.tokens_per_s[streams].append(received / (perf_counter() - start))

    def forget(self) -> None:
        """What came first paid for caches and connections."""
        self.utility.clear()
        self.first_token.clear()
        for found in self.tokens_per_s.values():
            found.clear()

    def report(self) -> dict[str, Any]:
        return {
            "utility_us": _spread(self.utility),
            "add_to_first_token_us": _spread(self.first_token),
            "tokens_per_s": {str(n): round(statistics.median(found)) for n, found in self.tokens_per_s.items()},
        }


def _spread(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {"p50": round(statistics.median(ordered) * 1e6, 1), "p99": round(ordered[int(len(ordered) * 0.99)] * 1e6, 1)}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--quick", action="store_true", help="only see that everything runs")
    options = parser.parse_args()
    turns, rounds, budget = (1, 30, 2_000) if options.quick else (6, 300, 40_000)
    makers: dict[str, Callable[[str], Wall]] = {"muro": Ours, "vllm": Theirs}
    walls = {name: Measured(make(options.model)) for name, make in makers.items()}
    for turn in range(-1, turns):
        for name, measured in walls.items():
            print(f"{name} {max(turn, 0) + 1}/{turns}", file=sys.stderr, flush=True)
            measured.round_trips(rounds)
            measured.single_tokens(rounds)
            for streams in STREAMS:
                # The model's context holds 2048 tokens.
                measured.streams(streams, min(1500, max(32, budget // streams)))
        if turn < 0:
            for measured in walls.values():
                measured.forget()
    print(json.dumps({name: measured.report() for name, measured in walls.items()}))
    for measured in walls.values():
        measured.wall.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
