"""The tutorial engine: it repeats the prompt, a token per step and request."""

import pytest

from muro.engines.echo import EchoEngine
from muro.testing.harness import generate_request
from muro.wire.output import FinishReason


def said(engine: EchoEngine, *aborts: str) -> dict[str, tuple[list[int], FinishReason | None]]:
    result = engine.step(lambda: aborts)
    assert result.executed
    return {o.request_id: (o.new_token_ids, o.finish_reason) for o in result.outputs}


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "tokens"),
    [((5, 6), 1, [5]), ((5, 6), 2, [5, 6]), ((5, 6), 5, [5, 6, 5, 6, 5]), ((9,), 3, [9, 9, 9]), ((), 2, [0, 0])],
)
def test_it_repeats_the_prompt(prompt: tuple[int, ...], max_tokens: int, tokens: list[int]) -> None:
    engine = EchoEngine()
    engine.add_request("a", generate_request("a", prompt, max_tokens=max_tokens))
    for index, token in enumerate(tokens):
        assert engine.has_work()
        last = index == len(tokens) - 1
        assert said(engine) == {"a": ([token], FinishReason.LENGTH if last else None)}
    assert not engine.has_work() and said(engine) == {}


def test_all_requests_advance_in_every_step() -> None:
    engine = EchoEngine()
    engine.add_request("a", generate_request("a", (1,), max_tokens=1))
    engine.add_request("b", generate_request("b", (2,), max_tokens=2))
    assert said(engine) == {"a": ([1], FinishReason.LENGTH), "b": ([2], None)}
    engine.add_request("c", generate_request("c", (3,), max_tokens=1))
    assert said(engine) == {"b": ([2], FinishReason.LENGTH), "c": ([3], FinishReason.LENGTH)}


def test_aborted_requests_say_no_more() -> None:
    engine = EchoEngine()
    for name in "abc":
        engine.add_request(name, generate_request(name, (1,), max_tokens=3))
    engine.abort_requests(["a", "a", "unknown"])
    assert said(engine, "b") == {"c": ([1], None)}
    engine.abort_requests(["c"])
    assert not engine.has_work()
