"""libvirt's hook, run as a process, asks the gate: a guest is claimed for, or does not start."""

import logging
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from kits.api_client import ask, check
from kits.cli_process import plimsoll
from kits.gate import DEVICES_HOST, GatedHost, claim_of, domain, gated, guest, pci
from kits.libvirt_model import FACTS
from kits.recorded import Recorded
from kits.status import fetch, listening

from agent.claims.claim import Claim, ClaimState
from agent.claims.domain_demand import GATE_USER
from agent.claims.request import ClaimRequest, RequestGroup, with_others
from agent.config.access import Access
from agent.device_names import LIVE_MIGRATABLE, TYPES
from agent.driver import Guest, GuestState, HostSettings
from agent.errors import DoesNotFit, PlacementUnavailable, Refused
from agent.gate import gate
from agent.moves.states import MoveKind, MoveState
from agent.placement.client import PlacementClient
from agent.placement.transport import Reply
from drivers.fake.host import Gpu, cell
from drivers.libvirt.describe.cards import parse_device_specs
from drivers.libvirt.describe.devices import DeviceSettings
from drivers.libvirt.describe.host import ModelSettings
from drivers.libvirt.xml import Version

ALWAYS_0 = (
    ("start", "begin"),
    ("started", "begin"),
    ("stopped", "end"),
    ("release", "end"),
    ("restore", "begin"),
    ("reconnect", "begin"),
    ("attach", "begin"),
    ("whatever", "comes"),
)


# Operations that must never fail


@pytest.mark.parametrize(("operation", "sub_operation"), ALWAYS_0)
def test_everything_else_ends_with_0_whatever_happens(
    host: GatedHost, operation: str, sub_operation: str
) -> None:
    huge = b"<domain>" + b" " * (2**20 + 1)
    for xml in (domain(str(uuid4())), "", "no xml", b"\xff\xfe\x00", huge):
        host.allowed(operation, sub_operation, xml)
    host.configure(f"socket = {host.folder}/nobody\nunanswered = refuse\n")
    host.allowed(operation, sub_operation, domain(str(uuid4())))
    for nonsense in (b"\xff\xff = nonsense\n", "deadline = \u00b2\n".encode()):
        host.config.write_bytes(nonsense)
        host.allowed(operation, sub_operation, domain(str(uuid4())))
    shutil.rmtree(host.config, ignore_errors=True)


@pytest.mark.parametrize("operation", ["prepare", "migrate"])
def test_what_makes_no_sense_is_refused_and_changes_nothing(host: GatedHost, operation: str) -> None:
    bomb = "<!DOCTYPE d [<!ENTITY a 'b'>]><domain><name>&a;</name></domain>"
    for xml in ("", "no xml", bomb, "<domain/>", b"<domain>" + b" " * (2**20 + 1)):
        assert host.call(operation, "begin", xml).returncode in (0, 1)
    assert "not allowed" in host.refused(operation, "begin", bomb)
    assert "more than" in host.refused(operation, "begin", b"<domain>" + b" " * (2**20 + 1))
    assert host.world.agent._tracker.claims() == {}


# An agent that does not answer


def test_who_waits_for_no_agent_may_start_or_may_not_as_configured(host: GatedHost) -> None:
    host.configure(f"socket = {host.folder}/nobody\nunanswered = allow\n")
    host.allowed("prepare", "begin", domain(str(uuid4())))
    host.configure(f"socket = {host.folder}/nobody\n")
    assert "did not decide" in host.refused("prepare", "begin", domain(str(uuid4())))


def test_an_agent_that_hangs_is_waited_for_no_longer_than_the_deadline(host: GatedHost) -> None:
    path = host.folder / "hangs"
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        host.configure(f"socket = {path}\ndeadline = 0.3\nunanswered = allow\n")
        host.allowed("prepare", "begin", domain(str(uuid4())))
        host.configure(f"socket = {path}\ndeadline = 0.3\n")
        assert "within 0.3 s" in host.refused("migrate", "begin", domain(str(uuid4())))


def test_a_trickle_of_an_answer_is_not_waited_for(host: GatedHost) -> None:
    path = host.folder / "trickles"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        stop = threading.Event()

        def trickle() -> None:
            connection, _ = server.accept()
            with connection:
                while not stop.wait(0.05):
                    try:
                        connection.send(b"H")
                    except OSError:
                        return

        thread = threading.Thread(target=trickle)
        thread.start()
        host.configure(f"socket = {path}\ndeadline = 0.5\nunanswered = refuse\n")
        assert "within 0.5 s" in host.refused("prepare", "begin", domain(str(uuid4())))
        stop.set()
        thread.join()


@contextmanager
def answered(host: GatedHost, answer: bytes) -> Iterator[None]:
    """In the block, something else than an agent answers one call of the hook."""
    path = host.folder / "nonsense"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        host.configure(f"socket = {path}\nunanswered = refuse\n")

        def reply() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(2**16)
                connection.sendall(answer)

        thread = threading.Thread(target=reply)
        thread.start()
        yield
        thread.join()


def test_an_answer_that_makes_no_sense_stops_no_release(host: GatedHost) -> None:
    with answered(host, b"HTTP/1.1 409 Conflict\r\n\r\n" + b"[" * 100_000):
        host.allowed("release", "end", domain(str(uuid4())))


def test_libvirt_that_sends_nothing_is_not_waited_for_either(host: GatedHost) -> None:
    host.configure("deadline = 0.3\n")
    read, write = os.pipe()
    try:
        done = subprocess.run(
            [str(host.hook), "vm", "release", "end", "-"], stdin=read, timeout=10, check=False
        )
    finally:
        os.close(read)
        os.close(write)
    assert done.returncode == 0


def test_while_claims_are_closed_the_agent_has_not_decided(host: GatedHost) -> None:
    known = str(uuid4())
    host.allowed("prepare", "begin", domain(known))
    host.world.agent._tracker.admission.close("an operator works on this host")
    host.configure("unanswered = allow\n")
    host.allowed("prepare", "begin", domain(str(uuid4())))
    host.configure()
    assert "an operator works on this host" in host.refused("prepare", "begin", domain(str(uuid4())))
    host.allowed("prepare", "begin", domain(known))


def test_who_may_not_claim_is_refused(tmp_path: Path) -> None:
    uuid = str(uuid4())
    nobody = Access()
    with gated(tmp_path / "a", access=nobody) as host:
        assert "claimer" in host.refused("prepare", "begin", domain(uuid)) or os.geteuid() == 0
        host.allowed("release", "end", domain(uuid))


# Migrations


def test_a_live_migration_is_a_move_and_ends_by_itself(host: GatedHost, other: GatedHost) -> None:
    vm = guest(str(uuid4()))
    host.starts(vm, domain(vm.uuid))
    other.allowed("migrate", "begin", domain(vm.uuid))
    (move,) = other.world.agent.host_status.overview().moves
    assert move.state is MoveState.BEGUN
    assert other.held(vm.uuid) == {"node2": {"VCPU": 2, "MEMORY_MB": 1024}}
    assert host.held(move.migration) == {"node1": {"VCPU": 2, "MEMORY_MB": 1024}}
    other.allowed("prepare", "begin", domain(vm.uuid))
    other.allowed("start", "begin", domain(vm.uuid))
    other.allowed("started", "begin", domain(vm.uuid))
    coming = Guest(vm.uuid, "vm", GuestState.MIGRATING, vm.resources)
    other.driver.add_guest(coming)
    other.world.agent.reconcile("it comes in")
    assert [each.state for each in other.world.agent.host_status.overview().moves] == [MoveState.BEGUN]
    other.driver.add_guest(vm)
    host.ends(vm, domain(vm.uuid))
    assert host.held(move.migration) == {"node1": {"VCPU": 2, "MEMORY_MB": 1024}}, "the destination decides"
    other.world.agent.reconcile("it runs")
    assert [each.state for each in other.world.agent.host_status.overview().moves] == [MoveState.CONFIRMED]
    host.world.agent.verify()
    host.world.agent.reconcile("the source, later")
    assert host.held(move.migration) == {} and host.world.agent._tracker.claims() == {}
    assert other.held(vm.uuid) == {"node2": {"VCPU": 2, "MEMORY_MB": 1024}}
    other.ends(vm, domain(vm.uuid))
    assert other.held(vm.uuid) == {}


CARD = "0000:83:00.0"
IOMMUFD = {
    "the device": ("", "<driver iommufd='yes'/>"),
    "the domain": ("<iommufd enabled='yes'/>", ""),
    "the domain, with a file descriptor": ("<iommufd enabled='yes' fdgroup='iommu'/>", ""),
    "the domain, not the device": ("<iommufd enabled='yes'/>", "<driver iommufd='no'/>"),
}
"""How a domain says which of its devices go over iommufd: by themselves since libvirt 12.1, all since 12.2.

Source: NEWS.rst and tests/qemuxmlconfdata/iommufd-q35.xml, iommufd-q35-fd.xml of libvirt
"""


def with_card(uuid: str, form: str) -> str:
    """A domain with the card, which is over iommufd in this way."""
    inside, driver = IOMMUFD[form]
    return domain(uuid, devices=pci(CARD).replace("<source>", f"{driver}<source>"), inside=inside)


def show_card(host: GatedHost, *traits: str, name: str = "PGPU") -> None:
    """The host has this one card, with these traits and of this class."""
    card = Gpu(CARD, name, 1, (CARD,), traits=frozenset(traits))
    host.driver.change(cells=DEVICES_HOST.cells, gpus=(card,), nics=())
    host.world.agent.reconcile("a card")


@pytest.mark.parametrize("form", IOMMUFD)
def test_a_device_over_iommufd_goes_through_the_gate_and_moves_as_any_other(
    host: GatedHost, other: GatedHost, form: str
) -> None:
    vm, rival = guest(str(uuid4())), guest(str(uuid4()))
    xml, of_rival = with_card(vm.uuid, form), domain(rival.uuid, devices=pci(CARD))
    for each in (host, other):
        show_card(each, TYPES["type-PF"])
    host.starts(rival, of_rival)
    assert CARD in host.refused("prepare", "begin", xml) and host.held(vm.uuid) == {}
    host.ends(rival, of_rival)
    host.starts(vm, xml)
    here, there = (
        {name: {"VCPU": 2, "MEMORY_MB": 1024}, f"{name}_pci_{CARD}": {"PGPU": 1}}
        for name in ("node1", "node2")
    )
    assert host.held(vm.uuid) == here
    assert "is not declared live_migratable" in other.refused("migrate", "begin", xml)
    claim = host.world.agent._tracker.claim_of(vm.uuid)
    assert claim is not None
    migration = str(uuid4())
    other.world.operations.begin_move(MoveKind.COLD_MIGRATE, migration, claim.request)
    assert (other.held(vm.uuid), host.held(migration)) == (there, here)
    other.allowed("prepare", "begin", xml)
    other.world.operations.revert_move(migration, None)
    for each in (host, other):
        show_card(each, TYPES["type-PF"], LIVE_MIGRATABLE)
    other.allowed("migrate", "begin", xml)
    assert other.held(vm.uuid) == there


@pytest.mark.parametrize("form", [None, *IOMMUFD])
def test_a_live_migration_to_another_driver_of_vfio_is_refused_with_both(
    host: GatedHost, other: GatedHost, form: str | None
) -> None:
    """Each agent reports its own driver; the destination reads the source's from Placement."""
    vm = guest(str(uuid4()))
    xml = with_card(vm.uuid, form) if form else domain(vm.uuid, devices=pci(CARD))
    show_card(host, LIVE_MIGRATABLE, "CUSTOM_VFIO_DRIVER_MLX5_VFIO_PCI")
    show_card(other, LIVE_MIGRATABLE, "CUSTOM_VFIO_DRIVER_XE_VFIO_PCI")
    host.starts(vm, xml)
    before = host.held(vm.uuid)
    claim = host.world.agent._tracker.claim_of(vm.uuid)
    assert claim is not None
    with pytest.raises(Refused) as refused:
        other.world.operations.begin_move(MoveKind.LIVE_MIGRATE, str(uuid4()), claim.request)
    for reason in (refused.value.message, other.refused("migrate", "begin", xml)):
        assert "under the driver of VFIO mlx5_vfio_pci at the source, and this host has xe_vfio_pci" in reason
    assert host.held(vm.uuid) == before and other.held(vm.uuid) == {}
    show_card(other, LIVE_MIGRATABLE, "CUSTOM_VFIO_DRIVER_MLX5_VFIO_PCI")
    other.allowed("migrate", "begin", xml)


def test_a_live_migration_of_a_port_to_plain_vfio_is_refused_where_its_driver_migrates(
    host: GatedHost, other: GatedHost
) -> None:
    """A port whose driver does not migrate it is detached and attached, so its migration begins."""
    vm, plain, mlx5 = guest(str(uuid4())), "CUSTOM_VFIO_DRIVER_VFIO_PCI", "CUSTOM_VFIO_DRIVER_MLX5_VFIO_PCI"
    xml, name = domain(vm.uuid, devices=pci(CARD)), "SRIOV_NET_VF"
    show_card(host, LIVE_MIGRATABLE, mlx5, name=name)
    show_card(other, plain, name=name)
    host.starts(vm, xml)
    before, migration = host.held(vm.uuid), str(uuid4())
    assert {name: 1} in before.values()
    claim = host.world.agent._tracker.claim_of(vm.uuid)
    assert claim is not None
    with pytest.raises(Refused) as refused:
        other.world.operations.begin_move(MoveKind.LIVE_MIGRATE, migration, claim.request)
    for reason in (refused.value.message, other.refused("migrate", "begin", xml)):
        both = "mlx5_vfio_pci at the source, and this host has vfio_pci (or one that does not migrate it)."
        assert f"under the driver of VFIO {both}" in reason
    assert host.held(vm.uuid) == before and other.held(vm.uuid) == host.held(migration) == {}
    # A card that tells of no driver may take it: it is chosen, and not the one that cannot.
    other.driver.change(nics=DEVICES_HOST.nics)
    other.world.agent.reconcile("other cards")
    other.world.operations.begin_move(MoveKind.LIVE_MIGRATE, migration, claim.request)
    (taken,) = (provider for provider, amounts in other.held(vm.uuid).items() if name in amounts)
    assert "_net_" in taken
    other.world.operations.revert_move(migration, None)
    for source, destination in ([plain], [plain]), ([plain], [mlx5]), ([], [plain]), ([mlx5], []):
        show_card(host, *source, name=name)
        show_card(other, *destination, name=name)
        migration = str(uuid4())
        other.world.operations.begin_move(MoveKind.LIVE_MIGRATE, migration, claim.request)
        other.world.operations.revert_move(migration, None)
        assert host.held(vm.uuid) == before


def starts_with_card(host: GatedHost, vm: Guest, *traits: str, name: str) -> Claim:
    """The guest starts with the host's one card, which has these traits and is of this class."""
    show_card(host, *traits, name=name)
    host.starts(vm, domain(vm.uuid, devices=pci(CARD)))
    claim = host.world.agent._tracker.claim_of(vm.uuid)
    assert claim is not None
    return claim


NIC_SPEC = '{"vendor_id": "8086", "product_id": "10ca", "address": "0000:%s:10.*"%s}'
VFS = tuple(f"0000:41:10.{number}" for number in (0, 2, 4, 6))
OTHER_VFS = ("0000:81:10.0", "0000:81:10.2")


def show_functions(host: GatedHost, driver: Recorded, *bound: str, said: str = "", **facts: object) -> None:
    """The host has recorded devices; its offered functions are under these drivers, in their order.

    They are those of one card, or of two with as many drivers as both have.
    """
    units = VFS if len(bound) == len(VFS) else (*VFS, *OTHER_VFS)
    drivers = dict(zip(units, bound, strict=True))
    cards = tuple(
        replace(
            card,
            vfs=tuple(replace(vf, driver=drivers.get(vf.address, vf.driver)) for vf in card.vfs),
        )
        for card in FACTS["vfs"].cards
    )
    specs = parse_device_specs((NIC_SPEC % ("41" if units is VFS else "*", said),))
    root = host.world.agent._tracker.view.host.root
    assert root is not None
    driver.settings = ModelSettings(root.name, HostSettings(), DeviceSettings(specs))
    driver.facts = replace(FACTS["vfs"], cards=cards, **facts)
    host.world.agent._reconciler.replace_driver(driver)
    host.world.agent.reconcile("recorded devices")


def show_drivers(host: GatedHost, driver: Recorded, *bound: str) -> None:
    """The same; each of these drivers but the plain one is known to migrate its function."""
    units = zip((*VFS, *OTHER_VFS), bound, strict=False)
    known = {unit: each for unit, each in units if each != "vfio-pci"}
    show_functions(host, driver, *bound, migration_drivers=known)


def taken(host: GatedHost, consumer: str) -> set[str]:
    """The functions of a claim of this host."""
    claim = host.world.agent._tracker.claim_of(consumer)
    return {unit for _, name, unit in claim.exact if name == "SRIOV_NET_VF"} if claim else set()


def test_before_libvirt_10_a_live_migration_to_functions_of_the_host_is_refused(
    host: GatedHost, other: GatedHost
) -> None:
    """That libvirt binds vfio-pci to a function under the NIC's driver, and not the one that migrates.

    A newer one does so where the kernel has no other driver for it (`plain`).
    """
    vm, name, mlx5 = guest(str(uuid4())), "SRIOV_NET_VF", "CUSTOM_VFIO_DRIVER_MLX5_VFIO_PCI"
    driver = Recorded()
    claim = starts_with_card(host, vm, LIVE_MIGRATABLE, mlx5, name=name)
    before = host.held(vm.uuid)

    def show(version: Version, said: str = "") -> None:
        driver.host = replace(driver.host, libvirt=version)
        known = dict.fromkeys(VFS, "mlx5_vfio_pci")  # by modules.alias
        show_functions(other, driver, *["mlx5_core"] * 4, said=said, migration_drivers=known)

    def is_refused() -> None:
        with pytest.raises(Refused) as refused:
            other.world.operations.begin_move(MoveKind.LIVE_MIGRATE, str(uuid4()), claim.request)
        both = "mlx5_vfio_pci at the source, and this host has vfio_pci (or one that does not migrate it)."
        assert f"its {name} is under the driver of VFIO {both}" in refused.value.message
        assert host.held(vm.uuid) == before and other.held(vm.uuid) == {}

    show((11, 3, 0))
    show_functions(other, driver, *["mlx5_core"] * 4, plain=frozenset(VFS))
    is_refused()
    show((9, 0, 0))
    is_refused()
    for version, said in (
        ((10, 0, 0), ""),
        ((0, 0, 0), ""),
        ((9, 0, 0), ', "managed": "no"'),
        ((9, 0, 0), ', "live_migratable": "yes"'),
    ):
        show(version, said)
        migration = str(uuid4())
        other.world.operations.begin_move(MoveKind.LIVE_MIGRATE, migration, claim.request)
        other.world.operations.revert_move(migration, None)
    show((9, 0, 0))
    other.world.operations.begin_move(MoveKind.COLD_MIGRATE, migration := str(uuid4()), claim.request)
    other.world.operations.revert_move(migration, None)
    show_card(host, name=name)  # one that the source does not migrate is detached and attached
    other.world.operations.begin_move(MoveKind.LIVE_MIGRATE, str(uuid4()), claim.request)
    assert len(taken(other, vm.uuid)) == 1


def test_a_live_migration_takes_a_card_that_does_not_tell_where_one_alike_is_full(
    host: GatedHost, other: GatedHost
) -> None:
    """Not one that tells of another driver; what a card does not tell is no reason to refuse it."""
    vm, name, mlx5 = guest(str(uuid4())), "SRIOV_NET_VF", "CUSTOM_VFIO_DRIVER_MLX5_VFIO_PCI"
    claim = starts_with_card(host, vm, LIVE_MIGRATABLE, mlx5, name=name)
    full, untold, xe = CARD, "0000:b1:00.0", "0000:51:00.0"
    traits = {full: {mlx5}, untold: set[str](), xe: {"CUSTOM_VFIO_DRIVER_XE_VFIO_PCI"}}
    cards = tuple(Gpu(each, name, 1, (each,), traits=frozenset(told)) for each, told in traits.items())
    other.driver.change(cells=DEVICES_HOST.cells, gpus=cards, nics=())
    other.world.agent.reconcile("three cards")
    alike = RequestGroup("_1", {name: 1}, required=(frozenset({mlx5}),))
    other.world.operations.claim(ClaimRequest(str(uuid4()), (RequestGroup("", {"VCPU": 1}), alike)))
    other.world.operations.begin_move(MoveKind.LIVE_MIGRATE, migration := str(uuid4()), claim.request)
    assert taken(other, vm.uuid) == {untold}
    other.world.operations.revert_move(migration, None)
    rest = (RequestGroup("", {"VCPU": 1}), RequestGroup("_1", {name: 1}, forbidden=frozenset(traits[xe])))
    other.world.operations.claim(ClaimRequest(str(uuid4()), rest))
    with pytest.raises(Refused) as refused:
        other.world.operations.begin_move(MoveKind.LIVE_MIGRATE, str(uuid4()), claim.request)
    assert (
        f"its {name} is under the driver of VFIO mlx5_vfio_pci at the source, and what is free here is on "
        f"node2_pci_{xe}, which has xe_vfio_pci."
    ) in refused.value.message
    assert other.held(vm.uuid) == {}
    # Where that one is full, too, no driver is what lacks.
    other.world.operations.claim(ClaimRequest(str(uuid4()), (RequestGroup("", {"VCPU": 1, name: 1}),)))
    with pytest.raises(DoesNotFit, match=name):
        other.world.operations.begin_move(MoveKind.LIVE_MIGRATE, str(uuid4()), claim.request)
    assert other.held(vm.uuid) == {}


@pytest.mark.parametrize("name", ["SRIOV_NET_VF", "CUSTOM_NIC"])
@pytest.mark.parametrize("network", ["CUSTOM_PHYSNET_A", "CUSTOM_PHYSNET_B"])
def test_a_refusal_names_both_drivers_where_one_alike_is_on_another_network(
    host: GatedHost, other: GatedHost, network: str, name: str
) -> None:
    """A card of the guest's network that is of another driver is named, and one of another network is not."""
    vm, mlx5, vf = guest(str(uuid4())), "CUSTOM_VFIO_DRIVER_MLX5_VFIO_PCI", TYPES["type-VF"]
    claim = starts_with_card(host, vm, LIVE_MIGRATABLE, mlx5, vf, "CUSTOM_PHYSNET_A", name=name)
    traits = {
        CARD: {mlx5, LIVE_MIGRATABLE, vf, "CUSTOM_PHYSNET_B"},
        "0000:51:00.0": {"CUSTOM_VFIO_DRIVER_VFIO_PCI", vf, network},
    }
    cards = tuple(Gpu(each, name, 1, (each,), traits=frozenset(told)) for each, told in traits.items())
    other.driver.change(cells=DEVICES_HOST.cells, gpus=cards, nics=())
    other.world.agent.reconcile("two cards")
    port = RequestGroup("_port", {name: 1}, required=(frozenset({"CUSTOM_PHYSNET_A"}),))
    request = replace(claim.request, groups=(RequestGroup("", {"VCPU": 2, "MEMORY_MB": 1024}), port))
    refused = Refused if network == "CUSTOM_PHYSNET_A" else DoesNotFit
    told = "has vfio_pci" if refused is Refused else network.replace("_B", "_A")
    with pytest.raises(refused, match=told):
        other.world.operations.begin_move(MoveKind.LIVE_MIGRATE, str(uuid4()), request)
    assert other.held(vm.uuid) == {}


def test_a_live_migration_takes_the_first_alternative_that_is_not_refused_for_its_driver(
    host: GatedHost, other: GatedHost
) -> None:
    """ "the first that fits" (docs/moves.md)"""
    vm, name, mlx5 = guest(str(uuid4())), "SRIOV_NET_VF", "CUSTOM_VFIO_DRIVER_MLX5_VFIO_PCI"
    networks = ("CUSTOM_PHYSNET_A", "CUSTOM_PHYSNET_B")
    claim = starts_with_card(host, vm, LIVE_MIGRATABLE, mlx5, *networks, name=name)
    other_card = "0000:51:00.0"
    traits = {CARD: {"CUSTOM_VFIO_DRIVER_VFIO_PCI", networks[0]}, other_card: {mlx5, networks[1]}}
    cards = tuple(Gpu(each, name, 1, (each,), traits=frozenset(told)) for each, told in traits.items())
    other.driver.change(cells=DEVICES_HOST.cells, gpus=cards, nics=())
    other.world.agent.reconcile("two cards")
    rest = RequestGroup("", {"VCPU": 2, "MEMORY_MB": 1024})
    asked = with_others(
        [
            replace(claim.request, groups=(rest, RequestGroup("_port", {name: 1}, (frozenset({each}),))))
            for each in networks
        ]
    )
    migration = str(uuid4())
    move = other.world.operations.begin_move(MoveKind.LIVE_MIGRATE, migration, asked, alternative=0)
    assert taken(other, vm.uuid) == {other_card}
    assert move.new is not None and move.new.request.alternative == 2


def test_a_live_migration_is_refused_where_its_source_does_not_migrate_the_device(
    host: GatedHost, other: GatedHost
) -> None:
    """Also where the destination could: "refused unless the device has" the trait (docs/claims.md)."""
    vm, name = guest(str(uuid4())), "CUSTOM_NIC"
    mlx5 = TYPES["type-VF"], LIVE_MIGRATABLE, "CUSTOM_VFIO_DRIVER_MLX5_VFIO_PCI"
    claim = starts_with_card(host, vm, TYPES["type-VF"], name=name)
    show_card(other, *mlx5, name=name)
    before = host.held(vm.uuid)
    with pytest.raises(Refused, match="its CUSTOM_NIC at the source is not declared live_migratable"):
        other.world.operations.begin_move(MoveKind.LIVE_MIGRATE, str(uuid4()), claim.request)
    assert host.held(vm.uuid) == before and other.held(vm.uuid) == {}
    show_card(host, *mlx5, name=name)
    other.world.operations.begin_move(MoveKind.LIVE_MIGRATE, str(uuid4()), claim.request)


def refuses_beside_a_rival(other: GatedHost, claim: Claim, name: str, driver: str) -> None:
    """Another guest has all functions but the last one, whose driver cannot take over the state."""
    rival = ClaimRequest(str(uuid4()), (RequestGroup("", {name: 3}),))
    other.world.operations.claim(rival)
    assert taken(other, rival.consumer) == {*VFS[:3]}
    with pytest.raises(Refused) as refused:
        other.world.operations.begin_move(MoveKind.LIVE_MIGRATE, str(uuid4()), claim.request)
    assert (
        f"its {name} is under the driver of VFIO mlx5_vfio_pci at the source, and what is free here is "
        f"on node2_net_enp65s0, which has {driver}."
    ) in refused.value.message


def test_a_live_migration_takes_of_a_mixed_card_what_can_take_over_the_state(
    host: GatedHost, other: GatedHost
) -> None:
    vm, name, mlx5 = guest(str(uuid4())), "SRIOV_NET_VF", "CUSTOM_VFIO_DRIVER_MLX5_VFIO_PCI"
    driver = Recorded()
    claim = starts_with_card(host, vm, LIVE_MIGRATABLE, mlx5, name=name)
    before = host.held(vm.uuid)
    bound = ["vfio-pci", "vfio-pci", "mlx5_vfio_pci", "vfio-pci"]

    show_drivers(other, driver, *bound)
    other.world.operations.begin_move(MoveKind.LIVE_MIGRATE, migration := str(uuid4()), claim.request)
    assert taken(other, vm.uuid) == {VFS[2]}
    other.world.operations.revert_move(migration, None)
    show_drivers(other, driver, *reversed(bound))  # no trait of the card differs, but the functions do
    other.world.operations.begin_move(MoveKind.LIVE_MIGRATE, migration := str(uuid4()), claim.request)
    assert taken(other, vm.uuid) == {VFS[1]}
    other.world.operations.revert_move(migration, None)
    show_drivers(other, driver, *bound)
    # So it is where a control plane wrote the amounts on both hosts, and the agent chooses the function.
    there, client = other.world.agent._tracker.view.host, PlacementClient(other.world.wire)
    assert there.root is not None
    both = {there.root.uuid: {"VCPU": 2, "MEMORY_MB": 1024}, there.by_class[name][0].uuid: {name: 1}}
    alone = client.allocations_of(vm.uuid)
    client.write_allocations(replace(alone, allocations={**alone.allocations, **both}))
    other.world.operations.begin_move(MoveKind.LIVE_MIGRATE, migration := str(uuid4()), claim.request)
    assert taken(other, vm.uuid) == {VFS[2]}
    other.world.operations.revert_move(migration, None)
    # Another guest has the only one: there are free functions, and none that could take over the state.
    refuses_beside_a_rival(other, claim, name, "vfio_pci (or one that does not migrate it)")
    assert host.held(vm.uuid) == before and other.held(vm.uuid) == {}
    for allocations in (both, {}):
        written = replace(client.allocations_of(vm.uuid), allocations={**alone.allocations, **allocations})
        client.write_allocations(written)
        with pytest.raises(Refused, match="under the driver of VFIO mlx5_vfio_pci at the source"):
            other.world.operations.begin_move(MoveKind.LIVE_MIGRATE, str(uuid4()), claim.request)
    # A cold one, and one of a function that the source does not migrate, take any.
    other.world.operations.begin_move(MoveKind.COLD_MIGRATE, migration := str(uuid4()), claim.request)
    other.world.operations.revert_move(migration, None)
    show_card(host, name=name)
    other.world.operations.begin_move(MoveKind.LIVE_MIGRATE, migration := str(uuid4()), claim.request)
    assert taken(other, vm.uuid) == {VFS[3]}


@pytest.mark.parametrize("first", ["pds_vfio_pci", "igbvf"])
def test_a_live_migration_takes_of_a_card_with_two_drivers_a_function_of_the_sources(
    host: GatedHost, other: GatedHost, first: str
) -> None:
    """Both drivers migrate, so the card has the traits of both; each takes over the state of its own.

    A function of which the driver is not known may do, and comes last.
    """
    vm, name, mlx5 = guest(str(uuid4())), "SRIOV_NET_VF", "CUSTOM_VFIO_DRIVER_MLX5_VFIO_PCI"
    claim, driver = starts_with_card(host, vm, LIVE_MIGRATABLE, mlx5, name=name), Recorded()
    bound = [first, "pds_vfio_pci", "mlx5_vfio_pci", "pds_vfio_pci"]
    known = {unit: each for unit, each in zip(VFS, bound, strict=True) if each != "igbvf"}
    show_functions(other, driver, *bound, migration_drivers=known)
    other.world.operations.begin_move(MoveKind.LIVE_MIGRATE, migration := str(uuid4()), claim.request)
    assert taken(other, vm.uuid) == {VFS[2]}
    other.world.operations.revert_move(migration, None)
    refuses_beside_a_rival(other, claim, name, "pds_vfio_pci")
    assert other.held(vm.uuid) == {}


def test_a_live_migration_takes_functions_of_two_mixed_cards_if_only_both_have_enough(
    host: GatedHost, other: GatedHost
) -> None:
    """One card tells of both its drivers, the other one of none, and each has one of the source's free."""
    mlx5, name = "mlx5_vfio_pci", "SRIOV_NET_VF"
    show_drivers(host, Recorded(), *[mlx5] * 4)
    show_drivers(other, Recorded(), mlx5, *["xe_vfio_pci"] * 3, mlx5, "vfio-pci")
    ports = (RequestGroup(suffix, {name: 1}) for suffix in ("_1", "_2"))
    request = ClaimRequest(str(uuid4()), (RequestGroup("", {"VCPU": 1, "MEMORY_MB": 512}), *ports))
    host.world.operations.claim(request)
    other.world.operations.begin_move(MoveKind.LIVE_MIGRATE, str(uuid4()), request)
    assert taken(other, request.consumer) == {VFS[0], OTHER_VFS[0]}


def test_a_guest_on_a_mixed_card_goes_only_where_the_drivers_in_use_can_take_it(
    host: GatedHost, other: GatedHost
) -> None:
    """Placement tells no unit: the source's card tells the drivers of all functions that its guests have."""
    name, here, there = "SRIOV_NET_VF", Recorded(), Recorded()
    mlx5, plain = "mlx5_vfio_pci", "vfio-pci"

    def starts(unit: str) -> Claim:
        groups = RequestGroup("", {"VCPU": 1, "MEMORY_MB": 512}), RequestGroup("_1", {name: 1})
        request = ClaimRequest(str(uuid4()), groups)
        host.world.operations.claim(request)
        assert taken(host, request.consumer) == {unit}
        here.xml = (*here.xml, domain(request.consumer, vcpus=1, memory_mb=512, devices=pci(unit)))
        host.world.agent.reconcile("a guest started")
        claim = host.world.agent._tracker.claim_of(request.consumer)
        assert claim is not None
        return claim

    def goes(claim: Claim) -> set[str]:
        migration = str(uuid4())
        other.world.operations.begin_move(MoveKind.LIVE_MIGRATE, migration, claim.request)
        units = taken(other, claim.consumer)
        other.world.operations.revert_move(migration, None)
        return units

    show_drivers(host, here, mlx5, plain, plain, mlx5)
    first = starts(VFS[0])
    show_drivers(other, there, plain, plain, plain, plain)
    with pytest.raises(Refused) as refused:
        goes(first)
    both = "mlx5_vfio_pci at the source, and this host has vfio_pci (or one that does not migrate it)."
    assert f"its {name} is under the driver of VFIO {both}" in refused.value.message
    assert other.held(first.consumer) == {}
    show_drivers(other, there, plain, plain, mlx5, plain)
    assert goes(first) == {VFS[2]}
    # Once guests have functions of both kinds, nothing tells which guest has which.
    second = starts(VFS[1])
    for claim in (first, second):
        assert goes(claim) == {VFS[2]}, "preferred, for it can take over the state of either"
    show_drivers(other, there, plain, plain, plain, plain)
    for claim in (first, second):
        assert len(goes(claim)) == 1
    # A card that tells of the source's driver, and has only another one's free, is not the only way.
    xe, of_mlx5 = "xe_vfio_pci", (frozenset({"CUSTOM_VFIO_DRIVER_MLX5_VFIO_PCI"}),)
    for bound, fitting in (((mlx5, xe, xe, xe, plain, plain), OTHER_VFS), ((*[plain] * 4, mlx5, xe), VFS)):
        show_drivers(other, there, *bound)
        rival = ClaimRequest(str(uuid4()), (RequestGroup("", {name: 1}, of_mlx5),))
        other.world.operations.claim(rival)
        for claim in (first, second):
            assert len(goes(claim) & {*fitting}) == 1
        other.world.operations.release(rival.consumer)
    # What the kernel says does not migrate, and the operator's word, are no driver that migrates.
    show_drivers(host, here, mlx5, plain, plain, mlx5)
    here.xml = here.xml[1:]
    host.world.agent.reconcile("the first guest ended")
    assert len(goes(second)) == 1


def test_a_migration_that_fails_is_reverted_and_may_be_tried_again(host: GatedHost, other: GatedHost) -> None:
    vm = guest(str(uuid4()))
    host.starts(vm, domain(vm.uuid))
    for _ in range(2):
        other.allowed("migrate", "begin", domain(vm.uuid))
        other.allowed("prepare", "begin", domain(vm.uuid))
        coming = Guest(vm.uuid, "vm", GuestState.MIGRATING, vm.resources)
        other.driver.add_guest(coming)
        other.world.agent.reconcile("it comes in")
        other.ends(coming, domain(vm.uuid))
        assert other.held(vm.uuid) == {} and other.world.agent._tracker.claims() == {}
        assert host.held(vm.uuid) == {"node1": {"VCPU": 2, "MEMORY_MB": 1024}}
        assert claim_of(host, vm.uuid) is ClaimState.CLAIMED
    states = {each.state for each in other.world.agent.host_status.overview().moves}
    assert states == {MoveState.REVERTED}


@pytest.mark.parametrize("driver", ["mlx5_vfio_pci", ""])
def test_a_failed_migration_names_the_driver_and_how_to_declare_that_it_cannot(
    host: GatedHost, other: GatedHost, driver: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The hypervisor's migration fails although the device's driver, or the operator, says that it can."""
    vm = guest(str(uuid4()))
    xml = domain(vm.uuid, devices=pci(CARD))
    traits = [f"CUSTOM_VFIO_DRIVER_{driver.upper()}"] if driver else []
    for each in (host, other):
        show_card(each, LIVE_MIGRATABLE, *traits)
    host.starts(vm, xml)
    other.allowed("migrate", "begin", xml)
    other.allowed("prepare", "begin", xml)
    coming = Guest(vm.uuid, "vm", GuestState.MIGRATING, vm.resources)
    other.driver.add_guest(coming)
    other.world.agent.reconcile("it comes in")
    other.ends(coming, xml)
    assert other.held(vm.uuid) == {} and claim_of(host, vm.uuid) is ClaimState.CLAIMED
    (told,) = (text for text in caplog.messages if "live migration of vm to this host failed" in text)
    assert f"PGPU on node2_pci_{CARD}{f' (driver {driver})' if driver else ''}, told to be" in told
    assert '"live_migratable": "no" into its [pci] device_spec on both hosts' in told
    other.world.agent.reconcile("again")
    assert len([text for text in caplog.messages if text == told]) == 1


def test_a_migration_that_never_came_is_reverted_after_a_while(
    host: GatedHost, other: GatedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    vm = guest(str(uuid4()))
    host.starts(vm, domain(vm.uuid))
    other.allowed("migrate", "begin", domain(vm.uuid))
    other.world.agent.reconcile("its interval")
    assert other.held(vm.uuid) != {}
    monkeypatch.setattr(gate, "GRACE_S", 0.0)
    other.world.agent.reconcile("its interval, later")
    assert other.held(vm.uuid) == {}
    assert host.held(vm.uuid) == {"node1": {"VCPU": 2, "MEMORY_MB": 1024}}


def test_once_placement_does_not_answer_no_other_arrival_asks_it(
    host: GatedHost, other: GatedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    guests = [guest(str(uuid4())) for _ in range(3)]
    for vm in guests:
        host.starts(vm, domain(vm.uuid))
        other.allowed("migrate", "begin", domain(vm.uuid))
        other.allowed("prepare", "begin", domain(vm.uuid))
        other.driver.add_guest(vm)
    asked: list[str] = []

    def away(method: str, path: str, body: Any = None, *, microversion: str) -> Reply:
        asked.append(path)
        raise PlacementUnavailable("Placement does not answer.")

    with monkeypatch.context() as patch:
        patch.setattr(other.world.wire, "request", away)
        other.world.agent.reconcile("they run")
    told = {path for path in asked if any(vm.uuid in path for vm in guests)}
    assert len(told) <= 1, asked
    other.world.retry()
    other.world.agent.reconcile("Placement is back")
    states = [move.state for move in other.world.agent.host_status.overview().moves]
    assert states == 3 * [MoveState.CONFIRMED]


def test_a_full_destination_takes_none_in(host: GatedHost, other: GatedHost) -> None:
    vm = guest(str(uuid4()), VCPU=2, MEMORY_MB=12_000)
    other.driver.change(cells=(cell(0, frozenset(range(8)), 4096),))
    other.world.agent.reconcile("less memory")
    host.starts(vm, domain(vm.uuid, memory_mb=12_000))
    reason = other.refused("migrate", "begin", domain(vm.uuid, memory_mb=12_000))
    assert "12000 MEMORY_MB asked" in reason and "node2" in reason
    assert host.held(vm.uuid) == {"node1": {"VCPU": 2, "MEMORY_MB": 12_000}}


def test_there_and_back_while_the_definition_stays_behind(host: GatedHost, other: GatedHost) -> None:
    """As `virsh migrate --live` without --undefinesource leaves it."""
    vm = guest(str(uuid4()))
    host.starts(vm, domain(vm.uuid))
    source, destination = host, other
    for _ in range(3):
        destination.allowed("migrate", "begin", domain(vm.uuid))
        destination.allowed("prepare", "begin", domain(vm.uuid))
        destination.driver.add_guest(vm)
        source.ends(vm, domain(vm.uuid), defined=True)
        destination.world.agent.reconcile("it runs")
        source.world.agent.verify()
        source.world.agent.reconcile("the source, later")
        assert source.world.agent._tracker.claims() == {}, "a definition that stays behind holds nothing"
        source, destination = destination, source
    assert source.held(vm.uuid) != {} and destination.held(vm.uuid) == {}


def test_a_source_whose_guest_has_left_looks_at_once_whether_the_move_has_ended(
    host: GatedHost, other: GatedHost
) -> None:
    """Also where libvirt's hook did not tell of the end, and not at the next verification only."""
    vm = guest(str(uuid4()))
    host.starts(vm, domain(vm.uuid))
    other.allowed("migrate", "begin", domain(vm.uuid))
    host.world.agent.verify()
    other.driver.add_guest(vm)
    other.world.agent.reconcile("it runs")
    host.driver.remove_guest(vm.uuid)
    host.world.agent.reconcile("an event")
    (move,) = host.world.agent._tracker.moves().values()
    assert move.state is MoveState.CONFIRMED and host.world.agent._tracker.claims() == {}


def test_a_guest_may_come_back_before_its_host_has_seen_it_leave(host: GatedHost, other: GatedHost) -> None:
    """The driver's report is late: libvirt lets no guest come in that runs here."""
    vm = guest(str(uuid4()))
    host.starts(vm, domain(vm.uuid))
    other.allowed("migrate", "begin", domain(vm.uuid))
    host.world.agent.verify()
    other.driver.add_guest(vm)
    other.world.agent.reconcile("it runs")
    host.world.agent.verify()
    (former,) = host.world.agent._tracker.moves().values()
    assert former.state is MoveState.LEAVING
    host.allowed("migrate", "begin", domain(vm.uuid))
    states = [move.state for move in host.world.agent._tracker.moves().values()]
    assert states == [MoveState.CONFIRMED, MoveState.BEGUN]
    assert host.held(vm.uuid) == {"node1": {"VCPU": 2, "MEMORY_MB": 1024}}


@pytest.mark.parametrize("defined", [True, False], ids=["still defined", "still running"])
def test_a_guest_that_stayed_behind_is_shown_as_moved_away(
    host: GatedHost, other: GatedHost, defined: bool
) -> None:
    """The source's agent was down when its guest left; a definition alone holds nothing."""
    vm = guest(str(uuid4()))
    host.starts(vm, domain(vm.uuid))
    before = host.world.agent._tracker.claims()
    other.allowed("migrate", "begin", domain(vm.uuid))
    other.allowed("prepare", "begin", domain(vm.uuid))
    other.driver.add_guest(vm)
    other.world.agent.reconcile("it runs")
    if defined:
        host.driver.add_guest(replace(vm, state=GuestState.SHUTOFF))
    for _ in range(2):
        host.world.agent.verify()
    assert host.world.agent._tracker.claims() == ({} if defined else before)
    shown = ask(host.socket, "GET", "/v1/instances").body["instances"]
    assert [(each["uuid"], each["moved_away"]) for each in shown] == [(vm.uuid, True)]
    (sentence,) = host.world.agent.host_status.status().reasons
    assert vm.uuid in sentence and "remove it here" in sentence
    assert b"plimsoll_moved_away_guests 1.0" in host.world.agent.host_status.metrics()
    told = plimsoll(host.socket, "instances").stdout
    assert "MOVED AWAY" in told and sentence in told.splitlines()
    for command in (("explain", vm.uuid), ("status",)):
        assert sentence in plimsoll(host.socket, *command).stdout
    with listening(host.world.agent.host_status) as url:
        assert ">MOVED AWAY</span>" in fetch(url + "/")[2].decode()
    assert plimsoll(host.socket, "audit").stdout.startswith("moved away: ")
    host.driver.remove_guest(vm.uuid)
    for _ in range(2):
        host.world.agent.verify()
    assert "nothing differs" in plimsoll(host.socket, "audit").stdout
    assert host.world.agent.host_status.status().reasons == () and host.world.agent._tracker.claims() == {}
    assert b"plimsoll_moved_away_guests 0.0" in host.world.agent.host_status.metrics()


def test_a_guest_that_nothing_here_knows_and_that_is_held_elsewhere_has_moved_away(
    host: GatedHost, other: GatedHost
) -> None:
    """The host was evacuated and comes back with its guest and an empty state directory."""
    vm = guest(str(uuid4()))
    other.starts(vm, domain(vm.uuid))
    host.driver.add_guest(vm)
    host.world.agent.reconcile("an event")
    host.world.agent.verify()
    host.world.agent.reconcile("later")
    (sentence,) = host.world.agent.host_status.status().reasons
    assert "MOVED AWAY" in sentence and "claim-running" not in sentence
    assert "MOVED AWAY" in plimsoll(host.socket, "instances").stdout


def test_the_copy_that_stayed_behind_may_not_start_while_the_other_one_runs(
    host: GatedHost, other: GatedHost
) -> None:
    vm = guest(str(uuid4()))
    host.starts(vm, domain(vm.uuid))
    other.allowed("migrate", "begin", domain(vm.uuid))
    other.driver.add_guest(vm)
    host.driver.add_guest(replace(vm, state=GuestState.SHUTOFF))
    assert "has moved there" in host.refused("prepare", "begin", domain(vm.uuid)), "nobody told this host yet"
    host.ends(vm, domain(vm.uuid), defined=True)
    other.world.agent.reconcile("it runs")
    host.world.agent.verify()
    assert "already has an allocation" in host.refused("prepare", "begin", domain(vm.uuid))


def test_a_guest_that_nobody_claimed_for_comes_in_as_one_that_starts(other: GatedHost) -> None:
    uuid = str(uuid4())
    other.allowed("migrate", "begin", domain(uuid))
    assert other.held(uuid) == {"node2": {"VCPU": 2, "MEMORY_MB": 1024}}
    assert other.world.agent.host_status.overview().moves == ()


def test_a_move_that_a_control_plane_began_is_its_own(host: GatedHost, other: GatedHost) -> None:
    vm, migration = guest(str(uuid4())), str(uuid4())
    host.starts(vm, domain(vm.uuid))
    asked = ClaimRequest(vm.uuid, (RequestGroup("", {"VCPU": 2, "MEMORY_MB": 1024}),))
    other.world.operations.begin_move(MoveKind.LIVE_MIGRATE, migration, asked)
    other.allowed("migrate", "begin", domain(vm.uuid))
    other.allowed("prepare", "begin", domain(vm.uuid))
    other.driver.add_guest(vm)
    other.world.agent.reconcile("it runs")
    (move,) = other.world.agent.host_status.overview().moves
    assert (move.migration, move.state) == (migration, MoveState.BEGUN)


# What runs already


def test_guests_that_run_without_a_claim_are_claimed_for_on_request(
    host: GatedHost, caplog: pytest.LogCaptureFixture
) -> None:
    runs, off = guest(str(uuid4())), str(uuid4())
    odd = guest(str(uuid4()), VCPU=1, CUSTOM_FPGA=1)
    host.driver.add_guest(runs)
    host.driver.add_guest(odd)
    host.driver.add_guest(Guest(off, "off", GuestState.SHUTOFF, {"VCPU": 1}))
    host.world.agent.reconcile("guests")
    caplog.set_level(logging.INFO, "agent.api")
    reply = ask(host.socket, "POST", "/v1/gate/running", {})
    check("POST", "/v1/gate/running", reply)
    asker = f"asked for by uid {os.geteuid()} (pid {os.getpid()})"
    told = [each.getMessage() for each in caplog.records if each.name == "agent.api"]
    assert told == [f"gate of {runs.uuid} claimed, {asker}"]
    history = host.world.journal.history(runs.uuid)
    assert {(each.event, each.uid, each.pid) for each in history} == {
        (event, os.geteuid(), os.getpid()) for event in ("begin", "grant")
    }
    assert [each["consumer"] for each in reply.body["claimed"]] == [runs.uuid]
    assert [each["consumer"] for each in reply.body["refused"]] == [odd.uuid]
    assert set(host.world.agent._tracker.claims()) == {runs.uuid}


def test_claiming_for_what_runs_waits_until_claims_are_open(host: GatedHost) -> None:
    runs = guest(str(uuid4()))
    host.driver.add_guest(runs)
    host.world.agent.reconcile("a guest")
    host.world.agent._tracker.admission.close("libvirtd restarts")
    opened = threading.Timer(0.5, host.world.agent._tracker.admission.open)
    opened.start()
    done = plimsoll(host.socket, "gate", "claim-running")
    opened.join()
    assert (done.returncode, done.stderr) == (0, "") and runs.uuid in done.stdout
    host.driver.add_guest(guest(str(uuid4())))
    host.world.agent._tracker.admission.close("for good")
    done = plimsoll(host.socket, "--timeout", "1.5", "gate", "claim-running")
    assert done.returncode == 5 and "for good" in done.stderr


# The route, and the hook's file


def test_the_route_answers_as_it_is_described(host: GatedHost) -> None:
    uuid = str(uuid4())
    body = {"operation": "prepare", "sub_operation": "begin", "extra": "-", "xml": domain(uuid)}
    for outcome in ("claimed", "held"):
        reply = ask(host.socket, "POST", "/v1/gate", body)
        check("POST", "/v1/gate", reply)
        assert (reply.body["outcome"], reply.body["consumer"]) == (outcome, uuid)
    reply = ask(host.socket, "POST", "/v1/gate", {**body, "operation": "attach"})
    assert reply.body["outcome"] == "ignored"
    for wrong in ({}, {**body, "xml": 1}, {**body, "more": 1}, {**body, "operation": "x" * 65}):
        reply = ask(host.socket, "POST", "/v1/gate", wrong)
        assert (reply.status, reply.body["error"]["code"]) == (400, "plimsoll.usage")
    claim = host.world.agent._tracker.claim_of(uuid)
    assert claim is not None and claim.request.user_id == GATE_USER
