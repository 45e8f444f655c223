"""What an engine is put through in the end: messages that are odd, wrong or hostile, and SIGTERM. Pure.

As `engine_cases`, of whose list these are the end: each of them has ended engines.
"""

from __future__ import annotations

from typing import Any

import msgspec

from muro.probe.check.engine_cases import CASES, QUIET_S, case, ending, running
from muro.probe.check.engine_exam import Exam
from muro.probe.check.engine_rules import Course
from muro.probe.check.report import Broken, NotAsked
from muro.wire.frames import RequestType
from muro.wire.output import FinishReason

__all__ = ["CASES"]


@case("Front-ends of lockstep ranks send it here, others through the coordinator.")
def wave(exam: Exam) -> str:
    """START_DP_WAVE on the input socket does no harm, whatever it excludes."""
    for exclude in (None, 1, b"\x01\x00"):
        exam.send(RequestType.START_DP_WAVE, msgspec.msgpack.encode([0, exclude]))
    exam.fence()
    return "nil, a rank, and an identity"


@case("A wrong argument is its caller's error.")
def wrong_arguments(exam: Exam) -> str:
    """A call with wrong arguments is answered with a failure."""
    for method, args in (("sleep", ["a", {}, 3, 4]), ("profile", [[]])):
        answer = exam.call(method, *args)
        if answer.failure_message is None:
            raise Broken(f"{method}({', '.join(map(repr, args))}) was answered as a success")
    exam.call("resume_scheduler")
    return "failures"


@case("One client's fault must not end the others' work.")
def unknown_type(exam: Exam) -> str:
    """A message of an unknown type costs itself alone."""
    for kind in (b"\x7f", b"", b"\x00\x00"):
        exam.send(kind, b"\x90")
    exam.fence()
    return "ignored"


@case("One client's fault must not end the others' work.")
def undecodable(exam: Exam) -> str:
    """Messages that cannot be read cost themselves alone."""
    for kind in (RequestType.ADD, RequestType.ABORT, RequestType.UTILITY, RequestType.START_DP_WAVE):
        for payload in (b"", b"\xc1", b"\x81\x01", b"\xa3abc"):
            exam.send(kind, payload)
        exam.send(kind)
    exam.fence()
    return "20 of them"


@case("Whoever sent it waits for an answer.")
def wrong_request(exam: Exam) -> str:
    """An ADD whose fields are wrong ends with ERROR, or costs itself alone."""

    def spoil(tree: list[Any]) -> None:
        tree[3] = "no map"

    request = exam.request()
    course = exam.add(request, changes=spoil)
    exam.fence()
    exam.listen(0.0 if course.finish is not None else QUIET_S)
    exam.settle(request.request_id)
    if course.finish is not None and course.finish is not FinishReason.ERROR:
        raise Broken(f"it ended with {ending(course.finish)}")
    return "ERROR" if course.finish is not None else "dropped in silence"


@case("Sizes that a message claims are words of a stranger.")
def absurd_sizes(exam: Exam) -> str:
    """Messages that claim gigabytes cost themselves alone."""
    huge = b"\xff\xff\xff\xff"
    exam.watch.courses[0, "x"] = Course(0, settled=True)  # the id of one of them can be read
    for payload in (b"\xdd" + huge, b"\x92\xdb" + huge + b"x", b"\x93\xa1x\xdd" + huge, b"\xdf" + huge, b"\x91" * 4096):
        exam.send(RequestType.ADD, payload)
    exam.fence()
    return "arrays, texts and maps of 4 Gi, and 4096 levels"


@case("Front-ends and their users learn that it was meant.")
def shutdown(exam: Exam) -> str:
    """At SIGTERM running requests end with ABORT, and the process ends without a death notice."""
    request = running(exam)
    course = exam.watch.courses[0, request.request_id]
    if not exam.link.terminate():
        exam.abort(request.request_id)
        exam.settle(request.request_id)
        raise NotAsked("its process is not known (--pid)")
    exam.until(lambda: course.finish is not None, "the running request did not end")
    if course.finish is not FinishReason.ABORT:
        raise Broken(f"the running request: {ending(course.finish)}")
    if not exam.link.ended(exam.patience.answer):
        raise Broken(f"the process still runs after {exam.patience.answer:g} s")
    exam.listen(QUIET_S)
    if exam.watch.dead:
        raise Broken("a death notice came")
    return "ABORT, and the end"
