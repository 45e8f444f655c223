"""Models of a hub, which is a directory here; `tests/process/test_pull_from_hub.py` has one that is a server."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from muro.errors import ConfigError
from muro.models.config import open_model
from muro.models.hub import HubFile, HubName, choose_weights, parse
from muro.models.pull import pull, pull_from_hub, pulled
from tests.support.gguf_files import write_tiny_gguf

FAMILIES = Path(__file__).parents[2] / "data" / "families"
NAME = HubName("org/tiny", None, None)


class DirectoryHub:
    """A hub over the files of a directory; `spoil` changes what arrives."""

    def __init__(self, root: Path, spoil: Callable[[Path], None] = lambda _: None) -> None:
        self.root, self.fetched, self._spoil = root, [], spoil

    def files(self, name: HubName) -> tuple[str, list[HubFile]]:
        paths = sorted(path for path in self.root.rglob("*") if path.is_file())
        return "commit", [
            HubFile(str(p.relative_to(self.root)), p.stat().st_size, hashlib.sha256(p.read_bytes()).hexdigest())
            for p in paths
        ]

    def fetch(self, name: HubName, commit: str, file: str, directory: Path, on_bytes: Callable[[int], None]) -> None:
        assert commit == "commit"
        self.fetched.append(file)
        target = directory / file
        target.parent.mkdir(exist_ok=True)
        shutil.copy(self.root / file, target)
        self._spoil(target)
        on_bytes(target.stat().st_size)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    root.mkdir()
    for file in ("config.json", "model.safetensors"):
        shutil.copy(FAMILIES / "qwen3-qknorm" / file, root)
    for extra in ("tokenizer.json", "modeling_tiny.py", "pytorch_model.bin", "consolidated.safetensors"):
        (root / extra).write_text("{}")
    (root / "1_Pooling").mkdir()
    (root / "1_Pooling" / "config.json").write_text("{}")
    return root


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("demo", None),
        ("hf:org/name", HubName("org/name", None, None)),
        ("hf:Org-1/na.me_2@refs/pr/1", HubName("Org-1/na.me_2", "refs/pr/1", None)),
        ("hf:org/name:sub/a-Q8_0.gguf", HubName("org/name", None, "sub/a-Q8_0.gguf")),
        ("hf:org/name@main:a.gguf", HubName("org/name", "main", "a.gguf")),
    ],
)
def test_names(name: str, expected: HubName | None) -> None:
    assert parse(name) == expected


@pytest.mark.parametrize(
    "name",
    ["hf:", "hf:name", "hf:a/b/c", "hf:../b", "hf:a/..", "hf:a/b@../c", "hf:a/b:../x.gguf", "hf:a/b:x.bin", "hf:a/b\n"],
)
def test_wrong_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="write hf:ORG/NAME"):
        pull(name, tmp_path)
    assert pulled(name, tmp_path) is None


def test_directories_of_different_models_differ() -> None:
    names = ["hf:org/name", "hf:org/name@v2", "hf:org/name:a.gguf", "hf:org/name@v2:a.gguf", "hf:org/other"]
    directories = {name.directory for name in map(parse, names) if name is not None}
    assert "org--name" in directories and len(directories) == len(names)


def test_what_the_model_needs_is_fetched_and_nothing_else(tmp_path: Path, repo: Path) -> None:
    hub, seen = DirectoryHub(repo), []
    directory = pull_from_hub(NAME, tmp_path, hub, progress=lambda *what: seen.append(what))
    assert directory == tmp_path / "models" / "org--tiny" == pulled("hf:org/tiny", tmp_path)
    assert hub.fetched == ["1_Pooling/config.json", "config.json", "tokenizer.json", "model.safetensors"]
    decoder = open_model(directory).config.decoder
    assert decoder is not None and decoder.family == "qwen3"
    done = [done for _, done, _ in seen]
    assert done == sorted(done) and seen[-1][1] == seen[-1][2] == sum(
        (repo / name).stat().st_size for name in hub.fetched
    )
    assert pull_from_hub(NAME, tmp_path, DirectoryHub(tmp_path / "gone")) == directory


def test_a_model_that_we_cannot_run_is_refused_before_its_weights(tmp_path: Path, repo: Path) -> None:
    config = json.loads((repo / "config.json").read_text()) | {"architectures": ["MambaForCausalLM"]}
    (repo / "config.json").write_text(json.dumps(config))
    hub = DirectoryHub(repo)
    with pytest.raises(ConfigError, match="MambaForCausalLM is not supported"):
        pull_from_hub(NAME, tmp_path, hub)
    assert "model.safetensors" not in hub.fetched
    assert pulled("hf:org/tiny", tmp_path) is None
    assert [path.name for path in (tmp_path / "models").iterdir()] == [".org--tiny.lock"]


@pytest.mark.parametrize("change", [lambda old: old[:-1], lambda old: bytes([old[0] ^ 1]) + old[1:]])
def test_what_arrives_damaged_is_not_used(tmp_path: Path, repo: Path, change: Callable[[bytes], bytes]) -> None:
    def spoil(path: Path) -> None:
        if path.suffix == ".safetensors":
            path.write_bytes(change(path.read_bytes()))

    with pytest.raises(ConfigError, match=r"model\.safetensors of org/tiny .* damaged"):
        pull_from_hub(NAME, tmp_path, DirectoryHub(repo, spoil))
    assert pulled("hf:org/tiny", tmp_path) is None


def test_a_gguf_file_is_prepared(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    (repo / "sub").mkdir(parents=True)
    write_tiny_gguf(repo / "sub" / "tiny-Q8_0.gguf")
    write_tiny_gguf(repo / "tiny-F32.gguf")
    name = HubName("org/tiny", None, "sub/tiny-Q8_0.gguf")
    directory = pull_from_hub(name, tmp_path, DirectoryHub(repo))
    assert [file.name for file in open_model(directory).weights] == ["tiny-Q8_0.gguf"]
    assert (directory / "tokenizer.json").is_file()


def chosen(*names: str, file: str | None = None) -> list[str]:
    return [found.name for found in choose_weights(HubName("o/n", None, file), [HubFile(n, 2_000_000) for n in names])]


def test_which_weights_are_chosen() -> None:
    parts = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert chosen("a.gguf", "consolidated.safetensors", *parts) == parts
    assert chosen("other.safetensors", "deep/model.safetensors") == ["other.safetensors"]
    assert chosen("openvino_model.bin", "openvino_model.xml") == ["openvino_model.xml", "openvino_model.bin"]
    assert chosen("a.gguf", "a-00001-of-00002.gguf", "README.md") == ["a.gguf"]
    assert chosen("a.gguf", "b.gguf", file="b.gguf") == ["b.gguf"]


@pytest.mark.parametrize(
    ("names", "file", "says"),
    [
        (["a.gguf", "b.gguf"], None, r"name one, hf:o/n:FILE: a\.gguf \(2 MB\), b\.gguf \(2 MB\)"),
        (["a.gguf"], "b.gguf", r"no file b\.gguf; it has a\.gguf"),
        (["a-00001-of-00002.gguf"], "a-00001-of-00002.gguf", "is a part"),
        (["pytorch_model.bin"], None, "pickled weights are not loaded"),
        (["openvino_model.xml"], None, r"without openvino_model\.bin"),
        ([], None, "no weights"),
    ],
)
def test_weights_that_cannot_be_chosen(names: list[str], file: str | None, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        chosen(*names, file=file)


@pytest.mark.parametrize("file", ["../evil.gguf", "a/../../evil.gguf", "/evil.gguf", "..\\evil.gguf", "a\0.gguf", ""])
def test_a_hub_does_not_choose_places_outside(tmp_path: Path, repo: Path, file: str) -> None:
    class LyingHub(DirectoryHub):
        def files(self, name: HubName) -> tuple[str, list[HubFile]]:
            commit, files = super().files(name)
            return commit, [*files, HubFile(file, 1)]

    hub = LyingHub(repo)
    with pytest.raises(ConfigError, match="outside of itself"):
        pull_from_hub(NAME, tmp_path / "home", hub)
    assert hub.fetched == []
