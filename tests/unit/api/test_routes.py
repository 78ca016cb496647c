"""What requests to the local API name, which keys their shapes have, and what the answers' views show."""

import ast
import json
from collections.abc import Iterator, Mapping
from importlib import import_module
from types import SimpleNamespace
from typing import Annotated, Any, NamedTuple, NotRequired, TypedDict, get_type_hints

import pytest
from kits.paths import CHECKOUT
from kits.status import fill, sight

from agent.api.routes import (
    LIMIT_DEFAULT,
    Call,
    claim_running,
    parse_history,
    parse_hook_call,
    read_clear_body,
    read_cordon_body,
)
from agent.api.shapes.host import OverviewShape
from agent.api.shapes.instance import ClaimByGroupsShape, GroupShape
from agent.api.shapes.schema import ErrorDetailShape, ErrorShape, Moment
from agent.api.views import audit_view, claim_view, overview_view, shown
from agent.audit.auditor import AuditReport
from agent.audit.finding import Finding
from agent.claims.claim import Claim, ClaimState
from agent.claims.parse_request import parse_claim
from agent.claims.request import ClaimRequest, RequestGroup
from agent.driver import Guest, GuestState
from agent.errors import DoesNotFit, UsageError
from agent.http.errors import error_body
from agent.http.unix_socket import PeerCredentials
from agent.tree import Provider, ProviderTree


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("0000:C1:00.0", "0000:c1:00.0"),
        ("0000:84:00.0/CUSTOM_VGPU_4@6", "0000:84:00.0/CUSTOM_VGPU_4@6"),
        ("0000:C1:00.2/nvidia-471@20", "0000:c1:00.2/nvidia-471@20"),
    ],
)
def test_a_device_is_named_as_the_list_shows_it_or_by_its_address_in_capitals(
    given: str, address: str
) -> None:
    assert read_cordon_body({"address": given}, 0).address == address
    assert read_clear_body({"address": given}) == address


CALL = {"operation": "prepare", "sub_operation": "begin", "extra": "-", "xml": "<domain/>"}


@pytest.mark.parametrize("key", ["operation", "sub_operation", "xml"])
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(UsageError, match=f"^{key}: missing"):
        parse_hook_call({name: word for name, word in CALL.items() if name != key})


def test_the_extra_argument_may_be_missing_and_must_be_a_word() -> None:
    call = parse_hook_call({name: word for name, word in CALL.items() if name != "extra"})
    assert call == parse_hook_call(CALL)
    with pytest.raises(UsageError, match="extra"):
        parse_hook_call({**CALL, "extra": "x" * 65})


def test_a_query_without_parameters_asks_for_the_newest_events() -> None:
    assert parse_history({}) == (0.0, LIMIT_DEFAULT, None)


def test_a_moment_needs_its_offset() -> None:
    assert parse_history({"since": "1970-01-01T01:00:00+01:00", "limit": "7"}) == (0.0, 7, None)
    with pytest.raises(UsageError, match="a moment with its offset"):
        parse_history({"since": "1970-01-01T01:00:00"})


@pytest.mark.parametrize("limit", ["0", "10001", "-1", "x", "", "1" * 20])
def test_a_limit_is_a_whole_number_in_its_range(limit: str) -> None:
    with pytest.raises(UsageError, match="from 1 to 10000"):
        parse_history({"limit": limit})


REQUESTED = "6d3a1fb4-5d6c-4a61-b1f5-0f5a5b6a0b01"


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
        "member_of": [REQUESTED],
        "numa_policy": "legacy",
    }
    assert group.keys() == get_type_hints(GroupShape).keys()
    values = {"consumer": REQUESTED, "groups": [group], "group_policy": "none", "same_subtree": [["1"]]}
    assert values.keys() <= get_type_hints(ClaimByGroupsShape).keys()
    assert parse_claim(values).consumer == REQUESTED


UUID, NAME = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69", "web1"
HOLDING: Mapping[str, object] = {"allocations": {}, "units": {}, "cells": []}
INSTANCE = {"uuid": UUID, "name": NAME, "guest": None, "moved_away": False, "migration_of": None}
MOVE = {"kind": "resize", "role": "both", "state": "begun", "next": "", "ended": False, "handed": HOLDING}
EVENT = {"at": None, "event": "claim", "uid": None, "pid": None, "detail": ""}
RELOCATION = {"resource_class": "VGPU", "becomes": "VGPU", "amount": 1, "from": "node1", "to": "gpu0"}

NAMES_CONSUMERS: Mapping[tuple[str, str], Mapping[str, object]] = {
    ("instance", "INSTANCE_COLUMNS"): {**INSTANCE, "claim": None},
    ("instance", "TOP_INSTANCE_COLUMNS"): {**INSTANCE, "claim": None},
    ("instance", "MOVE_COLUMNS"): {**MOVE, "migration": "m", "instance": UUID, "name": NAME},
    ("instance", "TOP_MOVE_COLUMNS"): {**MOVE, "instance": UUID, "name": NAME, "since": None},
    ("host", "EVENT_COLUMNS"): {**EVENT, "consumer": UUID, "name": NAME},
    ("host", "TOP_EVENT_COLUMNS"): {**EVENT, "consumer": UUID, "name": NAME},
    ("host", "DEVICE_COLUMNS"): {
        **{"unit": "0000:41:00.0", "resource_class": "VGPU", "provider": "node1", "cordon": None},
        **{"health": None, "holder": UUID, "holder_name": NAME},
    },
    ("host", "RELOCATION_COLUMNS"): {**RELOCATION, "consumer": UUID, "name": NAME},
    ("instance", "STRANDED_COLUMNS"): {
        **{"provider": "node1", "resource_class": "VCPU", "free": 1},
        "holders": [{"consumer": UUID, "name": NAME}],
    },
}
"""{(module, table): a row with a consumer}"""

NAMES_NONE = {
    ("instance", "GUEST_CELL_COLUMNS"): "cells of the one guest that the command is about",
    ("host", "RECEIPT_COLUMNS"): "whole reshapes",
    ("host", "SETTING_COLUMNS"): "settings",
    ("fleet", "COLUMNS"): "names of columns, by which hosts are sorted",
    ("placement", "_top_columns"): "hosts",
    ("fleet", "PLACE_COLUMNS"): "hosts",
    ("fleet", "SUMMARY_COLUMNS"): "conditions of the request",
    ("where", "_lines"): "consumers of any host, by their uuid; tests/functional/cli/test_where.py",
    ("claim", "_plan_drain"): "instances that have to leave; tests/functional/cli/test_drain_plan.py",
    ("output", "table_lines"): "the rows of each table of columns",
    ("claim", "_explain"): "classes, of the claim that the command is about",
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


CONSUMER = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"
BANDWIDTH = {"NET_BW_EGR_KILOBIT_PER_SEC": 1000}
NICS = {"nic1": "CUSTOM_PHYSNET_RED", "nic2": "CUSTOM_PHYSNET_BLUE"}


def test_equal_amounts_without_units_are_shown_on_the_card_of_the_groups_network() -> None:
    tree = ProviderTree(
        [Provider("root", "root"), *(Provider(nic, nic, "root", {}, frozenset({NICS[nic]})) for nic in NICS)]
    )
    groups = tuple(RequestGroup(trait, BANDWIDTH, (frozenset({trait}),)) for trait in NICS.values())
    claim = Claim(
        CONSUMER, ClaimState.CLAIMED, ClaimRequest(CONSUMER, groups), dict.fromkeys(NICS, BANDWIDTH)
    )
    shown = {
        mapping["suffix"]: list(mapping["allocations"]) for mapping in claim_view(claim, tree)["mappings"]
    }
    assert shown == {trait: [nic] for nic, trait in NICS.items()}


FINDINGS = (
    Finding("leaked claim", "c1", "It is gone.", own=True),
    Finding("doubled", "c2", "It is twice here."),
)


def test_each_finding_has_the_outcome_of_its_repair() -> None:
    report = AuditReport(FINDINGS, healed=frozenset({0}), failed={1: "Placement refused it."})
    healed, failed = audit_view(report)["findings"]
    assert (healed["kind"], healed["own"], healed["healed"], healed["failed"]) == (
        "leaked claim",
        True,
        True,
        None,
    )
    assert (failed["healed"], failed["failed"], failed["repair"]) == (False, "Placement refused it.", [])


def test_a_guest_that_does_not_fit_is_among_the_refused() -> None:
    guest = Guest("c1", "web1", GuestState.RUNNING, {})
    host: Any = SimpleNamespace(claim_running=lambda: ((guest, DoesNotFit("It does not fit.")),))
    answer = claim_running(Call(host, PeerCredentials(1, 0, 0)), {})
    assert answer == {
        "claimed": [],
        "refused": [{"consumer": "c1", "name": "web1", "sentence": "It does not fit."}],
    }


class PartShape(TypedDict):
    name: str


class WholeShape(TypedDict):
    since: Annotated[Moment, "when"]
    until: Moment | None
    tags: list[str]
    amounts: dict[str, int]
    parts: Annotated[list[PartShape], "in their order"]
    first: PartShape | None
    notes: NotRequired[list[str]]


class Part(NamedTuple):
    name: str
    secret: str = "not shown"


class Whole(NamedTuple):
    amounts: Mapping[str, int]
    tags: frozenset[str]
    parts: tuple[Part, ...]
    first: Part | None = None
    until: float | None = None
    notes: tuple[str, ...] = ("left to the caller",)
    at: float = 0.0


WHOLE = Whole({"VCPU": 1, "DISK_GB": 2}, frozenset({"b", "a"}), (Part("z"), Part("y")))


def test_a_value_is_shown_by_the_fields_of_its_shape() -> None:
    assert json.dumps(shown(WholeShape, WHOLE, since=WHOLE.at)) == json.dumps(
        {
            "since": "1970-01-01T00:00:00+00:00",
            "until": None,
            "tags": ["a", "b"],
            "amounts": {"DISK_GB": 2, "VCPU": 1},
            "parts": [{"name": "z"}, {"name": "y"}],
            "first": None,
        }
    )


def test_what_has_its_shape_already_stays_as_it_is() -> None:
    view = shown(WholeShape, WHOLE, since="now", until=60.0, first={"name": "x"}, parts=[{"name": "w"}])
    assert (view["since"], view["until"]) == ("now", "1970-01-01T00:01:00+00:00")
    assert (view["first"], view["parts"]) == ({"name": "x"}, [{"name": "w"}])


def test_a_field_that_the_value_lacks_is_no_answer_without_it() -> None:
    with pytest.raises(AttributeError, match="since"):
        shown(WholeShape, WHOLE)
