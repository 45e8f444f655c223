"""What is laid out for a request: words, an echo, an end where its length wants one."""

from __future__ import annotations

from typing import Any

import pytest

from muro.engines.sim.lengths import parse_lengths
from muro.engines.sim.streams import Stream, Streams, Tokens
from muro.engines.sim.text import BYTES, LENGTH, continuation, text_for
from muro.wire.request import SamplingParams

PROMPT = list(b"Once upon a time")
EOS = 257


def lay_out(
    tokens: Tokens = "fixed", lengths: str | None = None, prompt: list[int] = PROMPT, room: int = 4096, **params: Any
) -> tuple[Stream, SamplingParams]:
    streams = Streams(text_for(BYTES), tokens, None if lengths is None else parse_lengths(lengths), room)
    return streams.lay_out(prompt, SamplingParams(**params))


def told(stream: Stream, count: int, prompt: list[int] = PROMPT) -> list[int]:
    return [stream.tokens[stream.base + position] for position in range(len(prompt), len(prompt) + count)]


@pytest.mark.parametrize("room", [4096, LENGTH + 100])
def test_words(room: int) -> None:
    stream, params = lay_out(room=room, temperature=0.7, max_tokens=50)
    assert told(stream, 50) == continuation(PROMPT, 50)
    assert params.temperature == 0.0


def test_an_echo() -> None:
    stream, _ = lay_out("echo", prompt=[1, 2, 3], max_tokens=8)
    assert told(stream, 8, [1, 2, 3]) == [1, 2, 3, 1, 2, 3, 1, 2]


@pytest.mark.parametrize("tokens", ["fixed", "echo"])
@pytest.mark.parametrize("resumed", [0, 4, 10])
def test_a_length_ends_with_the_end_token_also_of_what_is_resumed(tokens: Tokens, resumed: int) -> None:
    whole, params = lay_out(tokens, "uniform:20,40", max_tokens=100, eos_token_id=EOS)
    length = whole.tokens.index(EOS) + 1
    assert 20 <= length <= 40 and params.max_tokens == 100
    prompt = PROMPT + told(whole, resumed)
    extra = {"muro_resumed_tokens": resumed}
    rest, _ = lay_out(tokens, "uniform:20,40", prompt, max_tokens=100, eos_token_id=EOS, extra_args=extra)
    assert told(rest, length - resumed, prompt) == told(whole, length)[resumed:]


@pytest.mark.parametrize("tokens", ["fixed", "echo"])
def test_what_is_resumed_need_not_be_what_was_told(tokens: Tokens) -> None:
    """A grammar, a bias or a penalty may have chosen other tokens: what follows stays as it was."""
    whole, _ = lay_out(tokens, max_tokens=100)
    prompt = PROMPT + list(b"###")
    rest, _ = lay_out(tokens, prompt=prompt, max_tokens=100, extra_args={"muro_resumed_tokens": 3})
    assert told(rest, 50, prompt) == told(whole, 53)[3:]


def test_lengths_differ_from_prompt_to_prompt() -> None:
    lengths = {
        lay_out(lengths="uniform:1,1000", prompt=[n], max_tokens=2000, eos_token_id=EOS)[0].tokens.index(EOS)
        for n in range(50)
    }
    assert len(lengths) > 40


def test_who_must_not_end_before_gets_a_later_end() -> None:
    stream, _ = lay_out(lengths="fixed:5", min_tokens=9, max_tokens=100, eos_token_id=EOS)
    assert stream.tokens.index(EOS) == 9
    stream, _ = lay_out(lengths="fixed:5", max_tokens=3, eos_token_id=EOS)
    assert EOS not in told(stream, 3)


@pytest.mark.parametrize("given", [{}, {"max_tokens": 2}, {"max_tokens": None}])
def test_without_an_end_token_the_length_is_a_limit(given: dict[str, Any]) -> None:
    stream, params = lay_out(lengths="fixed:5", **({"max_tokens": 100} | given))
    assert params.max_tokens == (2 if given.get("max_tokens") == 2 else 5)
    assert told(stream, 5) == continuation(PROMPT, 5)


def test_what_is_not_to_end_does_not() -> None:
    stream, params = lay_out(lengths="fixed:5", max_tokens=100, eos_token_id=EOS, ignore_eos=True)
    assert params.max_tokens == 100 and told(stream, 100) == continuation(PROMPT, 100)


def test_where_it_is_sampled_nothing_is_laid_out() -> None:
    stream, params = lay_out("sampled", "fixed:5", max_tokens=9, temperature=0.7, eos_token_id=EOS)
    assert stream.tokens == [] and (params.temperature, params.max_tokens) == (0.7, 5)
    params = SamplingParams(temperature=0.7, max_tokens=9)
    assert lay_out("sampled", max_tokens=9, temperature=0.7)[1] == params


@pytest.mark.parametrize("wrong", [{"max_tokens": -7}, {"extra_args": {"muro_resumed_tokens": "x"}}])
def test_what_is_wrong_is_left_to_those_who_refuse_it(wrong: dict[str, Any]) -> None:
    for tokens in ("fixed", "echo", "sampled"):
        lay_out(tokens, "fixed:5", [], **wrong)
