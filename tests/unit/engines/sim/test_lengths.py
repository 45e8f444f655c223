"""Distributions of lengths: their quantiles, and how they are written."""

from __future__ import annotations

from statistics import mean, median, stdev

import pytest

from muro.engines.sim.lengths import Lengths, chance_of, parse_lengths
from muro.errors import ConfigError

CHANCES = [(i + 0.5) / 2000 for i in range(2000)]


def drawn(text: str) -> list[int]:
    return [parse_lengths(text).draw(chance) for chance in CHANCES]


def test_each_distribution_is_what_its_name_says() -> None:
    assert set(drawn("fixed:12")) == {12}
    uniform = drawn("uniform:3,6")
    assert [uniform.count(n) for n in range(2, 8)] == [0, 500, 500, 500, 500, 0]
    normal = drawn("normal:500,50")
    assert mean(normal) == pytest.approx(500, rel=0.01) and stdev(normal) == pytest.approx(50, rel=0.02)
    lognormal = drawn("lognormal:100,0.5")
    assert median(lognormal) == 100 and mean(lognormal) == pytest.approx(100 * 2.718281828 ** (0.25 / 2), rel=0.02)
    assert mean(drawn("exponential:200")) == pytest.approx(200, rel=0.01)


@pytest.mark.parametrize("text", ["fixed:0", "normal:0,5", "uniform:0,0", "exponential:0", "lognormal:1,1e9"])
def test_at_least_one_token_and_never_too_many(text: str) -> None:
    lengths = drawn(text)
    assert min(lengths) == 1 and max(lengths) <= 2**40


def test_chances_from_digests_lie_evenly() -> None:
    chances = sorted(chance_of(digest) for digest in range(1000))
    assert all(abs(chance - i / 1000) < 0.06 for i, chance in enumerate(chances))
    assert all(0 < chance_of(digest) < 1 for digest in (0, 1, 2**64 - 1))


def test_spelling() -> None:
    assert parse_lengths("normal: 12, 3.5") == Lengths("normal", (12.0, 3.5))


@pytest.mark.parametrize(
    "text", ["", "128", "fixed", "fixed:", "fixed:1,2", "normal:1", "normal:1,-1", "fixed:nan", "uniform:9,3"]
)
def test_what_is_no_distribution(text: str) -> None:
    with pytest.raises(ConfigError, match="lengths is"):
        parse_lengths(text)
