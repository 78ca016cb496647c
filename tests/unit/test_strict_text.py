from collections.abc import Callable, Mapping
from typing import Any

import pytest
import yaml

from agent.strict_text import UniqueKeyLoader, flag_of, id_of, known_object, text_of


def load(text: str) -> Any:
    return yaml.load(text, Loader=UniqueKeyLoader)


def test_a_mapping_with_unique_keys_is_read() -> None:
    assert load("a: {b: 1, c: [2, {b: 3}]}") == {"a": {"b": 1, "c": [2, {"b": 3}]}}


@pytest.mark.parametrize("text", ["a: 1\na: 2", "x: {a: 1, a: 1}", "- {1: x, '1': y}"])
def test_a_repeated_key_is_named_with_its_line(text: str) -> None:
    with pytest.raises(yaml.MarkedYAMLError, match=r"the key '[a1]' is there twice(.|\n)*line [12]"):
        load(text)


def test_a_tag_that_would_call_python_is_refused() -> None:
    with pytest.raises(yaml.YAMLError):
        load("!!python/object/apply:os.getcwd []")


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
