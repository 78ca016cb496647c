"""The JSON objects of nova's [pci] options, key by key."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from agent.nova_json import flag_of, id_of, known_object, text_of


def test_values_are_read_by_key() -> None:
    data = known_object(
        {"name": " gpu ", "vendor": "10DE", "managed": "no", "live": True},
        ("name", "vendor", "managed", "live"),
    )
    assert (text_of(data, "name"), id_of(data, "vendor")) == ("gpu", "10de")
    assert (flag_of(data, "managed"), flag_of(data, "live")) == (False, True)
    assert text_of(data, "none") is id_of(data, "none") is flag_of(data, "none") is None


@pytest.mark.parametrize(
    ("read", "value"), [(text_of, " "), (text_of, 1), (id_of, "xyz"), (flag_of, "maybe"), (flag_of, 1)]
)
def test_an_error_names_the_key(read: Callable[[Mapping[str, Any], str], object], value: object) -> None:
    with pytest.raises(ValueError, match=r"^key "):
        read({"key": value}, "key")


def test_unknown_keys_and_other_values_are_refused() -> None:
    with pytest.raises(ValueError, match="'b' is not known; there are a"):
        known_object({"a": 1, "b": 2}, ("a",))
    with pytest.raises(ValueError, match="an object was expected"):
        known_object([], ())
