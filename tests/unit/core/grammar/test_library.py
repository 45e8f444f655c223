"""library.py: what each form allows, what is refused, and that a panic is an error like others."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from muro.core.grammar import grammar_spec
from muro.core.grammar.library import Compiler, LibraryMatcher, guarded
from muro.errors import ConfigError, InvalidRequestError, RequestFailedError
from muro.wire.request import StructuredOutputsParams
from tests.support.grammars import VOCAB, allowed, ids, matcher, state
from tests.support.schemas import examples
from tests.support.tokenizers import byte_level


@pytest.mark.parametrize(
    ("options", "text", "then"),
    [
        ({"regex": "[ab]+c"}, "ab", "abc"),
        ({"regex": "[ab]+"}, "", "ab"),
        ({"regex": "[ab]+"}, "a", "$ab"),
        ({"choice": ["yes", "no", 'n"\\\né', ""]}, "", "$ny"),
        ({"choice": ["yes", "no", 'n"\\\né']}, "n", '"o'),
        ({"choice": ["yes", "no", 'n"\\\né']}, 'n"\\\n', "\xc3"),
        ({"grammar": 'start: "(" start ")" | "x"'}, "((x", ")"),
        ({"grammar": 'root ::= "(" root ")" | "x"'}, "((x", ")"),
        ({"json_object": True}, '{"a"', "\t\n\r :"),
        ({"json_object": True, "disable_any_whitespace": True}, '{"a"', ":"),
        ({"json_object": True, "whitespace_pattern": " "}, '{"a"', " :"),
        ({"json": {"type": "integer"}}, "1", "$0123456789"),
        ({"json": {"const": 5}}, "", "5"),
        ({"json": "true"}, "tr", "u"),
    ],
)
def test_what_may_come_next(options: dict[str, object], text: str, then: str) -> None:
    assert allowed(state(**options), text) == then


def test_white_space_ends_by_default() -> None:
    grammar = state(json_object=True)
    assert " " in allowed(grammar, "{" + " " * 31)
    assert set(allowed(grammar, "{" + " " * 32)) == set('"}')


@pytest.mark.parametrize(
    "options",
    [
        {"regex": "("},
        {"regex": "(?!a)b"},
        {"grammar": "(((("},
        {"grammar": "start: other"},
        {"grammar": 'root ::= "a'},
        {"json": {"type": "nothing"}},
        {"json": {"not": {"type": "object"}}},
        {"json": {"$ref": "http://127.0.0.1:9/x"}},
        {"json": {"$ref": "file:///etc/passwd"}},
        {"json": {"$ref": "#/$defs/none"}},
        {"json": {"$defs": {"n": {"$ref": "#/$defs/n"}}, "$ref": "#/$defs/n"}},
        {"json": {"enum": []}},
        {"json": "false"},
        {"grammar": "start: start"},
    ],
)
def test_what_cannot_be_compiled_or_satisfied_is_the_callers_fault(options: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError, match="structured_outputs") as caught:
        matcher(**options)
    assert caught.value.param == "structured_outputs"
    assert len(caught.value.message) < 600 and "\n" not in caught.value.message


def test_the_answers_of_the_suite_are_allowed_and_complete() -> None:
    for example in examples()[::8]:
        for text in (json.dumps(example.answer), json.dumps(example.answer, indent=2)):
            one = matcher(json=example.schema)
            for byte in text.encode():
                one.consume(byte)
            assert one.may_end(), example.id


@given(choice=st.integers(0, 397), seed=st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_whatever_is_allowed_ends_up_valid(choice: int, seed: int) -> None:
    """A walk through the masks, which closes as soon as it can."""
    example = examples()[choice]
    one = matcher(json=example.schema, disable_any_whitespace=True)
    rng = np.random.default_rng(seed)
    mask = np.zeros((VOCAB + 31) // 32, np.uint32)
    text = b""
    while not one.must_end():
        one.fill(mask)
        options = [i for i in ids(mask) if i < 0x80]
        closing = [i for i in options if chr(i) in '"}],:']
        pick = closing if closing and (len(text) > 200 or rng.random() < 0.5) else options
        token = int(rng.choice(pick))
        one.consume(token)
        text += bytes((token,))
        assert len(text) < 5000
    Draft202012Validator(example.schema).validate(json.loads(text))


def test_a_token_that_is_not_allowed_is_an_error() -> None:
    one = matcher(regex="ab")
    with pytest.raises(RequestFailedError, match="ends before the token 98"):
        one.consume(98)
    with pytest.raises(RequestFailedError, match="cannot be followed"):
        one.fill(np.zeros((VOCAB + 31) // 32, np.uint32))


def test_a_copy_goes_its_own_way() -> None:
    one = matcher(regex="ab")
    other = one.copy()
    one.consume(97)
    one.consume(98)
    assert one.must_end() and not other.may_end()
    other.consume(97)


class PanicException(BaseException):
    """As pyo3 names it."""


def test_a_panic_is_an_error_of_one_request() -> None:
    def panic() -> None:
        raise PanicException("called `Option::unwrap()` on a `None` value")

    with pytest.raises(RequestFailedError, match=r"library failed.*unwrap"):
        guarded(panic)

    class Panicking:
        def is_stopped(self) -> bool:
            raise PanicException("at the disco")

    with pytest.raises(RequestFailedError, match="disco"):
        LibraryMatcher(Panicking(), ()).fill(np.zeros(1, np.uint32))


def test_what_is_no_panic_passes() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guarded(interrupt)
    with pytest.raises(ValueError, match="5"):
        guarded(int, "x5")


def test_a_tokenizer_of_a_model() -> None:
    inner = byte_level()
    inner.enable_truncation(5)
    size = inner.get_vocab_size()
    text = inner.to_str()
    for width in (size, size + 40):
        one = Compiler(text, width).compile(grammar_spec(StructuredOutputsParams(choice=["hello world", "héllo"])))
        mask = np.zeros((width + 31) // 32, np.uint32)
        one.fill(mask)
        texts = {inner.id_to_token(i) for i in ids(mask)}
        assert "h" in texts and all("hello world".startswith(t) for t in texts if t)
        inner.no_truncation()
        for token in inner.encode("hello world").ids:
            one.consume(token)
        assert one.must_end()


@pytest.mark.parametrize("vocabulary", ["[]", "{", "{}", "nonsense", [b"a", b"b"]])
def test_a_vocabulary_that_cannot_be_used_is_a_matter_of_settings(vocabulary: str | list[bytes]) -> None:
    with pytest.raises(ConfigError, match="tokenizer"):
        Compiler(vocabulary, 100)
