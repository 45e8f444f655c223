import json
from pathlib import Path

import pytest

from muro.errors import ConfigError
from muro.models.pooling import read_pooling, write_pooling


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        ({"mean_tokens": True, "lasttoken": False}, "mean"),
        ({"mean_tokens": False, "lasttoken": True}, "last"),
        ({"cls_token": True}, None),
        ({"mean_tokens": True, "max_tokens": True}, None),
        ({}, None),
    ],
)
def test_what_a_model_says(tmp_path: Path, modes: dict[str, bool], expected: str | None) -> None:
    (tmp_path / "1_Pooling").mkdir()
    content = {
        "word_embedding_dimension": 8,
        "include_prompt": True,
        **{f"pooling_mode_{k}": v for k, v in modes.items()},
    }
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(content))
    assert read_pooling(tmp_path) == expected


def test_nothing_and_nonsense(tmp_path: Path) -> None:
    assert read_pooling(tmp_path) is None
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_pooling(tmp_path)


@pytest.mark.parametrize("kind", ["mean", "last"])
def test_what_is_written_is_read(tmp_path: Path, kind: str) -> None:
    write_pooling(tmp_path, kind)
    assert read_pooling(tmp_path) == kind
