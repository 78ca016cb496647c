"""Sixteen clients at once: nothing is ever sold twice, and every answer fits one sequence of events."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from kits.embedded_api import Api, claim, new

from agent.placement.embedded import Core

CLIENTS = 16

Allocations = dict[str, dict[str, int]]


def run_clients(work: Callable[[int], None], clients: int = CLIENTS) -> None:
    """Run `work(number)` in that many threads, and raise what any of them raised."""
    errors: list[Exception] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except Exception as error:  # noqa: BLE001 - raised below, in the thread that pytest watches
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]


def test_one_unit_is_sold_once(tmp_path: Path) -> None:
    """30 providers with one unit each, 4 claims for each at the same moment: 30 owners."""
    core = Core.open(tmp_path)
    api = Api(core)
    hosts = [api.provider(f"host{number}", {"PGPU": 1}) for number in range(30)]
    sold: list[str] = []
    gate = threading.Barrier(CLIENTS)

    def work(number: int) -> None:
        gate.wait(10)
        for host in hosts[number % 4 :: 4] + hosts:
            status = api.claim(new(), {host: {"PGPU": 1}}).status
            assert status in (204, 409)
            if status == 204:
                sold.append(host)

    run_clients(work)
    assert Counter(sold) == Counter(hosts)
    assert all(api.usage(host) == {"PGPU": 1} for host in hosts)
    core.close()


def test_capacity_is_granted_to_the_last_unit_and_no_further(tmp_path: Path) -> None:
    core = Core.open(tmp_path)
    api = Api(core)
    host = api.provider("host", {"VCPU": 100})
    statuses: list[int] = []
    run_clients(lambda _: statuses.extend(api.claim(new(), {host: {"VCPU": 1}}).status for _ in range(25)))
    assert Counter(statuses) == {204: 100, 409: 300}
    assert api.generation(host) == 101
    core.close()


def test_guarded_writes_fit_one_sequence(tmp_path: Path) -> None:
    """Clients write to consumers that they share, guarded by the generations they saw, and swap with others.

    The generation of a consumer numbers its granted writes: if each number was granted once, none is missing,
    and the state at the end is what the last of them wrote, then one sequence explains all answers.
    """
    core = Core.open(tmp_path)
    api = Api(core)
    hosts = [api.provider(f"host{number}", {"VCPU": 12}) for number in range(3)]
    shared = [new() for _ in range(6)]
    granted: dict[str, list[tuple[int, Allocations]]] = {consumer: [] for consumer in shared}

    def work(number: int) -> None:
        chance = random.Random(number)
        for _ in range(60):
            consumer, host, other = chance.choice(shared), chance.choice(hosts), new()
            seen = api.done("GET", f"/allocations/{consumer}").get("consumer_generation")
            wanted = {host: {"VCPU": chance.randint(1, 4)}}
            body = {consumer: claim(wanted, seen), other: claim({host: {"VCPU": 1}})}
            status = api.ask("POST", "/allocations", body).status
            assert status in (204, 409)
            if status == 204:
                granted[consumer].append((seen or 0, wanted))
                assert api.ask("DELETE", f"/allocations/{other}").status == 204
            assert all(api.usage(host)["VCPU"] <= 12 for host in hosts)

    run_clients(work)
    for consumer, writes in granted.items():
        writes.sort(key=lambda write: write[0])
        assert [seen for seen, _ in writes] == list(range(len(writes)))
        shown = api.done("GET", f"/allocations/{consumer}")
        assert shown["consumer_generation"] == len(writes) > 1
        assert api.held(consumer) == writes[-1][1]
    before = api.whole()
    core.close()
    core = Core.open(tmp_path)
    assert Api(core).whole() == before
    core.close()


def test_writes_of_every_kind_that_share_commits_leave_one_state(tmp_path: Path) -> None:
    """Writes of one group see each other before they are on disk; what they leave is what is read again."""
    core = Core.open(tmp_path)
    api = Api(core)
    uuids = [new() for _ in range(5)]
    consumers = [new() for _ in range(4)]
    together: list[int] = []
    run_group = core._store.file._writer._run_group
    core._store.file._writer._run_group = lambda tickets: (together.append(len(tickets)), run_group(tickets))[
        1
    ]

    def work(number: int) -> None:
        chance = random.Random(number)
        for _ in range(80):
            uuid, other, consumer = chance.choice(uuids), chance.choice(uuids), chance.choice(consumers)
            url, name = f"/resource_providers/{uuid}", chance.choice("abcde")
            generation = chance.randint(0, 6)
            offer = {
                "resource_provider_generation": generation,
                "inventories": {"VCPU": {"total": chance.randint(1, 9)}} if chance.random() < 0.8 else {},
            }
            labels = {"resource_provider_generation": generation, "traits": ["HW_NUMA_ROOT"]}
            requests: list[tuple[str, str, object]] = [
                ("POST", "/resource_providers", {"name": name, "uuid": uuid}),
                ("POST", "/resource_providers", {"name": name, "uuid": uuid, "parent_provider_uuid": other}),
                ("PUT", url, {"name": name, "parent_provider_uuid": chance.choice((None, other))}),
                ("DELETE", url, None),
                ("POST", f"{url}/inventories", {"resource_class": "VCPU", "total": 9}),
                ("PUT", f"{url}/inventories", offer),
                ("PUT", f"{url}/traits", labels),
                ("PUT", f"/traits/CUSTOM_{name.upper()}", None),
                ("DELETE", f"/traits/CUSTOM_{name.upper()}", None),
                ("PUT", f"/allocations/{consumer}", claim({uuid: {"VCPU": 1}}, chance.choice((None, 1, 2)))),
                ("DELETE", f"/allocations/{consumer}", None),
            ]
            answer = api.ask(*chance.choice(requests))
            assert answer.status < 500, answer

    run_clients(work)
    assert max(together) > 1, "nothing shared a commit"
    model = core._store.model
    before, names = api.whole(), dict(model.uuid_by_name)
    assert names == {provider.name: uuid for uuid, provider in model.providers.items()}
    trees = {root: set(members) for root, members in model.trees.items()}
    core.close()
    core = Core.open(tmp_path)
    model = core._store.model
    assert Api(core).whole() == before
    assert model.uuid_by_name == names
    assert {root: set(members) for root, members in model.trees.items()} == trees
    core.close()
