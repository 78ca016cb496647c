"""Which devices keep a guest from a live migration: an oracle over the operator's declarations."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from dataclasses import replace

import pytest

from agent.claims.claim import Fit
from agent.claims.fit_search import ProviderIndex
from agent.claims.pci_alias import Alias, with_device_groups
from agent.claims.request import ClaimRequest, RequestGroup
from agent.device_names import LIVE_MIGRATABLE, TYPES, mdev_type_trait
from agent.errors import Refused
from agent.moves.live_migratable import (
    check_chosen,
    check_live_migratable,
    check_source,
    classes_to_compare,
    traits_of_guests,
    unlike_units,
    with_source,
)
from agent.tree import Inventory, Provider, ProviderTree

CONSUMER = "6d3a1fb4-5d6c-4a61-b1f5-0f5a5b6a0b01"
CARD = "7e1c1d3c-94d8-4e4b-9a57-4a8d3b1f0c00"
UNITS = ("0000:41:00.1", "0000:41:00.2")
TYPE = next(iter(TYPES.values()))


def chosen_on(card: str, name: str, *units: str) -> Fit:
    """What was chosen: the class on that card, with these exact units."""
    return Fit(True, {card: {name: len(units) or 1}}, {card: {name: units}} if units else {}, ())


def is_refused(resource_class: str, traits: frozenset[str], request: ClaimRequest, amount: int) -> bool:
    card = Provider(CARD, "card", None, {resource_class: Inventory(2)}, traits)
    host = ProviderIndex.of(ProviderTree([card]))
    allocations = {CARD: {resource_class: amount}} if amount else {}
    try:
        check_live_migratable(request, allocations, host, {CARD: {resource_class: UNITS}})
    except Refused as refused:
        assert "[pci] device_spec" in refused.message and f"{resource_class} on card" in refused.message
        return True
    return False


@pytest.mark.parametrize("resource_class", ["CUSTOM_NIC", "SRIOV_NET_VF", "CUSTOM_VDPA"])
@pytest.mark.parametrize("amount", [0, 1])
def test_only_a_passed_through_device_that_is_not_declared_is_in_the_way(
    resource_class: str, amount: int
) -> None:
    request = ClaimRequest(CONSUMER, (RequestGroup("", {"VCPU": 1}),))
    for typed, declared in itertools.product((True, False), repeat=2):
        traits = frozenset({TYPE} if typed else ()) | ({LIVE_MIGRATABLE} if declared else set())
        expected = bool(amount) and typed and not declared and resource_class == "CUSTOM_NIC"
        assert is_refused(resource_class, frozenset(traits), request, amount) is expected


def test_a_function_with_vram_needs_a_driver_that_can_migrate_it() -> None:
    request, name = ClaimRequest(CONSUMER, (RequestGroup("", {"VCPU": 1}),)), "CUSTOM_VRAM_4096MB"
    for traits in (frozenset[str](), frozenset({LIVE_MIGRATABLE})):
        host = ProviderIndex.of(ProviderTree([Provider(CARD, "card", None, {name: Inventory(2)}, traits)]))
        refused = nullcontext() if traits else pytest.raises(Refused, match=f"{name} on card is under no dr")
        with refused:
            check_live_migratable(request, {CARD: {name: 1}}, host, {CARD: {name: UNITS}})


@pytest.mark.parametrize("live_migratable", [None, False, True])
def test_an_alias_must_ask_for_live_migratable_devices(live_migratable: bool | None) -> None:
    alias = Alias("nic", resource_class="CUSTOM_NIC", live_migratable=live_migratable)
    asked = ClaimRequest(CONSUMER, (RequestGroup("", {"VCPU": 1}),), pci=(("nic", 1),))
    request = with_device_groups(asked, {"nic": alias}, ProviderTree(), {})
    host = ProviderIndex.of(ProviderTree())
    if live_migratable:
        check_live_migratable(request, {}, host, {})
        return
    with pytest.raises(Refused, match=r"'nic'.*\[pci\] alias"):
        check_live_migratable(request, {}, host, {})


A, B, C = (mdev_type_trait(name) for name in ("nvidia-11", "nvidia-12", "i915-GVTg"))


@pytest.mark.parametrize(
    ("source", "here", "refused"),
    [
        ({A}, {A}, False),
        ({A}, {A, B}, False),
        ({A}, {B}, True),
        ({A, B}, {B, C}, False),
        ({A, B}, {C}, True),
        (set(), {B}, False),
        ({A}, set(), False),
    ],
)
def test_a_mediated_device_goes_only_to_one_of_its_type(
    source: set[str], here: set[str], refused: bool
) -> None:
    """What is not known, on either side, is in the way of nothing."""
    card = Provider(CARD, "card", None, {"VGPU": Inventory(4)}, frozenset(here) | {"HW_GPU_API_VULKAN"})
    host = ProviderIndex.of(ProviderTree([card]))
    request = ClaimRequest(CONSUMER, (RequestGroup("", {"VCPU": 1}), RequestGroup("_1", {"VGPU": 1})))
    at_source = {"VGPU": [frozenset(source)]}
    assert classes_to_compare(request, host) == (frozenset({"VGPU"}) if here else frozenset())
    for check in (
        lambda: check_source(request, at_source, host),
        lambda: check_chosen(request, chosen_on(CARD, "VGPU"), at_source, host),
    ):
        if refused:
            with pytest.raises(Refused, match=r"VGPU is of the type CUSTOM_MDEV_TYPE_NVIDIA_11"):
                check()
        else:
            check()
    rest, gpu = with_source(request, at_source, host)[0].groups
    assert rest == request.groups[0]
    assert gpu.required == ((frozenset(source & here),) if source & here else ())


MLX5, XE, PDS = (f"CUSTOM_VFIO_DRIVER_{name}_VFIO_PCI" for name in ("MLX5", "XE", "PDS"))


@pytest.mark.parametrize(
    ("source", "here", "refused"),
    [
        ({MLX5}, {MLX5}, False),
        ({MLX5}, {XE, MLX5}, False),
        ({MLX5}, {XE}, True),
        ({MLX5, A}, {MLX5, B}, True),
        ({MLX5, A}, {MLX5, A}, False),
        (set(), {XE}, False),
        ({MLX5}, set(), False),
    ],
)
@pytest.mark.parametrize(
    "group",
    [
        RequestGroup("_1", {"CUSTOM_VF": 1}),
        RequestGroup("", {"CUSTOM_VF": 1}, (frozenset({"HW_CPU_X86_AVX2"}),)),
    ],
    ids=["of its own", "with the trait of another provider"],
)
def test_a_function_goes_only_to_one_under_the_same_driver(
    source: set[str], here: set[str], refused: bool, group: RequestGroup
) -> None:
    card = Provider(CARD, "card", None, {"CUSTOM_VF": Inventory(4)}, frozenset(here))
    host = ProviderIndex.of(ProviderTree([card]))
    request = ClaimRequest(CONSUMER, (group,))
    at_source = {"CUSTOM_VF": [frozenset(source) | {"HW_NIC_SRIOV"}]}
    for check in (
        lambda: check_source(request, at_source, host),
        lambda: check_chosen(request, chosen_on(CARD, "CUSTOM_VF"), at_source, host),
    ):
        if refused:
            with pytest.raises(Refused) as caught:
                check()
            drivers = "mlx5_vfio_pci at the source" in caught.value.message
            types = "CUSTOM_MDEV_TYPE_NVIDIA_11 at the source" in caught.value.message
            assert drivers or types
        else:
            check()
    (function,) = with_source(request, at_source, host)[0].groups
    assert {*function.required} - {*group.required} == {frozenset({trait}) for trait in source & here}


PLAIN = "CUSTOM_VFIO_DRIVER_VFIO_PCI"
USED, USED_PLAIN = (f"CUSTOM_VFIO_IN_USE_{each}" for each in ("MLX5_VFIO_PCI", "VFIO_PCI"))
OTHER_CARD = "7e1c1d3c-94d8-4e4b-9a57-4a8d3b1f0c01"


@pytest.mark.parametrize("name", ["SRIOV_NET_VF", "CUSTOM_VF"])
@pytest.mark.parametrize(
    ("source", "cards", "fitting"),
    [
        ({MLX5}, ({PLAIN},), ()),
        ({MLX5}, ({PLAIN}, {XE}), ()),
        ({MLX5}, ({PLAIN}, {MLX5}), (1,)),
        ({MLX5}, ({PLAIN}, set()), (1,)),
        ({MLX5}, (set(),), (0,)),
        (set(), ({PLAIN},), (0,)),
        ({PLAIN}, ({PLAIN},), (0,)),
        ({PLAIN}, ({MLX5}, {PLAIN}), (0, 1)),
        ({MLX5, PLAIN}, ({PLAIN},), (0,)),
    ],
)
def test_a_function_that_migrates_does_not_go_to_one_under_plain_vfio(
    name: str, source: set[str], cards: tuple[set[str], ...], fitting: tuple[int, ...]
) -> None:
    """One that does not migrate goes anywhere: the mover detaches it, and attaches another one.

    So does a guest with some of both: which of its functions goes to which card is not known.
    """
    uuids = (CARD, OTHER_CARD)
    host = ProviderIndex.of(
        ProviderTree(
            Provider(uuid, uuid, None, {name: Inventory(4)}, frozenset(here))
            for uuid, here in zip(uuids, cards, strict=False)
        ),
    )
    host = replace(host, by_class={name: tuple(host.tree)})
    request = ClaimRequest(CONSUMER, (RequestGroup("", {"VCPU": 1}), RequestGroup("_1", {name: 1})))
    at_source = {name: [frozenset(source)]}
    assert classes_to_compare(request, host) == (frozenset({name}) if any(cards) else frozenset())
    if not fitting:
        with pytest.raises(Refused) as caught:
            check_source(request, at_source, host)
        told = "vfio_pci (or one that does not migrate it)" + (", xe_vfio_pci." if {XE} in cards else ".")
        sentence = (
            f"its {name} is under the driver of VFIO mlx5_vfio_pci at the source, and this host has {told}"
        )
        assert sentence in caught.value.message
        return
    check_source(request, at_source, host)
    rest, group = with_source(request, at_source, host)[0].groups
    assert rest == request.groups[0]
    for number, (uuid, here) in enumerate(zip(uuids, cards, strict=False)):
        taken = not group.forbidden & here and all(any_of & here for any_of in group.required)
        assert taken is (number in fitting)
        chosen = nullcontext() if number in fitting else pytest.raises(Refused, match="mlx5_vfio_pci at the")
        with chosen:
            check_chosen(request, chosen_on(uuid, name), at_source, host)


@pytest.mark.parametrize("name", ["SRIOV_NET_VF", "CUSTOM_VF"])
@pytest.mark.parametrize(
    ("source", "first", "avoided"),
    [
        ({MLX5}, PLAIN, True),
        ({MLX5}, XE, True),
        ({MLX5, XE}, PLAIN, True),
        ({MLX5, XE}, XE, False),
        (set(), PLAIN, False),
        ({PLAIN}, PLAIN, False),
        ({PLAIN}, XE, False),
        ({MLX5, PLAIN}, PLAIN, None),
        ({MLX5, PLAIN}, XE, True),
    ],
)
@pytest.mark.parametrize("second", [MLX5, None])
def test_on_a_mixed_card_a_function_that_migrates_goes_to_one_of_its_driver(
    name: str, source: set[str], first: str, avoided: bool | None, second: str | None
) -> None:
    """The destination knows which function is which; one whose driver is not known may do.

    Where some of the guest's may be plain, too, those that migrate come first (None), and others may do.
    """
    drivers = {UNITS[0]: first} | ({UNITS[1]: second} if second else {})
    card = Provider(
        CARD, "card", None, {name: Inventory(2)}, frozenset({MLX5, XE} if first == XE and second else ())
    )
    other = Provider(OTHER_CARD, "other", None, {"CUSTOM_OTHER": Inventory(2)}, frozenset())
    host = ProviderIndex.of(ProviderTree([card, other]))
    host = replace(host, by_class={name: (card,), "CUSTOM_OTHER": (other,)})
    host = replace(host, unit_drivers={CARD: drivers, OTHER_CARD: {"0000:42:00.1": PLAIN}})
    request = ClaimRequest(CONSUMER, (RequestGroup("", {"VCPU": 1}), RequestGroup("_1", {name: 1})))
    at_source = {name: [frozenset(source)]}
    assert classes_to_compare(request, host) == {name}
    check_source(request, at_source, host)
    _, group = with_source(request, at_source, host)[0].groups
    assert group.required == ((frozenset({MLX5, XE} & source),) if card.traits and MLX5 in source else ())
    known = set() if avoided is False else {UNITS[0]}
    unknown = {UNITS[1]} if second is None and {MLX5, XE} & source else set()
    ways = dict.fromkeys(frozenset(each) for each in (known | unknown, known) if each)
    assert unlike_units(request, at_source, host, {CARD: {name: UNITS}}) == (*ways,)
    check_chosen(request, chosen_on(CARD, name, *UNITS[1:]), at_source, host)
    for units in (UNITS[:1], UNITS):
        if not avoided:
            check_chosen(request, chosen_on(CARD, name, *units), at_source, host)
            continue
        with pytest.raises(Refused) as caught:
            check_chosen(request, chosen_on(CARD, name, *units), at_source, host)
        here = "xe_vfio_pci" if first == XE else "vfio_pci (or one that does not migrate it)"
        drivers_there = "mlx5_vfio_pci, xe_vfio_pci" if XE in source else "mlx5_vfio_pci"
        assert (
            f"its {name} is under the driver of VFIO {drivers_there} at the source, and what is free here is "
            f"on card, which has {here}."
        ) in caught.value.message


P0, P1 = ("CUSTOM_PHYSNET_P0", "CUSTOM_PHYSNET_P1")


def may_serve(group: RequestGroup, card: Provider) -> bool:
    return not group.forbidden & card.traits and all(any_of & card.traits for any_of in group.required)


@pytest.mark.parametrize(
    ("source", "cards", "refused"),
    [
        ((MLX5, PLAIN), (MLX5, PLAIN), False),
        ((MLX5, PLAIN), (PLAIN, PLAIN), True),
        ((MLX5, PLAIN), (MLX5, XE), False),
        ((MLX5, ""), (MLX5, PLAIN), False),
        ((MLX5, ""), (MLX5, XE), False),
        ((MLX5, XE), (MLX5, XE), False),
        ((MLX5, XE), (XE, MLX5), True),
        ((MLX5, XE), (MLX5, MLX5), True),
        ((MLX5, ""), ("", XE), False),
        ((MLX5, ""), (XE, MLX5), True),
    ],
)
@pytest.mark.parametrize("forbids", [False, True])
def test_of_a_guest_with_two_networks_each_function_is_compared_with_that_of_its_network(
    source: tuple[str, str], cards: tuple[str, str], refused: bool, forbids: bool
) -> None:
    """What another network's card tells, on either side, says nothing of this one's."""
    name = "SRIOV_NET_VF"

    def traits(drivers: tuple[str, str]) -> list[frozenset[str]]:
        return [
            frozenset({network, driver} - {""}) for network, driver in zip((P0, P1), drivers, strict=True)
        ]

    tree = ProviderTree(
        Provider(uuid, uuid, None, {name: Inventory(4)}, each)
        for uuid, each in zip((CARD, OTHER_CARD), traits(cards), strict=True)
    )
    host = replace(ProviderIndex.of(tree), by_class={name: tuple(tree)})
    groups = (RequestGroup(f"_{each}", {name: 1}, (frozenset({each}),)) for each in (P0, P1))
    if forbids:  # each of them the other network
        groups = (RequestGroup(f"_{each}", {name: 1}, forbidden=frozenset({each})) for each in (P1, P0))
    request = ClaimRequest(CONSUMER, tuple(groups))
    at_source = {name: traits(source)}
    both = Fit(True, {CARD: {name: 1}, OTHER_CARD: {name: 1}}, {}, ())
    for check in (
        lambda: check_source(request, at_source, host),
        lambda: check_chosen(request, both, at_source, host),
    ):
        with pytest.raises(Refused, match="at the source, and ") if refused else nullcontext():
            check()
    if not refused:
        chosen = with_source(request, at_source, host)[0]
        assert all(map(may_serve, chosen.groups, tree))


def test_a_card_that_does_not_tell_comes_before_one_that_tells_of_another_driver() -> None:
    """That other card is no reason to refuse either: what a side does not tell may do."""
    name = "SRIOV_NET_VF"
    tree = ProviderTree(
        Provider(uuid, uuid, None, {name: Inventory(4)}, traits)
        for uuid, traits in ((CARD, frozenset({XE})), (OTHER_CARD, frozenset[str]()))
    )
    host = replace(ProviderIndex.of(tree), by_class={name: tuple(tree)})
    request, at_source = ClaimRequest(CONSUMER, (RequestGroup("_1", {name: 1}),)), {name: [frozenset({MLX5})]}
    check_source(request, at_source, host)
    for chosen in with_source(request, at_source, host):
        assert [may_serve(chosen.groups[0], card) for card in tree] == [False, True]


@pytest.mark.parametrize(
    ("card", "of_guests"),
    [
        ({TYPE, MLX5}, {TYPE, MLX5}),
        ({TYPE, PLAIN}, {TYPE, PLAIN}),
        ({TYPE, USED}, {TYPE, MLX5}),
        ({TYPE, USED, PLAIN}, {TYPE, MLX5}),
        ({TYPE, USED, USED_PLAIN}, {TYPE, MLX5, PLAIN}),
        ({TYPE, USED, LIVE_MIGRATABLE}, {TYPE, MLX5, LIVE_MIGRATABLE}),
        ({TYPE, USED, MLX5, XE}, {TYPE, MLX5}),
    ],
)
def test_of_a_mixed_card_at_the_source_the_drivers_in_use_count(card: set[str], of_guests: set[str]) -> None:
    """Those of its free functions say nothing of a guest that it has."""
    assert traits_of_guests(frozenset(card)) == of_guests


@pytest.mark.parametrize(
    ("source", "here", "refused"),
    [
        ("550", "550", False),
        ("535", "550", False),
        ("550", "535", True),
        ("", "535", False),
        ("550", "", False),
    ],
)
def test_a_vgpu_goes_to_no_older_driver(source: str, here: str, refused: bool) -> None:
    def branch(number: str) -> frozenset[str]:
        return frozenset({f"CUSTOM_VGPU_DRIVER_NVIDIA_{number}"} if number else set()) | {A}

    host = ProviderIndex.of(
        ProviderTree([Provider(CARD, "card", None, {"VGPU": Inventory(4)}, branch(here))])
    )
    request = ClaimRequest(CONSUMER, (RequestGroup("", {"VGPU": 1}),))
    if not refused:
        check_source(request, {"VGPU": [branch(source)]}, host)
        return
    with pytest.raises(Refused, match="of the branch 550 at the source, and of the older branch 535 here"):
        check_source(request, {"VGPU": [branch(source)]}, host)
