"""Single tokens as people read them: how each is written, its bytes, and where in a text it stands.

A token that is no text of its own, part of a character say, is written by its bytes, as OpenAI does: `\\xe2\\x82` in a
chat, `bytes:\\xe2\\x82` in a completion.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from muro.text.detokenizer import detokenizer_for
from muro.text.tokenizer import Tokenizer


class Spelling:
    """How the tokens of a model are written.

    Args:
        tokenizer: of the model.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.of: Callable[[int], tuple[str | None, bytes]] = lru_cache(1 << 14)(self._of)
        """Text, if the token is one, and bytes of a token; special ones by their names."""

    def in_chat(self, token_id: int) -> str:
        """As a chat's log-probabilities name it."""
        text, data = self.of(token_id)
        return _escaped(data) if text is None else text

    def in_completion(self, token_id: int) -> str:
        """As a completion's log-probabilities name it."""
        text, data = self.of(token_id)
        return f"bytes:{_escaped(data)}" if text is None else text

    def _of(self, token_id: int) -> tuple[str | None, bytes]:
        tokenizer = self.tokenizer
        if tokenizer.byte_table is not None:
            data = tokenizer.byte_table.get(token_id, b"")
        elif (byte := re.fullmatch(r"<0x([0-9A-F]{2})>", tokenizer.token(token_id) or "")) is not None:
            data = bytes.fromhex(byte[1])
        else:
            # In the middle of a text: at its beginning a decoder may take a space away.
            once = tokenizer.decode([token_id], skip_special=False)
            data = tokenizer.decode([token_id, token_id], skip_special=False)[len(once) :].encode()
        try:
            return data.decode(), data
        except UnicodeDecodeError:
            return None, data


class Offsets:
    """Where in a text each of its tokens begins, in characters.

    Args:
        tokenizer: the model's.
        start: where the first token stands.
        skip_special: whether special tokens are left out of the text.
    """

    def __init__(self, tokenizer: Tokenizer, start: int = 0, *, skip_special: bool = True) -> None:
        self._detokenizer = detokenizer_for(tokenizer, skip_special=skip_special)
        self._at = start

    def __call__(self, token_id: int) -> int:
        """The offset of the next token; the parts of a character all stand where it does."""
        at = self._at
        self._at += len(self._detokenizer.push([token_id]))
        return at


def _escaped(data: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in data)
