"""Memory for enclaves: libvirt's sections by cell, a provider each, and what guests have."""

from __future__ import annotations

from kits.libvirt_node import domain

from agent.driver import GuestState
from drivers.host.domain_xml import guest_of, parse_domain
from drivers.libvirt.describe.memory import epc_providers, with_epc
from drivers.libvirt.xml import merge, parse_domain_capabilities

CAPABILITIES = """<domainCapabilities><domain>kvm</domain><arch>x86_64</arch><devices/><features>{}</features>
</domainCapabilities>"""
SGX = """<sgx supported='yes'><flc>no</flc><sgx1>yes</sgx1><sgx2>no</sgx2>
<section_size unit='KiB'>524288</section_size><sections><section node='0' unit='KiB' size='262144'/>
<section node='1' unit='KiB' size='262144'/></sections></sgx>"""
EPC = """<memory model='sgx-epc'><source><nodemask>0-1</nodemask></source><target>
<size unit='KiB'>16384</size><node>0</node></target></memory>"""


def test_each_cell_has_a_provider_with_its_amount() -> None:
    guests = parse_domain_capabilities(CAPABILITIES.format(SGX))
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
        assert not list(epc_providers("h", parse_domain_capabilities(CAPABILITIES.format(features))))
    assert not list(epc_providers("h", None))


def test_a_guest_uses_what_its_domain_has_and_no_other_memory_for_it() -> None:
    numa = "<cpu><numa><cell id='0' cpus='0' memory='512' unit='MiB'/></numa></cpu>"
    read = parse_domain(domain(1, memory_mb=528, inside=numa, devices=EPC))
    guest = with_epc(guest_of(read, GuestState.RUNNING, 0, frozenset()), read)
    assert guest.resources == {"VCPU": 1, "MEMORY_MB": 512, "CUSTOM_SGX_EPC_MB": 16}
    plain = parse_domain(domain(1))
    guest = guest_of(plain, GuestState.RUNNING, 0, frozenset())
    assert with_epc(guest, plain) is guest
