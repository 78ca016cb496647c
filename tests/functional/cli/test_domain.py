"""`plimsoll domain` on a real agent: from a claim to a domain that names its very devices.

`plimsoll move begin --domain` writes it with the devices, CPUs and cells of the destination.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from kits.agent import World, opened
from kits.api_client import serving
from kits.cli_process import one_line, output_of, plimsoll
from kits.status import Sight

from agent.claims.claim import Claim, GroupMapping
from agent.config.settings import load
from agent.errors import ExitCode
from agent.shapes import by_class
from drivers.fake.host import FakeHost, Gpu, Nic, cell
from drivers.host.domain_xml import parse_domain
from drivers.host.xml_parser import pci_address

DOMAIN = """<domain type='kvm'>
  <name>web9</name>
  <os><type machine='q35'>hvm</type></os>
  <!-- kept -->
</domain>
"""


@pytest.fixture
def domain(tmp_path: Path) -> Path:
    path = tmp_path / "web9.xml"
    path.write_text(DOMAIN, encoding="utf-8")
    return path


def test_the_domain_names_the_function_that_was_claimed(fresh: tuple[Sight, Path], domain: Path) -> None:
    shown, path = fresh
    output_of(
        path,
        "claim",
        "--name",
        "web9",
        "--resources",
        "VCPU=2,MEMORY_MB=1GiB",
        "--group",
        "NET:SRIOV_NET_VF=1",
    )
    (claim,) = shown.world.agent.host_status.overview().claims.values()
    ((unit,),) = (exact for classes in claim.units.values() for exact in classes.values())
    written = output_of(path, "domain", "web9", str(domain))
    root = ElementTree.fromstring(written)
    assert (root.findtext("uuid"), root.findtext("vcpu"), root.findtext("memory")) == (
        claim.consumer,
        "2",
        "1024",
    )
    address = root.find("devices/interface/source/address")
    assert address is not None
    bus, slot, function = (int(address.get(part, ""), 16) for part in ("bus", "slot", "function"))
    assert f"0000:{bus:02x}:{slot:02x}.{function:x}" == unit
    alias = root.find("devices/interface/alias")
    assert alias is not None and alias.get("name") == "ua-NET"
    assert "  <!-- kept -->\n" in written


def test_a_contradiction_is_one_line(fresh: tuple[Sight, Path], domain: Path) -> None:
    _, path = fresh
    output_of(path, "claim", "--name", "web9", "--resources", "VCPU=2,MEMORY_MB=1024")
    domain.write_text(DOMAIN.replace("</name>", "</name><vcpu>4</vcpu>"), encoding="utf-8")
    refused = plimsoll(path, "domain", "web9", str(domain))
    assert refused.returncode == ExitCode.USAGE
    assert "<vcpu> is 4, and the claim has 2 CPUs" in one_line(refused)


def test_what_cannot_be_written_is_said(fresh: tuple[Sight, Path], domain: Path) -> None:
    _, path = fresh
    unknown = plimsoll(path, "domain", "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a60", str(domain))
    assert unknown.returncode == ExitCode.FAILED and "has no claim on this host" in one_line(unknown)
    missing = plimsoll(path, "domain", "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a60", str(domain) + ".no")
    assert missing.returncode == ExitCode.USAGE and "cannot be read" in one_line(missing)


PORTS = """<domain type='kvm'>
  <name>web9</name>
  <memory unit='GiB'>2</memory>
  <vcpu>2</vcpu>
  <os><type machine='q35'>hvm</type></os>
  <devices>
    <interface type='hostdev' managed='yes'>
      <mac address='52:54:00:00:00:01'/>
      <alias name='ua-red'/>
    </interface>
    <interface type='hostdev' managed='yes'>
      <mac address='52:54:00:00:00:02'/>
      <alias name='ua-physnet0'/>
    </interface>
    <hostdev mode='subsystem' type='mdev' model='vfio-pci'/>
  </devices>
</domain>
"""
RED = ("--group", "red:SRIOV_NET_VF=1,NET_BW_EGR_KILOBIT_PER_SEC=5Gbit")


def claims(shown: Sight) -> dict[str, Claim]:
    return dict(shown.world.agent.host_status.overview().claims)


def units_of_mapping(mapping: GroupMapping) -> set[str]:
    return {unit for classes in mapping.units.values() for exact in classes.values() for unit in exact}


def units_of(claim: Claim) -> set[str]:
    return {unit for classes in claim.units.values() for exact in classes.values() for unit in exact}


def test_a_domain_is_claimed_for_and_completed(fresh: tuple[Sight, Path], domain: Path) -> None:
    shown, path = fresh
    domain.write_text(PORTS, encoding="utf-8")
    assert output_of(path, "claim", "--domain", str(domain), *RED, "--dry-run").startswith("it fits")
    assert not claims(shown)
    written = output_of(path, "claim", "--domain", str(domain), *RED)
    (claim,) = claims(shown).values()
    tree = shown.world.operations.providers()
    assert claim.request.resources["SRIOV_NET_VF"] == 2 and claim.request.resources["VGPU"] == 1
    assert claim.request.resources["MEMORY_MB"] == 2048
    named = parse_domain(written)
    assert {*named.interfaces, *named.mdevs} == units_of(claim)
    ports = ElementTree.fromstring(written).findall("devices/interface")
    mappings = {mapping.label: units_of_mapping(mapping) for mapping in claim.mappings(tree)}
    for port, (label, mac) in zip(
        ports, (("red", "52:54:00:00:00:01"), ("physnet0", "52:54:00:00:00:02")), strict=True
    ):
        element, source = port.find("mac"), port.find("source/address")
        assert element is not None and source is not None
        assert element.get("address") == mac and mappings[label] == {pci_address(source, "")}


def test_the_fleet_is_asked_what_a_domain_needs(fresh: tuple[Sight, Path], domain: Path) -> None:
    _, path = fresh
    uuid = "<uuid>5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69</uuid>"
    domain.write_text(PORTS.replace("<memory ", f"{uuid}<memory "), encoding="utf-8")
    answer = json.loads(output_of(path, "where", "--domain", str(domain), *RED, "-o", "json"))
    (place,) = answer["places"]
    given = by_class(each["resources"] for each in place["allocations"].values())
    asked = json.loads(output_of(path, "claim", "--domain", str(domain), *RED, "--dry-run", "-o", "json"))
    assert given == asked["asked"]


def test_a_domain_without_a_uuid_is_one_instance_by_its_name(fresh: tuple[Sight, Path], domain: Path) -> None:
    shown, path = fresh
    domain.write_text(PORTS, encoding="utf-8")
    written = output_of(path, "claim", "--domain", str(domain), *RED)
    before = claims(shown)
    assert output_of(path, "claim", "--domain", str(domain), *RED) == written
    assert claims(shown) == before
    domain.write_text(PORTS.replace("web9", "web10"), encoding="utf-8")
    output_of(path, "claim", "--domain", str(domain), *RED)
    assert len(claims(shown)) == 2


@pytest.mark.parametrize("xml", ["no XML", PORTS.replace("unit='GiB'", "unit='furlong'")])
def test_a_claim_for_what_is_no_domain_is_wrong_use(
    fresh: tuple[Sight, Path], domain: Path, xml: str
) -> None:
    shown, path = fresh
    domain.write_text(xml, encoding="utf-8")
    refused = plimsoll(path, "claim", "--domain", str(domain), *RED)
    assert refused.returncode == ExitCode.USAGE and one_line(refused)
    assert not claims(shown)


def test_the_complete_domain_again_is_the_same_claim(fresh: tuple[Sight, Path], domain: Path) -> None:
    shown, path = fresh
    domain.write_text(PORTS, encoding="utf-8")
    flavor = ("--flavor", "vcpus=2,memory_mb=2048", "--spec", "hw:numa_nodes=2")
    flavor += ("--spec", "resources_red:SRIOV_NET_VF=1")
    written = output_of(path, "claim", "--domain", str(domain), *flavor)
    before = claims(shown)
    domain.write_text(written, encoding="utf-8")
    assert output_of(path, "claim", "--domain", str(domain), *flavor) == written
    assert claims(shown) == before
    refused = plimsoll(path, "claim", "--domain", str(domain), "--flavor", "vcpus=4,memory_mb=2048")
    assert refused.returncode == ExitCode.USAGE and "<vcpu> is 2, and 4 CPUs" in one_line(refused)


def test_a_domain_that_contradicts_changes_nothing(fresh: tuple[Sight, Path], domain: Path) -> None:
    shown, path = fresh
    nodes = "<numatune><memory mode='interleave' nodeset='0-1'/></numatune>"
    domain.write_text(PORTS.replace("  <os>", f"  {nodes}\n  <os>"), encoding="utf-8")
    refused = plimsoll(
        path,
        "claim",
        "--domain",
        str(domain),
        "--flavor",
        "vcpus=2,memory_mb=2048",
        "--spec",
        "hw:numa_nodes=1",
        "--spec",
        "resources_red:SRIOV_NET_VF=1",
    )
    assert refused.returncode == ExitCode.USAGE and "<numatune> has the mode interleave" in one_line(refused)
    assert not claims(shown)
    missing = plimsoll(path, "claim", "--domain", str(domain), *RED, "--resources", "VCPU=3")
    assert missing.returncode == ExitCode.USAGE and "<vcpu> is 2, and 3 CPUs" in one_line(missing)
    domain.write_text("<domain>", encoding="utf-8")
    assert plimsoll(path, "claim", "--domain", str(domain)).returncode != ExitCode.DONE
    assert plimsoll(path, "claim", "--resources", "VCPU=1", "--start").returncode == ExitCode.USAGE


def test_a_domain_of_a_uuid_is_claimed_for_that_instance(fresh: tuple[Sight, Path], domain: Path) -> None:
    shown, path = fresh
    uuid, other = (f"5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a6{number}" for number in (0, 1))
    domain.write_text(f"<domain><uuid>{uuid}</uuid><memory unit='MiB'>64</memory></domain>", encoding="utf-8")
    refused = plimsoll(path, "claim", other, "--domain", str(domain))
    assert refused.returncode == ExitCode.USAGE and uuid in one_line(refused)
    output_of(path, "claim", uuid, "--domain", str(domain), "--name", "small")
    assert claims(shown)[uuid].request.name == "small"


MOVING_DOMAIN = """<domain type='kvm'>
  <name>web</name>
  <memory unit='GiB'>2</memory>
  <vcpu>2</vcpu>
  <cputune><vcpupin vcpu='0'/><vcpupin vcpu='1'/></cputune>
  <os><type machine='q35'>hvm</type></os>
  <!-- kept -->
  <cpu><numa><cell id='0' cpus='0-1' memory='2' unit='GiB'/></numa></cpu>
  <devices>
    <interface type='hostdev'><mac address='52:54:00:00:00:01'/><alias name='ua-red'/></interface>
    <interface type='hostdev'><mac address='52:54:00:00:00:02'/><alias name='ua-blue'/></interface>
    <hostdev mode='subsystem' type='mdev' model='vfio-pci'/>
  </devices>
</domain>
"""


MDEV = "4b20d080-1b54-4048-85b3-a6a62d165c0{}".format


def host(number: int) -> FakeHost:
    """Hosts whose networks are on other cards, and whose devices have other names."""
    bus = f"{number}{{}}".format
    networks = ("red", "blue") if number == 1 else ("blue", "red")
    return FakeHost(
        tuple(cell(each, frozenset(range(4 * each, 4 * each + 4)), 8192) for each in (0, 1)),
        gpus=(Gpu(f"0000:{bus(4)}:00.0", "VGPU", 1, (MDEV(number),), numa=0),),
        nics=tuple(
            Nic(f"eth{each}", f"0000:{bus(each)}:00.0", (f"0000:{bus(each)}:10.0",), network, numa=0)
            for each, network in enumerate(networks)
        ),
    )


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[World, World]]:
    """Source and destination, on one embedded core."""
    with ExitStack() as stack:
        worlds: list[World] = []
        for number in (1, 2):
            directory = tmp_path / str(number)
            directory.mkdir()
            file = directory / "plimsoll.conf"
            dedicated = "2-3,6-7" if number == 1 else "1,3,5,7"
            file.write_text(
                f"[DEFAULT]\ncompute_driver = fake\nhost = node{number}\nstate_path = {directory}\n"
                f"[compute]\ncpu_dedicated_set = {dedicated}\n[placement]\nkind = embedded\n"
            )
            world = opened(load([file]), worlds[0].wire.inner if worlds else None)
            stack.callback(world.close)
            fake = host(number)
            world.driver.change(cells=fake.cells, gpus=fake.gpus, nics=fake.nics)
            world.agent.reconcile("the start")
            stack.enter_context(serving(world.operations, directory / "s"))
            worlds.append(world)
        first, second = worlds
        yield first, second


def claims_of(world: World) -> dict[str, Claim]:
    return dict(world.agent.host_status.overview().claims)


def ports(text: str) -> dict[str, str]:
    """{MAC address: the bus of its function}"""
    found = {}
    for interface in ElementTree.fromstring(text).findall("devices/interface"):
        mac, source = interface.find("mac"), interface.find("source/address")
        assert mac is not None and source is not None
        found[mac.get("address", "")] = source.get("bus", "")
    return found


def test_the_destination_has_devices_of_its_own(hosts: tuple[World, World], tmp_path: Path) -> None:
    here, there = (tmp_path / str(number) / "s" for number in (1, 2))
    file = tmp_path / "web.xml"
    file.write_text(MOVING_DOMAIN, encoding="utf-8")
    source = output_of(here, "claim", "--domain", str(file))
    ((uuid, old),) = claims_of(hosts[0]).items()
    file.write_text(source, encoding="utf-8")
    begin = ("move", "begin", uuid, "--kind", "cold-migrate", "--domain", str(file))
    written = output_of(there, *begin)
    new = claims_of(hosts[1])[uuid]
    assert new.request.resources == old.request.resources
    assert ports(source) == {"52:54:00:00:00:01": "0x10", "52:54:00:00:00:02": "0x11"}
    assert ports(written) == {"52:54:00:00:00:01": "0x21", "52:54:00:00:00:02": "0x20"}, "each on its network"
    domain = parse_domain(written)
    assert domain.mdevs == (MDEV(2),)
    assert set().union(*domain.pins.values()) <= {1, 3, 5, 7} and len(domain.pins) == 2
    assert "  <!-- kept -->\n" in written
    assert output_of(there, "domain", uuid, str(file), "--replace") == written
    lines = source.splitlines(), written.splitlines()
    assert len(lines[0]) == len(lines[1]), "only places have changed"


def test_a_move_that_cannot_be_says_why(hosts: tuple[World, World], tmp_path: Path) -> None:
    here, there = (tmp_path / str(number) / "s" for number in (1, 2))
    file = tmp_path / "web.xml"
    file.write_text(MOVING_DOMAIN, encoding="utf-8")
    file.write_text(output_of(here, "claim", "--domain", str(file)), encoding="utf-8")
    (uuid,) = claims_of(hosts[0])
    hosts[1].driver.change(nics=tuple(replace(nic, physical_network="green") for nic in host(2).nics))
    hosts[1].agent.reconcile("other networks")
    begin = ("move", "begin", uuid, "--kind", "cold-migrate", "--domain", str(file))
    refused = plimsoll(there, *begin)
    assert refused.returncode != ExitCode.DONE and not claims_of(hosts[1])
    one_line(refused)
