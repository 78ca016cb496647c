"""Dedicated CPUs that are down, on a real kernel under systemd: offered, up once they are claimed, and down
again at a boot where no claim has them.
"""

import pytest
from kits.lab_node import Node, Prepare, alone

CPU = 1
ONLINE = f"/sys/devices/system/cpu/cpu{CPU}/online"
SETTINGS = f"""
[compute]
cpu_shared_set = 0
cpu_dedicated_set = {CPU}
cpu_power_management = true
"""
ASKED = "--resources PCPU=1,MEMORY_MB=64"


@pytest.fixture(scope="module")
def node(prepare: Prepare) -> Node:
    (found,) = prepare(1)
    found.configure(alone("hv1", SETTINGS))
    return found


def is_up(node: Node) -> bool:
    return node.ask(f"cat {ONLINE}").strip() == "1"


def test_a_cpu_that_is_down_is_offered(node: Node) -> None:
    node.title("A dedicated CPU is down, and the host offers it")
    node.run(f"echo 0 >{ONLINE}")
    node.start()
    assert node.totals()["hv1"]["PCPU"] == 1
    assert not is_up(node)


def test_a_claim_brings_it_up_without_a_command(node: Node) -> None:
    node.run(f"plimsoll claim --name pinned {ASKED}")
    node.wait("the CPU of the claim is up", lambda: is_up(node), 60)
    node.run("systemctl status --no-pager plimsoll-cpus.path | head -n 4; journalctl -o cat -u plimsoll-cpus")


def test_at_a_boot_it_is_up_for_a_claim_and_down_without_one(node: Node) -> None:
    node.title("A boot with the claim, and one without it")
    for claimed in (True, False):
        node.reboot()
        node.wait("the agent answers", lambda: node.ask("plimsoll -o json status"), 400)
        node.ready()
        assert is_up(node) is claimed
        assert node.totals()["hv1"]["PCPU"] == 1
        if claimed:
            node.run("plimsoll release pinned")
    node.run(f"journalctl -b -o cat -u plimsoll-cpus; echo 1 >{ONLINE}")
