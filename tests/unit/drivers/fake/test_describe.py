"""What the fake driver describes: the tree, and where inventory moved."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.driver import DescribedProvider, Guest, GuestState, HostSettings, MoveInstruction, UsedUnit
from drivers.fake import FakeHost, Gpu, Nic, cell, default_host
from drivers.fake.driver import describe_host

CARD = Gpu("0000:42:00.0", total=4)
GUEST = Guest(
    uuid="a0000000-0000-4000-8000-000000000001",
    name="one",
    state=GuestState.RUNNING,
    resources={"PCPU": 1, "MEMORY_MB": 512, "VGPU": 1},
    units=(UsedUnit("PCPU", "2", "host"), UsedUnit("VGPU", "u1", "pci:0000:42:00.0")),
)
HOST = FakeHost(
    (cell(0, frozenset({0, 1}), 1024), cell(1, frozenset({2, 3}), 1024)), gpus=(CARD,), guests=(GUEST,)
)
PINNED = HostSettings(cpu_shared_set=frozenset({0}), cpu_dedicated_set=frozenset({2}))
DEVICE = "n_pci_0000:42:00.0"


def moves(host: FakeHost, settings: HostSettings = PINNED) -> tuple[MoveInstruction, ...]:
    return describe_host(host, settings, "n").moves


def test_a_device_moves_from_the_root_with_the_guests_that_use_it() -> None:
    instruction = MoveInstruction("n", {"VGPU": 4}, DEVICE, {GUEST.uuid: {"VGPU": 1}})
    assert instruction in moves(HOST)


def test_a_flat_device_moves_back_to_the_root() -> None:
    assert MoveInstruction(DEVICE, {"VGPU": 4}, "n") in moves(replace(HOST, flat_devices=True))


def test_a_cell_takes_the_guests_that_are_pinned_to_it() -> None:
    amounts = {"PCPU": 1, "MEMORY_MB": 1024}
    consumers = {GUEST.uuid: {"PCPU": 1, "MEMORY_MB": 512}}
    instruction = MoveInstruction("n", amounts, "n_numa1", consumers)
    assert instruction in moves(replace(HOST, report_numa=True))


@pytest.mark.parametrize(
    ("settings", "instruction"),
    [
        (PINNED, MoveInstruction("n", {"VCPU": 1}, "n", {GUEST.uuid: {"VCPU": 1}}, {"VCPU": "PCPU"})),
        (HostSettings(), MoveInstruction("n", {"PCPU": 4}, "n", None, {"PCPU": "VCPU"})),
    ],
    ids=["dedicated", "shared"],
)
def test_cpus_change_their_class_with_the_cpu_sets(
    settings: HostSettings, instruction: MoveInstruction
) -> None:
    assert instruction in moves(HOST, settings)


def test_instructions_of_the_host_file_take_the_place_of_derived_ones() -> None:
    own = MoveInstruction("a", {"VGPU": 1}, "b")
    assert moves(replace(HOST, moves=(own,))) == (own,)


def test_the_flat_tree_has_devices_under_the_host() -> None:
    providers = describe_host(default_host(), HostSettings(reserved_host_cpus=2), "node1").providers
    assert [(each.name, each.parent, each.device) for each in providers] == [
        ("node1", None, "host"),
        *(
            (f"node1_numa{cell}_pages_{size}", "node1", f"pages:{cell}:{size}")
            for cell in range(2)
            for size in (2048, 1048576)
        ),
        ("node1_pci_0000:42:00.0", "node1", "pci:0000:42:00.0"),
        ("node1_pci_0000:83:00.0", "node1", "pci:0000:83:00.0"),
        ("node1_net_enp65s0f0", "node1", "pci:0000:41:00.0"),
        ("node1_net_enp129s0f0", "node1", "pci:0000:81:00.0"),
    ]
    root, small, large, _, _, vgpu, pgpu, nic, _ = providers
    assert {name: each.total for name, each in small.inventories.items()} == {
        "CUSTOM_HUGEPAGES_2048KIB": 4096
    }
    assert {name: each.total for name, each in large.inventories.items()} == {
        "CUSTOM_HUGEPAGES_1048576KIB": 8
    }
    assert {name: (each.total, each.reserved) for name, each in root.inventories.items()} == {
        "VCPU": (64, 2),
        "MEMORY_MB": (262144, 512),
        "DISK_GB": (1800, 0),
    }
    assert (vgpu.inventories["VGPU"].total, vgpu.units) == (16, {})
    assert pgpu.units == {"PGPU": ("0000:83:00.0",)}
    assert len(nic.units["SRIOV_NET_VF"]) == nic.inventories["SRIOV_NET_VF"].total == 8
    assert nic.traits == {"CUSTOM_PHYSNET_PHYSNET0"}


def test_report_numa_moves_everything_with_a_cell_under_it_and_loses_nothing() -> None:
    settings = HostSettings(cpu_shared_set=frozenset({0, 1, 16}), cpu_dedicated_set=frozenset({20, 4, 5}))
    flat = describe_host(default_host(), settings, "node1").providers
    nested = describe_host(replace(default_host(), report_numa=True), settings, "node1").providers

    def amounts(providers: tuple) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for provider in providers:
            for name, each in provider.inventories.items():
                total, reserved = found.get(name, (0, 0))
                found[name] = (total + each.total, reserved + each.reserved)
        return found

    assert amounts(flat) == amounts(nested)
    parents = {each.name: each.parent for each in nested}
    assert parents["node1_numa1"] == "node1"
    assert parents["node1_net_enp129s0f0"] == "node1_numa1"
    names = list(parents)
    assert all(parent is None or names.index(parent) < names.index(name) for name, parent in parents.items())
    units = {each.name: each.units for each in nested}
    assert units["node1_numa0"] == {"PCPU": ("4", "5")}
    assert units["node1_numa1"] == {"PCPU": ("20",)}
    assert set(nested[0].inventories) == {"DISK_GB"}


@st.composite
def hosts(draw: st.DrawFn) -> FakeHost:
    """Any host of up to four cells with devices on them, or on none."""
    sizes = draw(st.lists(st.integers(0, 6), min_size=1, max_size=4).filter(any))
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    cells = tuple(
        cell(index, frozenset(range(start, start + size)), draw(st.integers(0, 4096)))
        for index, (start, size) in enumerate(zip(starts, sizes, strict=True))
    )
    where = st.none() | st.integers(0, len(cells) - 1)
    gpus = tuple(
        Gpu(f"0000:{bus:02x}:00.0", total=draw(st.integers(0, 8)), numa=draw(where))
        for bus in range(draw(st.integers(0, 3)))
    )
    nics = tuple(
        Nic(
            f"eth{n}",
            f"0001:{n:02x}:00.0",
            tuple(f"0001:{n:02x}:01.{vf}" for vf in range(n)),
            numa=draw(where),
        )
        for n in range(draw(st.integers(0, 3)))
    )
    return FakeHost(cells, disk_gb=draw(st.integers(0, 10)), gpus=gpus, nics=nics)


@given(hosts(), st.integers(0, 8), st.integers(0, 5000))
def test_cells_in_the_tree_or_not_the_host_has_the_same(host: FakeHost, cpus: int, memory_mb: int) -> None:
    settings = HostSettings(reserved_host_cpus=cpus, reserved_host_memory_mb=memory_mb)
    flat = describe_host(host, settings, "n").providers
    nested = describe_host(replace(host, report_numa=True), settings, "n").providers

    def totals(providers: tuple[DescribedProvider, ...]) -> Counter[str]:
        found: Counter[str] = Counter()
        for provider in providers:
            found.update({name: each.total for name, each in provider.inventories.items()})
        return found

    assert totals(flat) == totals(nested)
    assert {each.device for each in flat} <= {each.device for each in nested}
    names = [each.name for each in nested]
    assert all(each.parent is None or names.index(each.parent) < index for index, each in enumerate(nested))
