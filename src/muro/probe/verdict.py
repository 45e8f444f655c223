"""In what a live peer differs from the recorded one. Pure."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from muro.probe.script import Asked, Called, Script
from muro.probe.show import printable
from muro.wire.output import EngineCoreOutput, FinishReason, UtilityOutput
from muro.wire.request import EngineCoreRequest

SHOWN: Final = 20
"""As many differences are printed; the others are counted."""


class Pace(msgspec.Struct, frozen=True):
    """How fast to play: `speed` 1 is the recorded one, 0 is without pauses. `patience` in seconds of silence."""

    speed: float = 1.0
    patience: float = 30.0

    def after(self, seconds: float) -> float:
        """How long to wait for what came so many seconds later."""
        return max(0.0, seconds) / self.speed if self.speed else 0.0


class Result(msgspec.Struct):
    """What a replay found."""

    counts: dict[str, int] = {}
    notes: list[str] = []
    differences: list[str] = []

    def text(self) -> str:
        """For people."""
        lines = [", ".join(f"{count} {name}" for name, count in self.counts.items()), *self.notes]
        if not self.differences:
            lines.append("no difference")
        else:
            lines.append("1 difference:" if len(self.differences) == 1 else f"{len(self.differences)} differences:")
            lines += [f"  {difference}" for difference in self.differences[:SHOWN]]
        if len(self.differences) > SHOWN:
            lines.append(f"  ... and {len(self.differences) - SHOWN} more (--json has them all)")
        return "\n".join(map(printable, lines))

    def as_json(self) -> str:
        """For programs."""
        return json.dumps(msgspec.to_builtins(self))


class Heard(msgspec.Struct):
    """What has come of a request so far."""

    tokens: list[int] = []
    finish: int | None = None
    ends: int = 0

    def take(self, output: EngineCoreOutput) -> None:
        """News of it."""
        self.tokens.extend(output.new_token_ids)
        if output.finish_reason is not None:
            self.finish = output.finish_reason
            self.ends += 1


def notes_of(script: Script) -> list[str]:
    """What must be said of a replay whatever comes of it."""
    notes = []
    if script.made_up:
        notes.append("the recording has no prompts or answers: made-up token ids of the recorded lengths were played")
    if script.skipped:
        notes.append(f"{script.skipped} messages were not played: too little of them was recorded")
    return notes


def compare_request(asked: Asked, heard: Heard | None) -> list[str]:
    """How the answer to a request differs from the recorded one."""
    name = asked.request.request_id
    if heard is None:
        return [] if not asked.outputs or asked.aborted else [f"{name}: no answer; recorded: {_end(asked.finish)}"]
    found = []
    if heard.ends > 1:
        found.append(f"{name}: ended {heard.ends} times")
    if asked.aborted:  # how far it came is a matter of time
        return found
    if heard.finish != asked.finish:
        found.append(f"{name}: {_end(heard.finish)}; recorded: {_end(asked.finish)}")
    if len(heard.tokens) != len(asked.tokens):
        found.append(f"{name}: {len(heard.tokens)} tokens; recorded: {len(asked.tokens)}")
    elif asked.prompt_known and asked.tokens_known and heard.tokens != asked.tokens:
        place = next(i for i, (a, b) in enumerate(zip(heard.tokens, asked.tokens, strict=True)) if a != b)
        found.append(f"{name}: token {place} is {heard.tokens[place]}; recorded: {asked.tokens[place]}")
    return found


def compare_call(called: Called, answer: UtilityOutput | None) -> list[str]:
    """How the answer to a call differs from the recorded one."""
    name = f"call {called.call.method}"
    recorded = called.answer[1] if called.answer is not None else None
    if recorded is None or answer is None:
        return [] if recorded is answer else [f"{name}: {_said(answer)}; recorded: {_said(recorded)}"]
    if (recorded.failure_message is None) != (answer.failure_message is None):
        return [f"{name}: {_said(answer)}; recorded: {_said(recorded)}"]
    if called.answer_known and recorded.failure_message is None and recorded.result != answer.result:
        return [f"{name}: {_said(answer)}; recorded: {_said(recorded)}"]
    return []


def compare_asking(asked: Asked, live: EngineCoreRequest, aborted: bool) -> list[str]:
    """How a front-end's request differs from the recorded one that it was answered as."""
    name = live.request_id
    found = []
    here, there = live.prompt_token_ids or [], asked.request.prompt_token_ids or []
    if len(here) != len(there):
        found.append(f"{name}: prompt of {len(here)} tokens; recorded: {len(there)}")
    elif asked.prompt_known and here != there:
        found.append(f"{name}: another prompt than the recorded one")
    if aborted != asked.aborted:
        found.append(
            f"{name}: aborted, the recorded one was not" if aborted else f"{name}: not aborted, the recorded one was"
        )
    return found


def _end(finish: int | None) -> str:
    if finish is None:
        return "no end"
    return f"ended with {FinishReason(finish).name}"


def _said(answer: UtilityOutput | None) -> str:
    if answer is None:
        return "no answer"
    if answer.failure_message is not None:
        return f"failed ({answer.failure_message[:200]})"
    result: Any = answer.result
    return f"gave {str(result[1] if isinstance(result, list) else result)[:200]}"
