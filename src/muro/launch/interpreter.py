"""How a child's interpreter is called, so that it is the caller's interpreter: same program, flags, import path.

Pure but for looking at `sys`. The caller's main module is not part of it: the child never imports it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from muro.errors import ConfigError

_FLAGS = (
    ("d", "debug"),
    ("O", "optimize"),
    ("B", "dont_write_bytecode"),
    ("v", "verbose"),
    ("b", "bytes_warning"),
    ("q", "quiet"),
)


def interpreter_arguments(
    flags: Any = sys.flags,
    xoptions: Mapping[str, str | bool] | None = None,
    warnings: Sequence[str] | None = None,
) -> list[str]:
    """The command-line options that give a new interpreter the behaviour of the running one.

    ``-i``, ``-c`` and ``-m`` say what to run and are not carried over; ``-u`` cannot be seen from inside.
    """
    options = [f"-{letter * getattr(flags, name)}" for letter, name in _FLAGS if getattr(flags, name) > 0]
    if flags.isolated:
        options.append("-I")
    else:
        options += [
            option for option, name in (("-E", "ignore_environment"), ("-s", "no_user_site")) if getattr(flags, name)
        ]
    if flags.no_site:
        options.append("-S")
    for warning in sys.warnoptions if warnings is None else warnings:
        options.append(f"-W{warning}")
    for name, value in (sys._xoptions if xoptions is None else xoptions).items():
        options += ["-X", name if value is True else f"{name}={value}"]
    return options


def import_path(entries: Sequence[object] | None = None) -> list[str]:
    """`sys.path` with every entry absolute: the empty one and relative ones mean the present directory."""
    path = sys.path if entries is None else entries
    return [os.path.abspath(entry) for entry in path if isinstance(entry, str)]


def executable() -> str:
    """The program to run; raises `ConfigError` where Python is embedded in another program."""
    if not sys.executable:
        raise ConfigError(
            "engines are started with sys.executable, which is empty because Python is embedded in another "
            "program; set sys.executable to the path of a Python interpreter"
        )
    return sys.executable


def engine_name(engine: str | Callable[..., Any]) -> str:
    """An engine's factory or class as the name under which a child can import it.

    Args:
        engine: a built-in name, "module:factory", "path.py:factory", or the factory itself.

    Raises:
        ConfigError: the factory cannot be imported by a process that does not run the caller's script.
    """
    if isinstance(engine, str):
        module, _, name = engine.rpartition(":")
    else:
        module, name = getattr(engine, "__module__", ""), getattr(engine, "__qualname__", "")
    if module == "__main__":
        raise ConfigError(
            f"the engine {name} is defined in the script that is being run, and the engine's process does not "
            f"run that script; move {name} into a module of its own, for instance my_engine.py beside the "
            f"script, and name it 'my_engine:{name}'"
        )
    if isinstance(engine, str):
        return engine
    if not module or not name.isidentifier():
        raise ConfigError(
            f"the engine {name or engine!r} has no name at the top level of a module, so its process cannot import "
            "it; define a factory function or class at the top level and name it 'module:factory'"
        )
    return f"{module}:{name}"
