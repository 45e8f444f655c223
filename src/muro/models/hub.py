"""Fetch a model from the Hugging Face Hub: `hf:ORG/NAME`, `hf:ORG/NAME@REVISION`, `hf:ORG/NAME:FILE.gguf`.

Decides which files of a repository are a model that we can run, and refuses before the weights are fetched what
`config.json` already tells. Never fetches code or pickles. The library `huggingface_hub` does the talking, so its
settings hold (tokens, mirrors, proxies); it is an optional extra and loaded when it is needed.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Protocol

import msgspec

from muro.errors import ConfigError, MissingExtraError
from muro.models.config import READY_GRAPH, read_config
from muro.models.prepare import from_gguf

SCHEME = "hf:"

Progress = Callable[[str, int, int], None]

_NAME = re.compile(r"hf:(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?(?::(?P<file>[\w./ -]+\.gguf))?", re.ASCII)
_DESCRIPTIONS = frozenset(
    {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
        "chat_template.json",
        "modules.json",
        "1_Pooling/config.json",
        "LICENSE",
    }
)
_PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$")
_MOST_FILES = 10_000
_MOST_DESCRIPTION_BYTES = 100 << 20
_CHUNK = 1 << 20


class HubName(msgspec.Struct, frozen=True):
    """What a name of the form `hf:ORG/NAME[@REVISION][:FILE.gguf]` says."""

    repo: str
    revision: str | None
    file: str | None

    @property
    def directory(self) -> str:
        """Name of the model directory, and with it of the served model."""
        parts = [self.repo, *filter(None, (self.revision, self.file))]
        return "--".join(part.replace("/", "--").replace(" ", "-") for part in parts)

    @property
    def key(self) -> str:
        """What a directory was made from; see `atomic.publish`."""
        return f"{SCHEME}{self.repo} at {self.revision or 'its main branch'}, {self.file or 'the model'}"


class HubFile(msgspec.Struct, frozen=True):
    """A file of a repository. Large files have a checksum."""

    name: str
    size: int
    sha256: str | None = None


class Hub(Protocol):
    """Where repositories are."""

    def files(self, name: HubName) -> tuple[str, list[HubFile]]:
        """The commit that the revision stands for, and its files. Raises ConfigError."""
        ...

    def fetch(self, name: HubName, commit: str, file: str, directory: Path, on_bytes: Callable[[int], None]) -> None:
        """Put a file at its own path below `directory`, telling how many bytes more have come. Raises ConfigError."""
        ...


def parse(name: str) -> HubName | None:
    """What `name` says; None if it is no name of this kind. Raises ConfigError if it is a wrong one."""
    if not name.startswith(SCHEME):
        return None
    match = _NAME.fullmatch(name)
    if match is None or any(part in (".", "..", "") for part in re.split("[/@:]", name.removeprefix(SCHEME))):
        raise ConfigError(f"{name!r} is no model of the hub; write hf:ORG/NAME, with @REVISION or :FILE.gguf if needed")
    return HubName(match["repo"], match["revision"], match["file"])


def build(name: HubName, hub: Hub, directory: Path, progress: Progress) -> None:
    """Fill `directory` with the model.

    Raises:
        ConfigError: there is no such model, it is none that we can run, or the download failed.
        MissingExtraError: a library that prepares the model is not installed.
    """
    commit, files = hub.files(name)
    if len(files) > _MOST_FILES:
        raise ConfigError(f"{name.repo} has {len(files)} files; that is no model")
    if outside := [file.name for file in files if not _lies_below(file.name)]:
        raise ConfigError(f"{name.repo} names a file outside of itself, {outside[0][:200]!r}; nothing was fetched")
    descriptions = [file for file in files if file.name in _DESCRIPTIONS and file.size <= _MOST_DESCRIPTION_BYTES]
    weights = choose_weights(name, files)
    gguf = weights[0].name.endswith(".gguf")
    wanted = weights if gguf else descriptions + weights
    total, done = sum(file.size for file in wanted), 0

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        progress("download", min(done, total), total)

    if not gguf:
        for file in descriptions:
            _fetch(hub, name, commit, file, directory, on_bytes)
        # Better now than after some gigabytes.
        read_config(directory, ready=weights[0].name == READY_GRAPH)
    for file in weights:
        _fetch(hub, name, commit, file, directory, on_bytes)
    shutil.rmtree(directory / ".cache", ignore_errors=True)  # the library's notes on what it has fetched
    progress("download", total, total)
    if gguf:
        progress("prepare", 0, 1)
        # Others look for weights beside the files that describe them.
        file_path = (directory / weights[0].name).rename(directory / Path(weights[0].name).name)
        from_gguf(file_path, directory)
        progress("prepare", 1, 1)


def choose_weights(name: HubName, files: list[HubFile]) -> list[HubFile]:
    """The weights to fetch: safetensors, else an OpenVINO decoder, else the one GGUF file that there is.

    Raises:
        ConfigError: there are none, or it is not clear which.
    """
    by_name = {file.name: file for file in files}
    if name.file is not None:
        if name.file not in by_name:
            raise ConfigError(f"{name.repo} has no file {name.file}; it has {_listed(files, '.gguf')}")
        if _PART.search(name.file):
            raise ConfigError(f"{name.file} is a part of a GGUF file; only undivided ones can be read")
        return [by_name[name.file]]
    top = [file for file in files if "/" not in file.name and file.name.endswith(".safetensors")]
    # Some publish the same weights once more in a form of their own, under another name.
    if weights := [file for file in top if file.name.startswith("model")] or top:
        return weights
    if READY_GRAPH in by_name:
        data = READY_GRAPH.replace(".xml", ".bin")
        if data not in by_name:
            raise ConfigError(f"{name.repo} has {READY_GRAPH} without {data}")
        return [by_name[READY_GRAPH], by_name[data]]
    ggufs = [file for file in files if file.name.endswith(".gguf") and not _PART.search(file.name)]
    if len(ggufs) == 1:
        return ggufs
    if ggufs:
        raise ConfigError(
            f"{name.repo} has several GGUF files; name one, hf:{name.repo}:FILE: {_listed(files, '.gguf')}"
        )
    raise ConfigError(
        f"{name.repo} has no weights that can be used: neither *.safetensors nor {READY_GRAPH} nor *.gguf"
        + (" (pickled weights are not loaded)" if any(file.name.endswith(".bin") for file in files) else "")
    )


def _lies_below(file: str) -> bool:
    """Whether the name is one within a directory. What a hub says is not to be trusted with places of our disk."""
    path = PurePosixPath(file)
    return not (path.is_absolute() or ".." in path.parts or "\\" in file or "\0" in file) and bool(path.parts)


def _fetch(
    hub: Hub, name: HubName, commit: str, file: HubFile, directory: Path, on_bytes: Callable[[int], None]
) -> None:
    hub.fetch(name, commit, file.name, directory, on_bytes)
    path = directory / file.name
    if path.stat().st_size != file.size or (file.sha256 is not None and _sha256(path) != file.sha256):
        raise ConfigError(
            f"{file.name} of {name.repo} is not what the hub says it is: the download is damaged. Try again"
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def _listed(files: list[HubFile], ending: str) -> str:
    found = [f"{file.name} ({file.size / 1e6:.0f} MB)" for file in files if file.name.endswith(ending)]
    return ", ".join(found) or f"no *{ending} at all"


class HuggingFaceHub:
    """The real one, through `huggingface_hub`.

    Args:
        endpoint: where it is; None: where the library's own settings say.
    """

    def __init__(self, endpoint: str | None = None) -> None:
        self._endpoint = endpoint

    def files(self, name: HubName) -> tuple[str, list[HubFile]]:
        try:
            from huggingface_hub import HfApi
        except ImportError:
            raise MissingExtraError("fetching a model of the Hugging Face Hub", "hub") from None
        try:
            found = HfApi(endpoint=self._endpoint).model_info(name.repo, revision=name.revision, files_metadata=True)
        except Exception as error:  # the library's errors, and those of what it uses, have no class in common
            raise _failed(name, error) from error
        siblings = found.siblings or []
        checksums = [None if sibling.lfs is None else sibling.lfs.sha256 for sibling in siblings]
        files = [HubFile(s.rfilename, s.size or 0, checksum) for s, checksum in zip(siblings, checksums, strict=True)]
        return found.sha or name.revision or "main", files

    def fetch(self, name: HubName, commit: str, file: str, directory: Path, on_bytes: Callable[[int], None]) -> None:
        from huggingface_hub import hf_hub_download

        try:
            hf_hub_download(
                name.repo,
                file,
                revision=commit,
                local_dir=directory,
                endpoint=self._endpoint,
                tqdm_class=_bar(on_bytes),
            )
        except Exception as error:  # as above
            raise _failed(name, error) from error


def _failed(name: HubName, error: Exception) -> ConfigError:
    said = " ".join(str(error).split())[:1000]
    return ConfigError(f"{SCHEME}{name.repo} could not be fetched: {type(error).__name__}: {said}")


def _bar(on_bytes: Callable[[int], None]) -> type:
    """A progress bar that draws nothing and tells the numbers; the library wants a class."""
    from tqdm import tqdm

    def start(self: object, *args: object, **settings: object) -> None:
        tqdm.__init__(self, *args, **{**settings, "disable": True})

    def update(self: object, count: float | None = 1) -> None:
        on_bytes(int(count or 0))

    # Without the interval the library behind it starts a thread that watches bars.
    return type("Bar", (tqdm,), {"__init__": start, "update": update, "monitor_interval": 0})
