"""The simulator as an engine: it keeps the contract, says what was foretold, and goes wrong when it is told to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from muro.engine.loader import load_engine
from muro.engines.faults import FaultError
from muro.engines.sim.engine import SimEngine
from muro.engines.sim.text import continuation
from muro.errors import ConfigError, InvalidRequestError
from muro.testing.conformance import CASES, check_engine
from muro.testing.harness import StepHarness, generate_request
from muro.wire.output import FinishReason
from tests.support.deadline import until

ERROR, LENGTH = FinishReason.ERROR, FinishReason.LENGTH
FAST = {"step_us": 0, "sequence_us": 0, "prefill_us_per_token": 0}
PROMPT = b"Once upon a time"


def silent(phase: str, percent: float) -> None:
    """Nobody looks."""


Build = Callable[..., SimEngine]


@pytest.fixture
def build() -> Iterator[Build]:
    built: list[SimEngine] = []

    def make(model: str | None = None, **options: Any) -> SimEngine:
        engine = load_engine("sim", model=model, options=FAST | options, report=silent)
        assert isinstance(engine, SimEngine)
        built.append(engine)
        return engine

    yield make
    for engine in built:
        engine.clear_faults()
        engine.shutdown()


@pytest.mark.parametrize(
    "options", [{}, {"tokens": "sampled"}, {"num_blocks": 64, "block_size": 1}, {"async_scheduling": True}]
)
@pytest.mark.parametrize("reuse", [False, True])
def test_it_keeps_the_contract(options: dict[str, Any], reuse: bool) -> None:
    report = check_engine("sim", options=FAST | options, reuse=reuse)
    assert report.passed, str(report)
    assert [result.case for result in report.results] == CASES


@pytest.mark.parametrize("options", [{}, {"async_scheduling": True}, {"enable_prefix_caching": False}])
def test_tokens_are_those_foretold_however_they_are_asked_for(build: Build, options: dict[str, Any]) -> None:
    # Too small a cache for all: some are preempted.
    harness = StepHarness(build(num_blocks=12, block_size=4, **options))
    prompts = {f"r{n}": PROMPT + bytes([65 + n]) for n in range(6)}
    for number, (name, prompt) in enumerate(prompts.items()):
        harness.submit(generate_request(name, prompt, max_tokens=12, temperature=number / 4, seed=number))
    harness.run()
    assert {name: harness.tokens(name) for name in prompts} == {n: continuation(p, 12) for n, p in prompts.items()}


def test_a_beginning_is_used_again_until_it_is_to_be_forgotten(build: Build) -> None:
    engine = build(block_size=4)
    harness = StepHarness(engine)
    hits = []
    for number in range(3):
        if number == 2:
            assert engine.reset_prefix_cache() is True
        harness.submit(generate_request(str(number), PROMPT, max_tokens=1))
        engine.step(list)
        hits.append(engine.stats().prefix_cache_stats.hits)
        assert not engine.has_work()
    assert hits == [0, 12, 0]


def test_priorities_count_if_they_are_to(build: Build) -> None:
    request = msgspec.structs.replace(generate_request("a", PROMPT, max_tokens=1), priority=-1)
    build(scheduling_policy="priority").preprocess(request)
    with pytest.raises(InvalidRequestError, match="priority"):
        build().preprocess(request)


def test_the_seed_changes_them(build: Build) -> None:
    harness = StepHarness(build(seed=5))
    harness.submit(generate_request("a", PROMPT, max_tokens=9))
    harness.run()
    assert harness.tokens("a") == continuation(PROMPT, 9, seed=5) != continuation(PROMPT, 9)


@pytest.mark.parametrize("tokens", ["fixed", "sampled"])
def test_a_request_can_be_continued(build: Build, tokens: str) -> None:
    sampling = {"temperature": 0.8, "seed": 7}
    harness = StepHarness(build(tokens=tokens))
    harness.submit(generate_request("whole", PROMPT, max_tokens=20, **sampling))
    harness.run()
    whole = harness.tokens("whole")
    resumed = {"muro_resumed_tokens": 8}
    assert build().info().understands_resumed_tokens
    harness.submit(generate_request("rest", [*PROMPT, *whole[:8]], max_tokens=20, extra_args=resumed, **sampling))
    harness.run()
    assert harness.tokens("rest") == whole[8:]


def test_sampling_matters_where_it_shall(build: Build) -> None:
    harness = StepHarness(build(tokens="sampled"))
    for name, seed in (("a", 1), ("b", 2), ("c", 1)):
        harness.submit(generate_request(name, PROMPT, max_tokens=20, temperature=1.0, seed=seed))
    harness.run()
    assert harness.tokens("a") == harness.tokens("c") != harness.tokens("b")


def test_cache_blocks_are_accounted_for(build: Build) -> None:
    engine = build(num_blocks=10, block_size=4)
    assert engine.info().kv_cache_size_tokens == 40
    harness = StepHarness(engine)
    harness.submit(generate_request("a", PROMPT, max_tokens=8))
    harness.step()
    assert engine.stats().kv_cache_usage == pytest.approx(0.4)
    harness.run()
    assert engine.stats().kv_cache_usage == 0


def test_the_size_of_a_model(build: Build, tmp_path: Path) -> None:
    sizes = {"vocab_size": 1000, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    config = {"architectures": ["LlamaForCausalLM"], "num_attention_heads": 1, "max_position_embeddings": 77, **sizes}
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(config))
    engine = build(model=str(tmp_path))
    assert engine.info().max_model_len == 77
    harness = StepHarness(engine)
    harness.submit(generate_request("a", [999, 1], max_tokens=5))
    harness.run()
    assert harness.tokens("a") == continuation([999, 1], 5, vocab_size=1000)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fault": "explode"}, "the place is one of"),
        ({"scenario": "/nowhere.toml"}, "No such file"),
        ({"step_us": -1}, "step_us is -1"),
        ({"num_blocks": 0}, "num_blocks is 0"),
        ({"profile": "huge"}, "neither one that ships"),
        ({"lengths": "long"}, "lengths is 'long'"),
        ({"load_s": -1}, "load_s is -1"),
        ({"vocab_size": 100}, "at least 128"),
        ({"speed": 3}, "has no option speed"),
        ({"tokens": "odd"}, "Invalid enum value 'odd'"),
    ],
)
def test_settings_that_are_wrong(build: Build, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build(**options)


# Faults


@pytest.mark.parametrize("place", ["construct", "loading"])
def test_a_fault_while_it_loads(build: Build, place: str) -> None:
    with pytest.raises(FaultError, match=place):
        build(fault=f"{place}:raise")


def test_a_fault_of_the_shutdown(build: Build) -> None:
    engine = build(fault="shutdown:raise")
    with pytest.raises(FaultError, match="shutdown"):
        engine.shutdown()


def test_a_fault_from_the_start_with_a_condition(build: Build) -> None:
    harness = StepHarness(build(fault=["step:raise@step=3"]))
    harness.submit(generate_request("a", PROMPT, max_tokens=9))
    harness.step()
    harness.step()
    with pytest.raises(FaultError, match="step"):
        harness.step()


def test_a_scenario_and_faults_together(build: Build, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[[fault]]\ndo = 'hang'\ntime = 60")
    engine = build(scenario=str(tmp_path / "a.toml"), fault="add:raise@request=9")
    assert engine.list_faults() == ["add:raise@request=9", "step:hang@time=60"]


@pytest.mark.parametrize("place", ["preprocess", "add", "step", "output"])
def test_a_refusal_costs_one_request(build: Build, place: str) -> None:
    harness = StepHarness(build(fault=f"{place}:refuse"))
    for name in ("a", "b", "c"):
        harness.submit(generate_request(name, PROMPT + name.encode(), max_tokens=5))
    harness.run()
    reasons = {name: harness.finishes(name) for name in ("a", "b", "c")}
    assert reasons == {"a": [ERROR], "b": [LENGTH], "c": [LENGTH]}
    assert harness.tokens("a") == []
    assert harness.tokens("b") == continuation(PROMPT + b"b", 5)


@pytest.mark.parametrize("place", ["preprocess", "add", "step", "output"])
def test_a_fault_that_comes_with_a_request(build: Build, place: str) -> None:
    harness = StepHarness(build())
    harness.submit(generate_request("a", PROMPT, max_tokens=5))
    harness.submit(generate_request("b", PROMPT, extra_args={"fault": f"{place}:refuse", "muro_resumed_tokens": 3}))
    harness.run()
    assert harness.finishes("b") == [ERROR] and harness.finishes("a") == [LENGTH]


def test_an_aborted_request_takes_its_fault_along(build: Build) -> None:
    harness = StepHarness(build())
    harness.submit(generate_request("a", PROMPT, extra_args={"fault": "step:raise"}))
    harness.submit(generate_request("b", PROMPT))
    harness.abort("a")
    harness.run()
    assert harness.finishes("b") == [LENGTH]


@pytest.mark.parametrize("fault", [7, "explode", "step"])
def test_a_fault_that_cannot_be_read_costs_its_request(build: Build, fault: object) -> None:
    harness = StepHarness(build())
    harness.submit(generate_request("a", PROMPT, extra_args={"fault": fault}))
    harness.run()
    assert harness.finishes("a") == [ERROR]


def test_garbled_output(build: Build) -> None:
    harness = StepHarness(build(fault="output:garble"))
    harness.submit(generate_request("a", PROMPT))
    harness.run()
    assert [o.kv_transfer_params is None for o in harness.outputs("a")] == [False, True, True, True]


def test_inject_list_and_clear(build: Build) -> None:
    engine = build()
    harness = StepHarness(engine)
    harness.submit(generate_request("a", PROMPT, max_tokens=9))
    engine.inject_fault("refuse@step=2")
    engine.inject_fault("hang@time=60")
    assert engine.list_faults() == ["step:refuse@step=2", "step:hang@time=60"]
    harness.step()
    harness.step()
    assert harness.finishes("a") == [ERROR]
    assert engine.clear_faults() == 1 and engine.list_faults() == []
    with pytest.raises(InvalidRequestError, match="the place is one of"):
        engine.inject_fault("explode")
    with pytest.raises(FaultError, match="operation"):
        engine.inject_fault("operation:raise")


def test_the_executor_fails_although_there_is_no_work(build: Build) -> None:
    engine = build()
    seen: list[BaseException] = []
    engine.on_executor_failure(seen.append)
    engine.inject_fault("idle:executor@time=0.01")
    until(lambda: seen, what="the failure is told")
    assert "asked to fail" in str(seen[0])
    assert [t for t in threading.enumerate() if t.name == "muro-sim-idle"]


def test_no_thread_without_need(build: Build) -> None:
    build(fault="hang@time=60")
    assert not [t for t in threading.enumerate() if t.name == "muro-sim-idle"]


@pytest.mark.parametrize("ahead", [True, False])
def test_faults_at_a_point_of_the_schedule(build: Build, ahead: bool) -> None:
    harness = StepHarness(build(fault=["refuse@prefill=3", "refuse@running=5"], async_scheduling=ahead))
    for number in range(4):
        harness.submit(generate_request(str(number), PROMPT + bytes([number]), max_tokens=50))
        harness.step()
    assert [harness.finishes(str(n)) for n in range(4)] == [[ERROR], [], [], []]
    for number in range(4, 6):
        harness.submit(generate_request(str(number), PROMPT + bytes([number]), max_tokens=50))
    harness.run()
    assert [harness.finishes(str(n))[-1] for n in range(6)] == [ERROR, ERROR, LENGTH, LENGTH, LENGTH, LENGTH]


def test_a_fault_after_a_preemption(build: Build) -> None:
    engine = build(num_blocks=12, block_size=4, fault="raise@preemption=1")
    harness = StepHarness(engine)
    for number in range(6):
        harness.submit(generate_request(str(number), PROMPT + bytes([number]), max_tokens=12))
    with pytest.raises(FaultError, match="step"):
        harness.run()
    preempted = [e for n in range(6) for o in harness.outputs(str(n)) for e in o.events or () if e.type == 3]
    assert not preempted  # it would be told with the next output


# Time, lengths, other tokens


def test_virtual_time_moves_the_clock_of_events_and_takes_none(build: Build) -> None:
    began = time.monotonic()
    harness = StepHarness(build(time="virtual", step_us=1e9, prefill_us_per_token=0.5e9, load_s=3600))
    harness.submit(generate_request("a", b"xy", max_tokens=3))
    harness.run()
    harness.submit(generate_request("b", b"z", max_tokens=1))
    harness.run()
    queued = {name: harness.outputs(name)[0].events[0].timestamp for name in "ab"}
    assert queued["b"] - queued["a"] == pytest.approx(4000)  # 1000 + 2 x 500, then 2 x 1000
    assert time.monotonic() - began < 30


def test_answers_end_at_their_length(build: Build) -> None:
    harness = StepHarness(build(lengths="uniform:5,20"))
    for number in range(8):
        harness.submit(generate_request(str(number), [65 + number], max_tokens=50, ignore_eos=False, eos_token_id=257))
    harness.run()
    lengths = [len(harness.tokens(str(number))) for number in range(8)]
    assert all(5 <= length <= 20 for length in lengths) and len(set(lengths)) > 2
    assert {harness.finishes(str(number))[0] for number in range(8)} == {FinishReason.STOP}


def test_an_echo(build: Build) -> None:
    harness = StepHarness(build(tokens="echo"))
    harness.submit(generate_request("a", b"abc", max_tokens=7))
    harness.run()
    assert bytes(harness.tokens("a")) == b"abcabca"


def test_who_asks_for_more_than_tokens_gets_it_beside_others(build: Build) -> None:
    harness = StepHarness(build())
    harness.submit(generate_request("plain", PROMPT, max_tokens=9))
    harness.submit(generate_request("told", PROMPT + b"!", max_tokens=9, logprobs=1, prompt_logprobs=1))
    harness.submit(generate_request("biased", PROMPT + b"?", max_tokens=9, logit_bias={7: 100.0}))
    harness.run()
    assert harness.tokens("plain") == continuation(PROMPT, 9)
    assert harness.tokens("told") == continuation(PROMPT + b"!", 9)
    assert all(output.new_logprobs is not None for output in harness.outputs("told"))
    assert len(harness.tokens("biased")) == 9


def test_nothing_is_left_of_requests_that_have_ended(build: Build) -> None:
    engine = build(num_blocks=12, block_size=4, fault="output:refuse@chance=0.1,times=0")
    harness = StepHarness(engine)
    for number in range(9):
        harness.submit(generate_request(str(number), PROMPT + bytes([number]), max_tokens=12))
        harness.step()
        if number % 3 == 0:
            harness.abort(str(number))
    harness.run()
    assert not engine._executor._streams and not engine._own and not engine._executor._num_new
