"""What the simulator says: a long text without meaning, of which each prompt has a place of its own.

The text is drawn from a seed: English words, as bytes or as those tokens of a model that are whole words. A prompt is
digested token by token; where a digest lands in the text, there its answer begins. A token that is the one in the
text moves the digest one place on, any other one throws it elsewhere. So what follows some tokens depends on these
alone, not on whether they came as prompt or were generated, and an answer is a slice that costs nothing to make.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import msgspec

from muro.errors import ConfigError

BYTES = 258
"""Vocabulary of the byte-level tokenizer that an engine without a model is served with."""
LENGTH = 1 << 17
"""Tokens of the text, after which it begins anew."""
FEWEST_WORDS = 64

_MASK64 = 2**64 - 1
_MULTIPLIER, _INCREMENT = 0xBF58476D1CE4E5B9, 0x9E3779B97F4A7C15
_WORD = re.compile(r"[Ġ▁ ][a-z]{2,}")
_BARE_WORD = re.compile(r"[a-z]{2,}")
_COMMON = (
    "a about after all also an and any are as at back be because but by can come could day do even first for from get "
    "give go good have he her him his how i if in into it its just know like look make me most my new no not now of on "
    "one only or other our out over people say see she so some take than that the their them then there these they "
    "think this time to two up us use want water way we well what when which who will with work would year you your"
)
_WORDS = _COMMON.split()


class Text:
    """A text over a vocabulary.

    Args:
        pool: token ids to draw from; None: bytes that make words.
        seed: another one, another text.
    """

    def __init__(self, pool: Sequence[int] | None, seed: int) -> None:
        draw = random.Random(seed)
        once = list(" ".join(draw.choices(_WORDS, k=LENGTH // 2)).encode()) if pool is None else []
        once = (once if pool is None else draw.choices(pool, k=LENGTH))[:LENGTH]
        self.tokens = once + once
        """Twice the text, so that a slice which begins in the first half goes on."""
        self.ids = sorted(set(once))
        self._first = seed & _MASK64

    def digest(self, tokens: Iterable[int], so_far: int | None = None) -> int:
        """The 64-bit digest of all tokens up to here, from that of those before."""
        text, digest = self.tokens, self._first if so_far is None else so_far
        for token in tokens:
            if token == text[digest % LENGTH]:
                digest = (digest + 1) & _MASK64
            else:  # as in SplitMix64
                digest = ((digest ^ token) * _MULTIPLIER + _INCREMENT) & _MASK64
                digest ^= digest >> 29
        return digest

    def after(self, digest: int) -> int:
        """The token that follows what was digested."""
        return self.tokens[digest % LENGTH]

    def continuation(self, prompt: Iterable[int], count: int) -> list[int]:
        """The `count` tokens that follow `prompt`."""
        place = self.digest(prompt) % LENGTH
        return [self.tokens[(place + i) % LENGTH] for i in range(count)]


@lru_cache(maxsize=8)
def text_for(vocab_size: int, seed: int = 0, model: str | None = None) -> Text:
    """The text for a vocabulary: of words, if it is that of bytes or if the model's directory tells which are words.

    Otherwise of any tokens from the middle of the vocabulary, since special ones stand at its ends.
    Raises ConfigError if the model's `tokenizer.json` cannot be read.
    """
    if vocab_size <= BYTES:
        return Text(None, seed)
    words = [] if model is None else [i for i in words_of(Path(model)) if i < vocab_size]
    return Text(words or range(vocab_size // 8, vocab_size * 7 // 8), seed)


def continuation(prompt: Iterable[int], count: int, *, seed: int = 0, vocab_size: int = BYTES) -> list[int]:
    """The `count` tokens that follow `prompt` (with `tokens="fixed"`): what a test of a front-end must receive."""
    return text_for(vocab_size, seed).continuation(prompt, count)


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[tuple[str, float]] = {}


class _Tokenizer(msgspec.Struct):
    model: _Model


def words_of(model: Path) -> list[int]:
    """The token ids that are a word of lower-case letters, by `tokenizer.json`; none if there are few or no such file.

    With the mark of a beginning (`Ġword` of byte-level BPE, `▁word` of SentencePiece) if the vocabulary has one.
    Raises ConfigError.
    """
    path = model / "tokenizer.json"
    if not path.is_file():
        return []
    try:
        vocab = msgspec.json.decode(path.read_bytes(), type=_Tokenizer).model.vocab
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: {error}") from None
    pieces = vocab.items() if isinstance(vocab, dict) else ((piece, i) for i, (piece, _) in enumerate(vocab))
    known = dict(pieces)
    for pattern in (_WORD, _BARE_WORD):
        words = sorted(i for piece, i in known.items() if pattern.fullmatch(piece))
        if len(words) >= FEWEST_WORDS:
            return words
    return []
