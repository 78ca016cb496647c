"""Devices through the whole agent: by alias, by class, in types; what excludes what, and in placement too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from kits.agent import World, opened, told
from kits.placements import usual_placement

from agent.api.views import claim_view
from agent.claims.claim import Claim
from agent.claims.parse_request import parse_claim
from agent.claims.request import ClaimRequest, RequestGroup
from agent.cli.claim import claim_lines
from agent.cli.output import Style
from agent.config.settings import load
from agent.driver import Guest, GuestState, UsedUnit
from agent.errors import DoesNotFit, Refused, UsageError
from agent.moves.states import MoveKind
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.tree import Inventory, Provider
from drivers.fake.host import Gpu, Nic, cell

PF, VFS = "0000:41:00.0", tuple(f"0000:41:02.{n}" for n in range(4))
WHOLE = "CUSTOM_PCI_8086_1572"
NIC = Nic("eth0", PF, VFS, "physnet0", 1000, 1000, whole=WHOLE, numa=0)
CARD = Gpu("0000:42:00.0", numa=1, types={"CUSTOM_SMALL": 8, "CUSTOM_DESK": 8, "CUSTOM_BIG": 2})
ALIASES = (
    '{"name": "nic", "vendor_id": "8086", "product_id": "1572", "device_type": "type-PF"}',
    '{"name": "gpu", "resource_class": "PGPU", "numa_policy": "required"}',
    '{"name": "near", "resource_class": "PGPU", "numa_policy": "preferred"}',
    '{"name": "moving", "resource_class": "PGPU", "live_migratable": "yes"}',
)
GPUS = tuple(
    Gpu(f"0000:8{n}:00.0", "PGPU", 1, (f"0000:8{n}:00.0",), numa=n, traits=frozenset({"CUSTOM_GPU"}))
    for n in range(2)
)
CELLS = tuple(cell(n, frozenset(range(8 * n, 8 * n + 8)), 16384, pages={4: 4 * 2**20}) for n in range(2))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with started(tmp_path) as found:
        yield found


def started(directory: Path, *aliases: str, **host: Any) -> World:
    """`host` are fields of the fake host that are other than usual."""
    told(directory, usual_placement(directory))
    file = directory / "plimsoll.conf"
    lines = "".join(f"alias = {each}\n" for each in aliases or ALIASES)
    file.write_text(f"{file.read_text()}[pci]\n{lines}")
    found = opened(load([file]))
    pf_traits = frozenset({"CUSTOM_PCI_TYPE_PF", "CUSTOM_PCI_VENDOR_8086", "CUSTOM_PCI_PRODUCT_1572"})
    usual = {"gpus": (CARD, *GPUS), "nics": (replace(NIC, traits=pf_traits),), "guests": ()}
    found.driver.change(**{"cells": CELLS, "disk_gb": 100, **usual, **host})
    found.agent.reconcile("start")
    assert found.operations.host_status.status().closed is None, found.operations.host_status.status()
    return found


def by_class(**resources: int) -> ClaimRequest:
    return parse_claim({"consumer": str(uuid4()), "groups": [{"resources": resources}]})


def by_alias(alias: str, consumer: str = "", **specs: str) -> ClaimRequest:
    extra = {"pci_passthrough:alias": alias, **{f"hw:{key}": value for key, value in specs.items()}}
    flavor = {"vcpus": 2, "memory_mb": 1024, "extra_specs": extra}
    return parse_claim({"consumer": consumer or str(uuid4()), "name": "web", "flavor": flavor})


def provider(world: World, name: str) -> Provider:
    tree, _ = world.operations.tree()
    found = tree.by_name(name)
    assert found is not None
    return found


def offered(world: World, name: str) -> dict[str, int]:
    """What placement would still give, by class."""
    tree, usages = world.operations.tree()
    there = tree.by_name(name)
    assert there is not None
    return {
        each: inventory.capacity - usages.get(there.uuid, {}).get(each, 0)
        for each, inventory in there.inventories.items()
        if not each.startswith("NET_BW")
    }


def followed(world: World) -> None:
    """The pass that a claim or a release asked for."""
    assert world.retries and world.retries[-1] < 1, "it was asked for at once"
    world.agent.reconcile("a claim")


def units(claim: Claim) -> dict[str, tuple[str, ...]]:
    return {name: exact for classes in claim.units.values() for name, exact in classes.items()}


# By alias


def test_devices_by_alias_are_exact_units_and_stay_when_the_configuration_changes(tmp_path: Path) -> None:
    world = started(tmp_path)
    asked = by_alias("nic:1,near:2")
    claim = world.operations.claim(asked)
    assert units(claim)[WHOLE] == (PF,)
    held = {unit for classes in claim.units.values() for unit in classes.get("PGPU", ())}
    assert held == {"0000:80:00.0", "0000:81:00.0"}, "each on a provider of its own"
    world.close()
    world = started(
        tmp_path, '{"name": "nic", "resource_class": "OTHER"}', '{"name": "near", "resource_class": "X"}'
    )
    with world:
        assert world.operations.claim(asked) == claim, "what was claimed is what it was"
        with pytest.raises(UsageError, match="no alias 'gpu' is configured on this host"):
            world.operations.claim(by_alias("gpu:1"))


def test_two_devices_asked_and_one_left_starts_no_guest(world: World) -> None:
    """Scenario 34: by alias, refused as a whole; nothing of any kind stays."""
    world.operations.claim(by_alias("near:1"))
    before = world.operations.tree()[1]
    with pytest.raises(DoesNotFit, match="2 PGPU asked, 1 free on node1_pci"):
        world.operations.claim(by_alias("near:2"))
    assert world.operations.tree()[1] == before


def test_an_explanation_says_which_device_it_would_be(world: World) -> None:
    found = world.operations.explain(by_alias("nic:1"))
    assert found.fits
    assert [exact for classes in found.units.values() for exact in classes.values()] == [(PF,)]


# NUMA policies


def test_a_required_device_is_on_the_guests_cell_or_the_claim_is_refused(world: World) -> None:
    """Scenario 107: the right node, or refused."""
    pinned = {"numa_nodes": "1"}
    first = world.operations.claim(by_alias("gpu:1", **pinned))
    second = world.operations.claim(by_alias("gpu:1", **pinned))
    for claim in (first, second):
        (unit,) = units(claim)["PGPU"]
        (placed,) = claim.cells
        assert unit == f"0000:8{placed.host_cell}:00.0"
    with pytest.raises(DoesNotFit):
        world.operations.claim(by_alias("gpu:1", **pinned))
    world.operations.release(first.consumer)
    (freed,) = first.cells
    filler = world.operations.claim(filling(world))
    assert filler.cells[0].host_cell == freed.host_cell
    with pytest.raises(DoesNotFit, match=r"policy required"):
        world.operations.claim(by_alias("gpu:1", **pinned))
    assert world.operations.claim(by_alias("near:1", **pinned)), "as near as it can be, but anywhere"


@pytest.mark.parametrize("sockets", [(0, 0), (0, 1)])
def test_a_device_of_the_same_socket_is_near_enough_for_the_policy_socket(
    tmp_path: Path, sockets: tuple[int, int]
) -> None:
    cells = tuple(replace(each, socket=socket) for each, socket in zip(CELLS, sockets, strict=True))
    with started(tmp_path, cells=cells, gpus=GPUS[1:]) as world:
        fillers = [world.operations.claim(filling(world)) for _ in cells]
        on_cell_0 = next(claim for claim in fillers if claim.cells[0].host_cell == 0)
        world.operations.release(on_cell_0.consumer)
        asked = by_alias("near:1", numa_nodes="1", pci_numa_affinity_policy="socket")
        if sockets == (0, 0):
            claim = world.operations.claim(asked)
            assert claim.cells[0].host_cell == 0 and units(claim)["PGPU"] == ("0000:81:00.0",)
        else:
            with pytest.raises(DoesNotFit, match="policy socket"):
                world.operations.claim(asked)


def filling(world: World) -> ClaimRequest:
    """A guest that leaves no memory on one of the cells."""
    for memory_mb in range(16384, 8192, -256):
        flavor = {"vcpus": 1, "memory_mb": memory_mb, "extra_specs": {"hw:numa_nodes": "1"}}
        asked = parse_claim({"consumer": str(uuid4()), "flavor": flavor})
        if world.operations.explain(asked).fits:
            return asked
    raise AssertionError("no guest fills it")


# What excludes each other


def test_a_card_is_claimed_whole_or_by_its_functions(world: World) -> None:
    """Scenario 101: PF claimed, its VFs are not claimable, and the reverse; freed: back. In placement too."""
    name = "node1_net_eth0"
    assert offered(world, name) == {WHOLE: 1, "SRIOV_NET_VF": 4}
    whole = world.operations.claim(by_class(**{WHOLE: 1}))
    with pytest.raises(DoesNotFit, match=f"while its {WHOLE} is in use"):
        world.operations.claim(by_class(SRIOV_NET_VF=1))
    followed(world)
    assert offered(world, name) == {WHOLE: 0, "SRIOV_NET_VF": 0}
    world.operations.release(whole.consumer)
    followed(world)
    assert offered(world, name) == {WHOLE: 1, "SRIOV_NET_VF": 4}
    part = world.operations.claim(by_class(SRIOV_NET_VF=1))
    with pytest.raises(DoesNotFit, match="while its SRIOV_NET_VF is in use"):
        world.operations.claim(by_alias("nic:1"))
    followed(world)
    assert offered(world, name) == {WHOLE: 0, "SRIOV_NET_VF": 3}
    world.operations.release(part.consumer)
    followed(world)
    assert world.operations.claim(by_alias("nic:1"))


def test_what_a_scheduler_wrote_in_between_is_not_given_devices_twice(world: World) -> None:
    """The agent gives one of both, though placement was not told yet that they exclude each other."""
    asked = by_class(SRIOV_NET_VF=1)
    world.operations.claim(by_class(**{WHOLE: 1}))
    client = PlacementClient(world.wire.inner)
    nic = provider(world, "node1_net_eth0")
    client.write_allocations(ConsumerAllocations(asked.consumer, {nic.uuid: {"SRIOV_NET_VF": 1}}))
    with pytest.raises(DoesNotFit, match=f"while its {WHOLE} is in use|exact units"):
        world.operations.claim(asked)


def test_types_of_one_gpu_share_it_or_exclude_each_other(world: World) -> None:
    name = "node1_pci_0000:42:00.0"
    small = world.operations.claim(by_class(CUSTOM_SMALL=3))
    with pytest.raises(DoesNotFit, match="while its CUSTOM_SMALL is in use"):
        world.operations.claim(by_class(CUSTOM_BIG=1))
    with pytest.raises(DoesNotFit):
        world.operations.claim(by_class(CUSTOM_DESK=6))
    desk = world.operations.claim(by_class(CUSTOM_DESK=5))
    assert not set(units(small)["CUSTOM_SMALL"]) & set(units(desk)["CUSTOM_DESK"])
    followed(world)
    assert offered(world, name) == {"CUSTOM_SMALL": 0, "CUSTOM_DESK": 0, "CUSTOM_BIG": 0}
    for claim in (small, desk):
        world.operations.release(claim.consumer)
    followed(world)
    assert offered(world, name) == {"CUSTOM_SMALL": 8, "CUSTOM_DESK": 8, "CUSTOM_BIG": 2}
    assert world.operations.claim(by_class(CUSTOM_BIG=2))


def test_exclusion_survives_a_restart(tmp_path: Path) -> None:
    world = started(tmp_path)
    world.operations.claim(by_class(**{WHOLE: 1}))
    world.close()
    with started(tmp_path) as world:
        with pytest.raises(DoesNotFit):
            world.operations.claim(by_class(SRIOV_NET_VF=1))
        world.agent.reconcile("the next pass")
        assert offered(world, "node1_net_eth0") == {WHOLE: 0, "SRIOV_NET_VF": 0}


def test_a_function_and_bandwidth_of_its_own_card(world: World) -> None:
    """A port: one virtual function of a physical network, and bandwidth of the very card it is on."""
    other = Nic("eth1", "0000:51:00.0", ("0000:51:02.0",), "physnet1", 1000, 1000)
    world.driver.change(nics=(*world.driver.host.nics, other))
    world.agent.reconcile("another card")

    def port(network: str, kbps: int) -> ClaimRequest:
        resources = {
            "SRIOV_NET_VF": 1,
            "NET_BW_EGR_KILOBIT_PER_SEC": kbps,
            "NET_BW_IGR_KILOBIT_PER_SEC": kbps,
        }
        group = {"suffix": "_port", "resources": resources, "required": [f"CUSTOM_PHYSNET_{network}"]}
        return parse_claim({"consumer": str(uuid4()), "groups": [{"resources": {"VCPU": 1}}, group]})

    claim = world.operations.claim(port("PHYSNET1", 600))
    assert units(claim)["SRIOV_NET_VF"] == ("0000:51:02.0",)
    uuid = provider(world, "node1_net_eth1").uuid
    assert claim.allocations[uuid]["NET_BW_EGR_KILOBIT_PER_SEC"] == 600
    with pytest.raises(DoesNotFit):
        world.operations.claim(port("PHYSNET1", 100))
    world.operations.claim(port("PHYSNET0", 600))
    with pytest.raises(DoesNotFit, match="500 NET_BW_EGR_KILOBIT_PER_SEC asked, 400 free on node1_net_eth0"):
        world.operations.claim(port("PHYSNET0", 500))


# What changes while it is in use


def test_a_card_is_reconfigured_when_it_is_free(world: World) -> None:
    """Scenario 103: PF <-> VF while in use: refused, with the consumer's name; done when it is free."""
    name = "node1_net_eth0"
    parts = replace(world.driver.host.nics[0], whole=None)
    only_whole = replace(world.driver.host.nics[0], vfs=())
    claim = world.operations.claim(by_class(**{WHOLE: 1}))
    world.driver.change(nics=(parts,))
    world.agent.reconcile("it is to be given by its functions")
    assert any(claim.consumer in reason for reason in world.agent.host_status.status().reasons)
    assert offered(world, name) == {WHOLE: 0, "SRIOV_NET_VF": 0}
    with pytest.raises(DoesNotFit):
        world.operations.claim(by_class(SRIOV_NET_VF=1))
    world.operations.release(claim.consumer)
    world.agent.reconcile("it is free")
    assert offered(world, name) == {"SRIOV_NET_VF": 4}
    claim = world.operations.claim(by_class(SRIOV_NET_VF=2))
    world.driver.change(nics=(only_whole,))
    world.agent.reconcile("and whole again")
    assert any(claim.consumer in reason for reason in world.agent.host_status.status().reasons)
    assert offered(world, name) == {WHOLE: 0, "SRIOV_NET_VF": 0}
    with pytest.raises(DoesNotFit):
        world.operations.claim(by_class(**{WHOLE: 1}))
    world.operations.release(claim.consumer)
    world.agent.reconcile("it is free")
    assert offered(world, name) == {WHOLE: 1}
    assert world.operations.claim(by_class(**{WHOLE: 1}))


def test_functions_that_a_boot_took_are_kept_for_who_has_them(tmp_path: Path) -> None:
    """Scenario 98: not enabled yet after a boot: the inventory stays, reserved, under the claims."""
    world = started(tmp_path)
    claim = world.operations.claim(by_class(SRIOV_NET_VF=2))
    nics = world.driver.host.nics
    world.close()
    with started(tmp_path, nics=(replace(nics[0], vfs=(), whole=None),)) as world:
        there = provider(world, "node1_net_eth0").inventories["SRIOV_NET_VF"]
        assert (there.total, there.reserved) == (4, 2)
        assert world.agent.host_status.overview().instances[0][1] == claim
        with pytest.raises(DoesNotFit):
            world.operations.claim(by_class(SRIOV_NET_VF=1))
        world.driver.change(nics=nics)
        world.agent.reconcile("they are made again")
        assert offered(world, "node1_net_eth0") == {WHOLE: 0, "SRIOV_NET_VF": 2}
        assert units(world.operations.claim(by_class(SRIOV_NET_VF=1)))["SRIOV_NET_VF"] == (VFS[2],)


def test_a_configured_device_that_is_gone_is_named_and_hides_no_other(tmp_path: Path) -> None:
    """Scenario 13: assigned, and gone at the next start."""
    world = started(tmp_path)
    claim = world.operations.claim(by_class(PGPU=1))
    (unit,) = units(claim)["PGPU"]
    world.close()
    with started(tmp_path, gpus=tuple(each for each in (CARD, *GPUS) if each.address != unit)) as world:
        reasons = world.agent.host_status.status().reasons
        assert any(unit in reason and claim.consumer in reason for reason in reasons), reasons
        assert world.operations.claim(by_class(VCPU=1, CUSTOM_SMALL=1)), "others are manageable"
        assert world.operations.release(claim.consumer)
        world.agent.reconcile("it is free")
        assert not world.agent.host_status.status().reasons


def test_a_device_for_one_time_use_is_reserved_until_an_operator_releases_it(tmp_path: Path) -> None:
    """Scenario 106: freed, it stays reserved; also over a restart; until somebody sets it back."""
    once = tuple(replace(each, traits=each.traits | {"HW_PCI_ONE_TIME_USE"}) for each in GPUS[:1])
    world = started(tmp_path, gpus=once)
    name = "node1_pci_0000:80:00.0"
    claim = world.operations.claim(by_class(PGPU=1))
    world.operations.release(claim.consumer)
    assert offered(world, name) == {"PGPU": 0}, "before anybody could have it again"
    for asked in ("at once", "in the next pass"):
        with pytest.raises(DoesNotFit):
            world.operations.claim(by_class(PGPU=1))
        world.agent.reconcile(asked)
    assert any(
        f"PGPU of {name} is for one-time use" in each for each in world.agent.host_status.status().reasons
    )
    world.close()
    with started(tmp_path, gpus=once) as world:
        assert offered(world, name) == {"PGPU": 0}
        there = provider(world, name)
        client = PlacementClient(world.wire.inner)
        free = {"PGPU": replace(there.inventories["PGPU"], reserved=0)}
        client.put_inventories(there.uuid, there.generation or 0, free)
        world.agent.verify()
        assert offered(world, name) == {"PGPU": 1} and not world.agent.host_status.status().reasons
        assert world.operations.claim(by_class(PGPU=1))


def test_two_guests_of_four_each_over_two_cards(world: World) -> None:
    """Scenario 41: 2 x 4 of a type over two cards with 4 free each: both fit, in groups of one each."""
    cards = tuple(Gpu(f"0000:4{n}:00.0", types={"CUSTOM_Q": 4, "CUSTOM_B": 2}) for n in range(2))
    world.driver.change(gpus=cards)
    world.agent.reconcile("two cards")
    groups = [{"suffix": str(n), "resources": {"CUSTOM_Q": 1}} for n in range(4)]
    asked = [
        parse_claim({"consumer": str(uuid4()), "groups": groups, "group_policy": "none"}) for _ in range(2)
    ]
    taken = [
        (uuid, unit)
        for each in asked
        for uuid, classes in world.operations.claim(each).units.items()
        for unit in classes["CUSTOM_Q"]
    ]
    assert len(set(taken)) == 8
    with pytest.raises(DoesNotFit):
        world.operations.claim(by_class(CUSTOM_B=1))


MAKING = {"parent": "0000:42:00.0", "type": "nvidia-11"}


def divided(world: World, there: tuple[str, ...], to_make: tuple[str, ...]) -> None:
    """A card with mediated devices, some of which are not there yet."""
    del world.driver.__dict__["describe"]
    described = world.driver.describe()
    card = next(each for each in described.providers if each.device == "pci:0000:42:00.0")
    changed = replace(
        card,
        units={**card.units, "CUSTOM_SMALL": (*there, *to_make)},
        to_make={"CUSTOM_SMALL": dict.fromkeys(to_make, MAKING)},
    )
    told = replace(
        described, providers=tuple(changed if each is card else each for each in described.providers)
    )
    world.driver.describe = lambda: told  # type: ignore[method-assign]
    world.agent.reconcile("a card to be divided")


def test_what_is_to_be_made_for_a_claim_is_told_and_kept(tmp_path: Path) -> None:
    """A mediated device that is not there yet has its uuid, type and parent with the claim, for good."""
    world = started(tmp_path)
    world.driver.__dict__["describe"] = world.driver.describe
    divided(world, ("there",), tuple(f"new{n}" for n in range(7)))
    asked = by_class(CUSTOM_SMALL=2)
    assert world.operations.explain(asked).makings == {"new0": MAKING}
    claim = world.operations.claim(asked)
    assert claim.makings == {"new0": MAKING}, "the other one is there"
    world.close()
    with started(tmp_path) as world:
        assert world.agent.host_status.overview().instances[0][1] == claim
        shown = claim_view(claim, world.operations.providers())
        assert shown["to_make"] == {"new0": MAKING}
        assert any("nvidia-11" in line for line in claim_lines(shown, {}, Style()))


def test_a_claim_follows_its_guest_whose_device_has_another_uuid(world: World) -> None:
    """Somebody made it with a uuid of his own: it is the same device by another name, and counts once."""
    world.driver.__dict__["describe"] = world.driver.describe
    new = tuple(f"new{n}" for n in range(8))
    divided(world, (), new)
    claim = world.operations.claim(by_class(CUSTOM_SMALL=2))
    used = (UsedUnit("CUSTOM_SMALL", "his", "pci:0000:42:00.0"),)
    world.driver.change(guests=(Guest(claim.consumer, "web", GuestState.RUNNING, {}, used),))
    with world.agent._tracker.turns.take(claim.consumer):
        divided(world, ("his",), new[:7])
        assert world.journal.claims()[claim.consumer] == claim, "an operation on it is under way"
    world.agent.verify()
    (found,) = (each for each in world.operations.tracker.claims().values())
    assert units(found)["CUSTOM_SMALL"] == ("his", "new1")
    assert found.makings == {"new1": MAKING}
    assert world.journal.claims()[claim.consumer] == found
    rest = world.operations.claim(by_class(CUSTOM_SMALL=6))
    assert set(units(rest)["CUSTOM_SMALL"]) == {*new[:7]} - {"new1"}


# Live migration


def came_from_elsewhere(world: World, consumer: str) -> None:
    """The consumer holds something on a host that this agent knows nothing of."""
    client = PlacementClient(world.wire.inner)
    other = Provider(str(uuid4()), "elsewhere", None, {"VCPU": Inventory(8)})
    client.put_inventories(other.uuid, client.create_provider(other), other.inventories)
    client.write_allocations(ConsumerAllocations(consumer, {other.uuid: {"VCPU": 2}}))


def test_a_device_that_is_not_live_migratable_stays_where_it_is(world: World) -> None:
    """Scenario 73: refused before anything is written; a cold migration is not."""
    asked = by_alias("nic:1")
    came_from_elsewhere(world, asked.consumer)
    with pytest.raises(Refused, match="the alias 'nic' is not declared live_migratable"):
        world.operations.begin_move(MoveKind.LIVE_MIGRATE, str(uuid4()), asked)
    by_its_class = replace(by_class(**{WHOLE: 1}), consumer=asked.consumer)
    with pytest.raises(Refused, match=f"{WHOLE} on node1_net_eth0 is not declared live_migratable"):
        world.operations.begin_move(MoveKind.LIVE_MIGRATE, str(uuid4()), by_its_class)
    assert not world.agent.host_status.overview().moves
    move = world.operations.begin_move(MoveKind.COLD_MIGRATE, str(uuid4()), asked)
    assert move.new is not None and units(move.new)[WHOLE] == (PF,)


def test_a_driver_that_fails_to_migrate_leaves_its_device_free_here_and_held_there(world: World) -> None:
    """The hypervisor's migration fails, the move is reverted and tried again: no device is given twice."""
    able = tuple(replace(each, traits=each.traits | {"HW_PCI_LIVE_MIGRATABLE"}) for each in GPUS[1:])
    world.driver.change(gpus=(CARD, GPUS[0], *able))
    world.agent.reconcile("one can be migrated")
    asked = by_alias("moving:1")
    came_from_elsewhere(world, asked.consumer)
    before = PlacementClient(world.wire.inner).allocations_of(asked.consumer).allocations
    for _ in range(2):
        migration = str(uuid4())
        move = world.operations.begin_move(MoveKind.LIVE_MIGRATE, migration, asked)
        assert move.new is not None and units(move.new)["PGPU"] == ("0000:81:00.0",)
        with pytest.raises(DoesNotFit, match="PGPU"):
            world.operations.claim(by_alias("moving:1"))
        world.operations.revert_move(migration, None)
        assert PlacementClient(world.wire.inner).allocations_of(asked.consumer).allocations == before
    assert units(world.operations.claim(by_alias("moving:1")))["PGPU"] == ("0000:81:00.0",)
    with pytest.raises(DoesNotFit, match="PGPU"):
        world.operations.begin_move(MoveKind.LIVE_MIGRATE, str(uuid4()), asked)


def test_one_that_is_and_a_port_of_the_network_go_along(world: World) -> None:
    able = tuple(replace(each, traits=each.traits | {"HW_PCI_LIVE_MIGRATABLE"}) for each in GPUS[1:])
    world.driver.change(gpus=(CARD, GPUS[0], *able))
    world.agent.reconcile("one can be migrated")
    asked = by_alias("moving:1")
    came_from_elsewhere(world, asked.consumer)
    port = RequestGroup("_port", {"SRIOV_NET_VF": 1})
    asked = replace(asked, groups=(*asked.groups, port))
    move = world.operations.begin_move(MoveKind.LIVE_MIGRATE, str(uuid4()), asked)
    assert move.new is not None and units(move.new)["PGPU"] == ("0000:81:00.0",)
