"""From the name of an engine to the engine: "echo", "module:factory" or "path.py:factory".

A factory is a class or a function. It is called with what it names: `options` (a struct or dataclass that
the option map is converted to), `model` (the model directory) and `report` (progress of loading). Every
fault is a ConfigError that says which part of the name or which option is wrong.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from muro.engine.interface import Engine, EngineCore, Report
from muro.errors import ConfigError, MissingExtraError, MuroError

BUILT_IN = {
    "echo": "muro.engines.echo:EchoEngine",
    "openvino": "muro.engines.openvino.engine:create_engine",
    "paced": "muro.testing.paced:PacedEngine",
    "faulty": "muro.testing.faulty:FaultyEngine",
    "sim": "muro.engines.sim.engine:create_engine",
    "vllm": "muro.engines.vllm.engine:create_engine",
}
"""Engines that have a short name."""

EXTRAS = {"openvino": "running a model on the CPU", "vllm": "hosting vLLM's engine"}
"""Engines that need a library of their own name, which an extra of that name brings, and what for."""

REQUIRED = ("add_request", "abort_requests", "step", "has_work")
"""What `Engine` has no default for: its own methods only say so when they are called."""

Factory = Callable[..., EngineCore]


def load_engine(name: str, *, model: str | None, options: dict[str, Any], report: Report) -> EngineCore:
    """Import the factory and build the engine; what building raises is passed on.

    Raises:
        ConfigError: the name leads nowhere, or an option does not fit.
    """
    return build_engine(name, find_factory(name), model=model, options=options, report=report)


def check_installed(name: str) -> None:
    """Raise MissingExtraError if the library of a built-in engine is not there; loads nothing."""
    if name in EXTRAS and importlib.util.find_spec(name) is None:
        raise MissingExtraError(EXTRAS[name], name)


def build_engine(
    name: str, factory: Factory, *, model: str | None, options: dict[str, Any], report: Report
) -> EngineCore:
    """Call a factory with what it names.

    Raises:
        ConfigError: an option does not fit, or what the factory gives lacks a method that every engine must have.
    """
    engine = factory(**_arguments(name, factory, model=model, options=options, report=report))
    if missing := [method for method in REQUIRED if not _defines(engine, method)]:
        raise ConfigError(f"engine {name!r}: {type(engine).__name__} must define {', '.join(missing)}")
    return engine


def _defines(engine: object, method: str) -> bool:
    inherited = getattr(type(engine), method, None) is getattr(Engine, method)
    return callable(getattr(engine, method, None)) and not inherited


def find_factory(name: str) -> Factory:
    """The factory behind a name. Raises ConfigError."""
    target = BUILT_IN.get(name, name)
    module_name, separator, attribute = target.rpartition(":")
    if not separator or not attribute:
        built_in = ", ".join(sorted(BUILT_IN))
        raise ConfigError(
            f"engine {name!r} is neither a built-in one ({built_in}) nor of the form module:factory or path.py:factory"
        )
    if module_name == "__main__":
        raise ConfigError(
            f"engine {name!r} lies in the script itself, which the engine's process does not run again; "
            "put it into a module beside the script and name it module:factory"
        )
    module = _load_file(Path(module_name)) if module_name.endswith(".py") else _import(name, module_name)
    factory = getattr(module, attribute, None)
    if factory is None:
        raise ConfigError(f"engine {name!r}: {module_name} has no {attribute!r}")
    if not callable(factory):
        raise ConfigError(f"engine {name!r}: {attribute} is a {type(factory).__name__}, not a factory")
    return typing.cast(Factory, factory)


def _import(name: str, module_name: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except MuroError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise ConfigError(
                f"engine {name!r}: there is no module {error.name!r} on the path of the engine's process"
            ) from None
        raise
    except (ValueError, TypeError) as error:
        raise ConfigError(f"engine {name!r}: {module_name!r} is not the name of a module ({error})") from None


def _load_file(path: Path) -> Any:
    if not path.is_file():
        raise ConfigError(f"engine file {str(path)!r} does not exist")
    # Its own folder goes on the path, as for a script, so that it finds the modules beside it.
    sys.path.insert(0, str(path.parent.resolve()))
    # A file named like a module that is in use (queue.py, say) must not take its place for everybody else.
    name = path.stem if path.stem not in sys.modules else f"_muro_engine_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"engine file {str(path)!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _arguments(
    name: str, factory: Factory, *, model: str | None, options: dict[str, Any], report: Report
) -> dict[str, Any]:
    named = inspect.signature(factory).parameters
    arguments: dict[str, Any] = {}
    if "report" in named:
        arguments["report"] = report
    if "model" in named:
        arguments["model"] = model
    if "options" in named:
        arguments["options"] = _convert_options(name, factory, options)
    elif options:
        raise ConfigError(f"engine {name!r} takes no options, but was given {', '.join(sorted(options))}")
    return arguments


def _convert_options(name: str, factory: Factory, options: dict[str, Any]) -> Any:
    hints = typing.get_type_hints(factory.__init__ if inspect.isclass(factory) else factory)
    wanted = hints.get("options", dict[str, Any])
    known = _field_names(wanted)
    if known is not None and (unknown := sorted(set(options) - known)):
        raise ConfigError(
            f"engine {name!r} has no option {', '.join(unknown)}; it has: {', '.join(sorted(known)) or 'none'}"
        )
    try:
        # Not strict: options from a command line are strings.
        return msgspec.convert(options, wanted, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"engine {name!r}: {error}") from None


def _field_names(wanted: Any) -> set[str] | None:
    if isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
        return {field.encode_name for field in msgspec.structs.fields(wanted)}
    if dataclasses.is_dataclass(wanted):
        return {field.name for field in dataclasses.fields(wanted)}
    return None
