"""From a request to a running guest in one command: drawn requests, started under the gate without an edit.

The guest itself says on its serial console on which of its cells it sees each device, and which MAC address.
Guests with CPUs of their own start on a host that gives each CPU away alone, the others on one that shares
them all: a cell of the lab may have one CPU. `--domains` is how many requests, `--seed` the first.
"""

import json
import shlex
import time
from collections.abc import Iterator
from xml.etree import ElementTree

import pytest
from kits.domain_requests import MACS, DomainCase, draw_case
from kits.lab_guest import BOOT, Seen, console, install_guest, kernel, seen_by
from kits.lab_node import Node, Prepare

CARDS = {"red": "0000:41:00.0", "blue": "0000:81:00.0"}
PAGES = 64
MEMORY_MB = 112
CONFIG = """[DEFAULT]
compute_driver = libvirt
host = hv1
reserved_host_memory_mb = 512

[compute]
{cpus}

[placement]
kind = embedded

[devices]
enabled_mdev_types = nvidia-11

[pci]
device_spec = {{"devname": "enp65s0", "physical_network": "red"}}
device_spec = {{"devname": "enp129s0", "physical_network": "blue"}}
device_spec = {{"vendor_id": "10de", "product_id": "1eb8", "resource_class": "PGPU"}}
alias = {{"name": "t4", "resource_class": "PGPU"}}
"""

pytestmark = pytest.mark.skipif(not kernel().exists(), reason="the lab's kernel is not in its cache")


@pytest.fixture(scope="module")
def node(prepare: Prepare) -> Iterator[Node]:
    (found,) = prepare(1)
    found.title("From a request to a running guest")
    install_guest(found)
    for cell in (0, 1):
        pages = f"/sys/devices/system/node/node{cell}/hugepages/hugepages-2048kB/nr_hugepages"
        found.run(f"echo {PAGES} >{pages}", note=False)
    for card in CARDS.values():
        found.run(f"labdev vfs {card} 2", note=False)
    found.run("plimsoll gate enable && systemctl restart libvirtd")
    yield found
    found.run("plimsoll gate disable && systemctl restart libvirtd", note=False)


def offer(node: Node, *, pinned: bool) -> int:
    """Give away the CPUs, each alone if `pinned`; the number of them in a cell."""
    cells = [
        node.run(f"cd /sys/devices/system/node/node{cell}; ls -d cpu[0-9]*", note=False).split()
        for cell in (0, 1)
    ]
    cpus = ",".join(cpu.removeprefix("cpu") for cell in cells for cpu in cell)
    option = "cpu_dedicated_set" if pinned else "cpu_shared_set"
    node.configure(CONFIG.format(cpus=f"{option} = {cpus}"))
    node.start()
    node.wait("the functions are seen", lambda: all(_total(node, name) for name in ("enp65s0", "enp129s0")))
    node.run("plimsoll tree --traits")
    return min(map(len, cells))


def _total(node: Node, interface: str) -> int:
    return node.devices().get(f"hv1_net_{interface}", {}).get("SRIOV_NET_VF", 0)


@pytest.mark.timeout(6 * 3600)
@pytest.mark.parametrize("pinned", [True, False], ids=("dedicated", "shared"))
def test_each_request_becomes_a_running_guest(
    node: Node, request: pytest.FixtureRequest, pinned: bool
) -> None:
    cpus_per_cell = offer(node, pinned=pinned)
    first = request.config.getoption("--seed") or 0
    for seed in range(first, first + request.config.getoption("--domains")):
        case = draw_case(
            seed,
            memory_mb=MEMORY_MB,
            kind="kvm",
            boot=BOOT,
            devices=console(f"guest{seed}"),
            cpus_per_cell=cpus_per_cell,
        )
        if case.pinned == pinned:
            becomes_a_guest(node, case, seed)


def becomes_a_guest(node: Node, case: DomainCase, seed: int) -> None:
    """Claim, define and start in one command; the guest looks and ends."""
    begun = time.monotonic()
    node.title(
        f"{case.name}: {case.cells} cells, networks {case.networks}, vGPU {case.vgpu}, card {case.card}"
    )
    node.write(f"/root/{case.name}.xml", case.xml)
    options = shlex.join(case.options)
    text = node.run(f"plimsoll -o json claim --domain /root/{case.name}.xml {options} --define --start")
    check(case, json.loads(text), seen_by(node, case.name), seed, node)
    node.wait("the guest has ended", lambda: "shut off" in node.ask(f"virsh domstate {case.name}"))
    node.run(f"virsh undefine {case.name} && plimsoll release {case.uuid}", note=False)
    print(f"{case.name} took {time.monotonic() - begun:.0f} s")


def check(case: DomainCase, written: dict[str, object], seen: Seen, seed: int, node: Node) -> None:
    """What the guest saw is what was claimed."""
    claim = written["claim"]
    assert isinstance(claim, dict)
    guest_cells = {each["host_cell"]: each["cell"] for each in claim["cells"]}
    cells = cells_of_devices(claim, node)
    expected = sorted(guest_cells[cell] for cell in cells.values() if cell in guest_cells)
    assert sorted(cell for cell in seen.endpoints if cell >= 0) == expected, (seed, seen, cells)
    if case.cells:
        assert seen.cells == frozenset(range(case.cells)), (seed, seen)
    units = {
        mapping["label"].lower().lstrip("_"): [
            unit for of in mapping["units"].values() for each in of.values() for unit in each
        ]
        for mapping in claim["mappings"]
        if mapping["label"]
    }
    ports = ports_of(str(written["xml"]))
    for network in case.networks:
        mac = MACS[network](seed)
        (unit,) = units[network]
        assert ports[mac] == unit and unit.startswith(CARDS[network][:7]), (seed, ports, units)
        assert seen.ports[mac] == guest_cells.get(cells[unit], -1), (seed, seen)
    assert set(seen.ports) == {MACS[network](seed) for network in case.networks}


def cells_of_devices(claim: dict[str, object], node: Node) -> dict[str, int]:
    """{unit of the claim: the host's cell that sysfs says}"""
    units = claim["units"]
    assert isinstance(units, dict)
    paths = {
        unit: f"/sys/bus/pci/devices/{unit}"
        if name != "VGPU"
        else f"$(dirname $(readlink -f /sys/bus/mdev/devices/{unit}))"
        for of in units.values()
        for name, exact in of.items()
        if name in ("SRIOV_NET_VF", "VGPU", "PGPU")
        for unit in exact
    }
    files = " ".join(f"{path}/numa_node" for path in paths.values())
    cells = node.run(f"cat {files} </dev/null", note=False).split()
    return dict(zip(paths, map(int, cells), strict=True))


def ports_of(xml: str) -> dict[str, str]:
    """{MAC address: PCI address of the function}"""
    ports = {}
    for interface in ElementTree.fromstring(xml).findall("devices/interface"):
        mac, source = interface.find("mac"), interface.find("source/address")
        assert mac is not None and source is not None
        bus, slot, function = (source.get(part, "")[2:] for part in ("bus", "slot", "function"))
        ports[mac.get("address", "")] = f"0000:{bus}:{slot}.{function}"
    return ports
