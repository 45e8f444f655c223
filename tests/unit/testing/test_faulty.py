"""The faulty engine goes wrong where, how and when it is told, and otherwise echoes."""

from collections.abc import Callable
from typing import Any

import pytest

from muro.engine.loader import load_engine
from muro.engines.faults import FaultError
from muro.errors import ConfigError
from muro.testing.faulty import AWKWARD, FaultyEngine, FaultyOptions
from muro.testing.harness import StepHarness, generate_request
from muro.wire.output import FinishReason

ERROR, LENGTH = FinishReason.ERROR, FinishReason.LENGTH


def silent(phase: str, percent: float) -> None:
    """Nobody looks."""


def build(report: Callable[[str, float], None] = silent, **options: Any) -> FaultyEngine:
    return FaultyEngine(FaultyOptions(**options), report)


def submit(harness: StepHarness, request_id: str, fault: str | None = None) -> None:
    extra = {"fault": fault} if fault else None
    harness.submit(generate_request(request_id, (1, 2), max_tokens=3, extra_args=extra))


# At start


def test_it_reports_how_far_it_is() -> None:
    seen: list[tuple[str, float]] = []
    build(lambda phase, percent: seen.append((phase, percent)))
    assert seen == [("weights", 0.0), ("weights", 25.0), ("weights", 50.0), ("weights", 75.0)]


@pytest.mark.parametrize(("place", "reports"), [("construct", 0), ("loading", 1)])
def test_a_fault_while_it_starts(place: str, reports: int) -> None:
    seen: list[str] = []
    with pytest.raises(FaultError, match=place):
        build(lambda phase, percent: seen.append(phase), fault=f"{place}:raise")
    assert len(seen) == reports


def test_by_name_and_options_as_a_command_line_gives_them() -> None:
    engine = load_engine(
        "faulty", model=None, options={"fault": "shutdown:raise", "max_model_len": "64"}, report=silent
    )
    assert engine.info().max_model_len == 64
    with pytest.raises(FaultError):
        engine.shutdown()
    with pytest.raises(ConfigError, match="the place is one of"):
        load_engine("faulty", model=None, options={"fault": "nowhere:raise"}, report=silent)


# For one request


@pytest.mark.parametrize("place", ["preprocess", "add"])
@pytest.mark.parametrize("kind", ["raise", "refuse"])
def test_a_request_that_goes_wrong_on_its_way_in(place: str, kind: str) -> None:
    engine = build()
    harness = StepHarness(engine)
    submit(harness, "good")
    submit(harness, "bad", f"{place}:{kind}")
    harness.run()
    assert (harness.finishes("bad"), harness.finishes("good")) == ([ERROR], [LENGTH])
    assert not harness.tokens("bad") and engine.num_live() == 0


@pytest.mark.parametrize("place", ["step", "output"])
def test_a_request_that_is_refused_in_a_step(place: str) -> None:
    engine = build()
    harness = StepHarness(engine)
    submit(harness, "good")
    submit(harness, "bad", f"{place}:refuse")
    harness.run()
    assert harness.finishes("bad") == [ERROR] and harness.finishes("good") == [LENGTH]
    assert engine.num_live() == harness.host.num_live == 0


@pytest.mark.parametrize("place", ["step", "output"])
def test_a_request_that_takes_the_engine_down(place: str) -> None:
    harness = StepHarness(build())
    submit(harness, "bad", f"{place}:raise")
    with pytest.raises(FaultError, match=place):
        harness.run()


def test_an_output_that_cannot_be_encoded() -> None:
    harness = StepHarness(build())
    submit(harness, "good")
    submit(harness, "bad", "output:garble")
    harness.step()
    (bad,), (good,) = harness.outputs("bad"), harness.outputs("good")
    assert bad.kv_transfer_params is not None and good.kv_transfer_params is None


def test_a_request_that_is_aborted_takes_its_fault_along() -> None:
    harness = StepHarness(build())
    submit(harness, "bad", "step:raise")
    harness.abort("bad")
    submit(harness, "bad")
    harness.run()
    assert harness.finishes("bad") == [LENGTH]


# At run time


def test_an_injected_fault_happens_once_at_its_place() -> None:
    harness = StepHarness(build())
    answer = harness.answer(harness.call("inject", "step:raise"))
    assert answer is not None and answer.failure_message is None
    submit(harness, "a")
    with pytest.raises(FaultError):
        harness.step()
    harness.run()
    assert harness.finishes("a") == [LENGTH]


def test_a_fault_of_the_operation_itself_is_its_answer() -> None:
    harness = StepHarness(build())
    for text, words in (("operation:raise", "asked for in operation"), ("nowhere:raise", "the place is one of")):
        answer = harness.answer(harness.call("inject", text))
        assert answer is not None and words in (answer.failure_message or "")


def test_an_executor_that_fails_calls_back() -> None:
    engine = build(fault="step:executor")
    failed: list[BaseException] = []
    engine.on_executor_failure(failed.append)
    harness = StepHarness(engine)
    submit(harness, "a")
    harness.run()
    assert [str(cause) for cause in failed] == ["the executor was asked to fail"]
    assert harness.finishes("a") == [LENGTH], "what follows is not the engine's business"


def test_a_barren_engine_goes_on_stepping_and_puts_nothing_out() -> None:
    harness = StepHarness(build(fault="step:barren"))
    submit(harness, "a")
    submit(harness, "b")
    assert all(harness.step() for _ in range(20)) and harness.host.has_work()
    harness.abort_during_step("a")
    harness.step()
    assert not harness.outputs("a") and not harness.outputs("b") and harness.host.num_live == 1


@pytest.mark.parametrize("kind", sorted(set(AWKWARD) - {"raise", "long"}))
def test_awkward_answers_are_given(kind: str) -> None:
    harness = StepHarness(build())
    got = harness.answer(harness.call("give_back", kind))
    assert got is not None and got.failure_message is None and got.result is not None


def test_awkward_failures_and_sizes() -> None:
    harness = StepHarness(build())
    failed = harness.answer(harness.call("give_back", "raise=x"))
    assert failed is not None and "Call to give_back method failed" in (failed.failure_message or "")
    long = harness.answer(harness.call("give_back", "long=1000"))
    assert long is not None and long.result == [None, b"x" * 1000]
    unknown = harness.answer(harness.call("give_back", "unheard"))
    assert unknown is not None and unknown.failure_message


def test_without_a_fault_it_echoes() -> None:
    harness = StepHarness(build())
    submit(harness, "a")
    harness.run()
    assert harness.tokens("a") == [1, 2, 1]
