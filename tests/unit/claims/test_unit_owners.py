"""Who has a unit, against a plain search of all claims and guests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from agent.claims.claim import Claim, ClaimState
from agent.claims.request import ClaimRequest, RequestGroup
from agent.claims.unit_owners import UnitOwners
from agent.driver import Guest, GuestState, UsedUnit

VF, CARD = "SRIOV_NET_VF", "card"
UNITS = ("vf0", "vf1", "vf2")
CONSUMERS = ("ann", "bob", "cid")

owned = st.dictionaries(st.sampled_from(UNITS), st.sampled_from(CONSUMERS))
guests = st.dictionaries(
    st.sampled_from(CONSUMERS),
    st.tuples(st.booleans(), st.lists(st.sampled_from(UNITS), unique=True)),
)


def claim(consumer: str, units: Sequence[str]) -> Claim:
    request = ClaimRequest(consumer, (RequestGroup(resources={VF: len(units)}),))
    return Claim(consumer, ClaimState.CLAIMED, request, {CARD: {VF: len(units)}}, {CARD: {VF: tuple(units)}})


def units_of(
    owners: Mapping[str, str], present: Mapping[str, tuple[bool, Sequence[str]]], *, guests_first: bool
) -> UnitOwners:
    units = UnitOwners()

    def observe() -> None:
        units.observe_guests(
            [
                Guest(
                    who,
                    who,
                    GuestState.RUNNING if runs else GuestState.SHUTOFF,
                    {VF: len(named)},
                    tuple(UsedUnit(VF, unit, CARD) for unit in named),
                )
                for who, (runs, named) in sorted(present.items(), key=lambda item: item[1][0])
            ],
            {},
        )

    if guests_first:
        observe()
    for consumer in CONSUMERS:
        units.claim(claim(consumer, [unit for unit, owner in owners.items() if owner == consumer]), consumer)
    if not guests_first:
        observe()
    return units


@given(owned, guests, st.booleans())
def test_a_claim_has_its_unit_then_a_guest_that_runs_with_it(
    owners: Mapping[str, str], present: Mapping[str, tuple[bool, Sequence[str]]], guests_first: bool
) -> None:
    units = units_of(owners, present, guests_first=guests_first)
    for unit in UNITS:
        running = {who for who, (runs, named) in present.items() if runs and unit in named}
        having = {owners[unit]} if unit in owners else running
        assert units.owner(VF, unit) == min(having, default=None)
        assert units.owner(VF, unit, beside=CONSUMERS) is None
        assert ((VF, unit) in units.owners()) == bool(having)


@given(owned, guests, st.booleans())
def test_a_unit_is_free_to_a_consumer_if_nobody_else_has_or_names_it(
    owners: Mapping[str, str], present: Mapping[str, tuple[bool, Sequence[str]]], guests_first: bool
) -> None:
    units = units_of(owners, present, guests_first=guests_first)
    for consumer in CONSUMERS:
        free = units.free(VF, UNITS, consumer)
        for unit in UNITS:
            naming = {who for who, (_, named) in present.items() if unit in named}
            running = {who for who in naming if present[who][0]}
            if unit in owners and owners[unit] != consumer:
                assert unit not in free
            elif not naming - {consumer}:
                assert unit in free
            elif running - {consumer} and unit not in owners:
                assert unit not in free


@given(owned, guests, st.booleans())
def test_a_unit_that_several_have_is_contested_and_others_keep_it(
    owners: Mapping[str, str], present: Mapping[str, tuple[bool, Sequence[str]]], guests_first: bool
) -> None:
    units = units_of(owners, present, guests_first=guests_first)
    for unit in UNITS:
        naming = {who for who, (_, named) in present.items() if unit in named}
        running = {who for who in naming if present[who][0]}
        assert ((VF, unit) in units.contested) == (
            len(naming | {owners[unit]} if unit in owners else naming) > 1 and bool(naming)
        )
        for guest in naming:
            others = {owners[unit]} - {guest} if unit in owners else running - {guest}
            if unit not in owners and not running:
                others = naming - {guest}
            assert set(units.others_with((VF, unit), guest)) == others


def test_a_copy_without_a_consumer_knows_nothing_of_it() -> None:
    units = units_of({"vf0": "ann", "vf1": "bob"}, {"cid": (True, ["vf2"])}, guests_first=True)
    copy = units.without({"ann", "cid"})
    assert copy.free(VF, UNITS, "dan") == ["vf0", "vf2"]
    assert units.free(VF, UNITS, "dan") == []


def test_what_is_cordoned_is_left_to_who_has_it() -> None:
    units = units_of({"vf0": "ann"}, {}, guests_first=True)
    units.cordon(frozenset({(VF, "vf0"), (VF, "vf1")}))
    assert units.free(VF, UNITS, "ann") == ["vf0", "vf2"]
    assert units.idle_cordoned({CARD: {VF: UNITS}}, units.cordoned) == {CARD: {VF: 1}}
    units.release(claim("ann", ["vf0"]))
    assert units.free(VF, UNITS, "ann") == ["vf2"]


def test_who_is_gone_does_not_contend_for_a_unit() -> None:
    named = {"ann": (True, ["vf0"]), "bob": (True, ["vf0", "vf1"]), "cid": (False, ["vf0"])}
    units = units_of({"vf2": "ann"}, named, guests_first=True)
    assert units.contested == {(VF, "vf0"): {"ann": False, "bob": False, "cid": True}}
    left = units.without({"ann"})
    assert left.contested == {(VF, "vf0"): {"bob": False, "cid": True}}
    assert left.claimed == {} and left.in_guests.keys() >= {(VF, "vf1")}
    assert units.contested[VF, "vf0"]["ann"] is False and units.claimed == {(VF, "vf2"): "ann"}
