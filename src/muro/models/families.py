"""The families of decoders that we can run, as a table: what tells them apart besides the numbers in `config.json`.

All are decoders of the Llama kind: rotary positions, RMS norms before attention and MLP, gated SiLU MLP, grouped heads.
One graph (`engines/openvino/graph.py`) serves them all; a new family of this kind is a new row.
Facts: the model classes of Hugging Face's `transformers`, and llama.cpp's converters for GGUF.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """One family."""

    name: str
    """The `model_type` of `config.json`."""
    architecture: str
    """How `config.json` names the class that computes logits."""
    gguf: str
    """`general.architecture` of GGUF files, and the prefix of their keys."""
    qkv_bias: Literal["never", "always", "attention_bias"] = "never"
    """Whether the products that make queries, keys and values have a bias; "attention_bias": as that key says."""
    output_bias: Literal["never", "attention_bias"] = "never"
    """Whether the product behind the attention has one."""
    mlp_bias: Literal["never", "mlp_bias"] = "never"
    """Whether the products of the MLP have one; "mlp_bias": as that key says."""
    qk_norm: bool = False
    """Whether queries and keys go through an RMS norm per head before they are turned."""
    window: Literal["never", "sliding_window", "use_sliding_window"] = "never"
    """Where positions see only the last ones: in all layers if `sliding_window` is a number, or, if
    `use_sliding_window` is true too, in layers from `max_window_layers` on."""
    defaults: Mapping[str, Any] = {}
    """What a key means that `config.json` leaves out, where families differ."""


FAMILIES = (
    Family(
        name="llama",
        architecture="LlamaForCausalLM",
        gguf="llama",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        mlp_bias="mlp_bias",
    ),
    Family(
        name="mistral",
        architecture="MistralForCausalLM",
        gguf="llama",
        window="sliding_window",
        defaults={"sliding_window": 4096},
    ),
    Family(
        name="qwen2",
        architecture="Qwen2ForCausalLM",
        gguf="qwen2",
        qkv_bias="always",
        window="use_sliding_window",
        defaults={"sliding_window": 4096, "max_window_layers": 28},
    ),
    Family(
        name="qwen3",
        architecture="Qwen3ForCausalLM",
        gguf="qwen3",
        qkv_bias="attention_bias",
        output_bias="attention_bias",
        qk_norm=True,
        window="use_sliding_window",
        defaults={"sliding_window": 4096, "max_window_layers": 28, "head_dim": 128},
    ),
)


def by_architecture(names: list[str]) -> Family | None:
    """The family of the first of these architectures that we know."""
    known = {family.architecture: family for family in FAMILIES}
    return next((known[name] for name in names if name in known), None)


def by_gguf(name: str | None) -> Family | None:
    """The family that GGUF files call so; "llama" stands for Mistral as well, which differs by its window alone."""
    return next((family for family in FAMILIES if family.gguf == name), None)
