"""Values as JSON and back, by the types of their fields. Pure.

A frozen dataclass is an object of its fields, a mapping an object, a tuple a list, a frozenset a sorted list,
and an enumeration its value. A field with a default may be missing, and other keys are ignored, so that
agents of different versions read each other's records. What a type does not say, its `Annotated` metadata do:

    Annotated[str, read_uuid]              a check of agent.json_checks, or another (value, path) -> value
    Annotated[int, Key("cell")]            the key of a field, where that is not the field's name
    Annotated[int, FORGOTTEN]              a field that is not written, and has its default when it is read
    Annotated[Claim, Form(write, read)]    a form of its own

The functions for a type are made once. They raise UsageError, with the path of the value that is invalid.
"""

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from agent import json_checks
from agent.tree import MAX_UNIT

T = TypeVar("T")
Json = Any
Encoder = Callable[[Any], Json]
Decoder = Callable[[object, str], Any]


@dataclass(frozen=True, slots=True)
class Key:
    """The key of a field in JSON."""

    name: str


class Form(NamedTuple):
    """How a value is written, and read: the inverse, of a value and its path."""

    write: Encoder
    read: Decoder


FORGOTTEN = "forgotten"
"""Metadata of a field that is not written."""


def encode(kind: Any, value: object) -> Json:
    """The value, which is a `kind`, as JSON."""
    return _encoder(kind)(value)


def decode(kind: type[T], value: object, path: str = "") -> T:
    """The `kind` of that JSON. Raises UsageError where a value is missing or invalid."""
    return cast(T, _decoder(cast(Any, kind))(value, path))


def whole(least: int, most: int = MAX_UNIT) -> Decoder:
    """The check of a whole number from `least` to `most`."""
    return lambda value, path: json_checks.read_whole(value, path, least, most)


class _Field(NamedTuple):
    name: str
    key: str
    kind: Any
    is_needed: bool


def _fields(kind: Any) -> list[_Field]:
    """The fields of a dataclass that are in its JSON."""
    hints = get_type_hints(kind, include_extras=True)
    stored = []
    for each in fields(kind):
        metadata = getattr(hints[each.name], "__metadata__", ())
        if FORGOTTEN not in metadata:
            key = next((item.name for item in metadata if isinstance(item, Key)), each.name)
            is_needed = each.default is MISSING and each.default_factory is MISSING
            stored.append(_Field(each.name, key, hints[each.name], is_needed))
    return stored


@cache
def _encoder(kind: Any) -> Encoder:
    base, arguments = get_origin(kind), get_args(kind)
    if base is Annotated:
        form = next((item for item in kind.__metadata__ if isinstance(item, Form)), None)
        return form.write if form else _encoder(arguments[0])
    if base in (Union, types.UnionType):
        some = _encoder(arguments[0])
        return lambda value: None if value is None else some(value)
    if base is Mapping:
        item = _encoder(arguments[1])
        if _plain(arguments[0]) is int:
            return lambda value: {str(key): item(value[key]) for key in sorted(value)}
        return _same if item is _same else lambda value: {key: item(each) for key, each in value.items()}
    if base in (tuple, list):
        item = _encoder(arguments[0])
        return list if item is _same else lambda value: [item(each) for each in value]
    if base is frozenset:
        return sorted
    if is_dataclass(kind):
        parts = [(each.name, each.key, _encoder(each.kind)) for each in _fields(kind)]
        return lambda value: {key: write(getattr(value, name)) for name, key, write in parts}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return lambda value: value.value
    return _same


def _same(value: Any) -> Any:
    return value


@cache
def _decoder(kind: Any) -> Decoder:
    base, arguments = get_origin(kind), get_args(kind)
    if base is Annotated:
        for note in kind.__metadata__:
            if isinstance(note, Form):
                return note.read
            if callable(note):
                return cast(Decoder, note)
        return _decoder(arguments[0])
    if base in (Union, types.UnionType):
        some = _decoder(arguments[0])
        return lambda value, path: None if value is None else some(value, path)
    if base is Mapping:
        return _mapping(*arguments)
    if base in (tuple, list, frozenset):
        item = _decoder(arguments[0])
        return lambda value, path: base(
            item(each, f"{path}[{number}]") for number, each in enumerate(json_checks.read_list(value, path))
        )
    if is_dataclass(kind):
        return _dataclass(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return lambda value, path: kind(json_checks.read_choice(value, path, [each.value for each in kind]))
    return _PLAIN[kind]


_PLAIN: Mapping[Any, Decoder] = {
    str: json_checks.read_text,
    int: whole(0),
    float: json_checks.read_seconds,
    bool: json_checks.read_truth,
    Any: lambda value, _: value,
}


def _plain(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _mapping(key_kind: Any, item_kind: Any) -> Decoder:
    read_key, read_item = _decoder(key_kind), _decoder(item_kind)

    def read(value: object, path: str) -> Mapping[Any, Any]:
        given: Mapping[Any, Any] = json_checks.read_object(value, path)
        if _plain(key_kind) is int:
            for key in given:
                if not key.isdecimal():
                    raise json_checks.fault(path, "numbers as keys", key)
            given = {int(key): item for key, item in given.items()}
        return {
            read_key(key, path): read_item(item, json_checks.below(path, str(key)))
            for key, item in given.items()
        }

    return read


def _dataclass(kind: Any) -> Decoder:
    parts = [(each, _decoder(each.kind)) for each in _fields(kind)]

    def read(value: object, path: str) -> Any:
        given = json_checks.read_object(value, path)
        return kind(
            **{
                part.name: read_part(given.get(part.key), json_checks.below(path, part.key))
                for part, read_part in parts
                if part.is_needed or part.key in given
            }
        )

    return read
