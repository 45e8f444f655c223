"""The only file that knows `llguidance`: a vocabulary and a text become a matcher.

What the library reports, and what it panics with, becomes an error of one request. A panic arrives as pyo3's
`PanicException`, which is no `Exception`.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from muro.core.grammar.spec import PARAM, GrammarSpec
from muro.errors import ConfigError, InvalidRequestError, MissingExtraError, RequestFailedError

T = TypeVar("T")
Mask = NDArray[np.uint32]
Vocabulary = str | Sequence[bytes]
"""The text of a `tokenizer.json`, or the bytes of each token; a token without bytes stands for no text."""

LIMITS: dict[str, Any] = {
    # Those of the library, but for memory: a state of the lexer takes one or two KB.
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_items_in_row": 2_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 500_000,
    # Errors go to callers and logs, and have to stay short.
    "verbose_errors": False,
}
"""What one grammar may cost: to compile, and for each token."""

DEFAULT_WHITESPACE = r"[ \t\n\r]{1,32}"
"""White space without end is JSON, too; a model that falls into it never finishes."""


class Matcher(Protocol):
    """A grammar and where in it an output stands. What its methods raise ends one request: RequestFailedError."""

    def copy(self) -> Matcher:
        """Another one that stands at the same place."""
        ...

    def consume(self, token_id: int) -> None:
        """Go on by a token, which must be allowed."""
        ...

    def fill(self, mask: Mask) -> None:
        """Set the bits of the tokens that may come next (see `Draw.mask`); the end of the output has none."""
        ...

    def may_end(self) -> bool:
        """Whether the output may end here."""
        ...

    def must_end(self) -> bool:
        """Whether nothing can follow."""
        ...


def is_installed() -> bool:
    """Whether the library is there; does not load it."""
    return importlib.util.find_spec("llguidance") is not None


class Compiler:
    """Compiles grammars for one vocabulary.

    Making one takes about a second for 50,000 tokens, in which no other thread of the process runs.

    Args:
        vocabulary: see there.
        vocab_size: width of the logits.

    Raises:
        ConfigError: the vocabulary cannot be used.
        MissingExtraError: the library is not installed.
    """

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        try:
            import llguidance
        except ModuleNotFoundError:
            raise MissingExtraError("structured output", "structured") from None
        self._library = llguidance
        self._limits = llguidance.LLParserLimits(**LIMITS)
        self._words = (vocab_size + 31) // 32
        try:
            source = _plain(vocabulary) if isinstance(vocabulary, str) else _bytes_tokenizer(vocabulary, llguidance)
            self._tokenizer = guarded(llguidance.LLTokenizer, source, n_vocab=vocab_size)
        except (ValueError, RequestFailedError) as error:
            raise ConfigError(f"the tokenizer is of no use for structured output: {error}") from None

    def compile(self, spec: GrammarSpec) -> Matcher:
        """A matcher at the beginning of the output. Lets other threads run meanwhile.

        Raises:
            InvalidRequestError: the library does not take the grammar, or no output satisfies it.
            RequestFailedError: the library failed.
        """
        try:
            text = guarded(self._text, spec)
        except ValueError as error:
            raise _refused(str(error)) from None
        inner = guarded(self._library.LLMatcher, self._tokenizer, text, log_level=0, limits=self._limits)
        if inner.is_error():
            raise _refused(inner.get_error())
        matcher = LibraryMatcher(inner, tuple(self._tokenizer.eos_tokens))
        # The first step is the dearest one: better here than on the loop thread.
        first = np.zeros(self._words, np.uint32)
        probe = matcher.copy()
        try:
            probe.fill(first)
        except RequestFailedError as error:
            raise _refused(error.message) if probe.is_broken() else error from None
        if not first.any() and not matcher.may_end():
            raise _refused("no output satisfies it")
        return matcher

    def _text(self, spec: GrammarSpec) -> str:
        make = self._library.LLMatcher
        if spec.kind == "json":
            options: Any = {"whitespace_flexible": spec.any_whitespace}
            if spec.any_whitespace:
                options["whitespace_pattern"] = spec.whitespace_pattern or DEFAULT_WHITESPACE
            return str(make.grammar_from_json_schema(spec.text, overrides=options))
        if spec.kind == "regex":
            return str(make.grammar_from_regex(spec.text))
        return str(self._library.grammar_from("grammar", spec.text))


class LibraryMatcher:
    """A `Matcher` over one of the library's.

    Args:
        inner: the library's; belongs to this one.
        ends: tokens that the library takes for the end of an output. Which those are is for the request to say.
    """

    def __init__(self, inner: Any, ends: tuple[int, ...]) -> None:
        self._inner = inner
        self._ends = ends

    def copy(self) -> LibraryMatcher:
        return LibraryMatcher(guarded(self._inner.deep_copy), self._ends)

    def consume(self, token_id: int) -> None:
        if not guarded(self._inner.consume_token, token_id):
            raise RequestFailedError(f"the grammar ends before the token {token_id}: {_short(self._error())}")

    def fill(self, mask: Mask) -> None:
        if guarded(self._inner.is_stopped):
            mask[:] = 0
        else:
            guarded(self._inner.unsafe_compute_mask_ptr, mask.ctypes.data, mask.nbytes)
            for token_id in self._ends:
                mask[token_id >> 5] &= np.uint32(~(1 << (token_id & 31)) & 0xFFFFFFFF)
        self._check()

    def may_end(self) -> bool:
        return bool(guarded(self._inner.is_accepting))

    def must_end(self) -> bool:
        return bool(guarded(self._inner.is_stopped)) and not self.is_broken()

    def is_broken(self) -> bool:
        """Whether the library has given the grammar up."""
        return bool(guarded(self._inner.is_error))

    def _check(self) -> None:
        if self.is_broken():
            raise RequestFailedError(f"the grammar cannot be followed any further: {_short(self._error())}")

    def _error(self) -> str:
        return str(guarded(self._inner.get_error))


def guarded(function: Callable[..., T], *args: Any, **options: Any) -> T:
    """Call the library. A panic becomes a RequestFailedError; what else it raises passes."""
    try:
        return function(*args, **options)
    except Exception:
        raise
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise RequestFailedError(f"the grammar library failed: {_short(str(error))}") from None


def _refused(why: str) -> InvalidRequestError:
    return InvalidRequestError(f"{PARAM}: {_short(why)}", param=PARAM)


def _short(text: str) -> str:
    """The beginning of what the library says, in one line."""
    return " ".join(text.split())[:500]


def _plain(text: str) -> str:
    """A `tokenizer.json` that neither cuts nor fills up what it encodes."""
    content = msgspec.json.decode(text.encode())
    if not isinstance(content, dict):
        raise ValueError("tokenizer.json is no JSON object")
    return json.dumps({**content, "truncation": None, "padding": None})


class _Bytes:
    """A vocabulary as the library asks for one: longest match first, in one pass."""

    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.special_token_ids = [i for i, token in enumerate(tokens) if not token]
        self.tokens = [token or b"<|%d|>" % i for i, token in enumerate(tokens)]
        self.eos_token_id = self.special_token_ids[-1]
        self._ids = {token: i for i, token in enumerate(tokens) if token}
        self._longest = max(map(len, self.tokens))

    def __call__(self, text: bytes | str) -> list[int]:
        data = text.encode() if isinstance(text, str) else text
        ids, start = [], 0
        while start < len(data):
            ends = range(min(len(data), start + self._longest), start, -1)
            end = next((end for end in ends if data[start:end] in self._ids), None)
            if end is None:
                raise ValueError(f"no token stands for the byte {data[start]}")
            ids.append(self._ids[data[start:end]])
            start = end
        return ids


def _bytes_tokenizer(tokens: Sequence[bytes], library: Any) -> Any:
    if all(tokens):
        raise ValueError("a vocabulary needs a token without bytes, which ends an output")
    return library.TokenizerWrapper(_Bytes(tokens))
