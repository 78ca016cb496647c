"""What a sentence advises can be done as it is written."""

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.tracker import uuid_of

from agent.cli.parser import build
from agent.errors import UsageError, by_force

ROOT = Path(__file__).parents[2]
COMMAND = re.compile(r"`plimsoll ([^`]+)`")
RELEASE = re.compile(
    r"\brelease (it|the claim(?! of)|its claim|the consumer|these allocations|that one)\b", re.I
)
VALUE = uuid_of("what a sentence names")

NO_GUEST_RUNS = (
    "has a claim of",  # the guest is about to start
    "Placement holds nothing for",  # likewise
    "has MOVED AWAY: it is on this host",  # the other guest was removed
    "has a claim and an allocation, but no guest on this host",
    "A claim that is older than an hour",
    "None: release the claim if its instance was deleted or did not start",
)
"""Sentences that advise a release, of a claim whose guest does not run."""
GENERAL = (
    "Placement has other amounts than the claim, on a shared provider",
    "The amounts of the claim are written again.",
    "The claim gets the units that the guest uses, together with",
    "The claim gets what the guest uses, together with those whose units",
)
"""Rows of the table of findings, whose findings say it."""


def _texts() -> Iterator[tuple[str, str]]:
    """(place, text) of each string of the agent that is no docstring; what is put in, is VALUE."""
    for path in sorted((ROOT / "agent").rglob("*.py")):
        tree = ast.parse(path.read_text())
        skipped: set[int] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr):  # a docstring
                skipped.add(id(node.value))
            if isinstance(node, ast.JoinedStr):
                skipped |= {id(part) for part in node.values}
        for node in ast.walk(tree):
            if id(node) in skipped:
                continue
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{path.name}:{node.lineno}", node.value
            elif isinstance(node, ast.JoinedStr):
                yield f"{path.name}:{node.lineno}", "".join(map(_spelt, node.values))


def _spelt(part: ast.expr) -> str:
    if isinstance(part, ast.Constant):
        return str(part.value)
    assert isinstance(part, ast.FormattedValue)
    return by_force(VALUE) if "by_force" in ast.unparse(part) or "_end_of" in ast.unparse(part) else VALUE


def test_a_command_that_a_sentence_advises_can_be_given_as_it_is_written() -> None:
    """Those that are only named, as `plimsoll explain`, have no arguments to be wrong."""
    commands = {(place, found) for place, text in _texts() for found in COMMAND.findall(text)}
    parser, checked = build(), 0
    for place, command in sorted(commands):
        words = command.split()
        if "COMMAND" in words or all(re.fullmatch(r"[a-z-]+", word) and word[0] != "-" for word in words):
            continue
        try:
            parser.parse_args(words)
        except (SystemExit, UsageError, argparse.ArgumentError) as error:
            pytest.fail(f"{place}: `plimsoll {command}`: {error}")
        checked += 1
    assert checked > 20


def test_whoever_is_told_to_release_a_claim_is_told_how_while_its_guest_runs() -> None:
    bare = [
        f"{place}: {text}"
        for place, text in _texts()
        if RELEASE.search(text)
        and "--force" not in text
        and "by force if its guest runs" not in text
        and not any(part in text for part in (*NO_GUEST_RUNS, *GENERAL))
    ]
    assert not bare, "\n".join(bare)
