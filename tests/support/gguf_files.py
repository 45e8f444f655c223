"""A GGUF file of a Llama model so small that tests can write one each, as llama.cpp's converters lay it out."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers.pre_tokenizers import ByteLevel

HEADS, KV_HEADS, HEAD_DIM, LAYERS, FORWARD, CONTEXT = 4, 2, 8, 1, 24, 64
HIDDEN = HEADS * HEAD_DIM
SPECIAL = ["<|unk|>", "<|start|>", "<|end|>"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w"]
TOKENS = [*SPECIAL, *sorted(ByteLevel.alphabet()), "he", "ll", "hell", "hello", "Ġw"]
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
    """Write the model; `extra` adds metadata (strings and booleans)."""
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
        writer.add_bool(key, value) if isinstance(value, bool) else writer.add_string(key, value)
    for name, weight in tiny_weights().items():
        writer.add_tensor(_gguf_name(name), _permuted(name, weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _gguf_name(name: str) -> str:
    """By the library's own table, so that ours is compared with it."""
    mapped = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, LAYERS).get_name(name, try_suffixes=(".weight",))
    assert mapped is not None
    return mapped


def _permuted(name: str, weight: np.ndarray) -> np.ndarray:
    """Row i and row i + head_dim / 2 of each head become neighbours, as llama.cpp wants q and k."""
    heads = HEADS if "q_proj" in name else KV_HEADS if "k_proj" in name else None
    if heads is None:
        return weight
    order = [
        head * HEAD_DIM + half * HEAD_DIM // 2 + pair
        for head in range(heads)
        for pair in range(HEAD_DIM // 2)
        for half in range(2)
    ]
    return np.ascontiguousarray(weight[order])
