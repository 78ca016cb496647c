"""What the kernel shows of a PCI device, from trees that look like those of hosts."""

from pathlib import Path

import pytest
from kits.pci_tree import PciTree, recorded_tree

from agent.driver import GroupMember, HostDevice
from agent.errors import UsageError
from drivers.host.pci_sysfs import PciSysfs, parse_address

NIC, GPU, SOUND, BRIDGE = "0000:41:00.0", "0000:01:00.0", "0000:01:00.1", "0000:00:01.0"


@pytest.fixture
def tree(tmp_path: Path) -> PciTree:
    return PciTree(tmp_path)


def read(tree: PciTree, address: str) -> HostDevice:
    device = PciSysfs(tree.sys, tree.proc, tree.modules).read(address)
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
    assert PciSysfs(tree.sys, tree.proc).read(GPU) is None
    assert PciSysfs(Path("/nowhere"), Path("/nowhere")).read(GPU) is None


@pytest.mark.parametrize("text", ["", "..", "0000:41:00", "41:00.8", "../../x", "0000:41:00.0/.."])
def test_what_is_no_address_never_becomes_a_path(tree: PciTree, text: str) -> None:
    with pytest.raises(UsageError, match="no PCI address"):
        PciSysfs(tree.sys, tree.proc).read(text)


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


# Reset, NUMA, migration


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
    assert PciSysfs(tree.sys, tree.proc).near_cells() == {3: 1}


def test_a_host_without_distances_has_no_nearest_cell(tree: PciTree) -> None:
    tree.cells(node0="0-3", node1="")
    tree.add(NIC, numa=1)
    assert read(tree, NIC).near_cell is None


MODALIAS = "pci:v000015B3d0000101Esv000015B3sd00000001bc02sc00i00"


def test_the_driver_that_can_migrate_a_device(tree: PciTree) -> None:
    tree.add(NIC, "mlx5_core", 1, modalias=MODALIAS)
    tree.add(GPU, "vfio-pci", 2, modalias="pci:v000010DEd00001EB8sv000010DEsd000012A2bc03sc02i00")
    tree.add(SOUND, "pds_vfio_pci", 3)
    (tree.modules / "modules.alias").write_text(
        "alias pci:v000015B3d0000101Esv*sd*bc*sc*i* mlx5_core\n"
        "alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci\n"
        "alias vfio_pci:v000015B3d0000101Esv*sd*bc*sc*i* mlx5_vfio_pci\n"
    )
    found = [read(tree, address).migration_driver for address in (NIC, GPU, SOUND)]
    assert found == ["mlx5_vfio_pci", None, "pds_vfio_pci"]
