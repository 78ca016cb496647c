"""Who has a unit, against a plain search of all claims and guests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.claims.claim import Claim, ClaimState, Restriction
from agent.claims.fit import ProviderIndex
from agent.claims.request import ClaimRequest, RequestGroup
from agent.claims.unit_owners import UnitOwners
from agent.driver import Guest, GuestState, UsedUnit
from agent.tree import Inventory, Provider, ProviderTree

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


HOST = ProviderIndex.of(
    ProviderTree([Provider("host", "host"), Provider(CARD, CARD, "host", {VF: Inventory(3)})]), "host"
)
OFFERED = {CARD: {VF: UNITS, "PF": ("pf",)}}


@given(
    owned,
    guests,
    st.sampled_from(CONSUMERS),
    st.none() | st.integers(0, 3),
    st.none() | st.lists(st.sampled_from(UNITS), unique=True, min_size=1),
    st.booleans(),
    st.sets(st.sampled_from(UNITS)),
)
def test_the_units_to_choose_from_are_free_the_named_ones_or_those_of_the_own_guest_first(
    owners: Mapping[str, str],
    present: Mapping[str, tuple[bool, Sequence[str]]],
    consumer: str,
    room: int | None,
    named: list[str] | None,
    others: bool,
    cordoned: set[str],
) -> None:
    """Of a class of which a domain names units there are only these, unless it asks for others as well."""
    units = units_of(owners, present, guests_first=False)
    units.cordon(frozenset((VF, unit) for unit in cordoned))
    restriction = (
        Restriction({CARD: {VF: tuple(named)}}, frozenset({VF} if others else ())) if named else Restriction()
    )
    rooms = {CARD: {VF: room}} if room is not None else {}
    choices = units.choices(HOST, OFFERED, {VF, "OTHER"}, consumer, restriction, rooms)
    free = units.free(VF, UNITS, consumer)
    used = [unit for unit in free if any(unit in names for _, names in present.values())]
    expected = [*used, *(unit for unit in free if unit not in used)]
    if named:
        may_have = [
            unit
            for unit in named
            if units.owner(VF, unit, beside=(consumer,)) is None
            and (unit not in cordoned or units.owner(VF, unit) == consumer)
        ]
        rest = [unit for unit in expected[:room] if unit not in named]
        expected = may_have + (rest if others and len(may_have) == len(named) else [])
    assert choices == {CARD: {VF: tuple(expected[:room])}}


def test_a_card_on_which_another_has_a_vgpu_in_its_place_gives_nothing_until_that_is_released() -> None:
    """It is divided another way now: what else it offers would take the room of that one."""
    in_place = "0000:84:00.2/nvidia-471@20"
    units = UnitOwners()
    units.claim(claim("ann", [in_place]), "ann")
    named = Restriction({CARD: {VF: ("vf0",)}})
    for consumer, given_ in (("ann", UNITS), ("bob", ())):
        assert units.choices(HOST, OFFERED, {VF}, consumer, Restriction(), {}) == {CARD: {VF: given_}}
        chosen = units.choices(HOST, OFFERED, {VF}, consumer, named, {})
        assert chosen == {CARD: {VF: given_[:1]}}
    units.release(claim("ann", [in_place]))
    assert units.choices(HOST, OFFERED, {VF}, "bob", Restriction(), {}) == {CARD: {VF: UNITS}}


@pytest.mark.parametrize(
    ("makings", "to_make", "present", "instead"),
    [
        ({"new0": {}}, ["new0"], {"ann": (True, ["vf0"])}, {"new0": "vf0"}),
        ({"new0": {}}, ["new0"], {"ann": (False, ["vf0"])}, {"new0": "vf0"}),
        (
            {"new0": {}, "new1": {}},
            ["new0", "new1"],
            {"ann": (True, ["vf1", "vf0"])},
            {"new0": "vf0", "new1": "vf1"},
        ),
        ({"new0": {"placement": "1"}}, ["new0"], {"ann": (True, ["vf0"])}, {}),
        ({"new0": {}}, [], {"ann": (True, ["vf0"])}, {}),
        ({"new0": {}}, ["new0"], {"bob": (True, ["vf0"])}, {}),
        ({"new0": {}}, ["new0"], {"ann": (True, ["vf0"]), "bob": (True, ["vf0"])}, {}),
        ({"new0": {}}, ["new0"], {"ann": (True, ["vf2"])}, {}),
    ],
    ids=["runs", "is off", "two", "has its place", "made since", "another's", "of two guests", "claimed"],
)
def test_what_a_guest_uses_unclaimed_stands_for_what_was_to_be_made(
    makings: dict[str, dict[str, str]],
    to_make: list[str],
    present: Mapping[str, tuple[bool, Sequence[str]]],
    instead: dict[str, str],
) -> None:
    units = units_of({"vf2": "ann"}, present, guests_first=True)
    units.to_make = {CARD: {VF: {unit: makings[unit] for unit in to_make}}}
    made = replace(claim("ann", sorted(makings)), makings=makings)
    assert units.made_instead(made, OFFERED) == instead
    assert units.makings_of(made.units) == {unit: makings[unit] for unit in to_make}


def test_the_guests_of_a_unit_are_those_that_run_with_it_if_there_are_some() -> None:
    def told(*runs: bool) -> frozenset[str]:
        guests = [
            Guest(
                who, who, GuestState.RUNNING if run else GuestState.SHUTOFF, {}, (UsedUnit(VF, "vf0", CARD),)
            )
            for who, run in sorted(zip(CONSUMERS, runs, strict=False), key=lambda pair: pair[1])
        ]
        return UnitOwners().observe_guests(guests, {}).get((VF, "vf0"), frozenset())

    assert told(True, True, False) == {"ann", "bob"}
    assert told(False, False) == {"ann", "bob"}
    assert told(True, False) == told(True) == frozenset()
