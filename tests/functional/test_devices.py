"""Devices through the whole agent: by alias, by class, in types; what excludes what, here and in placement."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from agentkit import World, opened, told
from placements import Embedded

from agent.claims.claim import Claim
from agent.claims.request import ClaimRequest, parse_claim
from agent.errors import DoesNotFit, UsageError
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.settings import load
from agent.tree import Provider
from drivers.fake import Gpu, Nic, cell

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
    found = started(tmp_path)
    yield found
    found.close()


def started(directory: Path, *aliases: str, options: str = "") -> World:
    told(directory, Embedded(directory))
    file = directory / "plimsoll.conf"
    lines = "".join(f"alias = {each}\n" for each in aliases or ALIASES)
    file.write_text(f"{file.read_text()}{options}[pci]\n{lines}")
    found = opened(load([file]))
    pf_traits = frozenset({"CUSTOM_PCI_TYPE_PF", "CUSTOM_PCI_VENDOR_8086", "CUSTOM_PCI_PRODUCT_1572"})
    nic = Nic(**{**{name: getattr(NIC, name) for name in NIC.__slots__}, "traits": pf_traits})
    found.driver.change(cells=CELLS, disk_gb=100, gpus=(CARD, *GPUS), nics=(nic,), guests=())
    found.agent.look("start")
    assert found.agent.status()["claims"]["open"], found.agent.status()
    return found


def by_class(**resources: int) -> ClaimRequest:
    return parse_claim({"consumer": str(uuid4()), "groups": [{"resources": resources}]})


def by_alias(alias: str, consumer: str = "", **specs: str) -> ClaimRequest:
    extra = {"pci_passthrough:alias": alias, **{f"hw:{key}": value for key, value in specs.items()}}
    flavor = {"vcpus": 2, "memory_mb": 1024, "extra_specs": extra}
    return parse_claim({"consumer": consumer or str(uuid4()), "name": "web", "flavor": flavor})


def provider(world: World, name: str) -> Provider:
    tree, _ = world.agent.tree()
    found = tree.by_name(name)
    assert found is not None
    return found


def offered(world: World, name: str) -> dict[str, int]:
    """What placement would still give, by class."""
    tree, usages = world.agent.tree()
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
    world.agent.look("a claim")


def units(claim: Claim) -> dict[str, tuple[str, ...]]:
    return {name: exact for classes in claim.units.values() for name, exact in classes.items()}


# By alias


def test_devices_by_alias_are_exact_units_and_stay_when_the_configuration_changes(tmp_path: Path) -> None:
    world = started(tmp_path)
    asked = by_alias("nic:1,near:2")
    claim = world.agent.claim(asked)
    assert units(claim)[WHOLE] == (PF,)
    held = {unit for classes in claim.units.values() for unit in classes.get("PGPU", ())}
    assert held == {"0000:80:00.0", "0000:81:00.0"}, "each on a provider of its own"
    world.close()
    world = started(
        tmp_path, '{"name": "nic", "resource_class": "OTHER"}', '{"name": "near", "resource_class": "X"}'
    )
    try:
        assert world.agent.claim(asked) == claim, "what was claimed is what it was"
        with pytest.raises(UsageError, match="no alias 'gpu' is configured on this host"):
            world.agent.claim(by_alias("gpu:1"))
    finally:
        world.close()


def test_two_devices_asked_and_one_left_starts_no_guest(world: World) -> None:
    """Scenario 34: by alias, refused as a whole; nothing of any kind stays."""
    world.agent.claim(by_alias("near:1"))
    before = world.agent.tree()[1]
    with pytest.raises(DoesNotFit, match="2 PGPU asked, 1 free on node1_pci"):
        world.agent.claim(by_alias("near:2"))
    assert world.agent.tree()[1] == before


def test_an_explanation_says_which_device_it_would_be(world: World) -> None:
    found = world.agent.explain(by_alias("nic:1"))
    assert found.fits
    assert [exact for classes in found.units.values() for exact in classes.values()] == [(PF,)]


# NUMA policies


def test_a_required_device_is_on_the_guests_cell_or_the_claim_is_refused(world: World) -> None:
    """Scenario 107: the right node, or refused."""
    pinned = {"numa_nodes": "1"}
    first = world.agent.claim(by_alias("gpu:1", **pinned))
    second = world.agent.claim(by_alias("gpu:1", **pinned))
    for claim in (first, second):
        (unit,) = units(claim)["PGPU"]
        (placed,) = claim.cells
        assert unit == f"0000:8{placed.host_cell}:00.0"
    with pytest.raises(DoesNotFit):
        world.agent.claim(by_alias("gpu:1", **pinned))
    world.agent.release(first.consumer)
    (freed,) = first.cells
    world.agent.claim(filling(freed.host_cell, world))
    with pytest.raises(DoesNotFit, match=r"policy required"):
        world.agent.claim(by_alias("gpu:1", **pinned))
    assert world.agent.claim(by_alias("near:1", **pinned)), "as near as it can be, but anywhere"


def filling(host_cell: int, world: World) -> ClaimRequest:
    """A guest that leaves no memory on that cell."""
    for memory_mb in range(16384, 8192, -256):
        flavor = {"vcpus": 1, "memory_mb": memory_mb, "extra_specs": {"hw:numa_nodes": "1"}}
        asked = parse_claim({"consumer": str(uuid4()), "flavor": flavor})
        found = world.agent.explain(asked)
        if found.fits and found.cells[0].host_cell == host_cell:
            return asked
    raise AssertionError("no guest fills it")


# What excludes each other


def test_a_card_is_claimed_whole_or_by_its_functions(world: World) -> None:
    """Scenario 101: PF claimed, its VFs are not claimable, and the reverse; freed: back. In placement too."""
    name = "node1_net_eth0"
    assert offered(world, name) == {WHOLE: 1, "SRIOV_NET_VF": 4}
    whole = world.agent.claim(by_class(**{WHOLE: 1}))
    with pytest.raises(DoesNotFit, match=f"while its {WHOLE} is in use"):
        world.agent.claim(by_class(SRIOV_NET_VF=1))
    followed(world)
    assert offered(world, name) == {WHOLE: 0, "SRIOV_NET_VF": 0}
    world.agent.release(whole.consumer)
    followed(world)
    assert offered(world, name) == {WHOLE: 1, "SRIOV_NET_VF": 4}
    part = world.agent.claim(by_class(SRIOV_NET_VF=1))
    with pytest.raises(DoesNotFit, match="while its SRIOV_NET_VF is in use"):
        world.agent.claim(by_alias("nic:1"))
    followed(world)
    assert offered(world, name) == {WHOLE: 0, "SRIOV_NET_VF": 3}
    world.agent.release(part.consumer)
    followed(world)
    assert world.agent.claim(by_alias("nic:1"))


def test_what_a_scheduler_wrote_in_between_is_not_given_devices_twice(world: World) -> None:
    """The agent gives one of both, though placement was not told yet that they exclude each other."""
    asked = by_class(SRIOV_NET_VF=1)
    world.agent.claim(by_class(**{WHOLE: 1}))
    client = PlacementClient(world.wire.inner)
    nic = provider(world, "node1_net_eth0")
    client.write_allocations(ConsumerAllocations(asked.consumer, {nic.uuid: {"SRIOV_NET_VF": 1}}))
    with pytest.raises(DoesNotFit, match=f"while its {WHOLE} is in use|exact units"):
        world.agent.claim(asked)


def test_types_of_one_gpu_share_it_or_exclude_each_other(world: World) -> None:
    name = "node1_pci_0000:42:00.0"
    small = world.agent.claim(by_class(CUSTOM_SMALL=3))
    with pytest.raises(DoesNotFit, match="while its CUSTOM_SMALL is in use"):
        world.agent.claim(by_class(CUSTOM_BIG=1))
    with pytest.raises(DoesNotFit):
        world.agent.claim(by_class(CUSTOM_DESK=6))
    desk = world.agent.claim(by_class(CUSTOM_DESK=5))
    assert not set(units(small)["CUSTOM_SMALL"]) & set(units(desk)["CUSTOM_DESK"])
    followed(world)
    assert offered(world, name) == {"CUSTOM_SMALL": 0, "CUSTOM_DESK": 0, "CUSTOM_BIG": 0}
    for claim in (small, desk):
        world.agent.release(claim.consumer)
    followed(world)
    assert offered(world, name) == {"CUSTOM_SMALL": 8, "CUSTOM_DESK": 8, "CUSTOM_BIG": 2}
    assert world.agent.claim(by_class(CUSTOM_BIG=2))


def test_exclusion_survives_a_restart(tmp_path: Path) -> None:
    world = started(tmp_path)
    world.agent.claim(by_class(**{WHOLE: 1}))
    world.close()
    world = started(tmp_path)
    try:
        with pytest.raises(DoesNotFit):
            world.agent.claim(by_class(SRIOV_NET_VF=1))
        world.agent.look("the next pass")
        assert offered(world, "node1_net_eth0") == {WHOLE: 0, "SRIOV_NET_VF": 0}
    finally:
        world.close()


def test_a_function_and_bandwidth_of_its_own_card(world: World) -> None:
    """A port: one virtual function of a physical network, and bandwidth of the very card it is on."""
    other = Nic("eth1", "0000:51:00.0", ("0000:51:02.0",), "physnet1", 1000, 1000)
    world.driver.change(nics=(*world.driver.host.nics, other))
    world.agent.look("another card")

    def port(network: str, kbps: int) -> ClaimRequest:
        resources = {
            "SRIOV_NET_VF": 1,
            "NET_BW_EGR_KILOBIT_PER_SEC": kbps,
            "NET_BW_IGR_KILOBIT_PER_SEC": kbps,
        }
        group = {"suffix": "_port", "resources": resources, "required": [f"CUSTOM_PHYSNET_{network}"]}
        return parse_claim({"consumer": str(uuid4()), "groups": [{"resources": {"VCPU": 1}}, group]})

    claim = world.agent.claim(port("PHYSNET1", 600))
    assert units(claim)["SRIOV_NET_VF"] == ("0000:51:02.0",)
    uuid = provider(world, "node1_net_eth1").uuid
    assert claim.allocations[uuid]["NET_BW_EGR_KILOBIT_PER_SEC"] == 600
    with pytest.raises(DoesNotFit):
        world.agent.claim(port("PHYSNET1", 100))
    world.agent.claim(port("PHYSNET0", 600))
    with pytest.raises(DoesNotFit, match="500 NET_BW_EGR_KILOBIT_PER_SEC asked, 400 free on node1_net_eth0"):
        world.agent.claim(port("PHYSNET0", 500))
