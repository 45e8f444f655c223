import pytest

from muro.bench.sampling import median, percentile, spread_us, take_turns


def test_percentiles_are_samples() -> None:
    samples = [float(number) for number in range(100, 0, -1)]
    assert percentile(samples, 50) == 50
    assert percentile(samples, 99) == 99
    assert percentile(samples, 100) == 100
    assert percentile(samples, 0) == 1
    assert median([3.0, 1.0, 2.0]) == 2
    assert percentile([7.0], 99) == 7


def test_no_samples_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no samples"):
        median([])


def test_a_spread_is_in_microseconds() -> None:
    assert spread_us([0.001] * 50 + [0.002] * 50) == {"p50": 1000.0, "p99": 2000.0}


def test_probes_take_turns() -> None:
    seen: list[str] = []
    said: list[str] = []
    take_turns({"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}, 2, said.append)
    assert seen == ["a", "b", "a", "b"]
    assert said == ["a 1/2", "b 1/2", "a 2/2", "b 2/2"]
