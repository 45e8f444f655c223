"""`tokenizer.json` from the tokenizer that a GGUF file carries.

Byte-pair encoding only, and only splitting rules that were compared with the original tokenizer; any other kind is
refused by name, for a tokenizer that is nearly right is worse than none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from muro.errors import ConfigError, MissingExtraError

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

# tokenizer.ggml.token_type
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4


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
        from tokenizers import AddedToken, Tokenizer, decoders, models, processors
    except ImportError:
        raise MissingExtraError("building tokenizer.json", "text") from None
    kind = metadata.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise ConfigError(f"GGUF tokenizers of kind {kind!r} are not supported, only 'gpt2' (byte-pair encoding)")
    splitter = _splitter(metadata.get("tokenizer.ggml.pre", "default"))
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata.get("tokenizer.ggml.merges", [])]
    if any(len(merge) != 2 for merge in merges) or len(set(tokens)) != len(tokens):
        raise ConfigError(
            "the tokenizer tables in the GGUF file are damaged: a merge that is no pair, or a token twice"
        )
    try:
        model = models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges)
    except Exception as error:  # the library raises plain Exception for a merge of unknown tokens
        raise ConfigError(f"the tokenizer tables in the GGUF file do not fit together: {error}") from error
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    for _, text, special in added_tokens(metadata):
        token = AddedToken(text, special=special, normalized=False)
        tokenizer.add_special_tokens([token]) if special else tokenizer.add_tokens([token])
    if (
        metadata.get("tokenizer.ggml.add_bos_token")
        and (bos := metadata.get("tokenizer.ggml.bos_token_id")) is not None
    ):
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{tokens[bos]} $A", pair=f"{tokens[bos]} $A {tokens[bos]} $B", special_tokens=[(tokens[bos], bos)]
        )
    return tokenizer.to_str()


def _splitter(name: str) -> PreTokenizer:
    """How text is cut before merging, by the name in `tokenizer.ggml.pre`. Raises ConfigError."""
    from tokenizers import pre_tokenizers

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    if name == "gpt-2":
        return byte_level
    raise ConfigError(
        f"GGUF tokenizers that split like {name!r} are not supported, only 'smollm' and 'gpt-2'; "
        "take a Hugging Face checkpoint, which brings its own tokenizer.json"
    )
