"""Devices that are cordoned or not well: what is withheld of them, card by card."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.claims.book import Book
from agent.claims.claim import Claim, ClaimState, Restriction
from agent.claims.fit_search import ProviderIndex
from agent.claims.request import ClaimRequest, RequestGroup
from agent.codec import decode, encode
from agent.driver import DeviceSigns
from agent.errors import UsageError
from agent.providers.device_health import (
    DEBOUNCE,
    HOLDERS_SHOWN_MAX,
    MEANINGS,
    TRANSITIONS,
    DeviceHealth,
    HealthState,
    Outcome,
    Symptom,
    cleared,
    cordoned_units,
    idle_cordoned,
    look,
    reserve_cordoned,
    unhealthy_sentences,
    with_idle,
)
from agent.providers.resolve import OwnedProviders, ResolvedDescription
from agent.tree import Inventory, Provider, ProviderTree

GPU = "0000:83:00.0"
WELL = DeviceSigns(
    GPU, True, "nvidia", has_link=True, fatal_errors=1, nonfatal_errors=1, memory_errors=1, has_power=True
)
SHOWS = {
    Symptom.NO_ANSWER: {"answers": False},
    Symptom.NO_DRIVER: {"driver": ""},
    Symptom.NO_LINK: {"has_link": False},
    Symptom.NO_POWER: {"has_power": False},
}
COUNTS = {
    Symptom.FATAL_ERRORS: "fatal_errors",
    Symptom.NONFATAL_ERRORS: "nonfatal_errors",
    Symptom.MEMORY_ERRORS: "memory_errors",
}


def sequence(shown: Iterable[Iterable[Symptom]]) -> list[DeviceSigns]:
    """The signs at each look, of a device that was well at the first and then shows these symptoms."""
    found, last = [WELL], WELL
    for symptoms in shown:
        changes = {key: value for symptom in symptoms for key, value in SHOWS.get(symptom, {}).items()}
        grown = {
            COUNTS[symptom]: getattr(last, COUNTS[symptom]) + 1 for symptom in symptoms if symptom in COUNTS
        }
        counts = {name: getattr(last, name) for name in COUNTS.values()}
        last = replace(WELL, **{**counts, **grown, **changes})
        found.append(last)
    return found


def after(looks: Sequence[DeviceSigns], known: DeviceHealth | None = None) -> list[DeviceHealth]:
    """What is known after each look."""
    known, before, states = known or DeviceHealth(GPU), None, []
    for number, signs in enumerate(looks):
        known = look(known, before, signs, float(number))
        before = signs
        states.append(known)
    return states


@pytest.mark.parametrize("symptom", Symptom)
def test_a_symptom_makes_unhealthy_after_its_looks_and_not_before(symptom: Symptom) -> None:
    needed, quiet = DEBOUNCE[symptom]
    states = after(sequence([{symptom}] * needed + [set()] * quiet))
    assert [each.is_withheld for each in states[: needed + 1]] == [False] * needed + [True]
    found = states[needed]
    assert found.causes == {symptom} and found.since == float(needed) and MEANINGS[symptom] in found.sentence
    assert f"plimsoll devices clear {GPU}" in found.sentence
    assert all(each.is_withheld and each.since == found.since for each in states[needed : needed + quiet])
    assert not states[-1].is_withheld and states[-1].causes == frozenset()


def test_a_symptom_that_comes_and_goes_stays_withheld() -> None:
    needed, quiet = DEBOUNCE[Symptom.NO_LINK]
    states = after(sequence([{Symptom.NO_LINK}] * needed + [*[set()] * (quiet - 1), {Symptom.NO_LINK}] * 5))
    assert all(each.is_withheld for each in states[needed:])
    assert {each.state for each in states[needed:]} == {HealthState.UNHEALTHY, HealthState.RECOVERING}
    assert "It shows none of that now." in states[needed + 1].sentence


def test_a_device_whose_counters_stand_still_is_well() -> None:
    assert not any(each.is_withheld for each in after([replace(WELL, fatal_errors=7)] * 3))
    shrunk = [replace(WELL, fatal_errors=number) for number in (7, 0, 0)]
    assert not any(each.is_withheld for each in after(shrunk)), "the device was found anew"


@pytest.mark.parametrize(
    ("drivers", "withheld"),
    [
        (("", "", "", "", ""), False),  # never had one: it is for guests alone
        (("igbvf", "vfio-pci", "vfio-pci", "", "igbvf"), False),  # a guest that ends
        (("", "vfio-pci", "", "", "", ""), False),  # a guest that ends, on a host without that driver
        (("igbvf", "", "", ""), True),
        (("igbvf", "vfio-pci", "", "", ""), True),
    ],
)
def test_a_driver_is_missing_if_the_host_had_one(drivers: tuple[str, ...], withheld: bool) -> None:
    looks = [replace(WELL, driver=driver, vfio=driver == "vfio-pci") for driver in drivers]
    assert after(looks)[-1].is_withheld is withheld


def test_a_driver_that_alone_may_be_bound_and_is_not() -> None:
    wrong = replace(WELL, driver="nouveau", only_driver="vfio-pci")
    assert after([wrong] * 3)[-1].causes == {Symptom.NO_DRIVER}
    right = replace(WELL, driver="vfio-pci", vfio=True, only_driver="vfio-pci")
    assert not after([right] * 3)[-1].is_withheld


def test_what_is_not_known_is_no_symptom() -> None:
    assert not any(each.is_withheld for each in after([DeviceSigns(GPU)] * 5))
    assert not any(each.is_withheld for each in after([WELL, *[DeviceSigns(GPU)] * 5]))


def test_an_operators_word_excuses_what_is_shown_until_it_has_gone() -> None:
    ill = after(sequence([{Symptom.NO_LINK}] * 3))[-1]
    known = cleared(ill)
    assert not known.is_withheld
    no_link = replace(WELL, has_link=False)
    still = after([no_link] * 10, known)
    assert not any(each.is_withheld for each in still)
    other = after([replace(no_link, answers=False)] * 2, still[-1])[-1]
    assert other.is_withheld and other.causes == {Symptom.NO_ANSWER}, "another symptom counts"
    again = after([WELL, no_link, no_link, no_link], still[-1])[-1]
    assert again.is_withheld and again.causes == {Symptom.NO_LINK}, "it had gone, and came back"


def test_a_restart_forgets_no_unhealthy_device_and_no_excuse() -> None:
    ill = after(sequence([{Symptom.NO_DRIVER}] * 3))[-1]
    read = decode(DeviceHealth, encode(DeviceHealth, ill))
    assert (read.state, read.causes, read.since) == (ill.state, ill.causes, ill.since)
    unbound = replace(WELL, driver="")
    assert after([unbound] * 9, read)[-1].is_withheld, "its driver is still the one that is missed"
    assert after([WELL] * 2, read)[-1].is_withheld is False
    excused = decode(DeviceHealth, encode(DeviceHealth, after([unbound], cleared(ill))[-1]))
    assert not any(each.is_withheld for each in after([unbound] * 9, excused))


@pytest.mark.parametrize(
    "change", [{"state": "gone"}, {"causes": ["old age"]}, {"causes": 1}, {"since": None}, {"address": 1}]
)
def test_a_record_that_makes_no_sense_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        decode(DeviceHealth, {**encode(DeviceHealth, DeviceHealth(GPU)), **change})


def test_the_table_has_every_state_and_outcome_and_every_symptom_a_meaning() -> None:
    assert TRANSITIONS.keys() == set(HealthState) and DEBOUNCE.keys() == MEANINGS.keys() == set(Symptom)
    assert all(row.keys() == set(Outcome) for row in TRANSITIONS.values())


@given(st.lists(st.frozensets(st.sampled_from(list(Symptom))), max_size=60))
def test_every_device_that_is_well_for_long_enough_is_offered_again(shown: list[frozenset[Symptom]]) -> None:
    """And none is withheld that did not show one symptom so often in a row as the table says."""
    looks = sequence(shown)
    states = after(looks)
    for number, known in enumerate(states[1:], start=1):
        if known.is_withheld and not states[number - 1].is_withheld:
            assert any(
                all(symptom in each for each in shown[max(0, number - needed) : number]) and number >= needed
                for symptom, (needed, _) in DEBOUNCE.items()
            )
    longest = max(quiet for _, quiet in DEBOUNCE.values())
    assert not after([looks[-1], *[WELL] * (longest + 1)], states[-1])[-1].is_withheld


NIC_PROVIDER, GPU_PROVIDER = "7e1c1d3c-94d8-4e4b-9a57-4a8d3b1f0c00", "7e1c1d3c-94d8-4e4b-9a57-4a8d3b1f0c01"
ONE, OTHER = "8e1c1d3c-94d8-4e4b-9a57-4a8d3b1f0c01", "8e1c1d3c-94d8-4e4b-9a57-4a8d3b1f0c02"
PF, VF = "CUSTOM_PF", "SRIOV_NET_VF"
TREE = ProviderTree(
    [
        Provider(NIC_PROVIDER, "nic", None, {PF: Inventory(1), VF: Inventory(2)}),
        Provider(GPU_PROVIDER, "gpu", NIC_PROVIDER, {"PGPU": Inventory(1)}),
    ]
)
UNITS = {NIC_PROVIDER: {PF: ("41:00.0",), VF: ("41:10.0", "41:10.2")}, GPU_PROVIDER: {"PGPU": ("83:00.0",)}}
DEVICES = {NIC_PROVIDER: "pci:41:00.0", GPU_PROVIDER: "pci:83:00.0"}
WAYS = {NIC_PROVIDER: (frozenset({PF}), frozenset({VF}))}


def test_the_address_of_a_function_is_one_unit_and_that_of_a_card_all_of_its_units() -> None:
    assert cordoned_units(UNITS, DEVICES, ["41:10.2"]) == {(VF, "41:10.2")}
    assert cordoned_units(UNITS, DEVICES, ["41:00.0"]) == {(PF, "41:00.0"), (VF, "41:10.0"), (VF, "41:10.2")}
    assert cordoned_units(UNITS, DEVICES, ["99:00.0", ""]) == frozenset()


def test_what_somebody_has_is_not_reserved() -> None:
    cordoned = cordoned_units(UNITS, DEVICES, ["41:10.0", "41:10.2"])
    idle = idle_cordoned(UNITS, cordoned, [(VF, "41:10.0")])
    assert idle == {NIC_PROVIDER: {VF: 1}}
    assert with_idle({NIC_PROVIDER: {VF: 1}, GPU_PROVIDER: {"PGPU": 1}}, idle) == {
        NIC_PROVIDER: {VF: 2},
        GPU_PROVIDER: {"PGPU": 1},
    }
    resolved = ResolvedDescription(TREE, OwnedProviders(), DEVICES, UNITS)
    reserved = reserve_cordoned(resolved, cordoned, idle, {})
    assert reserved.tree[NIC_PROVIDER].inventories == {PF: Inventory(1), VF: Inventory(2, reserved=1)}
    assert reserved.cordoned == {NIC_PROVIDER: {VF}}


def book() -> Book:
    made = Book()
    made.refresh(ProviderIndex.of(TREE, NIC_PROVIDER, WAYS), {}, UNITS)
    return made


def asked(consumer: str, name: str, number: int = 1) -> ClaimRequest:
    return ClaimRequest(consumer, (RequestGroup(resources={name: number}),))


def test_a_card_of_which_a_function_is_cordoned_is_not_given_whole() -> None:
    made = book()
    assert made.fit(asked(ONE, PF)).fits
    made.units.cordon(frozenset({(VF, "41:10.0")}))
    assert not made.fit(asked(ONE, PF)).fits
    assert made.fit(asked(ONE, VF)).units == {NIC_PROVIDER: {VF: ("41:10.2",)}}
    assert not made.fit(asked(ONE, VF, 2)).fits


def test_a_domain_that_names_a_cordoned_device_does_not_get_it_unless_it_has_it() -> None:
    made = book()
    made.units.cordon(frozenset({("PGPU", "83:00.0")}))
    made.restrict(OTHER, Restriction({GPU_PROVIDER: {"PGPU": ("83:00.0",)}}))
    assert not made.fit(asked(OTHER, "PGPU")).fits
    request = asked(ONE, "PGPU")
    held, units = {GPU_PROVIDER: {"PGPU": 1}}, {GPU_PROVIDER: {"PGPU": ("83:00.0",)}}
    made.put(Claim(ONE, ClaimState.CLAIMED, request, held, units))
    made.restrict(ONE, Restriction(units))
    assert made.fit(request).units == units


CARD = "0000:41:00.0"
FUNCTIONS = [f"0000:41:10.{number}" for number in range(8)]
CARDS = dict.fromkeys(FUNCTIONS, CARD)


def sick(*addresses: str, state: HealthState = HealthState.UNHEALTHY) -> dict[str, DeviceHealth]:
    causes = frozenset({Symptom.NO_ANSWER})
    return {address: DeviceHealth(address, state, causes=causes) for address in addresses}


def test_a_dead_card_is_one_sentence_and_another_device_another() -> None:
    unhealthy = sick(CARD, *FUNCTIONS, GPU)
    holders = {FUNCTIONS[0]: "web1 (u1)", FUNCTIONS[3]: "web1 (u1)", FUNCTIONS[5]: "db1 (u2)"}
    card, gpu = unhealthy_sentences(unhealthy, CARDS, holders)
    assert card.startswith(f"The card {CARD} is unhealthy, with 8 of its 8 functions: it is not on the bus")
    assert f"(db1 (u2) has {FUNCTIONS[5]}; web1 (u1) has {FUNCTIONS[0]}, {FUNCTIONS[3]})" in card
    assert f"`plimsoll devices clear {CARD}`" in card
    assert gpu == unhealthy[GPU].sentence


def test_functions_of_a_card_that_is_well_itself() -> None:
    (said,) = unhealthy_sentences(sick(*FUNCTIONS[:2]), CARDS, {})
    assert f"2 of the 8 functions of the card {CARD} are unhealthy" in said
    assert "no guest has any" in said


def test_one_function_alone_is_told_by_its_own_address() -> None:
    unhealthy = sick(FUNCTIONS[2])
    assert list(unhealthy_sentences(unhealthy, CARDS, {})) == [unhealthy[FUNCTIONS[2]].sentence]


def test_a_card_whose_symptoms_have_gone_says_so() -> None:
    recovering = sick(*FUNCTIONS[:3], state=HealthState.RECOVERING)
    assert "show none of that now" in next(unhealthy_sentences(recovering, CARDS, {}))
    mixed = {**recovering, **sick(FUNCTIONS[5])}
    assert "show none of that now" not in next(unhealthy_sentences(mixed, CARDS, {}))


def test_many_holders_are_counted() -> None:
    many = [f"0000:41:{slot:02x}.0" for slot in range(1, HOLDERS_SHOWN_MAX + 3)]
    holders = {address: f"guest{number}" for number, address in enumerate(many)}
    (said,) = unhealthy_sentences(sick(*many), dict.fromkeys(many, CARD), holders)
    assert "2 more guests have some" in said
