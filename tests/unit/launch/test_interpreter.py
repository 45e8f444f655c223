import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muro.errors import ConfigError
from muro.launch.interpreter import engine_name, executable, import_path, interpreter_arguments

_OFF = {
    "debug": 0, "optimize": 0, "dont_write_bytecode": 0, "verbose": 0, "bytes_warning": 0, "quiet": 0, "isolated": 0,
    "ignore_environment": 0, "no_user_site": 0, "no_site": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ({}, []),
        ({"optimize": 2}, ["-OO"]),
        ({"dont_write_bytecode": 1, "bytes_warning": 2}, ["-B", "-bb"]),
        ({"ignore_environment": 1, "no_user_site": 1}, ["-E", "-s"]),
        ({"isolated": 1, "ignore_environment": 1, "no_user_site": 1}, ["-I"]),
        ({"no_site": 1, "inspect": 1, "interactive": 1}, ["-S"]),
    ],
)
def test_flags(flags: dict[str, int], options: list[str]) -> None:
    assert interpreter_arguments(SimpleNamespace(**_OFF | flags), {}, []) == options


def test_warnings_and_x_options() -> None:
    arguments = interpreter_arguments(
        SimpleNamespace(**_OFF), {"dev": True, "pycache_prefix": "/tmp/c"}, ["error", "ignore::UserWarning"]
    )
    assert arguments == ["-Werror", "-Wignore::UserWarning", "-X", "dev", "-X", "pycache_prefix=/tmp/c"]


def test_import_path_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert import_path(["", "lib", "/abs", tmp_path]) == [str(tmp_path), str(tmp_path / "lib"), "/abs"]
    assert all(os.path.isabs(entry) for entry in import_path())


def test_an_embedded_interpreter_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    assert executable() == sys.executable
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(ConfigError, match=r"sys\.executable"):
        executable()


class Mine:
    """An engine at the top level of a module."""


def factory() -> None: ...


@pytest.mark.parametrize(
    ("engine", "name"),
    [
        ("echo", "echo"),
        ("pkg.mod:Engine", "pkg.mod:Engine"),
        ("dir/file.py:make", "dir/file.py:make"),
        (Mine, f"{__name__}:Mine"),
        (factory, f"{__name__}:factory"),
    ],
)
def test_engine_name(engine: Any, name: str) -> None:
    assert engine_name(engine) == name


def test_an_engine_of_the_main_script_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mine, "__module__", "__main__")
    for engine in (Mine, "__main__:Mine"):
        with pytest.raises(ConfigError, match="move Mine into a module of its own"):
            engine_name(engine)


def test_an_engine_without_a_name_is_refused_in_words() -> None:
    class Inner: ...

    for engine in (Inner, lambda: None):
        with pytest.raises(ConfigError, match="top level"):
            engine_name(engine)
