"""Idempotency keys: a write whose caller stopped waiting is done once, and its repetition learns of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kits.embedded_api import Api, new
from kits.stalling_disk import StallingDisk

from agent.durable.group_commit import Ticket
from agent.placement.embedded import Core, CoreResponse
from agent.placement.embedded.keyed_writes import KeyedWrites, KeyReused

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


def test_a_stalled_write_is_unknown_and_its_repetition_learns_that_it_was_done(core: Core) -> None:
    disk, host, consumer = StallingDisk(core._store.file), Api(core).provider("h", {"VCPU": 4}), new()
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


def test_the_repetition_of_a_write_that_failed_learns_that(core: Core) -> None:
    disk, host, consumer = StallingDisk(core._store.file), Api(core).provider("h", {"VCPU": 4}), new()
    disk.fail_next()
    with disk.stalled():
        assert put(core, consumer, host, 1, "key").status == 504
    again = put(core, consumer, host, 1, "key")
    assert again.status == 503 and again.headers["x-openstack-request-id"]
    assert put(core, consumer, host, 1, "another").status == 204


def test_a_write_behind_a_stalled_one_is_cancelled_for_good(core: Core) -> None:
    disk, host = StallingDisk(core._store.file), Api(core).provider("h", {"VCPU": 4})
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


def test_the_oldest_outcomes_are_forgotten_but_not_those_that_are_unknown() -> None:
    def ticket() -> Ticket[Any]:
        return Ticket(lambda _: None, False, lambda seconds, begun: TimeoutError())

    keyed, open_one = KeyedWrites(kept_max=2), ticket()
    assert keyed.ticket("open", 0, lambda: open_one) is open_one
    for number in range(3):
        done = ticket()
        done.answer()
        keyed.ticket(f"{number}", 0, lambda done=done: done)
    assert keyed.ticket("open", 0, ticket) is open_one
    fresh = ticket()
    assert keyed.ticket("0", 0, lambda: fresh) is fresh
    with pytest.raises(KeyReused):
        keyed.ticket("open", 1, ticket)


def test_two_at_once_with_one_key_are_one_write(core: Core) -> None:
    disk, host, consumer = StallingDisk(core._store.file), Api(core).provider("h", {"VCPU": 4}), new()
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
