import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from muro.errors import ConfigError
from muro.models.tokenizer_file import build_tokenizer

BYTES = sorted(ByteLevel.alphabet())
PIECES = {
    "▁": -1.0,
    "a": -9.0,
    "b": -9.5,
    "c": -9.7,
    "ab": -2.0,
    "bc": -1.5,
    "abc": -3.0,
    "▁a": -1.2,
    "▁abc": -4.0,
    "aa": -2.5,
}
SPM_TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]


def over_bytes(pre: str, merges: list[str] = []) -> Tokenizer:  # noqa: B006
    tokens = [*BYTES, *(merge.replace(" ", "") for merge in merges)]
    metadata = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": tokens}
    return Tokenizer.from_str(build_tokenizer({**metadata, "tokenizer.ggml.merges": merges}))


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("llama-bpe", "12345 I'LL go", ["123", "45", "ĠI", "'LL", "Ġgo"]),
        ("qwen2", "12345 I'LL go", ["1", "2", "3", "4", "5", "ĠI", "'LL", "Ġgo"]),
        ("qwen2", "a  b\n\n c!!\n", ["a", "Ġ", "Ġb", "ĊĊ", "Ġc", "!!Ċ"]),
        ("llama-bpe", "(x)\t", ["(x", ")", "ĉ"]),
        ("smollm", "12 I'LL", ["1", "2", "ĠI", "'", "LL"]),
    ],
)
def test_how_text_is_cut(pre: str, text: str, expected: list[str]) -> None:
    assert pieces(over_bytes(pre), text) == expected


def test_what_belongs_to_a_kind_of_cutting() -> None:
    composed, apart = "\u00e9", "e\u0301"
    assert unicodedata.normalize("NFC", apart) == composed
    assert over_bytes("qwen2").encode(apart).ids == over_bytes("qwen2").encode(composed).ids
    assert over_bytes("llama-bpe").encode(apart).ids != over_bytes("llama-bpe").encode(composed).ids
    # A whole word that is a token is taken, whichever merges would come first.
    merges = ["h e", "e y", "h ey"]
    assert over_bytes("llama-bpe", merges).encode("hey").tokens == ["hey"]
    assert over_bytes("qwen2", merges).encode("hey").tokens == ["he", "y"]


def spm(**changes: object) -> Tokenizer:
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": SPM_TOKENS,
        "tokenizer.ggml.scores": [0.0] * 259 + list(PIECES.values()),
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(PIECES),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return Tokenizer.from_str(build_tokenizer({**metadata, **changes}))


def joined(text: str) -> list[str]:
    """What SentencePiece does, step by step: join the pair with the highest score, the leftmost of several."""
    parts = list("▁" + text.replace(" ", "▁"))
    while True:
        pairs = [
            (-PIECES[left + right], i) for i, (left, right) in enumerate(pairwise(parts)) if left + right in PIECES
        ]
        if not pairs:
            break
        _, i = min(pairs)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return [
        piece for part in parts for piece in ([part] if part in PIECES else [f"<0x{b:02X}>" for b in part.encode()])
    ]


@given(st.text("abc é\n", max_size=30))
def test_over_characters_as_sentencepiece_does(text: str) -> None:
    tokenizer = SPM
    encoding = tokenizer.encode(text, add_special_tokens=False)
    assert encoding.tokens == (joined(text) if text else [])
    assert tokenizer.decode(encoding.ids) == text


SPM = spm()


def test_over_characters_the_rest() -> None:
    assert SPM.encode("</s>a").tokens[:2] == ["<s>", "</s>"]
    assert spm(**{"tokenizer.ggml.add_bos_token": False}).encode("a").tokens == ["▁a"]
    ended = spm(**{"tokenizer.ggml.add_eos_token": True, "tokenizer.ggml.eos_token_id": 2})
    assert ended.encode("a").tokens == ["<s>", "▁a", "</s>"]
    assert ended.encode("a", "b").tokens == ["<s>", "▁a", "</s>", "<s>", "▁", "b", "</s>"]
    only = {
        "tokenizer.ggml.add_eos_token": True,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
    }
    assert spm(**only).encode("a").tokens == ["▁a", "</s>"]
    assert spm(**{"tokenizer.ggml.add_space_prefix": False}).encode("a").tokens == ["<s>", "a"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tokenizer.ggml.scores": [0.0]}, "without a score"),
        ({"tokenizer.ggml.unknown_token_id": len(SPM_TOKENS)}, "no unknown token of that number"),
        ({"tokenizer.ggml.bos_token_id": 10**6}, "no bos token of that number"),
        ({"tokenizer.ggml.tokens": [*SPM_TOKENS[:-1], "a"]}, "twice"),
        ({"tokenizer.ggml.model": "t5"}, "'t5' are not supported"),
    ],
)
def test_tables_that_cannot_be_used(changes: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        spm(**changes)
