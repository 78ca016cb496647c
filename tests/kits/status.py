"""A host worth looking at, all of it real: GPUs, network cards, guests, a reshape, a move, findings."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from agent.claims.request import ClaimRequest, RequestGroup
from agent.config.access import Address
from agent.config.settings import load
from agent.driver import Guest, GuestState, UsedUnit
from agent.gate.effect import GatePaths
from agent.gate.install import hook_script
from agent.moves.states import MoveKind
from agent.state.journal import Journal
from agent.state.operators import PauseRequest
from agent.status.host_status import HostStatus
from agent.status.web import HttpListener
from drivers.fake.host import FakeHost, Gpu, Nic, cell
from kits.agent import World, opened
from kits.pci_tree import PciTree
from kits.reshape import uuid_of
from kits.tracker import fast_directory

HOST = "kvm-07"
VGPU_CARD, PGPU_CARD = "0000:42:00.0", "0000:83:00.0"
MDEVS = tuple(uuid_of(f"mdev{number}") for number in range(8))
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
MIGRATION = uuid_of("the move")


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
def sight(*, gate: bool = False) -> Iterator[Sight]:
    """The agent of an empty host, which it has looked at once.

    `gate`: the gate is enabled, and libvirtd has not been restarted since.
    """
    with fast_directory() as name:
        directory = Path(name)
        file = directory / "plimsoll.conf"
        lines = ["[DEFAULT]", "compute_driver = fake", f"host = {HOST}", f"state_path = {directory}"]
        lines += ["[api]", f"socket = {directory}/s"]
        file.write_text("\n".join([*lines, "[placement]", "kind = embedded"]) + "\n")
        paths = GatePaths(directory / "hook", directory / "gate.conf", directory)
        if gate:
            _enable_gate(paths)
        with opened(load([file]), gate_paths=paths) as world:
            world.driver.change(**{each.name: getattr(FLAT, each.name) for each in fields(FLAT)})
            world.agent.reconcile("the start")
            world.agent.is_alive()
            yield Sight(world, directory)


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


def _enable_gate(paths: GatePaths) -> None:
    (paths.run / "libvirtd.pid").write_text(f"{os.getpid()}\n")
    os.utime(paths.run / "libvirtd.pid", (1_790_000_000, 1_790_000_000))
    paths.config.write_text(f"socket = {paths.run / 's'}\nunanswered = allow\n")
    paths.hook.write_text(hook_script())
    paths.hook.chmod(0o755)


def trouble(shown: Sight) -> None:
    """Drain the host; one guest runs unclaimed, one has moved away, and a GPU does not answer any more."""
    agent, operations, driver = shown.world.agent, shown.world.operations, shown.world.driver
    for name in ("train", "web1"):
        claim = operations.claim(asks(name, **GUESTS[name]))
        units = tuple(
            UsedUnit(of, unit, device_of(of)) for by in claim.units.values() for of in by for unit in by[of]
        )
        driver.add_guest(guest(name, units, **GUESTS[name]))
    agent.reconcile("an event")
    operations.pause(PauseRequest(0, 1_790_000_000.0, "drive 3 is replaced", schedulers=True, drains=True))
    driver.add_guest(guest(FORGOTTEN, VCPU=24, MEMORY_MB=40960, DISK_GB=20))
    _hold_elsewhere(shown, "web1")
    root = PciTree(shown.directory / "root")
    for nic in FLAT.nics:
        for address in (nic.address, *nic.vfs):
            root.add(address, "igb")
    device = root.add(PGPU_CARD, "nvidia", class_="0x030000")
    (device / "config").write_bytes(b"\xff" * 64)
    driver.change(root_path=str(root.root))
    for at in (1000.0, 1010.0, 1020.0):
        agent.look_at_devices(at)
    for _ in range(2):
        agent.reconcile("an event")
        agent.verify()
    operations.audit(heal=False)


def _hold_elsewhere(shown: Sight, name: str) -> None:
    """What the instance holds is of another host now, as after an evacuation."""
    wire, uuid = shown.world.wire, uuid_of("kvm-08")
    held = wire.request("GET", f"/allocations/{uuid_of(name)}", microversion="1.39").body
    for method, path, body in (
        ("POST", "/resource_providers", {"name": "kvm-08", "uuid": uuid}),
        (
            "PUT",
            f"/resource_providers/{uuid}/inventories",
            {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": 64}}},
        ),
        (
            "PUT",
            f"/allocations/{uuid_of(name)}",
            {
                **{key: held[key] for key in ("consumer_generation", "project_id", "user_id")},
                "consumer_type": "INSTANCE",
                "allocations": {uuid: {"resources": {"VCPU": 4}}},
            },
        ),
    ):
        assert wire.request(method, path, body, microversion="1.39").status in (200, 201, 204)


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
        with error:
            return error.code, error.headers, error.read()
