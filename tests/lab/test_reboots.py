"""Reboots with random carvings, and a SIGKILL in the midst of each: every guest with autostart runs again
with the same units, and the tree is as before. `--reboots` says how many, `--seed` repeats them.
"""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import UUID

import pytest
from kits.lab_node import START_TIMEOUT_S, GuestUnits, Node, Prepare, alone

NICS = ("0000:41:00.0", "0000:81:00.0")
M60S, T4S, A100 = ("0000:42:00.0", "0000:82:00.0"), ("0000:43:00.0", "0000:83:00.0"), "0000:84:00.0"
GUESTS_MAX = 3
"""Each is a QEMU under emulation, and 48 MiB."""
STEPS_MAX = 30
"""A number of steps that no plan here has: a drawn number beyond its end kills nothing."""
AS_BEFORE_WITHIN_S = 400
UNIT = "plimsoll-devices"
WRAPPER = "/usr/local/sbin/carve-and-be-killed"
KILL_AT = "/etc/plimsoll-kill-at"
KILLED = "killed before its step"
PROGRAM = f"""#!/usr/bin/python3
# Runs the carver, kills it when it has told of a drawn step, and runs it again to its end.
import subprocess, sys
command = sys.argv[1:]
at = int(open("{KILL_AT}").read())
carver = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
for number, line in enumerate(carver.stdout):
    print(line, end="", flush=True)
    if number == at:
        carver.kill()
        print("{KILLED}", number, flush=True)
        break
carver.wait()
sys.exit(subprocess.call(command))
"""
SPECS = """
[pci]
device_spec = {"vendor_id": "8086", "product_id": "10ca", "physical_network": "physnet0"}
device_spec = {"vendor_id": "10de", "product_id": "1eb8", "resource_class": "PGPU"}
"""


@dataclass
class Carving:
    """What is drawn: the options, the devices that are made by hand, and the guests with their devices."""

    vfs: dict[str, int] = field(default_factory=dict)
    drivers: dict[str, str] = field(default_factory=dict)
    mdevs: dict[str, tuple[str, str]] = field(default_factory=dict)
    types: list[str] = field(default_factory=list)
    guests: list[list[str]] = field(default_factory=list)

    @property
    def options(self) -> str:
        vfs = ", ".join(f"{card}={number}" for card, number in self.vfs.items())
        drivers = ", ".join(f"{device}={driver}" for device, driver in self.drivers.items())
        return (
            f"[devices]\nenabled_mdev_types = nvidia-11, nvidia-471\nsriov_vfs = {vfs}\n"
            f"driver_overrides = {drivers}\n{SPECS}"
        )


def drawn(dice: random.Random, mode: str) -> Carving:
    """A carving of the node. In the mode "vfio" the A100's functions get types, else mediated devices."""
    carving = Carving({card: dice.choice((0, 1, 3, 4)) for card in NICS})
    carving.vfs[A100] = dice.choice((0, 2, 4))
    for card in NICS:
        if carving.vfs[card] and dice.random() < 0.5:
            carving.drivers[f"{card}/vfs"] = "vfio-pci"
    for card in T4S:
        if dice.random() < 0.5:
            carving.drivers[card] = "vfio-pci"
    functions = [f"{A100[:-1]}{number}" for number in range(1, carving.vfs[A100] + 1)]
    some = dice.sample(functions, dice.randint(0, len(functions)))
    if mode == "vfio":
        carving.types = some
    else:
        carving.mdevs |= {_uuid(dice): (function, "nvidia-471") for function in some}
    for card in M60S:
        carving.mdevs |= {_uuid(dice): (card, "nvidia-11") for _ in range(dice.randint(0, 2))}
    free = [
        *(f"pci={nic[:-4]}10.{2 * number}" for nic in NICS for number in range(carving.vfs[nic])),
        *(f"pci={card}" for card in T4S),
        *(f"mdev={uuid}" for uuid in carving.mdevs),
        *(f"unmanaged={function}" for function in carving.types),
    ]
    dice.shuffle(free)
    for _ in range(dice.randint(1, GUESTS_MAX)):
        carving.guests.append([free.pop() for _ in range(min(len(free), dice.randint(1, 2)))])
    needed = {device.partition("=")[2] for guest in carving.guests for device in guest}
    carving.mdevs = {uuid: made for uuid, made in carving.mdevs.items() if uuid in needed}
    carving.types = [function for function in carving.types if function in needed]
    return carving


def _uuid(dice: random.Random) -> str:
    return str(UUID(int=dice.getrandbits(128), version=4))


def shape(node: Node) -> dict[str, str]:
    """What sysfs shows of all that a carving makes: {device: its driver, type and number of functions}."""
    text = node.run(
        "cd /sys/bus/pci/devices; for d in *; do c=$(cat $d/class); case $c in 0x0200*|0x0302*) "
        'echo "$d driver=$(basename $(readlink $d/driver || echo none)) '
        "vfs=$(cat $d/sriov_numvfs 2>/dev/null) type=$(cat $d/nvidia/current_vgpu_type 2>/dev/null)"
        '";; esac; done; cd /sys/bus/mdev/devices; for m in *; do [ ! -e $m ] || '
        'echo "$m on=$(basename $(dirname $(readlink -f $m))) '
        'type=$(basename $(readlink $m/mdev_type))"; done',
        note=False,
    )
    return {line.partition(" ")[0]: line.partition(" ")[2] for line in text.splitlines()}


def running(node: Node) -> list[str]:
    return sorted(node.ask("virsh -q list --name --state-running").split())


class Reboots:
    """One node, and what is drawn for it."""

    def __init__(self, node: Node, mode: str, dice: random.Random) -> None:
        self.node, self.mode, self.dice = node, mode, dice

    def wrap(self) -> None:
        """Let the unit's command be killed once at a drawn step."""
        node = self.node
        node.write(WRAPPER, PROGRAM, mode="0755")
        node.write(KILL_AT, str(STEPS_MAX))
        command = node.run(f"systemctl cat {UNIT} | sed -n 's/^ExecStart=//p'", note=False).strip()
        assert command, "the unit is installed"
        folder = f"/etc/systemd/system/{UNIT}.service.d"
        node.run(f"mkdir -p {folder}", note=False)
        node.write(f"{folder}/kill.conf", f"[Service]\nExecStart=\nExecStart={WRAPPER} {command}")
        node.run(f"systemctl daemon-reload && systemctl enable {UNIT} 2>&1")

    def prepare(self, carving: Carving) -> None:
        """Make it by hand, as an operator who tries it out, with all guests running."""
        node = self.node
        node.run("labdev reset", note=False)
        for card in T4S:  # what an earlier carving bound stays bound until a boot
            at = f"/sys/bus/pci/devices/{card}"
            node.run(
                f"cd {at} && echo >driver_override; test ! -e driver || echo {card} >driver/unbind; "
                f"echo {card} >/sys/bus/pci/drivers_probe",
                note=False,
            )
        node.configure(alone("hv1", carving.options))
        node.run("systemctl restart plimsoll-agent", note=False)
        node.ready()
        node.run("plimsoll devices apply")
        node.run("udevadm settle", note=False)
        for function in carving.types:
            node.run(f"echo 471 >/sys/bus/pci/devices/{function}/nvidia/current_vgpu_type")
        for uuid, (parent, type_id) in carving.mdevs.items():
            known = f"virsh -q nodedev-info pci_{parent.replace(':', '_').replace('.', '_')}"
            node.wait(f"libvirt knows {parent}", lambda known=known: node.ask(known))
            node.run(f"labdev mdev {parent} {type_id} {uuid}")
        for number, devices in enumerate(carving.guests):
            name = f"vm{number}"
            node.run(f"labvm define {name} {' '.join(devices)} && virsh -q autostart {name}")
            node.run(f"virsh -q start {name}")

    def wait_for_needs(self, carving: Carving) -> None:
        """Until the agent has written what the boot is to make."""
        wanted = {device.partition("=")[2] for guest in carving.guests for device in guest}
        wanted -= set(T4S)
        file = "/var/lib/plimsoll/carving.json"
        self.node.wait("the plan file", lambda: all(each in self.node.ask(f"cat {file}") for each in wanted))

    def seen(self) -> tuple[dict[str, str], dict[str, dict[str, int]], GuestUnits]:
        """The cards by sysfs, what the tree has of them, and the guests' units."""
        return shape(self.node), self.node.devices(), self.node.units()

    def round(self, number: int) -> None:
        node, carving = self.node, drawn(self.dice, self.mode)
        node.title(f"Reboot {number}, {self.mode}")
        self.prepare(carving)
        guests = sorted(f"vm{number}" for number in range(len(carving.guests)))
        node.wait("all run", lambda: running(node) == guests)
        node.wait("the agent sees them", lambda: sorted(node.units()) == guests)
        self.wait_for_needs(carving)
        before = self.seen()
        at = self.dice.randrange(STEPS_MAX // 2)
        node.write(KILL_AT, str(at))
        node.reboot()
        node.wait("the agent answers", lambda: node.ask("plimsoll -o json status"), START_TIMEOUT_S)
        node.run(f"journalctl -b -o cat -u {UNIT} | tail -n 60")
        node.ready()
        node.wait("every guest with autostart runs", lambda: running(node) == guests, 400)
        end = time.monotonic() + AS_BEFORE_WITHIN_S
        while (after := self.seen()) != before and time.monotonic() < end:
            time.sleep(2)
        assert after == before, "cards, tree and units are as before"
        node.run("plimsoll devices assert")


PORT, LATER = ("52:54:00:0a:0b:0c", 100), ("52:54:00:0a:0b:0d", 101)
DROP_IN = "[Service]\nCapabilityBoundingSet=CAP_NET_ADMIN\nRestrictAddressFamilies=AF_NETLINK\n"
INTERFACE = f"""<interface type='hostdev' managed='yes'><mac address='{LATER[0]}'/><source>
<address type='pci' domain='0' bus='0x41' slot='0x10' function='4'/></source>
<vlan><tag id='{LATER[1]}'/></vlan></interface>"""


def ports(node: Node) -> list[tuple[str, int]]:
    """The MAC address and VLAN that the first network card has for each of its virtual functions."""
    (card,) = node.json("ip -j link show enp65s0")
    return [(vf["address"], vf["vlan_list"][0].get("vlan", 0)) for vf in card["vfinfo_list"]]


@pytest.mark.timeout(3600)
def test_a_function_keeps_its_mac_address_and_vlan(prepare: Prepare) -> None:
    """One that a guest has as a plain device, so that libvirt sets neither; with the drop-in of
    docs/after-a-reboot.md.
    """
    (node,) = prepare(1)
    node.title("The MAC address and the VLAN of a virtual function over a reboot")
    folder = f"/etc/systemd/system/{UNIT}.service.d"
    node.run(f"mkdir -p {folder}")
    node.write(f"{folder}/override.conf", DROP_IN)
    node.run(f"systemctl daemon-reload && systemctl enable {UNIT} 2>&1")
    try:
        options = f"[devices]\nsriov_vfs = {NICS[0]}=3\nrestore_ports = true\n{SPECS}"
        node.configure(alone("hv1", options))
        node.start()
        node.run("plimsoll devices apply")
        node.run(f"ip link set enp65s0 up; ip link set enp65s0 vf 1 mac {PORT[0]} vlan {PORT[1]}")
        node.run("labvm define vm0 pci=0000:41:10.2 && virsh -q autostart vm0 && virsh -q start vm0")
        kept = f"{PORT[0]} VLAN {PORT[1]}"
        node.wait("the plan file", lambda: kept in node.ask("cat /var/lib/plimsoll/carving.json"))
        node.reboot()
        node.wait("the guest runs", lambda: running(node) == ["vm0"], 400)
        node.run(f"journalctl -b -o cat -u {UNIT}")
        assert ports(node)[1] == PORT
        node.ready()
        node.run("ip link set enp65s0 up; labvm xml vm1 >/root/vm1.xml && virsh -q define /root/vm1.xml")
        node.write("/root/port.xml", INTERFACE)
        node.run("virsh -q attach-device vm1 /root/port.xml --config && virsh -q start vm1")
        assert ports(node)[2] == LATER, "libvirt sets it for an interface"
        node.run(f"ip link set enp65s0 vf 2 vlan {PORT[1]}")
        told = f"{LATER[0]} VLAN {PORT[1]}, and the guest {LATER[0]} VLAN {LATER[1]}"
        node.wait("the finding", lambda: told in node.ask("plimsoll audit"))
    finally:
        node.run(f"rm -rf {folder}; systemctl daemon-reload", note=False)


def _rounds(request: pytest.FixtureRequest) -> Iterator[int]:
    yield from range(1, int(request.config.getoption("--reboots")) + 1)


@pytest.mark.timeout(8 * 3600)
@pytest.mark.parametrize("mode", ["mdev", "vfio"])
def test_every_guest_comes_back_with_its_units(
    prepare: Prepare, request: pytest.FixtureRequest, mode: str
) -> None:
    (node,) = prepare(1, mode)
    seed = request.config.getoption("--seed") or random.SystemRandom().randrange(2**32)
    node.title(f"Random carvings over reboots, {mode}, seed {seed}")
    node.configure(alone("hv1", Carving().options))
    node.start()
    reboots = Reboots(node, mode, random.Random(seed))
    reboots.wrap()
    try:
        for number in _rounds(request):
            reboots.round(number)
    finally:
        node.run(
            f"rm -rf /etc/systemd/system/{UNIT}.service.d {WRAPPER} {KILL_AT}; systemctl daemon-reload",
            note=False,
        )
