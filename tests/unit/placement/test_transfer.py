"""Which trees a selection takes, and what a removal writes, or refuses."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from kits.contents import consumer_uuid, provider_uuid

from agent.errors import ImportRefused, UsageError
from agent.placement.client import ConsumerAllocations
from agent.placement.snapshot import PlacementSnapshot, select_trees
from agent.placement.transfer import SnapshotClient, plan_removal, read_fleet
from agent.tree import Inventory, Provider

HOST = Provider(provider_uuid(0), "host", None, {"CUSTOM_FPGA": Inventory(8)}, frozenset({"CUSTOM_GOLD"}))
CARD = Provider(provider_uuid(1), "card", HOST.uuid, {"VGPU": Inventory(8)})
NEIGHBOUR = Provider(provider_uuid(2), "neighbour", None, {"VCPU": Inventory(8)}, frozenset({"CUSTOM_RACK"}))
HELD = ConsumerAllocations(consumer_uuid(0), {HOST.uuid: {"CUSTOM_FPGA": 1}, CARD.uuid: {"VGPU": 1}}, 3)
ELSEWHERE = ConsumerAllocations(consumer_uuid(1), {NEIGHBOUR.uuid: {"VCPU": 1}}, 1)
ALL = PlacementSnapshot.of(
    [HOST, CARD, NEIGHBOUR], [HELD, ELSEWHERE], ["CUSTOM_GOLD", "CUSTOM_RACK"], ["CUSTOM_FPGA"]
)


@pytest.mark.parametrize("root", ["host", HOST.uuid])
def test_a_tree_is_selected_with_its_consumers_and_names(root: str) -> None:
    part = select_trees(ALL, [root])
    assert set(part.providers) == {HOST.uuid, CARD.uuid} and set(part.consumers) == {HELD.consumer}
    assert (part.traits, part.resource_classes) == ({"CUSTOM_GOLD"}, {"CUSTOM_FPGA"})


def test_only_whole_trees_are_selected() -> None:
    for name in ("card", "none"):
        with pytest.raises(UsageError, match=f"no root provider '{name}'"):
            select_trees(ALL, [name])
    spread = replace(HELD, allocations={**HELD.allocations, NEIGHBOUR.uuid: {"VCPU": 1}})
    with pytest.raises(UsageError, match="also have allocations on neighbour"):
        select_trees(PlacementSnapshot.of(ALL.providers.values(), [spread]), ["host"])


def test_a_removal_empties_consumers_and_deletes_from_the_bottom_up() -> None:
    plan = plan_removal(select_trees(ALL, ["host"]), ALL)
    assert plan.consumers == (replace(HELD, allocations={}),)
    assert [provider.name for provider in plan.providers] == ["card", "host"]
    assert len(list(plan.lines())) == 3 and not plan.empty
    assert plan_removal(select_trees(ALL, ["host"]), PlacementSnapshot.of([NEIGHBOUR], [])).empty


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (replace(HELD, consumer=consumer_uuid(7)), "has allocations there, and is not in the document"),
        (replace(HELD, allocations={HOST.uuid: {"CUSTOM_FPGA": 2}}), "allocations is"),
        (Provider(provider_uuid(7), "new", CARD.uuid), "is a child there"),
    ],
)
def test_a_placement_that_changed_since_is_not_touched(
    change: ConsumerAllocations | Provider, reason: str
) -> None:
    providers, consumers = [*ALL.providers.values()], [*ALL.consumers.values()]
    present = (
        PlacementSnapshot.of([*providers, change], consumers)
        if isinstance(change, Provider)
        else PlacementSnapshot.of(providers, [*consumers, change])
    )
    with pytest.raises(ImportRefused, match=reason):
        plan_removal(select_trees(ALL, ["host"]), present)


class Listing(SnapshotClient):
    """A service whose candidates have these providers: {uuid: {class: (capacity, used)}}, and one trait."""

    def __init__(self, free: Mapping[str, Mapping[str, tuple[int, int]]]) -> None:
        self.free = free
        self.asked: list[str] = []

    def provider_roots(self, in_tree: str | None = None) -> tuple[list[Provider], dict[str, str]]:
        full = Provider(provider_uuid(3), "full"), Provider(provider_uuid(4), "its card", provider_uuid(3))
        listed = [replace(HOST, generation=7), CARD, NEIGHBOUR, *full]
        return listed, {each.uuid: each.parent or each.uuid for each in listed}

    def resource_class_names(self) -> list[str]:
        return ["VCPU", "VGPU", "DISK_GB"]

    def summaries_with(self, resource_class: str) -> dict[str, Any]:
        self.asked.append(resource_class)
        return {
            uuid: {
                "resources": {
                    name: {"capacity": capacity, "used": used} for name, (capacity, used) in amounts.items()
                },
                "traits": ["HW_GPU_API_VULKAN"],
            }
            for uuid, amounts in self.free.items()
            if resource_class in amounts
        }


def test_a_service_without_notes_shows_what_its_hosts_have_free() -> None:
    free = {HOST.uuid: {"VCPU": (8, 3)}, CARD.uuid: {"VGPU": (4, 0)}, NEIGHBOUR.uuid: {"VCPU": (0, 0)}}
    client = Listing(free)
    model, left_out = read_fleet(client, ["VGPU", "VCPU", "CUSTOM_NOT_THERE", "VCPU"])
    assert (client.asked, left_out) == (["VCPU", "VGPU"], ["full"]), "one request for each class that it has"
    assert model.providers.keys() == free.keys()
    amounts = {
        uuid: {name: (each.capacity, model.usages.get(uuid, {}).get(name, 0)) for name, each in one.items()}
        for uuid, one in ((uuid, provider.inventories) for uuid, provider in model.providers.items())
    }
    assert amounts == free
    host, card = model.providers[HOST.uuid], model.providers[CARD.uuid]
    assert (host.name, host.generation, host.parent_uuid, host.root_uuid) == ("host", 7, None, HOST.uuid)
    assert (card.parent_uuid, card.root_uuid, card.traits) == (HOST.uuid, HOST.uuid, {"HW_GPU_API_VULKAN"})
    most = [each.max_unit for one in model.providers.values() for each in one.inventories.values()]
    assert sorted(most) == [1, 4, 8], "at least one, as of every inventory"
    assert model.usages.keys() == {HOST.uuid}
