"""The agent on a hypervisor with real devices, from its start to a reboot of the host; in this order."""

from typing import Any

import pytest
from kits.lab_node import UNIT, Node, Prepare, alone

DEVICES = """[devices]
enabled_mdev_types = nvidia-11,nvidia-471

[pci]
device_spec = {"vendor_id": "8086", "product_id": "10ca", "physical_network": "physnet0"}
device_spec = {"vendor_id": "10de", "product_id": "1eb8", "resource_class": "PGPU", "traits": "CUSTOM_T4"}
"""
TYPES = "nvidia-11,nvidia-471"
NUMA = "[libvirt]\nreport_numa = true\n"
PAGES = "CUSTOM_HUGEPAGES_2048KIB"
NIC, NIC_1, M60, T4, A100 = (
    "hv1_net_enp65s0",
    "hv1_net_enp129s0",
    "hv1_pci_0000:42:00.0",
    "hv1_pci_0000:43:00.0",
    "hv1_pci_0000:84:00.0",
)
VM = "a0000000-0000-4000-8000-00000000000{}".format
VGPU, VGPU_1 = "11111111-1111-4111-8111-111111111111", "33333333-3333-4333-8333-333333333333"
AUTOSTARTED, DEFINED = "44444444-4444-4444-8444-444444444444", "66666666-6666-4666-8666-666666666666"
ON_ROOT = ({"hv1": {"VCPU": 1, "MEMORY_MB": 48, "VGPU": 1}}, {"hv1": {"VCPU": 1, "MEMORY_MB": 64, "VGPU": 1}})
ON_CARDS = (
    {"hv1": {"VCPU": 1, "MEMORY_MB": 48}, M60: {"VGPU": 1}},
    {"hv1": {"VCPU": 1, "MEMORY_MB": 64}, A100: {"VGPU": 1}},
)
OTHERS = {"hv1_pci_0000:82:00.0": {"VGPU": 16}, T4: {"PGPU": 1}, "hv1_pci_0000:83:00.0": {"PGPU": 1}}
WITH_VFS = {NIC: {"SRIOV_NET_VF": 4}, M60: {"VGPU": 16}, A100: {"VGPU": 4}, **OTHERS}


@pytest.fixture(scope="module")
def node(prepare: Prepare) -> Node:
    (only,) = prepare(1)
    return only


def both(node: Node) -> tuple[dict[str, dict[str, int]], ...]:
    """What the two guests hold."""
    return node.held(VM(1)), node.held(VM(2))


def test_the_service_has_no_rights_but_those_that_are_documented(node: Node) -> None:
    node.title("The service: its user, its rights")
    node.configure(alone("hv1"))
    node.start()
    node.run(f"systemctl show {UNIT} -p User,SupplementaryGroups,NoNewPrivileges,ProtectSystem; id plimsoll")
    pid = node.run(f"systemctl show {UNIT} -p MainPID --value", note=False).strip()
    told = node.run(f"grep -E '^(Uid|Groups|Cap(Eff|Prm|Bnd)|NoNewPrivs|Seccomp):' /proc/{pid}/status")
    fields = dict(line.split(":", 1) for line in told.splitlines())
    assert [fields[name].strip() for name in ("CapEff", "CapPrm", "CapBnd")] == ["0" * 16] * 3
    assert (fields["NoNewPrivs"].strip(), fields["Seccomp"].strip()) == ("1", "2")
    user = node.run("id -u plimsoll; id -g plimsoll; getent group libvirt | cut -d: -f3", note=False).split()
    assert fields["Uid"].split() == user[:1] * 4 and user[0] != "0"
    assert set(fields["Groups"].split()) == set(user[1:])
    node.run("stat -c '%A %U:%G %n' /etc/plimsoll /run/plimsoll /run/plimsoll/* /var/lib/plimsoll")


def test_a_flat_host_whose_vgpus_somebody_put_on_the_root(node: Node) -> None:
    """As a host was before: everything on its root, and guests that hold it there."""
    node.title("A flat host: VGPUs on its root, and two consumers that hold some")
    assert node.devices() == {}
    (root,) = [each for each in node.providers().values() if each["parent_provider_uuid"] is None]
    uuid = root["uuid"]
    inventory = {
        "resource_class": "VGPU",
        "resource_provider_generation": root["generation"],
        "total": 40,
        "max_unit": 40,
    }
    node.placement("POST", f"/resource_providers/{uuid}/inventories", inventory)
    for number, memory in ((1, 48), (2, 64)):
        body: dict[str, Any] = {
            "allocations": {uuid: {"resources": {"VCPU": 1, "MEMORY_MB": memory, "VGPU": 1}}},
            "project_id": VM(0),
            "user_id": VM(0),
            "consumer_generation": None,
            "consumer_type": "INSTANCE",
        }
        node.placement("PUT", f"/allocations/{VM(number)}", body)
    assert both(node) == ON_ROOT
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
    node.configure(alone("hv1", DEVICES))
    node.run(
        "runuser -u plimsoll -- plimsoll reshape --offline --dry-run "
        "--config-file /etc/plimsoll/plimsoll.conf",
        ends=3,
    )
    node.start()
    node.run("plimsoll tree")
    assert "VGPU" not in node.totals()["hv1"]
    assert both(node) == ON_CARDS


def test_the_tree_is_what_libvirt_and_the_kernel_say(node: Node) -> None:
    node.title("The tree, and what libvirt and sysfs say")
    node.wait("all functions are seen", lambda: node.devices() == WITH_VFS)
    sysfs = "/sys/bus/pci/devices"
    node.run(f"cat {sysfs}/0000:41:00.0/sriov_numvfs {sysfs}/0000:84:00.0/sriov_numvfs")
    node.run(f"cat {sysfs}/0000:42:00.0/mdev_supported_types/nvidia-11/available_instances")
    node.run("virsh nodedev-list mdev")
    truth = node.truth(TYPES)
    assert truth.totals == node.devices()
    assert truth.guests == node.units()
    assert node.units()["vm-a100"] == [("VGPU", VGPU_1, "pci:0000:84:00.0")]


def test_the_reshape_is_undone_and_done_again(node: Node) -> None:
    node.title("The reshape undone, with the guests running, and done again")
    receipts = node.json("plimsoll -o json reshape --dry-run")["receipts"]
    assert [len(receipts), receipts[0]["allocations"]] == [1, 2]
    node.run(f"plimsoll reshape --undo {receipts[0]['id']} --dry-run", ends=3)
    node.run(f"plimsoll reshape --undo {receipts[0]['id']}")
    node.run("plimsoll tree")
    assert both(node) == ON_ROOT
    assert node.totals()["hv1"]["VGPU"] == 40
    assert not any("VGPU" in totals for totals in node.devices().values())
    node.run(f"systemctl restart {UNIT} && plimsoll status")
    assert both(node) == ON_ROOT, "it stays undone"
    node.run("virsh list --name")
    node.run("plimsoll reshape")
    assert both(node) == ON_CARDS
    assert node.devices() == WITH_VFS


def test_a_virtual_function_and_a_whole_gpu(node: Node) -> None:
    node.title("A guest with a virtual function and a whole GPU")
    asked = f"plimsoll claim {VM(3)} --name vm-vf --resources VCPU=1,MEMORY_MB=48,SRIOV_NET_VF=1,PGPU=1"
    node.run(asked)
    node.run(f"labvm define vm-vf uuid={VM(3)} vf=0000:41:10.0 pci=0000:43:00.0 && virsh start vm-vf")
    units = node.wait("the guest is seen", lambda: node.units().get("vm-vf"))
    assert units == [
        ("PGPU", "0000:43:00.0", "pci:0000:43:00.0"),
        ("SRIOV_NET_VF", "0000:41:10.0", "pci:0000:41:00.0"),
    ]
    assert node.devices() == WITH_VFS
    node.run("plimsoll instances")


def test_libvirtd_restarts(node: Node) -> None:
    node.title("libvirtd restarts")
    before, units = node.devices(), node.units()
    node.run("systemctl restart libvirtd")
    node.ready()
    assert (node.devices(), node.units()) == (before, units)
    node.run("virsh destroy vm-vf")
    node.wait("its end is seen over the new connection", lambda: state_of(node, "vm-vf") == "shutoff")
    node.run("virsh start vm-vf")
    node.wait("and its start", lambda: state_of(node, "vm-vf") == "running")


def state_of(node: Node, name: str) -> str:
    listed = node.json("plimsoll -o json instances")["instances"]
    return str(next(each["guest"]["state"] for each in listed if each["name"] == name and each["guest"]))


def test_a_network_card_given_whole(node: Node) -> None:
    """Its interface, after which its provider is called, is gone while a guest has the card."""
    node.title("A guest with a whole network card")
    spec = '{"address": "0000:81:00.0", "resource_class": "CUSTOM_NIC"}'
    node.configure(alone("hv1", f"{DEVICES}device_spec = {spec}\n"))
    node.start()
    with_card = {**WITH_VFS, NIC_1: {"CUSTOM_NIC": 1}}
    assert node.devices() == with_card
    node.run(f"plimsoll claim {VM(6)} --name vm-nic --resources VCPU=1,MEMORY_MB=48,CUSTOM_NIC=1")
    node.run(f"labvm create vm-nic uuid={VM(6)} pci=0000:81:00.0")
    node.wait("the guest is seen", lambda: node.units().get("vm-nic"))
    node.run("ip link show enp129s0", ends=1)
    node.ready()
    assert node.units()["vm-nic"] == [("CUSTOM_NIC", "0000:81:00.0", "pci:0000:81:00.0")]
    assert node.devices() == with_card
    assert node.held(VM(6))[NIC_1] == {"CUSTOM_NIC": 1}
    node.run("plimsoll status && plimsoll audit")
    node.run(f"virsh destroy vm-nic && plimsoll release {VM(6)}")
    node.configure(alone("hv1", DEVICES), note=False)
    node.start()
    assert node.devices() == WITH_VFS


def test_functions_go_and_come_back(node: Node) -> None:
    """Those of the other network card: the first one's are in use."""
    node.title("Virtual functions come, go, and come back")
    node.run("labdev vfs 0000:81:00.0 3")
    node.wait("they are there", lambda: node.devices().get(NIC_1) == {"SRIOV_NET_VF": 3})
    node.run("labdev vfs 0000:81:00.0 0")
    node.wait("they are gone", lambda: not node.devices().get(NIC_1))
    node.run("labdev vfs 0000:81:00.0 4")
    node.wait("they are back", lambda: node.devices().get(NIC_1) == {"SRIOV_NET_VF": 4})
    assert node.devices() == {**WITH_VFS, NIC_1: {"SRIOV_NET_VF": 4}}


def test_cells_and_back_by_configuration(node: Node) -> None:
    node.title("CPUs, memory, large pages and devices go under NUMA cells, and back")
    node.run(f"plimsoll claim {VM(7)} --name paged --flavor vcpus=1,memory_mb=32 --spec hw:mem_page_size=2MB")
    own = {"VCPU": 1, "MEMORY_MB": 32}
    flat = node.held(VM(7))
    (pages,) = flat.keys() - {"hv1"}
    assert flat == {"hv1": own, pages: {PAGES: 16}}
    node.configure(alone("hv1", DEVICES + NUMA))
    node.start()
    node.run("plimsoll tree")
    parents = {each["name"]: each["parent_provider_uuid"] for each in node.providers().values()}
    uuids = {each["name"]: uuid for uuid, each in node.providers().items()}
    assert (parents[M60], parents[A100]) == (uuids["hv1_numa0"], uuids["hv1_numa1"])
    held = node.held(VM(1))
    assert held.pop(M60) == {"VGPU": 1}
    assert [*held.values()] == [{"VCPU": 1, "MEMORY_MB": 48}], "whole, on one cell"
    assert "hv1" not in held
    assert node.held(VM(7)) == {pages.partition("_pages")[0]: own, pages: {PAGES: 16}}
    for cell in range(2):
        below = f"hv1_numa{cell}_pages_2048"
        assert node.totals()[f"hv1_numa{cell}"] | node.totals()[below] == cell_by_sysfs(node, cell)
        assert parents[below] == uuids[f"hv1_numa{cell}"]
    node.configure(alone("hv1", DEVICES), note=False)
    node.start()
    assert both(node) == ON_CARDS
    assert node.held(VM(7)) == flat
    node.run(f"plimsoll release {VM(7)}")


def cell_by_sysfs(node: Node, number: int) -> dict[str, int]:
    sysfs = f"/sys/devices/system/node/node{number}"
    cpus = node.run(f"ls -d {sysfs}/cpu[0-9]*").split()
    memory_kib = node.run(f"grep MemTotal {sysfs}/meminfo").split()[-2]
    pages = node.run(f"cat {sysfs}/hugepages/hugepages-2048kB/nr_hugepages")
    return {"VCPU": len(cpus), "MEMORY_MB": int(memory_kib) // 1024, PAGES: int(pages)}


def test_the_host_reboots(node: Node) -> None:
    """Transient mediated devices and virtual functions are gone with the host, defined ones that do not start
    with it are inactive; domains name some of them still, and the functions of the second network card are
    claimed for a guest that is nowhere yet.
    """
    node.title("The host reboots")
    for vm in ("vm-m60", "vm-a100"):
        node.run(f"virsh dumpxml {vm} --migratable >/root/{vm}.xml && virsh define /root/{vm}.xml")
    for uuid in (AUTOSTARTED, DEFINED):
        node.run(f"labdev define 0000:82:00.0 nvidia-11 {uuid}")
    name = f"$(virsh nodedev-list mdev | grep {DEFINED.replace('-', '_')})"
    node.run(f"virsh nodedev-autostart {name} --disable")
    node.run(f"labvm define vm-kept uuid={VM(5)} mdev={AUTOSTARTED} mdev={DEFINED}")
    kept = [("VGPU", uuid, "pci:0000:82:00.0") for uuid in (AUTOSTARTED, DEFINED)]
    node.wait("it is known whose they are", lambda: node.units().get("vm-kept") == kept)
    node.run(f"plimsoll claim {VM(4)} --name later --group 1:SRIOV_NET_VF=4")
    before = [node.held(VM(number)) for number in range(1, 5)]
    assert before[3] == {NIC_1: {"SRIOV_NET_VF": 4}}
    claims = node.json("plimsoll -o json status")["claims"]["count"]
    node.reboot()
    node.wait("the agent answers", lambda: node.ask("plimsoll -o json status"), 300)
    node.title("After the reboot: what is there, what is to come back")
    node.run("plimsoll status; plimsoll tree; plimsoll instances; labdev roles")
    said = node.json("plimsoll -o json status")["claims"]
    assert said == {"open": True, "reason": None, "count": claims, "schedulers": True}
    assert [node.held(VM(number), note=False) for number in range(1, 5)] == before
    for uuid in (VGPU, AUTOSTARTED, DEFINED):
        node.wait(f"{uuid} is there again", lambda uuid=uuid: uuid in node.ask("ls /sys/bus/mdev/devices"))
    assert node.units()["vm-kept"] == kept
    assert node.devices()[A100] == {"VGPU": 1}, "what a domain names, no more"
    assert node.devices()[NIC] == {"SRIOV_NET_VF": 1}
    assert node.capacity(NIC_1) == {"SRIOV_NET_VF": 4}, "what is claimed"
    node.run("plimsoll claim --dry-run --resources SRIOV_NET_VF=1", ends=5)
    node.run("virsh start vm-vf", ends=1)


def test_what_the_reboot_took_comes_back(node: Node) -> None:
    node.title("The virtual functions are made again")
    node.run("for card in 84 41 81; do labdev vfs 0000:$card:00.0 4; done")
    node.wait("the other device, too", lambda: VGPU_1 in node.ask("ls /sys/bus/mdev/devices"))
    node.wait("all of it", lambda: node.devices() == {**WITH_VFS, NIC_1: {"SRIOV_NET_VF": 4}})
    node.ready()
    # plimsoll-devices makes those of cards that need no virtual functions, before the agent starts.
    made = node.run(f"journalctl -u {UNIT} -u plimsoll-devices -b -o cat | grep 'mediated device'")
    assert all(uuid in made for uuid in (VGPU, VGPU_1, DEFINED)), "autostart is the host's affair"
    node.run("virsh start vm-m60; virsh start vm-a100; virsh start vm-vf")
    node.run("plimsoll tree; plimsoll instances")
    assert (node.usages(NIC), node.usages(NIC_1)) == ({"SRIOV_NET_VF": 1}, {"SRIOV_NET_VF": 4})
    assert both(node) == ON_CARDS
    truth = node.truth(TYPES)
    assert (truth.totals, truth.guests) == (node.devices(), node.units())
    node.ready()
    assert node.run("plimsoll audit").strip() == "nothing differs", "vm-kept is defined, and does not run"
    node.run(f"plimsoll release {VM(4)}")
