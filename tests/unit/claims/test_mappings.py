"""Which group got what: by the amounts and traits of the groups, never by the order of the providers."""

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.claims.claim import map_groups, units_of_groups
from agent.claims.request import ClaimRequest, RequestGroup
from agent.tree import Inventory, Provider, ProviderTree

CONSUMER = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"
HOST, CARD, OTHER = "host", "card", "other"
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
