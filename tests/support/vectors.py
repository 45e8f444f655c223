"""Recorded frames of vLLM's own encoders and of live peers, and comparisons with what we decode from them.

Each vector has `frames` (hex), `decoded.frame_N` (the plain msgpack tree of a frame) and, for many, `decoded.fields`
(the reading of vLLM's own decoder, defaults filled in).
"""

import json
from pathlib import Path
from typing import Any

import msgspec

from muro.wire.arrays import Tensor
from muro.wire.output import EngineCoreOutput
from muro.wire.releases import LAYOUTS
from muro.wire.request import LoRARequest

DIRECTORY = Path(__file__).parent.parent / "data" / "vectors"


class Vector(msgspec.Struct, frozen=True):
    name: str
    description: str
    release: str
    direction: str
    frames: list[str]
    decoded: dict[str, Any]
    file: str = ""

    @property
    def bytes(self) -> list[bytes]:
        return [bytes.fromhex(frame) for frame in self.frames]

    @property
    def message(self) -> str:
        return str(self.decoded["message"])

    @property
    def minor(self) -> int:
        """The x of release 0.x; SMG speaks as 0.28 does."""
        return 28 if self.release.startswith("SMG") else int(self.release.split(".")[1])

    @property
    def tree(self) -> Any:
        """The tree of the payload."""
        return next(value for key, value in self.decoded.items() if key.startswith("frame_"))


def vectors() -> list[Vector]:
    return [
        msgspec.structs.replace(msgspec.convert(row, Vector), file=path.stem)
        for path in sorted(DIRECTORY.glob("*.json"))
        for row in json.loads(path.read_bytes())
    ]


def differences(recorded: Any, ours: Any, path: str = "") -> list[str]:
    """Where a decoded value differs from the recorded fields; empty if nowhere."""
    if isinstance(recorded, dict) and len(marks := set(recorded) & _MARKS) == 1:
        return _marked(marks.pop(), recorded, ours, path)
    if isinstance(recorded, dict) and path.endswith(".field"):
        ours = ours[1]  # a multimodal field: [name, kwargs]
    if isinstance(recorded, dict) and isinstance(ours, list):
        recorded = list(recorded.values())  # a struct that we leave as its positions
    if isinstance(recorded, dict) and isinstance(ours, msgspec.Struct):
        return _struct(recorded, ours, path)
    if isinstance(recorded, dict) and isinstance(ours, dict):
        found = [f"{path}: keys {sorted(recorded)} != {sorted(ours)}"] if recorded.keys() != ours.keys() else []
        return found + [
            d for key in recorded if key in ours for d in differences(recorded[key], ours[key], f"{path}.{key}")
        ]
    if isinstance(recorded, list) and isinstance(ours, list) and len(recorded) == len(ours):
        return [
            d for i, (r, o) in enumerate(zip(recorded, ours, strict=True)) for d in differences(r, o, f"{path}[{i}]")
        ]
    same = type(recorded) is type(ours) or {type(recorded), type(ours)} == {int, float}
    return [] if same and recorded == ours else [f"{path}: {recorded!r} != {ours!r}"]


def tree_differences(tree: Any, ours: Any, frames: list[bytes], minor: int, path: str = "") -> list[str]:
    """Where a decoded value differs from the recorded tree of its payload; `frames` start with the payload."""
    if isinstance(ours, Tensor):
        dtype, shape, place = tree
        data = bytes.fromhex(place["hex"]) if isinstance(place, dict) else frames[place]
        same = (dtype, shape, data) == (ours.dtype, ours.shape, bytes(ours.data))
        return [] if same else [f"{path}: {tree} != {ours}"]
    if isinstance(ours, msgspec.Struct):
        pairs = _positions(tree, ours, minor) if isinstance(tree, list) else _keys(tree, ours)
        return [d for name, t, o in pairs for d in tree_differences(t, o, frames, minor, f"{path}.{name}")]
    if isinstance(ours, list) and isinstance(tree, list) and len(tree) == len(ours):
        pairs = [(str(i), t, o) for i, (t, o) in enumerate(zip(tree, ours, strict=True))]
        return [d for name, t, o in pairs for d in tree_differences(t, o, frames, minor, f"{path}[{name}]")]
    if isinstance(tree, dict) and "$map" in tree:
        tree = dict(tree["$map"])
    elif isinstance(tree, dict) and "$bin" in tree:
        tree = bytes.fromhex(tree["$bin"])
    elif isinstance(tree, dict) and isinstance(ours, dict) and tree.keys() == ours.keys():
        return [d for k in tree for d in tree_differences(tree[k], ours[k], frames, minor, f"{path}.{k}")]
    return [] if tree == ours else [f"{path}: {tree!r} != {ours!r}"]


_GONE = {"tensorizer_config_dict", "cu_num_generated_tokens_tensor"}
"""Fields that some releases have and that are always nil."""

_MARKS = {"enum", "tensor", "ndarray", "set", "int_keyed_map", "slice", "utility_result", "$float"}


def _marked(mark: str, recorded: dict[str, Any], ours: Any, path: str) -> list[str]:
    if mark in ("tensor", "ndarray"):
        dtype, shape, values = recorded[mark], recorded["shape"], recorded["values"]
        wanted = _numbers(values)
        same = isinstance(ours, Tensor) and (ours.dtype, ours.shape, ours.numpy().tolist()) == (dtype, shape, wanted)
    elif mark == "enum":
        same = (type(ours).__mro__[1].__name__, ours.name, int(ours)) == (
            "IntEnum",
            recorded["name"],
            recorded["value"],
        )
    elif mark == "set":
        same = sorted(ours) == sorted(recorded["set"])
    elif mark == "int_keyed_map":
        same = ours == dict(recorded["int_keyed_map"])
    elif mark == "utility_result":
        return differences([None, recorded["utility_result"]], ours, path)
    elif mark == "$float":
        same = ours == float(recorded["$float"])
    else:
        same = ours == recorded["slice"]
    return [] if same else [f"{path}: {recorded} != {ours!r}"]


def _numbers(values: Any) -> Any:
    if isinstance(values, list):
        return [_numbers(value) for value in values]
    return float(values["$float"]) if isinstance(values, dict) else values


def _struct(recorded: dict[str, Any], ours: msgspec.Struct, path: str) -> list[str]:
    """Fields by name where the names are the protocol's, else by position; the rest must be unset."""
    known = {field.encode_name: field for field in msgspec.structs.fields(ours)}
    recorded = {key: value for key, value in recorded.items() if value is not None or key not in _GONE}
    if not recorded.keys() <= known.keys():
        known = dict(zip(recorded, known.values(), strict=False))
    found = [d for key in recorded for d in differences(recorded[key], getattr(ours, known[key].name), f"{path}.{key}")]
    for key, field in known.items():
        if key not in recorded and not _unset(field, getattr(ours, field.name)):
            found.append(f"{path}.{key}: set to {getattr(ours, field.name)!r}, but not recorded")
    return found


def _unset(field: Any, value: Any) -> bool:
    return bool(value == field.default if field.default is not msgspec.NODEFAULT else value == field.default_factory())


def _positions(tree: list[Any], ours: msgspec.Struct, minor: int) -> list[tuple[str, Any, Any]]:
    fields = list(ours.__struct_fields__)
    if type(ours) is EngineCoreOutput:
        fields = list(LAYOUTS[f"0.{minor}"].output_fields)
    if type(ours) is LoRARequest and minor < 32:
        tree = tree[:4] + tree[5:]
    return [(name, item, getattr(ours, name)) for name, item in zip(fields, tree, strict=False)]


def _keys(tree: dict[str, Any], ours: msgspec.Struct) -> list[tuple[str, Any, Any]]:
    known = {field.encode_name: field.name for field in msgspec.structs.fields(ours)}
    return [(key, item, getattr(ours, known[key]) if key in known else KeyError(key)) for key, item in tree.items()]
