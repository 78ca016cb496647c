"""The hosts that fit, and all hosts, as `GET /hosts/candidates` of the core tells them."""

from __future__ import annotations

from typing import Any

import pytest
from kits.embedded_api import Api, claim, new

from agent.placement.embedded.fleet import HostNotes, closed_reason

NOTE = {"state": "ready", "version": "0.1.0"}


def host(api: Api, name: str, **totals: int) -> str:
    uuid: str = api.provider(name)
    api.set_inventories(uuid, {each: {"total": total} for each, total in totals.items()})
    return uuid


def asked(api: Api, query: str) -> Any:
    return api.done("GET", f"/hosts/candidates?{query}")


def test_each_host_that_fits_comes_once_with_what_is_left(api: Api) -> None:
    one = host(api, "one", VCPU=8)
    for number in range(3):
        card = api.provider(f"card{number}", parent=one)
        api.set_inventories(card, {"VGPU": {"total": 2}})
    host(api, "two", VCPU=8)
    api.done("PUT", f"/allocations/{new()}", claim({one: {"VCPU": 3}}))
    (found,) = asked(api, "resources=VCPU:4&resources1=VGPU:1")["hosts"]
    assert (found["name"], found["uuid"]) == ("one", one)
    assert found["allocations"][one] == {"name": "one", "resources": {"VCPU": 4}}
    assert found["left"] == {"VCPU": [1, 8, 0], "VGPU": [5, 6, 5]}
    assert [each["name"] for each in asked(api, "resources=VCPU:1&limit=1")["hosts"]] == ["one"]


def test_if_none_fits_all_hosts_come_as_far_as_they_were_asked_about(api: Api) -> None:
    one = host(api, "one", VCPU=8, DISK_GB=5)
    card = api.provider("card", parent=one)
    api.set_inventories(card, {"VGPU": {"total": 2, "reserved": 1}})
    consumer = new()
    api.done("PUT", f"/allocations/{consumer}", claim({one: {"VCPU": 3}}))
    answer = asked(api, "resources=VCPU:9,CUSTOM_ABSENT:1")
    assert answer["hosts"] == answer["sharing"] == []
    ((closed, pending, root),) = answer["trees"]
    assert (closed, pending) == ("", "")
    assert root[:4] == [one, "one", None, {"VCPU": [8, 0, 1, 2147483647, 1, 1.0, 3]}]
    ((_, _, _, gpu),) = asked(api, f"resources=VGPU:9&in_tree={card}&trees=true&holders=true")["trees"]
    assert gpu == [card, "card", one, {"VGPU": [2, 1, 1, 2147483647, 1, 1.0, 0]}, [], [], {}]
    ((_, _, root),) = asked(api, f"resources=VCPU:1&in_tree={one}&trees=true&holders=true")["trees"]
    assert root[6] == {consumer: {"VCPU": 3}}
    assert asked(api, f"resources=VCPU:1&in_tree={new()}&trees=true")["trees"] == []
    api.refused(400, "GET", "/hosts/candidates?limit=1", code="placement.query.missing_value")


@pytest.mark.parametrize(
    ("note", "traits", "reason"),
    [
        ({}, (), ""),
        ({"closed": "a disk fails"}, (), "closed: a disk fails"),
        ({"closed": "new firmware", "drains": True}, (), "drained: new firmware"),
        ({"reshape": "it waits"}, (), ""),
        ({}, ("COMPUTE_STATUS_DISABLED",), "disabled for schedulers by COMPUTE_STATUS_DISABLED"),
    ],
)
def test_a_host_that_takes_no_guests_is_named_and_does_not_fit(
    api: Api, note: dict[str, Any], traits: tuple[str, ...], reason: str
) -> None:
    uuid = host(api, "one", VCPU=8)
    api.set_traits(uuid, *traits)
    api.done("PUT", f"/hosts/{uuid}/note", {**NOTE, **note})
    answer = asked(api, "resources=VCPU:1")
    assert len(answer["hosts"]) == (0 if reason else 1)
    assert reason == "" or answer["trees"][0][0] == reason
    ((told, pending, _),) = asked(api, "resources=VCPU:9")["trees"]
    assert (told, pending) == (reason, note.get("reshape", ""))


def test_the_instances_whose_moves_can_be_reverted_come_with_the_hosts(api: Api) -> None:
    uuid, states = host(api, "one", VCPU=8), ("begun", "confirming", "reverting", "leaving")
    of_each = {"name": "", "kind": "resize", "role": "destination"}
    moves = [{"instance": state, "state": state, **of_each} for state in states]
    api.done("PUT", f"/hosts/{uuid}/note", {**NOTE, "moves": moves})
    assert asked(api, "resources=VCPU:9")["moving"] == ["begun", "reverting"]


def test_of_a_fleet_that_is_half_silent_the_other_half_fits_and_the_silent_ones_are_named(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(api.core, "notes", HostNotes(lambda: now[0]))
    uuids = [host(api, f"host{number}", VCPU=8) for number in range(10)]
    now[0] += 300
    for uuid in uuids[::2]:
        api.done("PUT", f"/hosts/{uuid}/note", NOTE)
    assert {each["uuid"] for each in asked(api, "resources=VCPU:8")["hosts"]} == set(uuids[::2])
    silent = {tree[2][0] for tree in asked(api, "resources=VCPU:9")["trees"] if tree[0].startswith("silent")}
    assert silent == set(uuids[1::2])


def test_a_silent_host_is_named_by_how_long_it_is_silent(api: Api) -> None:
    now = [1000.0]
    notes = HostNotes(lambda: now[0])
    model = api.core._store.model
    root = model.providers[host(api, "one", VCPU=8)]
    now[0] += 300
    assert closed_reason(notes, root) == "silent: its agent leaves no note"
    notes.put(root.uuid, NOTE, model)
    now[0] += 720
    assert closed_reason(notes, root) == "silent for 12 min: its agent leaves no note"
