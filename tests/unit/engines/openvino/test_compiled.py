import os
import shutil
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from muro.engines.openvino.compiled import compile_model, stored_graph
from muro.engines.openvino.executor import create_executor
from muro.engines.openvino.options import OpenVINOOptions
from muro.models.config import ModelDir, open_model
from tests.support.openvino_models import FAMILIES, executor, part, step


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
