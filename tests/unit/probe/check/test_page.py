"""The page about the check names what there is, in the words of the code."""

from pathlib import Path

import pytest

from muro.probe.check.engine import ENGINE_CASES
from muro.probe.check.frontend import FRONTEND_CASES
from muro.probe.check.report import Case
from muro.testing.broken import BROKEN_ENGINES, BROKEN_FRONTENDS, BrokenEngine, BrokenFrontend

PAGE = (Path(__file__).parents[4] / "docs" / "wire-check.md").read_text().splitlines()


@pytest.mark.parametrize("case", [*ENGINE_CASES, *FRONTEND_CASES], ids=str)
def test_each_case_has_its_row(case: Case) -> None:
    assert f"| `{case.name}` | {case.must} | {case.why} |" in PAGE


@pytest.mark.parametrize(("name", "broken"), [*BROKEN_ENGINES.items(), *BROKEN_FRONTENDS.items()])
def test_each_broken_peer_has_its_row(name: str, broken: BrokenEngine | BrokenFrontend) -> None:
    cases = ", ".join(f"`{case}`" for case in broken.cases)
    assert f"| `{name}` | {broken.wrong} | {cases} |" in PAGE


def test_names_are_used_once() -> None:
    for cases in (ENGINE_CASES, FRONTEND_CASES):
        assert len({case.name for case in cases}) == len(cases)
    assert not BROKEN_ENGINES.keys() & BROKEN_FRONTENDS.keys()
