import json
import os
import shutil
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from muro.engines.openvino.compiled import compile_model, stored_graph
from muro.engines.openvino.executor import create_executor
from muro.engines.openvino.options import OpenVINOOptions
from muro.engines.openvino.paged import to_paged
from muro.errors import ConfigError
from muro.models.config import ModelDir, open_model
from tests.support.openvino_models import FAMILIES, executor, family, golden, log_softmax, part, step


@pytest.fixture
def model(tmp_path: Path) -> ModelDir:
    return open_model(shutil.copytree(FAMILIES / "llama-plain", tmp_path / "model"))


def heard() -> tuple[list[tuple[str, float]], object]:
    said: list[tuple[str, float]] = []
    return said, lambda phase, percent: said.append((phase, percent))


def test_the_graph_is_stored_once_per_number_format(tmp_path: Path, model: ModelDir) -> None:
    said, report = heard()
    first = stored_graph(model, "int8", tmp_path / "home", report)
    assert first.is_file() and said
    said.clear()
    assert stored_graph(model, "int8", tmp_path / "home", report) == first
    assert not said
    assert stored_graph(model, "f16", tmp_path / "home", report) != first


def test_a_changed_model_is_converted_anew(tmp_path: Path, model: ModelDir) -> None:
    said, report = heard()
    first = stored_graph(model, "int8", tmp_path / "home", report)
    said.clear()
    os.utime(model.weights[0], ns=(1, 1))
    assert stored_graph(model, "int8", tmp_path / "home", report) == first
    assert said


def test_stored_and_compiled_it_computes_the_same(tmp_path: Path, model: ModelDir) -> None:
    said, report = heard()
    options = OpenVINOOptions(cache_memory_mb=1, threads=1)
    compiled = compile_model(model, options, tmp_path / "home", report)
    ids = list(range(40))
    logits = step(create_executor(compiled, model.config, options), part(ids, 0, 40, [0, 1]))
    np.testing.assert_allclose(logits, step(executor("llama-plain", "int8"), part(ids, 0, 40, [0, 1])), atol=1e-4)
    assert [percent for _, percent in said] == sorted(percent for _, percent in said)


def exported(tmp_path: Path, model: ModelDir) -> Path:
    """A directory with a decoder as tools for OpenVINO leave it."""
    directory = tmp_path / "exported"
    directory.mkdir()
    stored = stored_graph(model, "f32", tmp_path / "home", lambda *_: None)
    for file in ("openvino_model.xml", "openvino_model.bin"):
        shutil.copy(stored.with_name(file), directory)
    shutil.copy(model.path / "config.json", directory)
    return directory


def change_config(directory: Path, **changes: object) -> None:
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "SomethingElseForCausalLM"])
def test_a_ready_made_decoder_of_any_architecture_computes_the_same(
    tmp_path: Path, model: ModelDir, architecture: str
) -> None:
    directory = exported(tmp_path, model)
    change_config(directory, architectures=[architecture])
    ready = open_model(directory)
    options = OpenVINOOptions(cache_memory_mb=1, threads=1)
    compiled = compile_model(ready, options, tmp_path / "other home", lambda *_: None)
    ids = list(range(40))
    logits = step(create_executor(compiled, ready.config, options), part(ids, 0, 40, [0, 1]))
    np.testing.assert_allclose(logits, step(executor("llama-plain", "f32"), part(ids, 0, 40, [0, 1])), atol=1e-4)


def test_a_ready_made_decoder_has_its_familys_windows(tmp_path: Path) -> None:
    directory = exported(tmp_path, family("mistral-sliding"))
    ready = open_model(directory)
    options = OpenVINOOptions(cache_memory_mb=1, threads=1)
    model = create_executor(compile_model(ready, options, tmp_path, lambda *_: None), ready.config, options)
    case = golden("mistral-sliding")[-1]
    logits = log_softmax(step(model, part(case["ids"], 0, 70, [0, 1, 2])))[0]
    assert np.abs(logits - case["rows"]["69"]).max() < 0.02


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"vocab_size": 321}, "scores 320 tokens, but config.json speaks of 321"),
        ({"architectures": ["Gemma3ForCausalLM"], "sliding_window": 8}, "did not find in the graph"),
        ({"num_hidden_layers": 3}, "3 layers, the graph has 2"),
    ],
)
def test_a_ready_made_decoder_that_is_not_what_it_says(
    tmp_path: Path, model: ModelDir, changes: dict[str, object], says: str
) -> None:
    directory = exported(tmp_path, model)
    change_config(directory, **changes)
    with pytest.raises(ConfigError, match=says):
        ready = open_model(directory)
        options = OpenVINOOptions(cache_memory_mb=1, threads=1)
        create_executor(compile_model(ready, options, tmp_path, lambda *_: None), ready.config, options)


def test_stored_paged_attention_and_half_a_graph_are_refused(tmp_path: Path, model: ModelDir) -> None:
    """OpenVINO itself cannot read a graph that was stored behind the transformation."""
    directory = exported(tmp_path, model)
    decoder = ov.Core().read_model(directory / "openvino_model.xml")
    to_paged(decoder)
    (tmp_path / "paged").mkdir()
    ov.save_model(decoder, tmp_path / "paged" / "openvino_model.xml")
    shutil.copy(directory / "config.json", tmp_path / "paged")
    (directory / "openvino_model.bin").unlink()
    for place in (tmp_path / "paged", directory):
        with pytest.raises(ConfigError, match="must be stored in its stateful form"):
            compile_model(open_model(place), OpenVINOOptions(threads=1), tmp_path, lambda *_: None)


def test_a_ready_made_decoder_is_used_as_it_is(tmp_path: Path, model: ModelDir) -> None:
    said, report = heard()
    directory = tmp_path / "exported"
    directory.mkdir()
    stored = stored_graph(model, "int8", tmp_path / "home", report)
    for file in ("openvino_model.xml", "openvino_model.bin"):
        shutil.copy(stored.with_name(file), directory)
    shutil.copy(model.path / "config.json", directory)
    ready = open_model(directory)
    said.clear()
    assert stored_graph(ready, "f16", tmp_path / "other home", report) == directory / "openvino_model.xml"
    assert not said and not (tmp_path / "other home").exists()
    assert isinstance(compile_model(ready, OpenVINOOptions(threads=1), tmp_path, report), ov.CompiledModel)
