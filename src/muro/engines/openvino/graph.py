"""A decoder of any family of `muro.models.families` as an OpenVINO model, written with opset operations.

It is *stateful*, the form in which decoders are exported for OpenVINO; `paged.py` turns it to paged attention. The
transformation that does so recognises patterns: the shape of the key/value part, the mask input and `causal=False`
are as it wants them, and mask and `beam_idx` vanish in it. Rotary embedding, RMS norm and compressed weights are
written such that the CPU plugin fuses them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import openvino as ov
from openvino import opset6, opset13

from muro.engines.openvino.compression import quantize_int8
from muro.errors import ConfigError
from muro.models.checkpoint import Checkpoint
from muro.models.config import DecoderConfig

if TYPE_CHECKING:
    from numpy.typing import NDArray

# OpenVINO ships no types; nodes and outputs are both accepted as inputs.
Node = Any

VERSION = 1
"""Counted up when the built graph changes, so that stored ones are made anew."""

_MOST_NAMED = 5
_PER_TOKEN = ("embed_tokens", "lm_head")
_TIED = ("lm_head.weight", "output.weight")  # a copy of the embedding that some checkpoints hold


def build_decoder(
    config: DecoderConfig,
    checkpoint: Checkpoint,
    weights: str,
    on_layer: Callable[[int], None] = lambda _: None,
) -> ov.Model:
    """The stateful decoder: `input_ids`, `attention_mask`, `position_ids` [batch, tokens], `beam_idx` -> `logits`.

    Args:
        config: the model's shape.
        checkpoint: its weights.
        weights: how matrices are stored: "int8", "f16" or "f32".
        on_layer: told the number of each layer before it is converted.

    Raises:
        ConfigError: the checkpoint lacks a tensor, or holds one that the model has no place for.
    """
    model = _Decoder(config, checkpoint, weights).build(on_layer)
    unread = [name for name in checkpoint.unread() if not (config.tie_word_embeddings and name in _TIED)]
    if unread:
        more = f" and {len(unread) - _MOST_NAMED} more" if len(unread) > _MOST_NAMED else ""
        raise ConfigError(
            f"the checkpoint holds tensors that a {config.family} model has no place for: "
            f"{', '.join(unread[:_MOST_NAMED])}{more}; computing without them would be wrong"
        )
    return model


def rotary_frequencies(config: DecoderConfig) -> NDArray[np.float32]:
    """Radians per position of each rotary pair, shape [head_dim / 2].

    "llama3": wavelengths longer than `original_max_position_embeddings / low_freq_factor` are stretched by `factor`,
    those shorter than `.../ high_freq_factor` stay, in between it is interpolated (as published with Llama 3.1).
    "factors": each by its own, as GGUF files hold the outcome of that.
    """
    pairs = np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim
    frequencies = config.rope_theta**-pairs
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies.astype(np.float32)
    if scaling.rope_type == "factors":
        return (frequencies / np.array(scaling.factors, np.float64)).astype(np.float32)
    if scaling.rope_type == "linear":
        return (frequencies / scaling.factor).astype(np.float32)
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = np.clip(kept, 0, 1)
    return (kept * frequencies + (1 - kept) * frequencies / scaling.factor).astype(np.float32)


class _Decoder:
    """Writes one decoder. [B, T, ...] below: batch, tokens; after `to_paged` B counts tokens and T is 1."""

    def __init__(self, config: DecoderConfig, checkpoint: Checkpoint, weights: str) -> None:
        self._config = config
        self._checkpoint = checkpoint
        self._weights = weights
        self._assigns: list[Node] = []
        self._shapes = _shapes(config)
        self._rows: dict[str, int] = {}

    def build(self, on_layer: Callable[[int], None]) -> ov.Model:
        config = self._config
        ids = _input("input_ids", [-1, -1], np.int64)
        mask = _input("attention_mask", [-1, -1], np.int64)
        positions = _input("position_ids", [-1, -1], np.int64)
        self._beam_idx = _input("beam_idx", [-1], np.int32)
        self._batch = opset13.gather(opset13.shape_of(ids, "i64"), _int([0]), _int(0))
        self._cos, self._sin = self._rotary(positions)
        bias = opset13.multiply(opset13.subtract(opset13.convert(mask, np.float32), _float(1)), _float(1e9))
        self._mask = opset13.unsqueeze(bias, _int([1, 2]))

        embedding = self._matrix("model.embed_tokens")
        hidden = opset13.gather(embedding, ids, _int(0))
        for layer in range(config.num_hidden_layers):
            on_layer(layer)
            name = f"model.layers.{layer}"
            normed = self._norm(hidden, f"{name}.input_layernorm")
            hidden = opset13.add(hidden, self._attention(normed, layer, f"{name}.self_attn"))
            normed = self._norm(hidden, f"{name}.post_attention_layernorm")
            hidden = opset13.add(hidden, self._mlp(normed, f"{name}.mlp"))
        hidden = self._norm(hidden, "model.norm")
        head = embedding if config.tie_word_embeddings else self._matrix("lm_head")
        self._check_rows()
        logits = opset13.matmul(hidden, head, False, True)
        logits.output(0).set_names({"logits"})
        inputs = [ids, mask, positions, self._beam_idx]
        return ov.Model([opset13.result(logits)], self._assigns, inputs, "decoder")

    def _attention(self, hidden: Node, layer: int, name: str) -> Node:
        """[B, T, hidden] -> [B, T, hidden]."""
        config = self._config
        heads, kv_heads, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        # One product instead of three: fewer, larger matrices are quicker for few tokens.
        names = [f"{name}.{part}_proj" for part in "qkv"]
        joined = self._linear(hidden, *names, bias=config.qkv_bias)
        parts = opset13.variadic_split(joined, _int(2), _int([heads * size, kv_heads * size, kv_heads * size]))
        query = self._heads(parts.output(0), heads, f"{name}.q_norm")
        key = self._heads(parts.output(1), kv_heads, f"{name}.k_norm")
        value = self._heads(parts.output(2), kv_heads)
        keys = self._cached(self._rotate(key), layer, "key")
        values = self._cached(value, layer, "value")
        mixed = opset13.scaled_dot_product_attention(self._rotate(query), keys, values, self._mask, causal=False)
        merged = opset13.reshape(_swap_heads(mixed), _int([0, 0, heads * size]), True)
        return self._linear(merged, f"{name}.o_proj", bias=config.output_bias)

    def _mlp(self, hidden: Node, name: str) -> Node:
        # Gate and up stay apart: the plugin fuses the activation into the gate's product.
        bias = self._config.mlp_bias
        gate = opset13.swish(self._linear(hidden, f"{name}.gate_proj", bias=bias))
        up = self._linear(hidden, f"{name}.up_proj", bias=bias)
        return self._linear(opset13.multiply(gate, up), f"{name}.down_proj", bias=bias)

    def _heads(self, x: Node, count: int, norm: str | None = None) -> Node:
        """[B, T, count * head_dim] -> [B, count, T, head_dim], normed per head where the model does so."""
        x = opset13.reshape(x, _int([0, 0, count, self._config.head_dim]), True)
        if norm is not None and self._config.qk_norm:
            x = self._norm(x, norm)
        return _swap_heads(x)

    def _cached(self, new: Node, layer: int, kind: str) -> Node:
        """New keys or values [B, kv heads, T, head_dim] after those of the past, repeated for grouped heads."""
        config = self._config
        heads, kv_heads, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        info = ov.op.util.VariableInfo()
        info.data_shape = ov.PartialShape([-1, kv_heads, -1, size])
        info.data_type = ov.Type.f32
        info.variable_id = f"past_key_values.{layer}.{kind}present.{layer}.{kind}"
        variable = ov.op.util.Variable(info)
        empty = opset13.broadcast(_float(0), opset13.concat([self._batch, _int([kv_heads, 0, size])], 0))
        past = opset13.gather(opset6.read_value(empty, variable), self._beam_idx, _int(0))
        joined = opset13.concat([past, new], 2)
        self._assigns.append(opset6.assign(joined, variable))
        if heads == kv_heads:
            return joined
        repeat = _int([1, 1, heads // kv_heads, 1, 1])
        repeated = opset13.broadcast(opset13.unsqueeze(joined, _int(2)), repeat, broadcast_spec="BIDIRECTIONAL")
        return opset13.reshape(repeated, _int([0, heads, -1, size]), True)

    def _rotary(self, positions: Node) -> tuple[Node, Node]:
        """Cosine and sine [B, 1, T, head_dim]."""
        frequencies = rotary_frequencies(self._config).reshape(1, 1, -1)
        angles = opset13.convert(opset13.unsqueeze(positions, _int(2)), np.float32)
        angles = opset13.multiply(angles, opset13.constant(frequencies))
        angles = opset13.unsqueeze(opset13.concat([angles, angles], -1), _int(1))
        return opset13.cos(angles), opset13.sin(angles)

    def _rotate(self, x: Node) -> Node:
        half = self._config.head_dim // 2
        parts = opset13.variadic_split(x, _int(3), _int([half, half]))
        turned = opset13.concat([opset13.multiply(parts.output(1), _float(-1)), parts.output(0)], -1)
        return opset13.add(opset13.multiply(x, self._cos), opset13.multiply(turned, self._sin))

    def _norm(self, x: Node, name: str) -> Node:
        mean = opset13.reduce_mean(opset13.power(x, _float(2)), _int([-1]), keep_dims=True)
        root = opset13.sqrt(opset13.add(mean, _float(self._config.rms_norm_eps)))
        scaled = opset13.multiply(x, opset13.divide(_float(1), root))
        return opset13.multiply(scaled, opset13.constant(self._read(f"{name}.weight")))

    def _linear(self, x: Node, *names: str, bias: bool) -> Node:
        """Product with the matrices [out, in] one below the other, plus their biases if the model has them."""
        product = opset13.matmul(x, self._matrix(*names), False, True)
        if not bias:
            return product
        biases = [self._read(f"{name}.bias") for name in names]
        return opset13.add(product, opset13.constant(np.concatenate(biases)))

    def _matrix(self, *names: str) -> Node:
        matrix = np.concatenate([self._read(f"{name}.weight") for name in names])
        if self._weights == "int8":
            values, scales = quantize_int8(matrix)
            return opset13.multiply(opset13.convert(opset13.constant(values), np.float32), opset13.constant(scales))
        if self._weights == "f16":
            return opset13.convert(opset13.constant(matrix.astype(np.float16)), np.float32)
        return opset13.constant(matrix)

    def _read(self, name: str) -> NDArray[np.float32]:
        tensor = self._checkpoint.read(name)
        _, module, kind = f".{name}".rsplit(".", 2)
        expected = self._shapes.get(module)
        if module in _PER_TOKEN:
            self._rows[module] = tensor.shape[0] if tensor.ndim else 0
            expected = (self._rows[module], self._config.hidden_size)
        if expected and tensor.shape != (expected if kind == "weight" else expected[:1]):
            raise ConfigError(f"by config.json {name} should have the shape {expected}; it has {tensor.shape}")
        return tensor

    def _check_rows(self) -> None:
        """Every token that is scored can be looked up, and the other way round. Raises ConfigError."""
        if len(set(self._rows.values())) > 1:
            found = " and ".join(f"{rows} rows of {module}" for module, rows in self._rows.items())
            raise ConfigError(f"the checkpoint does not fit itself: it has {found}")


def _shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Of the weights, by the last part of their module's name; those with a row per token are not among them."""
    hidden, forward, size = config.hidden_size, config.intermediate_size, config.head_dim
    heads, kv_heads = config.num_attention_heads * size, config.num_key_value_heads * size
    return {
        "q_proj": (heads, hidden),
        "k_proj": (kv_heads, hidden),
        "v_proj": (kv_heads, hidden),
        "o_proj": (hidden, heads),
        "gate_proj": (forward, hidden),
        "up_proj": (forward, hidden),
        "down_proj": (hidden, forward),
        "q_norm": (size,),
        "k_norm": (size,),
        **dict.fromkeys(("input_layernorm", "post_attention_layernorm", "norm"), (hidden,)),
    }


def _swap_heads(x: Node) -> Node:
    return opset13.transpose(x, _int([0, 2, 1, 3]))


def _input(name: str, shape: list[int], dtype: Any) -> Node:
    parameter = opset13.parameter(shape, dtype, name=name)
    parameter.output(0).set_names({name})
    return parameter


def _int(value: int | list[int]) -> Node:
    return opset13.constant(np.array(value, dtype=np.int64))


def _float(value: float) -> Node:
    return opset13.constant(np.array(value, dtype=np.float32))
