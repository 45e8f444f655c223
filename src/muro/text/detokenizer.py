"""Token ids of one request, as they come, to text, never with half a character.

The promise: the pieces joined, with `flush()` at the end, are `tokenizer.decode(all ids)`, whatever the ids and however
they are cut. What could still change is held back: at most three bytes with a byte table; else a run of byte tokens
(`<0xE2>`), which the decoder reads as characters or as U+FFFD only as a whole.

`tokenizers.DecodeStream` is not used: with byte tokens it differs from the full decode or raises, it gives no
unfinished tail at the end, and its cost per token grows with the length of an undecodable run.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Mapping, Sequence
from typing import Protocol

from muro.text.tokenizer import Tokenizer


class Detokenizer(Protocol):
    """One request's stream of text. Not for use by two threads at once."""

    def push(self, ids: Sequence[int]) -> str:
        """Text that has become certain with these ids; often empty."""

    def flush(self) -> str:
        """The rest, an unfinished character as U+FFFD. Afterwards nothing may be pushed."""


def detokenizer_for(tokenizer: Tokenizer, *, skip_special: bool = True) -> Detokenizer:
    """A fresh stream for one request, in the way that suits the tokenizer."""
    skipped = tokenizer.special_ids if skip_special else frozenset()
    if tokenizer.byte_table is not None:
        return ByteDetokenizer(tokenizer.byte_table, skipped)
    return WindowDetokenizer(tokenizer, skipped)


class ByteDetokenizer:
    """For tokenizers with a byte table: constant cost per token, at most three bytes held back."""

    def __init__(self, table: Mapping[int, bytes], skipped: frozenset[int]) -> None:
        self._bytes_of = table.get
        self._skipped = skipped
        self._held = b""

    def push(self, ids: Sequence[int]) -> str:
        """See `Detokenizer.push`."""
        bytes_of, skipped = self._bytes_of, self._skipped
        data = self._held + b"".join([bytes_of(i, b"") for i in ids if i not in skipped])
        text, used = utf_8_decode(data, "replace", False)
        self._held = data[used:]
        return text

    def flush(self) -> str:
        """See `Detokenizer.flush`."""
        text, self._held = self._held.decode("utf-8", "replace"), b""
        return text


class WindowDetokenizer:
    """For all other tokenizers: decode a short window twice, with and without the new ids, and take the difference.

    The window starts with the last id of the text already given, because decoders treat the first token of a
    sequence differently (they strip its leading space).
    """

    def __init__(self, tokenizer: Tokenizer, skipped: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._before: list[int] = []
        self._fresh: list[int] = []

    def push(self, ids: Sequence[int]) -> str:
        """See `Detokenizer.push`."""
        token_of, skipped = self._tokenizer.token, self._skipped
        # Ids that yield no text must not become the start of a window.
        self._fresh += [i for i in ids if i not in skipped and token_of(i) is not None]
        if not self._fresh or _is_byte(token_of(self._fresh[-1])):
            return ""
        text = self._text()
        if text.endswith("\ufffd"):
            return ""
        self._before, self._fresh = self._fresh[-1:], []
        return text

    def flush(self) -> str:
        """See `Detokenizer.flush`."""
        text = self._text()
        self._before, self._fresh = [], []
        return text

    def _text(self) -> str:
        given = self._tokenizer.decode(self._before, skip_special=False)
        return self._tokenizer.decode(self._before + self._fresh, skip_special=False)[len(given) :]


def _is_byte(token: str | None) -> bool:
    return token is not None and len(token) == 6 and token.startswith("<0x") and token.endswith(">")
