"""From a request to a domain that libvirt has: the command claims, completes and defines it."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import libvirt
import pytest
from kits.agent import World, opened
from kits.api_client import serving
from kits.cli_process import output_of, plimsoll
from kits.domain_requests import DomainCase, draw_case
from kits.libvirt_daemon import PrivateLibvirtd, small_domain
from kits.tracker import fast_directory

from agent.claims.claim import Claim
from agent.cli.domain import Libvirt
from agent.config.settings import load
from agent.driver import GivenDevice, GivenResources, UsedMemory
from agent.errors import ExitCode, UsageError
from drivers.fake.host import FakeHost, Gpu, Nic, cell
from drivers.host.domain_writer import write_domain
from drivers.host.domain_xml import Domain, parse_domain, read_needs
from drivers.host.providers import described_locations
from drivers.host.sysfs import PmemNamespace
from drivers.libvirt.describe.devices import write_vdpa
from drivers.libvirt.describe.memory import write_namespaces

pytestmark = [pytest.mark.libvirtd, pytest.mark.slow]

CASES = 6
MDEVS = tuple(f"4b20d080-1b54-4048-85b3-a6a62d165c{number:02}" for number in range(8))
HOST = FakeHost(
    tuple(
        cell(number, frozenset(range(12 * number, 12 * number + 12)), 4096, 2, {2048: 512})
        for number in (0, 1)
    ),
    gpus=(
        Gpu("0000:42:00.0", "VGPU", 4, MDEVS[:4], frozenset({"CUSTOM_MDEV_TYPE_NVIDIA_11"}), numa=0),
        Gpu("0000:82:00.0", "VGPU", 4, MDEVS[4:], frozenset({"CUSTOM_MDEV_TYPE_NVIDIA_11"}), numa=1),
        Gpu("0000:43:00.0", "PGPU", 1, ("0000:43:00.0",), numa=0),
        Gpu("0000:83:00.0", "PGPU", 1, ("0000:83:00.0",), numa=1),
    ),
    nics=(
        Nic("enp65s0", "0000:41:00.0", ("0000:41:10.0", "0000:41:10.2"), "red", numa=0),
        Nic("enp129s0", "0000:81:00.0", ("0000:81:10.0", "0000:81:10.2"), "blue", numa=1),
    ),
)
CONFIG = """[DEFAULT]
compute_driver = fake
host = hv1
state_path = {}
[compute]
cpu_dedicated_set = 4-11,16-23
cpu_shared_set = 0-3,12-15
[pci]
alias = {{"name": "t4", "resource_class": "PGPU"}}
[placement]
kind = embedded
"""


@contextmanager
def world(*, report_numa: bool = False) -> Iterator[tuple[World, Path]]:
    with fast_directory() as name:
        directory = Path(name)
        file = directory / "plimsoll.conf"
        file.write_text(CONFIG.format(directory))
        with opened(load([file])) as world:
            host = replace(HOST, report_numa=report_numa)
            world.driver.change(
                cells=host.cells, gpus=host.gpus, nics=host.nics, report_numa=host.report_numa
            )
            world.agent.reconcile("the start")
            with serving(world.operations, directory / "s"):
                yield world, directory / "s"


def claimed(world: World, consumer: str) -> Claim:
    claim = dict(world.agent.host_status.overview().claims)[consumer]
    assert isinstance(claim, Claim)
    return claim


def check_defined(case: DomainCase, text: str, world: World) -> None:
    """What libvirt has is what was claimed, read without the writer."""
    claim, domain = claimed(world, case.uuid), parse_domain(text)
    units: dict[str, set[str]] = {}
    for _, name, unit in claim.exact:
        units.setdefault(name, set()).add(unit)
    assert {*domain.interfaces} == units.get("SRIOV_NET_VF", set()) and len(domain.interfaces) == len(
        case.networks
    )
    assert {*domain.mdevs} == units.get("VGPU", set()) and len(domain.mdevs) == case.vgpu
    assert {*domain.pci_devices} == units.get("PGPU", set()) and len(domain.pci_devices) == case.card
    assert (domain.vcpus, domain.memory_mb) == (case.vcpus, case.memory_mb)
    cells = {placed.guest_cell: placed for placed in claim.cells}
    if case.pinned:
        pins = {cpu: {pin} for placed in cells.values() for cpu, pin in placed.pinning.items()}
        assert {cpu: set(cpus) for cpu, cpus in domain.pins.items()} == pins and len(pins) == case.vcpus
        assert domain.emulator_pin == frozenset().union(*pins.values())
    assert {part.guest_cell: part.cell for part in domain.memory} == {
        number: placed.host_cell for number, placed in cells.items()
    }
    assert {part.page_kib for part in domain.memory} == ({2048} if case.pages else {None} if cells else set())
    root = ElementTree.fromstring(text)
    assert "as it is" in text
    check_networks(case, root)
    check_localities(root, domain, claim, world)


def check_networks(case: DomainCase, root: ElementTree.Element) -> None:
    cards = {"aa": "0x41", "bb": "0x81"}
    for interface in root.findall("devices/interface"):
        mac, source = interface.find("mac"), interface.find("source/address")
        assert mac is not None and source is not None
        assert source.get("bus") == cards[mac.get("address", "").split(":")[4]], case


def check_localities(root: ElementTree.Element, domain: Domain, claim: Claim, world: World) -> None:
    """Each device of a cell that the guest has is behind the expander bus of the guest's cell."""
    locations = described_locations(world.driver.describe().providers)
    host_cells = {each.device: each.cell for each in world.driver.describe().providers}
    guest_cells = {placed.host_cell: placed.guest_cell for placed in claim.cells}
    buses = {each.get("index"): each for each in root.findall("devices/controller[@type='pci']")}
    for element in (*root.findall("devices/interface"), *root.findall("devices/hostdev")):
        source, address = element.find("source/address"), element.find("address")
        assert source is not None and address is not None
        unit = source.get("uuid") or "0000:{}:{}.{}".format(
            *(source.get(part, "").removeprefix("0x") for part in ("bus", "slot", "function"))
        )
        cell_of_device = host_cells[locations[unit].device]
        if cell_of_device in guest_cells:
            port = buses[str(int(address.get("bus", ""), 16))]
            upstream = port.find("address")
            assert upstream is not None
            expander = buses[str(int(upstream.get("bus", ""), 16))]
            assert expander.get("model") == "pcie-expander-bus"
            assert expander.findtext("target/node") == str(guest_cells[cell_of_device])


@pytest.mark.parametrize("report_numa", [False, True], ids=("flat", "cells"))
def test_libvirt_takes_each_domain(libvirtd: PrivateLibvirtd, tmp_path: Path, report_numa: bool) -> None:
    with world(report_numa=report_numa) as (host, socket), closing(libvirt.open(libvirtd.uri)) as connection:
        for seed in range(CASES * report_numa, CASES * (1 + report_numa)):
            case = draw_case(seed)
            file = tmp_path / f"{case.name}.xml"
            file.write_text(case.xml, encoding="utf-8")
            words = ("--domain", str(file), *case.options, "--define", "--connect", libvirtd.uri)
            done = plimsoll(socket, "claim", *words)
            assert done.returncode == ExitCode.DONE, (case, done.stderr)
            domain = connection.lookupByUUIDString(case.uuid)
            check_defined(case, domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE), host)
            # What libvirt made of it is no contradiction, and nothing new.
            assert "defined" in output_of(socket, "domain", case.uuid, "--define", "--connect", libvirtd.uri)
            domain.undefine()
            output_of(socket, "release", case.uuid)


REFUSED = draw_case(1).xml.replace("q35", "no-such-machine")


def test_a_domain_that_libvirt_refuses_leaves_no_claim(libvirtd: PrivateLibvirtd, tmp_path: Path) -> None:
    case, file = draw_case(1), tmp_path / "refused.xml"
    file.write_text(REFUSED, encoding="utf-8")
    words = ("--domain", str(file), *case.options, "--start", "--connect", libvirtd.uri)
    with world() as (host, socket):
        refused = plimsoll(socket, "claim", *words)
        assert refused.returncode == ExitCode.FAILED
        assert "libvirt did not define the domain" in refused.stderr
        assert f"the claim of {case.uuid} was released again" in refused.stderr
        assert not host.agent.host_status.overview().claims
        kept = plimsoll(socket, "claim", *words, "--keep")
        assert f"the claim of {case.uuid} is kept" in kept.stderr
        again = plimsoll(socket, "claim", *words)
        assert f"the claim of {case.uuid} is kept: it was there before" in again.stderr
        assert list(host.agent.host_status.overview().claims) == [case.uuid]
        unreachable = plimsoll(socket, "claim", *words[:-1], "test:///no/such/file")
        assert "cannot be reached" in unreachable.stderr


def test_a_domain_that_does_not_start_leaves_what_was_there(
    libvirtd: PrivateLibvirtd, tmp_path: Path
) -> None:
    """Its function is on no bus of this machine."""
    uuid, file = draw_case(1).uuid, tmp_path / "ports.xml"
    former = (
        f"<domain type='qemu'><name>ports</name><uuid>{uuid}</uuid><memory unit='MiB'>32</memory>"
        "<os><type arch='x86_64' machine='q35'>hvm</type></os></domain>"
    )
    port = "<devices><interface type='hostdev'><alias name='ua-red'/></interface></devices>"
    file.write_text(former.replace("</domain>", f"{port}</domain>"), encoding="utf-8")
    words = ("--domain", str(file), "--start", "--connect", libvirtd.uri)
    with world() as (host, socket), closing(libvirt.open(libvirtd.uri)) as connection:
        assert "did not start" in plimsoll(socket, "claim", *words).stderr
        with pytest.raises(libvirt.libvirtError):
            connection.lookupByUUIDString(uuid)
        defined = connection.defineXML(former)
        assert "did not start" in plimsoll(socket, "claim", *words).stderr
        assert "hostdev" not in defined.XMLDesc() and not host.agent.host_status.overview().claims
        defined.undefine()
    with pytest.raises(UsageError, match="give its XML as a FILE"):
        Libvirt(libvirtd.uri).definition(uuid)


def test_libvirt_takes_memory_devices_and_vdpa_and_counts_the_memory_as_the_agent_does() -> None:
    """libvirt adds the size of a memory device that is a file to <memory>; the guest's memory is without."""
    numa = "</features><cpu><numa><cell id='0' cpus='0' memory='32' unit='MiB'/></numa></cpu>"
    xml = small_domain("web", MDEVS[0]).replace("</features>", numa)
    xml = write_namespaces(xml, [PmemNamespace("ns0", "/dev/dax0.0", 2**30, 2**21)])
    given = [GivenDevice("", "CUSTOM_VDPA", "0000:41:10.0")]
    xml = write_vdpa(xml, given, {"/dev/vhost-vdpa-0": "0000:41:10.0"})
    daemon = PrivateLibvirtd()
    daemon.start()
    try:
        with closing(libvirt.open(daemon.uri)) as connection:
            defined = connection.defineXML(xml).XMLDesc()
    finally:
        daemon.stop()
    read = parse_domain(defined)
    assert "<memory unit='KiB'>1081344</memory>" in defined, "32 MiB and 1 GiB"
    assert (read.memory_mb, read_needs(defined).memory_mb) == (32, 32)
    assert (read.memory_files, read.vdpa) == (("/dev/dax0.0",), ("/dev/vhost-vdpa-0",))


def test_a_guest_starts_with_a_cell_for_its_memory_of_a_cell_without_cpus(libvirtd: PrivateLibvirtd) -> None:
    """QEMU binds that cell alone; cell 0 of this machine stands in for the one without CPUs."""
    consumer = "4b20d080-1b54-4048-85b3-a6a62d165cff"
    given = GivenResources(consumer, "far", 2, 64, cpuless_mb={0: 32})
    text = write_domain(small_domain("far", consumer, memory_mb=64, vcpus=2), given)
    with closing(libvirt.open(libvirtd.uri)) as connection:
        domain = connection.createXML(text)
        try:
            words = Path(f"/proc/{libvirtd.qemu('far')}/cmdline").read_text().split("\0")
            used = parse_domain(domain.XMLDesc())
        finally:
            domain.destroy()
    memory = [word for word in words if "memory-backend" in word]
    assert [("bind" in word, '"host-nodes":[0]' in word) for word in memory] == [(False, False), (True, True)]
    assert (used.memory_mb, used.memory) == (96, (UsedMemory(0, 32, None, 1),))
