"""Contexts for encrypted memory: the processor's numbers, a provider for each kind, and the guests' use."""

from __future__ import annotations

from dataclasses import replace

import pytest
from kits.libvirt_model import HOST

from agent.driver import Guest, GuestState, HostSettings
from drivers.host.domain_xml import parse_domain
from drivers.libvirt.describe.host import describe_host, reportable_traits
from drivers.libvirt.describe.memory import encryption_providers, moved_traits, tdx_slots, with_context
from drivers.libvirt.xml import merge, parse_domain_capabilities

CAPABILITIES = """<domainCapabilities><domain>kvm</domain><arch>x86_64</arch><devices/><features>
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
    guests = parse_domain_capabilities(CAPABILITIES.format(sev=sev, es=es, more=more))
    providers = {provider.name: provider for provider in encryption_providers("node1", guests)}
    assert {
        name: (provider.inventories["MEM_ENCRYPTION_CONTEXT"].total, *provider.traits)
        for name, provider in providers.items()
    } == offered
    for provider in providers.values():
        assert provider.inventories["MEM_ENCRYPTION_CONTEXT"].max_unit == 1 and provider.parent == "node1"


def test_the_traits_are_where_the_contexts_are_and_not_on_the_root() -> None:
    guests = parse_domain_capabilities(CAPABILITIES.format(sev=400, es=109, more=SNP))
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
    guests = parse_domain_capabilities(CAPABILITIES.format(sev=0, es=0, more="<tdx supported='yes'/>"))
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
    guests = parse_domain_capabilities(CAPABILITIES.format(sev=15, es=0, more=""))
    guest = Guest(domain.uuid, "a", GuestState.RUNNING, {"VCPU": 1})
    used = with_context(guest, domain, tuple(encryption_providers("node1", guests)))
    assert used.resources.get("MEM_ENCRYPTION_CONTEXT", 0) == uses
    assert with_context(guest, domain, ()) == guest
