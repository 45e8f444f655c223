"""The decoder of the Llama family as an OpenVINO model, and its turn to paged attention.

`build_decoder` writes the model with opset operations as a *stateful* decoder, the form in which decoders are
exported for OpenVINO. `to_paged` lets OpenVINO's own transformation replace state and attention by block tables. The
transformation recognises patterns, so the shape of the key/value part, the mask input and `causal=False` are as it
wants them; mask and `beam_idx` vanish in it. Rotary embedding, RMS norm and compressed weights are written such that
the CPU plugin fuses them.

Inputs after `to_paged`, T tokens of S sequences: `input_ids` [T], `position_ids` [T] (int64); `past_lens` [S],
`subsequence_begins` [S + 1], `block_indices` [B], `block_indices_begins` [S + 1], `max_context_len` [] and
`sampled` [R] (int32); `key_cache.N`, `value_cache.N` per layer. Output: float32 logits of the R tokens at the
positions `sampled` of the T.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import openvino as ov
from openvino import opset6, opset13

from muro.engines.openvino.weights import Checkpoint, quantize_int8
from muro.errors import InternalError
from muro.models.config import ModelConfig

if TYPE_CHECKING:
    from numpy.typing import NDArray

# OpenVINO ships no types; nodes and outputs are both accepted as inputs.
Node = Any

VERSION = 1
"""Counted up when the built graph changes, so that stored ones are made anew."""

_SLIDING_WINDOW_INPUT = 10  # of the PagedAttentionExtension node


def build_decoder(
    config: ModelConfig,
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
        ConfigError: the checkpoint lacks a tensor.
    """
    return _Decoder(config, checkpoint, weights).build(on_layer)


def to_paged(model: ov.Model, sliding_window: int | None = None) -> None:
    """Turn a stateful decoder, ours or an exported one, to paged attention; see above.

    Raises:
        InternalError: the transformation does not know the decoder.
    """
    # A private module; a test watches that it does what is said here.
    from openvino._offline_transformations import paged_attention_transformation

    try:
        paged_attention_transformation(model)
    except RuntimeError as error:
        raise InternalError(f"OpenVINO {ov.__version__} cannot turn this model to paged attention: {error}") from error
    head = model.outputs[0].get_node().input_value(0).get_node()
    while head.get_type_name() in ("Convert", "Reshape", "Squeeze", "Unsqueeze"):
        head = head.input_value(0).get_node()
    if head.get_type_name() != "MatMul":
        raise InternalError(f"the model's output comes from a {head.get_type_name()}, not from a MatMul")
    # The head is the largest matrix: run it only for the tokens whose logits are wanted.
    sampled = opset13.parameter([-1], np.int32, name="sampled")
    sampled.output(0).set_names({"sampled"})
    head.input(0).replace_source_output(opset13.gather(head.input_value(0), sampled, _int(0)).output(0))
    model.add_parameters([sampled])
    if sliding_window is not None:
        _set_sliding_window(model, sliding_window)
    model.validate_nodes_and_infer_types()


def rotary_frequencies(config: ModelConfig) -> NDArray[np.float32]:
    """Radians per position of each rotary pair, shape [head_dim / 2].

    "llama3": wavelengths longer than `original_max_position_embeddings / low_freq_factor` are stretched by `factor`,
    those shorter than `.../ high_freq_factor` stay, in between it is interpolated (as published with Llama 3.1).
    """
    pairs = np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim
    frequencies = config.rope_theta**-pairs
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies.astype(np.float32)
    if scaling.rope_type == "linear":
        return (frequencies / scaling.factor).astype(np.float32)
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = np.clip(kept, 0, 1)
    return (kept * frequencies + (1 - kept) * frequencies / scaling.factor).astype(np.float32)


class _Decoder:
    """Writes one decoder. [B, T, ...] below: batch, tokens; after `to_paged` B counts tokens and T is 1."""

    def __init__(self, config: ModelConfig, checkpoint: Checkpoint, weights: str) -> None:
        self._config = config
        self._checkpoint = checkpoint
        self._weights = weights
        self._assigns: list[Node] = []

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
        logits = opset13.matmul(hidden, head, False, True)
        logits.output(0).set_names({"logits"})
        inputs = [ids, mask, positions, self._beam_idx]
        return ov.Model([opset13.result(logits)], self._assigns, inputs, "decoder")

    def _attention(self, hidden: Node, layer: int, name: str) -> Node:
        """[B, T, hidden] -> [B, T, hidden]."""
        config = self._config
        heads, kv_heads, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        # One product instead of three: fewer, larger matrices are quicker for few tokens.
        joined = self._linear(hidden, f"{name}.q_proj", f"{name}.k_proj", f"{name}.v_proj")
        parts = opset13.variadic_split(joined, _int(2), _int([heads * size, kv_heads * size, kv_heads * size]))
        query = self._heads(parts.output(0), heads, f"{name}.q_norm")
        key = self._heads(parts.output(1), kv_heads, f"{name}.k_norm")
        value = self._heads(parts.output(2), kv_heads)
        keys = self._cached(self._rotate(key), layer, "key")
        values = self._cached(value, layer, "value")
        mixed = opset13.scaled_dot_product_attention(self._rotate(query), keys, values, self._mask, causal=False)
        merged = opset13.reshape(_swap_heads(mixed), _int([0, 0, heads * size]), True)
        return self._linear(merged, f"{name}.o_proj")

    def _mlp(self, hidden: Node, name: str) -> Node:
        # Gate and up stay apart: the plugin fuses the activation into the gate's product.
        gate = opset13.swish(self._linear(hidden, f"{name}.gate_proj"))
        up = self._linear(hidden, f"{name}.up_proj")
        return self._linear(opset13.multiply(gate, up), f"{name}.down_proj")

    def _heads(self, x: Node, count: int, norm: str | None = None) -> Node:
        """[B, T, count * head_dim] -> [B, count, T, head_dim], normed per head where the model does so."""
        x = opset13.reshape(x, _int([0, 0, count, self._config.head_dim]), True)
        if norm is not None and f"{norm}.weight" in self._checkpoint:
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
        return opset13.multiply(scaled, opset13.constant(self._checkpoint.read(f"{name}.weight")))

    def _linear(self, x: Node, *names: str) -> Node:
        """Product with the matrices [out, in] one below the other, plus their biases where there are some."""
        product = opset13.matmul(x, self._matrix(*names), False, True)
        if f"{names[0]}.bias" not in self._checkpoint:
            return product
        biases = [self._checkpoint.read(f"{name}.bias") for name in names]
        return opset13.add(product, opset13.constant(np.concatenate(biases)))

    def _matrix(self, *names: str) -> Node:
        matrix = np.concatenate([self._checkpoint.read(f"{name}.weight") for name in names])
        if self._weights == "int8":
            values, scales = quantize_int8(matrix)
            return opset13.multiply(opset13.convert(opset13.constant(values), np.float32), opset13.constant(scales))
        if self._weights == "f16":
            return opset13.convert(opset13.constant(matrix.astype(np.float16)), np.float32)
        return opset13.constant(matrix)


def _set_sliding_window(model: ov.Model, window: int) -> None:
    for node in model.get_ops():
        if node.get_type_name() == "PagedAttentionExtension":
            node.input(_SLIDING_WINDOW_INPUT).replace_source_output(opset13.constant(np.int32(window)).output(0))


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
