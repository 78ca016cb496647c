"""Which claimed units that exist no more are counted in the totals."""

import pytest

from agent.driver import MoveInstruction
from agent.providers.resolve import OwnedProviders, ResolvedDescription
from agent.providers.retained import count_gone, way_back
from agent.shapes import Units
from agent.tree import Inventory, Provider, ProviderTree

NIC, VF = "7e1c1d3c-94d8-4e4b-9a57-4a8d3b1f0c00", "SRIOV_NET_VF"
ONE, OTHER = "8e1c1d3c-94d8-4e4b-9a57-4a8d3b1f0c01", "8e1c1d3c-94d8-4e4b-9a57-4a8d3b1f0c02"
GONE = [(NIC, VF, "vf2", ONE), (NIC, VF, "vf3", OTHER), (NIC, VF, "vf4", ONE)]


def resolved(units: Units) -> ResolvedDescription:
    tree = ProviderTree([Provider(NIC, "nic0", None, {VF: Inventory(2)})])
    return ResolvedDescription(tree, OwnedProviders(), {NIC: "pci:nic0"}, units)


def test_each_holder_is_named_once_with_all_that_it_lost() -> None:
    counted = count_gone(resolved({NIC: {VF: ("vf0", "vf1")}}), GONE)
    assert counted.tree[NIC].inventories == {VF: Inventory(5)}
    assert counted.gone == {NIC: {VF}}
    first, second = counted.problems
    assert ONE in first and "vf2, vf4 of nic0" in first
    assert OTHER in second and "vf3 of nic0" in second


def test_nothing_is_counted_where_nothing_is_gone() -> None:
    description = resolved({NIC: {VF: ("vf0", "vf1")}})
    assert count_gone(description, []) == description


def test_a_holder_is_named_by_its_name() -> None:
    counted = count_gone(resolved({NIC: {VF: ("vf0", "vf1")}}), GONE, names={ONE: "web1", OTHER: ""})
    first, second = counted.problems
    assert first.startswith(f"web1 ({ONE}) has claimed") and second.startswith(f"{OTHER} has claimed")


CREATE_AGAIN = "Bring the device back (virtual functions must be created again after each boot)"


@pytest.mark.parametrize(
    ("name", "parent", "way"),
    [
        ("PCPU", None, "Bring the CPUs online, or put them back into [compute] cpu_dedicated_set"),
        ("CUSTOM_LICENCE", None, "Put CUSTOM_LICENCE back into its provider config file"),
        ("MEMORY_MB", None, "Bring it back"),
        ("PGPU", NIC, "Bring the device back"),
        (VF, NIC, "Bring the device back (virtual functions must be created again after each boot)"),
        (
            "CUSTOM_NIC_A",
            NIC,
            "Bring the device back (virtual functions must be created again after each boot)",
        ),
    ],
)
def test_the_way_back_depends_on_what_is_gone(name: str, parent: str | None, way: str) -> None:
    assert way_back(Provider(ONE, "provider", parent), name) == way


@pytest.mark.parametrize(
    ("units", "moves"),
    [
        ({}, ()),
        ({NIC: {VF: ("vf0", "vf1")}}, (MoveInstruction("nic0", {VF: 2}, "nic1"),)),
    ],
    ids=["the class has no exact units", "they moved elsewhere"],
)
def test_what_is_counted_elsewhere_is_not_counted(units: Units, moves: tuple[MoveInstruction, ...]) -> None:
    assert count_gone(resolved(units), GONE, moves) == resolved(units)
    assert count_gone(resolved(units), [(OTHER, VF, "vf0", ONE)]) == resolved(units)
