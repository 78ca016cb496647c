"""The agent on a hypervisor with real devices, from its start to a reboot of the host; in this order."""

from typing import Any

from labnode import UNIT, Node

DEVICES = """[devices]
enabled_mdev_types = nvidia-11,nvidia-471

[pci]
device_spec = {"vendor_id": "8086", "product_id": "10ca", "physical_network": "physnet0"}
device_spec = {"vendor_id": "10de", "product_id": "1eb8", "resource_class": "PGPU", "traits": "CUSTOM_T4"}
"""
NUMA = "[libvirt]\nreport_numa = true\n"
NIC, M60, T4, A100 = (
    "hv1_net_enp65s0",
    "hv1_pci_0000:42:00.0",
    "hv1_pci_0000:43:00.0",
    "hv1_pci_0000:84:00.0",
)
VM = "a0000000-0000-4000-8000-00000000000{}".format
VGPU, VGPU_1 = "11111111-1111-4111-8111-111111111111", "33333333-3333-4333-8333-333333333333"
WITH_VFS = {
    NIC: {"SRIOV_NET_VF": 4},
    M60: {"VGPU": 16},
    T4: {"PGPU": 1},
    "hv1_pci_0000:82:00.0": {"VGPU": 16},
    "hv1_pci_0000:83:00.0": {"PGPU": 1},
    A100: {"VGPU": 4},
}


def devices(node: Node) -> dict[str, dict[str, int]]:
    return {name: totals for name, totals in node.totals().items() if "_pci_" in name or "_net_" in name}


def test_a_flat_host_whose_vgpus_somebody_put_on_the_root(node: Node) -> None:
    """As a host was before: everything on its root, and guests that hold it there."""
    node.configure("[libvirt]\nreport_numa = false\n")
    node.start()
    assert devices(node) == {}
    (root,) = node.providers().values()
    uuid = root["uuid"]
    node.placement(
        "POST",
        f"/resource_providers/{uuid}/inventories",
        {
            "resource_class": "VGPU",
            "resource_provider_generation": root["generation"],
            "total": 40,
            "reserved": 0,
            "min_unit": 1,
            "max_unit": 40,
            "step_size": 1,
            "allocation_ratio": 1.0,
        },
    )
    for number, memory in ((1, 48), (2, 64)):
        body: dict[str, Any] = {
            "allocations": {uuid: {"resources": {"VCPU": 1, "MEMORY_MB": memory, "VGPU": 1}}},
            "project_id": VM(0),
            "user_id": VM(0),
            "consumer_generation": None,
            "consumer_type": "INSTANCE",
        }
        node.placement("PUT", f"/allocations/{VM(number)}", body)
    assert node.held(VM(1)) == {"hv1": {"VCPU": 1, "MEMORY_MB": 48, "VGPU": 1}}
    node.run(f"systemctl stop {UNIT}")


def test_guests_run_on_the_devices(node: Node) -> None:
    node.title("Virtual functions, mediated devices and guests that hold them")
    node.run("labdev vfs 0000:41:00.0 4; labdev vfs 0000:84:00.0 4")
    node.run(f"labdev mdev 0000:42:00.0 nvidia-11 {VGPU}; labdev mdev 0000:84:00.1 nvidia-471 {VGPU_1}")
    node.run(f"labvm create vm-m60 uuid={VM(1)} mdev={VGPU}")
    node.run(f"labvm create vm-a100 uuid={VM(2)} memory=64 mdev={VGPU_1}")
    assert "vm-a100" in node.run("virsh list --name")


def test_flat_to_nested_with_guests_running(node: Node) -> None:
    node.title("The reshape, with the guests running: root to GPUs")
    node.configure(DEVICES)
    node.run(
        "install -d -o plimsoll -g plimsoll /run/plimsoll && "
        "runuser -u plimsoll -- plimsoll reshape --offline --dry-run "
        "--config-file /etc/plimsoll/plimsoll.conf",
        ends=(0, 3),
    )
    node.start()
    node.run("plimsoll tree")
    assert "VGPU" not in node.totals()["hv1"]
    assert node.held(VM(1)) == {"hv1": {"VCPU": 1, "MEMORY_MB": 48}, M60: {"VGPU": 1}}
    assert node.held(VM(2)) == {"hv1": {"VCPU": 1, "MEMORY_MB": 64}, A100: {"VGPU": 1}}


def test_the_tree_is_what_libvirt_and_the_kernel_say(node: Node) -> None:
    node.title("The tree, and what libvirt and sysfs say")
    node.wait("all functions are seen", lambda: devices(node) == WITH_VFS)
    node.run("plimsoll tree")
    sysfs = "/sys/bus/pci/devices"
    numbers = node.run(f"cat {sysfs}/0000:41:00.0/sriov_numvfs {sysfs}/0000:84:00.0/sriov_numvfs").split()
    assert numbers == ["4", "4"]
    available = node.run(f"cat {sysfs}/0000:42:00.0/mdev_supported_types/nvidia-11/available_instances")
    made = node.run("virsh nodedev-list mdev").split()
    on_m60 = sum(name.endswith("0000_42_00_0") for name in made)
    assert int(available) + on_m60 == devices(node)[M60]["VGPU"]
    assert node.units()["vm-m60"] == [("VGPU", VGPU, "pci:0000:42:00.0")]
    assert node.units()["vm-a100"] == [("VGPU", VGPU_1, "pci:0000:84:00.0")]


def test_a_virtual_function_and_a_whole_gpu(node: Node) -> None:
    node.title("A guest with a virtual function and a whole GPU")
    asked = f"plimsoll claim {VM(3)} --name vm-vf --resources VCPU=1,MEMORY_MB=48,SRIOV_NET_VF=1,PGPU=1"
    node.run(asked)
    node.run(f"labvm create vm-vf uuid={VM(3)} vf=0000:41:10.0 pci=0000:43:00.0")
    units = node.wait("the guest is seen", lambda: node.units().get("vm-vf"))
    assert sorted(units) == [
        ("PGPU", "0000:43:00.0", "pci:0000:43:00.0"),
        ("SRIOV_NET_VF", "0000:41:10.0", "pci:0000:41:00.0"),
    ]
    assert devices(node) == WITH_VFS
    node.run("plimsoll instances")


def test_libvirtd_restarts(node: Node) -> None:
    node.title("libvirtd restarts")
    before, units = devices(node), node.units()
    node.run("systemctl restart libvirtd")
    node.wait(
        "the agent is connected again",
        lambda: "ready" in node.run("plimsoll status", note=False, ends=(0, 1)),
    )
    assert (devices(node), node.units()) == (before, units)
    node.run(f"virsh destroy vm-vf && plimsoll release {VM(3)}")
    node.wait("its end is seen over the new connection", lambda: "vm-vf" not in node.units())


def test_functions_go_and_come_back(node: Node) -> None:
    node.title("Virtual functions go, and come back")
    node.run("labdev vfs 0000:41:00.0 0")
    node.wait("they are gone", lambda: NIC not in node.totals() or not node.totals()[NIC])
    node.run("labdev vfs 0000:41:00.0 4")
    node.wait("they are back", lambda: devices(node).get(NIC) == {"SRIOV_NET_VF": 4})
    assert devices(node) == WITH_VFS


def test_cells_and_back_by_configuration(node: Node) -> None:
    node.title("CPUs, memory and devices go under NUMA cells, and back")
    node.configure(DEVICES + NUMA)
    node.start()
    node.run("plimsoll tree")
    parents = {each["name"]: each["parent_provider_uuid"] for each in node.providers().values()}
    uuids = {each["name"]: uuid for uuid, each in node.providers().items()}
    assert (parents[M60], parents[A100]) == (uuids["hv1_numa0"], uuids["hv1_numa1"])
    held = node.held(VM(1))
    assert held.pop(M60) == {"VGPU": 1}
    assert [*held.values()] == [{"VCPU": 1, "MEMORY_MB": 48}], "whole, on one cell"
    assert "hv1" not in held
    node.configure(DEVICES)
    node.start()
    assert node.held(VM(1)) == {"hv1": {"VCPU": 1, "MEMORY_MB": 48}, M60: {"VGPU": 1}}


def test_the_host_reboots(node: Node) -> None:
    """Transient mediated devices and virtual functions are gone with the host; domains name them still."""
    node.title("The host reboots")
    for number, mdev in ((1, VGPU), (2, VGPU_1)):
        vm = ("vm-m60", "vm-a100")[number - 1]
        node.run(f"virsh dumpxml {vm} --migratable >/root/{vm}.xml && virsh define /root/{vm}.xml")
        assert mdev in node.run(f"virsh dumpxml {vm} --inactive", note=False)
    boot = node.run("cat /proc/sys/kernel/random/boot_id", note=False)
    node.run("systemctl reboot", ends=(0, 255), note=False)
    node.wait(
        "the node answers again",
        lambda: node.lab("exec", "cat /proc/sys/kernel/random/boot_id").stdout not in ("", boot),
        400,
    )
    node.wait(
        "the agent is ready", lambda: "ready" in node.run("plimsoll status", note=False, ends=(0, 1, 6)), 300
    )
    node.wait(
        "the device of the M60 is made again",
        lambda: VGPU in node.run("ls /sys/bus/mdev/devices", note=False),
    )
    assert devices(node)[A100] == {"VGPU": 1}, "its functions are not there, and a domain names one's device"
    node.run("plimsoll tree")
    node.run("labdev vfs 0000:84:00.0 4")
    node.wait("the other, too", lambda: VGPU_1 in node.run("ls /sys/bus/mdev/devices", note=False))
    node.wait("all of it", lambda: devices(node)[A100] == {"VGPU": 4})
    node.run(
        f"virsh start vm-m60 && virsh nodedev-list mdev && journalctl -u {UNIT} -o cat | grep 'made mediated'"
    )
    assert node.units()["vm-m60"] == [("VGPU", VGPU, "pci:0000:42:00.0")]
