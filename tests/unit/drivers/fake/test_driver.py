import threading
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.driver import (
    DescribedProvider,
    DriverSettings,
    Guest,
    GuestState,
    HostSettings,
    MoveInstruction,
    UsedUnit,
)
from agent.errors import DriverDataError, DriverUnavailable, SettingsError
from drivers.fake.driver import FakeDriver, default_host, describe_host
from drivers.fake.host import FakeHost, Gpu, Nic, cell

FILE = "cells: [{{id: 0, cpus: 0-3, memory_mb: {memory_mb}}}]\n"


def guest(number: int) -> Guest:
    return Guest(
        uuid=f"a0000000-0000-4000-8000-{number:012}",
        name=f"guest-{number}",
        state=GuestState.RUNNING,
        resources={"VCPU": 1, "MEMORY_MB": 512},
    )


def test_an_impossible_cpu_set_is_named() -> None:
    driver = FakeDriver(settings=DriverSettings("n", HostSettings(cpu_dedicated_set=frozenset({99}))))
    assert "PCPU" not in driver.describe().providers[0].inventories
    (sentence,) = driver.unmatched_options()
    assert "names CPU 99" in sentence
    with pytest.raises(SettingsError, match="both name CPU 1"):
        FakeDriver.create(
            DriverSettings("n", HostSettings(cpu_shared_set=frozenset({1}), cpu_dedicated_set=frozenset({1})))
        )


def test_an_unchanged_host_is_the_very_same_object_and_takes_no_time() -> None:
    gpus = tuple(Gpu(f"0000:{bus:02x}:00.0", total=4) for bus in range(128))
    nics = tuple(
        Nic(f"eth{bus}", f"0001:{bus:02x}:00.0", tuple(f"0001:{bus:02x}:01.{vf}" for vf in range(8)))
        for bus in range(127)
    )
    driver = FakeDriver(
        FakeHost(
            default_host().cells, gpus=gpus, nics=nics, guests=tuple(guest(number) for number in range(500))
        )
    )
    description, guests = driver.describe(), driver.guests()
    assert (len(description.providers), len(guests)) == (260, 500)
    assert driver.describe() is description
    assert driver.guests() is guests
    driver.add_guest(guest(501))
    assert driver.describe() is not None
    assert driver.describe() is description
    driver.change(gpus=tuple(reversed(tuple(reversed(gpus)))))
    assert driver.describe() is description


def test_guests_come_and_go_in_the_order_of_their_uuids() -> None:
    driver = FakeDriver()
    driver.add_guest(guest(2))
    driver.add_guest(guest(1))
    driver.add_guest(replace(guest(2), name="renamed"))
    assert [each.name for each in driver.guests()] == ["guest-1", "renamed"]
    driver.remove_guest(guest(1).uuid)
    assert [each.name for each in driver.guests()] == ["renamed"]
    with pytest.raises(KeyError):
        driver.remove_guest(guest(1).uuid)


def test_faults_come_as_often_as_told_and_then_stop() -> None:
    driver = FakeDriver()
    driver.fail(2)
    driver.fail(error=DriverDataError("nonsense"))
    with pytest.raises(DriverUnavailable):
        driver.describe()
    with pytest.raises(DriverUnavailable):
        driver.guests()
    with pytest.raises(DriverDataError, match="nonsense"):
        driver.topology()
    assert len(driver.topology().cells) == 2


def test_a_delay_ends_with_close() -> None:
    driver = FakeDriver()
    driver.delay(0.05)
    started = time.monotonic()
    driver.describe()
    assert time.monotonic() - started >= 0.05
    driver.delay(60)
    threading.Timer(0.05, driver.close).start()
    with pytest.raises(DriverUnavailable, match="closed"):
        driver.guests()
    assert time.monotonic() - started < 10
    driver.close()


def test_watchers_hear_of_every_scripted_change() -> None:
    driver = FakeDriver()
    heard: list[str] = []
    driver.watch(heard.append)
    driver.change(disk_gb=10)
    driver.add_guest(guest(1))
    driver.fire("because")
    assert heard == ["the fake host's disk_gb changed", "the fake host's guests changed", "because"]


def from_file(path: Path) -> FakeDriver:
    return FakeDriver.create(DriverSettings(host="node1", options={"fake": {"host_file": str(path)}}))


def test_a_changed_file_changes_the_host_and_wakes_the_watchers(tmp_path: Path) -> None:
    path = tmp_path / "host.yaml"
    path.write_text(FILE.format(memory_mb=4096))
    driver = from_file(path)
    heard = threading.Event()
    driver.watch(lambda why: heard.set())
    with closing(driver):
        assert driver.describe().providers[0].inventories["MEMORY_MB"].total == 4096
        path.write_text(FILE.format(memory_mb=16384))
        assert driver.describe().providers[0].inventories["MEMORY_MB"].total == 16384
        assert heard.wait(10)


def test_a_file_can_make_the_hypervisor_go_away_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "host.yaml"
    path.write_text(FILE.format(memory_mb=4096) + "unavailable: it is being serviced\n")
    driver = from_file(path)
    with pytest.raises(DriverUnavailable, match="it is being serviced"):
        driver.describe()
    path.write_text(FILE.format(memory_mb=4096))
    description = driver.describe()
    path.write_text("cells: 3")
    for _ in range(2):
        with pytest.raises(DriverDataError, match="cells"):
            driver.describe()
    path.unlink()
    with pytest.raises(DriverUnavailable, match=r"cannot read the host file .*: No such file"):
        driver.describe()
    path.write_text(FILE.format(memory_mb=4096))
    assert driver.describe() is description


def test_a_bad_file_at_start_is_a_settings_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        from_file(tmp_path / "missing.yaml")
    (tmp_path / "bad.yaml").write_text("cells: 3")
    with pytest.raises(SettingsError, match=r"\[fake\] host_file: .*bad.yaml: cells: 3 is not"):
        from_file(tmp_path / "bad.yaml")


def test_without_options_the_built_in_host_is_there() -> None:
    driver = FakeDriver.create(DriverSettings(host="node1"))
    assert driver.describe().providers[0].name == "node1"
    assert driver.host.cells == (cell(0, *_first(0)), cell(1, *_first(1)))
    driver.close()


def _first(index: int) -> tuple[frozenset[int], int, int, dict[int, int]]:
    each = default_host().cells[index]
    return each.cpus, each.memory_mb, 2, dict(each.pages)


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


def test_report_numa_moves_everything_with_a_cell_under_it() -> None:
    settings = HostSettings(cpu_shared_set=frozenset({0, 1, 16}), cpu_dedicated_set=frozenset({20, 4, 5}))
    nested = describe_host(replace(default_host(), report_numa=True), settings, "node1").providers
    parents = {each.name: each.parent for each in nested}
    assert parents["node1_numa1"] == "node1"
    assert parents["node1_net_enp129s0f0"] == "node1_numa1"
    reserved = [each.inventories["MEMORY_MB"].reserved for each in nested if each.name[:-1] == "node1_numa"]
    assert reserved == [256, 256]
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
