"""The journal: what is written is read again, what cannot be read is told; a repeated key is one write."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kits.embedded_api import Api, new
from kits.stalling_disk import StallingDisk

from agent.durable.errors import DatabaseDamaged, DatabaseLocked, DatabaseUnwritable
from agent.placement.embedded import Core, CoreResponse, store
from agent.placement.embedded.store import FILE_NAME, KeyedWrites, Row

WAIT_S = 0.25


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    core = Core.open(tmp_path, wait_s=WAIT_S)
    yield core
    core.close()


def put(core: Core, consumer: str, host: str, amount: int, key: str | None) -> CoreResponse:
    body = {
        "allocations": {host: {"resources": {"VCPU": amount}}},
        "consumer_generation": None,
        "project_id": "p",
        "user_id": "u",
        "consumer_type": "INSTANCE",
    }
    return core.request("PUT", f"/allocations/{consumer}", body, microversion="1.39", key=key)


def rows(core: Core) -> list[Row]:
    home = core._store.home
    return home.submit(lambda _: home.rows(0, 1 << 20)).result()


def test_a_stalled_write_is_unknown_and_its_repetition_learns_that_it_was_done(core: Core) -> None:
    disk, host, consumer = StallingDisk(core._store.home), Api(core).provider("h", {"VCPU": 4}), new()
    with disk.stalled():
        first = put(core, consumer, host, 1, "key")
        again = put(core, consumer, host, 1, "key")
        assert core.in_doubt
    assert first.status == again.status == 504
    assert "x-openstack-request-id" not in first.headers, "the answer is not final"
    assert "unknown" in first.body["errors"][0]["detail"]
    third = put(core, consumer, host, 1, "key")
    assert third.status == 204 and third.headers["x-openstack-request-id"]
    assert not core.in_doubt
    assert put(core, consumer, host, 1, None).status == 409, "without the key it is another write"
    usages = Api(core).done("GET", f"/resource_providers/{host}/usages")
    assert usages["usages"]["VCPU"] == 1


def test_the_repetition_of_a_write_that_failed_is_done(core: Core) -> None:
    disk, host, consumer = StallingDisk(core._store.home), Api(core).provider("h", {"VCPU": 4}), new()
    disk.fail_next()
    with disk.stalled():
        assert put(core, consumer, host, 1, "key").status == 504
    assert put(core, consumer, host, 1, "key").status == 204
    assert Api(core).done("GET", f"/resource_providers/{host}/usages")["usages"]["VCPU"] == 1


def test_a_write_behind_a_stalled_one_is_cancelled_for_good(core: Core) -> None:
    disk, host = StallingDisk(core._store.home), Api(core).provider("h", {"VCPU": 4})
    with disk.stalled():
        assert put(core, new(), host, 1, "first").status == 504
        behind = put(core, new(), host, 3, "behind")
    assert behind.status == 503 and behind.headers["x-openstack-request-id"]
    assert put(core, new(), host, 3, "later").status == 204, "the cancelled write holds nothing"
    assert put(core, new(), host, 1, "behind").status == 409, "nor does its key stand for an outcome"


def test_a_rejected_write_stays_rejected(core: Core) -> None:
    host, consumer = Api(core).provider("h", {"VCPU": 4}), new()
    assert put(core, consumer, host, 9, "key").status == 409
    again = put(core, consumer, host, 9, "key")
    assert again.status == 409 and "VCPU" in again.body["errors"][0]["detail"]


def test_a_key_belongs_to_one_write(core: Core) -> None:
    host = Api(core).provider("h", {"VCPU": 4})
    assert put(core, new(), host, 1, "key").status == 204
    refused = put(core, new(), host, 1, "key")
    assert refused.status == 422 and "key" in refused.body["errors"][0]["detail"]


def test_the_header_gives_the_key(core: Core) -> None:
    headers = {"Idempotency-Key": "k", "OpenStack-API-Version": "placement 1.39"}
    first, second = (
        core.request("POST", "/resource_providers", {"name": "h"}, headers=headers) for _ in range(2)
    )
    assert (first.status, second.status) == (200, 200)
    assert first.body["uuid"] == second.body["uuid"]
    assert first.headers["location"] == second.headers["location"]


def known(keyed: KeyedWrites, key: str) -> Any:
    """What became of the write with that key, "anew" where it would be done."""
    outcome = keyed.get(key)
    return "anew" if outcome is None else json.loads(outcome[1])


def test_the_oldest_outcomes_are_forgotten() -> None:
    keyed = KeyedWrites(kept_max=2)
    keyed.end({f"{number}": ("", '"made"') for number in range(3)}, (1, 1))
    assert [known(keyed, key) for key in "012"] == ["anew", "made", "made"]


def test_a_key_is_known_for_two_minutes_and_its_memory_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client comes back after its time-out, whatever all others wrote meanwhile."""
    keyed, now = KeyedWrites(), 1000.0
    monkeypatch.setattr(store.time, "monotonic", lambda: now)
    keyed.end({"first": ("", '"made"')}, (1, 1))
    for second in range(120):
        now += 1
        keyed.end({f"{second} {number}": ("", "null") for number in range(1000)}, (1, 1))
    assert known(keyed, "first") == "made"
    assert keyed.bytes == sum(store.KEY_BYTES + len(key) + len(one[1]) for key, one in keyed._ended.items())
    now += 1
    keyed.end({"last": ("", "null")}, (1, 1))
    assert known(keyed, "first") == "anew" and "0 0" in keyed
    for number in range(40):
        keyed.end({f"long {number}": ("", json.dumps("x" * (1 << 20)))}, (1, 1))
    assert keyed.bytes <= store.KEPT_BYTES_MAX
    assert "long 39" in keyed and "long 0" not in keyed


def test_a_long_key_is_refused(core: Core) -> None:
    host = Api(core).provider("h", {"VCPU": 4})
    refused = put(core, new(), host, 1, "k" * 256)
    assert refused.status == 400 and "at most 255" in refused.body["errors"][0]["detail"]
    assert put(core, new(), host, 1, "k" * 255).status == 204


def test_two_at_once_with_one_key_are_one_write(core: Core) -> None:
    disk, host, consumer = StallingDisk(core._store.home), Api(core).provider("h", {"VCPU": 4}), new()
    core._store._wait_s = 30
    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda: statuses.append(put(core, consumer, host, 1, "key").status))
        for _ in range(2)
    ]
    with disk.stalled():
        for thread in threads:
            thread.start()
        assert disk.stalling.wait(10)
    for thread in threads:
        thread.join(10)
    assert statuses == [204, 204]


def test_a_claim_writes_only_the_generation_of_its_provider(core: Core) -> None:
    api, consumer = Api(core), new()
    host = api.provider("host", {"VCPU": 4})
    assert api.claim(consumer, {host: {"VCPU": 1}}).status == 204
    changes, first = json.loads(rows(core)[-1].changes)
    assert first == {"f": 1, "b": rows(core)[-2].check}, "the journal has all of its rows"
    assert len(changes["p"][host]) == len(["generation", "updated_at"])
    assert list(changes["c"]) == [consumer]


def test_a_standard_name_that_the_library_lost_stays_while_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Core.open(tmp_path)) as core:
        host = Api(core).provider("host", {"VCPU": 4})
        Api(core).set_traits(host, "HW_NUMA_ROOT")
    monkeypatch.setattr("os_traits.get_traits", lambda: ["COMPUTE_NODE"])
    with closing(Core.open(tmp_path)) as core:
        assert Api(core).done("GET", f"/resource_providers/{host}/traits")["traits"] == ["HW_NUMA_ROOT"]
        assert Api(core).ask("GET", "/traits/HW_NUMA_ROOT").status == 204


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    core = Core.open(tmp_path)
    api = Api(core)
    api.done("PUT", "/traits/CUSTOM_T")
    api.done("PUT", "/resource_classes/CUSTOM_C")
    root = api.provider("root", {"VCPU": 4})
    child = api.provider("child", {"CUSTOM_C": 4}, parent=root)
    api.set_traits(child, "CUSTOM_T")
    api.claim(new(), {root: {"VCPU": 1}, child: {"CUSTOM_C": 2}})
    before, modified = api.whole(), api.ask("GET", f"/resource_providers/{root}").headers["last-modified"]
    core.close()
    core = Core.open(tmp_path)
    api = Api(core)
    assert api.whole() == before
    assert api.ask("GET", f"/resource_providers/{root}").headers["last-modified"] == modified
    core.close()


def test_one_core_per_directory(tmp_path: Path) -> None:
    core = Core.open(tmp_path)
    with pytest.raises(DatabaseLocked):
        Core.open(tmp_path)
    core.close()
    Core.open(tmp_path).close()


@pytest.mark.parametrize(
    "spoil",
    [
        "UPDATE journal SET changes = '{'",
        "UPDATE journal SET changes = '7'",
        "UPDATE journal SET changes = replace(changes, '2147483647', '\"x\",1')",
        "UPDATE journal SET changes = replace(changes, '{\"VCPU\":1}', '')",
        "UPDATE journal SET changes = replace(changes, '{\"VCPU\":1}}', '[]')",
        "UPDATE journal SET changes = x'00'",
        "UPDATE journal SET keys = '[]'",
        "DELETE FROM journal WHERE seq = 2",
        "DELETE FROM journal",
        "UPDATE journal SET seq = 9 WHERE seq = 3",
        "DELETE FROM meta",
        "INSERT INTO meta SELECT * FROM meta",
        "DELETE FROM journal WHERE seq < 4",
        "DELETE FROM journal WHERE seq = 4",
        "DELETE FROM journal WHERE seq = 3",
        "UPDATE journal SET size = 9000000000000000000",
        "DROP TABLE journal",
        "DROP TABLE meta",
    ],
)
def test_a_row_that_cannot_be_read_is_told(tmp_path: Path, spoil: str) -> None:
    core = Core.open(tmp_path)
    api = Api(core)
    host = api.provider("host", {"VCPU": 1})
    api.claim(new(), {host: {"VCPU": 1}})
    core.close()
    with sqlite3.connect(tmp_path / FILE_NAME) as connection:
        connection.execute(spoil)
    connection.close()
    told = (
        r"a row cannot be read|row [23] of the journal is missing|its rows (\d to 3|from \d on) are missing"
    )
    with pytest.raises(DatabaseDamaged, match=told) as refused:
        Core.open(tmp_path)
    assert "Error" not in str(refused.value), "Python's words are none for an operator"


def test_after_close_every_write_is_answered_503(tmp_path: Path) -> None:
    core = Core.open(tmp_path)
    core.close()
    answer = core.request("POST", "/resource_providers", {"name": "host"}, microversion="1.39")
    assert answer.status == 503
    assert "is closed" in answer.body["errors"][0]["detail"]


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DatabaseUnwritable, match="cannot be written"):
        Core.open(tmp_path / "file" / "state")
