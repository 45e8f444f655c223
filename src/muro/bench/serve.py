"""Load on any OpenAI-compatible server: time to first token, time between events, tokens per second, errors.

`concurrency` callers, each on a connection of its own, send one request after the other until all are sent. One event
loop, little work per event: 256 streams and 50,000 events a second leave most of a core to the server.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

from muro.bench.http_client import Answer, Connection
from muro.bench.sampling import percentile
from muro.errors import ConfigError


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What to send, and how much of it."""

    url: str = "http://127.0.0.1:8000"
    model: str = ""
    """Empty: whatever the server has."""
    requests: int = 256
    concurrency: int = 256
    prompt_words: int = 32
    """Words of a prompt; about as many tokens."""
    salt: str = ""
    """What the prompts begin with, to tell them from those of an earlier run."""
    max_tokens: int = 128
    stream: bool = True
    route: Literal["completions", "chat"] = "completions"
    pids: tuple[int, ...] = ()
    """Processes of this machine whose CPU time and memory are reported."""


def run(load: Load) -> dict[str, Any]:
    """Send the load and wait for all answers.

    Returns:
        `requests`, `errors`, `error_samples`, `seconds`, `tokens`, `prompt_tokens`, `tokens_per_s`, `requests_per_s`,
        `events`; in
        milliseconds as {mean, p50, p90, p99}: `ttft_ms` (to the first event, or to the answer if not streamed),
        `between_events_ms`, `per_token_ms` (of each request, after its first), `latency_ms`; `processes`: per pid
        {cpu_s, cpu_us_per_token, rss_mb}.

    Raises:
        ConfigError: the URL is not one of http, or nobody answers there.
    """
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.run(_run(load))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(load))


def text(result: dict[str, Any]) -> str:
    """The result for people."""
    rates = f"{result['tokens_per_s']:>10,.0f} tokens/s   {result['requests_per_s']:.1f} requests/s"
    lines = [
        f"{result['requests']} requests, {result['errors']} errors, {result['seconds']:.2f} s",
        f"{rates}   {result['events']:,} events for {result['tokens']:,} tokens",
    ]
    for key, words in (
        ("ttft_ms", "time to first token"),
        ("between_events_ms", "between events"),
        ("per_token_ms", "per token"),
        ("latency_ms", "whole request"),
    ):
        if spread := result[key]:
            shown = "   ".join(f"{name} {value:8.2f}" for name, value in spread.items())
            lines.append(f"{words:<20} {shown}   ms")
    for pid, numbers in result["processes"].items():
        lines.append(
            f"process {pid}: {numbers['cpu_s']:.2f} s CPU, {numbers['cpu_us_per_token']:.1f} us per token, "
            f"{numbers['rss_mb']:.0f} MB resident"
        )
    lines += [f"error: {sample}" for sample in result["error_samples"]]
    return "\n".join(lines)


def _place(url: str) -> tuple[str, int]:
    """Host and port. Raises ConfigError."""
    try:
        parts = urlsplit(url)
        if parts.scheme == "http" and parts.hostname:
            return parts.hostname, parts.port or 80
    except ValueError:  # no port, or no IPv6 address
        pass
    raise ConfigError(f"{url!r} is no address to put load on; http://127.0.0.1:8000 is one")


async def _run(load: Load) -> dict[str, Any]:
    place = _place(load.url)
    gaps: array[float] = array("d")
    loop = asyncio.get_running_loop()
    connections = []
    for _ in range(min(load.concurrency, load.requests)):
        try:
            _, connection = await loop.create_connection(lambda: Connection(time.perf_counter, gaps), *place)
        except OSError as error:
            raise ConfigError(f"nobody answers at {load.url}: {error}") from error
        connections.append(connection)
    processes = _Processes(load.pids)
    requests = iter(_requests(load, f"{place[0]}:{place[1]}"))
    answers: list[Answer] = []
    began = time.perf_counter()

    async def caller(connection: Connection) -> None:
        for data in requests:
            if not connection.alive:
                _, connection = await loop.create_connection(lambda: Connection(time.perf_counter, gaps), *place)
            answers.append(await connection.request(data))
        connection.close()

    await asyncio.gather(*map(caller, connections))
    seconds = time.perf_counter() - began
    return _result(answers, gaps, seconds, processes)


def _requests(load: Load, host: str) -> Iterator[bytes]:
    """Each request as bytes; the prompts differ, so that no cache of prefixes serves them."""
    path = "/v1/completions" if load.route == "completions" else "/v1/chat/completions"
    for number in range(load.requests):
        prompt = " ".join([f"{load.salt}{number}", *("word" for _ in range(load.prompt_words - 1))])
        body: dict[str, Any] = {"max_tokens": load.max_tokens, "stream": load.stream, "temperature": 0}
        body["ignore_eos"] = True
        if load.model:
            body["model"] = load.model
        if load.stream:
            body["stream_options"] = {"include_usage": True}
        if load.route == "completions":
            body["prompt"] = prompt
        else:
            body["messages"] = [{"role": "user", "content": prompt}]
        data = msgspec.json.encode(body)
        head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        yield f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def _result(answers: Sequence[Answer], gaps: array[float], seconds: float, processes: _Processes) -> dict[str, Any]:
    good = [answer for answer in answers if not answer.error]
    bad = [answer.error for answer in answers if answer.error]
    tokens = sum(answer.tokens for answer in good)
    return {
        "requests": len(answers),
        "errors": len(bad),
        "error_samples": sorted(set(bad))[:3],
        "seconds": seconds,
        "tokens": tokens,
        "prompt_tokens": sum(answer.prompt_tokens for answer in good),
        "tokens_per_s": tokens / seconds,
        "requests_per_s": len(good) / seconds,
        "events": sum(answer.events for answer in good),
        "ttft_ms": _spread([answer.first - answer.sent for answer in good]),
        "between_events_ms": _spread(gaps),
        "per_token_ms": _spread([(a.last - a.first) / (a.tokens - 1) for a in good if a.tokens > 1 and a.events]),
        "latency_ms": _spread([answer.last - answer.sent for answer in good]),
        "processes": processes.since(tokens),
    }


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    if not seconds:
        return {}
    ordered = sorted(seconds)
    at = {f"p{part}": percentile(ordered, part) for part in (50, 90, 99)}
    return {name: value * 1000 for name, value in {"mean": sum(ordered) / len(ordered), **at}.items()}


class _Processes:
    """CPU time since it was made, and memory, of other processes."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._processes = []
        if pids:
            import psutil

            try:
                self._processes = [psutil.Process(pid) for pid in pids]
            except psutil.Error as error:
                raise ConfigError(f"--pid: {error}") from error
        self._before = [self._cpu(process) for process in self._processes]

    def since(self, tokens: int) -> dict[str, dict[str, float]]:
        found = {}
        for process, before in zip(self._processes, self._before, strict=True):
            used = self._cpu(process) - before
            found[str(process.pid)] = {
                "cpu_s": used,
                "cpu_us_per_token": 1e6 * used / max(1, tokens),
                "rss_mb": process.memory_info().rss / 1e6,
            }
        return found

    @staticmethod
    def _cpu(process: Any) -> float:
        times = process.cpu_times()
        return float(times.user + times.system)
