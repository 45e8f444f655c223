import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from muro.errors import ConfigError
from muro.models.config import open_model
from muro.models.prepare import from_gguf
from muro.models.weights import FILE, write_safetensors_beside
from tests.support.gguf_files import tiny_weights, write_family_gguf, write_tiny_gguf

FAMILIES = Path(__file__).parents[2] / "data" / "families"


def silent(done: int, total: int) -> None:
    pass


def prepared(directory: Path) -> Path:
    from_gguf(write_tiny_gguf(directory / "tiny.gguf"), directory)
    return directory


def test_another_library_reads_the_original_weights(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    write_safetensors_beside(prepared(tmp_path), lambda *bytes_: seen.append(bytes_))
    read = load_file(tmp_path / FILE)
    assert read.keys() == tiny_weights().keys()
    for name, weight in tiny_weights().items():
        np.testing.assert_array_equal(read[name], weight.astype(np.float16), err_msg=name)
    total = sum(weight.size for weight in tiny_weights().values()) * 2
    assert seen[0] == (0, total) and seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})


@pytest.mark.parametrize(
    ("family", "architecture"), [("llama-plain", "llama"), ("qwen2-bias", "qwen2"), ("qwen3-qknorm", "qwen3")]
)
def test_names_of_each_family(tmp_path: Path, family: str, architecture: str) -> None:
    from_gguf(write_family_gguf(tmp_path / "model.gguf", FAMILIES / family, architecture), tmp_path)
    write_safetensors_beside(tmp_path, silent)
    read, original = load_file(tmp_path / FILE), load_file(FAMILIES / family / "model.safetensors")
    assert read.keys() == original.keys()
    for name, weight in original.items():
        np.testing.assert_array_equal(read[name], weight.astype(np.float16), err_msg=name)


def test_the_directory_stays_what_it_was_for_our_own_engine(tmp_path: Path) -> None:
    before = open_model(prepared(tmp_path))
    write_safetensors_beside(tmp_path, silent)
    after = open_model(tmp_path)
    assert after.weights == before.weights and after.fingerprint() == before.fingerprint()
    with safe_open(tmp_path / FILE, "np") as file:
        assert file.metadata() == {"format": "pt", "made_from": "tiny.gguf"}


def test_what_is_there_stays(tmp_path: Path) -> None:
    (prepared(tmp_path) / "other.safetensors").write_bytes(b"somebody else's")
    write_safetensors_beside(tmp_path, silent)
    assert not (tmp_path / FILE).exists()


def test_an_interrupted_writing_leaves_nothing(tmp_path: Path) -> None:
    prepared(tmp_path)
    before = sorted(tmp_path.iterdir())

    def interrupt(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_safetensors_beside(tmp_path, interrupt)
    assert sorted(tmp_path.iterdir()) == before
    write_safetensors_beside(tmp_path, silent)
    assert load_file(tmp_path / FILE)


def test_weights_that_float16_cannot_express(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = {name: weight * 1e6 for name, weight in tiny_weights().items()}
    monkeypatch.setattr("tests.support.gguf_files.tiny_weights", lambda: large)
    with pytest.raises(ConfigError, match="float16 cannot express"):
        write_safetensors_beside(prepared(tmp_path), silent)
    assert not (tmp_path / FILE).exists()


def test_models_that_other_engines_cannot_be_told_about(tmp_path: Path) -> None:
    source = write_family_gguf(tmp_path / "model.gguf", FAMILIES / "llama3-rope-scaling", "llama")
    from_gguf(source, tmp_path)
    with pytest.raises(ConfigError, match="rotary factors"):
        write_safetensors_beside(tmp_path, silent)


def test_a_graph_that_lies_ready_has_no_weights_to_write(tmp_path: Path) -> None:
    config = json.loads((FAMILIES / "llama-plain" / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "openvino_model.xml").touch()
    with pytest.raises(ConfigError, match=r"openvino_model\.xml"):
        write_safetensors_beside(tmp_path, silent)


def test_quantised_weights_are_what_the_library_makes_of_them(tmp_path: Path) -> None:
    directory = prepared(tmp_path)
    plain = gguf.GGUFReader(directory / "tiny.gguf")
    stored = gguf.quantize(np.array(plain.tensors[0].data), gguf.GGMLQuantizationType.Q8_0)
    writer = gguf.GGUFWriter(tmp_path / "quantised.gguf", "llama")
    for tensor in plain.tensors:
        first = tensor.name == plain.tensors[0].name
        raw = gguf.GGMLQuantizationType.Q8_0 if first else None
        writer.add_tensor(tensor.name, stored if first else np.array(tensor.data), raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (directory / "tiny.gguf").unlink()
    write_safetensors_beside(directory, silent)
    expected = gguf.dequantize(stored, gguf.GGMLQuantizationType.Q8_0).astype(np.float16)
    np.testing.assert_array_equal(load_file(directory / FILE)["model.embed_tokens.weight"], expected)
