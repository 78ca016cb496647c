"""The request for a domain: where its devices and its memory must come from."""

from __future__ import annotations

from collections.abc import Mapping

from kits.tracker import provider, uuid_of

from agent.claims.domain_demand import (
    GATE_USER,
    DomainRequest,
    request_for_domain,
    with_allocated_disk,
    with_disk,
)
from agent.claims.fit import ProviderIndex
from agent.driver import Guest, GuestState, UsedMemory, UsedUnit
from agent.tree import ProviderTree

UUID = "6d3a1fb4-5d6c-4a61-b1f5-0f5a5b6a0b01"
TREE = ProviderTree(
    [
        provider("host", VCPU=8, PCPU=4),
        provider("cell0", "host", MEMORY_MB=2048),
        provider("cell1", "host", MEMORY_MB=2048),
        provider("cell2", "host", MEMORY_MB=2048),
        provider("nic0", "cell1", SRIOV_NET_VF=2),
    ]
)
HOST = ProviderIndex.of(TREE, uuid_of("host"))
DEVICES = {"nic0": uuid_of("nic0"), "host": uuid_of("host")}
CELLS = {0: uuid_of("cell0"), 1: uuid_of("cell1")}


def requested(guest: Guest, cells: Mapping[int, str] = CELLS) -> DomainRequest:
    return request_for_domain(guest, HOST, DEVICES, cells)


def a_guest(
    *units: UsedUnit, memory: tuple[UsedMemory, ...] = (), problem: str | None = None, **resources: int
) -> Guest:
    return Guest(UUID, "vm", GuestState.RUNNING, resources, units, problem, memory=memory)


def groups(wanted: DomainRequest) -> dict[str, Mapping[str, int]]:
    """{name of the provider, "" for any: {class: amount}}"""
    names = {each.uuid: each.name for each in TREE}
    return {
        " or ".join(sorted(names[uuid] for uuid in wanted.bound.get(group.suffix, ()))): group.resources
        for group in wanted.request.groups
    }


def test_amounts_alone_may_come_from_any_provider() -> None:
    wanted = requested(a_guest(VCPU=2, MEMORY_MB=512, DISK_GB=0))
    assert groups(wanted) == {"": {"VCPU": 2, "MEMORY_MB": 512}}
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
    assert groups(wanted) == {"": {"PCPU": 1, "VCPU": 1}, "host": {"PCPU": 2}, "nic0": {"SRIOV_NET_VF": 1}}
    assert wanted.named == {
        uuid_of("nic0"): {"SRIOV_NET_VF": ("0000:41:02.1",)},
        uuid_of("host"): {"PCPU": ("5", "6")},
    }
    assert wanted.request.group_policy == "none"


def test_a_unit_that_no_provider_has_is_unmanaged() -> None:
    lost = UsedUnit("VGPU", "mdev", "gpu9")
    other = UsedUnit("VGPU", "mdev", "nic0")
    wanted = requested(a_guest(lost, other, VCPU=1))
    assert wanted.unmanaged == (lost, other) and groups(wanted) == {"": {"VCPU": 1}}


def test_bound_memory_comes_from_its_cells_and_the_rest_from_any() -> None:
    """The audit sees it used on these cells, however much else is bound to none."""
    bound = (UsedMemory(0, 256, 4, 0), UsedMemory(1, 768, 4, 1))
    wanted = requested(a_guest(memory=bound, VCPU=1, MEMORY_MB=1024))
    assert wanted.memory == {uuid_of("cell0"): 256, uuid_of("cell1"): 768}
    assert groups(wanted) == {"": {"VCPU": 1}, "cell0": {"MEMORY_MB": 256}, "cell1": {"MEMORY_MB": 768}}
    for memory in (
        bound[:1],
        (*bound[:1], UsedMemory(None, 768, 4, 1)),
        (*bound[:1], UsedMemory(7, 768, 4, 1)),
    ):
        loose = requested(a_guest(memory=memory, VCPU=1, MEMORY_MB=1024))
        assert loose.memory == {uuid_of("cell0"): 256}
        assert groups(loose) == {"": {"VCPU": 1, "MEMORY_MB": 768}, "cell0": {"MEMORY_MB": 256}}


def test_memory_that_may_be_on_some_of_the_cells_comes_from_one_of_them() -> None:
    memory = (UsedMemory(0, 256), UsedMemory(1, 256), UsedMemory(1, 128, None, 0))
    guest = a_guest(memory=memory, VCPU=1, MEMORY_MB=1024)
    wanted = requested(guest, {**CELLS, 2: uuid_of("cell2")})
    assert wanted.memory == {uuid_of("cell1"): 128} and wanted.request.group_policy == "none"
    assert groups(wanted) == {
        "": {"VCPU": 1, "MEMORY_MB": 384},
        "cell1": {"MEMORY_MB": 128},
        "cell0 or cell1": {"MEMORY_MB": 512},
    }
    assert groups(requested(guest)) == {"": {"VCPU": 1, "MEMORY_MB": 896}, "cell1": {"MEMORY_MB": 128}}


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
