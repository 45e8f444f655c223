"""Every test must leave the process as it found it: threads, children, descriptors, files, shared memory.

The check runs around each test, and around each module for its module-scoped fixtures. Tests that start
processes (`process`, `contract`, `chaos`, `interop`, `cluster`) are checked for orphans as well.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.leaks import Belongings, claim_session, left_behind

_STARTS_PROCESSES = {"process", "contract", "chaos", "interop", "cluster"}
_session_directory = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_session_directory] = claim_session()
    # How long an example takes is the machine's business, and it is shared.
    settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("shared")


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(config.stash[_session_directory], ignore_errors=True)


@pytest.fixture(scope="module", autouse=True)
def module_leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    yield from _leaves_nothing(request)


@pytest.fixture(autouse=True)
def test_leaves_nothing(module_leaves_nothing: None, request: pytest.FixtureRequest) -> Iterator[None]:
    yield from _leaves_nothing(request)


def _leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    deep = not _STARTS_PROCESSES.isdisjoint(request.path.parts)
    before = Belongings.now(deep=deep)
    yield
    if left := left_behind(before, deep=deep):
        pytest.fail("left behind: " + "; ".join(left), pytrace=False)
