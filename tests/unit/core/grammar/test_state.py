"""state.py: a function of the tokens alone, bounded in what it costs."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muro.core.grammar import GrammarState
from muro.core.grammar.library import Mask, Matcher
from muro.errors import RequestFailedError
from tests.support.grammars import EOS, VOCAB, allowed, ids, state

TEXT = list(b'xx{"a": [1, true]}')
SCHEMA = {"type": "object", "properties": {"a": {"type": "array"}}, "required": ["a"]}


def test_it_follows_the_output_and_not_the_prompt() -> None:
    grammar = state(start=2, json=SCHEMA)
    for length in range(2, len(TEXT)):
        assert TEXT[length] in ids(grammar.mask(TEXT[:length]))
        assert not grammar.is_complete(TEXT[:length])
    assert grammar.mask(TEXT) is not None


@given(cut=st.integers(2, len(TEXT)))
@settings(deadline=None)
def test_made_anew_in_the_middle_it_is_the_same(cut: int) -> None:
    grammar, anew = state(start=2, json=SCHEMA), state(start=2, json=SCHEMA)
    for length in range(2, cut + 1):
        grammar.mask(TEXT[:length])
    assert ids(grammar.mask(TEXT[:cut])) == ids(anew.mask(TEXT[:cut]))


def test_the_end_is_allowed_where_the_grammar_may_end() -> None:
    assert allowed(state(regex="a*b?"), "aa") == "$ab"
    assert allowed(state(regex="a*b?", eos=None), "aa") == "ab"
    assert ids(state(regex="a*", eos=ord("q")).mask([97])) == {97, ord("q")}
    assert EOS not in ids(state(regex="a*", eos=99999).mask([97]))


def test_complete_is_what_nothing_can_follow() -> None:
    grammar = state(choice=["ab", "abc"])
    assert [grammar.is_complete(list(b"abc")[:n]) for n in range(4)] == [False, False, False, True]


def test_it_begins_after_what_is_awaited() -> None:
    grammar = state(start=1, after=(5, 6), regex="ab")
    assert grammar.mask([5]) is None
    assert grammar.mask([5, 6, 5]) is None
    assert not grammar.is_complete([5, 6, 5, 5])
    assert ids(grammar.mask([5, 6, 5, 5, 6])) == {97}
    assert grammar.is_complete([5, 6, 5, 5, 6, 97, 98])
    assert ids(state(start=1, after=(5, 6), regex="ab").mask([5, 6, 5, 5, 6, 97])) == {98}


def test_tokens_that_do_not_follow_the_grammar_are_an_error() -> None:
    grammar = state(regex="ab")
    assert not grammar.is_complete([97, 97])
    assert ids(grammar.mask([97, 97])) == set()
    assert isinstance(grammar.error, RequestFailedError)
    assert ids(grammar.mask([97, 97, 98])) == set() and not grammar.is_complete([97, 98])


class Slow:
    """Takes its time over each token."""

    def copy(self) -> Matcher:
        return self

    def consume(self, token_id: int) -> None:
        pass

    def fill(self, mask: Mask) -> None:
        mask[:] = 1
        end = time.thread_time() + 0.06
        while time.thread_time() < end:
            pass

    def may_end(self) -> bool:
        return False

    def must_end(self) -> bool:
        return False


def test_what_costs_too_much_is_given_up() -> None:
    grammar = GrammarState(Slow, 0, VOCAB, EOS)
    tokens: list[int] = []
    while ids(grammar.mask(tokens)):
        tokens.append(0)
        assert len(tokens) < 20
    assert grammar.error is not None and "costs too much" in grammar.error.message
    assert len(tokens) >= 4


def test_a_start_that_fails_is_an_error() -> None:
    def start() -> Matcher:
        raise RequestFailedError("no")

    grammar = GrammarState(start, 0, VOCAB, EOS)
    assert ids(grammar.mask([])) == set()
    assert grammar.error is not None
    with pytest.raises(RequestFailedError):
        raise grammar.error
