"""The commands of docs/first-day.md, as they stand there, on a node that has nothing but libvirt."""

import os
import re

import pytest
from kits.lab_node import Node
from kits.paths import CHECKOUT

PACKAGE = "PLIMSOLL_DEB"
PAGE = CHECKOUT / "docs" / "first-day.md"
COMMANDS_MAX = 9
TOO_BIG = """<domain type='kvm'><name>too-big</name><memory unit='GiB'>900</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='pc'>hvm</type></os><devices><memballoon model='none'/></devices></domain>"""
BEFORE = "b0000000-0000-4000-8000-000000000001"
LATER = "b0000000-0000-4000-8000-000000000002"

pytestmark = pytest.mark.skipif(not os.environ.get(PACKAGE), reason=f"{PACKAGE} names no Debian package")


def commands(page: str) -> list[list[str]]:
    """The commands of each block."""
    blocks = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    return [[line[2:] for line in block.splitlines() if line.startswith("# ")] for block in blocks]


def held(node: Node, consumer: str) -> bool:
    instances = node.json("plimsoll -o json instances")["instances"]
    return any(each["uuid"] == consumer and each["claim"] for each in instances)


def test_the_page_has_few_commands() -> None:
    first, _ = commands(PAGE.read_text(encoding="utf-8"))
    assert 1 < len(first) <= COMMANDS_MAX


def test_from_nothing_to_a_gated_hypervisor(bare: Node) -> None:
    bare.title("The first day")
    bare.run(f"labvm create before uuid={BEFORE}")
    first, second = commands(PAGE.read_text(encoding="utf-8"))
    for command in first:
        bare.run(command, ends=(0, 3) if "doctor" in command else 0)
    assert BEFORE in bare.run("plimsoll -o json instances", note=False)
    assert "running" in bare.run("virsh domstate before", note=False), "it did not notice"
    assert held(bare, BEFORE), "it was claimed for"
    bare.write("/root/too-big.xml", TOO_BIG)
    bare.run("virsh define /root/too-big.xml", note=False)
    for command in second:
        bare.run(f"{command} 2>&1", ends=1)
        assert "MEMORY_MB asked" in bare.ask(f"{command} 2>&1")
    bare.run(f"labvm create later uuid={LATER}")
    assert held(bare, LATER), "the gate claimed"
    bare.run("virsh destroy later", note=False)
    bare.wait("a transient guest's claim goes with it", lambda: not held(bare, LATER))


def test_the_proposed_configuration_is_read(bare: Node) -> None:
    bare.title("A configuration for what this host has")
    bare.run("plimsoll init --yes && systemctl restart plimsoll-agent")
    bare.ready()
    assert bare.run("stat -c '%U:%G %a' /etc/plimsoll /etc/plimsoll/plimsoll.conf").splitlines() == [
        "root:plimsoll 750",
        "root:plimsoll 640",
    ]
    bare.run("plimsoll config show | grep plimsoll.conf")
    assert held(bare, BEFORE)


def test_the_agent_is_shut_in(bare: Node) -> None:
    bare.title("How far the agent is shut in")
    told = bare.run("systemd-analyze security plimsoll-agent --no-pager | tail -n 1")
    found = re.search(r": ([\d.]+) ", told)
    assert found is not None and float(found.group(1)) <= 1.5
    groups = bare.run("id -nG plimsoll").split()
    assert groups == ["plimsoll"]
    pid = bare.json("plimsoll -o json status")["pid"]
    status = bare.run(f"grep -E '^(Uid|CapEff|NoNewPrivs|Seccomp):' /proc/{pid}/status")
    assert re.search(r"CapEff:\s+0{16}", status) and re.search(r"NoNewPrivs:\s+1", status)
    assert re.search(r"Seccomp:\s+2", status) and not re.search(r"Uid:\s+0\b", status)


def test_the_remedy_that_the_doctor_tells_helps(bare: Node) -> None:
    """For what a user who may only read is not told by libvirt."""
    bare.title("What the agent may not, and the doctor's remedy")
    lacks = rights(bare)
    assert lacks["verdict"] == "warning" and not graphics(bare)
    found = re.search(r"usermod .*? plimsoll-agent", lacks["remedy"])
    assert found is not None
    bare.run(found.group())
    bare.ready()
    assert rights(bare)["verdict"] == "good"
    bare.wait("it is reported", lambda: graphics(bare))


def rights(node: Node) -> dict[str, str]:
    node.run("plimsoll doctor")
    checks = node.json("plimsoll -o json doctor")["checks"]
    return next(each for each in checks if each["name"] == "rights")


def graphics(node: Node) -> list[str]:
    """The graphics that guests can be given, which libvirt tells those only who may manage it."""
    return [
        trait
        for each in node.providers().values()
        for trait in each["traits"]
        if trait.startswith("COMPUTE_GRAPHICS_")
    ]


def test_removed_it_keeps_its_state_and_purged_it_is_gone(bare: Node) -> None:
    bare.title("The package goes")
    bare.run("dpkg --remove plimsoll 2>&1 | tail -n 2")
    kept = bare.run("ls /var/lib/plimsoll /etc/plimsoll")
    assert "agent.db" in kept and "plimsoll.conf" in kept
    bare.run("test ! -e /etc/libvirt/hooks/qemu.d/50-plimsoll")
    assert "running" in bare.run("virsh domstate before", note=False)
    bare.run("dpkg --purge plimsoll 2>&1 | tail -n 2")
    bare.gone(
        "/var/lib/plimsoll", "/etc/plimsoll", "/run/plimsoll", "/usr/bin/plimsoll", "/usr/share/plimsoll"
    )
    bare.run("virsh undefine too-big; virsh destroy before", note=False, ends=(0, 1))
