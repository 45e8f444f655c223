"""A decoder of the Llama kind in plain numpy float64, slow and direct, for shapes that no golden file covers.

Written from the formulas alone: it shares nothing with the graph but the names of the weights.
"""

from collections.abc import Mapping

import numpy as np

from muro.models.config import ModelConfig

Weights = Mapping[str, np.ndarray]


def hidden_states(model: ModelConfig, weights: Weights, ids: list[int]) -> np.ndarray:
    """The last hidden states [tokens, hidden]; scaled rotary positions are not known here."""
    config = model.decoder
    assert config is not None and config.rope_scaling is None and model.windows is not None
    hidden = weights["model.embed_tokens.weight"][ids].astype(np.float64)
    for layer, window in enumerate(model.windows):
        name = f"model.layers.{layer}"
        normed = _norm(hidden, weights[f"{name}.input_layernorm.weight"], config.rms_norm_eps)
        hidden = hidden + _attention(model, weights, f"{name}.self_attn", normed, window or len(ids))
        normed = _norm(hidden, weights[f"{name}.post_attention_layernorm.weight"], config.rms_norm_eps)
        gate = _linear(weights, f"{name}.mlp.gate_proj", normed)
        up = _linear(weights, f"{name}.mlp.up_proj", normed)
        hidden = hidden + _linear(weights, f"{name}.mlp.down_proj", gate / (1 + np.exp(-gate)) * up)
    return _norm(hidden, weights["model.norm.weight"], config.rms_norm_eps)


def logits(model: ModelConfig, weights: Weights, ids: list[int]) -> np.ndarray:
    """[tokens, vocabulary]"""
    assert model.decoder is not None
    head = "model.embed_tokens.weight" if model.decoder.tie_word_embeddings else "lm_head.weight"
    return hidden_states(model, weights, ids) @ weights[head].T


def _attention(model: ModelConfig, weights: Weights, name: str, x: np.ndarray, window: int) -> np.ndarray:
    config = model.decoder
    assert config is not None
    heads, groups, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    positions = np.arange(len(x))
    query = _linear(weights, f"{name}.q_proj", x).reshape(-1, heads, size)
    key = _linear(weights, f"{name}.k_proj", x).reshape(-1, groups, size)
    value = _linear(weights, f"{name}.v_proj", x).reshape(-1, groups, size)
    if config.qk_norm:
        query = _norm(query, weights[f"{name}.q_norm.weight"], config.rms_norm_eps)
        key = _norm(key, weights[f"{name}.k_norm.weight"], config.rms_norm_eps)
    query, key = _rotated(query, config.rope_theta), _rotated(key, config.rope_theta)
    distance = positions[:, None] - positions
    seen = (distance >= 0) & (distance < window)
    mixed = np.empty_like(query)
    for head in range(heads):
        group = head // (heads // groups)
        scores = np.where(seen, query[:, head] @ key[:, group].T / np.sqrt(size), -np.inf)
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        mixed[:, head] = odds / odds.sum(axis=1, keepdims=True) @ value[:, group]
    return _linear(weights, f"{name}.o_proj", mixed.reshape(len(x), -1))


def _rotated(x: np.ndarray, theta: float) -> np.ndarray:
    """[tokens, heads, size], the pair of element i being i + size / 2."""
    half = x.shape[-1] // 2
    angles = np.arange(len(x))[:, None] * theta ** -(np.arange(half) / half)
    turn = np.exp(1j * angles)[:, None, :]
    turned = (x[..., :half] + 1j * x[..., half:]) * turn
    return np.concatenate([turned.real, turned.imag], axis=-1)


def _norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps) * weight


def _linear(weights: Weights, name: str, x: np.ndarray) -> np.ndarray:
    return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", np.zeros(()))
