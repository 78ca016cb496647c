"""What is plugged and unplugged on a real hypervisor: a finding in time, or the claim's."""

from __future__ import annotations

import json

import pytest
from kits.lab_guest import STAYING, console, install_guest, kernel, seen_by
from kits.lab_node import UNIT, Node, Prepare, alone

CPUS = "d0000000-0000-4000-8000-000000000001"
DEVICES = "d0000000-0000-4000-8000-000000000002"
NIC, VF = "hv1_net_enp65s0", "0000:41:10.2"
GPU = "0000:43:00.0"
MDEV = "d0000000-0000-4000-8000-0000000000ff"
LINUX = "d0000000-0000-4000-8000-000000000003"
CONFIG = """[claims]
follow = {follow}

[pci]
device_spec = {{"vendor_id": "8086", "product_id": "10ca", "physical_network": "physnet0"}}
device_spec = {{"vendor_id": "10de", "product_id": "1eb8", "resource_class": "PGPU"}}

[devices]
enabled_mdev_types = nvidia-11
"""
WITH_CPUS = f"""<domain type='qemu'><name>cpus</name><uuid>{CPUS}</uuid>
<maxMemory slots='2' unit='MiB'>512</maxMemory><memory unit='MiB'>64</memory><vcpu current='1'>4</vcpu>
<os><type arch='x86_64' machine='q35'>hvm</type></os><features><acpi/></features>
<cpu><numa><cell id='0' cpus='0-3' memory='64' unit='MiB'/></numa></cpu>
<devices><controller type='usb' model='none'/><memballoon model='none'/></devices></domain>"""
PORTS = "".join(f"<controller type='pci' index='{n}' model='pcie-root-port'/>" for n in range(1, 6))
WITH_PORTS = f"""<domain type='qemu'><name>devices</name><uuid>{DEVICES}</uuid>
<memory unit='MiB'>64</memory><vcpu>1</vcpu><os><type arch='x86_64' machine='q35'>hvm</type></os>
<devices><controller type='usb' model='none'/><memballoon model='none'/>{PORTS}</devices></domain>"""
"""These guests have no operating system, so they never let go of a device: nothing is unplugged here."""
WITH_LINUX = f"""<domain type='kvm'><name>linux</name><uuid>{LINUX}</uuid>
<maxMemory slots='2' unit='MiB'>512</maxMemory><memory unit='MiB'>128</memory><vcpu current='1'>4</vcpu>
<os><type arch='x86_64' machine='q35'>hvm</type>{STAYING}</os><features><acpi/><apic/></features>
<cpu><numa><cell id='0' cpus='0-3' memory='128' unit='MiB'/></numa></cpu>
<devices><controller type='usb' model='none'/><memballoon model='none'/>{PORTS}{console("linux")}</devices>
</domain>"""
"""A guest that lets go of what is unplugged."""
DIMM = "<memory model='dimm'><target><size unit='MiB'>128</size><node>0</node></target></memory>"
MORE, FOLLOWS = "uses more", "follows its guest"
IN_TIME_S = 2.0
"""On hardware that runs a loop of Python in CALIBRATED_S; the nodes are emulated, and slower."""
CALIBRATED_S = 0.03
CALIBRATION = "import timeit; print(timeit.timeit('sum(range(1000))', number=2000))"
LATEST = 4
"""A single one may be that many times as late: the machine under the nodes does other things."""


def _address(text: str, more: str = "") -> str:
    domain, bus, rest = text.split(":")
    slot, function = rest.split(".")
    return f"<address {more}domain='0x{domain}' bus='0x{bus}' slot='0x{slot}' function='0x{function}'/>"


VF_SOURCE = _address(VF, "type='pci' ")
KINDS = {
    "vf": f"<interface type='hostdev' managed='yes'><source>{VF_SOURCE}</source></interface>",
    "gpu": f"<hostdev mode='subsystem' type='pci' managed='yes'><source>{_address(GPU)}</source></hostdev>",
    "vgpu": "<hostdev mode='subsystem' type='mdev' managed='no' model='vfio-pci' display='off'>"
    f"<source><address uuid='{MDEV}'/></source></hostdev>",
}
UNITS = {"vf": VF, "gpu": GPU, "vgpu": MDEV}
CLASSES = {"vf": "1 SRIOV_NET_VF", "gpu": "1 PGPU", "vgpu": "1 VGPU"}


class Host:
    """A node with guests, and how long the agent took to see what was done to them."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.took: dict[str, float] = {}
        self.slower: list[float] = []

    def plug(self, what: str, command: str, uuid: str, logged: str) -> str:
        """Run the command; the line that the agent logs about it within a while."""
        loop_s = float(self.node.ask(f'python3 -c "{CALIBRATION}"'))
        self.slower.append(max(1.0, loop_s / CALIBRATED_S))
        ran = self.node.run(f"date +%s.%N && {command} && date +%s.%N").splitlines()
        begun, at = float(ran[0]), float(ran[-1])

        def line() -> tuple[float, str] | None:
            lines = self.node.ask(f"journalctl -u {UNIT} -o json --since @{int(begun)}").splitlines()
            for entry in map(json.loads, lines):
                logged_at, text = int(entry["__REALTIME_TIMESTAMP"]) / 1e6, str(entry["MESSAGE"])
                if logged in text and uuid in f"{text}{entry.get('CONSUMER', '')}" and logged_at > begun:
                    return logged_at, text
            return None

        logged_at, text = self.node.wait(f"the agent sees {what}", line)
        self.took[what] = logged_at - at
        return text

    def claim(self, uuid: str) -> dict[str, object]:
        instances = self.node.json("plimsoll -o json instances")["instances"]
        return next(dict(one["claim"]) for one in instances if one["uuid"] == uuid)

    def in_time(self) -> None:
        """Half of them were seen at once, and none much later, on a node of this speed."""
        slower = sorted(self.slower)[len(self.slower) // 2]
        note = f"# {slower:.1f} times slower; seconds until seen: {self.took}"
        self.node.lab.transcript.command(f"{self.node.name}#", note, "")
        print(note)
        times = sorted(self.took.values())
        limit = IN_TIME_S * slower
        assert times[len(times) // 2] < limit and times[-1] < LATEST * limit, note


def started(prepare: Prepare, follow: str) -> Host:
    (node,) = prepare(1)
    node.configure(alone("hv1", CONFIG.format(follow=follow)))
    node.run("labdev vfs 0000:41:00.0 2", note=False)
    node.start()
    node.wait("the functions are seen", lambda: node.devices().get(NIC) == {"SRIOV_NET_VF": 2})
    node.run(f"labdev mdev 0000:42:00.0 nvidia-11 {MDEV}", note=False)
    guests = {"cpus": WITH_CPUS, "devices": WITH_PORTS, "linux": WITH_LINUX}
    for name, text in {**KINDS, "dimm": DIMM, **guests}.items():
        node.write(f"/root/{name}.xml", text)
    return Host(node)


def with_two_guests(host: Host) -> None:
    host.node.run("virsh create /root/cpus.xml && virsh create /root/devices.xml")
    host.node.run(f"plimsoll claim {CPUS} --name cpus --flavor vcpus=1,memory_mb=64")
    host.node.run(f"plimsoll claim {DEVICES} --name devices --flavor vcpus=1,memory_mb=64")


def test_each_kind_is_a_finding_in_time_and_reserved(prepare: Prepare) -> None:
    host = started(prepare, "report")
    with_two_guests(host)
    node = host.node
    node.title("Hot-plug, follow = report")
    before = node.capacity("hv1")
    host.plug("vCPUs", "virsh setvcpus cpus 2 --live", CPUS, MORE)
    for kind, unit in UNITS.items():
        attach = f"virsh attach-device devices /root/{kind}.xml --live"
        host.plug(kind, attach, DEVICES, CLASSES[kind])
        assert unit in node.run("plimsoll audit", ends=3)
        assert not host.claim(DEVICES)["units"]
    host.plug("memory", "virsh attach-device cpus /root/dimm.xml --live", CPUS, "128 MEMORY_MB")

    def reserved() -> bool:
        now = node.capacity("hv1")
        return now["VCPU"] < before["VCPU"] and now["MEMORY_MB"] == before["MEMORY_MB"] - 128

    node.wait("what came is reserved", reserved)
    host.in_time()


def test_each_kind_is_claimed_in_time(prepare: Prepare) -> None:
    host = started(prepare, "grow")
    with_two_guests(host)
    node = host.node
    node.title("Hot-plug, follow = grow")
    host.plug("vCPUs", "virsh setvcpus cpus 2 --live", CPUS, FOLLOWS)
    host.plug("memory", "virsh attach-device cpus /root/dimm.xml --live", CPUS, FOLLOWS)
    assert '"VCPU": 2' in json.dumps(host.claim(CPUS)["allocations"])
    for kind, unit in UNITS.items():
        host.plug(kind, f"virsh attach-device devices /root/{kind}.xml --live", DEVICES, FOLLOWS)
        assert unit in str(host.claim(DEVICES)["units"])
    assert "nothing differs" in node.run("plimsoll audit")
    host.in_time()


@pytest.mark.skipif(not kernel().exists(), reason="the lab's kernel is not in its cache")
def test_each_kind_that_goes_is_given_back_in_time(prepare: Prepare) -> None:
    host = started(prepare, "grow")
    node = host.node
    node.title("Unplugged from a guest that lets go, follow = grow")
    install_guest(node)
    node.run("virsh create /root/linux.xml")
    node.run(f"plimsoll claim {LINUX} --name linux --flavor vcpus=1,memory_mb=128")
    seen_by(node, "linux")
    asked = host.claim(LINUX)["allocations"]
    plug, unplug = (
        "virsh attach-device linux /root/{}.xml --live",
        "virsh detach-device linux /root/{}.xml --live",
    )
    for kind, unit in UNITS.items():
        host.plug(kind, plug.format(kind), LINUX, FOLLOWS)
        assert unit in str(host.claim(LINUX)["units"])
        host.plug(f"{kind} is gone", unplug.format(kind), LINUX, FOLLOWS)
        assert host.claim(LINUX)["allocations"] == asked
    host.plug("memory", plug.format("dimm"), LINUX, FOLLOWS)
    assert '"MEMORY_MB": 256' in json.dumps(host.claim(LINUX)["allocations"])
    host.plug("memory is gone", unplug.format("dimm"), LINUX, FOLLOWS)
    host.plug("vCPUs", "virsh setvcpus linux 2 --live", LINUX, FOLLOWS)
    assert '"VCPU": 2' in json.dumps(host.claim(LINUX)["allocations"])
    host.plug("vCPUs are gone", "virsh setvcpus linux 1 --live", LINUX, FOLLOWS)
    assert host.claim(LINUX)["allocations"] == asked
    assert "nothing differs" in node.run("plimsoll audit")
    host.in_time()


@pytest.mark.parametrize("address", [VF, GPU])
def test_the_doctor_tells_of_a_real_device(prepare: Prepare, address: str) -> None:
    (node,) = prepare(1)
    node.configure(alone("hv1", CONFIG.format(follow="report")))
    node.run("labdev vfs 0000:41:00.0 2", note=False)
    node.run("systemctl start libvirtd", note=False)
    told = node.run(f"plimsoll doctor --device {address}")
    assert "bad " not in told and f"{address} can be" in told
