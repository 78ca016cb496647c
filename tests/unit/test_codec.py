"""Values as JSON and back: what a type says, and what makes no sense."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.codec import FORGOTTEN, Form, Key, decode, encode, whole
from agent.errors import UsageError


class Colour(StrEnum):
    RED = "red"
    GREEN = "green"


@dataclass(frozen=True)
class Part:
    number: Annotated[int, whole(1, 9)]
    colours: frozenset[Colour] = frozenset()


@dataclass(frozen=True)
class Whole:
    name: str
    parts: tuple[Part, ...]
    pins: Annotated[Mapping[int, int], Key("pinned")] = field(default_factory=dict)
    since: float | None = None
    is_new: bool = False
    looks: Annotated[int, FORGOTTEN] = 0
    upper: Annotated[str, Form(str.upper, lambda value, path: str(value).lower())] = ""


parts = st.builds(Part, st.integers(1, 9), st.frozensets(st.sampled_from(Colour)))
wholes = st.builds(
    Whole,
    st.text(max_size=9),
    st.lists(parts, max_size=3).map(tuple),
    st.dictionaries(st.integers(0, 99), st.integers(0, 99)),
    st.none() | st.floats(0, 1e9),
    st.booleans(),
    st.just(0),
    st.sampled_from(["", "abc"]),
)


@given(wholes)
def test_what_is_written_comes_back(value: Whole) -> None:
    assert decode(Whole, encode(Whole, value)) == value


def test_the_form_is_that_of_the_types() -> None:
    value = Whole("x", (Part(3, frozenset({Colour.RED, Colour.GREEN})),), {7: 1, 5: 2}, looks=4, upper="ab")
    assert encode(Whole, value) == {
        "name": "x",
        "parts": [{"number": 3, "colours": ["green", "red"]}],
        "pinned": {"5": 2, "7": 1},
        "since": None,
        "is_new": False,
        "upper": "AB",
    }


def test_a_field_with_a_default_may_be_missing_and_another_key_is_ignored() -> None:
    assert decode(Whole, {"name": "x", "parts": [], "of_a_later_version": 1}) == Whole("x", ())


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ([], "whole"),
        ({"name": "x"}, "whole.parts"),
        ({"name": 1, "parts": []}, "whole.name"),
        ({"name": "x", "parts": {}}, "whole.parts"),
        ({"name": "x", "parts": [{"number": 0}]}, r"whole.parts\[0\].number"),
        ({"name": "x", "parts": [{"number": True}]}, r"whole.parts\[0\].number"),
        ({"name": "x", "parts": [{"number": 1, "colours": ["blue"]}]}, r"whole.parts\[0\].colours\[0\]"),
        ({"name": "x", "parts": [], "pinned": {"a": 1}}, "whole.pinned"),
        ({"name": "x", "parts": [], "pinned": {"1": -1}}, "whole.pinned.1"),
        ({"name": "x", "parts": [], "since": "noon"}, "whole.since"),
        ({"name": "x", "parts": [], "is_new": 1}, "whole.is_new"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_place(value: Any, path: str) -> None:
    with pytest.raises(UsageError, match=f"^{path}: expected"):
        decode(Whole, value, "whole")
