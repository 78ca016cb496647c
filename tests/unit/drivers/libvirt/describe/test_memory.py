"""Persistent memory, contexts for encrypted memory, and memory for SGX enclaves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kits.libvirt_model import HOST
from kits.libvirt_node import domain

from agent.driver import (
    Cell,
    DescribedInventory,
    DescribedProvider,
    DeviceKind,
    Guest,
    GuestState,
    HostSettings,
    UsedUnit,
)
from agent.errors import SettingsError
from drivers.host.domain_xml import Domain, DomainXml, guest_of, parse_domain
from drivers.host.sysfs import MemoryCell, PmemNamespace
from drivers.host.xml_parser import parse_xml
from drivers.libvirt.describe.host import describe_host, reportable_traits
from drivers.libvirt.describe.memory import (
    counted_encryption,
    encryption_providers,
    epc_providers,
    moved_traits,
    needed_namespaces,
    parse_pmem_namespaces,
    tdx_slots,
    unmatched_namespaces,
    unusable_cells,
    with_context,
    with_epc,
    with_namespaces,
    with_used_namespaces,
    write_namespaces,
)
from drivers.libvirt.xml import merge, parse_domain_capabilities

GIB = 2**30
FOUND = tuple(PmemNamespace(f"ns{n}", f"/dev/dax{n}.0", 6 * GIB, 2 * 2**20) for n in range(3))
LABELS = parse_pmem_namespaces(["6GB:ns0|ns1", "big:ns2|ns9"])
SMALL, BIG = "CUSTOM_PMEM_NAMESPACE_6GB", "CUSTOM_PMEM_NAMESPACE_BIG"
NVDIMM = (
    "<memory model='nvdimm' access='shared'><source><path>{}</path><pmem/></source><target>"
    "<size unit='GiB'>6</size><node>0</node></target></memory>"
)


WITH_FEATURES = """<domainCapabilities><domain>kvm</domain><arch>x86_64</arch><devices/>
<features>{}</features></domainCapabilities>"""


def test_each_label_is_a_class_and_each_name_a_unit_of_the_host() -> None:
    root, cell = DescribedProvider("h", units={"PCPU": ("2",)}), DescribedProvider("c", "h")
    described, other = with_namespaces((root, cell), FOUND, LABELS)
    assert described.units == {"PCPU": ("2",), SMALL: ("ns0", "ns1"), BIG: ("ns2",)}
    assert described.inventories == {
        SMALL: DescribedInventory(2, allocation_ratio=1.0),
        BIG: DescribedInventory(1, allocation_ratio=1.0),
    }
    assert other is cell
    assert with_namespaces((root,), (), LABELS) == (root,)
    (sentence,) = unmatched_namespaces(FOUND, LABELS)
    assert "ns9" in sentence and "devdax" in sentence


def test_cells_that_came_after_libvirt_started_are_told() -> None:
    """libvirt asks libnuma for cells once; seen with libvirt 11.3 and memory that was plugged into a cell."""
    listed = tuple(Cell(number, frozenset(), 512) for number in range(3))
    told = {number: MemoryCell() for number in (2, 3, 4)}
    assert list(unusable_cells({2: told[2]}, listed)) == list(unusable_cells(told, ())) == []
    (sentence,) = unusable_cells(told, listed)
    assert "NUMA cell 3-4," in sentence and "Restart libvirtd" in sentence
    (sentence,) = unusable_cells({2: MemoryCell("unknown")}, listed)
    assert "NUMA cell 2 has is not known: `target_node`" in sentence and "Nothing more of it is" in sentence


@pytest.mark.parametrize(
    "words",
    [["6GB"], ["6 GB:ns0"], [":ns0"], ["a:"], ["a:ns0||ns1"], ["a:ns0|ns0"], ["a:ns0", "b:ns0"], ["a:12"]],
)
def test_what_is_no_label_or_no_name_is_refused(words: list[str]) -> None:
    with pytest.raises(SettingsError, match="pmem_namespaces"):
        parse_pmem_namespaces(words)


def running(read: Domain) -> Guest:
    return guest_of(read, GuestState.RUNNING, 0, frozenset())


def test_a_guest_uses_the_namespaces_that_its_domain_names() -> None:
    devices = "".join(NVDIMM.format(path) for path in ("/dev/dax1.0", "/var/lib/file", "/dev/dax2.0"))
    read = parse_domain(domain(1, devices=devices, memory_mb=18 * 1024 + 512))
    assert read.memory_mb == 512, "libvirt adds these devices to <memory>; they take none of the host's"
    guest = with_used_namespaces(running(read), read, FOUND, LABELS)
    assert guest.units == (UsedUnit(SMALL, "ns1", "host"), UsedUnit(BIG, "ns2", "host"))
    assert guest.resources == {"VCPU": 1, "MEMORY_MB": 512, SMALL: 1, BIG: 1}
    assert with_used_namespaces(running(read), read, FOUND, {}) == running(read)


def test_a_memory_without_them_stays_whole() -> None:
    numa = "<cpu><numa><cell id='0' cpus='0' memory='512' unit='MiB'/></numa></cpu>"
    read = parse_domain(domain(1, inside=numa, devices=NVDIMM.format("/dev/dax0.0")))
    assert read.memory_mb == 512, "as an operator writes it, before libvirt adds the sizes"


def test_a_domain_gets_a_memory_device_for_each_namespace_once() -> None:
    given = write_namespaces(domain(1), FOUND[:2])
    read = parse_domain(given)
    assert read.memory_files == ("/dev/dax0.0", "/dev/dax1.0")
    assert '<maxMemory slots="2" unit="KiB">13107200</maxMemory>' in given.replace("'", '"')
    assert "<alignsize unit='KiB'>2048</alignsize>" in given and "<node>0</node>" in given
    assert given.count(f"<size unit='KiB'>{6 * 2**20}</size>") == 2, "each as large as its namespace"
    assert write_namespaces(given, FOUND[:2]) == given
    more = write_namespaces(given, FOUND)
    assert '<maxMemory slots="3" unit="KiB">19398656</maxMemory>' in more.replace("'", '"')


def test_a_domain_needs_the_configured_namespaces_that_it_names() -> None:
    text = domain(1, devices=NVDIMM.format("/dev/dax2.0") + NVDIMM.format("/var/lib/file"))
    (needed,) = needed_namespaces(DomainXml.parse(text).memory_files, FOUND, LABELS)
    assert (needed.kind, needed.unit) == (DeviceKind.MEMORY, "ns2")
    assert not list(needed_namespaces(parse_xml(text, "x", "domain"), FOUND, {}))


WITH_SEV = """<domainCapabilities><domain>kvm</domain><arch>x86_64</arch><devices/><features>
<sev supported='yes'><maxGuests>{sev}</maxGuests><maxESGuests>{es}</maxESGuests></sev>{more}
</features></domainCapabilities>"""
SNP = "<launchSecurity supported='yes'><enum name='sectype'><value>sev-snp</value></enum></launchSecurity>"
SEV_TRAIT, ES_TRAIT, SNP_TRAIT = (f"HW_CPU_X86_AMD_SEV{end}" for end in ("", "_ES", "_SNP"))


@pytest.mark.parametrize(
    ("sev", "es", "more", "offered"),
    [
        (15, 0, "", {"node1_amd_sev": (15, SEV_TRAIT)}),
        (400, 109, "", {"node1_amd_sev": (400, SEV_TRAIT), "node1_amd_sev_es": (109, ES_TRAIT)}),
        (400, 109, SNP, {"node1_amd_sev": (400, SEV_TRAIT), "node1_amd_sev_snp": (109, SNP_TRAIT)}),
        (0, 0, "", {}),
    ],
)
def test_each_kind_has_a_provider_with_the_processors_number(
    sev: int, es: int, more: str, offered: dict[str, tuple[int, str]]
) -> None:
    """SEV-ES and SEV-SNP share one pool of keys: it is never offered twice."""
    guests = parse_domain_capabilities(WITH_SEV.format(sev=sev, es=es, more=more))
    providers = {provider.name: provider for provider in encryption_providers("node1", guests)}
    assert {
        name: (provider.inventories["MEM_ENCRYPTION_CONTEXT"].total, *provider.traits)
        for name, provider in providers.items()
    } == offered
    for provider in providers.values():
        assert provider.inventories["MEM_ENCRYPTION_CONTEXT"].max_unit == 1 and provider.parent == "node1"


def test_the_traits_are_where_the_contexts_are_and_not_on_the_root() -> None:
    guests = parse_domain_capabilities(WITH_SEV.format(sev=400, es=109, more=SNP))
    facts = replace(HOST, guests=merge([guests, guests]))
    (root, *_) = describe_host(facts, HostSettings(), "node1")
    assert not {SEV_TRAIT, ES_TRAIT, SNP_TRAIT} & root.traits
    assert moved_traits(guests) == {SEV_TRAIT, ES_TRAIT, SNP_TRAIT}
    assert moved_traits(guests) <= reportable_traits(facts)
    assert "HW_CPU_AMD_SEV" in root.traits


@pytest.mark.parametrize(
    ("capacity", "configured", "slots"),
    [
        ("sev 0\ntdx 31\n", None, 31),
        ("tdx 31\n", 4, 4),
        ("tdx 31\n", 99, 31),
        ("tdx 31\n", 0, 0),
        ("res_a 5\ntdx many\n", None, 0),
        ("sev 9\n", 4, 4),
        (None, None, 0),
        (None, 4, 4),
    ],
)
def test_tdx_has_the_lower_of_the_kernels_number_and_the_operators(
    capacity: str | None, configured: int | None, slots: int
) -> None:
    """As nova documents num_intel_tdx_guests; alone it counts where the kernel tells nothing."""
    assert tdx_slots(capacity, configured) == slots


def test_tdx_has_the_keys_that_the_kernel_counts() -> None:
    guests = parse_domain_capabilities(WITH_SEV.format(sev=0, es=0, more="<tdx supported='yes'/>"))
    assert not list(encryption_providers("node1", guests))
    (provider,) = encryption_providers("node1", replace(guests, slots={"tdx": 63}))
    assert (provider.name, provider.traits) == ("node1_intel_tdx", {"HW_CPU_X86_INTEL_TDX"})


@pytest.mark.parametrize(
    ("security", "uses"),
    [
        ("", 0),
        ("<launchSecurity type='sev'><policy>0x5</policy></launchSecurity>", 1),
        ("<launchSecurity type='sev-snp'/>", 1),
        ("<launchSecurity type='tdx'/>", 1),
        ("<launchSecurity type='s390-pv'/>", 0),
    ],
)
def test_a_guest_with_encrypted_memory_uses_one(security: str, uses: int) -> None:
    uuid = "<uuid>6d3a1fb4-5d6c-4a61-b1f5-0f5a5b6a0b01</uuid>"
    domain = parse_domain(f"<domain>{uuid}<name>a</name><memory>1048576</memory>{security}</domain>")
    guests = parse_domain_capabilities(WITH_SEV.format(sev=15, es=0, more=""))
    guest = Guest(domain.uuid, "a", GuestState.RUNNING, {"VCPU": 1})
    used = with_context(guest, domain, counted_encryption(guests))
    assert used.resources.get("MEM_ENCRYPTION_CONTEXT", 0) == uses
    assert with_context(guest, domain, counted_encryption(None)) == guest


@pytest.mark.parametrize(
    ("kind", "device", "uses"),
    [
        ("tdx", "hostdev", 1),
        ("sev-snp", "disk", 1),
        ("tdx", "", 0),
        ("sev", "hostdev", 0),
        ("", "hostdev", 0),
    ],
)
def test_a_confidential_guest_with_a_card_uses_one_where_none_are_counted(
    kind: str, device: str, uses: int
) -> None:
    """An NVMe disk of the host is a card as well."""
    address = "<address domain='0' bus='0x43' slot='0' function='0'/>"
    own = {
        "": "",
        "hostdev": f"<hostdev type='pci' mode='subsystem'><source>{address}</source></hostdev>",
        "disk": f"<disk type='nvme'><source type='pci'>{address}</source><target dev='a'/></disk>",
    }
    security = f"<launchSecurity type='{kind}'/>" if kind else ""
    read = parse_domain(domain(1, inside=security, devices=own[device]))
    guest = with_context(guest_of(read, GuestState.RUNNING, 0, frozenset()), read, frozenset())
    assert guest.resources.get("MEM_ENCRYPTION_CONTEXT", 0) == uses


def test_what_libvirt_does_not_have_is_asked_for_and_so_refused() -> None:
    """But not a kind whose number alone is not known: such a guest may start."""
    none = parse_domain_capabilities(WITH_FEATURES.format("<sev supported='no'/>"))
    assert counted_encryption(none) >= {"HW_CPU_X86_AMD_SEV_SNP", "HW_CPU_X86_INTEL_TDX"}
    uncounted = parse_domain_capabilities(WITH_FEATURES.format("<tdx supported='yes'/>"))
    assert "HW_CPU_X86_AMD_SEV" in counted_encryption(uncounted)
    assert "HW_CPU_X86_INTEL_TDX" not in counted_encryption(uncounted)


SGX = """<sgx supported='yes'><flc>no</flc><sgx1>yes</sgx1><sgx2>no</sgx2>
<section_size unit='KiB'>524288</section_size><sections><section node='0' unit='KiB' size='262144'/>
<section node='1' unit='KiB' size='262144'/></sections></sgx>"""
EPC = """<memory model='sgx-epc'><source><nodemask>0-1</nodemask></source><target>
<size unit='KiB'>16384</size><node>0</node></target></memory>"""


def test_each_cell_has_a_provider_with_its_amount() -> None:
    guests = parse_domain_capabilities(WITH_FEATURES.format(SGX))
    assert guests.epc == {0: 2**28, 1: 2**28}
    flat = list(epc_providers("h", merge([guests, guests])))
    assert [(each.name, each.parent, each.cell) for each in flat] == [
        ("h_numa0_sgx_epc", "h", 0),
        ("h_numa1_sgx_epc", "h", 1),
    ]
    assert {each.inventories["CUSTOM_SGX_EPC_MB"].total for each in flat} == {256}
    assert [each.parent for each in epc_providers("h", guests, report_numa=True)] == ["h_numa0", "h_numa1"]


def test_without_sgx_or_without_sections_there_is_none() -> None:
    for features in ("", "<sgx supported='no'/>", "<sgx supported='yes'><sections/></sgx>"):
        assert not list(epc_providers("h", parse_domain_capabilities(WITH_FEATURES.format(features))))
    assert not list(epc_providers("h", None))


def test_a_guest_uses_what_its_domain_has_and_no_other_memory_for_it() -> None:
    numa = "<cpu><numa><cell id='0' cpus='0' memory='512' unit='MiB'/></numa></cpu>"
    read = parse_domain(domain(1, memory_mb=528, inside=numa, devices=EPC))
    guest = with_epc(guest_of(read, GuestState.RUNNING, 0, frozenset()), read)
    assert guest.resources == {"VCPU": 1, "MEMORY_MB": 512, "CUSTOM_SGX_EPC_MB": 16}
    plain = parse_domain(domain(1))
    guest = guest_of(plain, GuestState.RUNNING, 0, frozenset())
    assert with_epc(guest, plain) is guest
