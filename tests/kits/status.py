"""A host worth looking at, all of it real: GPUs, network cards, guests, a reshape, a move, findings."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen
from uuid import NAMESPACE_DNS, uuid5

from agent.claims.parse_request import ClaimRequest, RequestGroup
from agent.config.address import Address
from agent.config.settings import load
from agent.driver import Guest, GuestState, UsedUnit
from agent.moves.states import MoveKind
from agent.state.journal import Journal
from agent.status.host_status import HostStatus
from agent.status.listener import HttpListener
from drivers.fake import FakeHost, Gpu, Nic, cell
from kits.agent import World, opened
from kits.tracker import fast_directory

HOST = "kvm-07"
VGPU_CARD, PGPU_CARD = "0000:42:00.0", "0000:83:00.0"
MDEVS = tuple(str(uuid5(NAMESPACE_DNS, f"mdev{number}")) for number in range(8))
FLAT = FakeHost(
    tuple(cell(number, frozenset(range(16 * number, 16 * number + 16)), 65536) for number in (0, 1)),
    1800,
    frozenset({"HW_CPU_X86_AVX2", "COMPUTE_NODE"}),
    gpus=(
        Gpu(VGPU_CARD, "VGPU", 8, MDEVS, frozenset({"CUSTOM_GPU_TESLA_M60"}), numa=0),
        Gpu(PGPU_CARD, "PGPU", 1, (PGPU_CARD,), frozenset({"CUSTOM_GPU_TESLA_T4"}), numa=1),
    ),
    nics=(
        Nic(
            "enp65s0f0",
            "0000:41:00.0",
            tuple(f"0000:41:02.{number}" for number in range(8)),
            "physnet0",
            10_000_000,
            10_000_000,
            numa=0,
        ),
    ),
    flat_devices=True,
)
BANDWIDTH = {"NET_BW_EGR_KILOBIT_PER_SEC": 2_500_000, "NET_BW_IGR_KILOBIT_PER_SEC": 1_500_000}
GUESTS: dict[str, dict[str, int]] = {
    "db1": {"VCPU": 16, "MEMORY_MB": 49152, "DISK_GB": 400, "SRIOV_NET_VF": 1, **BANDWIDTH},
    "render-a": {"VCPU": 8, "MEMORY_MB": 16384, "DISK_GB": 120, "VGPU": 2},
    "render-b": {"VCPU": 8, "MEMORY_MB": 16384, "DISK_GB": 120, "VGPU": 4},
    "train": {"VCPU": 12, "MEMORY_MB": 24576, "DISK_GB": 300, "PGPU": 1},
    "web1": {"VCPU": 4, "MEMORY_MB": 4096, "DISK_GB": 40},
    "web2": {"VCPU": 4, "MEMORY_MB": 4096, "DISK_GB": 40, "SRIOV_NET_VF": 1},
}
FORGOTTEN = "built-by-hand"
MIGRATION = str(uuid5(NAMESPACE_DNS, "the move"))


def uuid_of(name: str) -> str:
    return str(uuid5(NAMESPACE_DNS, name))


def asks(name: str, **resources: int) -> ClaimRequest:
    return ClaimRequest(uuid_of(name), (RequestGroup("", resources),), name=name)


def guest(name: str, units: tuple[UsedUnit, ...] = (), **resources: int) -> Guest:
    return Guest(uuid_of(name), name, GuestState.RUNNING, resources, units)


@dataclass
class Sight:
    """`world` is the agent; `host_status` what it shows."""

    world: World
    directory: Path

    @property
    def host_status(self) -> HostStatus:
        return self.world.agent.host_status

    @property
    def journal(self) -> Journal:
        return self.world.journal


@contextmanager
def sight() -> Iterator[Sight]:
    """The agent of an empty host, which it has looked at once."""
    with fast_directory() as name:
        directory = Path(name)
        file = directory / "plimsoll.conf"
        lines = ["[DEFAULT]", "compute_driver = fake", f"host = {HOST}", f"state_path = {directory}"]
        file.write_text("\n".join([*lines, "[placement]", "kind = embedded"]) + "\n")
        world = opened(load([file]))
        try:
            world.driver.change(**{each.name: getattr(FLAT, each.name) for each in fields(FLAT)})
            world.agent.reconcile("the start")
            world.agent.is_alive()
            yield Sight(world, directory)
        finally:
            world.close()


def fill(shown: Sight) -> None:
    """Guests with claims, a reshape of the cards, a resize under way, one guest that nobody claimed for."""
    agent, operations, driver = shown.world.agent, shown.world.operations, shown.world.driver
    for name, resources in GUESTS.items():
        claim = operations.claim(asks(name, **resources))
        units = tuple(
            UsedUnit(of, unit, device_of(of)) for by in claim.units.values() for of in by for unit in by[of]
        )
        driver.add_guest(guest(name, units, **resources))
    driver.add_guest(guest(FORGOTTEN, VCPU=2, MEMORY_MB=2048, DISK_GB=20))
    driver.change(flat_devices=False)
    agent.reconcile("the fake host's flat_devices changed")
    operations.begin_move(MoveKind.RESIZE, MIGRATION, asks("web1", VCPU=8, MEMORY_MB=8192, DISK_GB=40))
    operations.audit(heal=False)


def device_of(resource_class: str) -> str:
    return {"VGPU": f"pci:{VGPU_CARD}", "PGPU": f"pci:{PGPU_CARD}", "SRIOV_NET_VF": "pci:0000:41:00.0"}[
        resource_class
    ]


@contextmanager
def listening(host_status: HostStatus, address: str = "127.0.0.1:0") -> Iterator[str]:
    """The listener's base URL."""
    listener = HttpListener(host_status, [Address.parse(address)])
    listener.start()
    try:
        (where,) = listener.addresses
        yield f"http://{where}"
    finally:
        listener.stop()


def fetch(url: str, method: str = "GET", **headers: str) -> tuple[int, Any, bytes]:
    """(status, headers, body), whatever the status."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with urlopen(Request(url, method=method, headers=named), timeout=10) as reply:
            return reply.status, reply.headers, reply.read()
    except HTTPError as error:
        return error.code, error.headers, error.read()
