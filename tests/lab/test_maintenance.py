"""Two hosts under the gate: its status over restarts of libvirtd and of the agent; then the first host is
paused, drained by live migrations, rebooted and resumed; in this order.
"""

import json

import pytest
from kits.lab_fleet import share_placement
from kits.lab_node import UNIT, Node, Prepare

NAMES = ("web1", "web2")
UUIDS = {
    "web1": "b0000000-0000-4000-8000-000000000011",
    "web2": "b0000000-0000-4000-8000-000000000012",
    "missed": "b0000000-0000-4000-8000-000000000013",
    "late": "b0000000-0000-4000-8000-000000000014",
}
SETTINGS = """
[compute]
resource_provider_association_refresh = 15
"""
DISABLED = "COMPUTE_STATUS_DISABLED"
FOLLOWED = "/root/drain.log"
METRICS = "curl -s --unix-socket /run/plimsoll/plimsoll.sock http://localhost/metrics"


@pytest.fixture(scope="module")
def nodes(prepare: Prepare) -> tuple[Node, Node]:
    one, two = prepare(2)
    one.title("Two hosts that share one placement, each with the gate")
    share_placement(one, two, SETTINGS)
    return one, two


def gate(node: Node, ends: int) -> str:
    """What the command says, once on the node and once as data, with the metric beside it."""
    said = node.run("plimsoll gate status", ends=ends)
    wanted = {0: "plimsoll_gate_in_effect 1", 3: "plimsoll_gate_in_effect 0"}[ends]
    metrics = node.ask(METRICS)
    assert not metrics or wanted in metrics, "an agent that is away has no metrics"
    return said


def running(node: Node) -> set[str]:
    return set(node.ask("virsh -q list --name --state-running").split())


def claimed(node: Node) -> set[str]:
    """The names of the claims that the node has."""
    instances = node.json("plimsoll -o json instances")["instances"]
    return {each["name"] for each in instances if each["claim"]}


def move(source: Node, name: str, to: Node) -> None:
    """A live migration as docs/maintenance.md has it; the gates move the claim."""
    source.run(f"virsh migrate --live --persistent --undefinesource {name} qemu+tcp://{to.name}/system")
    to.wait(f"{name} is claimed there", lambda: name in claimed(to))
    source.wait(f"{name} has left", lambda: name not in claimed(source))


def offered(one: Node) -> set[str]:
    """The hosts that a scheduler is offered, which asks as nova's does."""
    query = f"resources=VCPU:1&required=!{DISABLED}"
    found = one.placement("GET", f"'/allocation_candidates?{query}'", note=False)
    roots = {each["root_provider_uuid"] for each in found["provider_summaries"].values()}
    providers = one.placement("GET", "/resource_providers", note=False)["resource_providers"]
    return {each["name"] for each in providers if each["uuid"] in roots}


def test_the_gate_is_in_effect_once_libvirtd_has_started_again(nodes: tuple[Node, Node]) -> None:
    for node in nodes:
        node.title(f"The gate of {node.name}")
        assert "disabled" in node.run("plimsoll gate status")
        assert "NOT IN EFFECT" in node.run("plimsoll gate enable 2>&1")
        before = gate(node, ends=3)
        assert "NOT IN EFFECT" in before and "systemctl restart libvirtd" in before
        assert "NOT IN EFFECT" in node.run("plimsoll status")
        node.run("systemctl restart libvirtd")
        node.ready()
        assert "in effect" in gate(node, ends=0)


def test_guests_start_by_the_gate_and_stay_over_a_restart_of_libvirtd(nodes: tuple[Node, Node]) -> None:
    one, _ = nodes
    for name in NAMES:
        one.run(f"labvm define {name} uuid={UUIDS[name]} memory=32 && virsh -q start {name}")
        assert set(one.held(UUIDS[name])) == {"hv1"}
    one.title("libvirtd restarts: the gate stays in effect, and the guests run on")
    one.run("systemctl restart libvirtd")
    one.ready()
    assert "in effect" in gate(one, ends=0)
    assert running(one) == set(NAMES) == claimed(one)


def test_the_status_tells_of_an_agent_that_is_away(nodes: tuple[Node, Node]) -> None:
    one, _ = nodes
    one.title("The agent is stopped: the gate is not in effect, and a guest starts without a claim")
    one.run(f"systemctl stop {UNIT}")
    away = gate(one, ends=3)
    assert "NOT IN EFFECT" in away and "unanswered = allow" in away
    assert "The gate is NOT IN EFFECT" in one.run("plimsoll status 2>&1", ends=6)
    one.run(f"labvm create missed uuid={UUIDS['missed']} memory=32")
    one.title("The agent is back: the gate is in effect, and the guest gets its claim")
    one.run(f"systemctl start {UNIT}")
    one.ready()
    assert "in effect" in gate(one, ends=0)
    one.wait("the guest is claimed", lambda: "missed" in claimed(one))
    assert set(one.held(UUIDS["missed"])) == {"hv1"}
    one.title("The agent is killed: systemd starts it again, and nothing is forgotten")
    pid = one.json("plimsoll -o json status")["pid"]
    one.run(f"systemctl kill -s KILL {UNIT}")
    one.wait("another process answers", lambda: _pid(one) not in (None, pid))
    one.ready()
    assert "in effect" in gate(one, ends=0)
    assert claimed(one) == {*NAMES, "missed"} == running(one)
    one.run("virsh -q destroy missed")
    one.wait("its claim goes with it", lambda: "missed" not in claimed(one))


def _pid(node: Node) -> int | None:
    text = node.ask("plimsoll -o json status")
    return int(json.loads(text)["pid"]) if text.strip() else None


def test_a_paused_host_refuses_guests_and_says_why(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    one.title("Paused: nothing new comes, not by virsh and not by a migration; what runs, runs on")
    one.run('plimsoll pause --reason "new memory on Tuesday"')
    refused = one.run(f"labvm create late uuid={UUIDS['late']} memory=32 2>&1", ends=1)
    assert "new memory on Tuesday" in refused
    two.run(f"labvm create late uuid={UUIDS['late']} memory=32")
    refused = two.run("virsh migrate --live late qemu+tcp://hv1/system 2>&1", ends=1)
    assert "new memory on Tuesday" in refused
    two.wait("the guest holds its place", lambda: set(one.held(UUIDS["late"], note=False)) == {"hv2"})
    two.run("virsh -q destroy late")
    two.wait("its claim goes with it", lambda: one.held(UUIDS["late"], note=False) == {})
    assert running(one) == set(NAMES)
    one.run(f"systemctl restart {UNIT}")
    one.wait("it is paused still", lambda: "new memory on Tuesday" in one.ask("plimsoll status"))
    assert offered(one) == {"hv1", "hv2"}, "schedulers were not told"


def test_a_drain_follows_the_live_migrations_to_the_end(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    one.title("Drained: it lists what must leave, tells schedulers, and follows the migrations")
    left = one.run('plimsoll drain --schedulers --reason "new firmware"', ends=3)
    assert all(name in left for name in NAMES) and "virsh migrate --live" in left
    one.wait("schedulers are told", lambda: offered(one) == {"hv2"})
    follow = f"plimsoll drain --follow >{FOLLOWED} 2>&1; echo $? >>{FOLLOWED}"
    one.run(f"systemd-run -q --unit=followed sh -c '{follow}'")
    for name in NAMES:
        move(one, name, two)
        assert set(one.held(UUIDS[name])) == {"hv2"}
    one.wait("the drain has ended", lambda: "drained: " in one.ask(f"cat {FOLLOWED}"))
    said = one.run(f"cat {FOLLOWED}")
    assert all(name in said for name in NAMES) and said.split()[-1] == "0"
    one.run("plimsoll drain")
    assert running(one) == set() and running(two) == set(NAMES) == claimed(two)
    for node in nodes:
        node.run("plimsoll move list --all")
        assert node.run("plimsoll audit") == "nothing differs\n"


def test_a_drained_host_reboots_and_is_taken_back(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    one.title("The drained host reboots, and is drained still")
    one.reboot()
    one.wait("the agent answers", lambda: "new firmware" in one.ask("plimsoll status"), 400)
    assert "in effect" in one.wait("the gate", lambda: one.ask("plimsoll gate status"))
    assert running(two) == set(NAMES)
    one.title("Resumed: a guest comes back")
    one.run("plimsoll resume")
    one.ready()
    one.run("plimsoll look")
    one.wait("schedulers are told", lambda: offered(one) == {"hv1", "hv2"})
    two.ready()
    move(two, "web1", one)
    assert set(one.held(UUIDS["web1"])) == {"hv1"}
    for node in nodes:
        node.ready()
        assert node.run("plimsoll audit") == "nothing differs\n"
        node.run("plimsoll tree")
    for node, name in ((one, "web1"), (two, "web2")):
        node.run(f"virsh -q destroy {name} && virsh -q undefine {name}")
        node.wait("its claim goes", lambda node=node: claimed(node) == set())
        node.run("plimsoll gate disable && systemctl restart libvirtd")
