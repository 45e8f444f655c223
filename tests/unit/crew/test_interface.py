"""A server that has its engines for itself."""

import asyncio

from muro.crew.interface import Alone
from muro.observe.metrics import Numbers


def test_alone() -> None:
    own = Numbers(gauges={"a": 1.0})
    assert asyncio.run(Alone().add_up(own)) is own
    assert list(Alone().servers()) == []
