"""The whole examination of a front-end, over any link: handshake, then case after case, then the report. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection

from muro.probe.check.engine_exam import Patience
from muro.probe.check.frontend_cases import CASES
from muro.probe.check.frontend_exam import JOINING, QUIET_S, FrontendExam, FrontendLink
from muro.probe.check.frontend_rules import RULES
from muro.probe.check.report import Broken, Findings, Lost, NotAsked, Report

FRONTEND_CASES = [*JOINING, *RULES, *(case for case, _ in CASES)]
"""All that is judged, in the order of the report."""


def examine_frontend(
    link: FrontendLink,
    *,
    peer: str,
    patience: Patience,
    rank: int = 0,
    skip: Collection[str] = (),
    progress: Callable[[str], None] = lambda name: None,
) -> Report:
    """Examine the front-end that the link dials; the arguments are those of `check_frontend`."""
    findings = Findings()
    exam = FrontendExam(link, findings, patience, rank)
    otherwise = "nothing of the kind came"
    progress("handshake")
    try:
        exam.join()
        _run(exam, skip, progress)
    except Lost as lost:
        otherwise = str(lost)
    return Report(peer, findings.rows(FRONTEND_CASES, otherwise))


def _run(exam: FrontendExam, skip: Collection[str], progress: Callable[[str], None]) -> None:
    """All cases, each while no user wants anything. Raises Lost once the front-end serves nobody any more."""
    for case, examine in CASES:
        if case.name in skip:
            exam.findings.not_asked(case.name, "skipped")
            continue
        progress(case.name)
        try:
            exam.findings.holds(case.name, examine(exam))
        except NotAsked as reason:
            exam.findings.not_asked(case.name, str(reason))
            continue
        except Broken as broken:
            exam.findings.fails(case.name, str(broken))
            exam.link.send_away()
            exam.listen(QUIET_S)
        if case is CASES[-1][0]:
            return
        exam.watch.live.clear()
        try:
            exam.fence()
        except Lost as lost:
            exam.findings.fails(case.name, f"afterwards {lost}")
            raise Lost(f"the front-end was lost after {case.name}: {lost}") from lost
