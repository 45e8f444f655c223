"""Small tokenizers of the two kinds that matter, made on the spot."""

from __future__ import annotations

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

from muro.text.tokenizer import HuggingFaceTokenizer

CORPUS = [
    "hello world, the quick 🙂 brown fox",
    "naïve café — “quotes” こんにちは世界",
    "def f(x):\n    return x\n",
] * 5


def byte_level() -> tokenizers.Tokenizer:
    """GPT-2's kind: every byte is a character of the vocabulary; with added tokens, special and not."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=360,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|start|>", "<|end|>"],
        show_progress=False,
    )
    inner.train_from_iterator(CORPUS, trainer)
    inner.add_tokens([AddedToken("two words €", special=False), AddedToken("é", special=False)])
    return inner


def byte_fallback() -> tokenizers.Tokenizer:
    """SentencePiece's kind: words start with U+2581, what is not in the vocabulary is written as byte tokens."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    words += ["▁", "▁▁", "a", "b", "▁a", "▁b", "é", "▁hello", "lo", "\ufffd", "<0x"]
    vocab = {word: i for i, word in enumerate(words)}
    inner = tokenizers.Tokenizer(models.BPE(vocab, [("▁", "a"), ("▁", "b")], unk_token="<unk>", byte_fallback=True))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    inner.add_special_tokens(["<s>", "</s>"])
    return inner


def metaspace() -> tokenizers.Tokenizer:
    """Words start with U+2581, no byte tokens."""
    words = ["<unk>", "</s>", "▁", "a", "▁a", "é", "▁▁"]
    inner = tokenizers.Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, [], unk_token="<unk>"))
    inner.decoder = decoders.Metaspace()
    inner.add_special_tokens(["</s>"])
    return inner


def wrap(inner: tokenizers.Tokenizer) -> HuggingFaceTokenizer:
    """As `load_tokenizer` would."""
    return HuggingFaceTokenizer(inner)
