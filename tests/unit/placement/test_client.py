"""The placement client: what it asks on the wire, and which error an answer becomes."""

import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest
from kits.wire import Sent, Wire

from agent.errors import (
    PlacementConflict,
    PlacementError,
    PlacementFull,
    PlacementUnavailable,
    UsageError,
)
from agent.placement.client import ConsumerAllocations, PlacementClient, WriteGate
from agent.placement.host_note import HostNote
from agent.placement.transport import Reply
from agent.tree import Inventory, Provider, ProviderTree

CONSUMER = "c0ffee00-0000-4000-8000-0000000000c1"
MIGRATION = "c0ffee00-0000-4000-8000-0000000000c2"


def answering(replies: Mapping[tuple[str, str], Reply] | Reply) -> Wire:
    """Answers from a table {(method, path): Reply}, or each request alike."""
    return Wire(
        answer=lambda sent: replies if isinstance(replies, Reply) else replies[sent.method, sent.path]
    )


def error(status: int, code: str = "placement.undefined_code", **more: Any) -> Reply:
    said = {"status": status, "title": "Conflict", "detail": "It was\n\n   refused ", "code": code, **more}
    return Reply(status, {"errors": [said]})


def listed(uuid: str, generation: int, parent: str | None = None, name: str | None = None) -> dict[str, Any]:
    return {
        "uuid": uuid,
        "name": name or uuid,
        "generation": generation,
        "parent_provider_uuid": parent,
        "root_provider_uuid": "host",
    }


def contents(uuid: str, generations: tuple[int, int, int], total: int = 8) -> dict[tuple[str, str], Reply]:
    inventory = {
        "total": total,
        "reserved": 0,
        "min_unit": 1,
        "max_unit": 8,
        "step_size": 1,
        "allocation_ratio": 1,
    }
    bodies: list[tuple[str, Any]] = [
        ("inventories", {"VCPU": inventory}),
        ("traits", ["T"]),
        ("aggregates", ["a"]),
    ]
    return {
        ("GET", f"/resource_providers/{uuid}/{what}"): Reply(
            200, {what: body, "resource_provider_generation": generation}
        )
        for (what, body), generation in zip(bodies, generations, strict=True)
    }


IN_TREE = ("GET", "/resource_providers?in_tree=host")


def test_a_tree_is_read_in_one_request_and_three_for_each_provider_that_changed() -> None:
    wire = answering(
        {
            IN_TREE: Reply(200, {"resource_providers": [listed("gpu", 4, "host"), listed("host", 7)]}),
            **contents("host", (7, 7, 7)),
        }
    )
    known = ProviderTree(
        [
            Provider("host", "host", generation=6),
            Provider("gpu", "gpu", "host", {"VGPU": Inventory(4)}, generation=4),
        ]
    )
    tree = PlacementClient(wire).read_tree("host", known)
    assert len(wire.asked) == 4
    assert tree["gpu"] is known["gpu"]
    assert tree["host"] == Provider(
        "host", "host", None, {"VCPU": Inventory(8, max_unit=8)}, frozenset({"T"}), frozenset({"a"})
    )
    assert tree["host"].generation == 7


def test_a_provider_that_was_only_renamed_is_not_read_again() -> None:
    wire = answering({IN_TREE: Reply(200, {"resource_providers": [listed("host", 6, name="new")]})})
    known = ProviderTree([Provider("host", "old", None, {"VCPU": Inventory(1)}, generation=6)])
    assert PlacementClient(wire).read_tree("host", known)["host"] == Provider(
        "host", "new", None, {"VCPU": Inventory(1)}
    )


def test_an_unknown_root_is_an_empty_tree() -> None:
    assert (
        PlacementClient(answering({IN_TREE: Reply(200, {"resource_providers": []})})).read_tree("host")
        == ProviderTree()
    )


@pytest.mark.parametrize("generations", [(8, 7, 7), (7, 8, 9), (9, 8, 7)])
def test_a_change_while_reading_is_noticed_at_the_next_write(generations: tuple[int, int, int]) -> None:
    wire = answering(
        {IN_TREE: Reply(200, {"resource_providers": [listed("host", 7)]}), **contents("host", generations)}
    )
    assert PlacementClient(wire).read_tree("host")["host"].generation == 7


def test_a_provider_deleted_while_it_is_read_is_a_conflict() -> None:
    wire = answering(
        {
            IN_TREE: Reply(200, {"resource_providers": [listed("host", 7)]}),
            ("GET", "/resource_providers/host/inventories"): error(404),
        }
    )
    with pytest.raises(PlacementConflict, match="deleted the provider since it was listed"):
        PlacementClient(wire).read_tree("host")


def test_names_in_queries_and_paths_are_quoted() -> None:
    wire = answering(Reply(200, {"resource_providers": []}))
    assert PlacementClient(wire).find_provider(name="host:eth 0&x") is None
    assert wire.asked[0][1] == "/resource_providers?name=host%3Aeth+0%26x"
    PlacementClient(wire).delete_allocations("../traits")
    assert wire.asked[1][1] == "/allocations/..%2Ftraits"


def test_one_consumer_is_put_and_several_are_posted() -> None:
    wire = answering(Reply(204))
    client = PlacementClient(wire)
    held = ConsumerAllocations(CONSUMER, {"host": {"VCPU": 2}}, 3, "p", "u")
    moved = ConsumerAllocations(MIGRATION, {}, 1, "p", "u", "MIGRATION")
    client.write_allocations(held)
    client.write_allocations(held, moved)
    body = {
        "allocations": {"host": {"resources": {"VCPU": 2}}},
        "consumer_generation": 3,
        "project_id": "p",
        "user_id": "u",
        "consumer_type": "INSTANCE",
    }
    gone = {**body, "allocations": {}, "consumer_generation": 1, "consumer_type": "MIGRATION"}
    assert wire.asked == [
        ("PUT", f"/allocations/{CONSUMER}", body, "1.39"),
        ("POST", "/allocations", {CONSUMER: body, MIGRATION: gone}, "1.39"),
    ]


def test_consumer_types_are_kept_to_oneself_below_1_38() -> None:
    wire = answering(Reply(204))
    PlacementClient(wire, microversion="1.37").write_allocations(
        ConsumerAllocations(CONSUMER, {"host": {"VCPU": 2}})
    )
    assert "consumer_type" not in wire.asked[0][2]
    assert wire.asked[0][3] == "1.37"


def test_a_consumer_without_a_type_gets_one_when_it_is_written() -> None:
    wire = answering(Reply(204))
    PlacementClient(wire).write_allocations(
        ConsumerAllocations(CONSUMER, {"host": {"VCPU": 2}}, 1, consumer_type="unknown")
    )
    assert wire.asked[0][2]["consumer_type"] == "INSTANCE"


def test_nothing_is_taken_from_a_consumer_that_does_not_exist() -> None:
    wire = answering(Reply(204))
    with pytest.raises(UsageError, match="has no allocations"):
        PlacementClient(wire).write_allocations(
            ConsumerAllocations(MIGRATION, {"host": {"VCPU": 1}}), ConsumerAllocations(CONSUMER, {})
        )
    PlacementClient(wire).write_allocations()
    assert wire.asked == []


def test_a_parent_is_not_changed_below_1_37() -> None:
    wire = answering(Reply(200, {"generation": 1}))
    with pytest.raises(PlacementError, match=r"needs microversion 1\.37, and the agent uses 1\.36 there"):
        PlacementClient(wire, microversion="1.36").reparent_provider("gpu", "gpu", "host")
    assert wire.asked == []


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (error(409, "placement.concurrent_update"), PlacementConflict),
        (error(409), PlacementFull),
        (error(409, "placement.inventory.inuse"), PlacementError),
        (error(400), PlacementError),
        (error(401), PlacementError),
        (error(500), PlacementUnavailable),
        (Reply(502, None), PlacementUnavailable),
        (Reply(503, None, {"retry-after": "7"}), PlacementUnavailable),
        (Reply(418, ["?"]), PlacementError),
        (Reply(418, {"errors": []}), PlacementError),
    ],
)
def test_each_refusal_has_its_type_and_says_what_was_asked_of_whom(
    reply: Reply, kind: type[PlacementError]
) -> None:
    with pytest.raises(PlacementError) as raised:
        PlacementClient(answering(reply)).write_allocations(
            ConsumerAllocations(CONSUMER, {"host": {"VCPU": 2}})
        )
    assert type(raised.value) is kind
    assert raised.value.status == reply.status
    assert f"write the allocations of consumer {CONSUMER}" in raised.value.message
    if isinstance(reply.body, dict) and reply.body["errors"]:
        assert "It was refused" in raised.value.message
        assert raised.value.placement_code in raised.value.message
    told = reply.headers.get("retry-after")
    assert raised.value.details.get("retry_after") == (float(told) if told else None)


def test_a_409_that_is_not_about_allocations_is_not_full() -> None:
    with pytest.raises(PlacementError) as raised:
        PlacementClient(answering(error(409))).put_traits("host", 1, {"T"})
    assert type(raised.value) is PlacementError


def test_the_reasons_of_a_refusal_are_kept() -> None:
    reasons = [{"resource_class": "VCPU", "asked": 4, "free": 1}]
    with pytest.raises(PlacementFull) as raised:
        PlacementClient(answering(error(409, reasons=reasons))).write_allocations(
            ConsumerAllocations(CONSUMER, {"host": {"VCPU": 4}})
        )
    assert raised.value.details["reasons"] == reasons


@pytest.mark.parametrize("body", [None, [], {}, {"resource_providers": "many"}])
def test_an_answer_that_is_not_placements_is_an_error(body: Any) -> None:
    with pytest.raises(PlacementError, match="has no 'resource_providers': check that the address"):
        PlacementClient(answering(Reply(200, body))).read_tree("host")


def old_service(highest: str) -> Wire:
    """Speaks up to `highest` and refuses the rest, as placement does."""

    def answer(sent: Sent) -> Reply:
        if sent.path == "/":
            return Reply(200, {"versions": [{"id": "v1.0", "min_version": "1.0", "max_version": highest}]})
        late = int(sent.microversion.split(".")[1]) > int(highest.split(".")[1])
        return error(406) if late else Reply(204)

    return Wire(answer=answer)


def test_an_older_service_is_spoken_to_in_its_own_microversion() -> None:
    service = old_service("1.36")
    client = PlacementClient(service)
    write = ConsumerAllocations(CONSUMER, {"host": {"VCPU": 2}})
    client.write_allocations(write)
    client.write_allocations(write)
    assert [version for _, path, _, version in service.asked if path != "/"] == ["1.39", "1.36", "1.36"]
    assert "consumer_type" in service.asked[0][2]
    assert "consumer_type" not in service.asked[-1][2]


def test_a_service_that_is_too_old_is_told_what_is_missing() -> None:
    with pytest.raises(
        PlacementError, match=r"speaks microversions 1\.0 to 1\.29, and the agent needs 1\.30"
    ):
        PlacementClient(old_service("1.29")).generations("host")


def test_a_406_about_something_else_is_not_asked_again() -> None:
    wire = answering(
        {
            ("GET", "/"): Reply(200, {"versions": [{"min_version": "1.0", "max_version": "1.39"}]}),
            IN_TREE: error(406),
        }
    )
    with pytest.raises(PlacementError, match="status 406"):
        PlacementClient(wire).generations("host")
    assert len(wire.asked) == 2


def test_closing_the_client_closes_the_transport() -> None:
    wire = answering({})
    PlacementClient(wire).close()
    assert wire.closed


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": " 0 "}, 0.0),
        (
            {"retry-after": "Wed, 21 Oct 2026 07:30:00 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"},
            120.0,
        ),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT", "date": "Wed, 21 Oct 2026 07:30:00 GMT"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:30:00 GMT"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({}, None),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
def test_for_how_long_not_to_ask_again(
    headers: Mapping[str, str], seconds: float | None, status: int
) -> None:
    with pytest.raises(PlacementUnavailable) as raised:
        PlacementClient(answering(Reply(status, None, headers))).generations("host")
    assert raised.value.details.get("retry_after") == seconds


def test_a_write_on_a_held_provider_waits_and_one_elsewhere_passes() -> None:
    gate, passed = WriteGate(), threading.Event()

    def write() -> None:
        with gate.passing({"a", "b"}):
            passed.set()

    writer = threading.Thread(target=write)
    with gate.held({"a"}):
        writer.start()
        with gate.passing({"c"}):
            pass
        assert not passed.wait(0.05)
    writer.join()
    assert passed.is_set()


def test_a_hold_begins_when_the_writes_under_way_have_ended() -> None:
    gate, begun = WriteGate(), threading.Event()

    def hold() -> None:
        with gate.held({"a"}):
            begun.set()

    holder = threading.Thread(target=hold)
    with gate.passing({"a"}):
        holder.start()
        assert not begun.wait(0.05)
    holder.join()
    assert begun.is_set()


def test_nobody_waits_for_longer_than_the_bound() -> None:
    gate = WriteGate(hold_max_s=0.05)
    started = time.monotonic()
    with gate.held({"a"}), gate.passing({"a"}), gate.held({"a"}):
        assert 0.05 <= time.monotonic() - started < 5


def test_a_placement_without_notes_is_asked_once_and_has_no_hosts() -> None:
    wire = Wire(answer=lambda sent: Reply(404))
    client = PlacementClient(wire)
    for _ in range(3):
        client.leave_note("a", HostNote("ready", "1"))
    assert wire.calls == ["PUT /hosts/a/note"] and client.hosts() is None


def test_a_note_that_is_refused_is_left_again() -> None:
    wire = Wire(answer=lambda sent: Reply(400, {"errors": [{"detail": "No root provider has the uuid a."}]}))
    client = PlacementClient(wire)
    for _ in range(2):
        with pytest.raises(PlacementError, match="take the note of host a: No root provider"):
            client.leave_note("a", HostNote("ready", "1"))
    assert len(wire.asked) == 2


def test_hosts_that_no_server_of_ours_lists_are_an_error() -> None:
    client = PlacementClient(Wire(answer=lambda sent: Reply(200, {"hosts": [{"uuid": "a"}]})))
    with pytest.raises(PlacementError, match=r"hosts\[0\].name"):
        client.hosts()
