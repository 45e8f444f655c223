"""A latency profile for the simulator, measured from outside on any OpenAI-compatible server.

Two straight lines are fitted. The time between tokens over the number of streams gives the time of a step and of each
sequence in it; the time to the first token over the length of the prompt gives that of each prompt token, and of each
prompt. What the server itself takes, HTTP included, is in there. The cache cannot be seen from outside: `num_blocks`
and the bounds of the scheduler keep their defaults. The server should have nothing else to do.
"""

from __future__ import annotations

import math
import urllib.request
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, Literal
from uuid import uuid4

import msgspec

from muro.bench.serve import Load
from muro.bench.serve import run as put_load
from muro.engines.sim.profile import Profile
from muro.errors import ConfigError

STREAMS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PROMPTS = (16, 64, 128, 256, 512, 1024, 2048, 4096)
_P90 = 1.2816
"""Standard deviations between median and the 90th percentile."""
_FIELDS = ("step_us", "sequence_us", "prefill_us_per_token", "prefill_us_per_request", "jitter")


class _Card(msgspec.Struct):
    id: str


class _Cards(msgspec.Struct):
    data: list[_Card]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure, and how thoroughly."""

    url: str = "http://127.0.0.1:8000"
    model: str = ""
    """Empty: whatever the server has."""
    route: Literal["completions", "chat"] = "completions"
    concurrency: int = 16
    """The most streams at once."""
    prompt_words: int = 512
    """The longest prompt."""
    tokens: int = 64
    """Tokens of each stream."""
    repeats: int = 3
    """Requests per length of prompt."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The profile, and the points that it was fitted to, in milliseconds."""

    profile: Profile
    between_tokens: list[tuple[int, float]]
    """Streams at once, and the median time between tokens."""
    first_token: list[tuple[int, float]]
    """Tokens of the prompt, and the median time to the first token."""


def run(plan: Plan, progress: Callable[[str], None] = lambda _: None) -> Measured:
    """Measure. Raises ConfigError if the server cannot be reached, fails, or says nothing that can be measured."""
    streams = list(takewhile(lambda n: n <= plan.concurrency, STREAMS))
    lengths = list(takewhile(lambda n: n <= plan.prompt_words, PROMPTS))
    if len(streams) < 2 or len(lengths) < 2:
        raise ConfigError(f"a line needs two points: at least {STREAMS[1]} streams, and prompts of {PROMPTS[1]} words")
    progress("warming up")
    _load(plan, requests=1, concurrency=1, prompt_words=8, max_tokens=8)
    decode = []
    jitter = 0.0
    for count in streams:
        progress(f"{count} streams")
        result = _load(plan, requests=count, concurrency=count, prompt_words=8, max_tokens=plan.tokens)
        spread = result["between_events_ms"]
        gap = spread.get("p50") or result["per_token_ms"].get("p50")
        if not gap:
            raise ConfigError("the streams had one token each; there is no time between tokens to measure")
        decode.append((count, gap))
        if count == 1 and spread.get("p50"):
            jitter = max(0.0, math.log(spread["p90"] / spread["p50"]) / _P90)
    prefill = []
    for words in lengths:
        progress(f"prompts of {words} words")
        result = _load(plan, requests=plan.repeats, concurrency=1, prompt_words=words, max_tokens=1)
        prefill.append((round(result["prompt_tokens"] / plan.repeats), result["ttft_ms"]["p50"]))
    return Measured(
        profile=fit(decode, prefill, jitter, about=f"measured by muro bench profile: {plan.model or plan.url}"),
        between_tokens=decode,
        first_token=prefill,
    )


def fit(
    decode: Sequence[tuple[int, float]], prefill: Sequence[tuple[int, float]], jitter: float, *, about: str = ""
) -> Profile:
    """The profile behind points as in `Measured`; what comes out negative counts as nothing."""
    step, sequence = _line(decode)
    first, token = _line(prefill)
    if token == 0:
        first = min(ms for _, ms in prefill)
    return Profile(
        about=about,
        step_us=_us(step),
        sequence_us=_us(sequence),
        prefill_us_per_token=_us(token),
        prefill_us_per_request=_us(first - step - sequence),
        jitter=round(min(jitter, 2.0), 3),
    )


def toml(measured: Measured) -> str:
    """The profile as a file that `--engine-option profile=FILE` takes, its points as comments."""
    profile = measured.profile
    lines = [f"about = {msgspec.json.encode(profile.about).decode()}"]
    lines += [f"{name} = {getattr(profile, name)}" for name in _FIELDS]
    lines += ["", "# streams: ms between tokens"]
    lines += [f"# {count}: {ms:.2f}" for count, ms in measured.between_tokens]
    lines += ["# prompt tokens: ms to the first token"]
    lines += [f"# {count}: {ms:.2f}" for count, ms in measured.first_token]
    return "\n".join(lines) + "\n"


def served_model(url: str) -> str:
    """The name of the first model that a server says it has; empty if it does not say."""
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/v1/models", timeout=5) as answer:  # noqa: S310 - the user's URL
            cards = msgspec.json.decode(answer.read(1 << 20), type=_Cards)
    except (OSError, ValueError, msgspec.MsgspecError):
        return ""
    return cards.data[0].id if cards.data else ""


def _load(plan: Plan, **what: Any) -> dict[str, Any]:
    # Prompts of one's own each time, so that no cache of prefixes serves them.
    result = put_load(Load(url=plan.url, model=plan.model, route=plan.route, salt=uuid4().hex[:8], **what))
    if result["errors"]:
        raise ConfigError(f"the server failed: {result['error_samples'][0]}")
    return result


def _line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Least squares: value at 0 and slope, neither of them below 0."""
    xs, ys = [float(x) for x, _ in points], [y for _, y in points]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((one - x) ** 2 for one in xs)
    slope = sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / spread if spread else 0.0
    if slope <= 0:
        return y, 0.0
    start = y - slope * x
    return (
        (start, slope)
        if start >= 0
        else (0.0, sum(a * b for a, b in zip(xs, ys, strict=True)) / sum(a * a for a in xs))
    )


def _us(ms: float) -> float:
    return round(max(0.0, ms * 1000), 1)
