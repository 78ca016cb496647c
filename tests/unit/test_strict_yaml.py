from typing import Any

import pytest
import yaml

from agent.strict_yaml import UniqueKeyLoader


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
