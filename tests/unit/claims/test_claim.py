"""The table of a claim's transitions, and the exact units of a claim."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.claims.claim import (
    CLAIM_TRANSITIONS,
    UNRESTRICTED,
    Claim,
    ClaimState,
    ClaimStep,
    Fit,
    Restriction,
    claims_until_durable,
    fit_of_claim,
    map_groups,
    units_of_groups,
)
from agent.claims.guest_cells import PlacedCell
from agent.claims.request import ClaimRequest, RequestGroup
from agent.codec import decode, encode
from agent.errors import UsageError
from agent.tree import Inventory, Provider, ProviderTree

CLAIM = Claim(
    "consumer",
    ClaimState.CLAIMED,
    ClaimRequest("consumer", (RequestGroup("", {"PCPU": 2, "VF": 1}),)),
    {"host": {"PCPU": 2}, "nic": {"VF": 1}},
    {"host": {"PCPU": ("3", "5")}, "nic": {"VF": ("0000:41:02.1",)}},
    makings={"0000:41:02.1": {"parent": "0000:41:00.0", "type": "a"}},
)


def test_every_state_can_be_reached_and_can_end() -> None:
    """A walk over the table: from no claim to each state, and from each state back to no claim."""

    def reachable(start: ClaimState | None) -> set[ClaimState | None]:
        reached, waiting = {start}, [start]
        while waiting:
            state = waiting.pop()
            after = {to for (before, _), to in CLAIM_TRANSITIONS.items() if before == state} - reached
            reached |= after
            waiting += after
        return reached

    assert reachable(None) == {None, *ClaimState}
    for state in ClaimState:
        assert None in reachable(state)
    assert {step for _, step in CLAIM_TRANSITIONS} == set(ClaimStep)


def test_only_a_claim_that_placement_is_known_to_have_is_claimed() -> None:
    """A write to Placement lies between BEGIN and CLAIMED, and between CLAIMED and no claim."""
    assert CLAIM_TRANSITIONS[None, ClaimStep.BEGIN] is ClaimState.CLAIMING
    ends = {step for (state, step), after in CLAIM_TRANSITIONS.items() if state and after is None}
    assert ends == {ClaimStep.REFUSE, ClaimStep.GONE, ClaimStep.LEFT}
    claimed = {step for (_, step), after in CLAIM_TRANSITIONS.items() if after is ClaimState.CLAIMED}
    assert ClaimStep.BEGIN not in claimed and ClaimStep.RELEASE not in claimed


def test_a_claim_lists_each_exact_unit_and_is_its_own_fit() -> None:
    assert set(CLAIM.exact) == {("host", "PCPU", "3"), ("host", "PCPU", "5"), ("nic", "VF", "0000:41:02.1")}
    fit = fit_of_claim(CLAIM)
    assert fit.fits and not fit.shortfalls
    assert (fit.allocations, fit.units, fit.makings) == (CLAIM.allocations, CLAIM.units, CLAIM.makings)


CONSUMER = "6d3a1fb4-5d6c-4a61-b1f5-0f5a5b6a0b01"
REQUEST = ClaimRequest(CONSUMER, (RequestGroup("", {"PCPU": 2}),), name="vm")

uuids = st.uuids().map(str)
classes = st.sampled_from(["PCPU", "VCPU", "CUSTOM_A"])
cpus = st.frozensets(st.integers(0, 99), max_size=4)
cells = st.builds(
    PlacedCell,
    st.integers(0, 7),
    st.integers(0, 7),
    st.dictionaries(st.integers(0, 99), st.integers(0, 999), max_size=4),
    cpus,
    st.sampled_from([4, 2048, 1048576]),
    st.integers(0, 10**6),
    cpus,
)
claims = st.builds(
    Claim,
    st.just(CONSUMER),
    st.sampled_from(ClaimState),
    st.just(REQUEST),
    st.dictionaries(uuids, st.dictionaries(classes, st.integers(1, 10**6)), max_size=3),
    st.dictionaries(uuids, st.dictionaries(classes, st.lists(st.text(min_size=1, max_size=9)).map(tuple))),
    st.floats(0, 2**40),
    st.booleans(),
    st.lists(cells, max_size=2).map(tuple),
    st.dictionaries(st.text(min_size=1, max_size=9), st.just({"parent": "0000:41:00.0", "type": "nvidia-1"})),
)


@given(claims)
def test_what_is_written_comes_back(claim: Claim) -> None:
    assert decode(Claim, json.loads(json.dumps(encode(Claim, claim)))) == claim


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("consumer", "vm"),
        ("state", "done"),
        ("request", {}),
        ("allocations", {"host": {"VCPU": 1}}),
        ("allocations", {CONSUMER: {"VCPU": 0}}),
        ("units", {CONSUMER: {"VCPU": "3"}}),
        ("since", "yesterday"),
        ("since", True),
        ("cells", [{"cell": 0, "pinned_cpus": {"a": 1}}]),
        ("makings", {"unit": {"parent": 1}}),
    ],
)
def test_an_invalid_value_is_refused(key: str, value: Any) -> None:
    record = encode(Claim, Claim(CONSUMER, ClaimState.CLAIMED, REQUEST, {}))
    with pytest.raises(UsageError):
        decode(Claim, {**record, key: value})


HOST = "host"
NIC = "nic"


def claim(
    consumer: str, memory: int = 0, vfs: Iterable[str] = (), cells: tuple[PlacedCell, ...] = ()
) -> Claim:
    units = tuple(vfs)
    allocations = {HOST: {"MEMORY_MB": memory}} if memory else {}
    if units:
        allocations[NIC] = {"SRIOV_NET_VF": len(units)}
    request = ClaimRequest(consumer, (RequestGroup("", {"MEMORY_MB": memory or 1}),))
    exact = {NIC: {"SRIOV_NET_VF": units}} if units else {}
    return Claim(consumer, ClaimState.CLAIMED, request, allocations, exact, cells=cells)


def amounts(claims: Iterable[Claim]) -> Counter[tuple[str, str]]:
    return Counter(
        {
            (uuid, name): sum(one.allocations.get(uuid, {}).get(name, 0) for one in claims)
            for uuid, name in ((HOST, "MEMORY_MB"), (NIC, "SRIOV_NET_VF"))
        }
    )


def units(claims: Iterable[Claim]) -> set[str]:
    return {unit for one in claims for _, _, unit in one.exact}


def test_a_claim_that_goes_is_counted_as_it_is() -> None:
    before = claim("a", 512, ["vf0"])
    assert claims_until_durable([before], []) == {"a": before}


def test_a_new_claim_is_counted_as_it_will_be() -> None:
    after = claim("a", 512, ["vf0"])
    assert claims_until_durable([], [after]) == {"a": after}


def test_a_claim_that_only_changes_its_state_is_the_new_one_itself() -> None:
    before, after = claim("a", 512), claim("a", 512)
    assert claims_until_durable([before], [after])["a"] is after


def test_what_a_migration_takes_over_is_counted_once() -> None:
    old, new, migration = claim("i", 512, ["vf0"]), claim("i", 1024, ["vf1"]), claim("m", 512, ["vf0"])
    assert claims_until_durable([old], [new, migration]) == {"i": new, "m": migration}
    confirmed = claims_until_durable([new, migration], [new])
    assert confirmed["i"].allocations == {HOST: {"MEMORY_MB": 1536}, NIC: {"SRIOV_NET_VF": 2}}
    assert units(confirmed.values()) == {"vf0", "vf1"}


def test_the_cells_of_both_sides_are_counted() -> None:
    one, two = (PlacedCell(0, cell, {0: cell}, frozenset(), 4, 512, frozenset()) for cell in (0, 1))
    counted = claims_until_durable([claim("a", 1, cells=(one,))], [claim("a", 1, cells=(two,))])
    assert sorted(cell.host_cell for cell in counted["a"].cells) == [0, 1]
    again = claims_until_durable([claim("a", 1, cells=(one,))], [claim("a", 2, cells=(one,))])
    assert again["a"].cells == (one,)


VFS = st.frozensets(st.sampled_from(["vf0", "vf1", "vf2"]), max_size=2)
SIDE = st.dictionaries(st.sampled_from(["i", "m"]), st.tuples(st.integers(0, 4), VFS))


@given(SIDE, SIDE)
def test_either_side_fits_into_what_is_counted_and_no_more_is(
    old: dict[str, tuple[int, Collection[str]]], new: dict[str, tuple[int, Collection[str]]]
) -> None:
    before = [claim(who, memory, sorted(vfs)) for who, (memory, vfs) in old.items()]
    after = [claim(who, memory, sorted(vfs)) for who, (memory, vfs) in new.items()]
    counted = claims_until_durable(before, after).values()
    assert units(counted) == units(before) | units(after)
    assert amounts(counted) == amounts(before) | amounts(after), "of each class the larger amount"


FIT = Fit(True, {}, {}, (), (PlacedCell(0, 0, {0: 4, 1: 5}, frozenset(), 4, 64),))


def test_the_same_cpus_in_the_order_of_the_domain() -> None:
    assert Restriction(pins={0: 5, 1: 4}).pin(FIT).cells[0].pinning == {0: 5, 1: 4}


def test_other_cpus_stay_as_they_were_chosen() -> None:
    assert Restriction(pins={0: 9}).pin(FIT) == FIT
    assert UNRESTRICTED.pin(FIT) is FIT


CARD, OTHER = "card", "other"
BANDWIDTH = "NET_BW_EGR_KILOBIT_PER_SEC"


def tree(**traits: set[str]) -> ProviderTree:
    return ProviderTree(
        [
            Provider(HOST, HOST),
            *(
                Provider(name, name, HOST, {"SRIOV_NET_VF": Inventory(8)}, frozenset(has))
                for name, has in traits.items()
            ),
        ]
    )


def port(suffix: str, kilobits: int, *traits: str) -> RequestGroup:
    required = tuple(frozenset({trait}) for trait in traits)
    return RequestGroup(suffix, {"SRIOV_NET_VF": 1, BANDWIDTH: kilobits}, required)


def test_two_ports_on_two_cards_are_told_apart_by_their_bandwidth() -> None:
    request = ClaimRequest(CONSUMER, (RequestGroup("", {"VCPU": 2}), port("_blue", 1), port("_red", 5)))
    allocations = {
        HOST: {"VCPU": 2},
        CARD: {"SRIOV_NET_VF": 1, BANDWIDTH: 5},
        OTHER: {"SRIOV_NET_VF": 1, BANDWIDTH: 1},
    }
    units = {CARD: {"SRIOV_NET_VF": ("0000:41:10.0",)}, OTHER: {"SRIOV_NET_VF": ("0000:81:10.0",)}}
    unsuffixed, blue, red = map_groups(request, allocations, units, tree(card=set(), other=set()))
    assert (unsuffixed.suffix, unsuffixed.allocations) == ("", {HOST: {"VCPU": 2}})
    assert red.units == {CARD: {"SRIOV_NET_VF": ("0000:41:10.0",)}}
    assert blue.units == {OTHER: {"SRIOV_NET_VF": ("0000:81:10.0",)}}


def test_equal_ports_are_told_apart_by_the_network_of_their_card() -> None:
    request = ClaimRequest(CONSUMER, (port("_blue", 1, "CUSTOM_B"), port("_red", 1, "CUSTOM_R")))
    allocations = {name: {"SRIOV_NET_VF": 1, BANDWIDTH: 1} for name in (CARD, OTHER)}
    blue, red = map_groups(request, allocations, {}, tree(card={"CUSTOM_R"}, other={"CUSTOM_B"}))
    assert (list(red.allocations), list(blue.allocations)) == ([CARD], [OTHER])


def test_two_ports_on_one_card_have_different_functions() -> None:
    request = ClaimRequest(CONSUMER, (port("_blue", 1), port("_red", 5)))
    allocations = {CARD: {"SRIOV_NET_VF": 2, BANDWIDTH: 6}}
    units = {CARD: {"SRIOV_NET_VF": ("0000:41:10.0", "0000:41:10.2")}}
    blue, red = map_groups(request, allocations, units, tree(card=set()))
    assert blue.units == {CARD: {"SRIOV_NET_VF": ("0000:41:10.0",)}}
    assert red.units == {CARD: {"SRIOV_NET_VF": ("0000:41:10.2",)}}


def test_a_device_by_alias_is_called_by_the_alias() -> None:
    request = ClaimRequest(
        CONSUMER,
        (RequestGroup("pci-0", {"PGPU": 1}), RequestGroup("pci-1", {"PGPU": 1})),
        pci=(("gpu", 1), ("fast-gpu", 1)),
    )
    mappings = map_groups(request, {CARD: {"PGPU": 1}, OTHER: {"PGPU": 1}}, {}, tree(card=set(), other=set()))
    assert [mapping.label for mapping in mappings] == ["gpu", "fast-gpu"]


def test_an_allocation_that_is_less_than_the_request_has_no_mapping() -> None:
    request = ClaimRequest(CONSUMER, (RequestGroup("", {"VCPU": 2}),))
    assert map_groups(request, {HOST: {"VCPU": 1}}, {}, tree()) == ()


def test_what_the_cells_add_to_the_request_is_the_rest() -> None:
    """Huge pages and withheld CPUs are allocated, and no group asks for them."""
    request = ClaimRequest(CONSUMER, (RequestGroup("", {"PCPU": 2}), RequestGroup("gpu", {"PGPU": 1})))
    allocations = {HOST: {"PCPU": 4, "CUSTOM_HUGEPAGES_2048KIB": 32}, CARD: {"PGPU": 1}}
    rest, gpu = map_groups(request, allocations, {}, tree(card=set()))
    assert (rest.suffix, rest.allocations) == ("", {HOST: allocations[HOST]})
    assert (gpu.suffix, gpu.allocations) == ("gpu", {CARD: {"PGPU": 1}})


def test_equal_groups_keep_their_units_when_a_reshape_moves_them_to_other_providers() -> None:
    request = ClaimRequest(CONSUMER, (port("_blue", 1), port("_red", 1)))
    before = {name: {"SRIOV_NET_VF": 1, BANDWIDTH: 1} for name in (CARD, OTHER)}
    units = {CARD: {"SRIOV_NET_VF": ("0000:41:10.0",)}, OTHER: {"SRIOV_NET_VF": ("0000:81:10.0",)}}
    kept = units_of_groups(map_groups(request, before, units, tree()))
    for places in ((OTHER, CARD), ("new2", "new1")):
        after = {name: {"SRIOV_NET_VF": 1, BANDWIDTH: 1} for name in places}
        moved = {
            places[0]: {"SRIOV_NET_VF": ("0000:81:10.0",)},
            places[1]: {"SRIOV_NET_VF": ("0000:41:10.0",)},
        }
        assert units_of_groups(map_groups(request, after, moved, tree(), kept)) == kept


def test_equal_groups_on_one_card_keep_their_units_in_any_order() -> None:
    request = ClaimRequest(CONSUMER, (port("_blue", 1), port("_red", 1)))
    allocations = {CARD: {"SRIOV_NET_VF": 2, BANDWIDTH: 2}}
    kept = {"_blue": {"SRIOV_NET_VF": ("vf2",)}, "_red": {"SRIOV_NET_VF": ("vf1",)}}
    mapped = map_groups(
        request, allocations, {CARD: {"CUSTOM_VF": (), "SRIOV_NET_VF": ("vf1", "vf2")}}, tree(), kept
    )
    assert units_of_groups(mapped) == kept


def test_a_group_keeps_its_unit_on_a_card_that_has_lost_its_trait() -> None:
    request = ClaimRequest(CONSUMER, (port("_blue", 1, "CUSTOM_B"), port("_red", 1, "CUSTOM_R")))
    allocations = {name: {"SRIOV_NET_VF": 1, BANDWIDTH: 1} for name in (CARD, OTHER)}
    units = {CARD: {"SRIOV_NET_VF": ("vf1",)}, OTHER: {"SRIOV_NET_VF": ("vf2",)}}
    kept = {"_blue": {"SRIOV_NET_VF": ("vf2",)}, "_red": {"SRIOV_NET_VF": ("vf1",)}}
    blue, red = map_groups(request, allocations, units, tree(card=set(), other={"CUSTOM_B"}), kept)
    assert (list(red.allocations), list(blue.allocations)) == ([CARD], [OTHER])


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from([CARD, OTHER, HOST]), st.integers(1, 3)), min_size=1, max_size=6))
def test_the_groups_share_out_the_whole_allocation(placed: list[tuple[str, int]]) -> None:
    groups = tuple(RequestGroup(f"_{n}", {"VGPU": amount}) for n, (_, amount) in enumerate(placed))
    allocations: dict[str, dict[str, int]] = {}
    for uuid, amount in placed:
        allocations.setdefault(uuid, {})["VGPU"] = allocations.get(uuid, {}).get("VGPU", 0) + amount
    units = {
        uuid: {"VGPU": tuple(f"{uuid}-{number}" for number in range(amounts["VGPU"]))}
        for uuid, amounts in allocations.items()
    }
    mappings = map_groups(ClaimRequest(CONSUMER, groups), allocations, units, tree(card=set(), other=set()))
    assert [mapping.suffix for mapping in mappings] == [group.suffix for group in groups]
    dealt = [unit for mapping in mappings for by in mapping.units.values() for unit in by["VGPU"]]
    assert sorted(dealt) == sorted(unit for by in units.values() for unit in by["VGPU"])
    for mapping, group in zip(mappings, groups, strict=True):
        (amounts,) = mapping.allocations.values()
        assert amounts == group.resources


def test_the_unsuffixed_group_has_the_units_that_the_others_leave() -> None:
    request = ClaimRequest(
        CONSUMER, (RequestGroup("", {"SRIOV_NET_VF": 1}), RequestGroup("_a", {"SRIOV_NET_VF": 1}))
    )
    units = {CARD: {"SRIOV_NET_VF": ("vf0", "vf1")}}
    rest, group = map_groups(request, {CARD: {"SRIOV_NET_VF": 2}}, units, tree(card=set()))
    assert (group.units, rest.units) == (
        {CARD: {"SRIOV_NET_VF": ("vf0",)}},
        {CARD: {"SRIOV_NET_VF": ("vf1",)}},
    )


def test_a_search_for_who_got_what_ends() -> None:
    """All but one of the ports are alike, and the last one is on no card: there are 12! ways to try."""
    ports = [RequestGroup(f"_{n:02}", {"SRIOV_NET_VF": 1}) for n in range(12)]
    last = RequestGroup("_last", {"SRIOV_NET_VF": 1}, (frozenset({"CUSTOM_NOWHERE"}),))
    cards = {f"card{n}": set[str]() for n in range(13)}
    allocations = {name: {"SRIOV_NET_VF": 1} for name in cards}
    assert map_groups(ClaimRequest(CONSUMER, (*ports, last)), allocations, {}, tree(**cards)) == ()


def test_a_group_without_resources_and_one_on_a_provider_that_is_gone_are_no_obstacle() -> None:
    numa = RequestGroup("_numa", {}, (frozenset({"HW_NUMA_ROOT"}),))
    request = ClaimRequest(
        CONSUMER, (numa, port("_red", 1, "CUSTOM_R")), same_subtree=(frozenset({"_numa"}),)
    )
    for where, traits in ((CARD, {"CUSTOM_R"}), ("gone", set[str]())):
        allocations = {where: {"SRIOV_NET_VF": 1, BANDWIDTH: 1}}
        (red,) = map_groups(request, allocations, {}, tree(card=traits))
        assert (red.suffix, red.allocations) == ("_red", allocations)


def test_a_group_that_came_later_takes_no_unit_that_another_group_keeps() -> None:
    request = ClaimRequest(CONSUMER, tuple(RequestGroup(name, {"SRIOV_NET_VF": 1}) for name in ("_a", "_b")))
    units = {CARD: {"SRIOV_NET_VF": ("vf0", "vf1")}}
    kept = {"_b": {"SRIOV_NET_VF": ("vf0",)}}
    first, second = map_groups(request, {CARD: {"SRIOV_NET_VF": 2}}, units, tree(card=set()), kept)
    assert (first.units, second.units) == (
        {CARD: {"SRIOV_NET_VF": ("vf1",)}},
        {CARD: {"SRIOV_NET_VF": ("vf0",)}},
    )


def test_a_group_is_on_the_provider_of_its_aggregate() -> None:
    rack = frozenset({"rack"})
    cards = [
        Provider(name, name, HOST, {"SRIOV_NET_VF": Inventory(8)}, aggregates=frozenset(within))
        for name, within in ((OTHER, ()), (CARD, rack))
    ]
    group = RequestGroup("_a", {"SRIOV_NET_VF": 1}, member_of=(rack,))
    request = ClaimRequest(CONSUMER, (RequestGroup("", {"SRIOV_NET_VF": 1}), group))
    allocations = {name: {"SRIOV_NET_VF": 1} for name in (OTHER, CARD)}
    _, found = map_groups(request, allocations, {}, ProviderTree([Provider(HOST, HOST), *cards]))
    assert list(found.allocations) == [CARD]
