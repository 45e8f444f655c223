"""What a model directory says about its model: `config.json` and `generation_config.json` as a `ModelConfig`.

Decides here, by name, which models are refused, so that nothing later has to guess. Reads no weights.
Format: Hugging Face's `config.json`, both the older spelling (`rope_theta`, `rope_scaling`) and the newer one
(`rope_parameters`).
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from muro.errors import ConfigError
from muro.models.families import FAMILIES, Family, by_architecture

T = TypeVar("T")
Raw = TypeVar("Raw", bound=msgspec.Struct)

READY_GRAPH = "openvino_model.xml"
"""A decoder as OpenVINO stores it; its weights lie beside it."""

_WEIGHTS = ("*.gguf", "*.safetensors", READY_GRAPH)
"""Where there is a GGUF file, safetensors beside it were made from it, for engines that read nothing else."""

# What is laid out by these numbers before any weight is compared with them must not take all of the memory.
_Layers = Annotated[int, msgspec.Meta(le=10_000)]
_HeadDim = Annotated[int, msgspec.Meta(ge=0, le=65_536)]


class RopeScaling(msgspec.Struct, frozen=True, kw_only=True):
    """Stretching of rotary positions: "linear" (positions / factor), "llama3" (low frequencies only), or "factors"."""

    rope_type: str
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    factors: tuple[float, ...] = ()
    """For "factors", what GGUF files hold: by how much each rotary pair is slowed down, [head_dim / 2]."""


class DecoderConfig(msgspec.Struct, frozen=True, kw_only=True):
    """All that a decoder of `families.FAMILIES` is built from, beside its weights. Sizes in elements."""

    family: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tie_word_embeddings: bool


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A model as those who run it or ask it see it."""

    vocab_size: int
    max_position_embeddings: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    """All ids that end a generation, those of `generation_config.json` first."""
    windows: tuple[int | None, ...] | None
    """Tokens that each position sees, itself included, per layer; None for a layer: all before it. None at all: there
    are windows, but in an architecture of which we do not know where."""
    decoder: DecoderConfig | None
    """What to build; None where a graph lies ready."""


class ModelDir(msgspec.Struct, frozen=True):
    """A directory with a model that is complete: configuration and weights."""

    path: Path
    config: ModelConfig
    weights: tuple[Path, ...]
    """Files of weights: one `*.gguf`, `*.safetensors`, or a ready-made `openvino_model.xml` with its `.bin`."""

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
    if not (path / "config.json").is_file():
        raise ConfigError(f"{path} has no config.json; it is needed to know the model's shape")
    for pattern in _WEIGHTS:
        if files := tuple(sorted(path.glob(pattern))):
            break
    else:
        raise ConfigError(f"{path} has no weights: there is no *.safetensors, *.gguf or openvino_model.xml in it")
    if missing := [file for file in files if not file.is_file()]:
        # Reading from what is no file (a link to nowhere, a pipe) might fail later, or never end.
        raise ConfigError(f"{missing[0]} is no file, or a link to none")
    return ModelDir(path, read_config(path, ready=files[0].name == READY_GRAPH), files)


def read_config(path: Path, *, ready: bool = False) -> ModelConfig:
    """Read `config.json` of a model directory, and the end tokens of its `generation_config.json`.

    Args:
        path: the directory.
        ready: the graph lies ready, so that any architecture will do.

    Raises:
        ConfigError: a file is missing or wrong, or the model is one that we cannot run.
    """
    where = path / "config.json"
    raw = _read(where, _HfModel)
    if raw is None:
        raise ConfigError(f"{path} has no config.json; it is needed to know the model's shape")
    if min(raw.vocab_size, raw.max_position_embeddings) < 1:
        raise ConfigError(f"{where}: sizes must be positive")
    family = by_architecture(raw.architectures)
    if family is None and not ready:
        found = ", ".join(raw.architectures) or "none named"
        supported = ", ".join(family.architecture for family in FAMILIES)
        raise ConfigError(f"{where}: architecture {found} is not supported; supported: {supported}")
    generation = _read(path / "generation_config.json", _HfGenerationConfig) or _HfGenerationConfig()
    eos = dict.fromkeys([*_ids(generation.eos_token_id), *_ids(raw.eos_token_id)])
    return ModelConfig(
        vocab_size=raw.vocab_size,
        max_position_embeddings=raw.max_position_embeddings,
        bos_token_id=generation.bos_token_id if generation.bos_token_id is not None else raw.bos_token_id,
        eos_token_ids=tuple(eos),
        windows=_windows(raw, family, where),
        decoder=None if ready or family is None else _decoder(path, family),
    )


def _decoder(path: Path, family: Family) -> DecoderConfig:
    where = path / "config.json"
    raw = _read(where, _HfDecoder)
    if raw is None:
        raise ConfigError(f"{where} has gone")
    raw = _filled(raw, family)
    _refuse(raw, where)
    head_dim = raw.head_dim or raw.hidden_size // raw.num_attention_heads
    if head_dim < 2 or head_dim % 2:
        raise ConfigError(f"{where}: heads have {head_dim} elements; rotary positions need pairs")
    theta, scaling = _rope(raw, head_dim, where)
    return DecoderConfig(
        family=family.name,
        hidden_size=raw.hidden_size,
        intermediate_size=raw.intermediate_size,
        num_hidden_layers=raw.num_hidden_layers,
        num_attention_heads=raw.num_attention_heads,
        num_key_value_heads=raw.num_key_value_heads or raw.num_attention_heads,
        head_dim=head_dim,
        rms_norm_eps=raw.rms_norm_eps,
        rope_theta=theta,
        rope_scaling=scaling,
        qkv_bias=family.qkv_bias == "always" or (family.qkv_bias == "attention_bias" and raw.attention_bias),
        output_bias=family.output_bias == "attention_bias" and raw.attention_bias,
        mlp_bias=family.mlp_bias == "mlp_bias" and raw.mlp_bias,
        qk_norm=family.qk_norm,
        tie_word_embeddings=raw.tie_word_embeddings,
    )


class _HfModel(msgspec.Struct):
    """The fields of `config.json` that are read of any model."""

    vocab_size: int
    max_position_embeddings: int
    architectures: list[str] = []
    num_hidden_layers: _Layers = 0
    sliding_window: int | msgspec.UnsetType | None = msgspec.UNSET
    use_sliding_window: bool | None = None
    max_window_layers: int | msgspec.UnsetType = msgspec.UNSET
    layer_types: list[str] | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None


class _HfDecoder(msgspec.Struct):
    """What else is read of a decoder that we build, with the defaults of `transformers`; see `Family.defaults`, too."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: _Layers
    num_attention_heads: int
    num_key_value_heads: int | msgspec.UnsetType | None = msgspec.UNSET
    head_dim: _HeadDim | msgspec.UnsetType | None = msgspec.UNSET
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6
    rope_theta: float | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    partial_rotary_factor: float | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    quantization_config: dict[str, Any] | None = None


class _HfGenerationConfig(msgspec.Struct):
    """The fields of `generation_config.json` that are read."""

    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None


def _filled(raw: Raw, family: Family) -> Raw:
    """With what the family means by a key that is left out; None where no family says anything else."""
    unset = [name for name in raw.__struct_fields__ if getattr(raw, name) is msgspec.UNSET]
    return msgspec.structs.replace(raw, **{name: family.defaults.get(name) for name in unset})


def _refuse(raw: _HfDecoder, where: Path) -> None:
    if raw.hidden_act not in ("silu", "swish"):
        raise ConfigError(f"{where}: hidden_act {raw.hidden_act!r} is not supported; only silu is")
    if raw.quantization_config is not None:
        method = raw.quantization_config.get("quant_method", "unknown")
        raise ConfigError(f"{where}: weights quantised by {method!r} are not supported; take the original checkpoint")
    groups = raw.num_key_value_heads or raw.num_attention_heads
    sizes = (raw.hidden_size, raw.intermediate_size, raw.num_hidden_layers, raw.num_attention_heads, groups)
    if min(sizes) < 1:
        raise ConfigError(f"{where}: sizes must be positive")
    if raw.num_attention_heads % groups:
        raise ConfigError(f"{where}: num_attention_heads is no multiple of num_key_value_heads")


def _rope(raw: _HfDecoder, head_dim: int, where: Path) -> tuple[float, RopeScaling | None]:
    rope = {"rope_theta": raw.rope_theta, **(raw.rope_scaling or {}), **(raw.rope_parameters or {})}
    if nested := sorted(name for name, value in rope.items() if isinstance(value, dict)):
        raise ConfigError(f"{where}: rotary positions for each kind of layer ({', '.join(nested)}) are not supported")
    if rope.get("partial_rotary_factor", raw.partial_rotary_factor) not in (None, 1.0):
        raise ConfigError(f"{where}: a partial_rotary_factor other than 1 is not supported")
    theta = rope.pop("rope_theta", None) or 10000.0
    if isinstance(theta, bool) or not isinstance(theta, int | float) or not 0 < theta < math.inf:
        raise ConfigError(f"{where}: rope_theta is {str(theta)[:100]}; it must be a positive number")
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return float(theta), None
    if kind not in ("linear", "llama3", "factors"):
        raise ConfigError(f"{where}: rope scaling {kind!r} is not supported; supported: default, linear, llama3")
    try:
        scaling = msgspec.convert({**rope, "rope_type": kind}, RopeScaling)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: rope scaling: {error}") from None
    if kind == "factors" and len(scaling.factors) != head_dim // 2:
        raise ConfigError(f"{where}: rope scaling: {len(scaling.factors)} factors for {head_dim // 2} rotary pairs")
    if not all(0 < factor < math.inf for factor in (scaling.factor, *scaling.factors)):
        raise ConfigError(f"{where}: rope scaling: factors must be positive")
    return float(theta), scaling


def _windows(raw: _HfModel, family: Family | None, where: Path) -> tuple[int | None, ...] | None:
    if family is None:
        says = raw.sliding_window or set(raw.layer_types or ()) - {"full_attention"}
        return None if says and raw.use_sliding_window is not False else ()
    raw = _filled(raw, family)
    layers = raw.num_hidden_layers
    window = raw.sliding_window or None
    by_switch = family.window == "use_sliding_window"
    if family.window == "never" or (by_switch and not raw.use_sliding_window):
        window = None
    kinds = raw.layer_types
    if kinds is None:
        first = (raw.max_window_layers or 0) if by_switch else 0
        kinds = ["full_attention" if layer < first else "sliding_attention" for layer in range(layers)]
    if len(kinds) != layers or not set(kinds) <= {"full_attention", "sliding_attention"}:
        raise ConfigError(
            f"{where}: layer_types must name {layers} layers of full_attention and sliding_attention; "
            f"found {len(kinds)} of {', '.join(sorted(set(kinds)))}"
        )
    if window is not None and window < 1:
        raise ConfigError(f"{where}: sliding_window is {window}; it must be positive")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _ids(value: int | list[int] | None) -> list[int]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
