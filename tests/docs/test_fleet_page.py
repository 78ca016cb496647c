"""docs/fleet.md by hand: one host becomes three, a guest is placed, a host is drained, a host is lost."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from kits.daemon_process import eventually
from kits.doc_commands import Host, blocks, fenced
from kits.served_core_client import make_certificate
from kits.tracker import fast_directory

PAGE = "fleet.md"
SERVER = "192.0.2.7:8778"
WEB1, WEB2, WEB3 = (
    "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69",
    "1e8f8e0c-0c55-4c8e-8d0b-0a4f5d2f6b12",
    "7d1f7b0a-55a5-4c1c-93a8-4d3c8f0b9e21",
)
DOMAIN = f"""
<domain type='kvm'>
  <name>web2</name>
  <uuid>{WEB2}</uuid>
  <memory unit='GiB'>2</memory>
  <vcpu>2</vcpu>
  <os><type machine='q35'>hvm</type></os>
</domain>
"""
FASTER = """
import sys
if "--config-file" in sys.orig_argv and "agent" in sys.orig_argv:
    from agent.daemon import service
    service.NOTE_INTERVAL_S = 1.0
if "serve" in sys.orig_argv:
    from agent.placement.embedded import fleet
    fleet.SILENT_AFTER_S = 8.0
"""
"""For the processes of the test: minutes are seconds."""


@pytest.fixture
def directory() -> Iterator[Path]:
    with fast_directory() as name:
        yield Path(name)


class Three:
    """The hosts of the page, and the address that stands for that of its server."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.directory, self._stack = directory, stack
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.certificate, self.key = make_certificate(directory)

    def host(self, number: int, placement: str, *guests: dict[str, object]) -> Host:
        """An agent that runs; `guests` are those that libvirt knows there."""
        home = self.directory / f"hv{number}"
        home.mkdir()
        cells = [{"id": 0, "cpus": "0-7", "memory_mb": 16384}]
        host = Host(home, f"hv{number}", placement, cells=cells, guests=[*guests], disk_gb=100)
        (host.libvirt.binding / "sitecustomize.py").write_text(FASTER)
        for file, name in ((self.certificate, "placement.crt"), (self.key, "placement.key")):
            (home / "etc" / name).write_bytes(file.read_bytes())
        return self._stack.enter_context(host)

    def section(self, number: int) -> str:
        """The host's section of the settings, with its own token."""
        tokens = dict(line.split()[::2] for line in fenced(PAGE, "text").splitlines())
        section = (
            fenced(PAGE, "ini").replace(tokens["hv1"], tokens[f"hv{number}"]).replace(SERVER, self.address)
        )
        return section.replace("/etc/plimsoll", str(self.directory / f"hv{number}" / "etc"))

    def serve(self, host: Host) -> None:
        """Run the page's server on that host's machine."""
        (script,) = blocks(PAGE, "serve")
        tokens = host.directory / "etc" / "placement.tokens"
        tokens.touch(mode=0o600)
        tokens.write_text(fenced(PAGE, "text"))
        (host.directory / "etc" / "flavors.json").write_text(fenced(PAGE, "json"))
        log = host.directory / "placement.log"
        script = script.replace("plimsoll placement serve", "exec plimsoll placement serve")
        command = ["bash", "-euc", host.placed(script.replace(SERVER, self.address))]
        with log.open("wb") as stream:
            server = subprocess.Popen(command, env=host.environment, stderr=stream)
        self._stack.callback(server.wait)
        self._stack.callback(server.kill)
        eventually("the server", lambda: b"Serving Placement" in log.read_bytes())


def guest(uuid: str, name: str, state: str = "running") -> dict[str, object]:
    return {"uuid": uuid, "name": name, "state": state, "resources": {"VCPU": 2, "MEMORY_MB": 2048}}


def change(host: Host, *guests: dict[str, object]) -> None:
    """Have these guests on the host, and the agent know it."""
    file = host.directory / "host.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "guests": [*guests]}))
    host.run("plimsoll look || true")


@pytest.mark.timeout(240)
def test_from_one_host_to_three_and_through_a_drain_and_a_loss(directory: Path) -> None:
    join, top, where, claim, plan, begin, ready, silent, evacuate = blocks(PAGE)
    (confirm,) = blocks(PAGE, "migrated")
    with ExitStack() as stack:
        three = Three(directory, stack)
        one = three.host(1, "[placement]\nkind = embedded\n", guest(WEB1, "web1"))
        one.run(f"plimsoll claim {WEB1} --name web1 --flavor vcpus=2,memory_mb=2048")
        three.serve(one)
        settings = one.settings.read_text().partition("[placement]")[0]
        (one.directory / "etc" / "joined.conf").touch(mode=0o600)
        (one.directory / "etc" / "joined.conf").write_text(settings + three.section(1))
        assert "remote, ok" in one.run(join)
        two = three.host(2, three.section(2))
        lost = three.host(3, three.section(3), guest(WEB3, "web3"))
        lost.run(f"plimsoll claim {WEB3} --name web3 --flavor vcpus=2,memory_mb=2048")
        change(two, guest(WEB2, "web2", "shutoff"))

        eventually("three hosts", lambda: "3 hosts: all ready; room for " in one.run(top), 30)
        assert "web1" in one.run("plimsoll instances"), "its guest has run all the time"

        (one.directory / "work" / "web2.xml").write_text(DOMAIN)
        (two.directory / "work" / "web2.xml").write_text(DOMAIN)
        assert one.run(where).startswith("it fits: 3 hosts have room for it")
        two.run(claim)
        two.run("plimsoll look || true")
        rows = [line.split()[:4] for line in two.run("plimsoll instances").splitlines()]
        assert [WEB2, "web2", "running", "claimed"] in rows

        told = one.run(plan)
        assert "1 instance moves, in this order:" in told and "qemu+ssh://hv" in told
        two.run(begin)
        change(one)
        change(two, guest(WEB2, "web2"), guest(WEB1, "web1"))
        two.run(confirm)
        one.run("plimsoll look || true")
        assert "drained: nothing is left on this host" in one.run(ready)

        lost.run("systemctl stop plimsoll-agent")
        eventually("the silence", lambda: "1 silent" in one.run(silent), 60)
        assert "hv3" in one.run(silent).splitlines()[1]
        assert "hv3" not in one.run(where)
        two.run(evacuate)
        held = one.run("plimsoll placement export --config-file /etc/plimsoll/plimsoll.conf")
        assert held.count(WEB3) == 1
        assert "web3" not in two.run("plimsoll move list")
