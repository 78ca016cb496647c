"""Hosts with a gate: whole agents over fake drivers, on one placement, and libvirt's hook as a process."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from agent.claims.claim import ClaimState
from agent.claims.request import ClaimRequest, RequestGroup
from agent.config.access import Access
from agent.config.settings import Settings
from agent.driver import Guest, GuestState
from agent.gate import install
from agent.placement.transport import Transport
from drivers.fake.driver import FakeDriver
from drivers.fake.host import FakeHost, Gpu, Nic, cell
from kits.agent import World, told, world_of
from kits.api_client import serving
from kits.placements import Embedded, usual_placement

HOOK_TIMEOUT_S = 30
VGPU = "11111111-1111-4111-8111-111111111111"
FAR, NEAR = "0000:41:00.0", "0000:81:00.0"
DEVICES_HOST = FakeHost(
    cells=(cell(0, frozenset(range(8)), 16384),),
    disk_gb=100,
    gpus=(
        Gpu("0000:42:00.0", "VGPU", 4, (VGPU,)),
        Gpu("0000:83:00.0", "PGPU", 1, ("0000:83:00.0",)),
    ),
    nics=(
        Nic("enp65s0", FAR, ("0000:41:02.0", "0000:41:02.1")),
        Nic("enp129s0", NEAR, ("0000:81:02.0", "0000:81:02.1")),
    ),
)
"""Two graphics cards, one of them shared, and two network cards, on different sides of the host."""


class GatedHost:
    """An agent that serves its API, and a hook that asks it."""

    def __init__(self, folder: Path, world: World) -> None:
        self.world = world
        self.folder = folder
        self.socket = folder / "api.sock"
        self.config = folder / "gate.conf"
        self.hook = folder / "hook"
        self.configure()
        self.hook.write_text(install.hook_script(config=self.config))
        self.hook.chmod(0o755)

    @property
    def driver(self) -> FakeDriver:
        return self.world.driver

    def configure(self, text: str = "") -> None:
        """With `unanswered = refuse`, unless the text says other: what the agent fails to decide is seen."""
        self.config.write_text(f"socket = {self.socket}\ndeadline = 10\nunanswered = refuse\n{text}")

    def call(
        self, operation: str, sub_operation: str, xml: str | bytes, extra: str = "-"
    ) -> subprocess.CompletedProcess[bytes]:
        """As libvirt calls it; it must never write to standard output."""
        done = subprocess.run(
            [str(self.hook), "vm", operation, sub_operation, extra],
            input=xml.encode() if isinstance(xml, str) else xml,
            capture_output=True,
            timeout=HOOK_TIMEOUT_S,
            check=False,
            env={},
        )
        assert done.stdout == b""
        return done

    def allowed(self, operation: str, sub_operation: str, xml: str | bytes, extra: str = "-") -> None:
        done = self.call(operation, sub_operation, xml, extra)
        assert (done.returncode, done.stderr) == (0, b"")

    def refused(self, operation: str, sub_operation: str, xml: str | bytes) -> str:
        """The reason."""
        done = self.call(operation, sub_operation, xml)
        assert done.returncode == 1
        (line,) = done.stderr.decode().splitlines()
        assert line.startswith("plimsoll: ")
        return line

    def starts(self, guest: Guest, xml: str) -> None:
        """As libvirt starts one: the hook, and if it lets it, the guest is there."""
        self.allowed("prepare", "begin", xml)
        self.allowed("start", "begin", xml)
        self.driver.add_guest(replace(guest, state=GuestState.RUNNING))
        self.allowed("started", "begin", xml)
        self.world.agent.reconcile("a guest started")

    def ends(self, guest: Guest, xml: str, *, defined: bool = False) -> None:
        self.allowed("stopped", "end", xml)
        if defined:
            self.driver.add_guest(replace(guest, state=GuestState.SHUTOFF))
        else:
            self.driver.remove_guest(guest.uuid)
        self.allowed("release", "end", xml)
        self.world.agent.reconcile("a guest ended")

    def held(self, uuid: str) -> dict[str, dict[str, int]]:
        """{provider's name: {class: amount}} of a consumer on this host, as placement has it."""
        tree, _ = self.world.operations.tree()
        client = self.world.operations.client
        found = client.allocations_of(uuid).allocations
        return {tree[each].name: dict(amounts) for each, amounts in found.items() if each in tree}


@contextmanager
def gated(
    folder: Path, name: str = "node1", transport: Transport | None = None, access: Access | None = None
) -> Iterator[GatedHost]:
    """A host that was looked at once; with a `transport`, on that placement instead of its own."""
    folder.mkdir(exist_ok=True)
    unused = Embedded(folder)
    settings: Settings = told(folder, unused if transport else usual_placement(folder))
    settings = replace(settings, host=name, driver=replace(settings.driver, host=name))
    with world_of(settings, transport) as world:
        host = GatedHost(folder, world)
        with serving(world.operations, host.socket, access):
            yield host


def domain(uuid: str, *, vcpus: int = 2, memory_mb: int = 1024, devices: str = "", inside: str = "") -> str:
    return (
        f"<domain type='kvm' id='3'><name>vm</name><uuid>{uuid}</uuid><memory unit='MiB'>{memory_mb}</memory>"
        f"<vcpu>{vcpus}</vcpu>{inside}<devices>{devices}</devices></domain>"
    )


def vf(address: str) -> str:
    """<interface type='hostdev'> of a virtual function such as 0000:41:02.1."""
    return f"<interface type='hostdev'><source>{_address(address)}</source></interface>"


def pci(address: str) -> str:
    return f"<hostdev mode='subsystem' type='pci'><source>{_address(address)}</source></hostdev>"


def mdev(uuid: str) -> str:
    return f"<hostdev mode='subsystem' type='mdev'><source><address uuid='{uuid}'/></source></hostdev>"


def _address(text: str) -> str:
    rest, _, function = text.partition(".")
    number, bus, slot = rest.split(":")
    return f"<address domain='0x{number}' bus='0x{bus}' slot='0x{slot}' function='0x{function}'/>"


def guest(uuid: str, **resources: int) -> Guest:
    return Guest(uuid, "vm", GuestState.RUNNING, resources or {"VCPU": 2, "MEMORY_MB": 1024})


def claim_of(host: GatedHost, uuid: str) -> ClaimState | None:
    found = host.world.agent._tracker.claim_of(uuid)
    return found.state if found else None


def ours(host: GatedHost, uuid: str, **resources: int) -> None:
    """A claim that somebody made by hand."""
    host.world.operations.claim(ClaimRequest(uuid, (RequestGroup("", resources),), name="by hand"))
