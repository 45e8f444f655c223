"""Write the weights of a GGUF file as safetensors beside it, for engines that read nothing else.

One tensor after another, so that the process never holds the model: at most the largest tensor, in float32 and float16.
Format: https://github.com/huggingface/safetensors, "Format".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from muro.errors import ConfigError
from muro.models.atomic import add_file
from muro.models.checkpoint import GgufCheckpoint
from muro.models.config import open_model

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FILE = "model.safetensors"

_ITEM_BYTES = 2
_ALIGNMENT = 8


def write_safetensors_beside(directory: Path, on_bytes: Callable[[int, int], None]) -> None:
    """Make sure that the model directory has weights in safetensors; those of a GGUF file are dequantised to float16.

    Args:
        directory: a model directory; one that has safetensors stays as it is.
        on_bytes: told how many bytes are written, and of how many.

    Raises:
        ConfigError: the model is none that we know, the file is damaged, or a weight is no finite number in float16.
        MissingExtraError: `gguf` is not installed.
    """
    if any(directory.glob("*.safetensors")):
        return
    model = open_model(directory)
    source, decoder = model.weights[0], model.config.decoder
    if source.suffix != ".gguf" or decoder is None:
        raise ConfigError(f"{directory} holds {source.name}; only the weights of a GGUF file can be written once more")
    if decoder.rope_scaling is not None and decoder.rope_scaling.rope_type == "factors":
        raise ConfigError(
            f"{source.name} holds rotary factors for which other engines have no name; take the original checkpoint"
        )
    checkpoint = GgufCheckpoint(source, decoder)
    shapes = checkpoint.shapes()

    def build(path: Path) -> None:
        _write(path, shapes, checkpoint.read, {"format": "pt", "made_from": source.name}, on_bytes)

    add_file(directory / FILE, build)


def _write(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    read: Callable[[str], NDArray[np.float32]],
    about: dict[str, str],
    on_bytes: Callable[[int, int], None],
) -> None:
    header: dict[str, Any] = {"__metadata__": about}
    total = 0
    for name, shape in shapes.items():
        end = total + math.prod(shape) * _ITEM_BYTES
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": (total, end)}
        total = end
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % _ALIGNMENT)
    done = 0
    on_bytes(done, total)
    with path.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for name, shape in shapes.items():
            data = _half(name, read(name), shape)
            out.write(data)
            done += len(data)
            on_bytes(done, total)


def _half(name: str, weight: NDArray[np.float32], shape: tuple[int, ...]) -> bytes:
    """The tensor in float16. Raises ConfigError if that loses it."""
    import numpy as np

    if weight.shape != shape:
        raise ConfigError(f"{name} has the shape {weight.shape}, but the file says {shape}")
    with np.errstate(over="ignore"):
        half = weight.astype("<f2")
    if not np.isfinite(half).all():
        raise ConfigError(f"{name} holds a number that float16 cannot express: {np.abs(weight).max():g}")
    return half.tobytes()
