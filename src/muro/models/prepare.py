"""From a GGUF file to the files that every front-end expects beside a model's weights.

GGUF keeps tokenizer, chat template and shape in its metadata; here they become `tokenizer.json`,
`tokenizer_config.json`, `config.json`, `generation_config.json` and `chat_template.jinja`, in the formats of Hugging
Face's `tokenizers` and `transformers`. The weights stay in the GGUF file. A Hugging Face checkpoint needs none of
this and is used as it is.

Keys of the metadata: GGUF specification, "Standardized key-value pairs".
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from muro.errors import ConfigError, MissingExtraError
from muro.models.families import FAMILIES, Family, by_gguf
from muro.models.pooling import write_pooling
from muro.models.tokenizer_file import added_tokens, build_tokenizer

FORMAT = 2
"""Counted up when the prepared files change, so that older directories are made anew."""

Metadata = Mapping[str, Any]
Tensors = Mapping[str, list[float]]

_POOLING: Mapping[int, Literal["mean", "last"]] = {1: "mean", 3: "last"}
_ROPE_FACTORS = "rope_freqs.weight"
_READ = (_ROPE_FACTORS,)

_Size = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
_KINDS: Mapping[str, Any] = {
    "general.architecture": str,
    "tokenizer.chat_template": str,
    "tokenizer.ggml.model": str,
    "tokenizer.ggml.pre": str,
    "tokenizer.ggml.tokens": list[str],
    "tokenizer.ggml.merges": list[str],
    "tokenizer.ggml.scores": list[float],
    "tokenizer.ggml.token_type": list[int],
    **{f"tokenizer.ggml.{role}_token_id": int for role in ("bos", "eos", "unknown", "padding")},
}
_SHAPE_KINDS: Mapping[str, Any] = {
    **dict.fromkeys(("attention.head_count", "attention.head_count_kv", "embedding_length"), _Size),
    **dict.fromkeys(("attention.key_length", "attention.value_length", "rope.dimension_count"), _Size),
    **dict.fromkeys(("feed_forward_length", "block_count", "context_length"), _Size),
    **dict.fromkeys(("pooling_type", "attention.sliding_window"), int),
    **dict.fromkeys(("rope.freq_base", "rope.scaling.factor", "rope.scale_linear"), float),
    "attention.layer_norm_rms_epsilon": float,
    "rope.scaling.type": str,
}
"""Of what kind the values are that are read; those of the second table have keys that begin with the architecture."""


def from_gguf(gguf: Path, directory: Path, sampling: Mapping[str, float] | None = None) -> None:
    """Write the files for the model in `gguf` into `directory`; `sampling` is for requests that do not say.

    Raises:
        ConfigError: the file is damaged, or its model or tokenizer is of a kind that is not supported.
        MissingExtraError: `gguf` or `tokenizers` is not installed.
    """
    metadata, tensors = read_metadata(gguf)
    _check_kinds(metadata)
    family = _family(metadata)
    config = model_config(metadata, tensors, family)
    tokenizer_json = build_tokenizer(metadata)
    directory.joinpath("tokenizer.json").write_text(tokenizer_json, "utf-8")
    _write(directory / "config.json", config)
    _write(directory / "generation_config.json", {**_generation_config(metadata), **(sampling or {})})
    _write(directory / "tokenizer_config.json", _tokenizer_config(metadata, config["max_position_embeddings"]))
    if pooling := _POOLING.get(metadata.get(f"{family.gguf}.pooling_type", 0)):
        write_pooling(directory, pooling)
    if template := metadata.get("tokenizer.chat_template"):
        directory.joinpath("chat_template.jinja").write_text(template, "utf-8")


def read_metadata(path: Path) -> tuple[dict[str, Any], Tensors]:
    """Metadata of a GGUF file, and its tensors by name: small ones as numbers, of all others nothing but the name.

    Raises:
        ConfigError: not a GGUF file.
        MissingExtraError: `gguf` is not installed.
    """
    try:
        import gguf
    except ImportError:
        raise MissingExtraError("reading a GGUF file", "openvino") from None
    try:
        reader = gguf.GGUFReader(path)
        metadata = {name: field.contents() for name, field in reader.fields.items()}
        tensors = {tensor.name: tensor.data.tolist() if tensor.name in _READ else [] for tensor in reader.tensors}
    except (OSError, ValueError, IndexError, KeyError) as error:  # what the reader raises on damaged files
        raise ConfigError(f"{path} is no GGUF file that can be read: {error}") from error
    return metadata, tensors


def model_config(metadata: Metadata, tensors: Tensors, family: Family) -> dict[str, Any]:
    """`config.json` of a model of this family. Raises ConfigError for what cannot be run."""

    def get(key: str, default: Any = None) -> Any:
        return metadata.get(f"{family.gguf}.{key}", default)

    def demand(key: str) -> Any:
        return _required(metadata, f"{family.gguf}.{key}")

    heads, hidden = demand("attention.head_count"), demand("embedding_length")
    head_dim = get("attention.key_length", hidden // heads)
    if get("attention.value_length", head_dim) != head_dim or get("rope.dimension_count", head_dim) != head_dim:
        raise ConfigError("GGUF models whose keys, values and rotary positions differ in size are not supported")
    return {
        "architectures": [family.architecture],
        "model_type": family.name,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "attention_dropout": 0.0,
        "mlp_bias": "blk.0.ffn_gate.bias" in tensors,
        "hidden_act": "silu",
        "vocab_size": len(_required(metadata, "tokenizer.ggml.tokens")),
        "hidden_size": hidden,
        "intermediate_size": demand("feed_forward_length"),
        "num_hidden_layers": demand("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": demand("context_length"),
        "rms_norm_eps": _shortest(demand("attention.layer_norm_rms_epsilon")),
        "rope_theta": _shortest(get("rope.freq_base", 10000.0)),
        "rope_scaling": _rope_scaling(metadata, tensors, family),
        **({"sliding_window": window} if (window := get("attention.sliding_window")) else {}),
        "tie_word_embeddings": "output.weight" not in tensors,
        "torch_dtype": "float16",
        "use_cache": True,
        **_special_ids(metadata),
    }


def _family(metadata: Metadata) -> Family:
    """Raises ConfigError for a family that we cannot run."""
    architecture = metadata.get("general.architecture")
    family = by_gguf(architecture)
    if family is None:
        known = ", ".join(sorted({family.gguf for family in FAMILIES}))
        raise ConfigError(
            f"GGUF models of architecture {architecture!r} are not supported, only {known}; "
            "take a Hugging Face checkpoint of a family that is"
        )
    if not metadata.get(f"{architecture}.attention.sliding_window"):
        return family
    windowed = next(
        (other for other in FAMILIES if other.gguf == family.gguf and other.window == "sliding_window"), None
    )
    if windowed is None:
        raise ConfigError(f"GGUF models of architecture {architecture!r} with sliding windows are not supported")
    return windowed


def _rope_scaling(metadata: Metadata, tensors: Tensors, family: Family) -> dict[str, Any] | None:
    kind = metadata.get(f"{family.gguf}.rope.scaling.type", "none")
    factor = metadata.get(f"{family.gguf}.rope.scaling.factor") or metadata.get(f"{family.gguf}.rope.scale_linear")
    if factors := tensors.get(_ROPE_FACTORS):
        # What became of the parameters of Llama 3.1 and others: a number for each rotary pair.
        return {"rope_type": "factors", "factors": factors}
    if kind == "none" or factor == 1.0:
        return None
    if kind != "linear" or factor is None:
        raise ConfigError(
            f"GGUF models with rotary positions scaled by {kind!r} are not supported; take a Hugging Face checkpoint"
        )
    return {"rope_type": "linear", "factor": _shortest(factor)}


def _generation_config(metadata: Metadata) -> dict[str, Any]:
    return {"_from_model_config": True, **_special_ids(metadata)}


def _special_ids(metadata: Metadata) -> dict[str, int]:
    keys = {"bos": "bos", "eos": "eos", "pad": "padding"}
    ids = {f"{ours}_token_id": metadata.get(f"tokenizer.ggml.{theirs}_token_id") for ours, theirs in keys.items()}
    return {name: value for name, value in ids.items() if value is not None}


def _tokenizer_config(metadata: Metadata, context: int) -> dict[str, Any]:
    tokens = metadata["tokenizer.ggml.tokens"]
    roles = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    ids = {f"{ours}_token": metadata.get(f"tokenizer.ggml.{theirs}_token_id") for ours, theirs in roles.items()}
    added = {
        str(token_id): {
            "content": content,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": special,
        }
        for token_id, content, special in added_tokens(metadata)
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": bool(metadata.get("tokenizer.ggml.add_space_prefix", False)),
        "added_tokens_decoder": added,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
        **{name: tokens[i] for name, i in ids.items() if i is not None},
        **({"chat_template": template} if (template := metadata.get("tokenizer.chat_template")) else {}),
    }


def _check_kinds(metadata: Metadata) -> None:
    """Raise ConfigError where a value is not of its kind: a file may say anything."""
    prefix = f"{metadata.get('general.architecture')}."
    for key, kind in [*_KINDS.items(), *((prefix + key, kind) for key, kind in _SHAPE_KINDS.items())]:
        if key in metadata:
            try:
                msgspec.convert(metadata[key], kind)
            except msgspec.ValidationError as error:
                raise ConfigError(f"{key} in the GGUF file cannot be used: {error}") from None


def _required(metadata: Metadata, key: str) -> Any:
    if key not in metadata:
        raise ConfigError(f"the GGUF file lacks {key}; it is not complete")
    return metadata[key]


def _shortest(value: float) -> float:
    """The shortest decimal number that is this float32: 1e-05, not 9.999999747378752e-06."""
    import numpy as np

    return float(str(np.float32(value)))


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
