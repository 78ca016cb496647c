"""The service of a wheel alone: installed by its own command, at work, upgraded, removed."""

import pytest
from kits.lab_node import UNIT, Node, Prepare, alone

COMMAND = "/opt/plimsoll/bin/plimsoll"
WRITTEN = (
    "/etc/systemd/system/plimsoll-agent.service",
    "/etc/sysusers.d/plimsoll.conf",
    "/usr/local/bin/plimsoll",
)
GUEST = "b0000000-0000-4000-8000-000000000021"


@pytest.fixture(scope="module")
def node(prepare: Prepare) -> Node:
    (node,) = prepare(1)
    node.title("A wheel alone")
    node.configure(alone("wheel"))
    node.start()
    return node


def test_the_service_runs_from_the_wheel(node: Node) -> None:
    assert node.ask(f"systemctl show -P ExecStart {UNIT}").count(COMMAND)
    assert node.ask("stat -c %U /run/plimsoll").strip() == "plimsoll"
    assert "findings" in node.run("cd / && plimsoll status")
    assert node.ask(f"systemd-analyze verify --man=no {UNIT}.service 2>&1 || true").count("plimsoll") == 0


def test_the_same_command_again_finds_nothing_to_do(node: Node) -> None:
    assert node.run(f"{COMMAND} install-service --dry-run").strip() == "nothing to do"


def test_the_gate_s_hook_runs_outside_the_environment(node: Node) -> None:
    node.run("plimsoll gate enable && systemctl restart libvirtd && sleep 5")
    node.ready()
    assert node.ask("head -1 /etc/libvirt/hooks/qemu.d/50-plimsoll").startswith("#!/usr/bin/python3")
    node.run(f"labvm create gated uuid={GUEST}")
    assert GUEST in node.run("plimsoll instances")
    node.run("virsh destroy gated")


def test_an_upgrade_writes_what_differs_and_restarts(node: Node) -> None:
    node.run("sed -i s/hypervisor/host/ /etc/systemd/system/plimsoll-agent.service")
    before = node.json("plimsoll -o json status")["pid"]
    said = node.run(f"{COMMAND} install-service")
    assert "write /etc/systemd/system/plimsoll-agent.service" in said
    node.ready()
    assert node.json("plimsoll -o json status")["pid"] != before


def test_a_removal_leaves_the_host_s_state_and_nothing_else(node: Node) -> None:
    node.run(f"{COMMAND} install-service --remove")
    node.gone(*WRITTEN, "/etc/libvirt/hooks/qemu.d/50-plimsoll")
    assert node.run(f"systemctl is-active {UNIT}", ends=(3, 4)).strip() == "inactive"
    assert "agent.db" in node.run("ls /var/lib/plimsoll")
    node.run(f"{COMMAND} install-service")
    node.ready()
    node.run("plimsoll status")
