from time import perf_counter

import pytest

from muro.bench.forwards import ForwardEngine, ForwardOptions, Kind, create_engine, make_forward
from muro.wire.request import EngineCoreRequest, SamplingParams


def request(number: int, tokens: int) -> EngineCoreRequest:
    return EngineCoreRequest(f"r{number}", [number], sampling_params=SamplingParams(max_tokens=tokens))


@pytest.mark.parametrize("kind", ["sleeping", "burning", "releasing", "holding"])
def test_a_forward_takes_about_as_long_as_asked(kind: Kind) -> None:
    forward = make_forward(kind, 0.002)
    times = []
    for _ in range(20):
        start = perf_counter()
        forward()
        times.append(perf_counter() - start)
    assert 0.0002 < min(times) < 0.2


def test_steps_echo_and_are_timed() -> None:
    engine = create_engine(ForwardOptions(kind="sleeping", step_ms=1))
    for number in range(3):
        engine.add_request(f"r{number}", request(number, 5))
    tokens: list[list[int]] = []
    while engine.has_work():
        tokens += [output.new_token_ids for output in engine.step(list).outputs]
    assert tokens == [[0], [1], [2]] * 5
    times = engine.take_times()
    assert len(times.gaps) == len(times.periods) == 4  # five steps have four gaps
    assert all(period > gap + 0.0009 for gap, period in zip(times.gaps, times.periods, strict=True))
    assert engine.take_times().gaps == []


def test_a_step_that_somebody_joined_is_not_counted_nor_is_idleness() -> None:
    engine = ForwardEngine(lambda: None)
    engine.add_request("a", request(1, 3))
    engine.step(list)
    engine.add_request("b", request(2, 3))
    engine.step(list)
    engine.step(list)
    assert len(engine.take_times().gaps) == 1
    engine.step(list)
    engine.take_times()
    engine.add_request("c", request(3, 1))
    engine.step(list)
    assert engine.take_times().gaps == []


def test_the_minimal_loop_runs_the_same_steps() -> None:
    engine = ForwardEngine(lambda: None)
    times = engine.run_minimal_loop(4, 10)
    assert len(times.gaps) == 9
    assert engine.take_times().gaps == []


def test_the_bare_forward_is_timed() -> None:
    assert len(ForwardEngine(lambda: None).time_bare_forward(7)) == 7
