"""`tokenizer.json` from the tokenizer that a GGUF file carries.

Byte-pair encoding in its two forms: over bytes, with merges ("gpt2"), and over characters, with a score per token
("llama", what SentencePiece makes). Of the rules by which the former cut text before merging only those are known
that models publish in their own `tokenizer.json`; any other is refused by name, for a tokenizer that is nearly right
is worse than none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from muro.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import PreTokenizer

# tokenizer.ggml.token_type
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4

_ROLES = ("bos", "eos", "unknown", "padding")

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # SentencePiece's space

# Contractions; words with at most one other character before them; digits; other signs; line ends; spaces. As in the
# `tokenizer.json` of Llama 3 and of Qwen2 and Qwen3, which differ by how many digits stay together.
_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_PATTERNS = {"llama-bpe": _PATTERN.replace("DIGITS", "{1,3}"), "qwen2": _PATTERN.replace("DIGITS", "")}


def added_tokens(metadata: Mapping[str, Any]) -> list[tuple[int, str, bool]]:
    """(id, text, special) of the tokens that are matched as a whole before the text is split."""
    types = metadata.get("tokenizer.ggml.token_type", [])
    tokens = metadata["tokenizer.ggml.tokens"]
    return [
        (i, tokens[i], kind != _USER_DEFINED)
        for i, kind in enumerate(types)
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
    ]


def build_tokenizer(metadata: Mapping[str, Any]) -> str:
    """The text of `tokenizer.json`.

    Raises:
        ConfigError: the kind of tokenizer is not supported, or its tables are damaged.
        MissingExtraError: `tokenizers` is not installed.
    """
    try:
        from tokenizers import AddedToken, processors
    except ImportError:
        raise MissingExtraError("building tokenizer.json", "text") from None
    kind = metadata.get("tokenizer.ggml.model")
    build = {"gpt2": _over_bytes, "llama": _over_characters}.get(kind or "")
    if build is None:
        raise ConfigError(f"GGUF tokenizers of kind {kind!r} are not supported, only 'gpt2' and 'llama'")
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    if len(set(tokens)) != len(tokens):
        raise ConfigError("the tokenizer tables in the GGUF file are damaged: a token twice")
    for role in _ROLES:
        if not 0 <= metadata.get(f"tokenizer.ggml.{role}_token_id", 0) < len(tokens):
            raise ConfigError(
                f"the tokenizer tables in the GGUF file are damaged: there is no {role} token of that number"
            )
    tokenizer = build(metadata, {token: i for i, token in enumerate(tokens)})
    for _, text, special in added_tokens(metadata):
        token = AddedToken(text, special=special, normalized=False)
        tokenizer.add_special_tokens([token]) if special else tokenizer.add_tokens([token])
    # Tokenizers of the second kind begin every text so unless they say otherwise.
    begin = _whole(metadata, "bos", tokens) if metadata.get("tokenizer.ggml.add_bos_token", kind == "llama") else None
    end = _whole(metadata, "eos", tokens) if metadata.get("tokenizer.ggml.add_eos_token", False) else None
    if begin or end:
        around = [f"{begin[0]} " if begin else "", f" {end[0]}" if end else ""]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{around[0]}$A{around[1]}",
            pair=f"{around[0]}$A{around[1]} {around[0]}$B{around[1]}",
            special_tokens=[token for token in (begin, end) if token],
        )
    return tokenizer.to_str()


def _whole(metadata: Mapping[str, Any], role: str, tokens: list[str]) -> tuple[str, int] | None:
    """Text and id of the token with which texts begin or end."""
    token_id = metadata.get(f"tokenizer.ggml.{role}_token_id")
    return None if token_id is None else (tokens[token_id], token_id)


def _over_bytes(metadata: Mapping[str, Any], vocab: dict[str, int]) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers

    name = metadata.get("tokenizer.ggml.pre", "default")
    splitter = _splitter(name)
    merges = [tuple(merge.split(" ")) for merge in metadata.get("tokenizer.ggml.merges", [])]
    if any(len(merge) != 2 for merge in merges):
        raise ConfigError("the tokenizer tables in the GGUF file are damaged: a merge that is no pair")
    try:
        model = models.BPE(vocab=vocab, merges=merges, ignore_merges=name == "llama-bpe")
    except Exception as error:  # the library raises plain Exception for a merge of unknown tokens
        raise ConfigError(f"the tokenizer tables in the GGUF file do not fit together: {error}") from error
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    if name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _over_characters(metadata: Mapping[str, Any], vocab: dict[str, int]) -> Tokenizer:
    """What SentencePiece does with such a model, said in merges: of all pairs of neighbours that make a token, the one
    with the highest score is joined first."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = metadata.get("tokenizer.ggml.scores", [])
    unknown = metadata.get("tokenizer.ggml.unknown_token_id")
    missing = [f"<0x{byte:02X}>" for byte in range(256) if f"<0x{byte:02X}>" not in vocab]
    if len(scores) != len(vocab) or missing or unknown is None:
        raise ConfigError(
            "the tokenizer tables in the GGUF file are damaged: without a score for each token, tokens for all bytes "
            "and an unknown token they cannot be used"
        )
    whole = {text for _, text, _ in added_tokens(metadata)}
    merges = [
        (-scores[token_id], token_id, text[:cut], text[cut:])
        for text, token_id in vocab.items()
        if text not in whole
        for cut in range(1, len(text))
        if text[:cut] in vocab and text[cut:] in vocab
    ]
    merges.sort(key=lambda merge: merge[:2])
    text_of = list(vocab)
    model = models.BPE(
        vocab=vocab,
        merges=[(left, right) for _, _, left, right in merges],
        unk_token=text_of[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    spaces = normalizers.Replace(" ", _SPACE)
    decoding: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
        decoding.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = spaces
    tokenizer.decoder = decoders.Sequence(decoding)
    return tokenizer


def _splitter(name: str) -> PreTokenizer:
    """How text is cut before merging, by the name in `tokenizer.ggml.pre`. Raises ConfigError."""
    from tokenizers import Regex, pre_tokenizers

    if name in _PATTERNS:
        cut = pre_tokenizers.Split(Regex(_PATTERNS[name]), "isolated")
        return pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    if name == "gpt-2":
        return byte_level
    known = ", ".join(["smollm", "gpt-2", *_PATTERNS])
    raise ConfigError(
        f"GGUF tokenizers that split like {name!r} are not supported, only {known}; "
        "take a Hugging Face checkpoint, which brings its own tokenizer.json"
    )
