"""A GPU whose virtual functions are vGPUs of the vendor's own VFIO driver, without mediated devices: the
operator gives each function its type in sysfs.
"""

import pytest
from kits.lab_node import Node, Prepare, alone

DEVICES = """[devices]
enabled_mdev_types = nvidia-471
"""
A100 = "hv1_pci_0000:84:00.0"
VF = "/sys/bus/pci/devices/0000:84:00.{}/nvidia".format
GUEST = "a0000000-0000-4000-8000-000000000007"


@pytest.fixture(scope="module")
def node(prepare: Prepare) -> Node:
    (only,) = prepare(1, "vfio")
    return only


def vgpus(node: Node) -> int:
    return node.totals().get(A100, {}).get("VGPU", 0)


def test_functions_count_once_they_have_a_type(node: Node) -> None:
    node.title("Virtual functions of a vendor's own VFIO driver")
    node.run("labdev vfs 0000:84:00.0 4")
    node.run(f"cat {VF(1)}/creatable_vgpu_types {VF(1)}/current_vgpu_type")
    node.configure(alone("hv1", DEVICES))
    node.start()
    assert vgpus(node) == 0, "no function has a type"
    node.run(f"echo 471 >{VF(1)}/current_vgpu_type; echo 471 >{VF(2)}/current_vgpu_type")
    node.wait("they are seen", lambda: vgpus(node) == 2)
    node.run("plimsoll tree")
    assert node.truth("nvidia-471").totals[A100] == {"VGPU": 2}


def test_a_guest_holds_one(node: Node) -> None:
    node.title("A guest on one of them")
    node.run(f"plimsoll claim {GUEST} --name vfio --resources VCPU=1,MEMORY_MB=48,VGPU=1")
    claim = node.json("plimsoll -o json instances")["instances"][0]["claim"]
    (unit,) = [unit for units in claim["units"].values() for unit in units.get("VGPU", ())]
    node.run(f"labvm create vfio uuid={GUEST} unmanaged={unit}")
    units = node.wait("the guest is seen", lambda: node.units().get("vfio"))
    assert units == [("VGPU", unit, "pci:0000:84:00.0")] == node.truth("nvidia-471").guests["vfio"]
    assert node.held(GUEST) == {"hv1": {"VCPU": 1, "MEMORY_MB": 48}, A100: {"VGPU": 1}}
    assert vgpus(node) == 2, "a total does not move while guests come and go"
    node.run("plimsoll instances; plimsoll audit")
    other = next(number for number in (1, 2) if not unit.endswith(str(number)))
    node.run(f"echo 0 >{VF(other)}/current_vgpu_type")
    node.wait("the one without a type is gone", lambda: vgpus(node) == 1)
    node.run(f"virsh destroy vfio && plimsoll release {GUEST}")
    node.wait("its end is seen", lambda: node.units() == {})
    assert vgpus(node) == 1
