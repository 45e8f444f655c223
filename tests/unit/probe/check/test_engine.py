"""The examination of an engine finds each deliberate fault, and nothing else, and nothing in an engine without one."""

import pytest

from muro.errors import ConfigError
from muro.probe.check.engine import ENGINE_CASES, check_names, examine_engine
from muro.probe.check.engine_exam import Patience
from muro.probe.check.report import Outcome, Report
from muro.testing.broken.engine import EngineHooks
from muro.testing.broken.engine_faults import BROKEN_ENGINES
from tests.support.memory_engine import MemoryEngineLink

PATIENCE = Patience(hello=1.0, loading=2.0, answer=1.0)


def examine(hooks: EngineHooks, **settings: str) -> Report:
    return examine_engine(MemoryEngineLink(hooks), peer="the engine", patience=PATIENCE, **settings)


def test_a_correct_engine_passes_everything() -> None:
    report = examine(EngineHooks())
    assert report.passed, str(report)
    not_asked = {finding.case.name for finding in report.findings if finding.outcome is Outcome.NOT_ASKED}
    assert not_asked == {"death_notice"}


@pytest.mark.parametrize("name", BROKEN_ENGINES)
def test_a_fault_is_found_and_nothing_else(name: str) -> None:
    broken = BROKEN_ENGINES[name]
    report = examine(broken.hooks)
    assert {finding.case.name for finding in report.failures} == set(broken.cases), str(report)
    assert not report.passed


@pytest.mark.parametrize("said", [None, "long", -1, True])
def test_an_engine_that_does_not_say_how_long_its_model_is_is_examined_to_the_end(said: object) -> None:
    def spoil(client: int, ready: dict[str, object]) -> dict[str, object]:
        return {**ready, "max_model_len": said}

    report = examine(EngineHooks(ready_response=spoil))
    assert {finding.case.name for finding in report.failures} <= {"ready_keys"}, str(report)
    not_asked = {finding.case.name for finding in report.findings if finding.outcome is Outcome.NOT_ASKED}
    assert not_asked == {"death_notice", "long_prompt"}


def test_every_case_can_fail() -> None:
    found = {case for broken in BROKEN_ENGINES.values() for case in broken.cases}
    assert {case.name for case in ENGINE_CASES} - found == set()


def test_a_skipped_case_is_not_asked() -> None:
    report = examine_engine(MemoryEngineLink(EngineHooks()), peer="x", patience=PATIENCE, skip=["seed"])
    (seed,) = [finding for finding in report.findings if finding.case.name == "seed"]
    assert (seed.outcome, seed.seen) == (Outcome.NOT_ASKED, "skipped")


def test_a_case_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="no case 'sed'"):
        check_names(["sed"], ENGINE_CASES)


def test_an_older_front_end_is_played_when_asked() -> None:
    report = examine(EngineHooks(), release="0.27")
    assert {finding.case.name for finding in report.failures} == {"layout", "wake_up"}
    assert "release 0.27 reads" in str(report)
