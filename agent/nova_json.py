"""Reads the JSON objects of nova's [pci] options, such as `device_spec` and `alias`, key by key. Pure.

Each function raises ValueError with the key and the problem of its value; all but `read_json` return None for
a missing key.
Source: https://docs.openstack.org/nova/latest/configuration/config.html#pci
"""

import json
from collections.abc import Collection, Mapping
from typing import Any

from agent.device_names import hexadecimal_id

_WORDS = {
    **dict.fromkeys(("yes", "true", "on", "1"), True),
    **dict.fromkeys(("no", "false", "off", "0"), False),
}
"""nova's configuration writes a flag as text."""


def read_json(text: str) -> object:
    """The value; a key that stands twice in an object is an error, where JSON's own reader takes the last."""
    return json.loads(text, object_pairs_hook=_without_twins)


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    given = dict(pairs)
    if len(given) < len(pairs):
        names = [name for name, _ in pairs]
        twin = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twin} is given twice")
    return given


def known_object(data: object, keys: Collection[str]) -> Mapping[str, Any]:
    """The object, which may have only these keys."""
    if not isinstance(data, dict):
        raise ValueError("an object was expected")
    unknown = sorted(data.keys() - set(keys))
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not known; there are {', '.join(sorted(keys))}")
    return data


def text_of(data: Mapping[str, Any], key: str) -> str | None:
    """The text without surrounding blanks; empty text is an error."""
    value = data.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key} must be text, not {value!r}")
    return value.strip()


def id_of(data: Mapping[str, Any], key: str) -> str | None:
    """A vendor or product id as four lower-case hexadecimal digits."""
    text = text_of(data, key)
    try:
        return None if text is None else hexadecimal_id(text)
    except ValueError as error:
        raise ValueError(f"{key} {error}") from error


def flag_of(data: Mapping[str, Any], key: str) -> bool | None:
    """A JSON boolean, or one of nova's words for it (yes, true, on, 1, no, false, off, 0)."""
    value = data.get(key)
    if value is None or isinstance(value, bool):
        return value
    flag = _WORDS.get(value.strip().lower()) if isinstance(value, str) else None
    if flag is None:
        raise ValueError(f"{key} must be true or false, not {value!r}")
    return flag
