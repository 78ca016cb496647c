"""Two hosts that share one placement, which the first one's agent serves over TLS; a guest with a vGPU moves
between them, alive, under the agents' claims; in this order.
"""

from typing import Any, NamedTuple

import pytest
from kits.lab_fleet import share_placement
from kits.lab_node import Node, Prepare

COMMON = """
[compute]
resource_provider_association_refresh = 15

[devices]
enabled_mdev_types = nvidia-11
"""
ASKED = "--resources VCPU=1,MEMORY_MB=48,VGPU=1"
HELD = {"VCPU": 1, "MEMORY_MB": 48}


class Guest(NamedTuple):
    name: str
    uuid: str
    migration: str


MOVES = Guest("moves", "b0000000-0000-4000-8000-000000000001", "d0000000-0000-4000-8000-000000000001")
STAYS = Guest("stays", "b0000000-0000-4000-8000-000000000002", "d0000000-0000-4000-8000-000000000002")


@pytest.fixture(scope="module")
def nodes(prepare: Prepare) -> tuple[Node, Node]:
    one, two = prepare(2)
    return one, two


def on(node: Node, card: str) -> dict[str, dict[str, int]]:
    """What one of the guests holds on that node."""
    return {node.name: HELD, card: {"VGPU": 1}}


class Device(NamedTuple):
    """A mediated device as a claim names it, maybe before it is made: its uuid, and its card's provider."""

    uuid: str
    card: str


def make_device(node: Node, holder: Any) -> Device:
    """The device that a claim, or the new place of a move, names; it is made if it is not there."""
    providers = node.providers()
    ((card, uuid),) = [
        (providers[provider]["name"], unit)
        for provider, units in holder["units"].items()
        for unit in units.get("VGPU", ())
    ]
    for unit, making in holder["to_make"].items():
        node.run(f"labdev mdev {making['parent']} {making['type']} {unit}")
    return Device(uuid, card)


def claim_and_start(node: Node, guest: Guest, how: str = "") -> Device:
    """The guest's device, on which it runs."""
    node.run(f"plimsoll claim {guest.uuid} --name {guest.name} {ASKED}")
    instances = node.json("plimsoll -o json instances")["instances"]
    device = make_device(node, next(each["claim"] for each in instances if each["uuid"] == guest.uuid))
    node.run(f"labvm create {guest.name} uuid={guest.uuid} mdev={device.uuid} {how}".rstrip())
    node.wait("the guest is seen", lambda: node.units().get(guest.name) == used(node, device))
    assert node.held(guest.uuid, note=False) == on(node, device.card)
    return device


def used(node: Node, device: Device) -> list[tuple[str, str, str]]:
    """The guest's units, as the driver tells them."""
    return [("VGPU", device.uuid, f"pci:{device.card.removeprefix(f'{node.name}_pci_')}")]


def migrate(one: Node, guest: Guest, here: Device, there: Device, *, ends: int) -> None:
    """hv1 to hv2, where another device waits."""
    one.run(
        f"virsh dumpxml --migratable {guest.name} | sed s/{here.uuid}/{there.uuid}/ >/tmp/dst.xml; "
        f"virsh migrate --live --xml /tmp/dst.xml {guest.name} qemu+tcp://hv2/system",
        ends=ends,
    )


def moves(node: Node) -> dict[str, tuple[str, str]]:
    """{migration: (role, state)}"""
    return {
        each["migration"]: (each["role"], each["state"])
        for each in node.json("plimsoll -o json move list --all")["moves"]
    }


def claims(node: Node) -> set[str]:
    """The consumers of the node's claims."""
    return {each["uuid"] for each in node.json("plimsoll -o json instances")["instances"] if each["claim"]}


def test_two_hosts_share_one_placement(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    one.title("The first host serves its placement over TLS; the second one reports to it")
    share_placement(one, two, COMMON)
    for node in nodes:
        node.run("plimsoll tree")
    found = one.placement("GET", "/resource_providers", note=False)["resource_providers"]
    roots = {each["name"]: each["uuid"] for each in found if each["parent_provider_uuid"] is None}
    assert set(roots) == {"hv1", "hv2"}
    for node in nodes:
        assert {each["root_provider_uuid"] for each in found if each["name"].startswith(f"{node.name}_")} == {
            roots[node.name]
        }


def test_a_guest_with_a_vgpu_moves_alive(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    one.title("A guest with a vGPU on the first host")
    here = claim_and_start(one, MOVES, "migratable=yes")
    one.run("plimsoll instances")
    two.title("It moves, alive: the destination begins")
    there = begin(two, MOVES)
    assert one.held(MOVES.uuid) == on(two, there.card)
    assert one.held(MOVES.migration) == on(one, here.card)
    one.wait("the source has learnt of it", lambda: moves(one) == {MOVES.migration: ("source", "begun")})
    one.run("plimsoll move list")
    assert claims(one) == {MOVES.migration}
    two.title("libvirt moves it")
    migrate(one, MOVES, here, there, ends=0)
    two.run("virsh list")
    two.wait("the guest is seen on its device", lambda: two.units() == {"moves": used(two, there)})
    assert one.held(MOVES.migration, note=False) == on(one, here.card), "until the move is confirmed"
    assert one.held(MOVES.uuid, note=False) == on(two, there.card)
    two.title("The move is confirmed: the instance holds the destination alone")
    two.run(f"plimsoll move confirm {MOVES.migration}")
    assert one.held(MOVES.uuid) == on(two, there.card)
    assert one.held(MOVES.migration) == {}
    one.wait("the source has learnt of it", lambda: claims(one) == set())
    one.run("plimsoll move list --all; plimsoll instances; plimsoll tree")
    two.run("plimsoll instances; plimsoll tree")
    assert not any(one.usages("hv1").values())
    assert claims(two) == {MOVES.uuid}
    for node in nodes:
        node.ready()
        node.run("plimsoll audit")


def begin(node: Node, guest: Guest) -> Device:
    """A live migration to that node; the device that waits for the guest there."""
    node.run(f"plimsoll move begin {guest.uuid} --kind live-migrate --migration {guest.migration} {ASKED}")
    return make_device(node, node.json(f"plimsoll -o json move show {guest.migration}")["new"])


def test_a_migration_that_fails_is_reverted(nodes: tuple[Node, Node]) -> None:
    """QEMU refuses to move a device that it was not told to; the destination had started it by then."""
    one, two = nodes
    one.title("A migration that fails: the guest stays, and so does all that it holds")
    here = claim_and_start(one, STAYS)
    units = one.units()
    there = begin(two, STAYS)
    assert one.held(STAYS.uuid) == on(two, there.card)
    assert one.held(STAYS.migration) == on(one, here.card)
    one.wait("the source has learnt of it", lambda: STAYS.migration in claims(one))
    migrate(one, STAYS, here, there, ends=1)
    one.run("virsh list")
    two.run("virsh list")
    two.run(f"plimsoll move revert {STAYS.migration}")
    two.wait("it is reverted", lambda: moves(two)[STAYS.migration] == ("destination", "reverted"))
    assert one.held(STAYS.uuid) == on(one, here.card)
    assert one.held(STAYS.migration) == {}
    one.wait("the source has its claim again", lambda: claims(one) == {STAYS.uuid})
    assert one.units() == units
    assert not {STAYS.uuid, STAYS.migration} & claims(two)
    two.run(f"virsh nodedev-destroy $(virsh nodedev-list mdev | grep {there.uuid.replace('-', '_')})")
    for node in nodes:
        node.ready()
        node.run("plimsoll move list --all; plimsoll instances; plimsoll audit")


PLAIN = "b0000000-0000-4000-8000-000000000003"


def test_the_gate_carries_what_virsh_does(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    one.title("The gate: nobody claims by hand; virsh starts a guest, and moves it")
    for node in nodes:
        node.run("plimsoll gate enable && systemctl restart libvirtd")
    for node in nodes:
        node.ready()
    one.run(f"labvm create plain uuid={PLAIN} memory=32")
    assert set(one.held(PLAIN)) == {"hv1"}
    two.title("It does not fit there: the migration is refused with the reason, and the guest stays")
    free = two.capacity("hv2")["MEMORY_MB"] - two.usages("hv2").get("MEMORY_MB", 0) - 16
    claimed = two.json(f"plimsoll -o json claim --name filler --resources MEMORY_MB={free}")
    refused = one.run("virsh migrate --live plain qemu+tcp://hv2/system 2>&1", ends=1)
    assert "does not fit" in refused
    assert set(one.held(PLAIN)) == {"hv1"}
    two.run(f"plimsoll release {claimed['consumer']}")
    two.title("It fits: the destination begins a move, and ends it when the guest runs there")
    one.run("virsh migrate --live plain qemu+tcp://hv2/system && virsh list")
    two.wait("the move is over", lambda: set(one.held(PLAIN, note=False)) == {"hv2"})
    two.wait("it is confirmed", lambda: "confirmed" in {state for _, state in moves(two).values()})
    two.run("virsh list; plimsoll move list --all; plimsoll instances")
    one.wait("the source has learnt of it", lambda: PLAIN not in claims(one))
    two.run("virsh destroy plain")
    two.wait("its claim goes with it", lambda: one.held(PLAIN, note=False) == {})
    for node in nodes:
        node.ready()
        node.run("plimsoll audit")
        node.run("plimsoll gate disable && systemctl restart libvirtd")
