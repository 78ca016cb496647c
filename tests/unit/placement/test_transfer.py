"""Which trees a selection takes, and what a removal writes, or refuses."""

from dataclasses import replace

import pytest
from kits.contents import consumer_uuid, provider_uuid

from agent.errors import ImportRefused, UsageError
from agent.placement.client import ConsumerAllocations
from agent.placement.snapshot import PlacementSnapshot, select_trees
from agent.placement.transfer import plan_removal
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
