"""The notes of the hosts' agents: what is kept, for how long, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kits.embedded_api import Api, new

from agent.codec import decode
from agent.placement.embedded import Core, hosts
from agent.placement.embedded.hosts import HostNotes
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
        ({**NOTE, "unknown": "x" * hosts.NOTE_BYTES_MAX}, 413),
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
    monkeypatch.setattr(hosts, "HOSTS_MAX", 2)
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
