"""Requests with schemas, hostile ones between them, and the account of each."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections import Counter
from typing import Any

import httpx
import msgspec
from jsonschema import Draft202012Validator

from tests.structured.hostile import HOSTILE
from tests.support.schemas import Example, examples

PATIENCE = 3600.0
"""Seconds for an answer: how fast they come on a busy machine is not the question here."""


class Plan(msgspec.Struct, frozen=True):
    """What is asked."""

    requests: int
    at_once: int
    max_tokens: int
    hostile: int


class Account(msgspec.Struct):
    """What came of it."""

    ended: Counter[str] = msgspec.field(default_factory=Counter)
    """By finish reason."""
    schemas: set[str] = msgspec.field(default_factory=set)
    wrong: list[str] = msgspec.field(default_factory=list)
    """Finished answers that are not valid, and requests that failed."""
    unfinished: list[str] = msgspec.field(default_factory=list)
    """The ends of answers that had not ended."""
    hostile: dict[str, str] = msgspec.field(default_factory=dict)
    seconds: list[float] = msgspec.field(default_factory=list)
    tokens: int = 0
    took: float = 0.0

    def problems(self, enough: float) -> list[str]:
        """What is not as it must be."""
        found = list(self.wrong)
        total = sum(self.ended.values())
        if self.ended["stop"] < enough * total:
            found.append(f"{self.ended['stop']} of {total} answers ended within their limit; {enough:.0%} must")
        return found

    def summary(self) -> str:
        """In a few lines."""
        total, stopped = sum(self.ended.values()), self.ended["stop"]
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.ended.most_common())
        part, speed = stopped / max(total, 1), self.tokens / max(self.took, 1e-9)
        lines = [
            f"{total} requests over {len(self.schemas)} schemas in {self.took:.0f} s: {reasons}",
            f"{part:.1%} ended within their limit; {len(self.wrong)} are wrong",
            f"{self.tokens} tokens, {speed:.0f} per second; {statistics.median(self.seconds or [0.0]):.1f} s each",
        ]
        if self.unfinished:
            lines += ["some that did not end:", *self.unfinished[:8]]
        if self.hostile:
            lines += ["hostile grammars:", *(f"  {name}: {outcome}" for name, outcome in self.hostile.items())]
        return "\n".join(lines)


async def run(url: str, plan: Plan) -> Account:
    """Ask for everything."""
    account = Account()
    turns = asyncio.Semaphore(plan.at_once)
    begun = time.monotonic()
    chosen = examples()
    limits = httpx.Limits(max_connections=plan.at_once + 8)
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE, limits=limits) as client, asyncio.TaskGroup() as group:
        for number in range(plan.requests):
            group.create_task(_ask(client, turns, account, plan, number, chosen[number % len(chosen)]))
        group.create_task(_attack(client, account, plan))
    account.took = time.monotonic() - begun
    return account


async def _ask(
    client: httpx.AsyncClient, turns: asyncio.Semaphore, account: Account, plan: Plan, number: int, example: Example
) -> None:
    question = f"{example.question}\nAnswer with the arguments of {example.name}, as JSON. Its parameters are: "
    body = {
        "messages": [{"role": "user", "content": question + json.dumps(example.schema["properties"])}],
        "max_tokens": plan.max_tokens,
        "temperature": 0.7 if number % 2 else 0.0,
        "seed": number,
        # Without these, small models go on with properties of their own, or with white space, until the limit.
        "structured_outputs": {
            "json": example.schema,
            "disable_additional_properties": True,
            "whitespace_pattern": " ",
        },
    }
    async with turns:
        begun = time.monotonic()
        answer = await client.post("/v1/chat/completions", json=body)
        account.seconds.append(time.monotonic() - begun)
    account.schemas.add(json.dumps(example.schema, sort_keys=True))
    if answer.status_code != 200:
        account.ended[f"status {answer.status_code}"] += 1
        account.wrong.append(f"{example.id}: {answer.status_code} {answer.text[:200]}")
        return
    found = answer.json()
    choice = found["choices"][0]
    account.ended[choice["finish_reason"]] += 1
    account.tokens += found["usage"]["completion_tokens"]
    if choice["finish_reason"] != "stop":
        account.unfinished.append(f"  {example.id}: ... {choice['message']['content'][-150:]!r}")
    elif why := _wrong(example.schema, choice["message"]["content"]):
        account.wrong.append(f"{example.id}: {why}: {choice['message']['content'][:200]}")


def _wrong(schema: dict[str, Any], text: str) -> str | None:
    """Why a finished answer is not valid."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return str(error)
    errors = [error.message for error in Draft202012Validator(schema).iter_errors(value)]
    return errors[0] if errors else None


async def _attack(client: httpx.AsyncClient, account: Account, plan: Plan) -> None:
    """One hostile grammar after the other; each must be answered, whatever the answer is."""
    for _ in range(plan.hostile):
        for name, wanted in HOSTILE.items():
            body = {
                "messages": [{"role": "user", "content": "Hello"}],
                "max_tokens": 32,
                "structured_outputs": wanted,
            }
            begun = time.monotonic()
            answer = await client.post("/v1/chat/completions", json=body)
            seconds = time.monotonic() - begun
            if answer.status_code == 200:
                said = answer.json()["choices"][0]["finish_reason"]
            else:
                said = f"{answer.status_code} {answer.json()['error']['message'][:100]}"
            account.hostile[name] = f"{seconds:.1f} s, {said}"
            if answer.status_code not in (200, 400, 500):
                account.wrong.append(f"hostile grammar {name}: {said}")
