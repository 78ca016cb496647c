"""The notes of the hosts' agents: what is kept, for how long, and what is refused."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from kits.embedded_api import Api, claim, new

from agent.codec import decode
from agent.placement.embedded import Core, fleet
from agent.placement.embedded.fleet import HostNotes, closed_reason
from agent.placement.embedded.store import NotActive
from agent.placement.host_note import HostReport

NOTE = {"state": "ready", "version": "0.1.0"}
POOL = "MISC_SHARES_VIA_AGGREGATE"


def listed(api: Api) -> dict[str, Any]:
    return {host["name"]: host for host in api.done("GET", "/hosts")["hosts"]}


def leave(api: Api, uuid: str, **more: Any) -> None:
    api.done("PUT", f"/hosts/{uuid}/note", {**NOTE, **more})


def test_a_note_is_there_until_the_next_one(api: Api) -> None:
    one, other = api.provider("one"), api.provider("two")
    leave(api, one, reasons=["a disk is slow"])
    leave(api, one, findings={"leaked_claim": 2})
    shown = listed(api)
    assert shown["one"]["note"] == {**NOTE, "findings": {"leaked_claim": 2}}
    assert 0 <= shown["one"]["age_s"] < 60 and not shown["one"]["silent"]
    assert shown["two"] == {"uuid": other, "name": "two", "note": None, "age_s": None, "silent": False}


def test_hosts_are_the_roots_that_share_nothing(api: Api) -> None:
    root, pool = api.provider("host"), api.provider("pool")
    api.provider("card", parent=root)
    api.set_traits(pool, POOL)
    assert [*listed(api)] == ["host"]


def test_who_lists_the_hosts_reads_what_an_agent_of_any_version_left(api: Api) -> None:
    leave(api, api.provider("host"), moves=[], a_newer_agents_key={"x": 1})
    reports = decode(tuple[HostReport, ...], api.done("GET", "/hosts")["hosts"])
    assert reports[0].note is not None and reports[0].note.state == "ready"
    assert "a_newer_agents_key" not in listed(api)["host"]["note"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (None, 400),
        ([], 400),
        ({}, 400),
        ({**NOTE, "state": 3}, 400),
        ({**NOTE, "drains": 1}, 400),
        ({**NOTE, "findings": {"leaked_claim": -1}}, 400),
        ({**NOTE, "moves": [{"name": "vm"}]}, 400),
        ({**NOTE, "reasons": ["\ud800"]}, 400),
        ({**NOTE, "reasons": ["x" * 10_000_000]}, 413),
        ({**NOTE, "unknown": "x" * fleet.NOTE_BYTES_MAX}, 413),
    ],
)
def test_what_is_no_note_is_refused_and_changes_nothing(api: Api, body: Any, status: int) -> None:
    host = api.provider("host")
    leave(api, host)
    before = listed(api)["host"]["note"]
    answer = api.ask("PUT", f"/hosts/{host}/note", body)
    assert answer.status == status and answer.body["errors"][0]["detail"].endswith(".")
    assert listed(api)["host"]["note"] == before


def test_only_a_host_has_a_note(api: Api) -> None:
    child = api.provider("card", parent=api.provider("host"))
    for uuid in (child, new(), "nonsense"):
        absent = api.refused(
            400, "PUT", f"/hosts/{uuid}/note", NOTE, code="placement.resource_provider.not_found"
        )
        assert absent["detail"].startswith("No root provider")


def test_so_many_hosts_and_no_more(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "HOSTS_MAX", 2)
    first, second, third = (api.provider(name) for name in ("one", "two", "three"))
    leave(api, first)
    leave(api, second)
    assert "notes of 2 hosts" in api.refused(413, "PUT", f"/hosts/{third}/note", NOTE)["detail"]
    leave(api, second)
    api.done("DELETE", f"/resource_providers/{first}")
    leave(api, third)
    assert listed(api)["three"]["note"] == NOTE


def test_a_note_is_no_write_of_the_journal(tmp_path: Path) -> None:
    core = Core.open(tmp_path)
    api = Api(core)
    host = api.provider("host")
    rows = core._home.extent()
    leave(api, host)
    assert core.request("PUT", f"/hosts/{host}/note", NOTE, microversion="1.39", key="k").status == 204
    assert core._home.extent() == rows
    core.close()
    core = Core.open(tmp_path)
    assert listed(Api(core))["host"]["note"] is None
    core.close()


def test_a_server_that_takes_no_writes_has_no_notes(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the next takeover to it, old ones would be shown until the agents have sent theirs again."""
    host = api.provider("host")
    leave(api, host)
    monkeypatch.setattr(api.core._home, "is_active", False)
    api.done("GET", "/hosts")
    monkeypatch.setattr(api.core._home, "is_active", True)
    assert listed(api)["host"]["note"] is None


def test_a_standby_refuses_a_note_as_it_refuses_a_write(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    host = api.provider("host")

    def refuse() -> None:
        raise NotActive(Path("journal"), "This server is a standby.")

    monkeypatch.setattr(api.core._home, "admit", refuse)
    answer = api.ask("PUT", f"/hosts/{host}/note", NOTE)
    assert answer.status == 503 and "standby" in answer.body["errors"][0]["detail"]
    assert listed(api)["host"]["note"] is None


def test_a_host_is_silent_after_five_minutes_by_a_steady_clock(api: Api) -> None:
    now = [1000.0]
    notes = HostNotes(lambda: now[0])
    notes.put("a", NOTE, api.core._store.model)
    for later, silent in ((299.0, False), (1.0, True)):
        now[0] += later
        assert notes.heard("a").silent is silent
        assert notes.heard("b").silent is silent  # it never left one, and had the time to
    assert (notes.heard("a").age_s, notes.heard("b").age_s) == (300.0, None)
    notes.forget()
    assert notes.heard("a") == (None, None, False)


def test_a_host_that_was_made_a_moment_ago_is_not_silent(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(api.core, "notes", HostNotes(lambda: now[0]))
    silent = {}
    for name in ("one", "two", "three"):
        now[0] += 200
        api.provider(name)
        silent[name] = [each for each, host in listed(api).items() if host["silent"]]
    assert silent == {"one": [], "two": [], "three": ["one"]}
    now[0] += 100
    assert [each for each, host in listed(api).items() if host["silent"]] == ["one", "two"]


# The table of all hosts


def host(api: Api, name: str, parent: str | None = None, **totals: int) -> str:
    """A provider, by default a root, with so much of each class."""
    uuid = api.provider(name, parent=parent)
    api.set_inventories(uuid, {each: {"total": total} for each, total in totals.items()})
    return uuid


def fleet_of(api: Api, query: str = "") -> dict[str, Any]:
    return dict(api.done("GET", f"/fleet?{query}"))


def row(shown: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (each for each in shown["rows"] if each["name"] == name)
    return dict(found)


def test_what_is_free_on_a_silent_closed_or_disabled_host_is_in_no_sum(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuids = {name: host(api, name, VCPU=8) for name in ("well", "closed", "silent", "disabled", "drained")}
    api.set_traits(uuids["disabled"], "COMPUTE_STATUS_DISABLED")
    now = [1000.0]
    monkeypatch.setattr(api.core, "notes", HostNotes(lambda: now[0]))
    leave(api, uuids["silent"])
    now[0] += 300
    for name in ("well", "disabled"):
        leave(api, uuids[name])
    leave(api, uuids["closed"], closed="the driver does not answer", findings={"leaked_claim": 2})
    leave(api, uuids["drained"], closed="the host is drained by uid 0", drains=True)
    api.done("PUT", f"/allocations/{new()}", claim({uuids["well"]: {"VCPU": 3}}))
    shown = fleet_of(api, "room=VCPU:2&label=m1.small")
    assert shown["resources"] == {"VCPU": (5, 8)}
    assert (shown["hosts"], shown["not_counted"], shown["room"]) == (5, 4, 2)
    assert {each["name"]: each["state"] for each in shown["rows"]} == {name: name for name in uuids} | {
        "well": "ready"
    }
    assert [each["name"] for each in shown["rows"]] == ["silent", "drained", "closed", "disabled", "well"]
    assert row(shown, "silent")["room"] is None and row(shown, "silent")["resources"] == {"VCPU": (8, 8)}
    assert row(shown, "closed")["reason"] == "the driver does not answer"
    assert shown["sentence"] == (
        "5 hosts: 1 silent for 5 min, 1 drained, 1 closed, 1 disabled, 1 with findings; "
        "room for 2 m1.small, 0 stranded"
    )


def test_what_is_free_on_two_cells_and_fits_on_none_is_stranded(api: Api) -> None:
    root = host(api, "host", VCPU=64)
    for number in range(2):
        host(api, f"cell{number}", root, MEMORY_MB=6000)
    shown = fleet_of(api, "room=VCPU:2,MEMORY_MB:4000")
    assert (shown["room"], shown["stranded"]) == (2, 1)
    assert row(shown, "host")["resources"] == {"MEMORY_MB": (12000, 12000), "VCPU": (64, 64)}


def test_a_pool_that_hosts_share_is_counted_once(api: Api) -> None:
    pool, aggregate = host(api, "pool", DISK_GB=100), new()
    api.set_traits(pool, POOL)
    for uuid in (pool, host(api, "one", VCPU=8), host(api, "two", VCPU=8)):
        body = {"aggregates": [aggregate], "resource_provider_generation": api.generation(uuid)}
        api.done("PUT", f"/resource_providers/{uuid}/aggregates", body)
    shown = fleet_of(api, "room=VCPU:1,DISK_GB:20&group=aggregate")
    assert [each["room"] for each in shown["rows"]] == [5, 5]
    assert shown["room"] == 5 and shown["groups"][aggregate]["room"] == 5


@pytest.mark.parametrize("seed", range(60))
def test_the_room_is_how_many_guests_get_a_candidate_one_after_the_other(api: Api, seed: int) -> None:
    """Each guest is claimed until Placement's own API has no candidate for one more on any host."""
    chance = random.Random(seed)
    api.done("PUT", "/traits/CUSTOM_FAST")
    for number in range(chance.randint(1, 4)):
        root = host(api, f"host{number}", VCPU=chance.randint(1, 12), DISK_GB=chance.randint(0, 9) or 1)
        for cell in range(chance.randint(0, 2)):
            host(api, f"cell{number}-{cell}", root, MEMORY_MB=chance.randint(1, 40))
        for card in range(chance.randint(0, 3)):
            uuid = host(api, f"card{number}-{card}", root, VGPU=chance.randint(1, 4))
            if chance.random() < 0.5:
                api.set_traits(uuid, "CUSTOM_FAST")
    query = f"resources=VCPU:{chance.randint(1, 3)},MEMORY_MB:{chance.randint(1, 9)}"
    query += chance.choice(("", "&resources1=VGPU:1", "&resources1=VGPU:2&required1=CUSTOM_FAST"))
    room = fleet_of(api, f"room={quote(query)}")["room"]
    guests = 0
    while found := api.done("GET", f"/allocation_candidates?{query}&limit=1")["allocation_requests"]:
        api.done("PUT", f"/allocations/{new()}", claim({}) | {"allocations": found[0]["allocations"]})
        guests += 1
    assert (room, fleet_of(api, f"room={quote(query)}")["room"]) == (guests, 0)


def test_all_hosts_are_there_however_many_and_pages_have_each_once(api: Api) -> None:
    names = [f"host{number:03}" for number in range(250)]
    for name in names:
        api.provider(name)
    pages = [fleet_of(api, f"page={number}&sort=name&every=1") for number in (1, 2, 3)]
    assert [each["name"] for page in pages for each in page["rows"]] == names
    assert all([each[1] for each in page["every"]] == names for page in pages)
    assert fleet_of(api, "page=99")["page"] == 3
    found = fleet_of(api, "search=HOST01&limit=5")
    assert (found["found"], found["pages"], found["hosts"]) == (10, 2, 250)


def test_hosts_are_sorted_by_a_column_or_a_class_and_those_without_come_last(api: Api) -> None:
    for name, vcpus in (("a", 2), ("b", 8), ("c", 4)):
        host(api, name, VCPU=vcpus)
    host(api, "d", DISK_GB=1)

    def order(sort: str) -> str:
        return "".join(each["name"] for each in fleet_of(api, f"sort={sort}&room=VCPU:2")["rows"])

    assert (order("VCPU"), order("-VCPU"), order("-name")) == ("acbd", "bcad", "dcba")
    assert (order("-room"), order("PCPU"), order("age")) == ("bcad", "abcd", "abcd")


def test_groups_have_their_subtotals(api: Api) -> None:
    uuids = [host(api, name, VCPU=4) for name in ("a", "b", "c")]
    api.done("PUT", "/traits/CUSTOM_RACK_1")
    api.set_traits(uuids[0], "CUSTOM_RACK_1", "HW_CPU_X86_AVX")
    api.set_traits(uuids[1], "CUSTOM_RACK_1")
    leave(api, uuids[1], closed="by hand", findings={"leaked_claim": 1})
    shown = fleet_of(api, "group=trait&room=VCPU:1")
    assert [*shown["groups"]] == ["CUSTOM_RACK_1", "none"]
    rack = shown["groups"]["CUSTOM_RACK_1"]
    assert (rack["hosts"], rack["not_counted"], rack["with_findings"], rack["room"]) == (2, 1, 1, 4)
    inside = fleet_of(api, "group=trait&within=CUSTOM_RACK_1")
    assert [each["name"] for each in inside["rows"]] == ["b", "a"] and inside["hosts"] == 3
    assert [*fleet_of(api, "group=state")["groups"]] == ["closed", "no note"]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("page=0", "page must be a number"),
        ("limit=x", "limit must be a number"),
        ("group=rack", "group must be one of state, aggregate, trait"),
        ("sort=colour", "There is no column 'colour'"),
        ("room=m9", "Cannot tell the room for 'm9'"),
        ("room=CUSTOM_NONE:1", "No such resource class or trait: CUSTOM_NONE"),
        ("room=resources%3DVCPU:1%26required%3DCUSTOM_NONE", "CUSTOM_NONE"),
        ("room=VCPU:0", "Cannot tell the room"),
    ],
)
def test_what_cannot_be_shown_is_refused_with_a_sentence(api: Api, query: str, said: str) -> None:
    host(api, "host", VCPU=1)
    assert said in api.refused(400, "GET", f"/fleet?{query}")["detail"]


def test_a_flavor_is_known_by_its_name(api: Api) -> None:
    host(api, "host", VCPU=9)
    api.core.notes.flavors = {"m1.small": "resources=VCPU:2"}
    shown = fleet_of(api, "room=m1.small")
    assert shown["sentence"].endswith("room for 4 m1.small, 0 stranded") and shown["flavors"] == ["m1.small"]
    assert "The flavors here are m1.small." in api.refused(400, "GET", "/fleet?room=m9")["detail"]


def test_a_host_leads_to_its_providers_and_to_who_has_them(api: Api) -> None:
    root = host(api, "host", VCPU=8)
    cell = host(api, "cell", root, MEMORY_MB=64)
    host(api, "card", cell, VGPU=4)
    host(api, "another", root)
    consumer = new()
    api.done("PUT", f"/allocations/{consumer}", claim({root: {"VCPU": 3}, cell: {"MEMORY_MB": 8}}))
    move = {"instance": consumer, "name": "vm", "kind": "live", "role": "source", "state": "moving"}
    leave(api, root, moves=[move])
    shown = api.done("GET", f"/fleet/{root}")
    assert [(each["name"], each["depth"]) for each in shown["providers"]] == [
        ("host", 0),
        ("cell", 1),
        ("card", 2),
        ("another", 1),
    ]
    assert shown["providers"][0]["resources"]["VCPU"] == {"used": 3, "capacity": 8, "total": 8, "reserved": 0}
    (held,) = shown["consumers"]
    assert held["allocations"] == {"host": {"VCPU": 3}, "cell": {"MEMORY_MB": 8}}
    assert shown["note"]["moves"] == [move] and shown["host"]["moves"] == 1
    for uuid in (cell, new(), "x"):
        assert "No host" in api.refused(404, "GET", f"/fleet/{uuid}")["detail"]


# The hosts that fit, and all hosts, as `GET /hosts/candidates` of the core tells them


def made_host(api: Api, name: str, **totals: int) -> str:
    uuid: str = api.provider(name)
    api.set_inventories(uuid, {each: {"total": total} for each, total in totals.items()})
    return uuid


def asked(api: Api, query: str) -> Any:
    return api.done("GET", f"/hosts/candidates?{query}")


def test_each_host_that_fits_comes_once_with_what_is_left(api: Api) -> None:
    one = made_host(api, "one", VCPU=8)
    for number in range(3):
        card = api.provider(f"card{number}", parent=one)
        api.set_inventories(card, {"VGPU": {"total": 2}})
    made_host(api, "two", VCPU=8)
    api.done("PUT", f"/allocations/{new()}", claim({one: {"VCPU": 3}}))
    (found,) = asked(api, "resources=VCPU:4&resources1=VGPU:1")["hosts"]
    assert (found["name"], found["uuid"]) == ("one", one)
    assert found["allocations"][one] == {"name": "one", "resources": {"VCPU": 4}}
    assert found["left"] == {"VCPU": [1, 8, 0], "VGPU": [5, 6, 5]}
    assert [each["name"] for each in asked(api, "resources=VCPU:1&limit=1")["hosts"]] == ["one"]


def test_if_none_fits_all_hosts_come_as_far_as_they_were_asked_about(api: Api) -> None:
    one = made_host(api, "one", VCPU=8, DISK_GB=5)
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
    uuid = made_host(api, "one", VCPU=8)
    api.set_traits(uuid, *traits)
    api.done("PUT", f"/hosts/{uuid}/note", {**NOTE, **note})
    answer = asked(api, "resources=VCPU:1")
    assert len(answer["hosts"]) == (0 if reason else 1)
    assert reason == "" or answer["trees"][0][0] == reason
    ((told, pending, _),) = asked(api, "resources=VCPU:9")["trees"]
    assert (told, pending) == (reason, note.get("reshape", ""))


def test_the_instances_whose_moves_can_be_reverted_come_with_the_hosts(api: Api) -> None:
    uuid, states = made_host(api, "one", VCPU=8), ("begun", "confirming", "reverting", "leaving")
    of_each = {"name": "", "kind": "resize", "role": "destination"}
    moves = [{"instance": state, "state": state, **of_each} for state in states]
    api.done("PUT", f"/hosts/{uuid}/note", {**NOTE, "moves": moves})
    assert asked(api, "resources=VCPU:9")["moving"] == ["begun", "reverting"]


def test_of_a_fleet_that_is_half_silent_the_other_half_fits_and_the_silent_ones_are_named(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(api.core, "notes", HostNotes(lambda: now[0]))
    uuids = [made_host(api, f"host{number}", VCPU=8) for number in range(10)]
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
    root = model.providers[made_host(api, "one", VCPU=8)]
    now[0] += 300
    assert closed_reason(notes, root) == "silent: its agent leaves no note"
    notes.put(root.uuid, NOTE, model)
    now[0] += 720
    assert closed_reason(notes, root) == "silent for 12 min: its agent leaves no note"
