"""Which requests are asked: drawn from a seed, with what they must receive. Pure."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from muro.engines.sim.text import continuation
from tests.chaos.oracle import Asked

_WORDS = ("the", "engine", "that", "dies", "says", "why", "and", "whoever", "asked", "is", "told", "at", "once")

POISONS: dict[str, tuple[str, bool]] = {
    "raise": ("step:raise", True),
    "exit": ("step:exit=7", True),
    "segfault": ("step:signal=SIGSEGV", True),
    "executor fails": ("step:executor", True),
    "input thread dies": ("step:thread=muro-receiver", True),
    "output thread dies": ("step:thread=muro-sender", True),
    "hang": ("step:hang", True),
    "hang with the lock": ("step:hang_lock", True),
    "lock seized": ("step:seize", True),
    "spin": ("step:spin", True),
    "barren steps": ("step:barren", True),
    "hang in preparation": ("preprocess:hang", True),
    "slow step": ("step:sleep=0.7", False),
    "slow preparation": ("preprocess:sleep=0.5", False),
    "refuse": ("output:refuse", False),
    "refuse in a step": ("step:refuse", False),
    "garble": ("output:garble", False),
    "raise in preparation": ("preprocess:raise", False),
    "raise in adding": ("add:raise", False),
}
"""Faults of the simulator that come with a request, and whether they kill it."""
_OWN = {
    "refuse": "refuse", "refuse in a step": "refuse", "garble": "garble",
    "raise in preparation": "raise", "raise in adding": "raise",
}  # fmt: skip

_BAD: tuple[dict[str, Any] | bytes, ...] = (
    b'{"prompt": "abc", ',
    b"\xff\xfe",
    {"prompt": "abc", "max_tokens": -1},
    {"prompt": "abc", "max_tokens": 2**70},
    {"prompt": "abc", "logit_bias": {"no number": 2}},
    {"prompt": "abc", "model": "another"},
    {"prompt": [], "max_tokens": 1},
    {"prompt": "abc", "seed": 2**65},
    {"prompt": [1] * 9000, "max_tokens": 1},
    {"prompt": "abc", "vllm_xargs": {"fault": "no such fault"}},
)


def draw(choose: random.Random, number: int) -> Asked:
    """An ordinary request to the simulator, now and then one whose caller leaves, or one that is wrong."""
    kind = choose.choices(("stream", "whole", "leaves", "bad"), (62, 18, 15, 5))[0]
    if kind == "bad":
        bad = choose.choice(_BAD)
        return Asked(kind="bad", body=bad if isinstance(bad, bytes) else msgspec.json.encode(bad), stream=False)
    stream = kind == "stream" or (kind == "leaves" and choose.random() < 0.7)
    leave = choose.expovariate(4.0) if kind == "leaves" else None
    return _asked(choose, number, kind=kind, stream=stream, leave_after=leave)


def draw_unknown(choose: random.Random, number: int) -> Asked:
    """A request to a model, whose words nobody here can foretell: only their number."""
    asked = draw(choose, number)
    if asked.kind == "bad":
        return asked
    body = msgspec.json.decode(asked.body)
    most = min(int(body["max_tokens"]), 24)
    body |= {"max_tokens": most, "ignore_eos": True}
    body.pop("stop", None)
    return msgspec.structs.replace(
        asked, body=msgspec.json.encode(body), text=None, finish="length", tokens=asked.choices * most
    )


def poison(choose: random.Random, number: int, name: str) -> Asked:
    """A request that carries a fault."""
    fault, lethal = POISONS[name]
    own = _OWN.get(name, name)
    # Few tokens: some of these give one each time before they kill, and with it they earn another attempt.
    return _asked(
        choose, number, kind="poison", stream=True, fault=own, lethal=lethal, more={"vllm_xargs": {"fault": fault}}
    )


def _asked(choose: random.Random, number: int, *, more: dict[str, Any] | None = None, **fields: Any) -> Asked:
    words = " ".join(choose.choices(_WORDS, k=int(choose.paretovariate(0.8)) % 120 + 1))
    prompt = f"{number} {words}"
    most = min(600 if fields["kind"] != "poison" else 4, 1 + int(choose.expovariate(1 / 30)))
    choices = 1 if choose.random() < 0.9 or fields["kind"] == "poison" else 2
    body: dict[str, Any] = {"prompt": prompt, "max_tokens": most, "n": choices, "stream": fields["stream"]}
    # None of these changes what the simulator says.
    body |= {"temperature": choose.choice((0, 0.7, 1.3)), "seed": choose.getrandbits(40), **(more or {})}
    text = bytes(continuation(prompt.encode(), most)).decode()
    finish, length = "length", most
    if most > 4 and choose.random() < 0.1:
        at = choose.randrange(most - 2)
        stop = text[at : at + 2]
        at = text.index(stop)
        body["stop"] = [stop]
        text, finish, length = text[:at], "stop", at + 2
    if fields["stream"]:
        body["stream_options"] = {"include_usage": True}
    return Asked(
        body=msgspec.json.encode(body), choices=choices, text=text, finish=finish, tokens=choices * length, **fields
    )
