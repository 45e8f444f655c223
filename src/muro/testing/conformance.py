"""The conformance suite: does an engine do what the contract of `engine.interface` demands?

    python -m muro.testing path.py:MyEngine

from a shell; `check_engine(MyEngine)` for a report as a value; and in a test file, a test per demand:

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_contract(case):
        check_case(case, MyEngine)

An engine that blocks in a call blocks the suite: give its test a timeout.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from muro.engine import loader
from muro.engine.interface import EngineCore
from muro.engine.loader import Factory, build_engine, find_factory
from muro.errors import MuroError, StartupError
from muro.testing.cases import CASES, Case
from muro.testing.trial import ContractError, Trial

__all__ = ["CASES", "Case", "ContractError", "Report", "Result", "check_case", "check_engine"]


class Result(msgspec.Struct, frozen=True):
    """How one case went; `message` is empty if the engine passed. `seconds` include building an engine for it."""

    case: Case
    message: str
    seconds: float

    @property
    def passed(self) -> bool:
        return not self.message


class Report(msgspec.Struct, frozen=True):
    """How all cases went; as text, a table and the message of each failure."""

    engine: str
    results: list[Result]

    @property
    def failures(self) -> list[Result]:
        return [result for result in self.results if not result.passed]

    @property
    def passed(self) -> bool:
        return not self.failures

    def __str__(self) -> str:
        width = max((len(result.case.name) for result in self.results), default=0)
        lines = [
            f"{'pass' if result.passed else 'FAIL'}  {result.case.name:{width}}  {result.seconds:7.3f} s"
            f"  {result.case.demand}"
            for result in self.results
        ]
        lines += [f"\n{result.message}" for result in self.failures]
        passed = len(self.results) - len(self.failures)
        return "\n".join([*lines, f"\n{self.engine}: {passed} of {len(self.results)} cases passed"])


def check_engine(
    engine: str | Factory,
    *,
    options: Mapping[str, Any] | None = None,
    model: str | None = None,
    cases: Sequence[Case] = CASES,
    reuse: bool = False,
) -> Report:
    """Examine an engine.

    Args:
        engine: a factory, or the name of one as `muro serve --engine` takes it.
        options: options of the engine.
        model: model directory, for a factory that names a parameter `model`.
        cases: which cases to run.
        reuse: examine one engine in all cases until one fails, instead of a new one in each; for engines that
            take long to load. The cases that end an engine come last.

    Raises:
        ConfigError: the name leads nowhere, or an option does not fit; no case was run then.
        StartupError: the first engine could not be built, because of what its own code raised.
    """
    name = engine if isinstance(engine, str) else getattr(engine, "__qualname__", repr(engine))
    with _blaming(name):
        factory = find_factory(engine) if isinstance(engine, str) else engine

    def build() -> EngineCore:
        with _blaming(name):
            given = dict(options or {})
            return build_engine(name, factory, model=model, options=given, report=lambda phase, percent: None)

    results = []
    kept: EngineCore | None = build()  # what keeps every engine from being built is nobody's failed case
    for case in cases:
        started = time.perf_counter()
        message = ""
        used = kept
        try:
            used = used or build()
            examine(case, used)
        except (ContractError, StartupError) as error:
            message = str(error)
        kept = used if reuse and not message else None
        if kept is None and used is not None:
            _discard(used)
        results.append(Result(case, message, time.perf_counter() - started))
    if kept is not None:
        _discard(kept)
    return Report(name, results)


def check_case(case: Case, factory: Callable[[], EngineCore]) -> None:
    """Examine a new engine in one case. Raises ContractError."""
    engine = factory()
    try:
        examine(case, engine)
    finally:
        _discard(engine)


def examine(case: Case, engine: EngineCore) -> None:
    """Examine an idle engine in one case. Raises ContractError that says what the contract demands, and where."""
    try:
        case.examine(Trial(engine))
    except Exception as error:
        seen = str(error) if isinstance(error, ContractError) else f"it raised {type(error).__name__}: {error}"
        cause = None if isinstance(error, ContractError) else error
        raise ContractError(f"{case.name}: {seen}\n  demanded: {case.demand}\n  by: {case.where}") from cause


@contextlib.contextmanager
def _blaming(name: str) -> Iterator[None]:
    """Say of what an engine's own code raises while it is imported and built whose it is, and where it was raised."""
    try:
        yield
    except (MuroError, ContractError):
        raise
    except Exception as error:
        ours = (__file__, loader.__file__)
        frames = [
            f for f in traceback.extract_tb(error.__traceback__) if f.filename[0] != "<" and f.filename not in ours
        ]
        at = f"\n  raised in {frames[-1].filename}, line {frames[-1].lineno}" if frames else ""
        what = f"engine {name!r} could not be built: {type(error).__name__}: {error}{at}"
        raise StartupError(what, phase="loading") from error


def _discard(engine: EngineCore) -> None:
    """Release an engine that has had its day; a second shutdown may be one too many for it."""
    with contextlib.suppress(Exception):  # the case about shutdown tells; here it is only tidying up
        engine.shutdown()
