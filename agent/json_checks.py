"""Strict checks of parsed JSON: each function returns a value of its type, or raises UsageError. Pure.

`path` is the value's position, such as `groups[0].resources.VCPU`. The error's sentence begins with the path
and says what is allowed there; its details contain the path.
"""

from collections.abc import Collection, Mapping
from re import Pattern
from typing import Any
from uuid import UUID

from agent.errors import UsageError, counted

_SHOWN_MAX = 60
_KEY_MAX = 255
_KEY_SHOWN = 200
_UID_MAX = 2**32 - 1


def fault(path: str, wanted: str, value: object) -> UsageError:
    """The error for a value that is not what `wanted` describes."""
    shown = repr(value)
    if len(shown) > _SHOWN_MAX:
        shown = f"{shown[:_SHOWN_MAX]}…"
    return UsageError(f"{path or 'the body'}: expected {wanted}, not {shown}.", path=path)


def read_object(value: object, path: str, allowed: Collection[str] | None = None) -> Mapping[str, Any]:
    """An object whose keys are all in `allowed` (None: any keys)."""
    if not isinstance(value, dict):
        raise fault(path, "an object", value)
    if allowed is not None:
        for key in value:
            if key not in allowed:
                raise UsageError(
                    f"{below(path, key)}: unknown key; allowed are {', '.join(allowed)}.",
                    path=below(path, key),
                )
    return value


def read_list(value: object, path: str) -> list[Any]:
    """A list, whose items are not checked."""
    if not isinstance(value, list):
        raise fault(path, "a list", value)
    return value


def read_text(
    value: object, path: str, pattern: Pattern[str] | None = None, wanted: str = "a text", longest: int = 255
) -> str:
    """A text of at most `longest` characters that matches the whole pattern; `wanted` describes it."""
    if isinstance(value, str) and len(value) > longest:
        raise UsageError(
            f"{path or 'the body'}: {counted(len(value), 'character')} are too many; at most {longest} are "
            "possible.",
            path=path,
        )
    if not isinstance(value, str) or (pattern and not pattern.fullmatch(value)):
        raise fault(path, wanted, value)
    return value


def read_choice(value: object, path: str, choices: Collection[str]) -> str:
    """One of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise fault(path, f"one of {', '.join(choices)}", value)
    return value


def read_whole(value: object, path: str, least: int, most: int) -> int:
    """A whole number from `least` to `most`, both included."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise fault(path, f"a whole number between {least} and {most}", value)
    return value


def read_seconds(value: object, path: str) -> float:
    """A number of seconds, whole or not."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise fault(path, "a number of seconds", value)
    return float(value)


def read_uid(value: object, path: str) -> int:
    """The number of a user of the system."""
    return read_whole(value, path, 0, _UID_MAX)


def read_truth(value: object, path: str) -> bool:
    """The truth value. Raises UsageError for anything but true and false."""
    if not isinstance(value, bool):
        raise fault(path, "true or false", value)
    return value


def read_uuid(value: object, path: str) -> str:
    """A uuid, in its dashed lower-case form."""
    if isinstance(value, str):
        try:
            return str(UUID(value))
        except ValueError:
            pass
    raise fault(path, "a uuid", value)


def below(path: str, key: str) -> str:
    """The path of an object's key, of which the beginning is enough where it is longer than any name."""
    key = key if len(key) <= _KEY_MAX else f"{key[:_KEY_SHOWN]}..."
    return f"{path}.{key}" if path else key
