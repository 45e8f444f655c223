"""How often a failure case repeats: few times in the ordinary suite, in full with ``make cases``."""

import itertools
import os
from collections.abc import Iterable
from typing import Any, TypeVar

T = TypeVar("T")

FULL = os.environ.get("MURO_FULL_COUNTS") == "1"


def count(reduced: int, full: int) -> int:
    """The number of rounds, requests or bytes that the running suite asks for."""
    return full if FULL else reduced


def half(values: Iterable[T]) -> list[T]:
    """All of them in full; else every second one."""
    return list(values)[:: count(2, 1)]


def spread(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Combinations of parameters: all of them in full; else every second one."""
    chosen = [list(enumerate(axis)) for axis in axes]
    combinations = itertools.product(*chosen)
    return [tuple(value for _, value in row) for row in combinations if FULL or sum(at for at, _ in row) % 2 == 0]
