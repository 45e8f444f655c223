"""What holds without vLLM; `make interop-vllm` tries the rest."""

from pathlib import Path

import pytest

from muro.engine.loader import load_engine
from muro.errors import ConfigError, MissingExtraError


def create(model: Path | None) -> None:
    load_engine("vllm", model=None if model is None else str(model), options={}, report=lambda phase, percent: None)


def test_it_needs_a_model() -> None:
    with pytest.raises(ConfigError, match="model directory"):
        create(None)


def test_a_gguf_file_alone_is_not_what_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.gguf").touch()
    (tmp_path / "vllm.py").touch()  # it is found, and not imported
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="--with-weights"):
        create(tmp_path)


def test_without_vllm_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.gguf").touch()  # nobody is sent to fetch another model first
    monkeypatch.setitem(__import__("sys").modules, "vllm", None)
    with pytest.raises(MissingExtraError, match=r"muro\[vllm\]"):
        create(tmp_path)
