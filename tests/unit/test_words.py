"""A number has the noun, and the verb, that belong to it: `agent.errors`."""

import ast
import re
from pathlib import Path

import pytest
from kits.paths import CHECKOUT

from agent.errors import counted, first_few

NOUNS = (
    "allocation|cell|change|check|claim|consumer|CPU|device|difference|domain|error|event|"
    "file|finding|function|group|guest|instance|invariant|item|line|migration|move|node|"
    "operation|page|place|problem|provider|reason|reshape|time|unit|write"
)
PLURAL = re.compile(rf" (?:(?:more|other|broken|shared|virtual|NUMA|free) )*(?:{NOUNS})s\b")
"""Nouns in the plural right behind a value, with an adjective or without."""
NAMED_BY_A_LIMIT = re.compile(r"[A-Z_]+_MAX|[A-Z_]+_MIN")


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 providers"), (1, "1 provider"), (2, "2 providers"), (11, "11 providers")]
)
def test_the_noun_follows_the_number(number: int, said: str) -> None:
    assert counted(number, "provider") == said


def test_the_verb_follows_it_too() -> None:
    assert counted(1, "guest runs", "guests run") == "1 guest runs"
    assert counted(3, "guest runs", "guests run") == "3 guests run"


def test_the_first_few_say_how_many_more_there_are() -> None:
    assert first_few(["a", "b"], 2) == "a, b" and first_few([], 2) == ""
    assert first_few(["a", "b", "c"], 2) == "a, b and 1 more"
    assert first_few(["a", "b", "c", "d"], 2, "; ") == "a; b; and 2 more"


def plurals_behind_values(path: Path) -> list[str]:
    """Texts such as f"{number} claims" in the module, which are wrong for 1."""
    found: list[str] = []
    source = path.read_text(encoding="utf-8")
    if not re.search(r"\}" + PLURAL.pattern, source):
        return found
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, text in zip(node.values, node.values[1:], strict=False):
            if isinstance(value, ast.FormattedValue) and isinstance(text, ast.Constant):
                number = ast.unparse(value.value)
                if PLURAL.match(str(text.value)) and not NAMED_BY_A_LIMIT.fullmatch(number):
                    found.append(f"{path.relative_to(CHECKOUT)}:{value.lineno}: {{{number}}}{text.value}")
    return found


def test_no_text_has_a_plural_behind_a_number_that_may_be_one() -> None:
    modules = [path for folder in ("agent", "drivers") for path in (CHECKOUT / folder).rglob("*.py")]
    found = [line for path in modules for line in plurals_behind_values(path)]
    assert len(modules) > 150 and found == []
