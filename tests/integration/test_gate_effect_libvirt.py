"""Is the gate in effect? On a real libvirtd and a real agent, as they are restarted, stopped and killed."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.daemon_process import Daemon, eventually
from kits.hypervisors import Hypervisor
from kits.libvirt_daemon import MissingPrograms, small_domain
from kits.status import fetch

from agent.errors import ExitCode

pytestmark = [
    pytest.mark.libvirtd,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root's libvirtd calls hooks"),
]
VM = "a0000000-0000-4000-8000-00000000000{}".format
IN_EFFECT, NOT_IN_EFFECT = "gate        in effect\n", "gate        NOT IN EFFECT\n"


class Node:
    """A hypervisor and its agent, with a /run and an /etc/libvirt of their own, at their usual paths."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        cache = directory / "cache"
        cache.mkdir()
        self.hypervisor = Hypervisor("hv", 49340, cache, own_run=True)
        images = directory / "images"
        images.mkdir()
        (directory / "agent").mkdir()
        self.agent = Daemon(
            directory / "agent",
            {
                "DEFAULT": {"compute_driver": "libvirt", "host": "hv", "reserved_host_memory_mb": 0},
                "libvirt": {"connection_uri": self.hypervisor.uri, "images_path": images},
                "placement": {"kind": "embedded"},
                "http": {"listen": "127.0.0.1:0"},
            },
        )
        outside = self.hypervisor.directory / "run" / "plimsoll"
        outside.mkdir(mode=0o755)
        self.agent.options["api"]["socket"] = "/run/plimsoll/plimsoll.sock"
        self.agent.move_socket(outside / "plimsoll.sock")
        self.agent.write()
        self.agent.prefix = self.hypervisor.inside()

    def plimsoll(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.hypervisor.inside(sys.executable, "-m", "agent.cli.main", *words),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def gate_status(self, code: ExitCode, starts: str) -> str:
        done = self.plimsoll("gate", "status")
        assert (done.returncode, done.stderr) == (code, "") and done.stdout.startswith(starts), done
        return done.stdout

    def metric(self) -> str | None:
        """The sample of plimsoll_gate_in_effect, on which the alert is; None: there is none."""
        where = self.agent.lines("The health checks and the metrics are at")[-1].rsplit("127.0.0.1:", 1)[1]
        port = "".join(each for each in where if each.isdigit())
        text = fetch(f"http://127.0.0.1:{port}/metrics")[2].decode()
        found = [line for line in text.splitlines() if line.startswith("plimsoll_gate_in_effect ")]
        return found[0].split()[1] if found else None

    def starts(self, number: int, **domain: int) -> subprocess.CompletedProcess[str]:
        file = self.directory / f"vm{number}.xml"
        file.write_text(small_domain(f"vm{number}", VM(number), **domain))
        return self.hypervisor.virsh("create", str(file))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    try:
        made = Node(tmp_path)
    except MissingPrograms as error:
        pytest.fail(f"these tests need a libvirtd: {error}")
    try:
        made.hypervisor.start()
        made.agent.start()
        yield made
    finally:
        made.agent.close()
        made.hypervisor.stop()


def test_over_restarts_of_libvirtd_and_of_the_agent(node: Node) -> None:
    assert "guests start without a claim" in node.gate_status(ExitCode.DONE, "gate        disabled")
    assert node.metric() is None, "who does not want the gate gets no alert"

    enabled = node.plimsoll("gate", "enable")
    assert enabled.returncode == ExitCode.DONE and "NOT IN EFFECT yet" in enabled.stdout
    assert "systemctl restart libvirtd" in node.gate_status(ExitCode.DRIFT_FOUND, NOT_IN_EFFECT)
    status = node.plimsoll("status").stdout
    assert "\ngate       NOT IN EFFECT\n" in status and "systemctl restart libvirtd" in status
    assert node.metric() == "0.0"

    node.hypervisor.restart()
    eventually("the agent hears of it", lambda: node.agent.status()["gate"]["in_effect"])
    node.gate_status(ExitCode.DONE, IN_EFFECT)
    assert node.metric() == "1.0"
    refused = node.starts(1, memory_mb=10_000_000)
    assert refused.returncode != 0 and "10000000 MEMORY_MB asked" in refused.stderr
    assert node.starts(2).returncode == 0

    node.agent.kill()
    said = node.gate_status(ExitCode.DRIFT_FOUND, NOT_IN_EFFECT)
    assert "no agent listens" in said and "unanswered = allow" in said and "claim-running" in said
    assert node.starts(3).returncode == 0, "libvirt starts it: the hook reached no agent"
    node.agent.start()
    eventually("it is in effect again", lambda: node.agent.status()["gate"]["in_effect"])
    node.gate_status(ExitCode.DONE, IN_EFFECT)
    eventually("the guest that started meanwhile is claimed", lambda: VM(3) in node.agent.claims())
    assert node.agent.claims().keys() == {VM(2), VM(3)}

    node.hypervisor.end()
    eventually("the agent misses libvirtd", lambda: not node.agent.status()["gate"]["in_effect"])
    assert "claims are closed" in node.gate_status(ExitCode.DRIFT_FOUND, NOT_IN_EFFECT)
    assert node.metric() == "0.0"
    node.hypervisor.start()
    eventually("it is in effect again", lambda: node.agent.status()["gate"]["in_effect"])
    node.gate_status(ExitCode.DONE, IN_EFFECT)
    assert node.metric() == "1.0" and node.agent.claims().keys() == {VM(2), VM(3)}

    assert node.plimsoll("gate", "disable").returncode == ExitCode.DONE
    node.gate_status(ExitCode.DONE, "gate        disabled")
    assert node.metric() is None
