"""A directory, or a file that is added to it later, that is either complete or not there.

`publish` lets a function fill a temporary sibling and renames it into place when it is done, with a marker that
says from what it was made. A file lock beside it makes sure that of several processes only one does the work and
the others wait for it. The lock goes with its process, so whatever an interrupted one left is known to be dead.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from muro.errors import ConfigError

_MARKER = ".complete"


def is_complete(directory: Path, key: str) -> bool:
    """Whether the directory was published with that key."""
    try:
        return (directory / _MARKER).read_text("utf-8") == key
    except OSError:
        return False


def publish(directory: Path, key: str, build: Callable[[Path], None]) -> Path:
    """Make `directory` by `build(temporary directory)`, unless it is there and was made with the same key.

    A directory of that name without the marker, or with another key, is replaced. What `build` raises is passed on,
    and nothing of its work remains.

    Raises:
        ConfigError: the place cannot be written to.
    """
    if is_complete(directory, key):
        return directory
    parent = directory.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with _locked(parent / f".{directory.name}.lock"):
            if not is_complete(directory, key):
                _replace(directory, key, build)
    except (PermissionError, NotADirectoryError, FileExistsError) as error:
        raise ConfigError(f"{parent} cannot be written to ({error}); set MURO_HOME to a place that can") from error
    return directory


def add_file(path: Path, build: Callable[[Path], None]) -> Path:
    """Make a file in a directory by `build(temporary path)`, unless it is there. What `build` raises is passed on.

    A directory that is published anew loses it, so a file that is there belongs to what is beside it.

    Raises:
        ConfigError: the place cannot be written to.
    """
    directory = path.parent
    try:
        with _locked(directory.parent / f".{directory.name}.lock"):
            if not path.exists():
                _build_file(path, build)
    except PermissionError as error:
        raise ConfigError(f"{directory} cannot be written to ({error}); set MURO_HOME to a place that can") from error
    return path


def _build_file(path: Path, build: Callable[[Path], None]) -> None:
    temporary = path.with_name(f".{path.name}.partial")
    try:
        build(temporary)
        _sync(temporary)
        temporary.rename(path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _replace(directory: Path, key: str, build: Callable[[Path], None]) -> None:
    prefix = f".{directory.name}.partial-"
    for leftover in directory.parent.glob(f"{prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=prefix, dir=directory.parent))
    try:
        temporary.chmod(0o755)
        build(temporary)
        (temporary / _MARKER).write_text(key, "utf-8")
        for file in temporary.iterdir():
            _sync(file)
        if directory.exists():
            # Open files of it stay readable for processes that have them mapped.
            shutil.rmtree(directory)
        temporary.rename(directory)
        _sync(directory.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _sync(path: Path) -> None:
    """A marker must not reach the disk before what it vouches for."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
