"""Profiles of the loop: begun and ended by calls, written where nobody else's files are."""

import logging
import pstats
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muro.engine.operations import declared_operations
from muro.engine.profiling import Profiling
from muro.errors import CallFailedError, InvalidRequestError, UnsupportedOptionError


@pytest.fixture
def profiling(tmp_path: Path) -> Iterator[Profiling]:
    made = Profiling(lambda: tmp_path / "profiles")
    yield made
    sys.setprofile(None)


def watched_by_the_profile() -> int:
    return sum(range(10))


def test_it_shows_what_ran_in_between(profiling: Profiling, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(2):
        profiling.profile(True, "decode")
        watched_by_the_profile()
        profiling.profile(False)
    first, second = sorted((tmp_path / "profiles").iterdir())
    assert first.name.startswith("decode-") and second != first
    assert str(first) in caplog.text and str(second) in caplog.text
    shown = pstats.Stats(str(second)).get_stats_profile().func_profiles
    assert shown["watched_by_the_profile"].ncalls == "1"
    assert sys.getprofile() is None


def test_the_calls_of_all_releases(profiling: Profiling, tmp_path: Path) -> None:
    run = declared_operations(profiling)["profile"].run
    pairs: list[tuple[list[Any], list[Any]]] = [
        ([True], [False]),
        ([True, None], [False, None]),
        ([True, "p", 0, None, {}], [False, "p"]),
    ]
    for start, stop in pairs:
        assert run(start) is run(stop) is None
    assert len(list((tmp_path / "profiles").iterdir())) == 3


def test_one_at_a_time(profiling: Profiling) -> None:
    with pytest.raises(CallFailedError, match="no profile is running"):
        profiling.profile(False)
    profiling.profile()
    with pytest.raises(CallFailedError, match="running already"):
        profiling.profile()


def test_another_profiler_is_left_alone(profiling: Profiling) -> None:
    def other(*args: Any) -> None:
        """Somebody else's."""

    sys.setprofile(other)
    with pytest.raises(CallFailedError, match="another profiler"):
        profiling.profile()
    assert sys.getprofile() is other


@pytest.mark.parametrize("args", [(None, 5), (None, None, 3), (None, None, None, {"with_stack": True})])
def test_what_it_cannot_do_is_refused(profiling: Profiling, args: tuple[Any, ...]) -> None:
    with pytest.raises(UnsupportedOptionError):
        profiling.profile(True, *args)
    assert sys.getprofile() is None


@pytest.mark.parametrize("prefix", ["../up", "/etc/x", ".hidden", "a" * 65, "a\n", "a b"])
def test_a_prefix_leads_nowhere_else(profiling: Profiling, prefix: str) -> None:
    with pytest.raises(InvalidRequestError, match="prefix"):
        profiling.profile(True, prefix)


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    profiling = Profiling(lambda: tmp_path / "file")
    profiling.profile()
    with pytest.raises(CallFailedError, match="cannot be written"):
        profiling.profile(False)
    assert sys.getprofile() is None
