"""A domain and what is asked for beside it become one request; where they do not agree, each line is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from kits.tracker import provider, uuid_of

from agent.claims.attribution import Place
from agent.claims.book import Book
from agent.claims.claim import Claim, ClaimState, Fit
from agent.claims.domain_demand import (
    GATE_USER,
    DomainDemand,
    DomainRequest,
    HostDevices,
    demand_of_domain,
    given_resources,
    request_for_domain,
    why_on_no_provider,
    with_allocated_disk,
    with_claimed_devices,
    with_disk,
)
from agent.claims.fit import ProviderIndex
from agent.claims.guest_cells import PlacedCell
from agent.claims.host_cells import HostCell, HostCells
from agent.claims.pci_alias import Alias, with_device_groups
from agent.claims.request import ClaimRequest, RequestGroup, TopologyRequest
from agent.driver import (
    DeviceKind,
    DomainNeeds,
    GivenCell,
    GivenDevice,
    Guest,
    GuestState,
    NeededCell,
    NeededDevice,
    UsedMemory,
    UsedUnit,
)
from agent.errors import UsageError
from agent.shapes import Units
from agent.tree import Inventory, Provider, ProviderTree

CONSUMER = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"
NEEDS = DomainNeeds(name="web", vcpus=4, memory_mb=4096)
ASKED = ClaimRequest(CONSUMER, ())
MDEV = "4b20d080-1b54-4048-85b3-a6a62d165c0{}".format
TREE = ProviderTree(
    [
        Provider("host", "host", inventories={"VCPU": Inventory(16), "MEMORY_MB": Inventory(65536)}),
        *(
            Provider(
                name,
                name,
                "host",
                {"SRIOV_NET_VF": Inventory(2)},
                traits=frozenset({f"CUSTOM_PHYSNET_{net}"}),
            )
            for name, net in (("nic0", "RED"), ("nic1", "BLUE"))
        ),
        Provider(
            "m60", "m60", "host", {"VGPU": Inventory(2)}, traits=frozenset({"CUSTOM_MDEV_TYPE_NVIDIA_11"})
        ),
        Provider("t4", "t4", "host", {"PGPU": Inventory(1)}),
    ]
)
UNITS = {
    "nic0": {"SRIOV_NET_VF": ("0000:41:10.0", "0000:41:10.2")},
    "nic1": {"SRIOV_NET_VF": ("0000:81:10.0", "0000:81:10.2")},
    "m60": {"VGPU": (MDEV(1), MDEV(2))},
    "t4": {"PGPU": ("0000:43:00.0",)},
}
DEVICES = HostDevices(ProviderIndex.of(TREE, "host"), UNITS, {"t4": Alias("t4", resource_class="PGPU")})


def port(alias: str = "", unit: str = "") -> NeededDevice:
    return NeededDevice(DeviceKind.INTERFACE, alias, unit, f"<interface> {alias}".strip())


def demand(*devices: NeededDevice, asked: ClaimRequest = ASKED, needs: DomainNeeds = NEEDS) -> DomainDemand:
    return demand_of_domain(replace(needs, devices=devices), asked, DEVICES)


def faults(*devices: NeededDevice, asked: ClaimRequest = ASKED, needs: DomainNeeds = NEEDS) -> list[str]:
    with pytest.raises(UsageError) as refused:
        demand(*devices, asked=asked, needs=needs)
    return list(refused.value.details["contradictions"])


def fit_of(found: DomainDemand) -> Fit:
    """A fit on an empty host."""
    book = Book()
    book.refresh(DEVICES.host, {}, UNITS)
    request = with_device_groups(found.request, DEVICES.aliases, TREE, UNITS)
    book.restrict(request.consumer, found.restriction)
    fit = book.fit(request)
    assert fit.fits, fit.shortfalls
    return fit


def given(found: DomainDemand) -> dict[str, str]:
    """{suffix: the unit that its group gets}, of a fit on an empty host."""
    fit = fit_of(found)
    return {suffix: unit for suffix, of in fit.group_units.items() for (unit,) in of.values()}


def groups(*suffixed: RequestGroup) -> ClaimRequest:
    return replace(ASKED, groups=(*suffixed,), group_policy="none")


def test_a_domain_alone_is_its_cpus_and_its_memory() -> None:
    assert demand().request.groups == (RequestGroup("", {"VCPU": 4, "MEMORY_MB": 4096}),)


def test_what_the_domain_leaves_out_is_asked_for_beside_it() -> None:
    asked = replace(ASKED, groups=(RequestGroup("", {"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 9}),))
    assert demand(asked=asked, needs=DomainNeeds()).request.resources == asked.resources
    assert demand(needs=DomainNeeds(memory_mb=64)).request.resources == {"VCPU": 1, "MEMORY_MB": 64}
    topology = TopologyRequest("dedicated", isolate_emulator=True)
    dedicated = replace(ASKED, groups=(RequestGroup("", {"PCPU": 5}),), topology=topology)
    found = demand(asked=dedicated, needs=DomainNeeds(memory_mb=64))
    assert found.request.resources == {"PCPU": 5, "MEMORY_MB": 64}


@pytest.mark.parametrize(
    ("dedicated", "policy", "cpus", "named"),
    [
        ({}, "mixed", {"VCPU": 4, "PCPU": 1}, 9),
        ({1: 5}, "mixed", {"VCPU": 3, "PCPU": 2}, 9),
        ({cpu: cpu + 4 for cpu in range(4)}, "dedicated", {"PCPU": 5}, 9),
        (dict.fromkeys(range(4)), "dedicated", {"PCPU": 5}, 9),  # the claim chooses the others
    ],
)
def test_the_emulators_own_cpu_is_one_more(
    dedicated: dict[int, int | None], policy: str, cpus: dict[str, int], named: int | None
) -> None:
    needs = replace(NEEDS, dedicated=dedicated, isolate_emulator=True, emulator=9)
    found = demand(needs=needs)
    topology = found.request.topology
    assert (topology.cpu_policy, topology.isolate_emulator) == (policy, True)
    assert found.request.resources == {**cpus, "MEMORY_MB": 4096}
    assert found.restriction.emulator == named
    asked = replace(ASKED, groups=(RequestGroup("", cpus),))
    assert demand(needs=needs, asked=asked) == found, "who asks for it beside the domain gets it once"
    assert demand(needs=needs.without_places()).request.resources["PCPU"] >= 1


def test_an_isolated_emulator_that_is_asked_for_is_none_of_the_domains_cpus() -> None:
    topology = TopologyRequest("dedicated", isolate_emulator=True)
    asked = replace(ASKED, groups=(RequestGroup("", {"PCPU": 5}),), topology=topology)
    assert demand(asked=asked).request.resources == {"PCPU": 5, "MEMORY_MB": 4096}
    few = replace(asked, groups=(RequestGroup("", {"PCPU": 4}),))
    assert faults(asked=few) == [
        "<vcpu> is 4, the emulator's threads need a CPU of their own, and 4 CPUs are asked for"
    ]


def test_a_port_by_the_name_of_its_group() -> None:
    asked = groups(RequestGroup("_RED", {"SRIOV_NET_VF": 1}, (frozenset({"CUSTOM_PHYSNET_BLUE"}),)))
    found = demand(port("red"), asked=asked)
    assert [group.suffix for group in found.request.groups] == ["", "_RED"]
    assert given(found) == {"_RED": "0000:81:10.0"}


def test_a_port_by_the_name_of_its_network() -> None:
    found = demand(port("blue"), port("red"), port("blue-2"))
    assert given(found) == {"red": "0000:41:10.0", "blue": "0000:81:10.0", "blue-2": "0000:81:10.2"}


def test_the_very_device_that_the_domain_names() -> None:
    found = demand(port("", "0000:81:10.2"), port("blue"), port("blue-2", "0000:81:10.0"))
    assert given(demand(port("", "0000:81:10.2"), port("red"))) == {
        "_1": "0000:81:10.2",
        "red": "0000:41:10.0",
    }
    assert found.request.resources["SRIOV_NET_VF"] == 3


def test_a_named_device_that_another_guest_has_is_not_replaced_by_another_one() -> None:
    found = demand(port("", "0000:81:10.2"))
    other = demand_of_domain(
        replace(NEEDS, devices=(port("", "0000:81:10.2"),)), replace(ASKED, consumer="other"), DEVICES
    )
    book = Book()
    book.refresh(DEVICES.host, {}, UNITS)
    book.restrict("other", other.restriction)
    first = book.fit(other.request)
    book.put(Claim("other", ClaimState.CLAIMED, other.request, first.allocations, first.units))
    book.restrict(CONSUMER, found.restriction)
    assert first.fits and not book.fit(found.request).fits
    book.restrict(CONSUMER, None)
    assert book.fit(found.request).fits


def test_a_whole_card_by_its_alias() -> None:
    card = NeededDevice(DeviceKind.PCI, "T4", "", "<hostdev> ua-T4")
    assert demand(card).request.pci == (("t4", 1),)
    asked = replace(ASKED, pci=(("t4", 1),))
    assert demand(card, asked=asked).request.pci == (("t4", 1),), "it is asked for once"
    assert given(demand(card)) == {"pci-0": "0000:43:00.0"}


def test_a_vgpu_by_its_type_and_without_a_name() -> None:
    by_type = demand(NeededDevice(DeviceKind.MEDIATED, "nvidia-11"))
    (group,) = (group for group in by_type.request.groups if group.suffix)
    assert group.required == (frozenset({"CUSTOM_MDEV_TYPE_NVIDIA_11"}),)
    assert given(demand(NeededDevice(DeviceKind.MEDIATED))) == {"_1": MDEV(1)}, "the host has one type"


def test_an_unnamed_device_takes_what_is_asked_for_without_a_name() -> None:
    asked = replace(ASKED, groups=(RequestGroup("", {"VGPU": 1}),))
    assert demand(NeededDevice(DeviceKind.MEDIATED), asked=asked).request.resources["VGPU"] == 1


def test_a_device_that_the_domain_names_is_the_one_of_its_class_that_is_asked_for_without_a_name() -> None:
    asked = replace(ASKED, groups=(RequestGroup("", {"VGPU": 1, "SRIOV_NET_VF": 1}),))
    vgpu = NeededDevice(DeviceKind.MEDIATED, unit=MDEV(2))
    found = demand(port("", "0000:81:10.2"), vgpu, asked=asked)
    assert found.request.resources == {"VCPU": 4, "MEMORY_MB": 4096, "VGPU": 1, "SRIOV_NET_VF": 1}
    assert fit_of(found).units == {
        "nic1": {"SRIOV_NET_VF": ("0000:81:10.2",)},
        "m60": {"VGPU": (MDEV(2),)},
    }


def test_what_is_asked_for_beyond_the_named_devices_may_be_any_other() -> None:
    asked = replace(ASKED, groups=(RequestGroup("", {"SRIOV_NET_VF": 2}),))
    units = fit_of(demand(port("", "0000:81:10.2"), asked=asked)).units
    assert sum(len(of["SRIOV_NET_VF"]) for of in units.values()) == 2
    assert "0000:81:10.2" in units.get("nic1", {}).get("SRIOV_NET_VF", ()), units


def test_what_is_asked_for_without_a_name_comes_from_one_provider() -> None:
    """So Placement gives it."""
    asked = replace(ASKED, groups=(RequestGroup("", {"SRIOV_NET_VF": 2}),))
    (fault,) = faults(port("", "0000:41:10.0"), port("", "0000:81:10.2"), asked=asked)
    assert "0000:81:10.2, which is not on the provider of the other devices" in fault


def test_a_mediated_device_is_no_function_of_the_network_that_its_alias_names() -> None:
    (fault,) = faults(NeededDevice(DeviceKind.MEDIATED, "red", text="<hostdev>"))
    assert fault.startswith("<hostdev> has no address, and 'red' does not say which device")


def test_a_port_is_not_put_on_any_network() -> None:
    (fault,) = faults(port())
    assert "blue, red" in fault
    (fault,) = faults(port("green"))
    assert fault.startswith("<interface> green has no address") and "blue, red" in fault


def test_the_same_domain_is_met_by_its_own_claim() -> None:
    first = demand(port("red"), NeededDevice(DeviceKind.MEDIATED))
    again = demand(port("red", "0000:41:10.0"), NeededDevice(DeviceKind.MEDIATED, "", MDEV(1)))
    assert again.is_met_by(first.request) and not demand(port("red")).is_met_by(first.request)


def test_cells_pins_and_pages() -> None:
    needs = replace(
        NEEDS,
        dedicated={0: 6, 1: 7},
        cells=(NeededCell(frozenset({0, 1}), 1024, 1, 2048), NeededCell(frozenset({2, 3}), 3072, None, 2048)),
    )
    found = demand(needs=needs)
    assert found.request.topology == TopologyRequest(
        "mixed",
        cells=2,
        cell_cpus=(frozenset({0, 1}), frozenset({2, 3})),
        cell_memory_mb=(1024, 3072),
        dedicated_cpus=frozenset({0, 1}),
        mem_page_size=2048,
    )
    assert found.request.resources == {"VCPU": 2, "PCPU": 2, "MEMORY_MB": 4096}
    assert (found.restriction.pins, found.restriction.cells) == ({0: 6, 1: 7}, {0: 1})


@pytest.mark.parametrize(
    ("needs", "asked", "said"),
    [
        (NEEDS, {"VCPU": 2}, "<vcpu> is 4, and 2 CPUs are asked for"),
        (NEEDS, {"MEMORY_MB": 1}, "<memory> is 4096 MiB, and 1 MiB are asked for"),
        (DomainNeeds(), {}, "<memory> is missing, and no memory is asked for"),
        (replace(NEEDS, dedicated={4: None}), {}, "<vcpupin> names CPU 4, and <vcpu> is 4"),
        (replace(NEEDS, dedicated={0: 1, 1: None}), {}, "<vcpupin>: some CPUs name a host CPU of their own"),
        (
            replace(NEEDS, cells=(NeededCell(frozenset(range(4)), 1024),)),
            {},
            "<memory> is 4096 MiB, and its cells have 1024 MiB",
        ),
        (
            replace(
                NEEDS,
                cells=(
                    NeededCell(frozenset({0, 1}), 2048, None, 2048),
                    NeededCell(frozenset({2, 3}), 2048, None, 1048576),
                ),
            ),
            {},
            "<hugepages> has another page size for each cell",
        ),
    ],
)
def test_what_does_not_agree_is_told(needs: DomainNeeds, asked: dict[str, int], said: str) -> None:
    request = replace(ASKED, groups=(RequestGroup("", asked),) if asked else ())
    assert [fault for fault in faults(needs=needs, asked=request) if said in fault]


TWO_CELLS = (NeededCell(frozenset({0, 1}), 1024, None, 2048), NeededCell(frozenset({2, 3}), 3072, None, 2048))
PINNED = dict.fromkeys(range(4))


@pytest.mark.parametrize(
    ("needs", "topology", "asked", "told"),
    [
        (
            {"cells": TWO_CELLS[:1], "memory_mb": 1024},
            {"cells": 2},
            {},
            "<numa> has 1 cell, and 2 are asked for",
        ),
        ({"cells": TWO_CELLS}, {"cells": 2}, {}, ""),
        (
            {"cells": TWO_CELLS},
            {"cells": 2, "cell_cpus": (frozenset({0}), frozenset({1, 2, 3}))},
            {},
            "<numa>: the cpus of the cells are not those that are asked for",
        ),
        (
            {"cells": TWO_CELLS},
            {"cells": 2, "cell_memory_mb": (2048, 2048)},
            {},
            "<numa>: the memory of the cells are not those that are asked for",
        ),
        ({"cells": TWO_CELLS}, {"cells": 2, "cell_memory_mb": (1024, 3072)}, {}, ""),
        (
            {"page_kib": 4},
            {"mem_page_size": 2048},
            {},
            "<page> has 4 KiB, and pages of 2048 KiB are asked for",
        ),
        ({"page_kib": 2048}, {"mem_page_size": 2048}, {}, ""),
        ({"page_kib": 2048}, {"mem_page_size": "large"}, {}, ""),
        (
            {"dedicated": {0: None}},
            {"cpu_policy": "mixed", "dedicated_cpus": frozenset({1})},
            {},
            "<vcpupin> pins the CPUs 0, which shall float",
        ),
        ({"dedicated": {1: None}}, {"cpu_policy": "mixed", "dedicated_cpus": frozenset({1, 2})}, {}, ""),
        ({"dedicated": {3: None}}, {"cpu_policy": "dedicated"}, {}, ""),
        (
            {"dedicated": {0: None, 1: None}},
            {},
            {"VCPU": 1, "PCPU": 3},
            "<vcpupin> pins 2 CPUs, and 3 PCPU are asked for",
        ),
        ({"dedicated": {0: None, 1: None}}, {}, {"VCPU": 2, "PCPU": 2}, ""),
        (
            {"amounts": {"CUSTOM_X": 2}},
            {},
            {"CUSTOM_X": 1},
            "the domain needs 2 CUSTOM_X, and 1 are asked for",
        ),
        ({"amounts": {"CUSTOM_X": 2}}, {}, {"CUSTOM_X": 2}, ""),
    ],
)
def test_a_topology_that_the_domain_contradicts_is_told(
    needs: dict[str, Any], topology: dict[str, Any], asked: dict[str, int], told: str
) -> None:
    wanted = replace(NEEDS, **needs)
    groups = (RequestGroup("", asked),) if asked else ()
    request = replace(ASKED, groups=groups, topology=TopologyRequest(**topology))
    if told:
        assert faults(needs=wanted, asked=request) == [told]
    else:
        found = demand(needs=wanted, asked=request).request.topology
        assert found.mem_page_size == (2048 if "cells" in needs else wanted.page_kib)
        assert found.cells == len(wanted.cells)


def test_a_domain_that_pins_each_cpu_is_dedicated_and_one_that_pins_some_is_mixed() -> None:
    assert demand(needs=replace(NEEDS, dedicated=PINNED)).request.topology == TopologyRequest("dedicated")
    mixed = demand(needs=replace(NEEDS, dedicated={2: None})).request.topology
    assert mixed == TopologyRequest("mixed", dedicated_cpus=frozenset({2}))


@pytest.mark.parametrize(
    ("group", "devices", "told"),
    [
        (
            {"SRIOV_NET_VF": 1},
            [port("p"), port("red", "0000:41:10.0"), port("red", "0000:41:10.0")],
            "another",
        ),
        ({"VGPU": 1}, [port("p")], "is asked for as VGPU, which is no interface device"),
        (
            {"SRIOV_NET_VF": 1},
            [port("p", MDEV(1))],
            f"is {MDEV(1)}, which no provider of this host has as SR",
        ),
        (
            {"SRIOV_NET_VF": 2},
            [port("p", "0000:41:10.0"), port("p-2", "0000:81:10.0")],
            "is 0000:81:10.0, which is not on the provider of the other devices of its group",
        ),
        ({"SRIOV_NET_VF": 2}, [port("p", "0000:41:10.0"), port("p-2", "0000:41:10.2")], ""),
    ],
)
def test_a_device_that_is_none_of_those_that_are_asked_for_is_told(
    group: dict[str, int], devices: list[NeededDevice], told: str
) -> None:
    asked = groups(RequestGroup("p", group))
    if told:
        (fault,) = faults(*devices, asked=asked)
        assert told in fault
    else:
        assert demand(*devices, asked=asked).request.groups[1:] == asked.groups


def test_every_fault_is_told_at_once() -> None:
    asked = replace(ASKED, groups=(RequestGroup("", {"VCPU": 2}),))
    told = faults(port("green"), port("red", "0000:99:00.0"), asked=asked)
    assert len(told) == 3 and "0000:99:00.0, which no provider of this host has" in told[2]


def test_vdpa_and_memory_are_asked_for_only_where_the_domain_names_them() -> None:
    """A plain <hostdev> without an address never gets a function over vDPA, nor a namespace of memory."""
    card = Provider("nic2", "nic2", "host", {"CUSTOM_VDPA": Inventory(1)})
    root = Provider(
        "host", "host", inventories={"VCPU": Inventory(16), "CUSTOM_PMEM_NAMESPACE_A": Inventory(1)}
    )
    units = {"nic2": {"CUSTOM_VDPA": ("0000:51:10.0",)}, "host": {"CUSTOM_PMEM_NAMESPACE_A": ("ns0",)}}
    devices = HostDevices(ProviderIndex.of(ProviderTree([root, card]), "host"), units, {})

    def asked(*needed: NeededDevice) -> list[dict[str, int]]:
        found = demand_of_domain(replace(NEEDS, devices=needed), ASKED, devices)
        return [dict(group.resources) for group in found.request.groups if group.suffix]

    for kind in (DeviceKind.PCI, DeviceKind.MEDIATED, DeviceKind.INTERFACE):
        with pytest.raises(UsageError, match="no such device"):
            asked(NeededDevice(kind, text="<hostdev>"))
    own = Provider(
        "n", "n", "host", {"CUSTOM_FAST": Inventory(1)}, traits=frozenset({"CUSTOM_PCI_TYPE_VDPA"})
    )
    of_operator = HostDevices(
        ProviderIndex.of(ProviderTree([root, own]), "host"), {"n": {"CUSTOM_FAST": ("0000:51:10.0",)}}, {}
    )
    with pytest.raises(UsageError, match="no such device"):
        needs = replace(NEEDS, devices=(NeededDevice(DeviceKind.PCI, text="<hostdev>"),))
        demand_of_domain(needs, ASKED, of_operator)
    assert asked(NeededDevice(DeviceKind.VDPA, text="<interface>")) == [{"CUSTOM_VDPA": 1}]
    assert asked(NeededDevice(DeviceKind.VDPA, unit="0000:51:10.0")) == [{"CUSTOM_VDPA": 1}]
    assert asked(NeededDevice(DeviceKind.MEMORY, unit="ns0")) == [{"CUSTOM_PMEM_NAMESPACE_A": 1}]
    with pytest.raises(UsageError, match="/dev/vhost-vdpa-7, which no provider of this host has"):
        asked(NeededDevice(DeviceKind.VDPA, unit="/dev/vhost-vdpa-7", text="<interface>"))


def test_a_move_asks_for_the_same_anywhere() -> None:
    needs = replace(
        NEEDS,
        dedicated={0: 99},
        pinned=frozenset({0}),
        host_cell=7,
        devices=(port("red", "0000:99:00.0"), port("blue", "0000:99:00.1")),
    ).without_places()
    found = demand_of_domain(needs, ASKED, DEVICES)
    assert found.restriction.units == {} and found.request.resources["SRIOV_NET_VF"] == 2


UUID = "6d3a1fb4-5d6c-4a61-b1f5-0f5a5b6a0b01"
CELLS_TREE = ProviderTree(
    [
        provider("host", VCPU=8, PCPU=4),
        provider("cell0", "host", MEMORY_MB=2048),
        provider("cell1", "host", MEMORY_MB=2048),
        provider("cell2", "host", MEMORY_MB=2048),
        provider("nic0", "cell1", SRIOV_NET_VF=2),
    ]
)
HOST = ProviderIndex.of(CELLS_TREE, uuid_of("host"))
DEVICE_PROVIDERS = {"nic0": uuid_of("nic0"), "host": uuid_of("host")}
CELLS = {0: uuid_of("cell0"), 1: uuid_of("cell1")}


def requested(
    guest: Guest,
    cells: Mapping[int, str] = CELLS,
    *,
    offered: Units | None = None,
    claim: Claim | None = None,
) -> DomainRequest:
    host_cells = HostCells(
        tuple(
            HostCell(number, uuid, (), frozenset(), frozenset(), 0, 0, 0, {})
            for number, uuid in cells.items()
        )
    )
    return request_for_domain(guest, Place(HOST, offered or {}, host_cells), DEVICE_PROVIDERS, claim)


def a_guest(
    *units: UsedUnit, memory: tuple[UsedMemory, ...] = (), problem: str | None = None, **resources: int
) -> Guest:
    return Guest(UUID, "vm", GuestState.RUNNING, resources, units, problem, memory=memory)


def groups_by_name(wanted: DomainRequest) -> dict[str, Mapping[str, int]]:
    """{name of the provider, "" for any: {class: amount}}"""
    names = {each.uuid: each.name for each in CELLS_TREE}
    return {
        " or ".join(sorted(names[uuid] for uuid in wanted.bound.get(group.suffix, ()))): group.resources
        for group in wanted.request.groups
    }


def test_an_encrypted_guest_asks_for_a_key_of_its_kind() -> None:
    kind = frozenset({"HW_CPU_X86_INTEL_TDX"})
    guest = replace(a_guest(VCPU=1, MEM_ENCRYPTION_CONTEXT=1), encryption=kind)
    assert [group.required for group in requested(guest).request.groups] == [(kind,)]
    unknown = replace(guest, resources={"VCPU": 1})  # the host does not count its keys
    assert [group.required for group in requested(unknown).request.groups] == [()]
    needs = replace(NEEDS, amounts={"MEM_ENCRYPTION_CONTEXT": 1}, encryption=kind)
    asked = RequestGroup("", {"VCPU": 4, "MEM_ENCRYPTION_CONTEXT": 1}, (kind,))
    for beside in (ASKED, replace(ASKED, groups=(asked,))):
        (group,) = demand_of_domain(needs, beside, HostDevices(ProviderIndex.of(TREE), {})).request.groups
        assert (group.required, group.resources["MEM_ENCRYPTION_CONTEXT"]) == ((kind,), 1)


def test_amounts_alone_may_come_from_any_provider() -> None:
    wanted = requested(a_guest(VCPU=2, MEMORY_MB=512, DISK_GB=0))
    assert groups_by_name(wanted) == {"": {"VCPU": 2, "MEMORY_MB": 512}}
    assert wanted.request.user_id == GATE_USER and wanted.request.group_policy is None


def test_each_named_unit_comes_from_its_own_provider() -> None:
    wanted = requested(
        a_guest(
            UsedUnit("SRIOV_NET_VF", "0000:41:02.1", "nic0"),
            UsedUnit("PCPU", "5", "host"),
            UsedUnit("PCPU", "6", "host"),
            VCPU=1,
            PCPU=3,
            SRIOV_NET_VF=1,
        )
    )
    assert groups_by_name(wanted) == {
        "": {"PCPU": 1, "VCPU": 1},
        "host": {"PCPU": 2},
        "nic0": {"SRIOV_NET_VF": 1},
    }
    assert wanted.named == {
        uuid_of("nic0"): {"SRIOV_NET_VF": ("0000:41:02.1",)},
        uuid_of("host"): {"PCPU": ("5", "6")},
    }
    assert wanted.request.group_policy == "none"


def test_a_unit_that_no_provider_has_is_unmanaged() -> None:
    lost = UsedUnit("VGPU", "mdev", "gpu9")
    other = UsedUnit("VGPU", "mdev", "nic0")
    wanted = requested(a_guest(lost, other, VCPU=1))
    assert wanted.unmanaged == (lost, other) and groups_by_name(wanted) == {"": {"VCPU": 1}}


def test_a_unit_is_where_the_host_offers_it_whatever_device_the_guest_names() -> None:
    offered: Units = {
        uuid_of("host"): {"PCPU": ("4", "5")},
        uuid_of("nic0"): {"SRIOV_NET_VF": ("0000:41:02.1",)},
    }
    units = UsedUnit("PCPU", "5", "numa:0"), UsedUnit("SRIOV_NET_VF", "0000:41:02.1", "pci:former")
    wanted = requested(a_guest(*units, VCPU=1, PCPU=1, SRIOV_NET_VF=1), offered=offered)
    assert wanted.named == {
        uuid_of("host"): {"PCPU": ("5",)},
        uuid_of("nic0"): {"SRIOV_NET_VF": ("0000:41:02.1",)},
    }
    assert not wanted.unmanaged and groups_by_name(wanted)[""] == {"VCPU": 1}


def test_a_unit_is_where_its_claim_has_it_while_the_host_offers_it_elsewhere() -> None:
    """A reshape to the cells waits: Placement has the CPUs on the root still."""
    offered = {uuid_of("cell0"): {"PCPU": ("4", "5")}}
    units = {uuid_of("host"): {"PCPU": ("5",)}}
    claim = Claim(UUID, ClaimState.CLAIMED, ClaimRequest(UUID, ()), {}, units)
    guest = a_guest(UsedUnit("PCPU", "5", "numa:0"), VCPU=1, PCPU=1)
    assert requested(guest, offered=offered, claim=claim).named == {uuid_of("host"): {"PCPU": ("5",)}}
    (astray,) = requested(guest, offered=offered).astray
    place = Place(HOST, offered)
    assert "is on cell0, which has no PCPU in Placement yet" in why_on_no_provider(astray, place)


def test_a_unit_that_a_claim_could_only_have_another_one_for_is_astray() -> None:
    cpu, gpu = UsedUnit("PCPU", "9", "host"), UsedUnit("VGPU", "mdev", "gpu9")
    offered = {uuid_of("host"): {"PCPU": ("4", "5")}}
    wanted = requested(a_guest(cpu, gpu, VCPU=1, PCPU=1), offered=offered)
    assert wanted.unmanaged == (cpu, gpu) and wanted.astray == (cpu,)
    assert why_on_no_provider(cpu, Place(HOST, offered)) == "is on no provider of this host"


def test_bound_memory_comes_from_its_cells_and_the_rest_from_any() -> None:
    """The audit sees it used on these cells, however much else is bound to none."""
    bound = (UsedMemory(0, 256, 4, 0), UsedMemory(1, 768, 4, 1))
    wanted = requested(a_guest(memory=bound, VCPU=1, MEMORY_MB=1024))
    assert wanted.memory == {uuid_of("cell0"): 256, uuid_of("cell1"): 768}
    assert groups_by_name(wanted) == {
        "": {"VCPU": 1},
        "cell0": {"MEMORY_MB": 256},
        "cell1": {"MEMORY_MB": 768},
    }
    for memory in (
        bound[:1],
        (*bound[:1], UsedMemory(None, 768, 4, 1)),
        (*bound[:1], UsedMemory(7, 768, 4, 1)),
    ):
        loose = requested(a_guest(memory=memory, VCPU=1, MEMORY_MB=1024))
        assert loose.memory == {uuid_of("cell0"): 256}
        assert groups_by_name(loose) == {"": {"VCPU": 1, "MEMORY_MB": 768}, "cell0": {"MEMORY_MB": 256}}


def test_memory_that_may_be_on_some_of_the_cells_comes_from_one_of_them() -> None:
    memory = (UsedMemory(0, 256), UsedMemory(1, 256), UsedMemory(1, 128, None, 0))
    guest = a_guest(memory=memory, VCPU=1, MEMORY_MB=1024)
    wanted = requested(guest, {**CELLS, 2: uuid_of("cell2")})
    assert wanted.memory == {uuid_of("cell1"): 128} and wanted.request.group_policy == "none"
    assert groups_by_name(wanted) == {
        "": {"VCPU": 1, "MEMORY_MB": 384},
        "cell1": {"MEMORY_MB": 128},
        "cell0 or cell1": {"MEMORY_MB": 512},
    }
    whole = replace(guest, resources={"MEMORY_MB": 640})
    assert groups_by_name(requested(whole, {**CELLS, 2: uuid_of("cell2")})) == {
        "cell1": {"MEMORY_MB": 128},
        "cell0 or cell1": {"MEMORY_MB": 512},
    }
    assert groups_by_name(requested(guest)) == {
        "": {"VCPU": 1, "MEMORY_MB": 896},
        "cell1": {"MEMORY_MB": 128},
    }


def test_disk_sizes_that_are_not_known_here_are_those_of_the_allocation() -> None:
    allocations = {uuid_of("pool"): {"DISK_GB": 20}, uuid_of("host"): {"VCPU": 2}}
    unread = a_guest(problem="its disks were not read", VCPU=2)
    assert with_allocated_disk(unread, allocations) == a_guest(VCPU=2, DISK_GB=20)
    assert with_allocated_disk(unread, {}) == unread
    read = a_guest(VCPU=2, DISK_GB=30)
    assert with_allocated_disk(read, allocations) == read


def test_a_request_gets_the_disk_of_its_guest_once() -> None:
    request = requested(a_guest(UsedUnit("PCPU", "5", "host"), VCPU=2, PCPU=1)).request
    grown = with_disk(request, a_guest(VCPU=2, DISK_GB=20))
    assert grown.resources == {"VCPU": 2, "PCPU": 1, "DISK_GB": 20}
    assert with_disk(grown, a_guest(VCPU=2, DISK_GB=30)) == grown
    assert with_disk(request, a_guest(VCPU=2)) == request


GIVEN_TREE = ProviderTree(
    [
        Provider("root", "root"),
        Provider("cell1", "cell1", "root"),
        Provider("card", "card", "cell1", {"SRIOV_NET_VF": Inventory(4)}),
        Provider("gpu", "gpu", "root", {"PGPU": Inventory(1)}),
    ]
)


def host_cell(number: int, shared: set[int]) -> HostCell:
    return HostCell(number, "root", (), frozenset(shared), frozenset(), 0, 0, 0, {})


GIVEN_CELLS = HostCells((host_cell(0, {0}), host_cell(1, {8, 9})), {"cell1": 1})


def test_devices_have_the_labels_of_their_groups_and_the_cell_of_their_card() -> None:
    request = ClaimRequest(
        CONSUMER,
        (
            RequestGroup("", {"VCPU": 2, "MEMORY_MB": 1024}),
            RequestGroup("_RED", {"SRIOV_NET_VF": 1}),
            RequestGroup("pci-0", {"PGPU": 1}),
        ),
        pci=(("a100", 1),),
        name="web1",
    )
    claim = Claim(
        CONSUMER,
        ClaimState.CLAIMED,
        request,
        {"root": {"VCPU": 2, "MEMORY_MB": 1024}, "card": {"SRIOV_NET_VF": 1}, "gpu": {"PGPU": 1}},
        {"card": {"SRIOV_NET_VF": ("0000:41:10.0",)}, "gpu": {"PGPU": ("0000:83:00.0",)}},
    )
    given = given_resources(claim, GIVEN_TREE, GIVEN_CELLS)
    assert (given.uuid, given.name, given.vcpus, given.memory_mb) == (CONSUMER, "web1", 2, 1024)
    assert given.devices == (
        GivenDevice("_RED", "SRIOV_NET_VF", "0000:41:10.0", 1),
        GivenDevice("a100", "PGPU", "0000:83:00.0", None),
    )
    assert given.cells == () and given.pinned == {}


def test_cells_have_their_pins_their_shared_cpus_and_their_page_size() -> None:
    request = ClaimRequest(CONSUMER, (RequestGroup("", {"PCPU": 2, "VCPU": 1, "MEMORY_MB": 3072}),))
    placed = (
        PlacedCell(0, 0, {0: 4, 1: 5}, frozenset(), 2048, 2048, emulator=frozenset({6})),
        PlacedCell(1, 1, {}, frozenset(), 4, 1024, frozenset({2})),
    )
    claim = Claim(CONSUMER, ClaimState.CLAIMED, request, {}, {"root": {"PCPU": ("4", "5")}}, cells=placed)
    given = given_resources(claim, GIVEN_TREE, GIVEN_CELLS)
    assert given.cells == (
        GivenCell(0, 0, 2048, {0: 4, 1: 5}, frozenset(), frozenset({0}), 2048, frozenset({6})),
        GivenCell(1, 1, 1024, {}, frozenset({2}), frozenset({8, 9}), None),
    )
    assert (given.vcpus, given.devices, given.pinned) == (3, (), {})


def test_dedicated_cpus_without_cells_are_pinned_one_to_one() -> None:
    request = ClaimRequest(CONSUMER, (RequestGroup("", {"PCPU": 2, "MEMORY_MB": 512}),))
    units = {"root": {"PCPU": ("7", "11")}}
    claim = Claim(CONSUMER, ClaimState.CLAIMED, request, {"root": {"PCPU": 2, "MEMORY_MB": 512}}, units)
    assert given_resources(claim, GIVEN_TREE, GIVEN_CELLS).pinned == {0: 7, 1: 11}


def test_a_group_policy_that_is_asked_for_stays() -> None:
    asked = replace(groups(RequestGroup("_RED", {"SRIOV_NET_VF": 1})), group_policy="isolate")
    assert demand(asked=asked).request.group_policy == "isolate"
    assert demand(port("red")).request.group_policy is None
    assert demand(port("red"), port("blue")).request.group_policy == "none"


def test_dedicated_cpus_that_are_asked_for_beside_an_isolated_emulator_stay_dedicated() -> None:
    asked = replace(ASKED, groups=(RequestGroup("", {"PCPU": 5}),))
    found = demand(asked=asked, needs=replace(NEEDS, isolate_emulator=True)).request
    assert found.resources == {"PCPU": 5, "MEMORY_MB": 4096} and found.topology.isolate_emulator


def test_a_device_that_no_provider_has_is_told_by_its_address() -> None:
    assert faults(port("", "0000:99:00.0")) == [
        "<interface> is 0000:99:00.0, which no provider of this host has"
    ]


def test_a_namespace_of_memory_is_found_by_the_name_of_its_class() -> None:
    name = "CUSTOM_PMEM_NAMESPACE_A"
    root = Provider("host", "host", inventories={"VCPU": Inventory(16), name: Inventory(1)})
    devices = HostDevices(ProviderIndex.of(ProviderTree([root]), "host"), {"host": {name: ("ns0",)}}, {})
    needs = replace(NEEDS, devices=(NeededDevice(DeviceKind.MEMORY, "pmem-namespace-a"),))
    found = demand_of_domain(needs, ASKED, devices).request
    assert found.resources == {"VCPU": 4, "MEMORY_MB": 4096, name: 1}


@pytest.mark.parametrize(
    "memory",
    [(UsedMemory(0, 256),), (UsedMemory(0, 256), UsedMemory(1, 256)), (UsedMemory(None, 256, 2048),)],
)
def test_memory_that_is_bound_to_no_several_cells_or_is_more_than_the_guest_has_is_on_any(
    memory: tuple[UsedMemory, ...],
) -> None:
    wanted = requested(a_guest(memory=memory, VCPU=1, MEMORY_MB=300), {**CELLS, 2: uuid_of("cell2")})
    assert groups_by_name(wanted) == {"": {"VCPU": 1, "MEMORY_MB": 300}}


def test_a_mediated_device_that_was_just_made_for_the_claim_is_on_the_card_of_the_claim() -> None:
    units = {"card": {"VGPU": (MDEV(1), MDEV(2))}, "unknown": {"VGPU": (MDEV(3),)}}
    claim = Claim(CONSUMER, ClaimState.CLAIMED, ASKED, {}, units)
    unseen = [UsedUnit("", MDEV(number), f"mdev:{MDEV(number)}") for number in (1, 2, 3, 4)]
    seen = UsedUnit("VGPU", MDEV(1), "pci:other")
    found = with_claimed_devices(a_guest(*unseen, seen, VCPU=1, VGPU=1), claim, {"card": "pci:card"})
    assert found.resources == {"VCPU": 1, "VGPU": 3}
    located = [UsedUnit("VGPU", MDEV(number), "pci:card") for number in (1, 2)]
    assert found.units == (*located, *unseen[2:], seen)


CELLS_OF_TWO = HostCells(
    tuple(
        HostCell(
            number,
            f"cell{number}",
            (),
            frozenset({10 * number}),
            frozenset(range(10 * number + 1, 10 * number + 9)),
            9,
            65536,
            65536,
            {},
        )
        for number in range(2)
    )
)
OF_TWO = HostDevices(
    ProviderIndex.of(
        ProviderTree(
            [
                Provider("host", "host"),
                *(
                    Provider(
                        f"cell{n}",
                        f"cell{n}",
                        "host",
                        {"VCPU": Inventory(9), "PCPU": Inventory(8), "MEMORY_MB": Inventory(65536)},
                    )
                    for n in range(2)
                ),
            ]
        ),
        "host",
    ),
    {f"cell{n}": {"PCPU": tuple(str(cpu) for cpu in range(10 * n + 1, 10 * n + 9))} for n in range(2)},
    cells=CELLS_OF_TWO,
)
PINNED_TO_TWO = DomainNeeds(
    name="web",
    vcpus=4,
    memory_mb=4096,
    dedicated={0: 1, 1: 2, 2: 11, 3: 12},
    vcpu_ids=frozenset(range(4)),
    cells=(NeededCell(frozenset({0, 1}), 2048, 0), NeededCell(frozenset({2, 3}), 2048, 1)),
    isolate_emulator=True,
    emulator=3,
)


@pytest.mark.parametrize(
    ("change", "with_cells"),
    [
        ({}, True),
        ({"cells": tuple(replace(cell, host_cell=None) for cell in PINNED_TO_TWO.cells)}, True),
        ({"dedicated": {0: 1, 1: 2}, "floating": {2: frozenset({10}), 3: frozenset({10})}}, True),
        (
            {
                "cells": tuple(replace(cell, host_cell=None) for cell in PINNED_TO_TWO.cells),
                "dedicated": {2: 11, 3: 12},
                "floating": {0: frozenset({0}), 1: frozenset({0})},
            },
            True,
        ),
        (
            {
                "vcpu_ids": frozenset({0, 1, 2, 4}),
                "dedicated": {0: 1, 1: 2, 2: 11, 4: 12},
                "cells": (
                    PINNED_TO_TWO.cells[0],
                    replace(PINNED_TO_TWO.cells[1], cpus=frozenset({2, 4})),
                ),
            },
            False,
        ),
        ({"dedicated": {0: 1, 1: 1, 2: 11, 3: 12}}, False),
        ({"dedicated": {0: 1, 1: 13, 2: 11, 3: 12}}, False),
        ({"dedicated": {0: 1, 1: 2, 2: 4, 3: 5}}, False),
        ({"emulator": 13}, False),
        (
            {
                "cells": tuple(replace(cell, host_cell=None) for cell in PINNED_TO_TWO.cells),
                "dedicated": {0: 1, 1: 2, 2: 4, 3: 5},
            },
            False,
        ),
        (
            {
                "cells": tuple(replace(cell, host_cell=None) for cell in PINNED_TO_TWO.cells),
                "dedicated": {2: 11, 3: 12},
                "floating": {0: frozenset({0}), 1: frozenset({0})},
                "emulator": None,
                "isolate_emulator": False,
            },
            False,
        ),
        ({"cells": (PINNED_TO_TWO.cells[0], replace(PINNED_TO_TWO.cells[1], host_cell=0))}, False),
        ({"cells": (replace(PINNED_TO_TWO.cells[0], host_cell=1), PINNED_TO_TWO.cells[1])}, False),
        ({"dedicated": {0: 1, 1: 2}, "floating": {2: frozenset({10}), 3: frozenset({0})}}, False),
        ({"dedicated": {0: 1, 1: 2}, "floating": {2: frozenset({10, 13})}}, False),
        ({"scattered": True}, False),
        ({"cells": (PINNED_TO_TWO.cells[0], replace(PINNED_TO_TWO.cells[1], page_kib=2048))}, False),
        (
            {
                "cells": (
                    NeededCell(frozenset(range(4)), 2048, 0),
                    NeededCell(frozenset(), 2048, 1),
                ),
                "dedicated": {0: 1, 1: 2, 2: 4, 3: 5},
            },
            False,
        ),
    ],
    ids=[
        "as a claim has it",
        "cells by their CPUs",
        "shared CPUs of its cell",
        "the first cell by the emulator's CPU",
        "a gap in the CPUs",
        "two CPUs on one",
        "CPUs of a cell on two",
        "two cells on one by their CPUs",
        "the emulator on another cell than the first",
        "two cells on one by their CPUs alone",
        "shared CPUs of one cell, where any may be chosen",
        "two cells on one",
        "a cell apart from its CPUs",
        "shared CPUs of another cell",
        "other CPUs than the shared ones",
        "scattered",
        "two page sizes",
        "a cell without CPUs",
    ],
)
def test_a_domain_whose_places_no_claim_with_cells_has_is_claimed_as_it_is(
    change: dict[str, Any], with_cells: bool
) -> None:
    needs = replace(PINNED_TO_TWO, **change)
    memory = tuple(
        UsedMemory(cell.host_cell, cell.memory_mb, cell.page_kib, number)
        for number, cell in enumerate(needs.cells)
        if cell.host_cell is not None
    )
    found = demand_of_domain(replace(needs, memory=memory), ASKED, OF_TWO)
    assert (found.request.topology.cells == 2) is with_cells
    assert (found.request.topology == TopologyRequest()) is not with_cells
    cpus = {*needs.dedicated.values(), needs.emulator} - {None}
    named = [unit for classes in found.restriction.units.values() for unit in classes.get("PCPU", ())]
    assert sorted(map(int, named)) == sorted(cpu for cpu in cpus if cpu is not None)
    assert found.request.resources["PCPU"] == len(needs.dedicated) + 1 if with_cells else len(cpus)
    assert found.request.resources["MEMORY_MB"] == 4096
    if with_cells:
        assert found.restriction.cells == {0: 0, 1: 1}


@pytest.mark.parametrize("dedicated", [{}, {0: 1}, {0: 1, 1: 2, 2: 11, 3: 12}])
def test_a_cpu_of_the_emulator_that_is_to_be_chosen_leaves_the_others_open(dedicated: dict[int, int]) -> None:
    """A guest that names the emulator's CPU and not all of its own gets any others."""
    needs = replace(NEEDS, dedicated=dedicated, isolate_emulator=True, emulator=3)
    asked = replace(ASKED, groups=(RequestGroup("", {"PCPU": 5}),))
    found = demand_of_domain(needs, ASKED if dedicated else asked, OF_TWO)
    named = {unit for classes in found.restriction.units.values() for unit in classes.get("PCPU", ())}
    assert named == ({str(cpu) for cpu in (*dedicated.values(), 3)} if dedicated else set())
    assert found.restriction.cells == {}


def test_cpus_are_no_devices_and_each_alias_has_its_number() -> None:
    needs = replace(NEEDS, devices=(NeededDevice(DeviceKind.MEDIATED, text="<hostdev>"),))
    with pytest.raises(UsageError, match="no such device"):
        demand_of_domain(needs, ASKED, OF_TWO)
    asked = replace(ASKED, pci=(("first", 2), ("second", 1)))
    found = demand(NeededDevice(DeviceKind.PCI, "second", "0000:43:00.0"), asked=asked)
    assert found.restriction.dealt == {"pci-2": {"PGPU": ("0000:43:00.0",)}}
