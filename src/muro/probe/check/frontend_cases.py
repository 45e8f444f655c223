"""What a front-end is put through, a case each. Pure.

A case is a function that gets a `FrontendExam` whose users want nothing, and leaves it so. It returns what was seen, or
raises `Broken` with it. Those that have ended front-ends come last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from muro.probe.check.frontend_exam import QUIET_S, Ask, FrontendExam
from muro.probe.check.report import Broken, Case, NotAsked
from muro.wire.frames import ENGINE_CORE_DEAD
from muro.wire.releases import LAYOUTS
from muro.wire.request import EngineCoreRequest
from muro.wire.stats import SchedulerStats

Examine = Callable[[FrontendExam], str]

CASES: Final[list[tuple[Case, Examine]]] = []
"""All cases, in the order in which they are run."""

FOREVER: Final = 3000
LINGER_S: Final = 2.0
"""Seconds from the death notice to the end of the connections; engines take up to 4."""
READS_MORE_SINCE: Final = 22
"""Elements of an ADD from which on a front-end ignores elements of outputs that it does not know."""


def case(why: str) -> Callable[[Examine], Examine]:
    """Put a function on the list, under its own name; its docstring says what must hold."""

    def enlist(examine: Examine) -> Examine:
        CASES.append((Case(examine.__name__, examine.__doc__ or "", why), examine))
        return examine

    return enlist


@case("It is what everything is for.")
def completion(exam: FrontendExam) -> str:
    """The tokens of the engine reach the user, all of them."""
    asked = exam.ask_whole(max_tokens=8)
    if asked.failed or asked.finish_reason != "length":
        raise Broken(f"status {asked.status}, finish reason {asked.finish_reason!r}")
    if asked.tokens != 8:
        raise Broken(f"8 tokens were sent, the usage says {asked.tokens}")
    return "8 tokens, and length"


@case("Engines serve many at once.")
def together(exam: FrontendExam) -> str:
    """Eight users at once all get their answers."""
    asked = [exam.ask(max_tokens=5 + n) for n in range(8)]
    exam.until(lambda: all(one.done for one in asked), f"no answer to one of {len(asked)} users")
    if failed := [one.status for one in asked if one.failed]:
        raise Broken(f"{len(failed)} of {len(asked)} failed, with status {failed[0]}")
    return f"{len(asked)} users"


@case("The engine decides by them when to stop and what to choose.")
def sampling(exam: FrontendExam) -> str:
    """max_tokens, temperature and seed of a user reach the engine."""
    asked = exam.ask(max_tokens=FOREVER, temperature=0.5, seed=11, stream=True)
    request = _arrived(exam)
    params = request.sampling_params
    asked.leave()
    _gone(exam, request)
    if params is None:
        raise Broken("no sampling parameters")
    seen = (params.max_tokens, round(params.temperature, 4), params.seed)
    if seen != (FOREVER, 0.5, 11):
        raise Broken(f"max_tokens={seen[0]}, temperature={seen[1]}, seed={seen[2]} for {FOREVER}, 0.5, 11")
    return "as they were asked for"


@case("A user who leaves should cost nothing.")
def leaving(exam: FrontendExam) -> str:
    """A user who hangs up ends the request in the engine: ABORT."""
    asked = exam.ask(max_tokens=FOREVER, stream=True)
    request = _arrived(exam)
    exam.until(lambda: asked.begun, "nothing of a streamed answer")
    asked.leave()
    exam.until(lambda: request.request_id in exam.watch.aborted, "no ABORT after its user had left")
    return "ABORT"


@case("The engine does not know text: it would go on.")
def stop_string(exam: FrontendExam) -> str:
    """A stop string ends the answer with stop, and the request in the engine: ABORT."""
    asked = exam.ask(max_tokens=FOREVER, stop=["gamma"])
    request = _arrived(exam)
    exam.until(lambda: asked.done, "the answer did not end at its stop string")
    if asked.finish_reason != "stop":
        raise Broken(f"status {asked.status}, finish reason {asked.finish_reason!r}")
    exam.until(lambda: request.request_id in exam.watch.aborted, "no ABORT after the stop string")
    return "stop, and ABORT"


@case("Nobody may wait for ever.")
def engine_error(exam: FrontendExam) -> str:
    """A request that the engine ends with ERROR fails for its user."""
    exam.failing = True
    try:
        asked = exam.ask_whole()
    finally:
        exam.failing = False
    if not asked.failed:
        raise Broken(f"status {asked.status}, finish reason {asked.finish_reason!r}")
    return f"status {asked.status}"


@case("Engines report when they have nothing else to say.")
def stats_alone(exam: FrontendExam) -> str:
    """A message that has statistics alone does no harm."""
    _needs_users(exam)
    exam.send(exam.batch(stats=LAYOUTS["0.25"].keys(SchedulerStats())))
    return "taken"


@case("What was under way when a request was aborted still comes.")
def unknown_request(exam: FrontendExam) -> str:
    """Outputs of requests that it does not know (any more) are ignored."""
    _needs_users(exam)
    exam.send(exam.batch(["nobody-asked-for-this", [1]]))
    exam.send(exam.batch(["nobody-asked-for-this", [], None, None, None, 2]))
    return "ignored"


@case("Positions are only ever added at the end.")
def more_elements(exam: FrontendExam) -> str:
    """From 0.31 on, elements of outputs that are not known are ignored."""
    _needs_users(exam)
    if exam.watch.add_length < READS_MORE_SINCE and "muro" not in exam.init:
        raise NotAsked(f"its ADD has {exam.watch.add_length} elements: it may be older")
    row: list[Any] = ["unknown-request", [1], *[None] * 20]
    row[13] = 0
    exam.send(exam.batch(row))
    return "22 elements"


@case("An engine that is started twice by mistake must not cost the one that serves.")
def second_hello(exam: FrontendExam) -> str:
    """A second HELLO with the identity of an engine that is there does it no harm."""
    _needs_users(exam)
    exam.link.greet_again(exam.hello())
    exam.listen(QUIET_S)
    return "ignored"


@case("One engine's fault should not end all users' streams.")
def empty_message(exam: FrontendExam) -> str:
    """An empty message costs itself alone."""
    _needs_users(exam)
    exam.send(exam.batch())
    return "ignored"


@case("One engine's fault should not end all users' streams.")
def mixed_message(exam: FrontendExam) -> str:
    """A message of two kinds costs itself alone."""
    _needs_users(exam)
    message = exam.batch(["nobody-asked-for-this", [1]])
    message[4] = [-7, None, [None, None]]
    exam.send(message)
    return "survived"


@case("One engine's fault should not end all users' streams.")
def unreadable(exam: FrontendExam) -> str:
    """Messages that cannot be read cost themselves alone."""
    _needs_users(exam)
    for payload in (b"", b"\xc1", b"\x81\x01", b"\xdd\xff\xff\xff\xff", b"\xa3abc", b"\x92\x00\x91\x92\x01\x02"):
        exam.link.send(0, [payload])
    return "6 of them"


@case("A killed engine sends nothing; one that has failed sends this.")
def death(exam: FrontendExam) -> str:
    """When an engine announces its death and goes, its requests fail, and no new one is served."""
    asked = exam.ask(max_tokens=FOREVER, stream=True)
    _arrived(exam)
    exam.until(lambda: asked.begun, "nothing of a streamed answer")
    exam.watch.live.clear()
    exam.link.send(0, [ENGINE_CORE_DEAD])
    _wait_for(exam, asked)
    heeded = "at the notice" if asked.done else "when its connections had ended"
    exam.link.leave()
    exam.until(lambda: asked.done, "the request under way did not end")
    if not asked.failed:
        raise Broken(f"the request under way ended with {asked.finish_reason!r}, as if all were well")
    later = exam.ask()
    _wait_for(exam, later)
    if later.done and not later.failed:
        raise Broken("a new request was served")
    new = f"fails with status {later.status}" if later.done else "waits for another engine"
    return f"it failed {heeded}, and a new one {new}"


def _needs_users(exam: FrontendExam) -> None:
    """What comes of a case is seen by asking afterwards."""
    if not exam.link.has_users:
        raise NotAsked("its HTTP API is not known (--http)")


def _wait_for(exam: FrontendExam, asked: Ask) -> None:
    """Give an answer LINGER_S to end."""
    end = exam.link.now() + LINGER_S
    while not asked.done and exam.link.now() < end:
        exam.listen(QUIET_S / 10)


def _arrived(exam: FrontendExam) -> EngineCoreRequest:
    """The only request that is under way."""
    exam.until(lambda: bool(exam.watch.live), "a user's request did not reach the engine")
    return next(iter(exam.watch.live.values()))


def _gone(exam: FrontendExam, request: EngineCoreRequest) -> None:
    """The user of a request has left: wait for what its front-end says, or end it."""
    end = exam.link.now() + QUIET_S
    while request.request_id in exam.watch.live and exam.link.now() < end:
        exam.listen(QUIET_S / 10)
    exam.watch.live.pop(request.request_id, None)
