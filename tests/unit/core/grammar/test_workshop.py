"""workshop.py: each grammar once, away from the caller, and nobody waits for another's."""

from __future__ import annotations

import gc
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from muro.core.grammar import Compilation, GrammarSpec, Workshop
from muro.core.grammar.library import Matcher
from muro.core.grammar.workshop import KEPT, PATIENCE, SLOW_THREADS, THREADS
from muro.errors import ConfigError, InvalidRequestError, RequestFailedError, UnsupportedOptionError
from tests.support.deadline import until
from tests.support.grammars import matcher


class Bench:
    """A compiler that does what the text of a grammar says."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.gate = threading.Event()
        self.now = 0.0
        self.threads: set[int] = set()
        self.tried: list[str] = []
        self.slow: list[str] = []
        self.closed = False
        self.workshop = Workshop(lambda: self, lambda: self.now, self)

    def compile(self, spec: GrammarSpec) -> Matcher:
        self.seen[spec.text] += 1
        self.threads.add(threading.get_ident())
        if spec.text.startswith("wait"):
            assert self.gate.wait(20)
        if spec.text == "invalid":
            raise InvalidRequestError("structured_outputs: no", param="structured_outputs")
        if spec.text == "broken":
            raise ZeroDivisionError("oh")
        return matcher(regex="ab")

    def __call__(self, spec: GrammarSpec, patient: bool) -> bool:
        self.tried.append(spec.text)
        if spec.text.startswith("slow"):
            if not patient:
                return False
            self.slow.append(spec.text)
            assert self.gate.wait(20)
        if spec.text == "deadly":
            raise InvalidRequestError("structured_outputs: deadly", param="structured_outputs")
        return True

    def close(self) -> None:
        self.closed = True

    def order(self, text: str) -> Compilation:
        return self.workshop.order(GrammarSpec("regex", text))


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.gate.set()
    bench.workshop.close()


def test_a_grammar_is_compiled_once_and_kept(bench: Bench) -> None:
    first, second = bench.order("a"), bench.order("a")
    assert first is second
    until(first.over)
    del first, second
    gc.collect()
    assert bench.order("a").over()
    assert bench.seen == {"a": 1}
    assert threading.get_ident() not in bench.threads


def test_each_request_gets_a_matcher_of_its_own(bench: Bench) -> None:
    one = bench.order("a")
    until(one.over)
    first, second = one.start(), one.start()
    first.consume(97)
    second.consume(97)


def test_nobody_waits_for_the_grammar_of_another(bench: Bench) -> None:
    slow = bench.order("wait")
    until(bench.order("quick").over)
    assert not slow.over()
    bench.gate.set()
    until(slow.over)


def test_however_many_are_slow_the_others_pass(bench: Bench) -> None:
    slow = [bench.order(f"slow {i}") for i in range(5 * THREADS)]
    until(lambda: len(bench.slow) == SLOW_THREADS)
    until(bench.order("quick").over)
    assert len(bench.slow) == SLOW_THREADS < THREADS
    assert not any(one.over() for one in slow)
    bench.gate.set()
    assert all(until(one.over) for one in slow)
    assert Counter(bench.slow) == {f"slow {i}": 1 for i in range(5 * THREADS)}


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("invalid", InvalidRequestError, "no"),
        ("deadly", InvalidRequestError, "deadly"),
        ("broken", RequestFailedError, "oh"),
    ],
)
def test_an_error_is_told_to_all_who_wait_and_tried_anew_later(
    bench: Bench, text: str, kind: type[Exception], words: str
) -> None:
    for again in range(2):
        one = bench.order(text)
        until(lambda one=one: one.error is not None)  # type: ignore[misc]
        for _ in range(2):
            with pytest.raises(kind, match=words):
                one.over()
        assert bench.tried == [text] * (again + 1)
    assert bench.seen[text] == (0 if text == "deadly" else 2)


def test_the_wait_is_bounded(bench: Bench) -> None:
    one = bench.order("wait")
    assert not one.over()
    bench.now = PATIENCE + 1
    with pytest.raises(RequestFailedError, match="30 s"):
        one.over()


def test_what_nobody_waits_for_any_more_is_not_begun(bench: Bench) -> None:
    held = [bench.order(f"wait {i}") for i in range(THREADS)]
    until(lambda: len(bench.seen) == THREADS)
    bench.order("left")
    gc.collect()
    last = bench.order("last")
    bench.gate.set()
    until(last.over)
    assert "left" not in bench.seen
    assert all(until(one.over) for one in held)


def test_those_used_last_are_kept(bench: Bench) -> None:
    for number in range(KEPT + 1):
        until(bench.order(str(number)).over)
        until(bench.order("0").over)
    gc.collect()
    until(bench.order("0").over)
    until(bench.order("1").over)
    assert (bench.seen["0"], bench.seen["1"], bench.seen[str(KEPT)]) == (1, 2, 1)


def test_what_is_known_to_be_missing_is_told_at_once() -> None:
    with pytest.raises(UnsupportedOptionError, match="pip install"):
        Workshop(Bench, missing="structured_outputs: pip install it").order(GrammarSpec("regex", "a"))


def test_a_compiler_that_cannot_be_made_is_told_to_each_who_asks() -> None:
    def make() -> Bench:
        raise ConfigError("the tokenizer is of no use")

    workshop = Workshop(make)
    try:
        for _ in range(2):
            one = workshop.order(GrammarSpec("regex", "a"))
            until(lambda one=one: one.error is not None)  # type: ignore[misc]
            with pytest.raises(UnsupportedOptionError, match="no use"):
                one.over()
    finally:
        workshop.close()


def test_closing_ends_the_threads_and_begins_nothing_more(bench: Bench) -> None:
    until(bench.order("a").over)
    bench.workshop.close()
    bench.workshop.close()
    assert bench.closed
    assert not [t for t in threading.enumerate() if t.name.startswith("muro-grammar")]
    one = bench.order("b")
    bench.now = PATIENCE + 1
    with pytest.raises(RequestFailedError):
        one.over()
    with pytest.raises(RequestFailedError):
        one.start()
