"""What each request must receive, and what to make of what it did receive. Pure: no socket, process or clock.

A request must end in one of these ways, and in exactly one:

- complete: all that was asked for, to the letter;
- failed: a correct beginning, then a documented error that something which happened meanwhile accounts for;
- refused: the same error before anything came, with Retry-After where one may come again;
- left: its caller went away, and what had come until then was correct;
- bad: it was wrong, and that was said.

Everything else is a violation: a wrong, missing or doubled letter, an answer that breaks off without a word, an error
without a cause or without a documented code, and a request that is stuck.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec

from muro.server.limits import HttpLimits

Kind = Literal["stream", "whole", "leaves", "bad", "poison"]

AFTER_DEATH = frozenset({"engine_dead"})
"""Codes of errors that a death accounts for."""
OWN = {
    "refuse": frozenset({"invalid_request"}),
    "garble": frozenset({"request_failed"}),
    "raise": frozenset({"request_failed"}),
    "quarantine": frozenset({"request_failed"}),
}
"""Codes of errors that a fault accounts for which came with the request itself."""
DOCUMENTED = {
    "invalid_request": 400,
    "unsupported_option": 400,
    "prompt_too_long": 400,
    "not_found": 404,
    "engine_dead": 503,
    "overloaded": 503,
    "request_failed": 500,
}
"""The errors that may come in a run, and their status where nothing had been sent yet."""
NO_FILES = "few files"
"""The fault in which connections may be closed before anything was said."""
QUEUED = HttpLimits().max_queued_requests
"""Requests that the server keeps waiting; who comes then is refused. `--max-queued-requests` is not changed."""
MAY_COME_AGAIN = frozenset({"engine_dead", "overloaded"})


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One request, and what it must receive."""

    kind: Kind
    body: bytes
    path: str = "/v1/completions"
    stream: bool = True
    choices: int = 1
    text: str | None = None
    """Of every choice; None: nobody can foretell it."""
    finish: str = "length"
    tokens: int = 0
    """Of all choices."""
    leave_after: float | None = None
    """Seconds after which the caller goes away."""
    fault: str = ""
    """The kind of the fault that it carries."""
    lethal: bool = False
    """Whether that fault kills the engine, so that this request alone may end in any documented way."""


class Seen(msgspec.Struct, kw_only=True):
    """What one request received. Times in seconds on one clock."""

    began: float
    ended: float = 0.0
    status: int = 0
    texts: dict[int, str] = {}
    finishes: dict[int, str] = {}
    tokens: int | None = None
    """As the usage says."""
    code: str = ""
    message: str = ""
    retry_after: bool = False
    whole: bool = False
    """Whether the answer came to its own end."""
    after_end: bool = False
    """Whether news came for a choice that had finished, or after an error."""
    lost: str = ""
    """What happened to the connection, if it did not carry an answer to its end."""


class Window(msgspec.Struct, frozen=True):
    """From a fault to the moment when all was well again."""

    kind: str
    began: float
    ended: float
    lethal: bool


class Verdict(msgspec.Struct, frozen=True):
    """`violation` is empty if all is well."""

    outcome: str
    violation: str = ""


class Oracle:
    """Judges requests of one run.

    Args:
        replay: whether requests go on after a death, so that one death is no excuse.
        patience: seconds after which a request is stuck.
        rate: requests per second.
    """

    def __init__(self, *, replay: bool, patience: float, rate: float) -> None:
        self._replay = replay
        self._patience = patience
        self._full_after = QUEUED / rate

    def judge(self, asked: Asked, seen: Seen, windows: Sequence[Window]) -> Verdict:
        """How it went. `windows` are all faults of the run."""
        if wrong := _wrong_text(asked, seen):
            return Verdict("wrong", wrong)
        if asked.leave_after is not None and not (seen.whole or seen.code or seen.lost):
            return Verdict("left")
        if seen.lost:
            return Verdict("no room") if self._without_files(seen, windows) else Verdict("lost", seen.lost)
        if not seen.whole:
            return Verdict("lost", "the answer broke off without a word")
        if seen.ended - seen.began > self._patience:
            return Verdict("stuck", f"it took {seen.ended - seen.began:.1f} s")
        if seen.code or seen.status != 200:
            return self._failed(asked, seen, windows)
        if asked.kind == "bad":
            return Verdict("wrong", "a bad request was served")
        if short := _incomplete(asked, seen):
            return Verdict("wrong", short)
        return Verdict("complete")

    def _without_files(self, seen: Seen, windows: Sequence[Window]) -> bool:
        """Where a connection cannot be opened, all that can be done is to close it at once."""
        return not seen.status and any(w.kind == NO_FILES and w.began <= seen.ended <= w.ended for w in windows)

    def _failed(self, asked: Asked, seen: Seen, windows: Sequence[Window]) -> Verdict:
        code, begun = seen.code, seen.status == 200
        if code not in DOCUMENTED:
            return Verdict("failed", f"an error that is not documented: status {seen.status} {code!r} {seen.message}")
        if not begun and seen.status != DOCUMENTED[code]:
            return Verdict("failed", f"{code} came with status {seen.status}, not {DOCUMENTED[code]}")
        if not begun and code in MAY_COME_AGAIN and not seen.retry_after:
            return Verdict("failed", f"{code} came without Retry-After: {seen.message}")
        outcome = "failed" if begun or any(seen.texts.values()) else "refused"
        if asked.kind == "bad":
            fits = DOCUMENTED[code] < 500 or self._excused(code, seen, windows)
            return Verdict("bad", "" if fits else f"a bad request ended with {code}")
        if asked.fault and (asked.lethal or code in OWN.get(asked.fault, ())):
            return Verdict("its own fault")
        if not self._excused(code, seen, windows):
            return Verdict(outcome, f"an error without a cause: {code}: {seen.message}")
        return Verdict(outcome)

    def _excused(self, code: str, seen: Seen, windows: Sequence[Window]) -> bool:
        deaths = [w for w in windows if w.lethal and w.began <= seen.ended and w.ended >= seen.began]
        if code == "overloaded":  # while nobody served, all others waited
            return any(w.ended - w.began > self._full_after for w in deaths)
        if not self._replay:
            return code in AFTER_DEATH and len(deaths) >= 1
        # Who was running in two deaths is quarantined, whoever is to blame.
        return code in AFTER_DEATH | OWN["quarantine"] and len(deaths) >= 2


def _wrong_text(asked: Asked, seen: Seen) -> str:
    if seen.after_end:
        return "something came after the end"
    if bad := [choice for choice in seen.texts if not 0 <= choice < asked.choices]:
        return f"news of choice {bad[0]}, which was never asked for"
    for choice, text in seen.texts.items():
        if asked.text is not None and not asked.text.startswith(text):
            at = next((i for i, (a, b) in enumerate(zip(asked.text, text, strict=False)) if a != b), len(asked.text))
            here = slice(at, at + 20)
            return f"choice {choice} is wrong from letter {at} on: {text[here]!r}, not {asked.text[here]!r}"
    return ""


def _incomplete(asked: Asked, seen: Seen) -> str:
    for choice in range(asked.choices):
        if (finish := seen.finishes.get(choice)) != asked.finish:
            return f"choice {choice} finished with {finish!r}, not {asked.finish!r}"
        text = seen.texts.get(choice, "")
        if asked.text is not None and text != asked.text:
            return f"choice {choice} has {len(text)} of {len(asked.text)} letters, and no error"
    if seen.tokens != asked.tokens:
        return f"the usage says {seen.tokens} tokens, not {asked.tokens}"
    return ""


class Ledger:
    """Every request of a run, from its sending to its verdict; none may be missing in the end."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._open: dict[int, Asked] = {}
        self._closed: list[tuple[int, Asked, Seen]] = []
        self._sent = 0

    def __len__(self) -> int:
        """Requests without an answer."""
        return len(self._open)

    @property
    def sent(self) -> int:
        """Requests in all."""
        return self._sent

    def send(self, asked: Asked) -> int:
        """A request goes out; gives its number."""
        self._sent += 1
        self._open[self._sent] = asked
        return self._sent

    def receive(self, number: int, seen: Seen) -> None:
        """Its answer has come to an end. Raises KeyError for one that has ended before."""
        self._closed.append((number, self._open.pop(number), seen))

    def settle(self, windows: Sequence[Window]) -> tuple[Counter[str], list[str]]:
        """Judge what has ended since the last time: outcomes by name, and the violations in words."""
        outcomes: Counter[str] = Counter()
        violations: list[str] = []
        closed, self._closed = self._closed, []
        for number, asked, seen in closed:
            verdict = self._oracle.judge(asked, seen, windows)
            outcomes[verdict.outcome] += 1
            if verdict.violation:
                violations.append(describe(number, asked, seen, verdict.violation))
        return outcomes, violations

    def stuck(self) -> list[str]:
        """The requests that never got an end."""
        return [f"request {n} ({asked.kind}) never ended" for n, asked in self._open.items()]


def describe(number: int, asked: Asked, seen: Seen, violation: str) -> str:
    """One violation with what is needed to look for its cause."""
    when = f"{seen.began:.2f} to {seen.ended:.2f} s"
    return f"request {number} ({asked.kind}{' ' + asked.fault if asked.fault else ''}, {when}): {violation}"
