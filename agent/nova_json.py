"""The JSON objects of nova's [pci] options, read key by key: what an operator wrote, or why not. Pure.

Each raises ValueError with the key and what is wrong with its value; None is a key that is not there.
"""

from collections.abc import Collection, Mapping
from typing import Any

from agent.device_names import hexadecimal_id

_WORDS = {
    **dict.fromkeys(("yes", "true", "on", "1"), True),
    **dict.fromkeys(("no", "false", "off", "0"), False),
}
"""nova's configuration writes a flag as text."""


def known_object(data: object, keys: Collection[str]) -> Mapping[str, Any]:
    """An object that has no other keys than these."""
    if not isinstance(data, dict):
        raise ValueError("an object was expected")
    unknown = sorted(data.keys() - set(keys))
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not known; there are {', '.join(sorted(keys))}")
    return data


def text_of(data: Mapping[str, Any], key: str) -> str | None:
    """Text without blanks around it; there must be some."""
    value = data.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key} must be text, not {value!r}")
    return value.strip()


def id_of(data: Mapping[str, Any], key: str) -> str | None:
    """A vendor's or product's id as four lower-case hexadecimal digits."""
    text = text_of(data, key)
    try:
        return None if text is None else hexadecimal_id(text)
    except ValueError as error:
        raise ValueError(f"{key} {error}") from error


def flag_of(data: Mapping[str, Any], key: str) -> bool | None:
    """JSON's true or false, or one of nova's words for them."""
    value = data.get(key)
    if value is None or isinstance(value, bool):
        return value
    found = _WORDS.get(value.strip().lower()) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f"{key} must be true or false, not {value!r}")
    return found
