"""What a model directory says about its model: `config.json` and `generation_config.json` as a `ModelConfig`.

Decides here, by name, which models are refused, so that nothing later has to guess. Reads no weights.
Format: Hugging Face's `config.json`, both the older spelling (`rope_theta`, `rope_scaling`) and the newer one
(`rope_parameters`).
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from muro.errors import ConfigError

T = TypeVar("T")

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
"""Architectures of the Llama family that we can run: rotary positions, RMS norms, gated SiLU MLP."""

_WEIGHTS = ("*.safetensors", "*.gguf", "openvino_model.xml", "openvino_model.bin")


class RopeScaling(msgspec.Struct, frozen=True, kw_only=True):
    """Stretching of rotary positions: "linear" (positions / factor) or "llama3" (low frequencies only)."""

    rope_type: str
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder of the Llama family. Sizes in elements, lengths in tokens."""

    architecture: str
    """"llama", "mistral", "qwen2" or "qwen3"."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    max_position_embeddings: int
    sliding_window: int | None
    """Tokens that each position sees, itself included; None: all before it."""
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    """All ids that end a generation, those of `generation_config.json` first."""


class ModelDir(msgspec.Struct, frozen=True):
    """A directory with a model that is complete: configuration and weights."""

    path: Path
    config: ModelConfig
    weights: tuple[Path, ...]
    """Files of weights: `*.safetensors`, one `*.gguf`, or a ready-made `openvino_model.xml` with its `.bin`."""

    def fingerprint(self) -> str:
        """Changes when a file of the model does (name, size, time of change), so that caches made from it expire."""
        digest = hashlib.sha256((self.path / "config.json").read_bytes())
        for file in self.weights:
            stat = file.stat()
            digest.update(f"{file.name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
        return digest.hexdigest()


def open_model(path: str | Path) -> ModelDir:
    """Describe the model in a directory.

    Raises:
        ConfigError: no such directory, no `config.json`, no weights, or a model that we cannot run.
    """
    path = Path(path).resolve()
    if not path.is_dir():
        raise ConfigError(f"{path} is no directory; give a model directory, or fetch the demo model: muro pull demo")
    config = read_config(path)
    for pattern in _WEIGHTS:
        if files := tuple(sorted(path.glob(pattern))):
            break
    else:
        raise ConfigError(f"{path} has no weights: there is no *.safetensors, *.gguf or openvino_model.xml in it")
    return ModelDir(path, config, files)


def read_config(path: Path) -> ModelConfig:
    """Read `config.json` of a model directory, and the end tokens of its `generation_config.json`.

    Raises:
        ConfigError: a file is missing or wrong, or the model is one that we cannot run.
    """
    raw = _read(path / "config.json", _HfConfig)
    if raw is None:
        raise ConfigError(f"{path} has no config.json; it is needed to know the model's shape")
    where = path / "config.json"
    architecture = next((ARCHITECTURES[name] for name in raw.architectures if name in ARCHITECTURES), None)
    if architecture is None:
        found = ", ".join(raw.architectures) or "none named"
        raise ConfigError(f"{where}: architecture {found} is not supported; supported: {', '.join(ARCHITECTURES)}")
    _refuse(raw, where)
    heads = raw.num_attention_heads
    theta, scaling = _rope(raw, where)
    generation = _read(path / "generation_config.json", _HfGenerationConfig) or _HfGenerationConfig()
    eos = dict.fromkeys([*_ids(generation.eos_token_id), *_ids(raw.eos_token_id)])
    return ModelConfig(
        architecture=architecture,
        vocab_size=raw.vocab_size,
        hidden_size=raw.hidden_size,
        intermediate_size=raw.intermediate_size,
        num_hidden_layers=raw.num_hidden_layers,
        num_attention_heads=heads,
        num_key_value_heads=raw.num_key_value_heads or heads,
        head_dim=raw.head_dim or raw.hidden_size // heads,
        rms_norm_eps=raw.rms_norm_eps,
        rope_theta=theta,
        rope_scaling=scaling,
        max_position_embeddings=raw.max_position_embeddings,
        sliding_window=_window(raw, where),
        tie_word_embeddings=raw.tie_word_embeddings,
        bos_token_id=generation.bos_token_id if generation.bos_token_id is not None else raw.bos_token_id,
        eos_token_ids=tuple(eos),
    )


class _HfConfig(msgspec.Struct):
    """The fields of `config.json` that are read, with the defaults of `transformers`."""

    architectures: list[str]
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6
    rope_theta: float | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    sliding_window: int | None = None
    use_sliding_window: bool = True
    layer_types: list[str] | None = None
    tie_word_embeddings: bool = False
    quantization_config: dict[str, Any] | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None


class _HfGenerationConfig(msgspec.Struct):
    """The fields of `generation_config.json` that are read."""

    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None


def _refuse(raw: _HfConfig, where: Path) -> None:
    if raw.hidden_act not in ("silu", "swish"):
        raise ConfigError(f"{where}: hidden_act {raw.hidden_act!r} is not supported; only silu is")
    if raw.quantization_config is not None:
        method = raw.quantization_config.get("quant_method", "unknown")
        raise ConfigError(f"{where}: weights quantised by {method!r} are not supported; take the original checkpoint")
    sizes = (
        raw.vocab_size,
        raw.hidden_size,
        raw.intermediate_size,
        raw.num_hidden_layers,
        raw.num_attention_heads,
        raw.max_position_embeddings,
    )
    if min(sizes) < 1:
        raise ConfigError(f"{where}: sizes must be positive")
    if raw.num_attention_heads % (raw.num_key_value_heads or raw.num_attention_heads):
        raise ConfigError(f"{where}: num_attention_heads is no multiple of num_key_value_heads")


def _rope(raw: _HfConfig, where: Path) -> tuple[float, RopeScaling | None]:
    rope = {"rope_theta": raw.rope_theta, **(raw.rope_scaling or {}), **(raw.rope_parameters or {})}
    theta = rope.pop("rope_theta", None)
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return float(theta or 10000.0), None
    if kind not in ("linear", "llama3"):
        raise ConfigError(f"{where}: rope scaling {kind!r} is not supported; supported: default, linear, llama3")
    try:
        scaling = msgspec.convert({**rope, "rope_type": kind}, RopeScaling)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: rope scaling: {error}") from None
    return float(theta or 10000.0), scaling


def _window(raw: _HfConfig, where: Path) -> int | None:
    if raw.sliding_window is None or not raw.use_sliding_window:
        return None
    kinds = set(raw.layer_types or ["sliding_attention"])
    if kinds == {"full_attention"}:
        return None
    if kinds != {"sliding_attention"}:
        raise ConfigError(f"{where}: layers of several kinds ({', '.join(sorted(kinds))}) are not supported")
    return raw.sliding_window


def _ids(value: int | list[int] | None) -> list[int]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
