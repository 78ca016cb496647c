"""The host: the CPU that guests get, traits, the secrets of TPMs, and its cells."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import os_traits
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.libvirt_model import ANY_VF, DEVICES, HOSTDEV, INTERFACE, interface, model
from kits.libvirt_model import FACTS as NODE_FACTS
from kits.libvirt_model import HOST as NODE
from kits.libvirt_node import DATA, domain

from agent.driver import Cell, DescribedProvider, GuestState, HostSettings
from agent.errors import DriverDataError, SettingsError
from drivers.host.domain_xml import guest_of, parse_domain
from drivers.libvirt.describe.cards import MdevSpec, UnitRecord, parse_device_specs
from drivers.libvirt.describe.devices import DeviceSettings, GuestDomain
from drivers.libvirt.describe.history import lost_mdevs, mdev_xml
from drivers.libvirt.describe.host import (
    CPU_FLAGS,
    WAYS,
    CpuModel,
    HostFacts,
    ModelSettings,
    build_model,
    describe_host,
    describe_topology,
    guest_traits,
    host_traits,
    offered_facts,
    reportable_guest_traits,
    reportable_host_traits,
    reportable_traits,
    tpm_secret_traits,
    with_managed_cpus,
    with_tpm_secrets,
)
from drivers.libvirt.describe.options import LibvirtOptions
from drivers.libvirt.xml import (
    MediatedDevice,
    Version,
    parse_capabilities,
    parse_domain_capabilities,
    parse_node_device,
)

HOST, MODEL = "<cpu>host</cpu>", "<cpu>model</cpu>"


@pytest.mark.parametrize(
    ("options", "elements"),
    [
        ({}, (MODEL,)),
        ({"cpu_mode": "host-model"}, (MODEL,)),
        ({"cpu_mode": "host-passthrough"}, (HOST,)),
        (
            {"cpu_mode": "custom", "cpu_models": ["Haswell", "Icelake-Server"]},
            (
                "<cpu><arch>x86_64</arch><model>Haswell</model></cpu>",
                "<cpu><arch>x86_64</arch><model>Icelake-Server</model></cpu>",
            ),
        ),
        ({"cpu_mode": "none"}, ("<cpu><arch>x86_64</arch><model>qemu64</model></cpu>",)),
    ],
)
def test_the_mode_says_whose_flags_count(options: dict[str, Any], elements: tuple[str, ...]) -> None:
    assert LibvirtOptions.of(options).cpu_model.elements("x86_64", HOST, MODEL) == elements


def test_without_a_model_of_the_host_its_own_cpu_counts() -> None:
    assert CpuModel().elements("x86_64", HOST, "") == (HOST,)
    assert CpuModel().elements("x86_64", "", "") == ()
    assert CpuModel("none").elements("s390x", HOST, MODEL) == ()


def test_extra_flags_are_added_and_taken_away() -> None:
    model = LibvirtOptions.of({"cpu_model_extra_flags": ["PCID", "+pdpe1gb", "-mpx"]}).cpu_model
    assert model.flags(frozenset({"avx2", "mpx"})) == {"avx2", "pcid", "pdpe1gb"}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"cpu_mode": "custom"}, "needs cpu_models"),
        ({"cpu_models": ["Haswell"]}, "needs cpu_mode = custom"),
        ({"cpu_mode": "none", "cpu_model_extra_flags": ["pcid"]}, "another cpu_mode than none"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        LibvirtOptions.of(options)


RECORDED = parse_capabilities((DATA / "host" / "capabilities.xml").read_text())


KVM = parse_domain_capabilities((DATA / "host" / "domcapabilities-kvm.xml").read_text())


FACTS = HostFacts(
    capabilities=RECORDED,
    guests=KVM,
    cpu_flags=frozenset({"avx2", "svm"}),
    online=frozenset(range(4)),
    memory_mb=2916,
    disk_gb=20,
)


SECURE = """<domainCapabilities><domain>kvm</domain><arch>x86_64</arch>
<os supported='yes'><enum name='firmware'><value>bios</value><value>efi</value></enum>
  <loader supported='yes'><enum name='secure'><value>yes</value><value>no</value></enum></loader></os>
<devices>
  <tpm supported='yes'><enum name='model'><value>tpm-tis</value><value>tpm-crb</value></enum>
    <enum name='backendModel'><value>passthrough</value><value>emulator</value></enum>{version}</tpm>
  <sound supported='no'><enum name='model'><value>ich9</value></enum></sound>
  <iommu supported='yes'><enum
  name='model'><value>intel</value><value>virtio</value><value>future</value></enum></iommu>
</devices>
<features><sev supported='yes'><maxGuests>59</maxGuests><maxESGuests>450</maxESGuests></sev><sgx
supported='no'/>
  <launchSecurity supported='yes'><enum
  name='sectype'><value>sev</value><value>sev-snp</value></enum></launchSecurity>
</features></domainCapabilities>"""


def test_every_trait_there_can_be_is_a_standard_one() -> None:
    known = set(os_traits.get_traits())
    everything = host_traits(
        replace(RECORDED, guests=dict.fromkeys(("aarch64", "riscv64", "ppc64le"))),
        frozenset(range(4)),
        frozenset(CPU_FLAGS),
    )
    secure = parse_domain_capabilities(SECURE.format(version=""))
    assert everything | guest_traits(KVM, "x86_64") | guest_traits(secure, "x86_64") <= known
    assert len(everything) > len(CPU_FLAGS)
    assert reportable_host_traits() | reportable_guest_traits() <= known
    assert everything <= reportable_host_traits()
    assert guest_traits(KVM, "x86_64") | guest_traits(secure, "x86_64") <= reportable_guest_traits()


def test_traits_of_guests_are_left_alone_where_libvirt_did_not_tell_what_guests_can_have() -> None:
    """A read-only connection is refused that question; then a trait of another program may be right."""
    assert "COMPUTE_FIRMWARE_UEFI" in reportable_traits(FACTS)
    unknown = reportable_traits(replace(FACTS, guests=None))
    assert "COMPUTE_FIRMWARE_UEFI" not in unknown and "HW_CPU_X86_AVX2" in unknown


def test_the_recorded_hosts_traits() -> None:
    (root,) = describe_host(FACTS, HostSettings(), "node1")
    assert root.traits >= {
        "COMPUTE_NODE",
        "HW_ARCH_X86_64",
        "COMPUTE_ARCH_X86_64",
        "HW_CPU_X86_AVX2",
        "HW_CPU_X86_SVM",
        "HW_CPU_X86_AMD_SVM",
        "COMPUTE_STORAGE_BUS_VIRTIO",
        "COMPUTE_GRAPHICS_MODEL_BOCHS",
        "COMPUTE_NET_VIF_MODEL_VIRTIO",
        "COMPUTE_FIRMWARE_BIOS",
        "COMPUTE_SOCKET_PCI_NUMA_AFFINITY",
    }
    assert not {"HW_CPU_HYPERTHREADING", "COMPUTE_STORAGE_BUS_IDE", "COMPUTE_SECURITY_TPM_2_0"} & root.traits


def test_hyperthreading_is_two_threads_of_one_core_online() -> None:
    cells = (Cell(0, frozenset({0, 1}), 1, (frozenset({0, 1}),)),)
    capabilities = replace(RECORDED, cells=cells)
    assert "HW_CPU_HYPERTHREADING" in host_traits(capabilities, frozenset({0, 1}), frozenset())
    assert "HW_CPU_HYPERTHREADING" not in host_traits(capabilities, frozenset({0}), frozenset())


def test_security_traits_come_from_what_libvirt_says() -> None:
    version = "<enum name='backendVersion'><value>1.2</value><value>2.0</value></enum>"
    assert guest_traits(parse_domain_capabilities(SECURE.format(version=version)), "aarch64") == {
        "COMPUTE_FIRMWARE_BIOS",
        "COMPUTE_FIRMWARE_UEFI",
        "COMPUTE_SECURITY_UEFI_SECURE_BOOT",
        "COMPUTE_SECURITY_TPM_1_2",
        "COMPUTE_SECURITY_TPM_2_0",
        "COMPUTE_SECURITY_TPM_CRB",
        "COMPUTE_SECURITY_TPM_TIS",
        "COMPUTE_VIOMMU_MODEL_AUTO",
        "COMPUTE_VIOMMU_MODEL_INTEL",
        "COMPUTE_VIOMMU_MODEL_VIRTIO",
        "HW_CPU_AMD_SEV",
        "HW_CPU_X86_AMD_SEV",
        "HW_CPU_X86_AMD_SEV_ES",
        "HW_CPU_X86_AMD_SEV_SNP",
    }
    later = SECURE.replace("<value>tpm-crb</value>", "<value>tpm-spapr</value>")
    later = later.format(version=version.replace("1.2", "3.0"))
    assert {each for each in guest_traits(parse_domain_capabilities(later), "aarch64") if "TPM" in each} == {
        "COMPUTE_SECURITY_TPM_2_0",
        "COMPUTE_SECURITY_TPM_TIS",
    }, "there is no trait for the others"
    silent = guest_traits(parse_domain_capabilities(SECURE.format(version="")), "aarch64")
    assert "COMPUTE_SECURITY_TPM_2_0" in silent
    assert "COMPUTE_SECURITY_TPM_1_2" not in silent


PACKED = {"NET_VIRTIO_PACKED"}
STATELESS = PACKED | {"SECURITY_STATELESS_FIRMWARE"}
ADDRESSES = STATELESS | {"ADDRESS_SPACE_PASSTHROUGH", "ADDRESS_SPACE_EMULATED"}


@pytest.mark.parametrize(
    ("libvirt", "qemu", "more"),
    [
        ((0, 0, 0), (0, 0, 0), set()),
        ((8, 5, 9), (6, 2, 0), PACKED | {"VIOMMU_MODEL_VIRTIO"}),
        ((8, 6, 0), (6, 2, 0), STATELESS | {"VIOMMU_MODEL_VIRTIO"}),
        ((9, 0, 0), (7, 2, 0), ADDRESSES | {"VIOMMU_MODEL_VIRTIO"}),
        ((9, 3, 0), (8, 0, 0), ADDRESSES | {"VIOMMU_MODEL_VIRTIO", "NET_VIF_MODEL_IGB"}),
        (
            (10, 4, 0),
            (8, 2, 0),
            ADDRESSES | {"VIOMMU_MODEL_VIRTIO", "NET_VIF_MODEL_IGB", "SOUND_MODEL_VIRTIO"},
        ),
        ((10, 4, 0), (8, 1, 0), ADDRESSES | {"VIOMMU_MODEL_VIRTIO", "NET_VIF_MODEL_IGB"}),
    ],
)
def test_what_libvirt_does_not_describe_follows_from_the_versions_as_in_nova(
    libvirt: tuple[int, int, int], qemu: tuple[int, int, int], more: set[str]
) -> None:
    silent = replace(KVM, described=KVM.described - {"sound", "iommu"}, qemu=qemu)
    old = replace(silent, qemu=(0, 0, 0))
    added = guest_traits(silent, "x86_64", libvirt) - guest_traits(old, "x86_64", (0, 0, 0))
    always = {f"SOUND_MODEL_{model}" for model in ("SB16", "ES1370", "PCSPK", "AC97", "ICH6", "ICH9", "USB")}
    always |= {"VIOMMU_MODEL_AUTO", "VIOMMU_MODEL_INTEL"}
    assert added == {f"COMPUTE_{trait}" for trait in (more | always if any(libvirt) else more)}
    assert added <= reportable_guest_traits()


def test_a_kind_of_device_that_libvirt_describes_is_not_guessed() -> None:
    new = parse_domain_capabilities(SECURE.format(version=""))
    traits = guest_traits(replace(new, qemu=(10, 0, 0)), "x86_64", (12, 0, 0))
    assert not any(trait.startswith("COMPUTE_SOUND_MODEL_") for trait in traits)
    assert "COMPUTE_VIOMMU_MODEL_SMMUV3" not in traits


START = "COMPUTE_SECURITY_TPM_SECRET_SECURITY_"
VERSION = "COMPUTE_SECURITY_TPM_2_0"


@pytest.mark.parametrize(
    ("traits", "ways", "added"),
    [
        ({VERSION}, ("user", "host"), {f"{START}USER", f"{START}HOST"}),
        ({VERSION}, (), set()),
        (set(), ("user",), set()),
    ],
)
def test_the_listed_ways_are_traits_where_guests_can_have_a_tpm(
    traits: set[str], ways: tuple[str, ...], added: set[str]
) -> None:
    root, cell = DescribedProvider("node1", traits=frozenset(traits)), DescribedProvider("cell", "node1")
    assert with_tpm_secrets([root, cell], ways)[0].traits == traits | added
    assert with_tpm_secrets([root, cell], ways)[1] == cell


def test_the_agent_decides_about_these_traits_only_if_any_is_listed() -> None:
    assert tpm_secret_traits(()) == frozenset()
    assert tpm_secret_traits(("host",)) == {f"{START}{way.upper()}" for way in WAYS}
    assert tpm_secret_traits(WAYS) <= set(os_traits.get_traits())
    assert LibvirtOptions.of({"supported_tpm_secret_security": ["user"]}).supported_tpm_secret_security == (
        "user",
    )


def test_the_hosts_inventories() -> None:
    settings = HostSettings(
        reserved_host_cpus=1,
        reserved_host_disk_mb=1500,
        cpu_shared_set=frozenset({0, 1}),
        cpu_dedicated_set=frozenset({3, 2}),
    )
    (root,) = describe_host(FACTS, settings, "node1")
    assert {name: (each.total, each.reserved) for name, each in root.inventories.items()} == {
        "VCPU": (2, 1),
        "PCPU": (2, 0),
        "MEMORY_MB": (2916, 512),
        "DISK_GB": (20, 2),
    }
    assert root.units == {"PCPU": ("2", "3")}
    assert (root.name, root.parent, root.device) == ("node1", None, "host")


def test_only_online_cpus_count() -> None:
    facts = replace(FACTS, online=frozenset({0, 1, 2}))
    topology = describe_topology(facts, HostSettings())
    assert [cell.cpus for cell in topology.cells] == [{0, 1}, {2}]
    assert topology.cells[1].siblings == (frozenset({2}),)
    assert topology.shared_cpus == {0, 1, 2}
    (root,) = describe_host(facts, HostSettings(cpu_dedicated_set=frozenset({2, 3})), "node1")
    assert root.units == {"PCPU": ("2",)}


def test_dedicated_cpus_that_a_power_manager_took_offline_are_offered() -> None:
    facts = replace(FACTS, online=frozenset({0, 1}))
    settings = HostSettings(
        cpu_shared_set=frozenset({0}), cpu_dedicated_set=frozenset({1, 3}), cpu_power_management=True
    )
    managed = with_managed_cpus(facts, settings)
    (root,) = describe_host(managed, settings, "node1")
    assert root.units == {"PCPU": ("1", "3")} and root.inventories["VCPU"].total == 1
    assert describe_topology(managed, settings).dedicated_cpus == {1, 3}
    assert with_managed_cpus(facts, replace(settings, cpu_power_management=False)) == facts
    governor = replace(settings, cpu_power_management_strategy="governor")
    assert with_managed_cpus(facts, governor) == facts, "CPUs that are down are online"
    nowhere = replace(settings, cpu_dedicated_set=frozenset({1, 64}))
    assert describe_topology(with_managed_cpus(facts, nowhere), nowhere).dedicated_cpus == {1}


def test_a_managed_cpu_that_libvirt_leaves_out_is_on_its_cell_by_sysfs() -> None:
    """libvirt's capabilities have no CPU that was offline when libvirtd started."""
    (first, *others) = RECORDED.cells
    assert 1 in first.cpus
    without = replace(
        first, cpus=first.cpus - {1}, siblings=tuple(core - {1} for core in first.siblings if core - {1})
    )
    capabilities = replace(RECORDED, cells=(without, *others))
    facts = replace(FACTS, capabilities=capabilities, online=frozenset({0, 2, 3}), offline={1: first.id})
    settings = HostSettings(
        cpu_shared_set=frozenset({0}), cpu_dedicated_set=frozenset({1, 3}), cpu_power_management=True
    )
    topology = describe_topology(with_managed_cpus(facts, settings), settings)
    assert topology.dedicated_cpus == {1, 3}
    assert topology.cells[0].cpus == first.cpus and frozenset({1}) in topology.cells[0].siblings
    unknown = replace(facts, offline={})
    assert describe_topology(with_managed_cpus(unknown, settings), settings).dedicated_cpus == {3}
    off = replace(settings, cpu_power_management=False)
    assert with_managed_cpus(facts, off) == facts
    alone = replace(facts, capabilities=replace(RECORDED, cells=(without,)), offline={1: None})
    only_first = replace(settings, cpu_dedicated_set=frozenset({1}))
    (cell,) = describe_topology(with_managed_cpus(alone, only_first), only_first).cells
    assert 1 in cell.cpus, "a host of one cell needs nothing of sysfs"


def test_only_cells_without_any_cpu_have_memory_alone() -> None:
    """Not one whose CPUs are all offline, nor all cells of a host of which no CPU is known to be on any."""
    first, second = RECORDED.cells
    alone = Cell(7, frozenset(), 999)
    facts = FACTS.with_cells((first, second, alone))
    assert facts.cells_without_cpus == (alone,)
    assert offered_facts(facts, HostSettings()).capabilities.cells == (first, second)
    assert replace(facts, offline={9: alone.id}).cells_without_cpus == ()
    assert facts.with_cells((alone, replace(alone, id=8))).cells_without_cpus == ()
    shared = offered_facts(facts, HostSettings(reserved_host_memory_mb=0), 1000).capabilities.cells
    assert [cell.memory_mb for cell in shared] == [500, 500], "files are no memory of that cell"


def test_a_host_without_cells_is_one_cell() -> None:
    facts = replace(FACTS, capabilities=replace(RECORDED, cells=()))
    topology = describe_topology(facts, HostSettings())
    assert [(cell.id, cell.cpus, cell.memory_mb) for cell in topology.cells] == [(0, {0, 1, 2, 3}, 2916)]


def test_memory_that_is_in_no_cell_is_in_all() -> None:
    cells = tuple(replace(cell, memory_mb=0) for cell in RECORDED.cells)
    facts = replace(FACTS, capabilities=replace(RECORDED, cells=cells), memory_mb=4097)
    assert [cell.memory_mb for cell in describe_topology(facts, HostSettings()).cells] == [2049, 2048]
    (root,) = describe_host(facts, HostSettings(), "node1")
    assert root.inventories["MEMORY_MB"].total == 4097


def test_a_cpu_in_two_cells_makes_no_sense() -> None:
    cells = (RECORDED.cells[0], replace(RECORDED.cells[0], id=1))
    facts = replace(FACTS, capabilities=replace(RECORDED, cells=cells))
    with pytest.raises(DriverDataError, match="a CPU is in two NUMA cells"):
        describe_topology(facts, HostSettings())


# The whole model of a host from recorded XML: cells, devices under them, and what moved


def test_devices_hang_under_their_cell() -> None:
    flat, nested = model("vfs"), model("vfs", numa=True)
    assert {provider.parent for provider in flat.description.providers} == {None, "node1"}
    cells = {provider.device: provider for provider in nested.description.providers}
    assert cells["numa:1"].traits == {"HW_NUMA_ROOT", "CUSTOM_HUGEPAGES_2048KIB"}
    pages = cells["pages:1:2048"]
    assert (pages.parent, pages.cell) == (cells["numa:1"].name, 1)
    assert {name: each.total for name, each in pages.inventories.items()} == {"CUSTOM_HUGEPAGES_2048KIB": 32}
    first = {"pci:0000:41:00.0", "pci:0000:42:00.0"}
    for provider in nested.description.providers:
        if provider.device.startswith("pci:"):
            assert provider.parent == ("node1_numa0" if provider.device in first else "node1_numa1")


def test_a_unit_is_remembered_while_a_domain_names_it() -> None:
    uuid = "33333333-3333-4333-8333-333333333333"
    guest = domain(1, devices=HOSTDEV.format(uuid))
    seen = model("mdevs", guest)
    assert seen.units == {
        uuid: UnitRecord(uuid, "0000:84:00.0", "VGPU", "0000:84:00.1", "nvidia-471", "boot-1")
    }
    assert seen.missing == ()
    gone = model("boot", guest, known=seen.units)
    assert gone.missing == (seen.units[uuid],)
    assert gone.guests[0].units == seen.guests[0].units
    assert gone.units == seen.units
    assert model("boot", known=seen.units).units == {}


def test_what_a_reboot_took_is_made_again_where_it_was() -> None:
    """Scenario 97: the same uuid and type on the same parent, as soon as that is there."""
    uuids = ("33333333-3333-4333-8333-333333333333", "11111111-1111-4111-8111-111111111111")
    guest = domain(1, devices="".join(map(HOSTDEV.format, uuids)))
    seen = model("mdevs", guest)
    after = model("boot", guest, known=seen.units)
    assert lost_mdevs(after.missing, after.devices, "boot-1") == [], "it was removed since this boot"
    (first,) = lost_mdevs(after.missing, after.devices, "boot-2")
    assert (first.record.unit, first.parent, first.defined_name) == (uuids[1], "pci_0000_42_00_0", None)
    parsed = parse_node_device(mdev_xml(first).replace("<device>", "<device><name>new</name>"))
    assert parsed == MediatedDevice("new", uuids[1], "pci_0000_42_00_0", "nvidia-11")
    with_vfs = model("vfs", guest, known=seen.units)
    assert [lost.parent for lost in lost_mdevs(with_vfs.missing, with_vfs.devices, "boot-2")] == [
        "pci_0000_42_00_0",
        "pci_0000_84_00_1",
    ], "once its virtual functions are there"
    assert lost_mdevs(seen.missing, seen.devices, "boot-2") == []


MDEVS = [mdev.uuid for card in NODE_FACTS["domains"].cards for mdev in card.mdevs]
VFS = [vf.address for card in NODE_FACTS["domains"].cards for vf in card.vfs]


@given(
    mdevs=st.lists(st.sampled_from(MDEVS), unique=True),
    vfs=st.lists(st.sampled_from(VFS), unique=True),
    devices=st.builds(
        DeviceSettings,
        st.sampled_from([(), ANY_VF]),
        st.lists(
            st.builds(
                MdevSpec,
                st.sampled_from(["nvidia-11", "nvidia-14", "nvidia-471", "nvidia-9"]),
                st.just(frozenset()),
                st.sampled_from(["VGPU", "CUSTOM_X"]),
                st.none() | st.integers(1, 3),
            ),
            max_size=3,
        ).map(tuple),
    ),
    numa=st.booleans(),
    then=st.sampled_from(["boot", "vfs", "domains"]),
)
def test_each_unit_in_use_is_on_a_provider_that_has_it(
    mdevs: list[str], vfs: list[str], devices: DeviceSettings, numa: bool, then: str
) -> None:
    """Whatever the settings say, and though a reboot took the units away meanwhile."""
    parts = [INTERFACE.format(vf.replace(".", ":").split(":")) for vf in vfs]
    guest = domain(1, devices="".join([*map(HOSTDEV.format, mdevs), *parts]))
    seen = model("domains", guest, numa=numa, devices=devices)
    later = model(then, guest, numa=numa, devices=devices, known=seen.units)
    for found in (seen, later):
        providers = {provider.device: provider for provider in found.description.providers}
        amounts: dict[tuple[str, str], int] = {}
        for unit in found.guests[0].units:
            if unit.device.startswith("mdev:"):
                assert unit.unit == "55555555-5555-4555-8555-555555555555", "defined, was never there"
                continue
            place = (unit.device, unit.resource_class)
            amounts[place] = amounts.get(place, 0) + 1
        for (device, resource_class), amount in amounts.items():
            assert amount <= providers[device].inventories[resource_class].total
        for move in found.description.moves:
            for shares in (move.consumers or {}).values():
                assert shares.keys() <= move.moved_resources.keys()


@pytest.mark.parametrize(
    ("libvirt", "driver", "migrates"),
    [
        ((9, 0, 0), "mlx5_vfio_pci", False),
        ((9, 10, 0), "igbvf", True),
        ((10, 0, 0), "mlx5_vfio_pci", True),
        ((0, 0, 0), "mlx5_vfio_pci", True),
    ],
)
def test_before_libvirt_10_only_the_bound_driver_migrates(
    libvirt: Version, driver: str, migrates: bool
) -> None:
    """An older libvirt binds vfio-pci, also where the kernel has another driver for the device."""
    devices = NODE_FACTS["vfs"]
    (card,) = (each for each in devices.cards if each.device.address == "0000:41:00.0")
    assert {vf.driver for vf in card.vfs} == {"igbvf"}
    known = dict.fromkeys((vf.address for vf in card.vfs), driver)
    host = replace(NODE, libvirt=libvirt)
    model = build_model(
        host,
        replace(devices, migration_drivers=known),
        (),
        {},
        "boot",
        ModelSettings("node1", HostSettings(), DEVICES),
    )
    (nic,) = (each for each in model.description.providers if each.device == card.key)
    assert ("HW_PCI_LIVE_MIGRATABLE" in nic.traits) is migrates
    assert ("CUSTOM_VFIO_DRIVER_VFIO_PCI" in nic.traits) is not migrates
    # Nor does it bind another driver to functions that vfio-pci has.
    vfs = tuple(replace(vf, driver="vfio-pci") for vf in card.vfs)
    bound = replace(devices, cards=(replace(card, vfs=vfs),), rebound=dict.fromkeys(known, ""))
    model = build_model(host, bound, (), {}, "boot", ModelSettings("node1", HostSettings(), DEVICES))
    (nic,) = (each for each in model.description.providers if each.device == card.key)
    assert ("CUSTOM_VFIO_DRIVER_VFIO_PCI" in nic.traits) is ((0, 0, 0) < libvirt < (10, 0, 0))
    # What the kernel says of a bound driver holds with any libvirt.
    vfs = tuple(replace(vf, driver="mlx5_vfio_pci") for vf in card.vfs)
    bound = replace(devices, cards=(replace(card, vfs=vfs),), migration_drivers=dict.fromkeys(known, ""))
    model = build_model(host, bound, (), {}, "boot", ModelSettings("node1", HostSettings(), DEVICES))
    (nic,) = (each for each in model.description.providers if each.device == card.key)
    assert "CUSTOM_VFIO_DRIVER_VFIO_PCI" in nic.traits and "HW_PCI_LIVE_MIGRATABLE" not in nic.traits


MLX5 = "mlx5_vfio_pci"


@pytest.mark.parametrize(
    ("libvirt", "driver", "said", "becomes_plain"),
    [
        ((9, 0, 0), "igbvf", "", True),
        ((9, 0, 0), "", "", True),
        ((9, 10, 0), "igbvf", ', "managed": "yes"', True),
        ((9, 0, 0), "igbvf", ', "managed": "no"', False),
        ((9, 0, 0), "", ', "managed": "no"', False),
        ((9, 0, 0), "igbvf", ', "live_migratable": "yes"', False),
        ((9, 0, 0), "igbvf", ', "live_migratable": "no"', True),
        ((9, 0, 0), "vfio-pci", "", True),
        ((9, 0, 0), "vfio-pci", ', "managed": "no"', True),
        ((9, 0, 0), MLX5, "", True),
        ((9, 10, 0), MLX5, ', "live_migratable": "no"', True),
        ((9, 0, 0), MLX5, ', "live_migratable": "yes"', False),
        ((9, 0, 0), MLX5, ', "managed": "no"', False),
        ((10, 0, 0), "igbvf", "", False),
        ((10, 0, 0), "", "", False),
        ((10, 0, 0), "vfio-pci", "", False),
        ((10, 0, 0), "vfio-pci", ', "managed": "no"', True),
        ((10, 0, 0), MLX5, "", False),
        ((0, 0, 0), "igbvf", "", False),
        ((0, 0, 0), "vfio-pci", "", False),
    ],
)
def test_before_libvirt_10_a_managed_function_becomes_plain(
    libvirt: Version, driver: str, said: str, becomes_plain: bool
) -> None:
    """virPCIDeviceBindToStub chooses the kernel's driver for the device (here mlx5) from 10.0 on.

    Before that, it replaces any other driver by vfio-pci, also one of VFIO.
    """
    plain, devices = "CUSTOM_VFIO_DRIVER_VFIO_PCI", NODE_FACTS["vfs"]
    (card,) = (each for each in devices.cards if each.device.address == "0000:41:00.0")
    vfs = tuple(replace(vf, driver=driver) for vf in card.vfs)
    cards = tuple(replace(card, vfs=vfs) if each is card else each for each in devices.cards)
    addresses = frozenset(vf.address for vf in vfs)
    known = {} if driver == "vfio-pci" else dict.fromkeys(addresses, MLX5)
    rebound = dict.fromkeys(addresses if driver == "vfio-pci" else (), "")
    facts = replace(devices, cards=cards, migration_drivers=known, rebound=rebound)
    spec = '{"vendor_id": "8086", "product_id": "10ca", "address": "0000:41:10.*"%s}'
    whole = '{"vendor_id": "10de", "product_id": "1eb8"}'
    settings = DeviceSettings(parse_device_specs((spec % said, whole)), DEVICES.mdevs)
    host = replace(NODE, libvirt=libvirt)
    for held in (frozenset[str](), frozenset(sorted(addresses)[:2])):
        texts = [domain(number, devices=interface(each)) for number, each in enumerate(sorted(held), 1)]
        parsed = [parse_domain(text) for text in texts]
        guests = [GuestDomain(guest_of(each, GuestState.RUNNING, 0, frozenset()), each) for each in parsed]
        found = build_model(host, facts, guests, {}, "boot", ModelSettings("node1", HostSettings(), settings))
        told = {each.device: each for each in found.description.providers if plain in each.traits}
        assert told.keys() == ({card.key} if becomes_plain else set()), "no whole card, no vGPU"
        (nic,) = (each for each in found.description.providers if each.device == card.key)
        known_plain = {unit for unit, of_vfio in nic.unit_drivers.items() if of_vfio == plain} - held
        assert known_plain == (addresses - held if becomes_plain else set())
        assert not (becomes_plain and "HW_PCI_LIVE_MIGRATABLE" in nic.traits)
        if driver == MLX5 and not becomes_plain:
            assert "HW_PCI_LIVE_MIGRATABLE" in nic.traits


def test_a_function_that_a_guest_uses_has_what_the_kernel_says_of_it() -> None:
    used, told = "0000:41:10.0", "52:54:00:00:00:01 VLAN 7"
    of_domain = parse_domain(domain(1, devices=interface(used)))
    guests = [GuestDomain(guest_of(of_domain, GuestState.RUNNING, 0, frozenset()), of_domain)]
    devices = replace(NODE_FACTS["vfs"], ports={used: told, "0000:41:10.2": "52:54:00:00:00:02"})
    settings = ModelSettings("node1", HostSettings(), DEVICES)
    (guest,) = build_model(NODE, devices, guests, {}, "boot", settings).guests
    assert [(unit.device, unit.port) for unit in guest.units] == [("pci:0000:41:00.0", told)]
