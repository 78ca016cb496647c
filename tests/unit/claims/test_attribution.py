"""Where a guest uses what the driver reports of it without providers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.claims.attribution import Place, gone_units, use_of
from agent.claims.claim import Claim, ClaimState
from agent.claims.fit import ProviderIndex
from agent.claims.host_cells import HostCell, HostCells
from agent.claims.request import ClaimRequest
from agent.claims.rows import Row
from agent.driver import Guest, GuestState, UsedMemory, UsedUnit
from agent.tree import Inventory, Provider, ProviderTree

GUEST = "guest"
RACK = frozenset({"rack"})


def provider(name: str, parent: str | None = "host", **classes: int) -> Provider:
    return Provider(name, name, parent, {key: Inventory(total) for key, total in classes.items()})


FLAT = Place(
    ProviderIndex.of(
        ProviderTree(
            [
                Provider(
                    "host",
                    "host",
                    None,
                    {"VCPU": Inventory(8), "MEMORY_MB": Inventory(4096)},
                    aggregates=RACK,
                ),
                provider("nic0", SRIOV_NET_VF=2),
                provider("nic1", SRIOV_NET_VF=2),
                Provider(
                    "pool",
                    "pool",
                    None,
                    {"DISK_GB": Inventory(100)},
                    frozenset({"MISC_SHARES_VIA_AGGREGATE"}),
                    RACK,
                ),
            ]
        )
    ),
    {"nic0": {"SRIOV_NET_VF": ("vf0", "vf1")}, "nic1": {"SRIOV_NET_VF": ("vf2", "vf3")}},
)
CELLS = HostCells(
    tuple(
        HostCell(number, f"cell{number}", (), frozenset(), frozenset(), 4, 2048, 2048, {2048: 100})
        for number in range(2)
    ),
    {"cell0": 0, "cell1": 1},
)
NESTED = Place(
    ProviderIndex.of(
        ProviderTree(
            [
                provider("host", None),
                provider("cell0", VCPU=4, MEMORY_MB=2048, PCPU=2),
                provider("cell1", VCPU=4, MEMORY_MB=2048, PCPU=2),
            ]
        )
    ),
    {"cell0": {"PCPU": ("0", "1")}, "cell1": {"PCPU": ("2", "3")}},
    CELLS,
)


def guest(resources: dict[str, int], state: GuestState = GuestState.RUNNING, **more: Any) -> Guest:
    return Guest(GUEST, "web1", state, resources, **more)


def vf(unit: str) -> UsedUnit:
    return UsedUnit("SRIOV_NET_VF", unit, "pci:nic")


def claim(allocations: dict[str, dict[str, int]], **units: str) -> Claim:
    exact = {uuid: {"SRIOV_NET_VF": (unit,)} for uuid, unit in units.items()}
    return Claim(GUEST, ClaimState.CLAIMED, ClaimRequest(GUEST, ()), allocations, exact)


def test_a_unit_that_is_gone_is_used_where_it_was_claimed_and_else_nowhere() -> None:
    lost = guest({"SRIOV_NET_VF": 1}, units=(vf("vf9"),))
    claimed = Row(GUEST, claimed={GUEST: claim({"nic1": {"SRIOV_NET_VF": 1}}, nic1="vf9")}, guest=lost)
    assert use_of(claimed, FLAT).units == {"nic1": {"SRIOV_NET_VF": ("vf9",)}}
    assert use_of(claimed, FLAT).amounts == {"nic1": {"SRIOV_NET_VF": 1}}
    unclaimed = use_of(Row(GUEST, guest=lost), FLAT)
    assert (unclaimed.amounts, unclaimed.stray) == ({}, (vf("vf9"),))


def test_a_guest_that_does_not_run_uses_nothing_and_keeps_its_units() -> None:
    for state in (GuestState.SHUTOFF, GuestState.CRASHED):
        use = use_of(Row(GUEST, guest=guest({"VCPU": 2}, state, units=(vf("vf0"),))), FLAT)
        assert (use.amounts, use.units) == ({}, {"nic0": {"SRIOV_NET_VF": ("vf0",)}})


def test_amounts_are_where_they_are_held_or_claimed_and_only_the_excess_elsewhere() -> None:
    row = Row(GUEST, {GUEST: {"cell1": {"VCPU": 2}}}, guest=guest({"VCPU": 2, "MEMORY_MB": 100}))
    assert use_of(row, NESTED).amounts["cell1"]["VCPU"] == 2
    assert "VCPU" not in use_of(row, NESTED).amounts.get("cell0", {})
    grown = Row(GUEST, {GUEST: {"cell1": {"VCPU": 2}}}, guest=guest({"VCPU": 4}))
    assert use_of(grown, NESTED).amounts == {"cell0": {"VCPU": 1}, "cell1": {"VCPU": 3}}


def test_bound_memory_is_on_its_cell_and_the_cpus_beside_it() -> None:
    memory = (UsedMemory(1, 1500, None, 0),)
    use = use_of(Row(GUEST, guest=guest({"VCPU": 3, "MEMORY_MB": 1500}, memory=memory)), NESTED)
    assert use.amounts == {"cell1": {"VCPU": 3, "MEMORY_MB": 1500}}


def test_memory_that_may_be_on_several_cells_is_where_it_is_held_and_the_rest_on_each_evenly() -> None:
    memory = (UsedMemory(0, 500), UsedMemory(1, 500))
    uses = guest({"MEMORY_MB": 1000}, memory=memory)
    for held, used in (
        ({}, {"cell0": 500, "cell1": 500}),
        ({"cell1": 1000}, {"cell1": 1000}),
        ({"cell0": 700, "cell1": 300}, {"cell0": 700, "cell1": 300}),
        ({"cell0": 100}, {"cell0": 500, "cell1": 500}),
        ({"cell0": 600}, {"cell0": 600, "cell1": 400}),
    ):
        row = Row(GUEST, {GUEST: {uuid: {"MEMORY_MB": amount} for uuid, amount in held.items()}}, guest=uses)
        assert use_of(row, NESTED).amounts == {uuid: {"MEMORY_MB": amount} for uuid, amount in used.items()}


def test_memory_on_one_cell_is_there_before_memory_that_may_be_on_several() -> None:
    memory = (UsedMemory(0, 200), UsedMemory(1, 200), UsedMemory(1, 600, None, 0))
    uses = guest({"MEMORY_MB": 1000}, memory=memory)
    for held in ({"cell1": {"MEMORY_MB": 1000}}, {"cell0": {"MEMORY_MB": 400}, "cell1": {"MEMORY_MB": 600}}):
        assert use_of(Row(GUEST, {GUEST: held}, guest=uses), NESTED).amounts == held


def test_until_a_reshape_moves_it_all_is_used_where_it_is_held_or_claimed() -> None:
    """The driver has the units and the memory on other providers already."""
    held = {"host": {"VCPU": 2, "MEMORY_MB": 1500, "SRIOV_NET_VF": 1}}
    memory = (UsedMemory(1, 1500, None, 0),)
    resources = {"VCPU": 2, "MEMORY_MB": 1500, "PCPU": 1}
    cpus = (UsedUnit("PCPU", "2", "numa:1"),)
    for row in (
        Row(GUEST, {GUEST: {"host": {**resources}}}, guest=guest(resources, units=cpus, memory=memory)),
        Row(
            GUEST,
            claimed={
                GUEST: Claim(GUEST, ClaimState.CLAIMED, ClaimRequest(GUEST, ()), {"host": {**resources}})
            },
            guest=guest(resources, units=cpus, memory=memory),
        ),
    ):
        assert use_of(row, NESTED).amounts == {"host": resources}
    flat = Row(GUEST, {GUEST: held}, guest=guest({"SRIOV_NET_VF": 1}, units=(vf("vf2"),)))
    assert use_of(flat, FLAT).amounts == {"host": {"SRIOV_NET_VF": 1}}
    assert use_of(flat, FLAT).units == {"nic1": {"SRIOV_NET_VF": ("vf2",)}}


@pytest.mark.parametrize(
    ("held", "used"),
    [(1, {"host": 1, "nic1": 1}), (2, {"host": 2}), (3, {"host": 2})],
)
@pytest.mark.parametrize("resources", [{}, {"SRIOV_NET_VF": 2}], ids=["units alone", "amounts too"])
def test_units_are_used_where_their_class_was_as_far_as_it_is_held_there(
    held: int, used: dict[str, int], resources: dict[str, int]
) -> None:
    uses = guest(resources, units=(vf("vf0"), vf("vf2")))
    row = Row(GUEST, {GUEST: {"host": {"SRIOV_NET_VF": held}}}, guest=uses)
    assert use_of(row, FLAT).amounts == {uuid: {"SRIOV_NET_VF": amount} for uuid, amount in used.items()}
    if held == 2 and resources:  # one more, that the driver does not name
        row = replace(row, guest=replace(uses, resources={"SRIOV_NET_VF": 3}))
        assert use_of(row, FLAT).amounts == {"host": {"SRIOV_NET_VF": 2}, "nic0": {"SRIOV_NET_VF": 1}}


@pytest.mark.parametrize(("memory_mb", "pages"), [(0, 0), (4, 2), (5, 3)])
def test_bound_large_pages_are_used_on_the_provider_that_has_those_of_the_cell(
    memory_mb: int, pages: int
) -> None:
    """Pages are whole: one that is begun is used."""
    host = provider("host", None, MEMORY_MB=4096)
    having = provider("cell1", CUSTOM_HUGEPAGES_2048KIB=9)
    cell = HostCell(1, "host", (), frozenset(), frozenset(), 4, 99, 99, {2048: 9}, {2048: "cell1"})
    place = Place(ProviderIndex.of(ProviderTree([host, having])), cells=HostCells((cell,)))
    memory = (UsedMemory(1, memory_mb, 2048, 0),)
    used = use_of(Row(GUEST, guest=guest({"MEMORY_MB": memory_mb}, memory=memory)), place).amounts
    assert used == (
        {"host": {"MEMORY_MB": memory_mb}, "cell1": {"CUSTOM_HUGEPAGES_2048KIB": pages}} if pages else {}
    )


def test_what_no_provider_has_is_not_counted() -> None:
    assert use_of(Row(GUEST, guest=guest({"CUSTOM_FPGA": 1})), FLAT).amounts == {}


@given(
    st.dictionaries(st.sampled_from(["VCPU", "MEMORY_MB"]), st.integers(0, 6000)),
    st.dictionaries(
        st.sampled_from(["cell0", "cell1"]),
        st.dictionaries(st.sampled_from(["VCPU", "MEMORY_MB"]), st.integers(1, 3000)),
    ),
    st.lists(st.tuples(st.sampled_from([0, 1, None]), st.integers(1, 3000)), max_size=3),
)
def test_all_that_a_guest_uses_is_somewhere(
    resources: dict[str, int],
    held: dict[str, dict[str, int]],
    bound: list[tuple[int | None, int]],
) -> None:
    memory = tuple(UsedMemory(cell, amount, None, number) for number, (cell, amount) in enumerate(bound))
    use = use_of(Row(GUEST, {GUEST: held}, guest=guest(resources, memory=memory)), NESTED)
    for name, amount in resources.items():
        assert sum(amounts.get(name, 0) for amounts in use.amounts.values()) == amount


def test_a_claimed_unit_that_is_nowhere_is_gone_and_one_that_moved_is_not() -> None:
    here = Row(GUEST, claimed={GUEST: claim({"nic0": {"SRIOV_NET_VF": 1}}, nic0="vf2")})
    gone = Row(GUEST, claimed={GUEST: claim({"nic0": {"SRIOV_NET_VF": 1}}, nic0="vf9")})
    assert list(gone_units(FLAT, [here])) == []
    assert list(gone_units(FLAT, [gone])) == [("nic0", "SRIOV_NET_VF", "vf9", GUEST)]


def test_a_unit_whose_claim_names_a_provider_that_is_gone_is_used_where_it_is_offered_now() -> None:
    """Another client deleted the allocation before the reshape, which so left the claim as it was."""
    row = Row(
        GUEST,
        {},
        {GUEST: claim({"gone": {"SRIOV_NET_VF": 1}}, gone="vf2")},
        guest({}, units=(vf("vf2"),)),
    )
    use = use_of(row, FLAT)
    assert (use.amounts, use.units, use.stray) == (
        {"nic1": {"SRIOV_NET_VF": 1}},
        {"nic1": {"SRIOV_NET_VF": ("vf2",)}},
        (),
    )


def test_a_guest_that_is_shut_off_keeps_its_unit_where_it_is_now_if_its_claim_names_a_gone_provider() -> None:
    """What is claimed on the gone provider is on offer nowhere; the unit itself would be."""
    off = guest({}, units=(vf("vf2"), vf("vf3")), state=GuestState.SHUTOFF)
    row = Row(GUEST, {}, {GUEST: claim({"gone": {"SRIOV_NET_VF": 1}}, gone="vf2")}, off)
    assert use_of(row, FLAT).amounts == {"nic1": {"SRIOV_NET_VF": 1}}, "vf3 is claimed by no one"
    here = Row(GUEST, {}, {GUEST: claim({"nic1": {"SRIOV_NET_VF": 1}}, nic1="vf2")}, off)
    assert use_of(here, FLAT).amounts == {}


@pytest.mark.parametrize("state", [GuestState.RUNNING, GuestState.SHUTOFF])
@pytest.mark.parametrize("held", [{GUEST: {"nic0": {"SRIOV_NET_VF": 1}}}, {}], ids=["moved", "deleted"])
def test_a_unit_is_used_where_it_is_offered_if_what_was_held_is_elsewhere_or_nowhere(
    state: GuestState, held: dict[str, dict[str, dict[str, int]]]
) -> None:
    """An agent with a copy of the disk reshaped the host, and knew nothing of the claim and its unit."""
    row = Row(
        GUEST,
        held,
        {GUEST: claim({"host": {"SRIOV_NET_VF": 1}}, host="vf2")},
        guest({}, state, units=(vf("vf2"),)),
    )
    use = use_of(row, FLAT)
    assert use.amounts == {"nic1": {"SRIOV_NET_VF": 1}}
    assert use.units == {"nic1": {"SRIOV_NET_VF": ("vf2",)}}


def test_memory_bound_to_several_cells_is_there_before_the_rest_of_memory_that_may_be_on_either() -> None:
    alone = (UsedMemory(0, 100, None, 0), UsedMemory(1, 1500, None, 1))
    uses = guest({"MEMORY_MB": 1600}, memory=alone)
    assert use_of(Row(GUEST, guest=uses), NESTED).amounts == {
        "cell0": {"MEMORY_MB": 100},
        "cell1": {"MEMORY_MB": 1500},
    }
    either = (UsedMemory(0, 200), UsedMemory(1, 200), UsedMemory(1, 600, None, 0))
    row = Row(
        GUEST,
        {GUEST: {"cell1": {"MEMORY_MB": 700}}},
        guest=guest({"MEMORY_MB": 1000}, memory=either),
    )
    few = guest({"MEMORY_MB": 300}, memory=either[:2])
    assert use_of(Row(GUEST, guest=few), NESTED).amounts == {
        "cell0": {"MEMORY_MB": 200},
        "cell1": {"MEMORY_MB": 100},
    }
    none = guest({"MEMORY_MB": 100}, memory=(*either[:2], UsedMemory(0, 100, None, 0)))
    assert use_of(Row(GUEST, guest=none), NESTED).amounts == {"cell0": {"MEMORY_MB": 100}}
    # Of the 400 that may be on either, cell 1 has 100 as they are held there; the rest is in even shares.
    assert use_of(row, NESTED).amounts == {"cell0": {"MEMORY_MB": 200}, "cell1": {"MEMORY_MB": 800}}


CPUS_OF_CELLS = {"0": "cell0", "1": "cell0", "2": "cell1", "3": "cell1"}


@given(
    st.sets(st.sampled_from(sorted(CPUS_OF_CELLS))),
    st.integers(0, 4),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
def test_named_units_are_where_they_are_and_the_rest_first_where_it_is_held(
    named: set[str], more: int, held: tuple[int, int]
) -> None:
    row = Row(
        GUEST,
        {GUEST: {f"cell{n}": {"PCPU": amount} for n, amount in enumerate(held) if amount}},
        guest=guest(
            {"PCPU": len(named) + more},
            units=tuple(UsedUnit("PCPU", cpu, "numa") for cpu in sorted(named)),
        ),
    )
    use = use_of(row, NESTED)
    used = [use.amounts.get(f"cell{n}", {}).get("PCPU", 0) for n in range(2)]
    on = [sum(CPUS_OF_CELLS[cpu] == f"cell{n}" for cpu in named) for n in range(2)]
    assert sum(used) == len(named) + more
    least = [max(pair) for pair in zip(on, held, strict=True)]
    if sum(least) <= sum(used):
        assert all(part >= wanted for part, wanted in zip(used, least, strict=True))
    else:
        assert all(on[n] <= used[n] <= least[n] for n in range(2))


@pytest.mark.parametrize(
    ("kinds", "where"), [({"SNP"}, {"snp": 3}), ({"ES"}, {"es": 3}), (set(), {"es": 1, "snp": 2})]
)
def test_a_key_for_encrypted_memory_is_on_the_provider_of_its_kind(
    kinds: set[str], where: dict[str, int]
) -> None:
    """Where the kind is not known, it is on any of them."""
    keys = [
        Provider(name, name, "host", {"MEM_ENCRYPTION_CONTEXT": Inventory(total)}, frozenset({name.upper()}))
        for name, total in (("es", 1), ("snp", 9))
    ]
    place = Place(ProviderIndex.of(ProviderTree([provider("host", None, VCPU=4), *keys])))
    uses = guest({"MEM_ENCRYPTION_CONTEXT": 3}, encryption=frozenset(kinds))
    used = use_of(Row(GUEST, guest=uses), place).amounts
    assert used == {uuid: {"MEM_ENCRYPTION_CONTEXT": amount} for uuid, amount in where.items()}


@pytest.mark.parametrize(
    ("making", "is_gone"), [({"parent": "0000:41:00.0"}, False), ({"placement": "3"}, True)]
)
def test_a_unit_that_is_still_to_be_made_is_gone_only_if_it_has_a_place(
    making: dict[str, str], is_gone: bool
) -> None:
    made = replace(claim({"nic0": {"SRIOV_NET_VF": 1}}, nic0="vf9"), makings={"vf9": making})
    gone = list(gone_units(FLAT, [Row(GUEST, claimed={GUEST: made})]))
    assert gone == [("nic0", "SRIOV_NET_VF", "vf9", GUEST)] * is_gone


def test_what_is_held_on_a_provider_that_is_gone_is_used_there_until_it_is_moved() -> None:
    row = Row(GUEST, {GUEST: {"gone": {"SRIOV_NET_VF": 1}}}, guest=guest({}, units=(vf("vf2"),)))
    assert use_of(row, FLAT).amounts == {"gone": {"SRIOV_NET_VF": 1}}
