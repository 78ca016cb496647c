"""Checks of input, as small functions that are combined like a schema.

A `SchemaCheck` takes a value and its place, and returns the value (a float such as 3.0 as an int, as JSON
Schema defines it) or raises `Invalid` with a sentence that names the place. A claim is checked on the hot
path: this takes microseconds, a schema library takes hundreds.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any

SchemaCheck = Callable[[Any, str], Any]

MAX_INT = 2**31 - 1
_SURROGATE = re.compile("[\ud800-\udfff]")  # valid as escapes in JSON, but not in UTF-8


class Invalid(Exception):
    """A value is invalid; the message has the place and what was expected."""


def integer(minimum: int | None = None, maximum: int | None = None) -> SchemaCheck:
    """A whole number between both limits, inclusive; 3.0 is one, true is not."""

    def check(value: Any, where: str) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise Invalid(f"{where} must be an integer, not {_shown(value)}.")
        if minimum is not None and value < minimum:
            raise Invalid(f"{where} must be at least {minimum}, not {value}.")
        if maximum is not None and value > maximum:
            raise Invalid(f"{where} must be at most {maximum}, not {value}.")
        return value

    return check


def number(maximum: float) -> SchemaCheck:
    """A finite number up to `maximum`, inclusive."""

    def check(value: Any, where: str) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise Invalid(f"{where} must be a number, not {_shown(value)}.")
        if not math.isfinite(value) or value > maximum:
            raise Invalid(f"{where} must be at most {maximum:g}, not {value}.")
        return value

    return check


def string(minimum: int = 0, maximum: int | None = None, pattern: str | None = None) -> SchemaCheck:
    """Text with `minimum` to `maximum` characters that contains a match of `pattern`, without surrogates."""
    match = re.compile(pattern).search if pattern else None

    def check(value: Any, where: str) -> str:
        if not isinstance(value, str):
            raise Invalid(f"{where} must be a string, not {_shown(value)}.")
        if len(value) < minimum or (maximum is not None and len(value) > maximum):
            raise Invalid(f"{where} must have {minimum} to {maximum} characters, not {len(value)}.")
        if match is not None and not match(value):
            raise Invalid(f"{where} must match {pattern}, which {value!r} does not.")
        if not value.isascii() and _SURROGATE.search(value):
            raise Invalid(f"{where} has half a character in it (a lone surrogate): {_shown(value)}.")
        return value

    return check


def nullable(inner: SchemaCheck) -> SchemaCheck:
    """None, or a value that passes `inner`."""
    return lambda value, where: None if value is None else inner(value, where)


def array(items: SchemaCheck, minimum: int = 0, unique: bool = False) -> SchemaCheck:
    """At least `minimum` items that each pass `items`; `unique`: no two of them equal."""

    def check(value: Any, where: str) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise Invalid(f"{where} must be an array, not {_shown(value)}.")
        if len(value) < minimum:
            raise Invalid(f"{where} must have {minimum} or more items.")
        checked = [items(item, f"{where}[{index}]") for index, item in enumerate(value)]
        if unique and len(set(checked)) != len(checked):
            raise Invalid(f"{where} must not name anything twice.")
        return checked

    return check


def record(
    required: Mapping[str, SchemaCheck], optional: Mapping[str, SchemaCheck] | None = None
) -> SchemaCheck:
    """An object with all of the `required` keys, and no others but the `optional` ones."""
    known = {**required, **(optional or {})}

    def check(value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise Invalid(f"{where} must be an object, not {_shown(value)}.")
        checked: dict[str, Any] = {}
        for key, item in value.items():
            inner = known.get(key)
            if inner is None:
                raise Invalid(f"{where} has {key!r}, which is not known here.")
            checked[key] = inner(item, f"{where}.{key}")
        for key in required:
            if key not in checked:
                raise Invalid(f"{where} needs {key!r}.")
        return checked

    return check


def mapping(key_pattern: str, items: SchemaCheck, minimum: int = 0) -> SchemaCheck:
    """At least `minimum` keys, all of which match `key_pattern`, with values that pass `items`."""
    match = re.compile(key_pattern).search

    def check(value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise Invalid(f"{where} must be an object, not {_shown(value)}.")
        if len(value) < minimum:
            raise Invalid(f"{where} must not be empty.")
        checked: dict[str, Any] = {}
        for key, item in value.items():
            if not isinstance(key, str) or not match(key):
                raise Invalid(f"{where} has the key {_shown(key)}, which does not match {key_pattern}.")
            checked[key] = items(item, f"{where}.{key}")
        return checked

    return check


def loose_uuid(value: Any, where: str) -> str:
    """A UUID in any form: with or without dashes, braces and urn prefix, in upper or lower case."""
    if not isinstance(value, str) or not is_loose_uuid(value):
        raise Invalid(f"{where} must be a UUID, not {_shown(value)}.")
    return value


def dashed_uuid(value: Any, where: str) -> str:
    """A UUID with dashes, as query parameters require."""
    if is_loose_uuid(value) and all(value[index : index + 1] == "-" for index in (8, 13, 18, 23)):
        return str(value)
    raise Invalid(f"{where} must be a UUID with dashes, not {_shown(value)}.")


def is_loose_uuid(value: Any) -> bool:
    """Whether Placement accepts the value as a UUID: dashes, braces and "urn:uuid:" are optional."""
    if not isinstance(value, str):
        return False
    digits = value.replace("urn:", "").replace("uuid:", "").strip("{}").replace("-", "").lower()
    try:
        return uuid.UUID(value).hex == digits
    except ValueError:
        return False


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."
