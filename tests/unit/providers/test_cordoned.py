"""What a cordon keeps from guests, and that who has it keeps it."""

from agent.claims.book import Book
from agent.claims.claim import Claim, ClaimState, Restriction
from agent.claims.fit_search import ProviderIndex
from agent.claims.request import ClaimRequest, RequestGroup
from agent.providers.device_health import cordoned_units, idle_cordoned, reserve_cordoned, with_idle
from agent.providers.resolve import OwnedProviders, ResolvedDescription
from agent.tree import Inventory, Provider, ProviderTree

NIC, GPU = "7e1c1d3c-94d8-4e4b-9a57-4a8d3b1f0c00", "7e1c1d3c-94d8-4e4b-9a57-4a8d3b1f0c01"
ONE, OTHER = "8e1c1d3c-94d8-4e4b-9a57-4a8d3b1f0c01", "8e1c1d3c-94d8-4e4b-9a57-4a8d3b1f0c02"
PF, VF = "CUSTOM_PF", "SRIOV_NET_VF"
TREE = ProviderTree(
    [
        Provider(NIC, "nic", None, {PF: Inventory(1), VF: Inventory(2)}),
        Provider(GPU, "gpu", NIC, {"PGPU": Inventory(1)}),
    ]
)
UNITS = {NIC: {PF: ("41:00.0",), VF: ("41:10.0", "41:10.2")}, GPU: {"PGPU": ("83:00.0",)}}
DEVICES = {NIC: "pci:41:00.0", GPU: "pci:83:00.0"}
WAYS = {NIC: (frozenset({PF}), frozenset({VF}))}


def test_the_address_of_a_function_is_one_unit_and_that_of_a_card_all_of_its_units() -> None:
    assert cordoned_units(UNITS, DEVICES, ["41:10.2"]) == {(VF, "41:10.2")}
    assert cordoned_units(UNITS, DEVICES, ["41:00.0"]) == {(PF, "41:00.0"), (VF, "41:10.0"), (VF, "41:10.2")}
    assert cordoned_units(UNITS, DEVICES, ["99:00.0", ""]) == frozenset()


def test_what_somebody_has_is_not_reserved() -> None:
    cordoned = cordoned_units(UNITS, DEVICES, ["41:10.0", "41:10.2"])
    idle = idle_cordoned(UNITS, cordoned, [(VF, "41:10.0")])
    assert idle == {NIC: {VF: 1}}
    assert with_idle({NIC: {VF: 1}, GPU: {"PGPU": 1}}, idle) == {NIC: {VF: 2}, GPU: {"PGPU": 1}}
    resolved = ResolvedDescription(TREE, OwnedProviders(), DEVICES, UNITS)
    reserved = reserve_cordoned(resolved, cordoned, idle, {})
    assert reserved.tree[NIC].inventories == {PF: Inventory(1), VF: Inventory(2, reserved=1)}
    assert reserved.cordoned == {NIC: {VF}}


def book() -> Book:
    made = Book()
    made.refresh(ProviderIndex.of(TREE, NIC, WAYS), {}, UNITS)
    return made


def asked(consumer: str, name: str, number: int = 1) -> ClaimRequest:
    return ClaimRequest(consumer, (RequestGroup(resources={name: number}),))


def test_a_card_of_which_a_function_is_cordoned_is_not_given_whole() -> None:
    made = book()
    assert made.fit(asked(ONE, PF)).fits
    made.cordon(frozenset({(VF, "41:10.0")}))
    assert not made.fit(asked(ONE, PF)).fits
    assert made.fit(asked(ONE, VF)).units == {NIC: {VF: ("41:10.2",)}}
    assert not made.fit(asked(ONE, VF, 2)).fits


def test_a_domain_that_names_a_cordoned_device_does_not_get_it_unless_it_has_it() -> None:
    made = book()
    made.cordon(frozenset({("PGPU", "83:00.0")}))
    made.restrict(OTHER, Restriction({GPU: {"PGPU": ("83:00.0",)}}))
    assert not made.fit(asked(OTHER, "PGPU")).fits
    request = asked(ONE, "PGPU")
    held, units = {GPU: {"PGPU": 1}}, {GPU: {"PGPU": ("83:00.0",)}}
    made.put(Claim(ONE, ClaimState.CLAIMED, request, held, units))
    made.restrict(ONE, Restriction(units))
    assert made.fit(request).units == units
