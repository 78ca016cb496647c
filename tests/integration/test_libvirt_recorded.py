"""The devices of recorded hosts, as the driver describes them over libvirt's own test driver."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import libvirt
import pytest
from kits.libvirt_node import recorded_devices, recorded_domain, recorded_sysfs, write_node
from kits.pci_tree import PciTree
from kits.reshape import ROOT, World

from agent.audit.auditor import Auditor, AuditReader
from agent.carving.carver import Carver, CarvingJournal
from agent.carving.kernel import Kernel
from agent.doctor.check import CheckVerdict, check_device
from agent.driver import (
    DeclaredCarving,
    DescribedProvider,
    DriverSettings,
    Guest,
    MoveInstruction,
    PassedDevice,
    UsedUnit,
)
from drivers.libvirt.driver import LibvirtDriver
from drivers.libvirt.xml import NodeDevice, PciDevice, parse_node_device

VF = '{"vendor_id": "8086", "product_id": "10ca", "physical_network": "physnet0"}'
T4 = '{"vendor_id": "10de", "product_id": "1eb8", "resource_class": "PGPU", "traits": "CUSTOM_T4"}'
OPTIONS: Mapping[str, Mapping[str, object]] = {
    "devices": {"enabled_mdev_types": ("nvidia-11", "nvidia-471")},
    "pci": {"device_spec": (VF, T4)},
    "sriov_nic": {"resource_provider_bandwidths": ("enp65s0:1000:2000",)},
}
RUNNING = ("vm-mdev", "vm-vf", "vm-gpu", "vm-both")
M60, M60_1, A100 = "pci:0000:42:00.0", "pci:0000:82:00.0", "pci:0000:84:00.0"
NIC, NIC_1, GPU, GPU_1 = "pci:0000:41:00.0", "pci:0000:81:00.0", "pci:0000:43:00.0", "pci:0000:83:00.0"


class Hosts:
    """Makes drivers on recorded hosts, with one directory for what they remember, and closes them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: list[LibvirtDriver] = []

    def __call__(
        self,
        moment: str,
        domains: tuple[str, ...] = (),
        *,
        options: Mapping[str, Mapping[str, object]] = OPTIONS,
        hidden: str = "no such device",
        **libvirt: object,
    ) -> LibvirtDriver:
        texts = [recorded_domain(name) for name in domains]
        number = len(self.made)
        devices = recorded_devices(moment)
        uri = write_node(
            self.folder / f"node{number}.xml", texts, [text for text in devices if hidden not in text]
        )
        sysfs = recorded_sysfs(
            self.folder / f"sys{number}", moment if moment in ("boot", "vendor-vfio") else "vfs", devices
        )
        values = {"connection_uri": uri, "images_path": str(self.folder), "sysfs_path": str(sysfs), **libvirt}
        settings = DriverSettings("node1", options={"libvirt": values, **options}, state_path=self.folder)
        self.made.append(LibvirtDriver.create(settings))
        return self.made[-1]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    found = Hosts(tmp_path)
    yield found
    for driver in found.made:
        driver.close()


def by_device(driver: LibvirtDriver) -> dict[str, DescribedProvider]:
    return {provider.device: provider for provider in driver.describe().providers}


def totals(driver: LibvirtDriver) -> dict[str, dict[str, int]]:
    return {
        device: {name: inventory.total for name, inventory in provider.inventories.items()}
        for device, provider in by_device(driver).items()
        if device.startswith("pci:")
    }


def guests(driver: LibvirtDriver) -> dict[str, Guest]:
    return {guest.name: guest for guest in driver.guests()}


WITH_VFS = {
    NIC: {"SRIOV_NET_VF": 4, "NET_BW_EGR_KILOBIT_PER_SEC": 1000, "NET_BW_IGR_KILOBIT_PER_SEC": 2000},
    M60: {"VGPU": 16},
    GPU: {"PGPU": 1},
    NIC_1: {"SRIOV_NET_VF": 2},
    M60_1: {"VGPU": 16},
    GPU_1: {"PGPU": 1},
    A100: {"VGPU": 4},
}
AT_BOOT = {device: WITH_VFS[device] for device in (M60, GPU, M60_1, GPU_1)}


def test_a_host_at_boot_and_after_everything_was_removed(hosts: Hosts) -> None:
    assert totals(hosts("boot")) == AT_BOOT


@pytest.mark.parametrize(("moment", "domains"), [("vfs", ()), ("mdevs", ()), ("domains", RUNNING)])
def test_totals_stay_while_what_is_available_shrinks(
    hosts: Hosts, moment: str, domains: tuple[str, ...]
) -> None:
    found = totals(hosts(moment, domains))
    if moment != "vfs":  # a device of 1 GiB on the second M60: no other size goes there any more
        assert found.pop(M60_1) == {"VGPU": 1}
        assert found == {device: each for device, each in WITH_VFS.items() if device != M60_1}
    else:
        assert found == WITH_VFS


def test_each_guest_holds_units_of_described_providers(hosts: Hosts) -> None:
    driver = hosts("domains", (*RUNNING, "vm-off-inactive"))
    found = guests(driver)
    assert found["vm-mdev"].units == (UsedUnit("VGPU", "11111111-1111-4111-8111-111111111111", M60),)
    mac, mac_of_off = "52:54:00:29:13:bc", "52:54:00:da:4c:cc"
    assert found["vm-vf"].units == (UsedUnit("SRIOV_NET_VF", "0000:41:10.0", NIC, asked_port=mac),)
    assert found["vm-gpu"].units == (UsedUnit("PGPU", "0000:43:00.0", GPU),)
    assert found["vm-both"].units == (
        UsedUnit("VGPU", "33333333-3333-4333-8333-333333333333", A100),
        UsedUnit("SRIOV_NET_VF", "0000:41:10.2", NIC),
    )
    assert found["vm-both"].resources == {"VCPU": 1, "MEMORY_MB": 48, "VGPU": 1, "SRIOV_NET_VF": 1}
    assert found["vm-off"].units == (
        UsedUnit("VGPU", "44444444-4444-4444-8444-444444444444", M60_1),
        UsedUnit("SRIOV_NET_VF", "0000:81:10.0", NIC_1, asked_port=mac_of_off),
    )
    devices = by_device(driver)
    for guest in found.values():
        for unit in guest.units:
            provider = devices[unit.device]
            assert unit.resource_class in provider.inventories
            assert unit.resource_class == "VGPU" or unit.unit in provider.units[unit.resource_class]


def test_a_guest_that_migrated_in(hosts: Hosts) -> None:
    driver = hosts("migrated-in", ("vm-migrated-in",))
    (guest,) = driver.guests()
    assert guest.units == (UsedUnit("VGPU", "54c4763a-7914-4871-a42c-a151814ef18f", M60_1),)
    assert totals(driver)[M60_1] == {"VGPU": 16}


def test_vendor_specific_functions_count_once_they_have_their_type(hosts: Hosts) -> None:
    driver = hosts("vendor-vfio", ("vm-vendor",))
    assert totals(driver)[A100] == {"VGPU": 1}
    (guest,) = driver.guests()
    assert guest.units == (UsedUnit("VGPU", "0000:84:00.1", A100),)
    devices = hosts.folder / "sys0" / "bus" / "pci" / "devices"
    (devices / "0000:84:00.3" / "nvidia" / "current_vgpu_type").write_text("471\n")
    assert by_device(driver)[A100].units == {"VGPU": ("0000:84:00.1", "0000:84:00.3")}
    (devices / "0000:84:00.3" / "nvidia" / "current_vgpu_type").write_text("468\n")
    assert by_device(driver)[A100].units == {"VGPU": ("0000:84:00.1",)}, "not enabled, and free"


def test_a_device_in_use_stays_when_the_configuration_changes(hosts: Hosts) -> None:
    driver = hosts("domains", RUNNING, options={})
    assert totals(driver) == {
        NIC: {"SRIOV_NET_VF": 2},
        M60: {"VGPU": 2},
        GPU: {"CUSTOM_PCI_10DE_1EB8": 1},
        M60_1: {"VGPU": 1},
        A100: {"VGPU": 1},
    }
    assert guests(driver)["vm-gpu"].resources["CUSTOM_PCI_10DE_1EB8"] == 1
    assert totals(hosts("vendor-vfio", ("vm-vendor",), options={}))[A100] == {"VGPU": 1}


def test_a_cap_caps_exactly(hosts: Hosts) -> None:
    """Scenario 100: the limit is exact, and devices in use never vanish."""
    options = {
        "devices": {"enabled_mdev_types": ("nvidia-11",)},
        "mdev_nvidia-11": {"device_addresses": (), "mdev_class": "CUSTOM_VDESK", "max_instances": 1},
    }
    driver = hosts("domains", RUNNING, options=options)
    assert totals(driver)[M60] == {"CUSTOM_VDESK": 2}, "two are there"
    assert guests(driver)["vm-mdev"].units[0].resource_class == "CUSTOM_VDESK"
    assert totals(hosts("vfs", options=options))[M60] == {"CUSTOM_VDESK": 1}


def test_what_domains_name_survives_a_reboot_that_took_it(hosts: Hosts) -> None:
    """Scenario 98: virtual functions that a reboot removed stay for the domains that name them."""
    names = (*RUNNING, "vm-off-inactive")
    before = guests(hosts("domains", names))
    driver = hosts("boot", names)
    found = totals(driver)
    assert found[A100] == {"VGPU": 1}, "its virtual functions are not there yet"
    assert found[NIC]["SRIOV_NET_VF"] == 2
    assert by_device(driver)[NIC].units == {"SRIOV_NET_VF": ("0000:41:10.0", "0000:41:10.2")}
    assert found[M60] == {"VGPU": 16}
    after = guests(driver)
    assert {name: guest.units for name, guest in after.items()} == {
        name: guest.units for name, guest in before.items()
    }
    assert totals(hosts("boot")) == AT_BOOT, "no domain names them any more"
    assert totals(hosts("boot", names)).keys() == {*AT_BOOT}, "so they are forgotten"


def test_libvirt_hears_later_of_a_device_than_of_the_room_that_it_takes(hosts: Hosts) -> None:
    """The kernel has the mediated device and its parent's XML counts it, but libvirt does not list it yet."""
    driver = hosts("mdevs")
    assert totals(driver)[M60] == {"VGPU": 16}
    late = hosts("mdevs", hidden="mdev_11111111")
    assert totals(late)[M60] == {"VGPU": 16}


def test_nothing_new_is_the_very_same_object(hosts: Hosts) -> None:
    driver = hosts("domains", RUNNING)
    description, found = driver.describe(), driver.guests()
    assert driver.describe() is description
    assert driver.guests() is found


def moves(driver: LibvirtDriver, source: str, target: str) -> list[MoveInstruction]:
    return [
        move
        for move in driver.describe().moves
        if (move.from_resource_provider, move.to_resource_provider) == (source, target)
    ]


def test_moves_name_who_holds_what_of_each_card(hosts: Hosts) -> None:
    driver = hosts("domains", RUNNING)
    uuids = {name: guest.uuid for name, guest in guests(driver).items()}
    (gpu,) = moves(driver, "node1", "node1_pci_0000:84:00.0")
    assert gpu.moved_resources == {"VGPU": 4}
    assert gpu.consumers == {uuids["vm-both"]: {"VGPU": 1}}
    (nic,) = moves(driver, "node1", "node1_net_enp65s0")
    assert nic.consumers == {uuids["vm-vf"]: {"SRIOV_NET_VF": 1}, uuids["vm-both"]: {"SRIOV_NET_VF": 1}}


def test_a_type_whose_class_was_named_brings_its_holders_along(hosts: Hosts) -> None:
    options = {
        "devices": {"enabled_mdev_types": ("nvidia-11",)},
        "mdev_nvidia-11": {"device_addresses": ("0000:42:00.0",), "mdev_class": "CUSTOM_VDESK"},
    }
    driver = hosts("domains", RUNNING, options=options)
    name = "node1_pci_0000:42:00.0"
    (move,) = moves(driver, name, name)
    assert (move.moved_resources, move.becomes) == ({"VGPU": 16}, {"VGPU": "CUSTOM_VDESK"})
    assert move.consumers == {guests(driver)["vm-mdev"].uuid: {"VGPU": 1}}


MLX5 = "mlx5_vfio_pci"


@pytest.mark.parametrize(
    ("version", "bound", "alias", "said", "becomes", "word"),
    [
        (9_000_000, "igbvf", MLX5, "", "vfio-pci", "this libvirt binds vfio-pci"),
        (10_000_000, "igbvf", MLX5, "", MLX5, "can be migrated live"),
        (11_003_000, "igbvf", "vfio_pci", "", "vfio-pci", "No VFIO driver"),
        (11_003_000, "igbvf", "acme_vfio_pci", "", "acme_vfio_pci", "It is not known whether"),
        (0, "igbvf", MLX5, "", MLX5, "can be migrated live"),
        (11_003_000, "nvidia", "acme_vfio_pci", "", "", "It is not known whether"),
        (9_000_000, MLX5, MLX5, "", "vfio-pci", "this libvirt binds vfio-pci"),
        (9_000_000, MLX5, MLX5, ', "managed": "no"', "vfio-pci", "can be migrated live"),
        (11_003_000, MLX5, "vfio_pci", "", "vfio-pci", "this libvirt binds vfio-pci"),
        (11_003_000, MLX5, "vfio_pci", ', "managed": "no"', "vfio-pci", "can be migrated live"),
        (11_003_000, MLX5, MLX5, "", MLX5, "can be migrated live"),
        (11_003_000, MLX5, "acme_vfio_pci", "", "acme_vfio_pci", "this libvirt binds acme_vfio_pci"),
        (11_003_000, MLX5, "xe_vfio_pci", "", "xe_vfio_pci", "with the driver xe_vfio_pci"),
        (11_003_000, "xe-vfio-pci", "xe_vfio_pci", "", "xe-vfio-pci", "with the driver xe-vfio-pci"),
        (11_003_000, "vfio-pci", MLX5, "", MLX5, "the agent does not count on that"),
        (11_003_000, "vfio-pci", MLX5, ', "managed": "no"', MLX5, f"{MLX5} could"),
        (9_000_000, "vfio-pci", MLX5, "", "vfio-pci", f"{MLX5} could"),
        (11_003_000, "igbvf", MLX5, ', "managed": "no"', MLX5, f"{MLX5} could"),
        (11_003_000, MLX5, MLX5, ', "live_migratable": "no"', MLX5, "cannot be migrated live"),
        (
            11_003_000,
            "vfio-pci",
            MLX5,
            ', "live_migratable": "yes"',
            MLX5,
            "can be migrated live",
        ),
    ],
)
def test_the_doctor_says_of_a_function_what_the_tree_says(
    hosts: Hosts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    bound: str,
    alias: str,
    said: str,
    becomes: str,
    word: str,
) -> None:
    """`plimsoll doctor --device` reads the guests first. The test driver has no version of its own."""
    tree, card, has_vgpus = PciTree(tmp_path / "root"), "0000:41:00.0", bound == "nvidia"
    tree.add(card)
    functions = [f"0000:41:10.{number}" for number in (0, 2, 4, 6)]
    for function in functions:
        real = tree.add(function, bound, 1, pf=card, modalias="pci:v00008086d000010CAsv0sd0bc02sc00i00")
        if has_vgpus:
            (real / "nvidia").mkdir()
            (real / "nvidia" / "current_vgpu_type").write_text("0\n")
    folder = tree.modules / os.uname().release
    folder.mkdir()
    (folder / "modules.alias").write_text(f"alias vfio_pci:v00008086d*sv*sd*bc*sc*i* {alias}\n")
    monkeypatch.setattr("drivers.libvirt.driver.MODULES", tree.modules)
    if version:
        monkeypatch.setattr(libvirt.virConnect, "getType", lambda _: "QEMU")
        monkeypatch.setattr(libvirt.virConnect, "getLibVersion", lambda _: version)

    def parse(text: str, what: str, *, active: bool) -> NodeDevice | None:
        """The test driver leaves the driver of a device out."""
        parsed = parse_node_device(text, what, active=active)
        if not isinstance(parsed, PciDevice) or parsed.physical_function != card:
            return parsed
        return replace(parsed, driver=bound, class_id=0x30200 if has_vgpus else parsed.class_id)

    monkeypatch.setattr("drivers.libvirt.io.devices.parse_node_device", parse)
    spec = f'{{"vendor_id": "8086", "product_id": "10ca"{said}}}'
    driver = hosts(
        "vfs", options={"pci": {"device_spec": (spec,)}}, sysfs_path=str(tree.sys), full_connection=False
    )
    before = driver.host_device(functions[0])
    assert before is not None and not before.becomes, "nothing was asked of libvirt"
    traits = frozenset[str]().union(*(each.traits for each in by_device(driver).values()))
    device = driver.host_device(functions[0])
    assert device is not None and device.becomes == becomes
    assert device.managed is ("managed" not in said)
    passed = PassedDevice(device.address, device.managed, device)
    (check,) = (each for each in check_device(passed, {}) if each.name == "migration")
    assert word in check.sentence
    assert (check.verdict is CheckVerdict.GOOD) is ("HW_PCI_LIVE_MIGRATABLE" in traits)


def test_what_root_reads_of_a_card_reaches_the_audit_and_the_status(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the register over the file to an agent: the guest has the card, and its mode changes."""
    file, tree = tmp_path / "seen.json", PciTree(tmp_path / "root")
    monkeypatch.setattr("drivers.libvirt.driver.ROOT_SIGHT", file)
    bar = tree.add_h100(GPU.removeprefix("pci:"), 0) / "resource0"
    carver = Carver(Kernel(tree.sys, 0.1, tree.proc), CarvingJournal(tmp_path / "run"), DeclaredCarving())
    driver = hosts("domains", ("vm-gpu",))

    def read(mode: int, power: str) -> None:
        (bar.parent / "power_state").write_text(power)
        with bar.open("r+b") as registers:
            registers.seek(0x1182CC)
            registers.write(bytes([mode]))
        assert carver.tell(file) == ()

    with World(tmp_path) as world:
        world.reconciler.replace_driver(driver)
        audit = Auditor(AuditReader(world.tracker, world.client, ROOT, driver.guests, dict)).audit
        (guest,) = driver.guests()
        steps = ((0, "", False), (0, "D0", False), (1, "D0", True), (0, "D3cold", True), (0, "D0", False))
        for mode, power, wrong in steps:
            if power:
                read(mode, power)
            report = world.again()
            assert report.error is None
            found = [each.reason for each in audit().findings if each.kind == "wrong mode"]
            said = [each for each in report.problems if each.startswith("No guest gets")]
            assert len(found) == len(said) == wrong, (mode, power, found)
            why = "is in the mode on of confidential computing, and by its [pci] device_spec it is off"
            assert all(f"{guest.uuid} has 1 PGPU of" in each and why in each for each in found)
            assert all(why in each for each in said)
        file.write_text(json.dumps({"cc_modes": {GPU: 1}}))
        assert world.again().error is None and [*driver.unmatched_options()][-1].startswith(f"{file} cannot")
