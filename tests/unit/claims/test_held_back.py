"""While a step is on its way to the disk, the book counts what is there before it and after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from hypothesis import given
from hypothesis import strategies as st

from agent.claims.claim import Claim, ClaimState, claims_until_durable
from agent.claims.guest_cells import PlacedCell
from agent.claims.request import ClaimRequest, RequestGroup

HOST, NIC = "host", "nic"


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
