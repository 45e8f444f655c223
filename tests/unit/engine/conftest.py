"""A host in a harness, around an engine that does what the test says."""

import pytest

from muro.testing.harness import StepHarness
from tests.support.scripted import Scripted


@pytest.fixture
def engine() -> Scripted:
    return Scripted()


@pytest.fixture
def harness(engine: Scripted) -> StepHarness:
    return StepHarness(engine)
