"""`plimsoll move begin --domain`: the destination's XML, with the destination's devices, CPUs and cells."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from kits.agent import World, opened
from kits.api_client import serving
from kits.cli_process import one_line, output_of, plimsoll

from agent.claims.claim import Claim
from agent.config.settings import load
from agent.errors import ExitCode
from drivers.fake import FakeHost, Gpu, Nic, cell
from drivers.host.domain_xml import parse_domain

DOMAIN = """<domain type='kvm'>
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


def claims(world: World) -> dict[str, Claim]:
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
    file.write_text(DOMAIN, encoding="utf-8")
    source = output_of(here, "claim", "--domain", str(file))
    ((uuid, old),) = claims(hosts[0]).items()
    file.write_text(source, encoding="utf-8")
    begin = ("move", "begin", uuid, "--kind", "cold-migrate", "--domain", str(file))
    written = output_of(there, *begin)
    new = claims(hosts[1])[uuid]
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
    file.write_text(DOMAIN, encoding="utf-8")
    file.write_text(output_of(here, "claim", "--domain", str(file)), encoding="utf-8")
    (uuid,) = claims(hosts[0])
    hosts[1].driver.change(nics=tuple(replace(nic, physical_network="green") for nic in host(2).nics))
    hosts[1].agent.reconcile("other networks")
    begin = ("move", "begin", uuid, "--kind", "cold-migrate", "--domain", str(file))
    refused = plimsoll(there, *begin)
    assert refused.returncode != ExitCode.DONE and not claims(hosts[1])
    one_line(refused)
