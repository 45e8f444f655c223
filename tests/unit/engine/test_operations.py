"""Operations: only what is marked can be reached, and arguments become what the method asks for."""

import enum
from typing import Any

import msgspec
import pytest

from muro.engine.interface import operation
from muro.engine.operations import declared_operations, find_operation
from muro.errors import InvalidRequestError, UnknownOperationError


class Mode(enum.Enum):
    WAIT = "wait"
    ABORT = "abort"


class Adapter(msgspec.Struct, array_like=True):
    name: str
    number: int


class Owner:
    secret = "not an operation"

    @operation
    def sleep(self, level: int = 1, mode: Mode = Mode.ABORT) -> tuple[int, Mode]:
        return level, mode

    @operation
    def add(self, adapter: Adapter) -> str:
        return f"{adapter.name} {adapter.number}"

    @operation
    def gather(self, first: int, *rest: Any) -> list[Any]:
        return [first, *rest]

    def private(self) -> None:
        """Not marked."""


class Heir(Owner):
    @operation
    def add(self, adapter: Adapter) -> str:
        return "mine"

    def sleep(self, level: int = 1, mode: Mode = Mode.ABORT) -> tuple[int, Mode]:  # no longer marked
        return 0, mode


def run(name: str, *args: Any, owner: Owner | None = None) -> Any:
    return find_operation(declared_operations(owner or Owner()), name, "engine 'x'").run(list(args))


def test_arguments_become_the_annotated_types() -> None:
    assert run("sleep", 2, "wait") == (2, Mode.WAIT)
    assert run("add", ["a", 7]) == "a 7"


def test_defaults_fill_what_is_left_out() -> None:
    assert run("sleep") == (1, Mode.ABORT)
    assert run("sleep", 2) == (2, Mode.ABORT)


def test_variadic_arguments_pass_as_they_are() -> None:
    assert run("gather", 1, [2], None) == [1, [2], None]


@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        ("sleep", ["two"], "argument level of sleep"),
        ("sleep", [1, "never"], "argument mode of sleep"),
        ("sleep", [1, "wait", 3], r"sleep\(level, mode\) was called with 3 arguments"),
        ("add", [], r"add\(adapter\) was called with 0 arguments"),
        ("add", [{"name": "a"}], "argument adapter of add"),
        ("gather", [], "called with 0 arguments"),
    ],
)
def test_arguments_that_do_not_fit(name: str, args: list[Any], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        run(name, *args)


@pytest.mark.parametrize("name", ["private", "secret", "__init__", "__class__", "nothing", ""])
def test_nothing_else_can_be_reached(name: str) -> None:
    with pytest.raises(UnknownOperationError, match=r"engine 'x' has no operation .*it offers: add, gather, sleep"):
        run(name)


def test_a_long_name_is_not_repeated_whole() -> None:
    with pytest.raises(UnknownOperationError) as caught:
        run("n" * 100_000)
    assert len(str(caught.value)) < 500


def test_a_subclass_replaces_and_withdraws_operations() -> None:
    assert run("add", ["a", 7], owner=Heir()) == "mine"
    assert "sleep" not in declared_operations(Heir())


def test_how_many_arguments_are_required() -> None:
    found = declared_operations(Owner())
    assert {name: found[name].required for name in found} == {"sleep": 0, "add": 1, "gather": 1}


# Arguments by name


def run_named(name: str, args: list[Any], **named: Any) -> Any:
    return declared_operations(Owner())[name].run(args, named)


def test_arguments_by_name_are_converted_too() -> None:
    assert run_named("sleep", [], mode="wait") == (1, Mode.WAIT)
    assert run_named("sleep", [2], mode="wait") == (2, Mode.WAIT)
    assert run_named("add", [], adapter=["a", 7]) == "a 7"


@pytest.mark.parametrize(
    ("name", "args", "named"),
    [
        ("sleep", [2], {"level": 1}),
        ("sleep", [], {"depth": 1}),
        ("sleep", [2, "wait", 3], {"mode": "wait"}),
        ("gather", [], {"rest": [1]}),
        ("sleep", [], {"level": "deep"}),
    ],
)
def test_names_that_do_not_fit(name: str, args: list[Any], named: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        run_named(name, args, **named)
