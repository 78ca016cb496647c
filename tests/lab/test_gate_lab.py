"""The gate on a real hypervisor: libvirt starts guests with real devices, or does not."""

import pytest
from kits.lab_node import Node, Prepare

VM = "c0000000-0000-4000-8000-00000000000{}".format
NIC = "hv1_net_enp65s0"
CONFIG = """[DEFAULT]
compute_driver = libvirt
host = hv1

[placement]
kind = embedded

[pci]
device_spec = {"vendor_id": "8086", "product_id": "10ca", "physical_network": "physnet0"}
"""


@pytest.fixture(scope="module")
def node(prepare: Prepare) -> Node:
    (found,) = prepare(1)
    found.configure(CONFIG)
    found.run("labdev vfs 0000:41:00.0 2", note=False)
    found.start()
    found.ready()
    found.run("plimsoll gate enable && systemctl restart libvirtd")
    found.wait("libvirt is back", lambda: "ready" in found.ask("plimsoll status"))
    return found


def test_virsh_start_claims_the_very_function(node: Node) -> None:
    node.title("The gate: a guest with a virtual function")
    node.wait("the functions are seen", lambda: node.devices().get(NIC) == {"SRIOV_NET_VF": 2})
    node.run(f"labvm create vm-vf uuid={VM(1)} vf=0000:41:10.2")
    (claim,) = [
        each["claim"]
        for each in node.json("plimsoll -o json instances")["instances"]
        if each["uuid"] == VM(1)
    ]
    assert "0000:41:10.2" in str(claim)
    refused = node.run(f"labvm create vm-vf2 uuid={VM(2)} vf=0000:41:10.2 2>&1", ends=(1, 2))
    assert VM(1) in refused or "0000:41:10.2" in refused
    node.run("virsh destroy vm-vf", note=False)
    node.wait("its claim goes", lambda: VM(1) not in node.ask("plimsoll -o json instances"))


def test_a_restart_of_libvirtd_leaves_guests_running(node: Node) -> None:
    node.run(f"labvm create vm-stays uuid={VM(3)}")
    node.run("systemctl restart libvirtd && virsh domstate vm-stays")
    assert "running" in node.run("virsh domstate vm-stays", note=False)
    node.run("virsh destroy vm-stays; plimsoll gate disable && systemctl restart libvirtd", note=False)
