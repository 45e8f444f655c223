"""stop.py: whatever the cut, the same as a naive search of the whole text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muro.errors import InvalidRequestError
from muro.text.stop import StopChecker

texts = st.text("ab\n", max_size=24)
stops = st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=4)


def naive(text: str, stop: list[str], include: bool) -> tuple[str, str | None]:
    """The rule, spelt out: the shortest beginning of the text that ends in a stop string; the longest such string."""
    for end in range(1, len(text) + 1):
        found = [s for s in stop if text[:end].endswith(s)]
        if found:
            hit = max(found, key=len)
            return text[: end if include else end - len(hit)], hit
    return text, None


def run(checker: StopChecker, pieces: list[str]) -> tuple[list[str], str | None]:
    out = []
    for piece in pieces:
        emit, hit = checker.feed(piece)
        out.append(emit)
        if hit is not None:
            return out, hit
    return [*out, checker.flush()], None


@given(texts, stops, st.booleans(), st.lists(st.integers(0, 5), max_size=24))
def test_equals_naive_search_whatever_the_cut(text: str, stop: list[str], include: bool, sizes: list[int]) -> None:
    pieces, rest = [], text
    for size in sizes:
        pieces.append(rest[:size])
        rest = rest[size:]
    out, hit = run(StopChecker(stop, include), [*pieces, rest])
    assert ("".join(out), hit) == naive(text, stop, include)


@given(texts, stops)
def test_holds_back_no_more_than_it_must(text: str, stop: list[str]) -> None:
    checker = StopChecker(stop)
    emit, hit = checker.feed(text)
    if hit is None:
        held = text[len(emit) :]
        starts = [k for k in range(len(text)) if any(len(s) > len(text) - k and s.startswith(text[k:]) for s in stop)]
        assert len(held) == (len(text) - starts[0] if starts else 0)
        assert checker.flush() == held
        assert checker.flush() == ""


def test_across_borders() -> None:
    checker = StopChecker(["<end>"])
    assert checker.feed("one <e") == ("one ", None)
    assert checker.feed("n") == ("", None)
    assert checker.feed("x <en") == ("<enx ", None)
    assert checker.feed("d> never") == ("", "<end>")
    assert checker.feed("more") == ("", "<end>")
    assert (checker.hit, checker.flush()) == ("<end>", "")


def test_included_stop_string_holds_nothing_back() -> None:
    checker = StopChecker(["<end>"], include=True)
    assert checker.feed("one <e") == ("one <e", None)
    assert checker.feed("nd> never") == ("nd>", "<end>")


def test_first_complete_wins_then_longest() -> None:
    assert StopChecker(["abcd", "bc"]).feed("abcd") == ("a", "bc")
    assert StopChecker(["c", "abc"]).feed("xabc") == ("x", "abc")


def test_without_stop_strings_text_passes() -> None:
    checker = StopChecker([])
    assert checker.feed("abc") == ("abc", None)
    assert checker.flush() == ""


def test_empty_stop_string_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="empty"):
        StopChecker(["a", ""])
