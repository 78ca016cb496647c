"""Properties that hold after any program of requests, among them: what is on disk is what is in memory."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from kits.embedded_api import Api, claim
from kits.examples import examples

from agent.placement.embedded import Core

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
