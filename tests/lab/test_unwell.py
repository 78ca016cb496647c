"""Devices that stop being well beside guests that run: a card without a driver, one without a link, one that
is removed and found again. What is not well is reserved and a finding, its guest keeps it, and it comes back.
"""

import pytest
from kits.lab_node import Node, Prepare, alone

DEVICES = """[devices]
enabled_mdev_types = nvidia-11
sriov_vfs = 0000:41:00.0=2

[pci]
device_spec = {"vendor_id": "8086", "product_id": "10ca", "physical_network": "physnet0"}
device_spec = {"vendor_id": "10de", "product_id": "1eb8", "resource_class": "PGPU"}
"""
T4S = ("0000:43:00.0", "0000:83:00.0")
NIC, INTERFACE = "hv1_net_enp65s0", "enp65s0"
PCI = "/sys/bus/pci"
GUEST, BESIDE = (f"a0000000-0000-4000-8000-00000000002{number}" for number in (1, 2))
LOOKS_S = 10
"""So often the agent looks at the devices."""
CHANGES_S = 10 * LOOKS_S + 120


@pytest.fixture(scope="module")
def node(prepare: Prepare) -> Node:
    (only,) = prepare(1)
    only.title("Devices that are not well, beside running guests")
    only.run("labdev vfs 0000:41:00.0 2", note=False)
    only.configure(alone("hv1", DEVICES))
    only.start()
    only.run(f"plimsoll claim {GUEST} --name vm-vf --resources VCPU=1,MEMORY_MB=48,SRIOV_NET_VF=1")
    only.run(f"labvm create vm-vf uuid={GUEST} pci={claimed(only, GUEST)}")
    only.run(f"plimsoll claim {BESIDE} --name vm-t4 --resources VCPU=1,MEMORY_MB=48,PGPU=1")
    only.run(f"labvm create vm-t4 uuid={BESIDE} pci={claimed(only, BESIDE)}")
    only.wait("both are seen", lambda: {"vm-vf", "vm-t4"} <= only.units().keys())
    return only


def claimed(node: Node, consumer: str) -> str:
    """The one device of a claim."""
    (unit,) = [
        unit
        for each in node.json("plimsoll -o json instances")["instances"]
        if each["uuid"] == consumer
        for by_class in each["claim"]["units"].values()
        for exact in by_class.values()
        for unit in exact
    ]
    return str(unit)


@pytest.fixture(scope="module")
def card(node: Node) -> str:
    """The whole GPU that no guest has."""
    (idle,) = set(T4S) - {claimed(node, BESIDE)}
    return idle


def provider_of(card: str) -> str:
    return f"hv1_pci_{card}"


def free(node: Node, provider: str, name: str) -> int:
    """How much of the class Placement offers."""
    return node.capacity(provider).get(name, 0) - node.usages(provider).get(name, 0)


def reports(node: Node, address: str, symptom: str) -> bool:
    """Whether the audit has a finding on the device, and the table of devices its symptom."""
    shown = node.ask("plimsoll devices list")
    return "unhealthy device" in node.ask("plimsoll audit") and address in shown and symptom in shown


def both_run(node: Node) -> bool:
    return {"vm-vf", "vm-t4"} <= set(node.ask("virsh -q list --name --state-running").split())


def is_well(node: Node) -> bool:
    return "unhealthy device" not in node.ask("plimsoll audit")


def test_a_card_without_its_driver_is_not_offered(node: Node, card: str) -> None:
    gpu = provider_of(card)
    node.title("A card loses its driver")
    assert free(node, gpu, "PGPU") == 1
    node.run(f"echo {card} >{PCI}/drivers/nvidia/unbind")
    node.wait("it is reserved", lambda: free(node, gpu, "PGPU") == 0, CHANGES_S)
    assert reports(node, card, "no driver") and both_run(node)
    node.run("plimsoll status && plimsoll devices list && plimsoll audit", ends=3)
    node.run("plimsoll claim --dry-run --resources PGPU=1", ends=5)
    node.run(f"echo {card} >{PCI}/drivers_probe")
    node.wait("it is offered again", lambda: free(node, gpu, "PGPU") == 1, CHANGES_S)
    node.wait("no finding is left", lambda: is_well(node))


def test_functions_of_a_card_without_a_link_are_not_offered_and_their_guest_keeps_its_own(
    node: Node,
) -> None:
    node.title("A network card loses its link")
    assert free(node, NIC, "SRIOV_NET_VF") == 1
    node.run(f"ip link set {INTERFACE} down")
    node.wait("the other function is reserved", lambda: free(node, NIC, "SRIOV_NET_VF") == 0, CHANGES_S)
    assert reports(node, "0000:41:00.0", "no link") and both_run(node)
    assert node.held(GUEST)[NIC] == {"SRIOV_NET_VF": 1}
    assert ("SRIOV_NET_VF", claimed(node, GUEST), "pci:0000:41:00.0") in node.units()["vm-vf"]
    node.run(f"ip link set {INTERFACE} up")
    node.wait("it is offered again", lambda: free(node, NIC, "SRIOV_NET_VF") == 1, CHANGES_S)
    node.wait("no finding is left", lambda: is_well(node))


def test_an_operator_who_knows_better_clears_a_device(node: Node) -> None:
    node.title("A device that is cleared is offered in spite of its symptom")
    node.run(f"ip link set {INTERFACE} down")
    node.wait("it is reserved", lambda: free(node, NIC, "SRIOV_NET_VF") == 0, CHANGES_S)
    node.run("plimsoll devices clear 0000:41:00.0")
    node.wait("it is offered", lambda: free(node, NIC, "SRIOV_NET_VF") == 1)
    node.run(f"ip link set {INTERFACE} up")


def test_a_card_that_is_removed_is_not_offered_and_comes_back(node: Node, card: str) -> None:
    gpu = provider_of(card)
    node.title("A card is removed, and found again")
    node.run(f"echo 1 >{PCI}/devices/{card}/remove")
    gone = "it is gone, or reserved"
    node.wait(gone, lambda: gpu not in node.totals() or free(node, gpu, "PGPU") == 0, CHANGES_S)
    assert both_run(node)
    node.run("plimsoll claim --dry-run --resources PGPU=1", ends=5)
    node.run("plimsoll status && plimsoll devices list")
    node.run(f"echo 1 >{PCI}/rescan; udevadm settle")
    node.wait("it is offered again", lambda: gpu in node.totals() and free(node, gpu, "PGPU") == 1, CHANGES_S)
    node.wait("no finding is left", lambda: is_well(node))
    assert both_run(node)


def test_the_guests_never_lost_anything(node: Node) -> None:
    assert node.held(BESIDE)[provider_of(claimed(node, BESIDE))] == {"PGPU": 1}
    assert node.held(GUEST)[NIC] == {"SRIOV_NET_VF": 1}
    assert node.run("plimsoll audit").strip() == "nothing differs"
    node.run("virsh destroy vm-vf; virsh destroy vm-t4", note=False)
