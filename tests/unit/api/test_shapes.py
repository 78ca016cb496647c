"""The shapes: what they name is what the agent answers with, or takes; and every table that names a
consumer shows its uuid and its name.
"""

import ast
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import get_type_hints

import pytest
from kits.paths import CHECKOUT
from kits.status import fill, sight

from agent.api.shapes.claims import ClaimByGroupsShape, GroupShape
from agent.api.shapes.host import OverviewShape
from agent.api.shapes.schema import ErrorDetailShape, ErrorShape
from agent.api.views import overview_view
from agent.claims.parse_request import parse_claim
from agent.http.errors import error_body

CONSUMER = "6d3a1fb4-5d6c-4a61-b1f5-0f5a5b6a0b01"


def test_every_error_has_the_shape() -> None:
    body = error_body("plimsoll.api.busy", "Try again.", {"retry_after": 1})
    assert body.keys() == get_type_hints(ErrorShape).keys()
    assert body["error"].keys() == get_type_hints(ErrorDetailShape).keys()


def test_the_overview_has_the_shape() -> None:
    with sight() as shown:
        fill(shown)
        overview = overview_view(shown.host_status.overview())
    assert overview.keys() == get_type_hints(OverviewShape).keys()


def test_a_claim_may_have_every_key_of_its_shape_and_no_other() -> None:
    group = {
        "suffix": "1",
        "resources": {"VCPU": 1},
        "required": ["CUSTOM_T"],
        "member_of": [CONSUMER],
        "numa_policy": "legacy",
    }
    assert group.keys() == get_type_hints(GroupShape).keys()
    values = {"consumer": CONSUMER, "groups": [group], "group_policy": "none", "same_subtree": [["1"]]}
    assert values.keys() <= get_type_hints(ClaimByGroupsShape).keys()
    assert parse_claim(values).consumer == CONSUMER


UUID, NAME = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69", "web1"
HOLDING: Mapping[str, object] = {"allocations": {}, "units": {}, "cells": []}
INSTANCE = {"uuid": UUID, "name": NAME, "guest": None, "moved_away": False, "migration_of": None}
MOVE = {"kind": "resize", "role": "both", "state": "begun", "next": "", "ended": False, "handed": HOLDING}
EVENT = {"at": None, "event": "claim", "uid": None, "pid": None, "detail": ""}
RELOCATION = {"resource_class": "VGPU", "becomes": "VGPU", "amount": 1, "from": "node1", "to": "gpu0"}

NAMES_CONSUMERS: Mapping[tuple[str, str], Mapping[str, object]] = {
    ("instances", "INSTANCE_COLUMNS"): {**INSTANCE, "claim": None},
    ("instances", "TOP_INSTANCE_COLUMNS"): {**INSTANCE, "claim": None},
    ("instances", "MOVE_COLUMNS"): {**MOVE, "migration": "m", "instance": UUID, "name": NAME},
    ("instances", "TOP_MOVE_COLUMNS"): {**MOVE, "instance": UUID, "name": NAME, "since": None},
    ("host", "EVENT_COLUMNS"): {**EVENT, "consumer": UUID, "name": NAME},
    ("host", "TOP_EVENT_COLUMNS"): {**EVENT, "consumer": UUID, "name": NAME},
    ("providers", "DEVICE_COLUMNS"): {
        **{"unit": "0000:41:00.0", "resource_class": "VGPU", "provider": "node1", "cordon": None},
        **{"health": None, "holder": UUID, "holder_name": NAME},
    },
    ("providers", "RELOCATION_COLUMNS"): {**RELOCATION, "consumer": UUID, "name": NAME},
    ("claims", "STRANDED_COLUMNS"): {
        **{"provider": "node1", "resource_class": "VCPU", "free": 1},
        "holders": [{"consumer": UUID, "name": NAME}],
    },
}
"""{(module, table): a row with a consumer}"""

NAMES_NONE = {
    ("claims", "GUEST_CELL_COLUMNS"): "cells of the one guest that the command is about",
    ("providers", "RECEIPT_COLUMNS"): "whole reshapes",
    ("host", "SETTING_COLUMNS"): "settings",
    ("output", "table_lines"): "the rows of each table of columns",
    ("claim", "_explained"): "classes, of the claim that the command is about",
    ("claim", "holding_lines"): "what the claim has that the command is about",
    ("claim", "shortfall_lines"): "classes and providers",
    ("claim", "claim_lines"): "groups of the claim that the command is about",
    ("claim", "makings_lines"): "units of the claim that the command is about",
}
"""{(module, table or the function that has it): what its rows are}"""


def tables() -> Iterator[tuple[str, str]]:
    """Each table in the code: its module, and its name or that of the function that has it."""
    for path in sorted((CHECKOUT / "agent").rglob("*.py")):
        for statement in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(statement, ast.FunctionDef):
                if any(map(_is_column, ast.walk(statement))):
                    yield path.stem, statement.name
            elif isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(statement.value, ast.Tuple):
                target = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
                if any(map(_is_column, ast.walk(statement.value))) or ast.unparse(target).endswith("COLUMNS"):
                    yield path.stem, ast.unparse(target)


def _is_column(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ("Column", "titled_lines")


def test_every_table_is_known_to_name_consumers_or_not() -> None:
    """A new table belongs in one of the two lists above."""
    assert set(tables()) == {*NAMES_CONSUMERS, *NAMES_NONE}


@pytest.mark.parametrize("table", NAMES_CONSUMERS, ids="-".join)
def test_a_table_that_names_a_consumer_shows_its_uuid_and_its_name(table: tuple[str, str]) -> None:
    module, name = table
    columns = getattr(import_module(f"agent.api.shapes.{module}"), name)
    row = " ".join(str(column.show(NAMES_CONSUMERS[table])) for column in columns)
    assert UUID in row and NAME in row.replace(UUID, "")
