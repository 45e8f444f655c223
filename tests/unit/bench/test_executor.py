import shutil
from pathlib import Path

import pytest

from muro.bench.executor import run
from muro.engines.openvino.options import OpenVINOOptions
from tests.support.openvino_models import FAMILIES


def test_every_figure_is_there_and_positive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MURO_HOME", str(tmp_path / "home"))
    model = shutil.copytree(FAMILIES / "llama-plain", tmp_path / "model")
    heard: list[str] = []
    options = OpenVINOOptions(cache_memory_mb=8, threads=1)
    result = run(model, options, tokens=2, rounds=1, progress=heard.append)
    assert set(result["decode_tokens_per_s"]) == {"1", "16"}
    figures = [result[key] for key in ("prefill_tokens_per_s", "ttft_62_ms", "load_s", "rss_mb")]
    assert min([*result["decode_tokens_per_s"].values(), *figures]) > 0
    assert result["options"]["weights"] == "int8"
    assert "16 streams, round 1 of 1" in heard
