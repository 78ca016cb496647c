"""What stays of allocations whose class or unit the host no longer has, and use beyond capacity."""

import pytest

from agent.driver import MoveInstruction
from agent.errors import ApplyError
from agent.providers.plan import plan
from agent.providers.resolve import OwnedProviders, ResolvedDescription
from agent.providers.retention import count_gone, find_overuse, removed_classes, retain_held, way_back
from agent.shapes import Units
from agent.tree import MAX_UNIT, Inventory, Provider, ProviderTree

HOST_UUID, CELL, KEPT_NIC = (f"00000000-0000-4000-8000-00000000000{n}" for n in range(3))
HOST = Provider(HOST_UUID, "host", None, {"VCPU": Inventory(8)})
FUNCTIONS = {"SRIOV_NET_VF": Inventory(4), "CUSTOM_X": Inventory(1, allocation_ratio=4.0)}
BEFORE = ProviderTree([HOST, Provider(CELL, "cell", HOST_UUID), Provider(KEPT_NIC, "nic", CELL, FUNCTIONS)])


def kept(wanted: ProviderTree, held: dict[str, dict[str, int]]) -> tuple[ProviderTree, tuple[str, ...]]:
    gone = removed_classes(plan(BEFORE, wanted))
    found = retain_held(BEFORE, wanted, gone, dict.fromkeys(gone, held), {"b": "web1"})
    return found.tree, found.sentences


def test_what_nobody_holds_goes() -> None:
    wanted = ProviderTree([HOST])
    assert kept(wanted, {}) == (wanted, ())


def test_what_is_held_stays_with_what_it_hangs_under() -> None:
    tree, told = kept(ProviderTree([HOST]), {"b": {"SRIOV_NET_VF": 1}, "a": {"SRIOV_NET_VF": 2}})
    assert [(each.name, each.parent) for each in tree] == [("host", None), ("cell", HOST_UUID), ("nic", CELL)]
    assert set(tree[KEPT_NIC].inventories) == {"SRIOV_NET_VF"}, "the other class has no allocations"
    inventory = tree[KEPT_NIC].inventories["SRIOV_NET_VF"]
    assert (inventory.total, inventory.capacity) == (4, 3)
    assert (
        len(told) == 1 and "no SRIOV_NET_VF on provider nic any more, but a, web1 (b) still hold" in told[0]
    )
    assert kept(tree, {"a": {"SRIOV_NET_VF": 2}}) == (tree, ()), "what is kept is not gone"


def test_a_ratio_leaves_nothing_free() -> None:
    tree, _ = kept(ProviderTree([HOST]), {"a": {"CUSTOM_X": 3}})
    assert tree[KEPT_NIC].inventories["CUSTOM_X"].capacity == 3


@pytest.mark.parametrize("where", [HOST_UUID, CELL])
def test_what_turns_up_above_without_an_instruction_is_not_offered_twice(where: str) -> None:
    bare = ProviderTree([HOST, Provider(CELL, "cell", HOST_UUID)])
    moved = Provider(where, bare[where].name, bare[where].parent, {"SRIOV_NET_VF": Inventory(4)})
    with pytest.raises(ApplyError, match=r"says that it moved there\. a still holds"):
        kept(bare.with_provider(moved), {"a": {"SRIOV_NET_VF": 1}})


NIC, VF = "7e1c1d3c-94d8-4e4b-9a57-4a8d3b1f0c00", "SRIOV_NET_VF"
ONE, OTHER = "8e1c1d3c-94d8-4e4b-9a57-4a8d3b1f0c01", "8e1c1d3c-94d8-4e4b-9a57-4a8d3b1f0c02"
GONE = [(NIC, VF, "vf2", ONE), (NIC, VF, "vf3", OTHER), (NIC, VF, "vf4", ONE)]


def resolved(units: Units, max_unit: int = MAX_UNIT) -> ResolvedDescription:
    tree = ProviderTree([Provider(NIC, "nic0", None, {VF: Inventory(2, max_unit=max_unit)})])
    return ResolvedDescription(tree, OwnedProviders(), {NIC: "pci:nic0"}, units)


def test_each_holder_is_named_once_with_all_that_it_lost() -> None:
    counted = count_gone(resolved({NIC: {VF: ("vf0", "vf1")}}), GONE)
    assert counted.tree[NIC].inventories == {VF: Inventory(5)}
    assert counted.gone == {NIC: {VF}}
    first, second = counted.problems
    assert ONE in first and "vf2, vf4 of nic0" in first
    assert OTHER in second and "vf3 of nic0" in second


@pytest.mark.parametrize(("before", "after"), [(2, 5), (1, 1)], ids=["the total", "less"])
def test_a_holder_may_have_as_many_at_once_as_it_has(before: int, after: int) -> None:
    """Placement refuses each write of an allocation that is larger than `max_unit`."""
    counted = count_gone(resolved({NIC: {VF: ("vf0", "vf1")}}, before), GONE)
    assert counted.tree[NIC].inventories == {VF: Inventory(5, max_unit=after)}


def test_nothing_is_counted_where_nothing_is_gone() -> None:
    description = resolved({NIC: {VF: ("vf0", "vf1")}})
    assert count_gone(description, []) == description


def test_a_holder_is_named_by_its_name() -> None:
    counted = count_gone(resolved({NIC: {VF: ("vf0", "vf1")}}), GONE, names={ONE: "web1", OTHER: ""})
    first, second = counted.problems
    assert first.startswith(f"web1 ({ONE}) has claimed") and second.startswith(f"{OTHER} has claimed")


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


ROOT = "11111111-1111-4111-8111-111111111111"
GUEST = "22222222-2222-4222-8222-222222222222"


@pytest.mark.parametrize(
    ("total", "reserved", "used", "reported"),
    [
        (16, 0, 16, False),
        (16, 0, 17, True),
        (16, 15, 2, True),
        (16, 16, 2, False),
        (16, 16, 17, True),
    ],
)
def test_what_is_reserved_whole_may_be_in_use(total: int, reserved: int, used: int, reported: bool) -> None:
    inventory = Inventory(total=total, reserved=reserved, max_unit=total)
    tree = ProviderTree((Provider(ROOT, "node1", inventories={"VGPU": inventory}),))
    overuse = find_overuse(tree, {ROOT: {GUEST: {"VGPU": used}}})
    assert bool(overuse) is reported


@pytest.mark.parametrize(("cap", "reported"), [(0, True), (1, True), (2, False)])
def test_what_a_cap_reserves_whole_is_too_small_for_what_is_in_use(cap: int, reported: bool) -> None:
    """By the cap of the host: a card behind those that give what the cap allows offers nothing."""
    tree = ProviderTree((Provider(ROOT, "node1", inventories={"VGPU": Inventory(16, reserved=16)}),))
    sentences = find_overuse(tree, {ROOT: {GUEST: {"VGPU": 2}}}, {"VGPU": cap, "PGPU": 0}).get(ROOT, ())
    assert [f"raise [DEFAULT] cap = VGPU={cap}." in sentence for sentence in sentences] == [True] * reported


MIGRATION = "00000000-0000-4000-8000-0000000000aa"
OVER = ProviderTree([Provider(ROOT, "node1", inventories={"VCPU": Inventory(2), "CUSTOM_LIC": Inventory(1)})])


@pytest.mark.parametrize(
    ("holders", "name", "end"),
    [
        ({GUEST: 3}, "VCPU", f"by web1 ({GUEST}); release one of them, or move it away."),
        (
            {GUEST: 2},
            "CUSTOM_LIC",
            f"by web1 ({GUEST}); release one of them, move it away, or raise total of CUSTOM_LIC in its "
            "provider config file.",
        ),
        (
            {MIGRATION: 3},
            "VCPU",
            f"by migration {MIGRATION} of web2; confirm or revert migration {MIGRATION}.",
        ),
        (
            {GUEST: 2, MIGRATION: 2},
            "VCPU",
            f"by migration {MIGRATION} of web2, web1 ({GUEST}); release one of them, confirm or revert "
            f"migration {MIGRATION}, or move it away.",
        ),
    ],
)
def test_who_uses_too_much_is_named_with_what_ends_that(holders: dict[str, int], name: str, end: str) -> None:
    """`plimsoll release` refuses a migration: its move is confirmed or reverted."""
    held = {ROOT: {consumer: {name: amount} for consumer, amount in holders.items()}}
    names = {GUEST: "web1", MIGRATION: "web2"}
    (sentence,) = find_overuse(OVER, held, None, names, {MIGRATION})[ROOT]
    assert sentence.endswith(end), sentence
