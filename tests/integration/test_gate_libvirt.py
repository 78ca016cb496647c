"""The gate under real libvirtds: plain virsh starts, refuses and migrates guests through the hook."""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kits.daemon_process import Daemon, eventually
from kits.hypervisors import Hypervisor
from kits.libvirt_daemon import MissingPrograms, small_domain

from agent.gate import install

pytestmark = [
    pytest.mark.libvirtd,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root's libvirtd calls hooks"),
]
VM = "a0000000-0000-4000-8000-00000000000{}".format


class Node:
    """A hypervisor, its agent, and the hook between them, which writes down how it was called."""

    def __init__(self, name: str, folder: Path, port: int, cache: Path, placement: dict[str, Any]) -> None:
        self.hypervisor = Hypervisor(name, port, cache)
        folder.mkdir()
        self.calls = folder / "calls"
        config = folder / "gate.conf"
        images = folder / "images"
        images.mkdir()
        self.agent = Daemon(
            folder,
            {
                "DEFAULT": {"compute_driver": "libvirt", "host": name, "reserved_host_memory_mb": 0},
                "libvirt": {"connection_uri": self.hypervisor.uri, "images_path": images},
                "placement": placement,
            },
        )
        config.write_text(f"socket = {self.agent.socket}\nunanswered = refuse\n")
        real = folder / "hook"
        real.write_text(install.hook_script(config=config))
        real.chmod(0o755)
        hook = self.hypervisor.hooks / "50-plimsoll"
        hook.write_text(f'#!/bin/sh\n{real} "$@"\nend=$?\necho "$2 $3 $4 $end" >>{self.calls}\nexit $end\n')
        hook.chmod(0o755)

    def start(self) -> None:
        self.hypervisor.start()
        self.agent.start()

    def close(self) -> None:
        self.agent.close()
        self.hypervisor.stop()

    def called(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []

    def claims(self) -> dict[str, str]:
        """{uuid: state}"""
        return {uuid: claim["state"] for uuid, claim in self.agent.claims().items()}

    def moves(self) -> list[tuple[str, str]]:
        return [(each["role"], each["state"]) for each in self.agent.client.get("/v1/moves")["moves"]]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the first of all the libvirtds finds out about QEMU."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def nodes(tmp_path: Path, cache: Path) -> Iterator[tuple[Node, Node]]:
    with ExitStack() as stack:
        with socket.create_server(("127.0.0.1", 0)) as free:
            door = f"127.0.0.1:{free.getsockname()[1]}"
        placements: tuple[dict[str, Any], ...] = (
            {"kind": "embedded", "serve": door},
            {
                "kind": "remote",
                "auth_type": "admin_token",
                "token": "admin",
                "endpoint_override": f"http://{door}",
            },
        )
        found = []
        try:
            for number, placement in enumerate(placements):
                node = Node(f"hv{number}", tmp_path / f"hv{number}", 49300 + 20 * number, cache, placement)
                stack.callback(node.close)
                node.start()
                found.append(node)
        except MissingPrograms as error:
            pytest.fail(f"these tests need a libvirtd: {error}")
        yield found[0], found[1]


def defined(node: Node, folder: Path, number: int, **domain: Any) -> str:
    file = folder / f"vm{number}.xml"
    file.write_text(small_domain(f"vm{number}", VM(number), **domain))
    done = node.hypervisor.virsh("define", str(file))
    assert done.returncode == 0, done.stderr
    return f"vm{number}"


PAGES = "<memoryBacking><hugepages><page size='1' unit='GiB'/></hugepages></memoryBacking>"


def test_virsh_starts_what_fits_and_nothing_else(nodes: tuple[Node, Node], tmp_path: Path) -> None:
    node, _ = nodes
    vm = defined(node, tmp_path, 1)
    assert node.hypervisor.virsh("start", vm).returncode == 0
    assert node.claims() == {VM(1): "claimed"}
    assert node.called() == ["prepare begin - 0", "start begin - 0", "started begin - 0"]
    big = defined(node, tmp_path, 2, memory_mb=10_000_000)
    done = node.hypervisor.virsh("start", big)
    assert done.returncode != 0 and "10000000 MEMORY_MB asked" in done.stderr
    assert node.claims() == {VM(1): "claimed"}
    paged = tmp_path / "paged.xml"
    paged.write_text(small_domain("paged", VM(5)).replace("<memory ", f"{PAGES}<memory ", 1))
    done = node.hypervisor.virsh("create", str(paged))
    assert done.returncode != 0 and "0 pages of 1048576 KiB free" in done.stderr
    assert node.claims() == {VM(1): "claimed"}
    node.hypervisor.restart()
    assert node.hypervisor.state(vm) == "running", "the hook let it be reconnected"
    eventually("libvirt is back", lambda: "reconnect begin - 0" in node.called())
    node.agent.kill()
    done = node.hypervisor.virsh("start", defined(node, tmp_path, 3))
    assert done.returncode != 0 and "no agent" in done.stderr, "unanswered = refuse"
    assert node.hypervisor.virsh("destroy", vm).returncode == 0
    node.agent.start()
    assert node.claims() == {VM(1): "claimed"}, "it is defined"
    assert node.hypervisor.virsh("undefine", vm).returncode == 0
    transient = tmp_path / "transient.xml"
    transient.write_text(small_domain("vm4", VM(4)))
    assert node.hypervisor.virsh("create", str(transient)).returncode == 0
    assert VM(4) in node.claims()
    assert node.hypervisor.virsh("destroy", "vm4").returncode == 0
    eventually("its release", lambda: VM(4) not in node.claims())


def migrate(source: Node, destination: Node, vm: str, *flags: str, to: str = "127.0.0.1") -> Any:
    return source.hypervisor.virsh(
        "migrate",
        "--live",
        *flags,
        vm,
        destination.hypervisor.uri,
        "--migrateuri",
        f"tcp://{to}:{destination.hypervisor.port + 5}",
    )


def test_virsh_migrates_live_and_the_move_ends_by_itself(nodes: tuple[Node, Node], tmp_path: Path) -> None:
    source, destination = nodes
    vm = defined(source, tmp_path, 1)
    assert source.hypervisor.virsh("start", vm).returncode == 0
    done = migrate(source, destination, vm, "--persistent", "--undefinesource")
    assert done.returncode == 0, done.stderr
    assert destination.called()[:2] == ["migrate begin - 0", "prepare begin - 0"]
    eventually("the end of the move", lambda: destination.moves() == [("destination", "confirmed")])
    eventually("nothing at the source", lambda: source.claims() == {})
    assert destination.claims() == {VM(1): "claimed"}
    assert destination.agent.used() == {"VCPU": 1, "MEMORY_MB": 32}
    eventually("the source is free", lambda: source.agent.used() == {})
    done = migrate(destination, source, vm)
    assert done.returncode == 0, done.stderr
    eventually("it is back", lambda: source.claims() == {VM(1): "claimed"})
    eventually("free again, though it is still defined", lambda: destination.agent.used() == {})
    assert destination.hypervisor.state(vm) == "shut off"
    done = destination.hypervisor.virsh("start", vm)
    assert done.returncode != 0, "it runs elsewhere"
    assert "has moved there" in done.stderr or "already holds" in done.stderr


def test_a_migration_that_does_not_fit_or_fails_leaves_it_where_it_is(
    nodes: tuple[Node, Node], tmp_path: Path
) -> None:
    source, destination = nodes
    vm = defined(source, tmp_path, 1)
    assert source.hypervisor.virsh("start", vm).returncode == 0
    claimed = {"VCPU": 1, "MEMORY_MB": 32}
    done = migrate(source, destination, vm, to="plimsoll.invalid")
    assert done.returncode != 0, "no such host"
    eventually("it is given up", lambda: destination.called()[-1:] == ["release end - 0"])
    eventually("the end of the move", lambda: [state for _, state in destination.moves()] == ["reverted"])
    assert (source.agent.used(), destination.agent.used()) == (claimed, {})
    assert source.hypervisor.state(vm) == "running"
    total = next(
        each["inventories"]["MEMORY_MB"]["total"]
        for each in destination.agent.client.get("/v1/tree")["resource_providers"]
    )
    destination.agent.claim({"VCPU": 1, "MEMORY_MB": total - 16})
    done = migrate(source, destination, vm)
    assert done.returncode != 0 and "32 MEMORY_MB asked, 16 free" in done.stderr
    assert source.hypervisor.state(vm) == "running"
    assert source.agent.used() == claimed
