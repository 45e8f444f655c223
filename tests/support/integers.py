"""Every place of a request where an integer may stand, found by looking at the message types themselves."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import inspect as types

from muro.wire.request import EngineCoreRequest

Build = Callable[[Any], Any]
"""Makes the value of a whole field with the given value at one place in it."""

_NEEDED: dict[type, Any] = {types.StrType: "x", types.IntType: 1, types.ListType: [], types.NoneType: None}


def integer_places() -> Iterator[tuple[str, int, Build]]:
    """Name, position in the request, and how to build the value of that position."""
    for position, field in enumerate(_fields(types.type_info(EngineCoreRequest))):
        for name, build in _places(field.type):
            yield field.name + name, position, build


def _places(kind: types.Type) -> Iterator[tuple[str, Build]]:
    match kind:
        case types.IntType():
            yield "", lambda value: value
        case types.UnionType():
            for choice in kind.types:
                yield from _places(choice)
        case types.ListType():
            for name, build in _places(kind.item_type):
                yield "[]" + name, lambda value, build=build: [build(value)]
        case types.DictType(key_type=types.IntType()):
            yield "{}", lambda value: {value: 1.0}
        case types.DictType():
            for name, build in _places(kind.value_type):
                yield "{}" + name, lambda value, build=build: {"x": build(value)}
        case types.StructType():
            yield from _places_of_struct(kind)


def _places_of_struct(kind: types.StructType) -> Iterator[tuple[str, Build]]:
    fields = _fields(kind)
    for position, field in enumerate(fields):
        for name, build in _places(field.type):
            yield f".{field.name}{name}", _struct_builder(kind, position, build)


def _struct_builder(kind: types.StructType, position: int, build: Build) -> Build:
    fields = _fields(kind)

    def make(value: Any) -> Any:
        if kind.array_like:
            return [build(value) if i == position else _filler(field) for i, field in enumerate(fields[: position + 1])]
        wanted = {field.encode_name: _filler(field) for field in fields if field.required}
        return {**wanted, fields[position].encode_name: build(value)}

    return make


def _fields(kind: types.Type) -> tuple[types.Field, ...]:
    assert isinstance(kind, types.StructType)
    return kind.fields


def _filler(field: types.Field) -> Any:
    """Something that fits, for a field beside the one in question."""
    if not field.required:
        if field.default_factory is not msgspec.NODEFAULT:
            return field.default_factory()
        return field.default
    if isinstance(field.type, types.StructType):
        return {inner.encode_name: _filler(inner) for inner in _fields(field.type) if inner.required}
    kinds = field.type.types if isinstance(field.type, types.UnionType) else (field.type,)
    return next(_NEEDED[type(kind)] for kind in reversed(kinds) if type(kind) in _NEEDED)
