"""Any program of requests, nonsense, many clients at once: what holds, and what is on disk is in memory."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from kits.embedded_api import Api, claim, new
from kits.examples import examples
from kits.threads import at_once

from agent.placement.embedded import Core
from agent.placement.embedded.core import ROUTES

PROVIDERS = [f"{number:08}-0000-0000-0000-000000000000" for number in range(1, 5)]
CONSUMERS = [f"{number:08}-1111-1111-1111-111111111111" for number in range(1, 4)]
CLASSES = ("VCPU", "DISK_GB")

provider = st.sampled_from(PROVIDERS)
consumer = st.sampled_from(CONSUMERS)
generation = st.one_of(st.none(), st.integers(0, 4))
resources = st.dictionaries(st.sampled_from(CLASSES), st.integers(1, 6), min_size=1)
allocations = st.dictionaries(provider, resources, max_size=3)
inventories = st.dictionaries(
    st.sampled_from(CLASSES), st.fixed_dictionaries({"total": st.integers(1, 9)}), max_size=2
)


class Programs(RuleBasedStateMachine):
    """Requests drawn at random; those with `fresh` use the generations that are in force."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.open()
        self.generations: dict[str, int] = {}

    def open(self) -> None:
        self.core = Core.open(Path(self.folder.name))
        self.api = Api(self.core)

    def ask(self, method: str, path: str, body: Any = None) -> int:
        """Send; a refusal must change nothing, and nothing may make a provider fuller than its capacity."""
        before = self.api.whole()
        used = self.used()
        answer = self.api.ask(method, path, body)
        assert answer.status < 500, answer
        assert answer.status < 300 or self.api.whole() == before
        for (uuid, name), amount in self.used().items():
            capacity = self.core._store.model.providers[uuid].inventories[name].capacity
            assert amount <= max(capacity, used.get((uuid, name), 0))
        return answer.status

    def used(self) -> dict[tuple[str, str], int]:
        usages = self.core._store.model.usages.items()
        return {(uuid, name): amount for uuid, usage in usages for name, amount in usage.items()}

    def provider_generation(self, uuid: str) -> int:
        held = self.core._store.model.provider(uuid)
        return 0 if held is None else held.generation

    def consumer_generation(self, uuid: str) -> int | None:
        held = self.core._store.model.consumer(uuid)
        return None if held is None else held.generation

    @initialize()
    def some_hosts(self) -> None:
        for uuid in PROVIDERS[:2]:
            self.ask("POST", "/resource_providers", {"name": uuid, "uuid": uuid})
            body = {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": 9}}}
            self.ask("PUT", f"/resource_providers/{uuid}/inventories", body)

    @rule(uuid=provider, parent=st.one_of(st.none(), provider))
    def create(self, uuid: str, parent: str | None) -> None:
        body = {"name": uuid, "uuid": uuid, "parent_provider_uuid": parent}
        self.ask("POST", "/resource_providers", body)

    @rule(uuid=provider, name=provider, parent=st.one_of(st.none(), provider))
    def move(self, uuid: str, name: str, parent: str | None) -> None:
        self.ask("PUT", f"/resource_providers/{uuid}", {"name": name, "parent_provider_uuid": parent})

    @rule(uuid=provider)
    def delete(self, uuid: str) -> None:
        if self.ask("DELETE", f"/resource_providers/{uuid}") == 204:
            self.generations.pop(uuid, None)

    @rule(uuid=provider, wanted=inventories)
    def offer(self, uuid: str, wanted: dict[str, Any]) -> None:
        body = {"resource_provider_generation": self.provider_generation(uuid), "inventories": wanted}
        self.ask("PUT", f"/resource_providers/{uuid}/inventories", body)

    @rule(uuid=provider, names=st.sets(st.sampled_from(["HW_CPU_X86_AVX", "HW_CPU_X86_SSE"])))
    def traits(self, uuid: str, names: set[str]) -> None:
        body = {"resource_provider_generation": self.provider_generation(uuid), "traits": sorted(names)}
        self.ask("PUT", f"/resource_providers/{uuid}/traits", body)

    @rule(uuid=provider, groups=st.sets(consumer))
    def aggregates(self, uuid: str, groups: set[str]) -> None:
        body = {"resource_provider_generation": self.provider_generation(uuid), "aggregates": sorted(groups)}
        self.ask("PUT", f"/resource_providers/{uuid}/aggregates", body)

    @rule(uuid=consumer, wanted=allocations, fresh=st.booleans(), stale=generation)
    def put(self, uuid: str, wanted: dict[str, Any], fresh: bool, stale: int | None) -> None:
        body = claim(wanted, self.consumer_generation(uuid) if fresh else stale)
        self.ask("PUT", f"/allocations/{uuid}", body)

    @rule(wanted=st.dictionaries(consumer, allocations, min_size=1))
    def post(self, wanted: dict[str, Any]) -> None:
        body = {uuid: claim(part, self.consumer_generation(uuid)) for uuid, part in wanted.items()}
        self.ask("POST", "/allocations", body)

    @rule(uuid=consumer)
    def release(self, uuid: str) -> None:
        self.ask("DELETE", f"/allocations/{uuid}")

    @rule(
        offered=st.dictionaries(provider, inventories, min_size=1),
        wanted=st.dictionaries(consumer, allocations),
    )
    def reshape(self, offered: dict[str, Any], wanted: dict[str, Any]) -> None:
        body = {
            "inventories": {
                uuid: {"resource_provider_generation": self.provider_generation(uuid), "inventories": part}
                for uuid, part in offered.items()
            },
            "allocations": {
                uuid: claim(part, self.consumer_generation(uuid)) for uuid, part in wanted.items()
            },
        }
        self.ask("POST", "/reshaper", body)

    @rule()
    def restart(self) -> None:
        before, indexes = self.api.whole(), self.indexes()
        self.core.close()
        self.open()
        assert (self.api.whole(), self.indexes()) == (before, indexes)

    def indexes(self) -> dict[str, dict[str, set[str]]]:
        model = self.core._store.model
        held = {
            "children": model.children,
            "trees": model.trees,
            "traits": model.providers_by_trait,
            "aggregates": model.providers_by_aggregate,
            "classes": model.providers_by_class,
            "consumers": model.consumers_by_provider,
        }
        names = {name: {uuid} for name, uuid in model.uuid_by_name.items()}
        return {"names": names} | {
            name: {key: set(entry) for key, entry in index.items()} for name, index in held.items()
        }

    @invariant()
    def usage_is_the_sum_of_the_allocations(self) -> None:
        sums: dict[str, dict[str, int]] = {}
        for holder in self.core._store.model.consumers.values():
            assert holder.allocations
            for uuid, part in holder.allocations.items():
                for name, amount in part.items():
                    usage = sums.setdefault(uuid, {})
                    usage[name] = usage.get(name, 0) + amount
        assert self.core._store.model.usages == sums

    @invariant()
    def generations_only_grow(self) -> None:
        for held in self.core._store.model.providers.values():
            assert held.generation >= self.generations.get(held.uuid, 0)
            self.generations[held.uuid] = held.generation

    @invariant()
    def every_root_is_the_end_of_its_chain_of_parents(self) -> None:
        for held in self.core._store.model.providers.values():
            end = held
            while end.parent_uuid is not None:
                end = self.core._store.model.providers[end.parent_uuid]
            assert held.root_uuid == end.uuid

    @invariant()
    def what_is_allocated_has_an_inventory(self) -> None:
        model = self.core._store.model
        for uuid, usage in model.usages.items():
            assert usage.keys() <= model.providers[uuid].inventories.keys()

    def teardown(self) -> None:
        self.core.close()
        self.folder.cleanup()


TestPrograms = Programs.TestCase
TestPrograms.settings = settings(max_examples=examples(40), stateful_step_count=40, deadline=None)


HOST = "00000001-0000-0000-0000-000000000000"
CONSUMER = "00000001-1111-1111-1111-111111111111"

words = st.one_of(
    st.sampled_from(
        [
            "uuid",
            "name",
            "parent_provider_uuid",
            "resource_provider_generation",
            "inventories",
            "allocations",
            "resources",
            "resource_provider",
            "traits",
            "aggregates",
            "mappings",
            "consumer_generation",
            "consumer_type",
            "project_id",
            "user_id",
            "total",
            "reserved",
            "allocation_ratio",
            "max_unit",
            "resource_class",
            "VCPU",
            "CUSTOM_X",
            "HW_CPU_X86_AVX",
            HOST,
            CONSUMER,
            "INSTANCE",
        ]
    ),
    st.text(max_size=5),
)
numbers = st.one_of(st.integers(-2, 3), st.integers(), st.floats(), st.booleans())
leaves = st.one_of(st.none(), numbers, words)
bodies = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=4)),
    max_leaves=12,
)
mutations = st.lists(st.tuples(st.integers(0, 40), bodies), max_size=2)
parameters = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "name",
                "uuid",
                "member_of",
                "resources",
                "required",
                "in_tree",
                "project_id",
                "user_id",
                "consumer_type",
                "associated",
                "limit",
                "resources1",
                "group_policy",
                "root_required",
                "same_subtree",
                "x",
            ]
        ),
        st.one_of(
            words,
            st.sampled_from(["VCPU:1", "VCPU:-1", "in:", "!in:", f"!in:{HOST}", "in:A,!B", "!", ",", ":"]),
        ),
    ),
    max_size=3,
)
routes = st.sampled_from([(path, method) for path, methods in ROUTES.items() for method in methods])


def well_formed() -> list[Any]:
    """Bodies of which each is right for some route; the fuzzer then spoils them somewhere."""
    inventories = {"resource_provider_generation": 2, "inventories": {"VCPU": {"total": 4, "reserved": 1}}}
    held = claim({HOST: {"VCPU": 1}}, 1)
    return [
        {"name": "x", "uuid": CONSUMER, "parent_provider_uuid": HOST},
        inventories,
        {"resource_class": "VCPU", "total": 1},
        {"resource_provider_generation": 2, "total": 1},
        {"resource_provider_generation": 2, "traits": ["HW_CPU_X86_AVX"]},
        {"resource_provider_generation": 2, "aggregates": [HOST]},
        {"name": "CUSTOM_X"},
        held,
        {CONSUMER: held},
        {"inventories": {HOST: inventories}, "allocations": {CONSUMER: held}},
    ]


def spoiled(body: Any, place: int, junk: Any) -> Any:
    """`body` with the value at the `place`th position of its tree replaced."""
    position = -1

    def walk(value: Any) -> Any:
        nonlocal position
        position += 1
        if position == place:
            return junk
        if isinstance(value, dict):
            return {key: walk(item) for key, item in value.items()}
        return [walk(item) for item in value] if isinstance(value, list) else value

    return walk(body)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    core = Core.open(Path(tmp_path_factory.mktemp("fuzz")))
    yield Api(core)
    core.close()


def furnish(api: Api) -> None:
    """See to it that there is a host with something on it, whatever the examples before have done."""
    if api.ask("GET", f"/resource_providers/{HOST}").status == 404:
        for shown in api.done("GET", "/resource_providers")["resource_providers"]:
            api.ask("DELETE", f"/resource_providers/{shown['uuid']}")
        api.done("POST", "/resource_providers", {"name": "host", "uuid": HOST})
    if not api.held(CONSUMER):
        api.set_inventories(HOST, {"VCPU": {"total": 8}})
        assert api.claim(CONSUMER, {HOST: {"VCPU": 2}}).status == 204


@settings(
    max_examples=examples(1500), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    route=routes,
    part=words,
    query=parameters,
    start=st.one_of(st.sampled_from(well_formed()), bodies),
    changes=mutations,
    minor=st.sampled_from([*range(40), 39, 39, 39]),
)
def test_nonsense_is_refused_and_changes_nothing(
    api: Api, route: tuple[str, str], part: str, query: Any, start: Any, changes: Any, minor: int
) -> None:
    pattern, method = route
    path = pattern.replace("{uuid}", HOST).replace("{consumer_uuid}", CONSUMER)
    for name in ("{name}", "{resource_class}"):
        path = path.replace(name, quote(part, safe=""))
    body = start
    for place, junk in changes:
        body = spoiled(body, place, junk)
    text = "&".join(f"{key}={quote(value)}" for key, value in query)
    furnish(api)
    before = api.whole()
    answer = api.ask(method, f"{path}?{text}" if text else path, body, mv=f"1.{minor}")
    assert answer.status < 500, answer
    assert answer.status < 300 or api.whole() == before


CLIENTS = 16

Allocations = dict[str, dict[str, int]]


def test_one_unit_is_sold_once(tmp_path: Path) -> None:
    """30 providers with one unit each, 4 claims for each at the same moment: 30 owners."""
    core = Core.open(tmp_path)
    api = Api(core)
    hosts = [api.provider(f"host{number}", {"PGPU": 1}) for number in range(30)]
    sold: list[str] = []

    def work(number: int) -> None:
        for host in hosts[number % 4 :: 4] + hosts:
            status = api.claim(new(), {host: {"PGPU": 1}}).status
            assert status in (204, 409)
            if status == 204:
                sold.append(host)

    at_once(*(partial(work, number) for number in range(CLIENTS)))
    assert Counter(sold) == Counter(hosts)
    assert all(api.usage(host) == {"PGPU": 1} for host in hosts)
    core.close()


def test_capacity_is_granted_to_the_last_unit_and_no_further(tmp_path: Path) -> None:
    core = Core.open(tmp_path)
    api = Api(core)
    host = api.provider("host", {"VCPU": 100})
    claims = at_once(*[lambda: [api.claim(new(), {host: {"VCPU": 1}}).status for _ in range(25)]] * CLIENTS)
    assert Counter(status for statuses in claims for status in statuses) == {204: 100, 409: 300}
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

    at_once(*(partial(work, number) for number in range(CLIENTS)))
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
    run_group = core._store.home._writer._run_group
    core._store.home._writer._run_group = lambda tickets: (
        together.append(len(tickets)),
        run_group(tickets),
    )[1]

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

    at_once(*(partial(work, number) for number in range(CLIENTS)))
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
