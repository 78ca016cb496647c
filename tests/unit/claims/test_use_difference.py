"""What a guest uses against what it has, where the amounts alone do not tell."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kits.audit import CONSUMER, claimed, in_state, observe, running
from kits.tracker import CARD as CARD_PROVIDER
from kits.tracker import CARDS, POOL, UNITS, VFS, uuid_of
from kits.tracker import HOST as HOST_PROVIDERS

from agent.claims.attribution import Place
from agent.claims.book import Book
from agent.claims.claim import Claim, ClaimState
from agent.claims.fit import ProviderIndex
from agent.claims.guest_cells import PlacedCell
from agent.claims.host_cells import HostCell, HostCells
from agent.claims.request import ClaimRequest, RequestGroup, TopologyRequest
from agent.claims.rows import Row
from agent.claims.use_difference import Had, UseDifference, followed, use_difference
from agent.codec import decode, encode
from agent.driver import Guest, GuestState, UsedMemory, UsedUnit
from agent.shapes import Allocations, Units, by_class
from agent.tree import Inventory, Provider, ProviderTree

ROOT = uuid_of("host")


def compare(claims: dict[str, Claim], guest: Guest) -> UseDifference | None:
    observation = observe(claims, guests=(guest,))
    return use_difference(observation.row(guest.uuid, observation.place), observation.place)


def test_the_siblings_of_isolated_cpus_are_claimed_and_never_used() -> None:
    ((consumer, claim),) = claimed({"PCPU": 2}).items()
    used, withheld = claim.units[ROOT]["PCPU"]
    cell = PlacedCell(0, 0, {0: int(used)}, frozenset({int(withheld)}), 4, 1024)
    guest = running(consumer, UsedUnit("PCPU", used, "host"), PCPU=1)
    difference = compare({consumer: replace(claim, cells=(cell,))}, guest)
    assert difference is not None and difference.size == 0
    without_cells = compare({consumer: claim}, guest)
    assert without_cells is not None and without_cells.less == {"PCPU": 1}
    assert without_cells.missing == {"PCPU": (withheld,)}


def test_a_unit_made_in_place_of_the_claimed_one_is_no_other_unit() -> None:
    ((consumer, claim),) = claimed({"SRIOV_NET_VF": 1}).items()
    (unit,) = claim.units[uuid_of("nic0")]["SRIOV_NET_VF"]
    other = next(vf for vf in UNITS[uuid_of("nic0")]["SRIOV_NET_VF"] if vf != unit)
    guest = running(consumer, UsedUnit("SRIOV_NET_VF", other, "nic0"), SRIOV_NET_VF=1)
    made = replace(claim, makings={unit: {"parent": "0000:41:00.0", "type": "t"}})
    difference = compare({consumer: made}, guest)
    assert difference is not None and difference.size == 0
    plain = compare({consumer: claim}, guest)
    assert plain is not None and plain.swapped == {"SRIOV_NET_VF": ((unit,), (other,))}


def test_pages_that_the_claims_cells_count_are_not_more() -> None:
    claims = claimed({"MEMORY_MB": 1024})
    difference = compare(claims, running(CONSUMER, MEMORY_MB=1024, CUSTOM_HUGEPAGES_2048KIB=512))
    assert difference is not None and difference.size == 0


def test_nothing_is_compared_while_a_claim_is_in_doubt_or_nothing_is_known() -> None:
    guest = running(CONSUMER, VCPU=4)
    for state in (ClaimState.CLAIMING, ClaimState.RELEASING):
        assert compare(claimed({"VCPU": 2}, state=state), guest) is None
    assert compare(claimed({"VCPU": 2}), running(CONSUMER)) is None
    assert compare(claimed({"VCPU": 2}), replace(guest, problem="unread")) is None
    for gone in (GuestState.SHUTOFF, GuestState.CRASHED, GuestState.STARTING, GuestState.MIGRATING):
        assert compare(claimed({"VCPU": 2}), in_state(gone, guest)) is None
    assert compare({}, guest) is None
    assert compare(claimed({"VCPU": 2}), running(str(UUID(int=5)), VCPU=4)) is None


def test_a_guest_without_its_gpu_uses_less_also_where_the_card_names_no_units() -> None:
    assert not any("VGPU" in classes for classes in UNITS.values())
    difference = compare(claimed({"VCPU": 2, "VGPU": 1, "DISK_GB": 1}), running(CONSUMER, VCPU=2))
    assert difference is not None and difference.less == {"VGPU": 1}


def test_bandwidth_that_no_driver_sees_in_a_guest_is_not_less() -> None:
    bandwidth = "NET_BW_EGR_KILOBIT_PER_SEC"
    (claim,) = claimed({"VCPU": 2}).values()
    allocations = {ROOT: {"VCPU": 2, bandwidth: 1000, "CUSTOM_LICENSE": 1}}
    difference = compare({CONSUMER: replace(claim, allocations=allocations)}, running(CONSUMER, VCPU=2))
    assert difference is not None and difference.size == 0


AMOUNTS = st.fixed_dictionaries(
    {"VCPU": st.integers(1, 8), "MEMORY_MB": st.integers(1, 2000), "VGPU": st.integers(1, 4)},
    optional={"SRIOV_NET_VF": st.integers(1, 2)},
)


@given(AMOUNTS, AMOUNTS)
def test_more_and_less_are_the_differences_of_the_totals(has: dict[str, int], uses: dict[str, int]) -> None:
    difference = compare(claimed(has), running(CONSUMER, **uses))
    assert difference is not None
    more: dict[str, int] = {}
    for amounts in difference.more.values():
        for name, amount in amounts.items():
            more[name] = more.get(name, 0) + amount
    names = has.keys() | uses.keys()
    expected = {name: uses.get(name, 0) - has.get(name, 0) for name in names}
    assert more == {name: amount for name, amount in expected.items() if amount > 0}
    assert difference.less == {name: -amount for name, amount in expected.items() if amount < 0}


VF = "SRIOV_NET_VF"
ON_NICS = {"a0": "nic0", "a1": "nic0", "a2": "nic0", "b0": "nic1", "b1": "nic1", "b2": "nic1"}
"""{virtual function: its card}"""
NICS = ProviderIndex.of(
    ProviderTree(
        [
            Provider("host", "host", None, {"VCPU": Inventory(8)}),
            *(Provider(name, name, "host", {VF: Inventory(3)}) for name in ("nic0", "nic1")),
        ]
    )
)
FUNCTIONS = st.sets(st.sampled_from(sorted(ON_NICS)))


def on_nics(functions: set[str]) -> dict[str, dict[str, tuple[str, ...]]]:
    """{card: {class: those of the functions}}"""
    return {
        nic: {VF: of_nic}
        for nic in ("nic0", "nic1")
        if (of_nic := tuple(sorted(vf for vf in functions if ON_NICS[vf] == nic)))
    }


@given(FUNCTIONS, FUNCTIONS)
@example({"a0"}, {"b0"})
def test_each_unit_that_differs_is_told_once_and_only_their_number_is_more_or_less(
    has: set[str], uses: set[str]
) -> None:
    units = on_nics(has)
    amounts = {nic: {VF: len(by[VF])} for nic, by in units.items()} | {"host": {"VCPU": 1}}
    claim = Claim(CONSUMER, ClaimState.CLAIMED, ClaimRequest(CONSUMER, ()), amounts, units)
    using = running(CONSUMER, *(UsedUnit(VF, vf, "") for vf in sorted(uses)), VCPU=1)
    row = Row(CONSUMER, claimed={CONSUMER: claim}, guest=using)
    difference = use_difference(row, Place(NICS, on_nics(set(ON_NICS))))
    assert difference is not None
    assert difference.less == ({VF: len(has) - len(uses)} if len(has) > len(uses) else {})
    # Without more of them in all, one on the other card is another one.
    assert bool(difference.more) is (len(uses) > len(has))
    others, absent = uses - has, has - uses
    swapped = difference.swapped.get(VF, ((), ()))
    assert [len(part) for part in swapped] == [min(len(others), len(absent))] * 2
    assert sorted(swapped[0] + difference.missing.get(VF, ())) == sorted(absent)
    assert sorted(swapped[1] + difference.extra.get(VF, ())) == sorted(others)
    assert (difference.size == 0) is (has == uses)


HOST, NIC, CARD = uuid_of("host"), uuid_of("nic0"), uuid_of("card0")
HOST_INDEX = ProviderIndex.of(ProviderTree([*HOST_PROVIDERS, CARD_PROVIDER, POOL]), HOST)


def claim_for(*groups: RequestGroup, **more: object) -> Claim:
    """A claim of CONSUMER for these groups, as the book gives it."""
    book = Book()
    book.refresh(HOST_INDEX, {}, UNITS)
    policy = "none" if len([group for group in groups if group.suffix]) > 1 else None
    request = replace(ClaimRequest(CONSUMER, groups, policy, name="web"), **more)  # type: ignore[arg-type]
    fit = book.fit(request)
    assert fit.fits, fit.shortfalls
    return Claim(
        CONSUMER,
        ClaimState.CLAIMED,
        request,
        fit.allocations,
        fit.units,
        7.0,
        group_units=fit.group_units,
    )


def guest(*units: tuple[str, str], **amounts: int) -> Guest:
    used = tuple(UsedUnit(name, unit, "") for name, unit in units)
    for name, _ in units:
        amounts[name] = amounts.get(name, 0) + 1
    return Guest(CONSUMER, "web", GuestState.RUNNING, amounts, used)


def follow(claim: Claim, now: Guest, had: Guest | None = None) -> Claim | None:
    book = Book([claim])
    book.refresh(HOST_INDEX, {}, UNITS)
    row = Row(CONSUMER, {CONSUMER: claim.allocations}, {CONSUMER: claim}, now)
    return followed(row, book.place, Had.of(had or now).and_now(now))


def has(claim: Claim | None) -> tuple[Allocations, Units]:
    assert claim is not None
    assert decode(Claim, json.loads(json.dumps(encode(Claim, claim)))) == claim, "it can be journaled"
    total: dict[str, int] = {}
    for amounts in claim.allocations.values():
        for name, amount in amounts.items():
            total[name] = total.get(name, 0) + amount
    assert claim.request.resources == total, "the request asks for what the claim has"
    assert claim.mappings(HOST_INDEX.tree)
    assert claim.group_units.keys() <= {group.suffix for group in claim.request.groups}
    return claim.allocations, claim.units


def test_cpus_and_memory_that_came_are_claimed() -> None:
    claim = claim_for(RequestGroup("", {"VCPU": 2, "MEMORY_MB": 512}))
    after = follow(claim, guest(VCPU=4, MEMORY_MB=768), guest(VCPU=2, MEMORY_MB=512))
    assert has(after) == ({HOST: {"VCPU": 4, "MEMORY_MB": 768}}, {})
    assert after is not None and (after.since, after.request.name) == (7.0, "web")


def test_what_went_is_given_back_and_what_never_came_is_kept() -> None:
    """An operator claims more than the guest has at first; that is the operator's."""
    claim = claim_for(RequestGroup("", {"VCPU": 6, "MEMORY_MB": 512, VF: 1}))
    now = guest(VCPU=2, MEMORY_MB=512)
    assert follow(claim, now) is claim
    assert has(follow(claim, now, guest(VCPU=4, MEMORY_MB=512))) == (
        {HOST: {"VCPU": 4, "MEMORY_MB": 512}, NIC: {VF: 1}},
        {NIC: {VF: (VFS[0],)}},
    )


def test_the_very_device_that_was_plugged_is_claimed() -> None:
    claim = claim_for(RequestGroup("", {"VCPU": 2}))
    after = follow(claim, guest((VF, VFS[1]), ("CUSTOM_PCI_10DE_1EB8", CARDS[1]), VCPU=2), guest(VCPU=2))
    assert has(after) == (
        {HOST: {"VCPU": 2}, NIC: {VF: 1}, CARD: {"CUSTOM_PCI_10DE_1EB8": 1}},
        {NIC: {VF: (VFS[1],)}, CARD: {"CUSTOM_PCI_10DE_1EB8": (CARDS[1],)}},
    )
    assert after is not None
    plugged = [names for by_class in after.group_units.values() for names in by_class.values()]
    assert sorted(plugged) == [(VFS[1],), (CARDS[1],)]
    without = follow(after, guest(VCPU=2), guest((VF, VFS[1]), ("CUSTOM_PCI_10DE_1EB8", CARDS[1]), VCPU=2))
    assert has(without) == ({HOST: {"VCPU": 2}}, {})
    assert without is not None and without.request == claim.request


def test_another_device_in_its_place_is_that_one() -> None:
    claim = claim_for(RequestGroup("", {"VCPU": 2}), RequestGroup("red", {VF: 1}))
    now = guest((VF, VFS[1]), VCPU=2)
    after = follow(claim, now, guest((VF, VFS[0]), VCPU=2))
    assert has(after) == ({HOST: {"VCPU": 2}, NIC: {VF: 1}}, {NIC: {VF: (VFS[1],)}})
    never_given = follow(claim, now)
    assert has(never_given)[1] == {NIC: {VF: VFS}}, "the claimed one is the operator's to give"


def test_a_port_that_goes_takes_its_bandwidth_with_it() -> None:
    group = RequestGroup("red", {VF: 1})
    claim = claim_for(RequestGroup("", {"VCPU": 2}), group)
    with_bandwidth = replace(
        claim,
        request=replace(
            claim.request,
            groups=(claim.request.groups[0], replace(group, resources={VF: 1, "NET_BW_EGR": 5000})),
            same_subtree=(frozenset({"red"}),),
        ),
        allocations={**claim.allocations, NIC: {VF: 1, "NET_BW_EGR": 5000}},
    )
    after = follow(with_bandwidth, guest(VCPU=2), guest((VF, VFS[0]), VCPU=2))
    assert has(after) == ({HOST: {"VCPU": 2}}, {})


def test_the_aliases_that_are_left_keep_their_devices() -> None:
    name = "CUSTOM_PCI_10DE_1EB8"
    groups = (RequestGroup("", {"VCPU": 2}), RequestGroup("pci-0", {name: 1}), RequestGroup("pci-1", {VF: 1}))
    claim = claim_for(*groups, pci=(("gpu", 1), ("net", 1)))
    had = guest((name, CARDS[0]), (VF, VFS[0]), VCPU=2)
    after = follow(claim, guest((VF, VFS[0]), VCPU=2), had)
    assert has(after) == ({HOST: {"VCPU": 2}, NIC: {VF: 1}}, {NIC: {VF: (VFS[0],)}})
    assert after is not None and after.request.pci == (("net", 1),)
    (mapping,) = (one for one in after.mappings(HOST_INDEX.tree) if one.suffix)
    assert (mapping.label, mapping.units) == ("net", {NIC: {VF: (VFS[0],)}})


def test_a_claim_with_cells_follows_its_devices_alone() -> None:
    claim = claim_for(RequestGroup("", {"VCPU": 2, "MEMORY_MB": 512}))
    placed = replace(claim, request=replace(claim.request, topology=TopologyRequest(cells=1)))
    after = follow(placed, guest((VF, VFS[0]), VCPU=4, MEMORY_MB=768), guest(VCPU=2, MEMORY_MB=512))
    assert has(after)[0] == {HOST: {"VCPU": 2, "MEMORY_MB": 512}, NIC: {VF: 1}}


def test_disk_space_comes_and_never_goes() -> None:
    claim = claim_for(RequestGroup("", {"VCPU": 2}))
    after = follow(claim, guest(VCPU=2, DISK_GB=10))
    assert after is not None and after.request.resources == {"VCPU": 2, "DISK_GB": 10}
    assert follow(after, guest(VCPU=2), guest(VCPU=2, DISK_GB=10)) is after


@pytest.mark.parametrize("state", [GuestState.SHUTOFF, GuestState.CRASHED, GuestState.MIGRATING])
def test_a_guest_that_does_not_run_is_not_followed(state: GuestState) -> None:
    assert follow(claim_for(RequestGroup("", {"VCPU": 2})), in_state(state, guest(VCPU=1))) is None


def test_no_claim_in_a_move_or_in_doubt_follows() -> None:
    claim = claim_for(RequestGroup("", {"VCPU": 2}))
    now = guest(VCPU=4)
    assert follow(replace(claim, state=ClaimState.CLAIMING), now) is None
    other = replace(claim, consumer=str(UUID(int=99)))
    book = Book([claim])
    book.refresh(HOST_INDEX, {}, UNITS)
    row = Row(CONSUMER, {}, {CONSUMER: claim, other.consumer: other}, now)
    assert followed(row, book.place, Had.of(now)) is None


USES = st.builds(
    lambda vcpus, memory, vfs, cards: (vcpus, memory, frozenset(vfs), frozenset(cards)),
    st.integers(1, 8),
    st.integers(1, 8),
    st.sets(st.sampled_from(VFS)),
    st.sets(st.sampled_from(CARDS)),
)


def guest_of(use: tuple[int, int, frozenset[str], frozenset[str]]) -> Guest:
    vcpus, memory, vfs, cards = use
    units = [(VF, vf) for vf in sorted(vfs)] + [("CUSTOM_PCI_10DE_1EB8", card) for card in sorted(cards)]
    return guest(*units, VCPU=vcpus, MEMORY_MB=memory)


def exact(units: Units) -> set[str]:
    return {unit for by in units.values() for names in by.values() for unit in names}


@given(st.lists(USES, min_size=2, max_size=6))
def test_a_claim_that_begins_as_its_guest_stays_as_its_guest(
    uses: list[tuple[int, int, frozenset[str], frozenset[str]]],
) -> None:
    claim: Claim | None = claim_for(RequestGroup("", dict(guest_of(uses[0]).resources)))
    assert claim is not None
    claim = follow(claim, guest_of(uses[0]))  # to the very units
    for before, now in itertools.pairwise(uses):
        assert claim is not None
        # Units that were chosen at the claim and never given are the operator's.
        spare = exact(claim.units) - set(before[2] | before[3])
        claim = follow(claim, guest_of(now), guest_of(before))
        allocations, units = has(claim)
        assert exact(units) - spare == set(now[2] | now[3]) - spare
        assert allocations[HOST] == {"VCPU": now[0], "MEMORY_MB": now[1]}


ON_CELLS = Place(
    ProviderIndex.of(
        ProviderTree(
            [
                Provider("host", "host", None, {"VCPU": Inventory(8)}),
                *(Provider(f"cell{n}", f"cell{n}", "host", {"MEMORY_MB": Inventory(9000)}) for n in range(3)),
                *(Provider(f"gpu{n}", f"gpu{n}", "host", {"VGPU": Inventory(9)}) for n in range(3)),
            ]
        )
    ),
    cells=HostCells(
        tuple(HostCell(n, f"cell{n}", (), frozenset(), frozenset(), 4, 9000, 9000, {}) for n in range(3)),
        {f"cell{n}": n for n in range(3)},
    ),
)
THREE = st.tuples(*[st.integers(0, 3)] * 3)


@given(THREE, THREE, THREE, *[st.integers(0, 9)] * 2)
@example((1, 0, 0), (2, 2, 0), (0, 1, 1), 3, 2)
def test_a_claim_grows_and_shrinks_by_what_came_and_went_in_all_wherever_it_is(
    memory: tuple[int, ...], on_gpus: tuple[int, ...], uses: tuple[int, ...], had_gpus: int, gpus: int
) -> None:
    """The guest's memory is bound; on which card a vGPU is, the driver does not say."""
    claimed = {"host": {"VCPU": 1}}
    claimed |= {f"cell{n}": {"MEMORY_MB": amount} for n, amount in enumerate(memory) if amount}
    claimed |= {f"gpu{n}": {"VGPU": amount} for n, amount in enumerate(on_gpus) if amount}
    before = by_class(claimed.values())
    bound = tuple(UsedMemory(n, amount, None, n) for n, amount in enumerate(uses) if amount)
    now = replace(guest(VCPU=1, MEMORY_MB=sum(uses), VGPU=gpus), memory=bound)
    request = ClaimRequest(CONSUMER, (RequestGroup("", before),))
    claim = Claim(CONSUMER, ClaimState.CLAIMED, request, claimed)
    had = Had({"VCPU": 1, "MEMORY_MB": sum(memory), "VGPU": max(had_gpus, gpus)})
    row = Row(CONSUMER, {CONSUMER: claimed}, {CONSUMER: claim}, now)
    difference = use_difference(row, ON_CELLS)
    assert difference is not None
    more = {uuid: amounts.get("MEMORY_MB", 0) for uuid, amounts in difference.more.items()}
    assert [more.get(f"cell{n}", 0) for n in range(3)] == [
        max(0, used - has) for has, used in zip(memory, uses, strict=True)
    ]
    after = followed(row, ON_CELLS, had)
    assert after is not None
    total = by_class(after.allocations.values())
    assert total.get("MEMORY_MB", 0) == sum(uses), "all that is claimed was had"
    never_given = max(0, before.get("VGPU", 0) - had.amounts["VGPU"])
    assert total.get("VGPU", 0) == gpus + never_given
    assert after.request.resources == total
    for n, (has, used) in enumerate(zip(memory, uses, strict=True)):
        amount = after.allocations.get(f"cell{n}", {}).get("MEMORY_MB", 0)
        assert min(has, used) <= amount <= max(has, used)


def test_another_unit_of_a_class_that_was_to_be_made_is_the_one_that_was_made() -> None:
    claim = claim_for(RequestGroup("", {"VCPU": 2, VF: 1}))
    made = replace(claim, makings={VFS[0]: {"parent": "0000:41:00.0"}})
    now = guest((VF, VFS[1]), VCPU=2)
    assert follow(made, now, guest(VCPU=2)) is made
    assert has(follow(claim, now, guest(VCPU=2)))[1] == {NIC: {VF: VFS}}


def test_a_group_that_only_holds_others_together_stays() -> None:
    claim = claim_for(RequestGroup("", {"VCPU": 2}), RequestGroup("red", {VF: 1}))
    top = RequestGroup("_top", {}, (frozenset({"CUSTOM_SWITCH"}),))
    request = replace(
        claim.request,
        groups=(*claim.request.groups, top),
        group_policy="none",
        same_subtree=(frozenset({"_top", "red"}),),
    )
    after = follow(replace(claim, request=request), guest((VF, VFS[0]), VCPU=3), guest((VF, VFS[0]), VCPU=2))
    assert after is not None and after.request.resources == {"VCPU": 3, VF: 1}
    assert [group.suffix for group in after.request.groups] == ["", "red", "_top"]
