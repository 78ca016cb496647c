"""What the kernel shows, from directories that look like those of hosts, also where it shows little."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from kits.pci_tree import PciTree, recorded_tree

from agent.driver import (
    DescribedInventory,
    DescribedProvider,
    DeviceSigns,
    GroupMember,
    HostDevice,
    RootSight,
)
from agent.errors import DriverDataError, UsageError
from drivers.host.sysfs import (
    CHECKS,
    MemoryCell,
    PmemNamespace,
    Sysfs,
    boot_id,
    default_huge_page_kib,
    device_addresses,
    parse_address,
    read_cells,
    read_namespaces,
    read_signs,
)


def test_sysfs_is_read_inside_its_folder(tmp_path: Path) -> None:
    device = tmp_path / "bus" / "pci" / "devices" / "0000:42:00.0"
    types = device / "mdev_supported_types"
    for name, text in (("nvidia-11", "num_heads=2, max_instance=16"), ("nvidia-12", "no such word")):
        (types / name).mkdir(parents=True)
        (types / name / "description").write_text(text)
    (device / "11111111-1111-4111-8111-111111111111").mkdir()
    (device / "nvidia").mkdir()
    (device / "nvidia" / "current_vgpu_type").write_text("471\n")
    sysfs = Sysfs(tmp_path, tmp_path)
    assert sysfs.mdev_limits("0000:42:00.0", ["nvidia-11", "nvidia-12", "nvidia-13"]) == {"nvidia-11": 16}
    assert (sysfs.mdev_count("0000:42:00.0"), sysfs.mdev_count("0000:43:00.0")) == (1, None)
    assert (sysfs.vgpu_type("0000:42:00.0"), sysfs.vgpu_type("0000:43:00.0")) == ("471", None)
    assert sysfs.vgpu_place("0000:42:00.0") is None
    for none in ("-1", "Not Applicable"):  # the second is what other readers of the file met
        (device / "nvidia" / "placement_id").write_text(f"{none}\n")
        assert sysfs.vgpu_place("0000:42:00.0") is None, "the card is not in mixed-size mode"
    (device / "nvidia" / "placement_id").write_text("20\n")
    assert sysfs.vgpu_place("0000:42:00.0") == 20
    assert sysfs.vgpu_names("0000:42:00.0") == {}
    (device / "nvidia" / "creatable_vgpu_types").write_text(
        "ID    : vGPU Name\n468   : NVIDIA A100-4C\n471   : NVIDIA A100-10C\n"
    )
    assert sysfs.vgpu_names("0000:42:00.0") == {"468": "NVIDIA A100-4C", "471": "NVIDIA A100-10C"}
    # As in a guide to vGPUs of H200: without a line above, and with parts of a MIG slice.
    (device / "nvidia" / "creatable_vgpu_types").write_text(
        "1428 : NVIDIA H200X-141C\n1414 : NVIDIA H200X-1-18C\n"
    )
    assert sysfs.vgpu_names("0000:42:00.0") == {"1428": "NVIDIA H200X-141C", "1414": "NVIDIA H200X-1-18C"}
    for name in ("..", "a/../..", "", "nvidia-11/", "."):
        with pytest.raises(DriverDataError, match="is not a name in sysfs"):
            sysfs.mdev_limits("0000:42:00.0", [name])


def test_the_kernel_says_how_large_a_page_is_of_which_a_domain_says_nothing(tmp_path: Path) -> None:
    told = tmp_path / "meminfo"
    told.write_text("HugePages_Free:        0\nHugepagesize:    1048576 kB\nHugetlb: 0 kB\n")
    assert default_huge_page_kib(told) == 1048576
    assert default_huge_page_kib(tmp_path / "none") == 2048


def test_the_boot_s_id(tmp_path: Path) -> None:
    assert boot_id(tmp_path / "none") == ""
    (tmp_path / "id").write_text("abc\n")
    assert boot_id(tmp_path / "id") == "abc"


def test_a_cpu_is_on_the_cell_that_its_link_names(tmp_path: Path) -> None:
    """As on a host whose CPU 1 is offline; CPU 2 has no cell, and CPU 9 is not there."""
    cpus = tmp_path / "devices" / "system" / "cpu"
    for cpu, links in ((0, ["node0", "topology"]), (1, ["node1", "node_x"]), (2, ["topology"])):
        for link in links:
            (cpus / f"cpu{cpu}" / link).mkdir(parents=True)
    assert read_cells(tmp_path, (0, 1, 2, 9)) == {0: 0, 1: 1, 2: None, 9: None}


def write(sysfs: Path, **files: str) -> None:
    for name, text in files.items():
        path = sysfs / "bus/nd/devices" / name.replace("__", "/").replace("_o_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


@pytest.mark.parametrize("below", ["dax1_o_1__dax1_o_0__dev", "dax1_o_1__dax__dax1_o_0__dev"])
def test_a_namespace_has_the_size_and_the_device_of_its_dax_region(tmp_path: Path, below: str) -> None:
    """The region has a number of its own, dax1.1; its character device is dax1.0, in both layouts."""
    write(tmp_path, namespace1_o_0__alt_name="ns0", namespace1_o_0__holder="dax1.1")
    write(tmp_path, dax1_o_1__size="6339690496", dax1_o_1__align="2097152", **{below: "252:3"})
    assert read_namespaces(tmp_path) == (PmemNamespace("ns0", "/dev/dax1.0", 6339690496, 2097152),)


def test_what_guests_cannot_have_is_left_out(tmp_path: Path) -> None:
    assert read_namespaces(tmp_path) == ()
    write(tmp_path, namespace0_o_0__alt_name="", namespace0_o_0__holder="dax0.0")
    write(tmp_path, namespace0_o_1__alt_name="disk", namespace0_o_1__holder="btt0.0")
    write(tmp_path, namespace0_o_2__alt_name="raw", namespace0_o_2__holder="")
    write(tmp_path, namespace0_o_3__alt_name="evil", namespace0_o_3__holder="dax/../../x")
    write(tmp_path, namespace0_o_4__alt_name="starting", namespace0_o_4__holder="dax0.4")
    write(tmp_path, dax0_o_4__size="", dax0_o_4__align="2097152")
    assert read_namespaces(tmp_path) == ()


NIC, GPU, SOUND, BRIDGE = "0000:41:00.0", "0000:01:00.0", "0000:01:00.1", "0000:00:01.0"


@pytest.fixture
def tree(tmp_path: Path) -> PciTree:
    return PciTree(tmp_path)


def read(tree: PciTree, address: str) -> HostDevice:
    device = Sysfs(tree.sys, tree.proc, tree.modules).read(address)
    assert device is not None
    return device


def test_a_recorded_card_with_virtual_functions(tmp_path: Path) -> None:
    tree = recorded_tree(tmp_path)
    card = read(tree, NIC)
    assert (card.driver, card.vfio, card.cell, card.group) == ("igb", False, 0, "18")
    assert card.vfs == ("0000:41:10.0", "0000:41:10.2", "0000:41:10.4", "0000:41:10.6")
    assert card.members == (GroupMember(NIC, "igb"),)
    tree.bind("0000:41:10.2", "vfio-pci")
    assert read(tree, NIC).vfs_in_guests == ("0000:41:10.2",)
    vf = read(tree, "0000:41:10.2")
    assert (vf.driver, vf.vfio, vf.vfs) == ("vfio-pci", True, ())


def test_a_device_that_is_not_there(tree: PciTree) -> None:
    assert Sysfs(tree.sys, tree.proc).read(GPU) is None
    assert Sysfs(Path("/nowhere"), Path("/nowhere")).read(GPU) is None


@pytest.mark.parametrize("text", ["", "..", "0000:41:00", "41:00.8", "../../x", "0000:41:00.0/.."])
def test_what_is_no_address_never_becomes_a_path(tree: PciTree, text: str) -> None:
    with pytest.raises(UsageError, match="no PCI address"):
        Sysfs(tree.sys, tree.proc).read(text)


def test_addresses_as_people_write_them() -> None:
    assert parse_address(" 41:1F.7 ") == "0000:41:1f.7"
    assert parse_address("10000:01:00.0") == "10000:01:00.0"


def test_a_group_with_a_bridge(tree: PciTree) -> None:
    tree.add(BRIDGE, "pcieport", 1, class_="0x060400")
    tree.add(GPU, "nouveau", 1, class_="0x030000")
    tree.add(SOUND, "vfio-pci", 1, class_="0x040300")
    assert read(tree, GPU).members == (
        GroupMember(BRIDGE, "pcieport", bridge=True),
        GroupMember(GPU, "nouveau"),
        GroupMember(SOUND, "vfio-pci", vfio=True),
    )
    assert read(tree, BRIDGE).bridge


def test_without_an_iommu_there_is_no_group(tree: PciTree) -> None:
    tree.add(NIC, "igb")
    assert (read(tree, NIC).group, read(tree, NIC).members) == (None, ())


@pytest.mark.parametrize(
    ("driver", "vfio"),
    [
        ("vfio-pci", True),
        ("mlx5_vfio_pci", True),
        ("hisi-acc-vfio-pci", True),
        ("pci-stub", False),
        ("igb", False),
    ],
)
def test_the_drivers_of_vfio(tree: PciTree, driver: str, vfio: bool) -> None:
    tree.add(NIC, driver, 1)
    assert read(tree, NIC).vfio is vfio


def test_a_vendors_own_driver_may_be_one_of_vfio(tree: PciTree) -> None:
    (tree.add(NIC, "nvidia", 1) / "vfio-dev").mkdir()
    assert read(tree, NIC).vfio


# What the host itself uses


def test_the_card_that_shows_the_console(tree: PciTree) -> None:
    gpu = tree.add(GPU, "amdgpu", 1, class_="0x030000", boot_vga="1")
    assert read(tree, GPU).uses == ("is the display that the host booted with",)
    (gpu / "graphics" / "fb0").mkdir(parents=True)
    assert read(tree, GPU).uses == ("shows the host's console (fb0)",)
    tree.bind(GPU, "vfio-pci")
    assert read(tree, GPU).uses == (), "the host has already let go of it"


def test_the_second_card_is_not_the_console(tree: PciTree) -> None:
    tree.add(GPU, "amdgpu", 1, class_="0x030000", boot_vga="0")
    assert read(tree, GPU).uses == ()


def test_the_controller_below_the_root_file_system(tree: PciTree) -> None:
    nvme = tree.add("0000:02:00.0", "nvme", 2, class_="0x010802")
    other = tree.add("0000:03:00.0", "nvme", 3, class_="0x010802")
    tree.disk("nvme1n1", "259:5", other)
    disk = tree.disk("nvme0n1", "259:0", nvme)
    volume = tree.disk("dm-0", "253:0")
    (volume / "slaves" / "nvme0n1").symlink_to(disk)
    tree.mount_root("253:0")
    assert read(tree, "0000:02:00.0").uses == ("has the host's root file system (nvme0n1)",)
    assert read(tree, "0000:03:00.0").uses == ()


def test_the_card_of_the_default_route_also_below_a_bridge(tree: PciTree) -> None:
    card, spare = tree.add(NIC, "igb", 1), tree.add("0000:42:00.0", "igb", 2)
    tree.interface("enp65s0", card)
    tree.interface("enp66s0", spare)
    tree.route("enp65s0")
    assert read(tree, NIC).uses == ("has the host's default route (enp65s0)",)
    bridge = tree.interface("br0")
    (bridge / "brif" / "enp66s0").mkdir(parents=True)
    tree.route("br0")
    assert read(tree, NIC).uses == ()
    assert read(tree, "0000:42:00.0").uses == ("has the host's default route (enp66s0)",)


def test_a_virtual_function_does_not_have_the_route_of_its_card(tree: PciTree) -> None:
    tree.interface("enp65s0", tree.add(NIC, "igb", 1))
    tree.add("0000:41:10.0", "igbvf", 2, pf=NIC)
    tree.route("enp65s0")
    assert read(tree, "0000:41:10.0").uses == ()


# Topology, reset, NUMA, migration


def test_the_bridges_above_a_device(tree: PciTree) -> None:
    """One on a root port, one behind a switch, one behind Intel's VMD, and one that is gone."""
    tree.add(NIC, below="pci0000:40/0000:40:01.0")
    switch = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0"
    tree.add(GPU, below=switch)
    tree.add("10000:01:00.0", below="pci0000:80/0000:80:05.5/pci10000:00/10000:00:02.0")
    sysfs = Sysfs(tree.sys, tree.proc)
    assert sysfs.bridges(NIC) == ("pci0000:40", "0000:40:01.0")
    assert "/".join(sysfs.bridges(GPU)) == switch
    assert sysfs.bridges("10000:01:00.0") == ("pci10000:00", "10000:00:02.0")
    assert sysfs.bridges(SOUND) == ()


@pytest.mark.parametrize(
    ("files", "methods"),
    [
        ({"reset_method": "flr bus"}, ("flr", "bus")),
        ({"reset_method": ""}, ()),
        ({"reset": ""}, ("reset",)),
        ({}, None),
    ],
)
def test_reset_methods(tree: PciTree, files: dict[str, str], methods: tuple[str, ...] | None) -> None:
    tree.add(NIC, "igb", 1, **files)
    assert read(tree, NIC).reset_methods == methods


def test_the_nearest_cell_with_cpus(tree: PciTree) -> None:
    """Cells 0 and 1 have CPUs, cell 3 has memory only, and cell 2 is not there."""
    tree.cells(node0="0-3", node1="4-7", node3="")
    tree.distance(3, 30, 17, 10)
    for address, numa, near in ((NIC, 1, 1), (GPU, 3, 1), (SOUND, None, None)):
        tree.add(address, numa=numa)
        assert (read(tree, address).cell, read(tree, address).near_cell) == (numa, near)
    assert Sysfs(tree.sys, tree.proc).memory_cells() == {3: MemoryCell(near=1, distance=17)}


CXL = {  # two CXL expanders, as the cells of a host with two sockets (numactl -H)
    "cells": {"node0": "0-51,104-155", "node1": "52-103,156-207", "node2": "", "node3": ""},
    "distances": ((10, 21, 14, 24), (21, 10, 24, 14), (14, 24, 10, 26), (24, 14, 26, 10)),
    "dax": {
        "dax0.0": ("platform/ACPI0017:00/root0/decoder0.0/region0/dax_region0", 2),
        "dax1.0": ("platform/ACPI0017:00/root0/decoder0.1/region1/dax_region1", 3),
    },
}
PMEM = {  # two sets of persistent memory in mode system-ram
    "cells": {"node0": "0-23", "node1": "24-47", "node2": "", "node3": ""},
    "distances": ((10, 21, 17, 28), (21, 10, 28, 17), (17, 28, 10, 28), (28, 17, 28, 10)),
    "dax": {
        "dax0.0": ("LNXSYSTM:00/LNXSYBUS:00/ACPI0012:00/ndbus0/region0/dax0.1", 2),
        "dax1.0": ("LNXSYSTM:00/LNXSYBUS:00/ACPI0012:00/ndbus0/region1/dax1.1", 3),
    },
}
HBM = {  # flat mode: HBM that the firmware kept apart (hmem), and some that it did not
    "cells": {"node0": "0-55", "node1": "56-111", "node2": "", "node3": ""},
    "distances": ((10, 21, 13, 23), (21, 10, 23, 13), (13, 23, 10, 23), (23, 13, 23, 10)),
    "dax": {"dax0.0": ("platform/hmem.0", 2)},
    "bandwidth": {"node0": 122880, "node1": 122880, "node2": 409600, "node3": 409600},
}
FIRMWARE = {
    **HBM,
    "dax": {},
    "bandwidth": {"node0": 122880, "node2": 32768, "node3": 409600},
}  # none of node1


@pytest.mark.parametrize(
    ("recorded", "kinds", "distance"),
    [(CXL, "cxl cxl", 14), (PMEM, "pmem pmem", 17), (HBM, "hbm hbm", 13), (FIRMWARE, "other other", 13)],
)
def test_what_memory_a_cell_without_cpus_has(
    tree: PciTree, recorded: dict[str, Any], kinds: str, distance: int
) -> None:
    tree.cells(**recorded["cells"])
    for cell, distances in enumerate(recorded["distances"]):
        tree.distance(cell, *distances)
    tree.dax(**{name.replace(".", "_"): place for name, place in recorded["dax"].items()})
    for node, rate in recorded.get("bandwidth", {}).items():
        folder = tree.sys / "devices" / "system" / "node" / node / "access0" / "initiators"
        folder.mkdir(parents=True)
        (folder / "read_bandwidth").write_text(f"{rate}\n")
    assert Sysfs(tree.sys, tree.proc).memory_cells() == {
        cell: MemoryCell(kind, near, distance)
        for cell, near, kind in zip((2, 3), (0, 1), kinds.split(), strict=True)
    }


def test_a_cell_that_is_half_there_is_told_as_far_as_it_can_be(tree: PciTree) -> None:
    """Plugged in a moment ago: no distances yet, and a dax device that has not said its cell."""
    tree.cells(node0="0-3", node1="")
    tree.dax(dax0_0=("platform/ACPI0017:00/root0/decoder0.0/region0/dax_region0", -1))
    assert Sysfs(tree.sys, tree.proc).memory_cells() == {1: MemoryCell()}
    (tree.sys / "bus" / "dax" / "devices" / "dax0.0" / "target_node").write_text("1\n")
    assert Sysfs(tree.sys, tree.proc).memory_cells() == {1: MemoryCell("cxl")}


@pytest.mark.parametrize("told", [None, "", "garbage", "0x1"])
def test_a_dax_device_that_does_not_tell_its_cell_makes_kinds_unknown(
    tree: PciTree, told: str | None
) -> None:
    """Any cell may be its; one whose own device tells it is known, and a device of another kind is none."""
    tree.cells(node0="0-3", node1="", node2="")
    region = "platform/ACPI0017:00/root0/decoder0.0/region{0}/dax_region{0}"
    places = {f"dax{number}_0": (region.format(number), number) for number in (1, 2)}
    tree.dax(**places, dax9_0=("platform/hmem.9", 9))
    devices = tree.sys / "bus" / "dax" / "devices"
    (devices / "dax9.0" / "target_node").write_text("garbage\n")
    both = {1: MemoryCell("cxl"), 2: MemoryCell("cxl")}
    assert Sysfs(tree.sys, tree.proc).memory_cells() == both
    file = devices / "dax1.0" / "target_node"
    file.unlink()
    if told is not None:
        file.write_text(f"{told}\n")
    assert Sysfs(tree.sys, tree.proc).memory_cells() == {**both, 1: MemoryCell("unknown")}


@pytest.mark.parametrize("distances", ["10 20", "10 x 30", ""])
def test_distances_to_other_cells_than_there_are_count_for_none(tree: PciTree, distances: str) -> None:
    tree.cells(node0="0-3", node1="4-7", node2="")
    (tree.sys / "devices" / "system" / "node" / "node2" / "distance").write_text(f"{distances}\n")
    assert Sysfs(tree.sys, tree.proc).memory_cells() == {2: MemoryCell()}


def test_a_host_without_distances_has_no_nearest_cell(tree: PciTree) -> None:
    tree.cells(node0="0-3", node1="")
    tree.add(NIC, numa=1)
    assert read(tree, NIC).near_cell is None


WHOLE = "0000:05:00.0"
MODALIAS = "pci:v000015B3d0000101Esv000015B3sd00000001bc02sc00i00"


def test_the_driver_that_can_migrate_a_device(tree: PciTree) -> None:
    tree.add(WHOLE)
    tree.add(NIC, "mlx5_core", 1, pf=WHOLE, modalias=MODALIAS)
    tree.add(GPU, "vfio-pci", 2, pf=WHOLE, modalias="pci:v000010DEd00001EB8sv000010DEsd000012A2bc03sc02i00")
    tree.add(SOUND, "pds_vfio_pci", 3, pf=WHOLE)
    (tree.modules / "modules.alias").write_text(
        "alias pci:v000015B3d0000101Esv*sd*bc*sc*i* mlx5_core\n"
        "alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci\n"
        "alias vfio_pci:v000015B3d0000101Esv*sd*bc*sc*i* mlx5_vfio_pci\n"
    )
    found = [read(tree, address).migration_drivers for address in (NIC, GPU, SOUND)]
    assert found == [("mlx5_vfio_pci",), (), ("pds_vfio_pci",)]


@pytest.mark.parametrize(("driver", "migrates"), [("xe", "xe_vfio_pci"), ("xe-vfio-pci", "xe-vfio-pci")])
def test_a_whole_card_does_not_migrate_under_a_driver_for_its_functions(
    tree: PciTree, driver: str, migrates: str
) -> None:
    """Intel's GPUs and virtio devices have the ids of their functions, and such a driver takes them, too."""
    gpu = "pci:v00008086d0000E211sv00008086sd00001211bc03sc00i00"
    (tree.modules / "modules.alias").write_text(
        "alias vfio_pci:v00008086d0000E211sv*sd*bc*sc*i* xe_vfio_pci\n"
    )
    tree.add(GPU, driver, 1, modalias=gpu)
    tree.add("0000:03:00.1", driver, 2, pf=GPU, modalias=gpu)
    assert read(tree, GPU).migration_drivers == ()
    assert read(tree, "0000:03:00.1").migration_drivers == (migrates,)


def test_a_driver_for_just_one_device_is_no_promise_to_migrate_it(tree: PciTree) -> None:
    tree.add(WHOLE)
    tree.add(NIC, pf=WHOLE, modalias=MODALIAS)
    tree.add(GPU, "nvgrace_gpu_vfio_pci", 2, pf=WHOLE)
    tree.add(SOUND, "vfio-pci", 3, pf=WHOLE, modalias=MODALIAS)
    aliases = tree.modules / "modules.alias"
    aliases.write_text("alias vfio_pci:v000015B3d*sv*sd*bc*sc*i* nvgrace_gpu_vfio_pci\n")
    assert [read(tree, each).migration_drivers for each in (NIC, GPU, SOUND)] == [()] * 3
    sysfs = Sysfs(tree.sys, tree.proc, tree.modules)
    assert sysfs.migration_driver(NIC) is None
    aliases.write_text("alias vfio_pci:v000015B3d*sv*sd*bc*sc*i* mlx5_vfio_pci\n")
    os.utime(aliases, (1, 1))
    assert sysfs.migration_driver(NIC) == "mlx5_vfio_pci", "a new kernel module was installed"
    assert sysfs.migration_driver(SOUND) is None, "bound to the plain driver, which migrates nothing"


def test_the_driver_that_libvirt_binds_before_the_plain_one(tree: PciTree) -> None:
    """libvirt (from 10.0) binds it also to a device that vfio-pci has; without the file nobody knows."""
    tree.add(NIC, "vfio-pci", 1, modalias=MODALIAS)
    tree.add(SOUND, "vfio-pci", 2, modalias="pci:v000010DEd00001EB8sv000010DEsd000012A2bc03sc02i00")
    sysfs = Sysfs(tree.sys, tree.proc, tree.modules)
    assert [sysfs.variant(each) for each in (NIC, SOUND)] == [None, None]
    assert Sysfs(tree.sys, tree.proc).variant(NIC) is None
    aliases = (
        "alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci\nalias vfio_pci:v000015B3d0000101Esv* mlx5_vfio_pci\n"
    )
    (tree.modules / "modules.alias").write_text(aliases)
    assert [sysfs.variant(each) for each in (NIC, SOUND)] == ["mlx5_vfio_pci", ""]


@pytest.mark.parametrize(
    ("patterns", "bound"),
    [
        (("v000015B3d*sv*sd*bc*sc*i*", "v000015B3d0000101Esv*sd*bc*sc*i*"), 1),
        (("v000015B3d0000101Esv*sd*bc*sc*i*", "v000015B3d*sv*sd*bc*sc*i*"), 0),
        (("v000015B3d0000101Esv*sd*bc*sc*i*", "v000015B3d*sv*sd*bc02sc*i*"), 0),
        (("v000015B3d00001021sv*sd*bc*sc*i*", "v000015B3d*sv*sd*bc*sc*i*"), 1),
    ],
)
def test_of_two_drivers_libvirt_binds_the_one_with_the_fewest_wildcards(
    tree: PciTree, patterns: tuple[str, ...], bound: int
) -> None:
    """And the first one of several with as few: virPCIDeviceFindBestVFIOVariant."""
    tree.add(NIC, "mlx5_core", 1, modalias=MODALIAS)
    lines = [f"alias vfio_pci:{pattern} number_{number}\n" for number, pattern in enumerate(patterns)]
    (tree.modules / "modules.alias").write_text("".join(lines))
    assert Sysfs(tree.sys, tree.proc, tree.modules).variant(NIC) == f"number_{bound}"


def test_the_file_by_which_iommufd_opens_a_device(tree: PciTree) -> None:
    (tree.add(GPU, "vfio-pci", 2) / "vfio-dev" / "vfio3").mkdir(parents=True)
    tree.add(NIC, "mlx5_core", 1)
    assert [(read(tree, each).own_file, read(tree, each).iommufd) for each in (GPU, NIC)] == [
        ("vfio3", False),
        ("", False),
    ]
    (tree.sys / "class" / "misc" / "iommu").mkdir(parents=True)
    assert read(tree, NIC).iommufd


HOPPER, BLACKWELL, TURING = (("0x2331", 0x1182CC), ("0x2901", 0x590), ("0x1eb8", 0x590))


@pytest.mark.parametrize(
    ("product", "word", "files", "mode"),
    [
        (HOPPER, 0x5, {}, "on"),
        (HOPPER, 0x3, {}, "devtools"),
        (BLACKWELL, 0xF1, {}, "on"),
        (BLACKWELL, 0x0, {}, "off"),
        (HOPPER, 0x2, {}, None),
        (HOPPER, 0xFFFFFFFF, {}, None),
        (BLACKWELL, 0xBADF5041, {}, None),
        (HOPPER, 0x1, {"power_state": "D3cold"}, None),
        (HOPPER, 0x1, {"vendor": "0x1002"}, None),
        (HOPPER, 0x1, {"device": ""}, None),
        (TURING, 0x1, {}, None),
    ],
)
def test_the_mode_of_confidential_computing(
    tree: PciTree, product: tuple[str, int], word: int, files: dict[str, str], mode: str | None
) -> None:
    number, register = product
    known = {"vendor": "0x10de", "device": number, "power_state": "D0"} | files
    path = tree.add(GPU, "vfio-pci", 2, **known)
    (path / "config").write_bytes(bytes([0xDE, 0x10, 0, 0, 0x06, 0]) + bytes(58))
    with (path / "resource0").open("wb") as bar:
        bar.truncate(0x119000)
        bar.seek(register)
        bar.write(word.to_bytes(4, "little"))
    assert read(tree, GPU).cc_mode == mode


@pytest.mark.parametrize(
    ("bound", "alias", "replacement", "drivers"),
    [
        ("mlx5_vfio_pci", "mlx5_vfio_pci", None, ("mlx5_vfio_pci",)),
        ("mlx5_vfio_pci", "acme_vfio_pci", "", ("mlx5_vfio_pci",)),
        ("mlx5_vfio_pci", "xe_vfio_pci", "xe_vfio_pci", ("mlx5_vfio_pci", "xe_vfio_pci")),
        ("mlx5_vfio_pci", "vfio_pci", None, ("mlx5_vfio_pci",)),
        ("mlx5_vfio_pci", None, None, ("mlx5_vfio_pci",)),
        ("xe-vfio-pci", "xe_vfio_pci", None, ("xe-vfio-pci",)),
        ("acme_vfio_pci", "mlx5_vfio_pci", "mlx5_vfio_pci", ("mlx5_vfio_pci",)),
        ("vfio-pci", "mlx5_vfio_pci", "mlx5_vfio_pci", ("mlx5_vfio_pci",)),
        ("vfio-pci", "acme_vfio_pci", "", ()),
        ("vfio-pci", "vfio_pci", None, ()),
        ("vfio-pci", None, "", ()),
        ("mlx5_core", "mlx5_vfio_pci", None, ("mlx5_vfio_pci",)),
        ("", "acme_vfio_pci", None, ()),
    ],
)
def test_the_driver_of_vfio_by_which_libvirt_replaces_the_bound_one(
    tree: PciTree, bound: str, alias: str | None, replacement: str | None, drivers: tuple[str, ...]
) -> None:
    """virPCIDeviceBindToStub asks which driver is bound only after it has chosen the one to bind."""
    tree.add(WHOLE)
    tree.add(NIC, bound, 1, pf=WHOLE, modalias=MODALIAS)
    if alias is not None:
        (tree.modules / "modules.alias").write_text(f"alias vfio_pci:v000015B3d*sv*sd*bc*sc*i* {alias}\n")
    assert Sysfs(tree.sys, tree.proc, tree.modules).replacement(NIC, bound) == replacement
    assert read(tree, NIC).migration_drivers == drivers


@pytest.mark.parametrize("lacks", ["resource0", "memory", "header", "config", "whole"])
def test_a_card_that_is_not_to_be_read_tells_no_mode(tree: PciTree, lacks: str) -> None:
    """Memory that is off, as of a card in D3; a BAR that is too short; a device that vanished."""
    path = tree.add(GPU, "vfio-pci", 2, vendor="0x10de", device="0x2331", power_state="D0")
    command = 0x04 if lacks == "memory" else 0x06
    if lacks != "config":
        (path / "config").write_bytes(bytes([0xDE, 0x10, 0, 0, command, 0][: 3 if lacks == "header" else 6]))
    if lacks != "resource0":
        (path / "resource0").write_bytes(bytes(0x590 if lacks == "whole" else 0x1182D0))
    assert read(tree, GPU).cc_mode is None


@pytest.mark.parametrize(("driver", "migrates"), [("mlx5_vfio_pci", False), ("new_vfio_pci", True)])
def test_the_kernel_decides_where_it_says_whether_a_bound_device_migrates(
    tree: PciTree, driver: str, migrates: bool
) -> None:
    tree.add(NIC, driver, 1)
    shown = tree.sys / "kernel" / "debug" / "vfio" / NIC
    shown.mkdir(parents=True)
    if migrates:
        (shown / "migration").mkdir()
    assert Sysfs(tree.sys, tree.proc).migration_driver(NIC) == (driver if migrates else "")
    assert read(tree, NIC).migration_drivers == ((driver,) if migrates else ())


@pytest.mark.parametrize(
    ("shown", "migration", "driver"), [(True, True, "nvidia"), (True, False, ""), (False, False, None)]
)
def test_the_kernel_decides_for_a_vendors_own_driver_of_vfio_too(
    tree: PciTree, shown: bool, migration: bool, driver: str | None
) -> None:
    """A function that VFIO has already is bound to no other driver at the start of its guest."""
    (tree.add(GPU, "nvidia", 1, modalias=MODALIAS) / "vfio-dev" / "vfio1").mkdir(parents=True)
    (tree.modules / "modules.alias").write_text("alias vfio_pci:v000015B3d*sv*sd*bc*sc*i* mlx5_vfio_pci\n")
    folder = tree.sys / "kernel" / "debug" / "vfio" / GPU
    for made in (folder,) * shown + (folder / "migration",) * migration:
        made.mkdir(parents=True)
    assert Sysfs(tree.sys, tree.proc, tree.modules).migration_driver(GPU) == driver
    assert read(tree, GPU).migration_drivers == ((driver,) if driver else ())


@pytest.mark.parametrize(
    ("bound", "alias", "shown", "unknown"),
    [
        ("nvidia", "vfio_pci", False, "nvidia"),
        ("nvidia", "vfio_pci", True, ""),
        ("new_vfio_pci", "vfio_pci", False, "new_vfio_pci"),
        ("nvgrace_gpu_vfio_pci", None, False, ""),
        ("xe-vfio-pci", None, False, ""),
        ("vfio-pci", "vfio_pci", False, ""),
        ("vfio-pci", None, False, "modules.alias"),
        ("mlx5_core", "vfio_pci", False, ""),
        ("mlx5_core", "nvgrace_gpu_vfio_pci", False, ""),
        ("mlx5_core", "new_vfio_pci", False, "new_vfio_pci"),
        ("mlx5_core", None, False, "modules.alias"),
    ],
)
def test_it_is_said_where_no_driver_is_known_to_migrate_a_device_and_one_may(
    tree: PciTree, bound: str, alias: str | None, shown: bool, unknown: str
) -> None:
    """`shown`: the kernel tells root that the bound driver does not; a whole card has none that does."""
    card = tree.add(NIC, bound, 1, modalias=MODALIAS)
    if bound == "nvidia":
        (card / "vfio-dev" / "vfio1").mkdir(parents=True)
    if shown:
        (tree.sys / "kernel" / "debug" / "vfio" / NIC).mkdir(parents=True)
    if alias is not None:
        (tree.modules / "modules.alias").write_text(f"alias vfio_pci:v000015B3d*sv*sd*bc*sc*i* {alias}\n")
    device = read(tree, NIC)
    assert device.migration_drivers == () and unknown in device.migration_doubt
    assert bool(device.migration_doubt) is bool(unknown)


BAD_MODES = '{"cc_modes": {"0000:18:00.0": 1}}'
BAD_GROUPS = '{"groups": {"0000:18:00.0": "first/of/all"}}'
DEEP = "[" * 100_000


def test_what_root_saw_of_a_bound_device_decides_for_an_agent_that_may_not_look(tree: PciTree) -> None:
    """Of another driver than the one that is bound now the file says nothing; a bad one changes nothing."""
    tree.add(WHOLE)
    tree.add(NIC, "mlx5_vfio_pci", 1, pf=WHOLE)
    tree.add(GPU, "vfio-pci", 2)
    tree.add(SOUND, "new_vfio_pci", 3)
    file = tree.root / "seen.json"
    sysfs = Sysfs(tree.sys, tree.proc, tree.modules, file)

    def migrating() -> list[str | None]:
        return [sysfs.migration_driver(address) for address in (NIC, GPU, SOUND)]

    by_name = ["mlx5_vfio_pci", None, None]
    assert migrating() == by_name and sysfs.root_sight() == (RootSight(), "")
    seen = {NIC: {"mlx5_vfio_pci": False}, GPU: {"other_vfio_pci": True}, SOUND: {"new_vfio_pci": True}}
    for number, text in enumerate(
        (json.dumps({"migrates": seen}), "{", "[]", '{"migrates": {"a": 1}}', BAD_GROUPS, BAD_MODES, DEEP), 1
    ):
        file.write_text(text)
        os.utime(file, (number, number))
        assert migrating() == ["", None, "new_vfio_pci"], text
        assert ("cannot be used" in sysfs.root_sight()[1]) == (number > 1)
    assert Sysfs(tree.sys, tree.proc, tree.modules, file).migration_driver(NIC) == "mlx5_vfio_pci"
    file.unlink()
    os.mkfifo(file)
    assert migrating() == ["", None, "new_vfio_pci"], "and no wait for a writer"
    file.unlink()
    assert migrating() == by_name and sysfs.root_sight()[1] == ""


def test_a_mode_that_the_agent_does_not_know_leaves_the_rest_of_what_root_saw(tree: PciTree) -> None:
    """As after a downgrade: that card's mode is not known."""
    file = tree.root / "seen.json"
    modes = {"0000:18:00.0": "newer", "0000:28:00.0": "off", "0000:38:00.0": "On"}
    file.write_text(json.dumps({"cc_modes": modes, "migrates": {NIC: {"mlx5_vfio_pci": False}}}))
    seen = RootSight({NIC: {"mlx5_vfio_pci": False}}, cc_modes={"0000:28:00.0": "off"})
    assert Sysfs(tree.sys, tree.proc, tree.modules, file).root_sight() == (seen, "")


@pytest.mark.parametrize(("version", "branch"), [("550.54.16", "550"), ("", ""), ("next", ""), (None, "")])
def test_the_branch_of_the_vgpu_driver(tree: PciTree, version: str | None, branch: str) -> None:
    if version is not None:
        module = tree.sys / "module" / "nvidia_vgpu_vfio"
        module.mkdir(parents=True)
        (module / "version").write_text(f"{version}\n")
    assert Sysfs(tree.sys, tree.proc).vgpu_driver_branch() == branch


PF, VF, ACCELERATOR = "0000:41:00.0", "0000:41:10.0", "0000:83:00.0"
AER = "Undefined 0\nDLP 0\nSDES 0\nTLP {0}\nTOTAL_ERR_{1} {0}"


def signs(tree: PciTree, address: str) -> DeviceSigns:
    (found,) = read_signs(tree.sys, [address])
    return found


def test_a_device_that_the_kernel_does_not_have_does_not_answer(tree: PciTree) -> None:
    assert signs(tree, ACCELERATOR) == DeviceSigns(ACCELERATOR, answers=False)


def test_what_the_kernel_does_not_tell_is_not_known(tree: PciTree) -> None:
    tree.add(ACCELERATOR)
    assert signs(tree, ACCELERATOR) == DeviceSigns(ACCELERATOR, driver="")
    assert read_signs(tree.sys, [ACCELERATOR], ()) == (DeviceSigns(ACCELERATOR),)


@pytest.mark.parametrize(
    ("header", "answers"),
    [
        (b"\xff" * 64, False),
        (b"\xff" * 256, False),
        (b"\xff" * 4 + bytes(60), True),  # a virtual function: only its ids read as ones
        (b"\x86\x80\xc9\x10" + b"\xff" * 60, True),
        (b"", None),
    ],
)
def test_only_a_configuration_space_of_ones_alone_is_no_answer(
    tree: PciTree, header: bytes, answers: bool | None
) -> None:
    (tree.add(ACCELERATOR) / "config").write_bytes(header)
    assert signs(tree, ACCELERATOR).answers is answers


@pytest.mark.parametrize(
    ("status", "answers"),
    [("suspended", None), ("suspending", None), ("active", False), ("unsupported", False)],
)
def test_a_device_that_sleeps_is_not_woken(tree: PciTree, status: str, answers: bool | None) -> None:
    device = tree.add(ACCELERATOR, power_state="D3cold")
    (device / "config").write_bytes(b"\xff" * 64)
    (device / "power").mkdir()
    (device / "power" / "runtime_status").write_text(f"{status}\n")
    assert signs(tree, ACCELERATOR).answers is answers
    assert signs(tree, ACCELERATOR).has_power is True


@pytest.mark.parametrize(("state", "status"), [("error", "active"), ("D0", "error")])
def test_a_power_state_that_could_not_be_changed(tree: PciTree, state: str, status: str) -> None:
    device = tree.add(ACCELERATOR, power_state=state)
    (device / "power").mkdir()
    (device / "power" / "runtime_status").write_text(f"{status}\n")
    assert signs(tree, ACCELERATOR).has_power is False


def test_the_bound_driver_and_the_only_one_that_may_be(tree: PciTree) -> None:
    tree.add(ACCELERATOR, "nvidia", driver_override="(null)")
    tree.add(VF, "vfio-pci", driver_override="vfio-pci")
    assert signs(tree, ACCELERATOR) == DeviceSigns(ACCELERATOR, driver="nvidia")
    assert signs(tree, VF) == DeviceSigns(VF, driver="vfio-pci", vfio=True, only_driver="vfio-pci")


def test_a_card_has_a_link_if_one_of_its_interfaces_has(tree: PciTree) -> None:
    card = tree.add(PF, "igb")
    first, second = tree.interface("enp65s0f0", card), tree.interface("enp65s0f1", card)
    (first / "carrier").write_text("0\n")
    assert signs(tree, PF).has_link is None, "only the guest that has the card needs it up"
    tree.add(VF, pf=PF)
    assert signs(tree, PF).has_link is False, "the kernel tells no carrier of the second, which is down"
    (second / "carrier").write_text("1\n")
    assert signs(tree, PF).has_link is True
    assert signs(tree, VF).has_link is None


def test_errors_are_counted_by_severity(tree: PciTree) -> None:
    device = tree.add(
        ACCELERATOR,
        aer_dev_fatal=AER.format(3, "FATAL"),
        aer_dev_nonfatal=AER.format(5, "NONFATAL"),
        aer_dev_correctable=AER.format(99, "COR"),
    )
    (device / "ras").mkdir()
    (device / "ras" / "umc_err_count").write_text("ue: 2\nce: 17\n")
    found = signs(tree, ACCELERATOR)
    assert (found.fatal_errors, found.nonfatal_errors, found.memory_errors) == (3, 5, 2)


@pytest.mark.parametrize(
    ("check", "field"),
    [
        ("answer", "answers"),
        ("driver", "driver"),
        ("link", "has_link"),
        ("errors", "fatal_errors"),
        ("memory", "memory_errors"),
        ("power", "has_power"),
    ],
)
def test_each_check_can_be_left_out(tree: PciTree, check: str, field: str) -> None:
    device = tree.add(PF, "igb", aer_dev_fatal=AER.format(1, "FATAL"), power_state="D0")
    (device / "config").write_bytes(bytes(64))
    (device / "ras").mkdir()
    (device / "ras" / "umc_err_count").write_text("ue: 0\nce: 0\n")
    (tree.interface("enp65s0f0", device) / "carrier").write_text("1\n")
    tree.add(VF, pf=PF)
    (without,) = read_signs(tree.sys, [PF], set(CHECKS) - {check})
    assert getattr(signs(tree, PF), field) is not None and getattr(without, field) is None


def test_every_card_and_every_function_among_the_units_is_looked_at() -> None:
    one = {"SRIOV_NET_VF": DescribedInventory(1)}
    providers = (
        DescribedProvider("node1", device="host", units={"PCPU": ("0", "1")}),
        DescribedProvider("nic", "node1", one, device=f"pci:{PF}", units={"SRIOV_NET_VF": (VF,)}),
        DescribedProvider(
            "gpu", "node1", one, device=f"pci:{ACCELERATOR}", units={"VGPU": ("4b20d080-1b54",)}
        ),
    )
    assert device_addresses(providers) == (PF, VF, ACCELERATOR)


def test_a_recorded_host_has_no_sign_of_ill_health(tmp_path: Path) -> None:
    tree = recorded_tree(tmp_path)
    for found in read_signs(tree.sys, sorted(each.name for each in tree.devices.iterdir())):
        assert False not in (found.answers, found.has_link, found.has_power)


def test_memory_that_the_kernel_could_not_take_out_of_use_counts(tree: PciTree) -> None:
    tree.cells(node0="0-3", node1="4-7")
    failures = tree.sys / "devices" / "system" / "node" / "node1" / "memory_failure"
    failures.mkdir()
    for name, count in (("total", 5), ("recovered", 3), ("failed", 1), ("delayed", 1)):
        (failures / name).write_text(f"{count}\n")
    pages = [DescribedProvider(f"node1_{cell}", device=f"pages:{cell}:2048") for cell in (0, 1)]
    addresses = device_addresses([*pages, DescribedProvider("cell", device="numa:7")])
    assert addresses == ("numa:0", "numa:1")
    assert read_signs(tree.sys, addresses) == (DeviceSigns("numa:0"), DeviceSigns("numa:1", memory_errors=2))
    assert read_signs(tree.sys, ["numa:1"], ["answer"]) == (DeviceSigns("numa:1"),)


def test_the_port_of_a_function_is_that_of_its_number_on_the_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = PciTree(tmp_path)
    nic = tree.add("0000:41:00.0", "igb")
    for vf in ("0000:41:10.0", "0000:41:10.2"):
        tree.add(vf, pf="0000:41:00.0")
    (tree.interface("enp65s0", nic) / "device").symlink_to(nic)
    told = {
        "enp65s0": {0: "52:54:00:00:00:01", 1: "52:54:00:00:00:02 VLAN 7", 2: "gone"},
        "lo": {0: "no card"},
    }
    monkeypatch.setattr("drivers.host.sysfs.read_ports", lambda: told)
    assert Sysfs(tree.sys, tree.proc).ports() == {
        "0000:41:10.0": "52:54:00:00:00:01",
        "0000:41:10.2": "52:54:00:00:00:02 VLAN 7",
    }
