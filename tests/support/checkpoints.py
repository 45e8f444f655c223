"""Small checkpoints with random weights: a `config.json` and all tensors that it calls for."""

import json
from pathlib import Path
from typing import Any

import numpy as np

SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}


def write_checkpoint(
    directory: Path, architecture: str, *, biases: str = "", norms: str = "", prefix: str = "model.", **config: Any
) -> dict[str, np.ndarray]:
    """Write a model directory; gives its weights by their usual names.

    Args:
        directory: where; made if needed.
        architecture: the name of the class.
        biases: which projections have a bias, as "q k v".
        norms: which are normed per head, as "q k".
        prefix: what the names of tensors begin with in the file.
        config: keys of `config.json`, over those of `SHAPE`.
    """
    keys = {**SHAPE, **config}
    weights = random_weights(keys, biases.split(), norms.split())
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"architectures": [architecture], "eos_token_id": 2, **keys})
    (directory / "config.json").write_text(text)
    stored = {prefix + name.removeprefix("model."): weight for name, weight in weights.items() if name[0] == "m"}
    stored |= {name: weight for name, weight in weights.items() if name[0] != "m"}
    write_tensors(directory / "model.safetensors", stored)
    return weights


def random_weights(keys: dict[str, Any], biases: list[str], norms: list[str], seed: int = 0) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    hidden, forward, size = keys["hidden_size"], keys["intermediate_size"], keys["head_dim"]
    heads, groups = keys["num_attention_heads"] * size, keys["num_key_value_heads"] * size

    def normal(*shape: int) -> np.ndarray:
        return draw.normal(0, 0.2, shape).astype(np.float32)

    shapes = {"q": (heads, hidden), "k": (groups, hidden), "v": (groups, hidden), "o": (hidden, heads)}
    shapes |= {"gate": (forward, hidden), "up": (forward, hidden), "down": (hidden, forward)}
    weights = {"model.embed_tokens.weight": normal(keys["vocab_size"], hidden)}
    weights["model.norm.weight"] = 1 + normal(hidden)
    if not keys["tie_word_embeddings"]:
        weights["lm_head.weight"] = normal(keys["vocab_size"], hidden)
    for layer in range(keys["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        weights[f"{name}.input_layernorm.weight"] = 1 + normal(hidden)
        weights[f"{name}.post_attention_layernorm.weight"] = 1 + normal(hidden)
        for part, shape in shapes.items():
            module = f"{name}.{'self_attn' if part in 'qkvo' else 'mlp'}.{part}_proj"
            weights[f"{module}.weight"] = normal(*shape)
            if part in biases:
                weights[f"{module}.bias"] = normal(shape[0])
        for part in norms:
            weights[f"{name}.self_attn.{part}_norm.weight"] = 1 + normal(size)
    return weights


def write_tensors(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """A safetensors file, float32."""
    entries, data = {}, b""
    for name, weight in tensors.items():
        raw = weight.astype(np.float32).tobytes()
        entries[name] = {"dtype": "F32", "shape": weight.shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    header = json.dumps(entries).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
