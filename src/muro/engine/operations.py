"""Run a listed operation: look it up, convert its arguments, answer now or later.

Only methods marked with `@operation` can be reached; there is no way from a name on the wire to any other
attribute of the engine.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from muro.errors import InvalidRequestError, UnknownOperationError


class Operation:
    """One callable operation with its positional parameters, as annotated."""

    def __init__(self, name: str, method: Callable[..., Any]) -> None:
        self.name = name
        self._method = method
        hints = typing.get_type_hints(method, include_extras=True)
        parameters = [p for p in inspect.signature(method).parameters.values() if p.kind is not p.VAR_KEYWORD]
        self._variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        self._parameters = [(p.name, hints.get(p.name, Any)) for p in parameters if p.kind is not p.VAR_POSITIONAL]
        self.required = sum(p.default is p.empty and p.kind is not p.VAR_POSITIONAL for p in parameters)
        """Arguments that must be given."""

    def run(self, args: list[Any], named: Mapping[str, Any] | None = None) -> Any:
        """Call it. Raises InvalidRequestError for arguments that do not fit, else what the method raises."""
        if named:
            return self._run_named(args, named)
        if len(args) < self.required or (len(args) > len(self._parameters) and not self._variadic):
            raise self._unfit(f"{len(args)} arguments")
        return self._method(*self._convert(args)) if args else self._method()

    def _run_named(self, args: list[Any], named: Mapping[str, Any]) -> Any:
        left = dict(self._parameters[len(args) :])
        needed = [name for name, _ in self._parameters[len(args) : self.required]]
        if len(args) > len(self._parameters) or not set(needed) <= set(named) <= set(left):
            raise self._unfit(f"{len(args)} arguments and {', '.join(sorted(named))[:100]}")
        return self._method(
            *self._convert(args), **{name: self._converted(name, value, left[name]) for name, value in named.items()}
        )

    def _unfit(self, given: str) -> InvalidRequestError:
        names = ", ".join(name for name, _ in self._parameters)
        return InvalidRequestError(f"{self.name}({names}) was called with {given}")

    def _convert(self, args: list[Any]) -> list[Any]:
        converted = list(args)
        for position, (name, annotation) in enumerate(self._parameters[: len(args)]):
            converted[position] = self._converted(name, args[position], annotation)
        return converted

    def _converted(self, name: str, value: Any, annotation: Any) -> Any:
        try:
            return msgspec.convert(value, annotation)
        except msgspec.ValidationError as error:
            raise InvalidRequestError(f"argument {name} of {self.name}: {error}", param=name) from None


def declared_operations(owner: object) -> dict[str, Operation]:
    """The marked methods of an object, by name."""
    found = {}
    for name in dir(type(owner)):
        if getattr(getattr(type(owner), name, None), "__muro_operation__", False):
            found[name] = Operation(name, getattr(owner, name))
    return found


def find_operation(operations: Mapping[str, Operation], name: str, engine_name: str) -> Operation:
    """Look a name up. Raises UnknownOperationError that names the engine and what it offers."""
    try:
        return operations[name]
    except KeyError:
        offered = ", ".join(sorted(operations))
        raise UnknownOperationError(
            f"{engine_name} has no operation {name[:64]!r}; it offers: {offered}", method=name
        ) from None
