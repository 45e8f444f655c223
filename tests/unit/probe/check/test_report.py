"""What comes out of an examination."""

from muro.probe.check.report import Case, Finding, Findings, Outcome, Report

ONE, TWO, THREE = (Case(name, f"{name} must hold.", f"Because of {name}.") for name in ("one", "two", "three"))


def test_a_case_that_failed_once_fails_and_tells_what_was_first() -> None:
    findings = Findings()
    findings.fails("one", "first")
    findings.fails("one", "second")
    findings.holds("one", "well")
    (row,) = findings.rows([ONE], "")
    assert row == Finding(ONE, Outcome.FAILS, "first")


def test_what_is_not_known_was_not_asked() -> None:
    findings = Findings()
    findings.not_asked("two", "no pid")
    rows = findings.rows([ONE, TWO], "gone")
    assert [(row.outcome, row.seen) for row in rows] == [(Outcome.NOT_ASKED, "gone"), (Outcome.NOT_ASKED, "no pid")]
    assert not Report("x", rows).passed, "nothing was asked"


def test_table_and_json() -> None:
    report = Report("the engine", [Finding(ONE, Outcome.HOLDS, "a"), Finding(TWO, Outcome.FAILS, "b" * 200)])
    text = str(report)
    assert "1 hold, 1 do not (two), 0 were not asked" in text
    assert max(map(len, text.splitlines())) <= 220 and "why: Because of two." in text
    assert not report.passed
    assert report.json()["cases"][1] == {
        "case": "two",
        "must": "two must hold.",
        "why": "Because of two.",
        "outcome": "does not",
        "seen": "b" * 200,
    }
    assert Report("x", [Finding(THREE, Outcome.HOLDS, "")]).passed
