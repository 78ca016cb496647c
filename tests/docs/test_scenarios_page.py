"""docs/scenarios.md names tests that there are, and each of them says which scenario it holds."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest
from kits.paths import TESTS

TEXT = (TESTS.parent / "docs" / "scenarios.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (\d+) \| (.+) \| (.+) \|$", TEXT, re.MULTILINE)
NUMBERS = [
    *(
        1,
        2,
        4,
        5,
        7,
        8,
        10,
        11,
        13,
        14,
        16,
        17,
        19,
        20,
        22,
        23,
        25,
        26,
        28,
        29,
        31,
        32,
        34,
        35,
        37,
        38,
        40,
        41,
    ),
    *(43, 44, 46, 47, 49, 50, 52, 53, 55, 56, 58, 59, 61, 62, 64, 65, 67, 68, 70, 71, 73, 74, 76, 77, 79, 80),
    *(82, 83, 85, 86, 88, 89, 91, 92, 94, 95, 97, 98, 100, 101, 103, 104, 106, 107, 109, 110, 112, 113),
]


def named() -> Iterator[tuple[int, str, str]]:
    for number, _, held_by in ROWS:
        for path, name in re.findall(r"`([\w/]+\.py)::(\w+)`", held_by):
            yield int(number), path, name


@cache
def docstrings(path: str) -> dict[str, str]:
    tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
    return {
        node.name: ast.get_docstring(node) or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
    }


def test_every_scenario_is_there_once_and_held_by_a_test() -> None:
    assert [int(number) for number, _, _ in ROWS] == NUMBERS
    assert {number for number, path, _ in named() if path.startswith("functional/")} == set(NUMBERS)


@pytest.mark.parametrize(("number", "path", "name"), list(named()))
def test_a_named_test_is_there_and_says_what_it_holds(number: int, path: str, name: str) -> None:
    said = re.match(r"Scenarios? ((?:\d+(?:, | and )?)+)", docstrings(path)[name])
    assert said, name
    assert number in map(int, re.findall(r"\d+", said[1]))
