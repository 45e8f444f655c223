"""GGUF files of models so small that tests can write one each, as llama.cpp's converters lay them out."""

import json
import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file
from tokenizers.pre_tokenizers import ByteLevel

HEADS, KV_HEADS, HEAD_DIM, LAYERS, FORWARD, CONTEXT = 4, 2, 8, 1, 24, 64
HIDDEN = HEADS * HEAD_DIM
SPECIAL = ["<|unk|>", "<|start|>", "<|end|>"]
BYTES = sorted(ByteLevel.alphabet())
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w"]
TOKENS = [*SPECIAL, *BYTES, "he", "ll", "hell", "hello", "Ġw"]
TEMPLATE = "{% for message in messages %}<|start|>{{ message.content }}<|end|>{% endfor %}"


def tiny_weights(seed: int = 0) -> dict[str, np.ndarray]:
    """Weights by their Hugging Face names, rows in Hugging Face's order."""
    draw = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return draw.normal(0, 0.3, (rows, columns)).astype(np.float32)

    weights = {"model.embed_tokens.weight": matrix(len(TOKENS), HIDDEN)}
    weights["model.norm.weight"] = draw.uniform(0.5, 1.5, HIDDEN).astype(np.float32)
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{name}.{norm}.weight"] = draw.uniform(0.5, 1.5, HIDDEN).astype(np.float32)
        for part, rows in (("q_proj", HIDDEN), ("k_proj", KV_HEADS * HEAD_DIM), ("v_proj", KV_HEADS * HEAD_DIM)):
            weights[f"{name}.self_attn.{part}.weight"] = matrix(rows, HIDDEN)
        weights[f"{name}.self_attn.o_proj.weight"] = matrix(HIDDEN, HIDDEN)
        weights[f"{name}.mlp.gate_proj.weight"] = matrix(FORWARD, HIDDEN)
        weights[f"{name}.mlp.up_proj.weight"] = matrix(FORWARD, HIDDEN)
        weights[f"{name}.mlp.down_proj.weight"] = matrix(HIDDEN, FORWARD)
    return weights


def write_tiny_gguf(
    path: Path,
    *,
    architecture: str = "llama",
    tokenizer: str = "gpt2",
    pre: str = "smollm",
    merges: list[str] | None = None,
    extra: dict[str, Any] | None = None,
) -> Path:
    """Write the model; `extra` adds metadata."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model(tokenizer)
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([2, 3, 3] + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(MERGES if merges is None else merges)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for key, value in (extra or {}).items():
        add = {bool: writer.add_bool, str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}
        add[type(value)](key, value)
    for name, weight in tiny_weights().items():
        writer.add_tensor(_gguf_name(name), _permuted(name, weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_family_gguf(path: Path, directory: Path, architecture: str, *, window: int | None = None) -> Path:
    """Write a Hugging Face checkpoint of any family, with a tokenizer of bytes, as llama.cpp's converters do."""
    config = json.loads((directory / "config.json").read_text())
    rope = config["rope_parameters"]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(size := config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])
    writer.add_value_length(size)
    writer.add_rope_dimension_count(size)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope["rope_theta"])
    if window is not None:
        writer.add_sliding_window(window)
    filler = [f"<{i}>" for i in range(config["vocab_size"] - len(BYTES))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2" if architecture.startswith("qwen") else "llama-bpe")
    writer.add_token_list(BYTES + filler)
    writer.add_token_types([1] * config["vocab_size"])
    writer.add_token_merges([])
    writer.add_eos_token_id(config["eos_token_id"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], config["num_hidden_layers"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, weight in load_file(directory / "model.safetensors").items():
        part = name.split(".")[-2]
        if architecture == "llama" and part in heads:
            weight = _paired(weight, heads[part])
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), weight)
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", _rope_factors(rope, size))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _rope_factors(rope: dict[str, Any], size: int) -> np.ndarray:
    """By how much Llama 3.1 slows each pair down, case by case as it is published."""
    factors = []
    for pair in range(size // 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (2 * pair / size)
        original, low, high = (
            rope[key] for key in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
        )
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(rope["factor"])
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, np.float32)


def _gguf_name(name: str) -> str:
    """By the library's own table, so that ours is compared with it."""
    mapped = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, LAYERS).get_name(name, try_suffixes=(".weight",))
    assert mapped is not None
    return mapped


def _permuted(name: str, weight: np.ndarray) -> np.ndarray:
    """Row i and row i + head_dim / 2 of each head become neighbours, as llama.cpp wants q and k."""
    heads = HEADS if "q_proj" in name else KV_HEADS if "k_proj" in name else None
    return weight if heads is None else _paired(weight, heads)


def _paired(weight: np.ndarray, heads: int) -> np.ndarray:
    size = len(weight) // heads
    order = [
        head * size + half * size // 2 + pair for head in range(heads) for pair in range(size // 2) for half in range(2)
    ]
    return np.ascontiguousarray(weight[order])
