import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from muro.errors import ConfigError
from muro.models.checkpoint import GgufCheckpoint, SafetensorsCheckpoint, open_checkpoint
from muro.models.config import ModelDir, open_model, read_config
from muro.models.prepare import from_gguf
from tests.support.gguf_files import tiny_weights, write_tiny_gguf


def write_safetensors(path: Path, tensors: dict[str, tuple[str, tuple[int, ...], bytes]], **header: object) -> Path:
    entries, data = dict(header), b""
    for name, (dtype, shape, raw) in tensors.items():
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(entries).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def test_the_three_number_formats(tmp_path: Path) -> None:
    values = np.array([[1.5, -2.0, 0.25]], dtype=np.float32)
    upper = (values.view(np.uint32) >> 16).astype(np.uint16)
    tensors = {
        "a": ("F32", (1, 3), values.tobytes()),
        "b": ("F16", (1, 3), values.astype(np.float16).tobytes()),
        "c": ("BF16", (1, 3), upper.tobytes()),
    }
    checkpoint = SafetensorsCheckpoint(
        [write_safetensors(tmp_path / "x.safetensors", tensors, __metadata__={"a": "b"})]
    )
    for name in tensors:
        read = checkpoint.read(name)
        assert read.dtype == np.float32
        np.testing.assert_array_equal(read, values)
    assert checkpoint.unread() == []


def test_tensors_spread_over_files(tmp_path: Path) -> None:
    files = [
        write_safetensors(tmp_path / f"{name}.safetensors", {name: ("F32", (1,), np.float32(value).tobytes())})
        for name, value in (("a", 1), ("b", 2))
    ]
    checkpoint = SafetensorsCheckpoint(files)
    assert [checkpoint.read(name).item() for name in "ab"] == [1, 2]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "no safetensors file"),
        ((1 << 60).to_bytes(8, "little") + b"{}", "header of"),
        ((2).to_bytes(8, "little") + b"[]", "no safetensors file"),
        ((9).to_bytes(8, "little") + b'{"a": {}}', "no safetensors file"),
        ((4).to_bytes(8, "little") + b'\xff"\xfe"', "no safetensors file"),
    ],
)
def test_damaged_headers(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=says):
        SafetensorsCheckpoint([path])


def test_tensors_that_cannot_be_read_name_themselves(tmp_path: Path) -> None:
    four = np.float32(1).tobytes()
    tensors = {
        "odd": ("I64", (1,), bytes(8)),
        "short": ("F32", (2,), four),
        "negative": ("F32", (-1, -1), four),
        "cut": ("F32", (1,), four),
    }
    path = write_safetensors(tmp_path / "x.safetensors", tensors)
    path.write_bytes(path.read_bytes()[:-1])
    checkpoint = SafetensorsCheckpoint([path])
    for name, says in (
        ("odd", "I64"),
        ("short", "short does not lie"),
        ("negative", "damaged"),
        ("cut", "damaged"),
        ("none", "no tensor none"),
    ):
        with pytest.raises(ConfigError, match=says):
            checkpoint.read(name)


def tiny_model(directory: Path) -> ModelDir:
    from_gguf(write_tiny_gguf(directory / "tiny.gguf"), directory)
    return open_model(directory)


def test_gguf_gives_what_the_original_checkpoint_gave(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny_model(tmp_path))
    assert isinstance(checkpoint, GgufCheckpoint)
    for name, weight in tiny_weights().items():
        np.testing.assert_array_equal(checkpoint.read(name), weight, err_msg=name)
    assert checkpoint.unread() == []
    with pytest.raises(ConfigError, match=r"output\.weight \(for lm_head\.weight\)"):
        checkpoint.read("lm_head.weight")


def test_heads_that_do_not_fit_the_rows(tmp_path: Path) -> None:
    model = tiny_model(tmp_path)
    assert model.config.decoder is not None
    decoder = msgspec.structs.replace(model.config.decoder, num_attention_heads=5)
    checkpoint = GgufCheckpoint(model.weights[0], decoder)
    with pytest.raises(ConfigError, match="32 rows, which are no pairs for 5 heads"):
        checkpoint.read("model.layers.0.self_attn.q_proj.weight")


def test_damaged_and_several_gguf_files(tmp_path: Path) -> None:
    model = tiny_model(tmp_path)
    (tmp_path / "second.gguf").write_bytes(b"GGUF")
    with pytest.raises(ConfigError, match="several GGUF files"):
        open_checkpoint(open_model(tmp_path))
    with pytest.raises(ConfigError, match=r"second\.gguf is no GGUF file"):
        open_checkpoint(msgspec.structs.replace(model, weights=(tmp_path / "second.gguf",)))
    assert read_config(tmp_path) == model.config
