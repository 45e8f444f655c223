"""Tensors of a checkpoint, by their Hugging Face names.

Reads one tensor at a time from memory-mapped files, so that the process never holds the model twice.
Formats: safetensors (https://github.com/huggingface/safetensors, "Format") in F32, F16 and BF16, and whatever the
library `gguf` can dequantise.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from muro.errors import ConfigError, InternalError, MissingExtraError
from muro.models.config import DecoderConfig, ModelDir

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Float32 = NDArray[np.float32]

_MAX_HEADER_BYTES = 100_000_000  # the format's own limit

_NOT_WEIGHTS = ("rotary_emb.inv_freq", "rope_freqs.weight")
"""Tensors that follow from the configuration; some checkpoints hold them nevertheless."""

_GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GGUF_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_FROM_GGUF_NAMES = {theirs: ours for ours, theirs in _GGUF_NAMES.items()}
_FROM_GGUF_TOP = {theirs: ours for ours, theirs in _GGUF_TOP.items()}


class Checkpoint(Protocol):
    """Weights by name, such as "model.layers.0.self_attn.q_proj.weight"."""

    def read(self, name: str) -> Float32:
        """One tensor in float32, matrices as [out, in]. Raises ConfigError if it is not there."""
        ...

    def unread(self) -> list[str]:
        """Names, as they are stored, of the tensors that nobody has read."""
        ...


def open_checkpoint(model: ModelDir) -> Checkpoint:
    """The weights of a model directory.

    Raises:
        ConfigError: a file is damaged.
        MissingExtraError: `gguf` is not installed.
    """
    if model.weights[0].suffix == ".gguf":
        if len(model.weights) > 1:
            raise ConfigError(f"{model.path} holds several GGUF files; leave one of them")
        if model.config.decoder is None:
            raise InternalError(f"{model.path}: no decoder is known for the weights")
        return GgufCheckpoint(model.weights[0], model.config.decoder)
    return SafetensorsCheckpoint(model.weights)


class SafetensorsCheckpoint:
    """One or more `*.safetensors` files."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._tensors: dict[str, tuple[Path, int, _Entry]] = {}
        for file in files:
            start, entries = _read_header(file)
            for name, entry in entries.items():
                self._tensors[name] = (file, start, entry)
        # Models that were made for embeddings are stored without the class that adds the head, and so the prefix.
        self._prefix = "" if "model.embed_tokens.weight" in self._tensors else "model."
        self._unread = set(self._tensors)

    def unread(self) -> list[str]:
        return _weights(self._unread)

    def read(self, name: str) -> Float32:
        """See `Checkpoint.read`."""
        import numpy as np

        stored_name = name.removeprefix(self._prefix)
        if stored_name not in self._tensors:
            raise ConfigError(f"the checkpoint has no tensor {name}")
        self._unread.discard(stored_name)
        file, start, entry = self._tensors[stored_name]
        stored = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}.get(entry.dtype)
        if stored is None:
            raise ConfigError(f"{file}: {name} is stored as {entry.dtype}; supported are F32, F16 and BF16")
        begin, end = entry.data_offsets
        shape = entry.shape
        size = _count(shape) * np.dtype(stored).itemsize
        if begin < 0 or start + end > file.stat().st_size or end - begin != size or min(shape, default=0) < 0:
            raise ConfigError(f"{file} is damaged: {name} does not lie where its header says")
        raw = np.memmap(file, dtype=stored, mode="r", offset=start + begin, shape=shape)
        if entry.dtype == "BF16":  # the upper half of a float32
            return (raw.astype(np.uint32) << 16).view(np.float32)
        return np.array(raw, dtype=np.float32)


class GgufCheckpoint:
    """A GGUF file."""

    def __init__(self, file: Path, config: DecoderConfig) -> None:
        try:
            import gguf
        except ImportError:
            raise MissingExtraError("reading a GGUF file", "openvino") from None
        self._dequantize = gguf.dequantize
        self._file = file
        try:
            reader = gguf.GGUFReader(file)
            self._tensors = {tensor.name: tensor for tensor in reader.tensors}
            field = reader.get_field("general.architecture")
            architecture = None if field is None else field.contents()
        except (OSError, ValueError, IndexError, KeyError) as error:  # what the reader raises on damaged files
            raise ConfigError(f"{file} is no GGUF file that can be read: {error}") from error
        self._unread = set(self._tensors)
        # Files of this architecture alone have the rows of queries and keys in an order of their own.
        self._permuted = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
        if architecture != "llama":
            self._permuted = {}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor's shape, matrices as [out, in], by the names that `read` takes."""
        names = _weights(self._tensors)
        return {_hugging_face_name(name): tuple(map(int, self._tensors[name].shape[::-1])) for name in names}

    def unread(self) -> list[str]:
        return _weights(self._unread)

    def read(self, name: str) -> Float32:
        """See `Checkpoint.read`."""
        import numpy as np

        stored = gguf_name(name)
        tensor = self._tensors.get(stored)
        if tensor is None:
            raise ConfigError(f"{self._file} has no tensor {stored} (for {name})")
        self._unread.discard(stored)
        try:
            weight = self._dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError:
            raise ConfigError(
                f"{self._file}: {stored} is quantised as {tensor.tensor_type.name}, which is not supported"
            ) from None
        weight = np.ascontiguousarray(weight, dtype=np.float32)
        heads = self._permuted.get(stored.split(".")[-2])
        if heads is None:
            return weight
        if weight.shape[0] % (2 * heads):
            raise ConfigError(
                f"{self._file}: {stored} has {weight.shape[0]} rows, which are no pairs for {heads} heads"
            )
        return _unpermute(weight, heads)


def _weights(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if not name.endswith(_NOT_WEIGHTS))


def gguf_name(name: str) -> str:
    """The GGUF name of a tensor, from its Hugging Face name."""
    module, _, kind = name.rpartition(".")
    if module in _GGUF_TOP:
        return f"{_GGUF_TOP[module]}.{kind}"
    layer, _, rest = module.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{_GGUF_NAMES.get(rest, rest)}.{kind}"


def _hugging_face_name(stored: str) -> str:
    """The inverse of `gguf_name`."""
    module, _, kind = stored.rpartition(".")
    if module in _FROM_GGUF_TOP:
        return f"{_FROM_GGUF_TOP[module]}.{kind}"
    layer, _, rest = module.removeprefix("blk.").partition(".")
    return f"model.layers.{layer}.{_FROM_GGUF_NAMES.get(rest, rest)}.{kind}"


def _unpermute(weight: Float32, heads: int) -> Float32:
    """Undo the order that GGUF gives the rows of q and k in Llama models.

    There, rotary pairs are neighbours (row 2i with 2i + 1); here and in Hugging Face checkpoints row i of a head goes
    with row i + head_dim / 2.
    """
    import numpy as np

    rows = weight.shape[0]
    pairs = weight.reshape(heads, rows // heads // 2, 2, *weight.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(weight.shape)


class _Entry(msgspec.Struct):
    """One tensor in the header of a safetensors file; offsets in bytes from the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def _read_header(file: Path) -> tuple[int, dict[str, _Entry]]:
    """Where the data begins, and what there is. Raises ConfigError."""
    try:
        with file.open("rb") as source:
            size = int.from_bytes(source.read(8), "little")
            if size > min(_MAX_HEADER_BYTES, file.stat().st_size):
                raise ValueError(f"a header of {size} bytes")
            header = msgspec.json.decode(source.read(size), type=dict[str, msgspec.Raw])
        header.pop("__metadata__", None)
        entries = {name: msgspec.json.decode(raw, type=_Entry) for name, raw in header.items()}
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise ConfigError(f"{file} is no safetensors file that can be read: {error}") from error
    return 8 + size, entries


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
