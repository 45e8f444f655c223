"""The sender's tests send tracked frames, so pyzmq's collector thread must be there before a leak is looked for."""

from collections.abc import Iterator

import pytest

from muro.transport.page import ProgressPage
from tests.support.looping import Rig
from tests.unit.transport.conftest import collector_thread_is_there

__all__ = ["collector_thread_is_there"]


@pytest.fixture
def page() -> Iterator[ProgressPage]:
    page = ProgressPage.create()
    yield page
    page.close()


@pytest.fixture
def rig(page: ProgressPage) -> Rig:
    return Rig(page)
