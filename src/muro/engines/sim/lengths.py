"""How long answers are, where `max_tokens` alone does not say it: a distribution, and a draw that can be repeated.

    fixed:128              always 128 tokens
    uniform:16,512         each number between the two alike
    normal:128,32          mean and standard deviation
    lognormal:128,0.8      median, and the standard deviation of the logarithm: many short ones, a few very long ones
    exponential:128        mean

At least one token, always. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import msgspec

from muro.errors import ConfigError

MOST = 2**40

_NUMBERS = {"fixed": 1, "uniform": 2, "normal": 2, "lognormal": 2, "exponential": 1}


class Lengths(msgspec.Struct, frozen=True):
    """A distribution of numbers of tokens."""

    kind: str
    numbers: tuple[float, ...]

    def draw(self, chance: float) -> int:
        """The length below which a part `chance` (between 0 and 1, exclusive) of all lies."""
        return max(1, round(min(_QUANTILES[self.kind](chance, *self.numbers), MOST)))


def parse_lengths(text: str) -> Lengths:
    """Read a distribution. Raises ConfigError."""
    kind, _, rest = text.partition(":")
    expected = _NUMBERS.get(kind.strip())
    try:
        numbers = tuple(float(part) for part in rest.split(","))
    except ValueError:
        numbers = ()
    if expected is None or len(numbers) != expected or not all(0 <= n <= MOST for n in numbers):
        raise ConfigError(
            f"lengths is {text!r}; it must be fixed:N, uniform:FROM,TO, normal:MEAN,SD, lognormal:MEDIAN,SIGMA or "
            "exponential:MEAN"
        )
    if kind.strip() == "uniform" and numbers[0] > numbers[1]:
        raise ConfigError(f"lengths is {text!r}; the smaller number of uniform:FROM,TO comes first")
    return Lengths(kind.strip(), numbers)


def chance_of(digest: int) -> float:
    """A number between 0 and 1, exclusive, from 64 bits, as good as random."""
    mixed = (digest ^ digest >> 30) * 0x94D049BB133111EB & (2**64 - 1)
    return ((mixed ^ mixed >> 31) >> 12 | 1) / 2**52


_QUANTILES: dict[str, Callable[..., float]] = {
    "fixed": lambda _, length: length,
    "uniform": lambda chance, low, high: low + math.floor(chance * (high - low + 1)),
    "normal": lambda chance, mean, sd: mean + sd * NormalDist().inv_cdf(chance),
    "lognormal": lambda chance, median, sigma: median * math.exp(min(sigma * NormalDist().inv_cdf(chance), 99.0)),
    "exponential": lambda chance, mean: -mean * math.log1p(-chance),
}
