"""Two hosts that share one placement, which the first one's agent serves over TLS; a guest with a vGPU moves
between them, alive, under the agents' claims; in this order.
"""

from typing import NamedTuple

import pytest
from labnode import Node, Prepare, alone

ADDRESS = "192.168.77.1:8778"
TOKEN = "5c1d0f5e7a3b4c6d8e9f"
COMMON = """
[compute]
resource_provider_association_refresh = 15

[devices]
enabled_mdev_types = nvidia-11
"""
SERVING = f"""serve = {ADDRESS},unix:/run/plimsoll/placement.sock
serve_tokens = /etc/plimsoll/placement.tokens
serve_tls_cert = /etc/plimsoll/placement.crt
serve_tls_key = /etc/plimsoll/placement.key
"""
JOINED = f"""[DEFAULT]
compute_driver = libvirt
host = hv2

[placement]
kind = remote
auth_type = admin_token
endpoint_override = https://{ADDRESS}
cafile = /etc/plimsoll/placement.crt
"""
ASKED = "--resources VCPU=1,MEMORY_MB=48,VGPU=1"
HELD = {"VCPU": 1, "MEMORY_MB": 48}


class Guest(NamedTuple):
    """`mdevs` are its device on hv1, and the one that is to be its device on hv2."""

    name: str
    uuid: str
    migration: str
    mdevs: tuple[str, str]


MOVES = Guest(
    "moves",
    "b0000000-0000-4000-8000-000000000001",
    "d0000000-0000-4000-8000-000000000001",
    ("11111111-1111-4111-8111-111111111111", "21111111-1111-4111-8111-111111111111"),
)
STAYS = Guest(
    "stays",
    "b0000000-0000-4000-8000-000000000002",
    "d0000000-0000-4000-8000-000000000002",
    ("12222222-2222-4222-8222-222222222222", "22222222-2222-4222-8222-222222222222"),
)


@pytest.fixture(scope="module")
def nodes(prepare: Prepare) -> tuple[Node, Node]:
    one, two = prepare(2)
    return one, two


def on(node: Node, card: str) -> dict[str, dict[str, int]]:
    """What one of the guests holds on that node."""
    return {node.name: HELD, card: {"VGPU": 1}}


def card_of(held: dict[str, dict[str, int]]) -> str:
    """The provider that the guest's vGPU is on."""
    (card,) = [name for name, amounts in held.items() if "VGPU" in amounts]
    return card


def make_device(node: Node, card: str, uuid: str) -> None:
    node.run(f"labdev mdev {card.removeprefix(f'{node.name}_pci_')} nvidia-11 {uuid}")


def claim_and_start(node: Node, guest: Guest, how: str = "") -> dict[str, dict[str, int]]:
    """What the guest holds, which runs on its device."""
    node.run(f"plimsoll claim {guest.uuid} --name {guest.name} {ASKED}")
    held = node.held(guest.uuid, note=False)
    make_device(node, card_of(held), guest.mdevs[0])
    node.run(f"labvm create {guest.name} uuid={guest.uuid} mdev={guest.mdevs[0]} {how}".rstrip())
    node.wait("the guest is seen", lambda: guest.name in node.units())
    return held


def migrate(one: Node, guest: Guest, *, ends: int) -> None:
    """hv1 to hv2, where another device waits."""
    one.run(
        f"virsh dumpxml --migratable {guest.name} | sed s/{guest.mdevs[0]}/{guest.mdevs[1]}/ >/tmp/dst.xml; "
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
    one.run(
        "cd /etc/plimsoll && openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=hv1 "
        "-addext subjectAltName=DNS:hv1,IP:192.168.77.1 -keyout placement.key -out placement.crt "
        f"2>/dev/null && echo 'hv2 service {TOKEN}' >placement.tokens && "
        "chmod 0600 placement.key placement.tokens && chown plimsoll placement.*"
    )
    one.configure(alone("hv1", SERVING + COMMON).replace("serve = unix:/run/plimsoll/placement.sock\n\n", ""))
    one.start()
    two.write("/etc/plimsoll/placement.crt", one.run("cat /etc/plimsoll/placement.crt", note=False))
    two.run(
        "install -d -m 0700 /etc/credstore && "
        f"install -m 0600 /dev/stdin /etc/credstore/placement.token <<<{TOKEN}"
    )
    two.configure(JOINED + COMMON)
    two.start()
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
    before = claim_and_start(one, MOVES, "migratable=yes")
    one.run("plimsoll instances")
    two.title("It moves, alive: the destination begins")
    two.run(f"plimsoll move begin {MOVES.uuid} --kind live-migrate --migration {MOVES.migration} {ASKED}")
    target = card_of(one.held(MOVES.uuid))
    assert one.held(MOVES.uuid, note=False) == on(two, target)
    assert one.held(MOVES.migration) == before == on(one, card_of(before))
    one.wait("the source has learnt of it", lambda: moves(one) == {MOVES.migration: ("source", "begun")})
    one.run("plimsoll move list")
    assert claims(one) == {MOVES.migration}
    two.title("libvirt moves it")
    make_device(two, target, MOVES.mdevs[1])
    migrate(one, MOVES, ends=0)
    two.run("virsh list")
    two.wait(
        "the guest is seen on its new device",
        lambda: (
            two.units() == {"moves": [("VGPU", MOVES.mdevs[1], f"pci:{target.removeprefix('hv2_pci_')}")]}
        ),
    )
    assert one.held(MOVES.migration, note=False) == before, "the source is held until the move is confirmed"
    assert one.held(MOVES.uuid, note=False) == on(two, target)
    two.title("The move is confirmed: the instance holds the destination alone")
    two.run(f"plimsoll move confirm {MOVES.migration}")
    assert one.held(MOVES.uuid) == on(two, target)
    assert one.held(MOVES.migration) == {}
    one.wait("the source has learnt of it", lambda: claims(one) == set())
    one.run("plimsoll move list --all; plimsoll instances; plimsoll tree")
    two.run("plimsoll instances; plimsoll tree")
    assert one.usages("hv1") == {"VCPU": 0, "MEMORY_MB": 0, "DISK_GB": 0}
    assert claims(two) == {MOVES.uuid}
    for node in nodes:
        node.ready()
        node.run("plimsoll audit")


def test_a_migration_that_fails_is_reverted(nodes: tuple[Node, Node]) -> None:
    """QEMU refuses to move a device that it was not told to; the destination had started it by then."""
    one, two = nodes
    one.title("A migration that fails: the guest stays, and so does all that it holds")
    before = claim_and_start(one, STAYS)
    units = one.units()
    two.run(f"plimsoll move begin {STAYS.uuid} --kind live-migrate --migration {STAYS.migration} {ASKED}")
    target = card_of(one.held(STAYS.uuid))
    assert one.held(STAYS.migration) == before
    one.wait("the source has learnt of it", lambda: STAYS.migration in claims(one))
    make_device(two, target, STAYS.mdevs[1])
    migrate(one, STAYS, ends=1)
    one.run("virsh list")
    two.run("virsh list")
    two.run(f"plimsoll move revert {STAYS.migration}")
    two.wait("it is reverted", lambda: moves(two)[STAYS.migration] == ("destination", "reverted"))
    assert one.held(STAYS.uuid) == before
    assert one.held(STAYS.migration) == {}
    one.wait("the source has its claim again", lambda: claims(one) == {STAYS.uuid})
    assert one.units() == units
    assert claims(two) == {MOVES.uuid}
    two.run(f"virsh nodedev-destroy $(virsh nodedev-list mdev | grep {STAYS.mdevs[1].replace('-', '_')})")
    for node in nodes:
        node.ready()
        node.run("plimsoll move list --all; plimsoll instances; plimsoll audit")
