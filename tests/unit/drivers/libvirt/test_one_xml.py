"""What a claim for a domain asks for is what the gate asks for, and what the driver sees used."""

from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.examples import examples

from agent.claims.domain_demand import HostDevices, demand_of_domain
from agent.claims.fit import ProviderIndex
from agent.claims.request import ClaimRequest
from agent.driver import DescribedProvider, DeviceKind, GuestState, NeededDevice
from agent.errors import UsageError
from agent.tree import Inventory, Provider, ProviderTree
from drivers.host.domain_xml import guest_of, parse_domain, read_needs
from drivers.libvirt.describe.model import (
    HostModel,
    ModelSettings,
    with_devices_of_domain,
    with_other_devices,
)

UUID = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"
DEDICATED = frozenset({4, 5, 6, 7})
GPU = ProviderTree(
    [Provider("host", "host"), Provider("gpu", "gpu", "host", {"PGPU": Inventory(1)})],
)
DEVICES = HostDevices(ProviderIndex.of(GPU, "host"), {"gpu": {"PGPU": ("0000:43:00.0",)}})


class _NoDevices:
    cards = ()


class _Model:
    """A host that has contexts for encrypted memory, if `contexts`."""

    def __init__(self, contexts: bool) -> None:
        described = DescribedProvider("sev", "host", {}, frozenset())
        self.encryption = (described,) if contexts else ()
        self.pmem = ()
        self.devices = _NoDevices()


class _Settings:
    pmem: dict[str, str] = {}  # noqa: RUF012


@settings(max_examples=examples(100))
@given(
    st.integers(1, 4),
    st.sets(st.sampled_from(sorted(DEDICATED))),
    st.sampled_from(["", "sev", "sev-snp", "tdx", "s390-pv"]),
    st.lists(st.tuples(st.sampled_from(["sgx-epc", "dimm", "nvdimm", "virtio-mem"]), st.integers(1, 300))),
    st.booleans(),
    st.integers(0, 3),
    st.sampled_from(["", " cpuset='0-3'", " cpuset='4-5'", " placement='auto'"]),
    st.sampled_from(["", "<hugepages/>", "<source type='file'/>", "<nosharepages/>"]),
    st.booleans(),
    st.sampled_from(["", "0", "4", "6", "7", "4-5"]),
)
def test_claim_and_gate_ask_for_the_same_amounts(
    vcpus: int,
    pins: set[int],
    security: str,
    memory: list[tuple[str, int]],
    contexts: bool,
    later: int,
    placement: str,
    backing: str,
    cells: bool,
    emulator: str,
) -> None:
    pinned = list(zip(range(vcpus), sorted(pins), strict=False))
    plugged_mb = sum(mb for _, mb in memory) if cells else 0  # libvirt adds it to that of the cells
    xml = (
        f"<domain type='kvm'><uuid>{UUID}</uuid><name>web</name>"
        f"<memory unit='MiB'>{4096 + plugged_mb}</memory>"
        f"<vcpu current='{vcpus}'{placement}>{vcpus + later}</vcpu><cputune>"
        + "".join(f"<vcpupin vcpu='{cpu}' cpuset='{pin}'/>" for cpu, pin in pinned)
        + "".join(f"<vcpupin vcpu='{cpu}' cpuset='0'/>" for cpu in range(vcpus, vcpus + later))
        + (f"<emulatorpin cpuset='{emulator}'/>" if emulator else "")
        + "<iothreadpin iothread='1' cpuset='4'/></cputune><iothreads>1</iothreads>"
        + f"<memoryBacking>{backing}</memoryBacking>"
        + (
            f"<cpu><numa><cell id='0' cpus='0-{vcpus + later - 1}' memory='4096' unit='MiB'/></numa></cpu>"
            if cells
            else ""
        )
        + (f"<launchSecurity type='{security}'/>" if security else "")
        + "<devices><tpm model='tpm-tis'><backend type='emulator' version='2.0'/></tpm>"
        + "".join(
            f"<memory model='{model}'><target><size unit='MiB'>{mb}</size></target></memory>"
            for model, mb in memory
        )
        + "</devices></domain>"
    )
    model, options = cast(HostModel, _Model(contexts)), cast(ModelSettings, _Settings())
    needs = with_other_devices(read_needs(xml, DEDICATED), xml, model, options)
    claimed = demand_of_domain(needs, ClaimRequest(UUID, ()), DEVICES).request.resources
    domain = parse_domain(xml)
    guest = guest_of(domain, GuestState.STARTING, 0, DEDICATED)
    asked = with_devices_of_domain(guest, domain, model.encryption, (), options).resources
    assert claimed == asked


@pytest.mark.parametrize("alias", ["", "fast"])
def test_a_disk_that_names_no_device_is_given_no_other_pci_device(alias: str) -> None:
    name = f"<alias name='ua-{alias}'/>" if alias else ""
    xml = (
        "<domain><memory unit='MiB'>64</memory><devices>"
        f"<disk type='nvme' device='disk'>{name}<source type='pci'/></disk></devices></domain>"
    )
    needs = read_needs(xml)
    assert needs.devices == (
        NeededDevice(DeviceKind.PCI, alias, "", needs.devices[0].text, by_name_only=True),
    )
    with pytest.raises(UsageError, match="has no address"):
        demand_of_domain(needs, ClaimRequest(UUID, ()), DEVICES)
    graphics = replace(needs, devices=(replace(needs.devices[0], alias="pgpu"),))
    assert demand_of_domain(graphics, ClaimRequest(UUID, ()), DEVICES).request.resources["PGPU"] == 1
