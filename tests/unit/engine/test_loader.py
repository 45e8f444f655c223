"""From a name to an engine: what is found, what it is given, and whose fault it is when it is not found."""

import queue
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from muro.engine.interface import Engine, Report, StepResult, TakeAborts
from muro.engine.loader import BUILT_IN, build_engine, find_factory, load_engine
from muro.engines.echo import EchoEngine
from muro.errors import ConfigError, MissingExtraError
from muro.testing.paced import PacedEngine


@pytest.fixture(autouse=True)
def imports_as_before() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def silent(phase: str, percent: float) -> None:
    """Nobody looks."""


def load(name: str, *, model: str | None = None, report: Report = silent, **options: Any) -> Any:
    return load_engine(name, model=model, options=options, report=report)


class Options(msgspec.Struct):
    speed: float = 1.0
    name: str = ""
    deep: bool = False


@dataclass
class DataOptions:
    speed: float = 1.0


class Everything(EchoEngine):
    def __init__(self, options: Options, model: str | None, report: Report) -> None:
        super().__init__()
        self.given = (options, model)
        report("weights", 50.0)


def by_function(options: DataOptions) -> EchoEngine:
    engine = EchoEngine()
    engine.options = options  # type: ignore[attr-defined]
    return engine


def by_map(options: dict[str, Any]) -> EchoEngine:
    engine = EchoEngine()
    engine.options = options  # type: ignore[attr-defined]
    return engine


def needs_an_extra() -> EchoEngine:
    raise MissingExtraError("this engine", "openvino")


def test_built_in_names() -> None:
    assert type(load("echo")) is EchoEngine
    assert type(load("paced", step_ms="0.5")) is PacedEngine
    assert set(BUILT_IN) >= {"echo", "paced", "faulty"}


def test_a_factory_gets_what_it_names() -> None:
    seen: list[tuple[str, float]] = []
    engine = build_engine(
        "x",
        Everything,
        model="/models/small",
        options={"speed": "2.5", "deep": "true"},
        report=lambda phase, percent: seen.append((phase, percent)),
    )
    assert engine.given == (Options(speed=2.5, deep=True), "/models/small")  # type: ignore[attr-defined]
    assert seen == [("weights", 50.0)]


def no_engine() -> Any:
    return object()


class Idle(Engine):
    def step(self, take_aborts: TakeAborts) -> StepResult:
        return StepResult([])


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (Idle, "engine 'x': Idle must define add_request, abort_requests, has_work"),
        (no_engine, "engine 'x': object must define add_request, abort_requests, step, has_work"),
    ],
)
def test_what_lacks_a_method_is_no_engine(factory: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build_engine("x", factory, model=None, options={}, report=silent)


def test_options_as_dataclass_and_as_map() -> None:
    built: Any = build_engine("x", by_function, model=None, options={"speed": "3"}, report=silent)
    assert built.options == DataOptions(3.0)
    built = build_engine("x", by_map, model=None, options={"any": {"thing": 1}}, report=silent)
    assert built.options == {"any": {"thing": 1}}


@pytest.mark.parametrize(
    ("factory", "options", "words"),
    [
        (Everything, {"sped": 1}, "engine 'x' has no option sped; it has: deep, name, speed"),
        (Everything, {"speed": "fast"}, r"engine 'x': .*float.*speed"),
        (by_function, {"depth": 1}, "no option depth; it has: speed"),
        (EchoEngine, {"speed": 1}, "takes no options, but was given speed"),
    ],
)
def test_options_that_do_not_fit(factory: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build_engine("x", factory, model=None, options=options, report=silent)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ecko", "neither a built-in one .*echo.* nor of the form"),
        ("", "neither a built-in one"),
        ("module:", "nor of the form"),
        ("muro.engines.echo:Ecko", "muro.engines.echo has no 'Ecko'"),
        ("muro.engines.nothing:Echo", "no module 'muro.engines.nothing'"),
        ("no_such_package.sub:Echo", "no module 'no_such_package'"),
        ("__main__:Echo", "lies in the script itself"),
        ("./nowhere.py:Echo", "'nowhere.py' does not exist"),
        (":Echo", "is not the name of a module"),
        ("..relative:Echo", "is not the name of a module"),
    ],
)
def test_names_that_lead_nowhere(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        find_factory(name)


def test_what_is_no_factory(tmp_path: Path) -> None:
    (tmp_path / "numbers_engine.py").write_text("Engine = 7\n")
    with pytest.raises(ConfigError, match="Engine is a int, not a factory"):
        find_factory(f"{tmp_path}/numbers_engine.py:Engine")


def test_a_file_finds_the_modules_beside_it(tmp_path: Path) -> None:
    (tmp_path / "engine_parts.py").write_text("LENGTH = 3\n")
    (tmp_path / "engine_file.py").write_text(
        "from engine_parts import LENGTH\nfrom muro.engines.echo import EchoEngine\n"
        "class Mine(EchoEngine):\n    length = LENGTH\n"
    )
    assert load(f"{tmp_path}/engine_file.py:Mine").length == 3


def test_a_file_named_like_a_module_in_use_does_not_replace_it(tmp_path: Path) -> None:
    (tmp_path / "queue.py").write_text(
        "from muro.engines.echo import EchoEngine\nclass Mine(EchoEngine):\n    here = __name__\n"
    )
    for _ in range(2):
        engine = load(f"{tmp_path}/queue.py:Mine")
        assert sys.modules["queue"] is queue
        assert sys.modules[engine.here].__file__ == f"{tmp_path}/queue.py"


def test_an_import_that_fails_inside_the_module_is_not_blamed_on_the_name(tmp_path: Path) -> None:
    (tmp_path / "engine_needy.py").write_text("import no_such_dependency\n")
    sys.path.insert(0, str(tmp_path))
    for name in ("engine_needy:Mine", f"{tmp_path}/engine_needy.py:Mine"):
        with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
            find_factory(name)


def test_errors_of_the_factory_pass_as_they_are() -> None:
    with pytest.raises(MissingExtraError):
        build_engine("x", needs_an_extra, model=None, options={}, report=silent)
