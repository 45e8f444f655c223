"""The whole examination of an engine, over any link: handshake, then case after case, then the report. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from muro.errors import ConfigError
from muro.probe.check.engine_exam import JOINING, EngineLink, Exam, Patience
from muro.probe.check.engine_rough import CASES
from muro.probe.check.engine_rules import RULES
from muro.probe.check.report import Broken, Case, Findings, Lost, NotAsked, Report

ENGINE_CASES = [*JOINING, *RULES, *(case for case, _ in CASES)]
"""All that is judged, in the order of the report."""

NOTICE_S = 5.0
"""Seconds after one death notice in which those to the other clients come."""

LAST_WORDS_S = 0.5
"""Seconds in which an engine that has gone may still be heard."""

Progress = Callable[[str], None]


def examine_engine(
    link: EngineLink,
    *,
    peer: str,
    patience: Patience,
    release: str | None = None,
    skip: Collection[str] = (),
    progress: Progress = lambda name: None,
) -> Report:
    """Examine the engine that dials in.

    Args:
        peer: what to call it.
        release: of the front-end as which it is examined; None: the engine's own.
        skip: names of cases that are not asked.
        progress: called with the name of each case before it is asked.
    """
    findings = Findings()
    exam = Exam(link, findings, patience, release)
    otherwise = "nothing of the kind came"
    progress("handshake")
    try:
        exam.join()
        _ask(exam, skip, progress)
    except Lost as lost:
        otherwise = str(lost)
        exam.listen(LAST_WORDS_S)
    _judge_notice(exam)
    version = exam.ready.get("vllm_version")
    name = f"{peer}: {version}, as release {exam.layout.name} reads it" if version else peer
    return Report(name, findings.rows(ENGINE_CASES, otherwise))


def check_names(names: Iterable[str], cases: Iterable[Case]) -> None:
    """Raises ConfigError for a name that no case has."""
    known = [case.name for case in cases]
    if unknown := sorted(set(names) - set(known)):
        raise ConfigError(f"there is no case {unknown[0]!r}; there are {', '.join(known)}")


def _ask(exam: Exam, skip: Collection[str], progress: Progress) -> None:
    """All cases, each with an engine that has nothing to do. Raises Lost once it says nothing any more."""
    for case, examine in CASES:
        if case.name in skip:
            exam.findings.not_asked(case.name, "skipped")
            continue
        progress(case.name)
        try:
            exam.findings.holds(case.name, examine(exam))
        except NotAsked as reason:
            exam.findings.not_asked(case.name, str(reason))
        except Broken as broken:
            exam.findings.fails(case.name, str(broken))
        except Lost as lost:
            exam.findings.fails(case.name, str(lost))
            raise Lost(f"the engine was lost in {case.name}: {lost}") from lost
        if case is CASES[-1][0]:
            return
        try:
            _tidy(exam)
        except Lost as lost:
            exam.findings.fails(case.name, f"afterwards {lost}")
            raise Lost(f"the engine was lost after {case.name}: {lost}") from lost


def _tidy(exam: Exam) -> None:
    """End what a broken case may have left running, and see that the engine still answers."""
    for client in range(len(exam.link.addresses.inputs)):
        left = [
            request_id
            for (owner, request_id), course in exam.watch.courses.items()
            if owner == client and course.finish is None and not course.settled
        ]
        for request_id in left:
            exam.settle(request_id, client)
        if left:
            exam.abort(*left, client=client)
    exam.fence()


def _judge_notice(exam: Exam) -> None:
    dead = exam.watch.dead
    if not dead:
        return
    number = len(exam.link.addresses.inputs)
    end = exam.link.now() + NOTICE_S
    while len(dead) < number and (left := end - exam.link.now()) > 0:
        exam.listen(left)
    if len(dead) < number:
        exam.findings.fails("death_notice", f"on {len(dead)} of {number} output sockets")
    exam.findings.holds("death_notice", f"on all {number} output sockets")
