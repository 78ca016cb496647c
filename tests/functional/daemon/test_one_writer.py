"""Two agents with one host uuid: a copied state directory, over a served core and OpenStack Placement."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kits.agent_process import Agent
from kits.cli_process import COMMAND, ENVIRONMENT
from kits.daemon_process import eventually
from kits.placements import OpenStack, section_of
from kits.served_core_client import door_client


@contextmanager
def served_core(directory: Path) -> Iterator[str]:
    """The [placement] section of a host whose Placement is the core that another agent serves."""
    directory.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    serves = Agent(directory, more=f"[placement]\nkind = embedded\nserve = {address}\n")
    serves.file.write_text(serves.file.read_text().replace("host = node1", "host = node0"))
    serves.start()
    try:
        with door_client(address) as client:
            assert client("GET", "/resource_providers").status == 200
        remote = {"kind": "remote", "auth_type": "admin_token", "token": "admin", "timeout": 10}
        options = {**remote, "endpoint_override": f"http://{address}"}
        yield "".join(["[placement]\n", *(f"{name} = {value}\n" for name, value in options.items())])
    finally:
        serves.stop()


@contextmanager
def openstack(directory: Path) -> Iterator[str]:
    directory.mkdir()
    placement = OpenStack.on_sqlite(directory)
    try:
        yield section_of(placement)
    finally:
        placement.down()


@pytest.fixture(params=[served_core, openstack])
def section(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with request.param(tmp_path / "placement") as section:
        yield section + "[compute]\nresource_provider_association_refresh = 1\n"


def command(agent: Agent, *words: str) -> None:
    """One that needs no agent."""
    told = subprocess.run(
        [*COMMAND, *words, "--config-file", str(agent.file)],
        env=ENVIRONMENT,
        capture_output=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr


def test_each_of_two_clones_closes_and_heals_nothing_of_the_other(section: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one, two = (Agent(tmp_path / name, more=section) for name in ("one", "two"))
    started = [one]
    one.start()
    try:
        assert one("claim", "--name", "before", "--resources", "VCPU=1").returncode == 0
        shutil.copytree(tmp_path / "one" / "state", tmp_path / "two" / "state")
        root = (tmp_path / "one" / "state" / "host_id").read_text().strip()
        assert one("claim", "--name", "after", "--resources", "VCPU=1").returncode == 0
        started.append(two)
        two.start()
        told = two("audit", "--heal")  # whose claim is that? It cannot know yet, or compares nothing by now
        assert "not healed" in told.stdout or "othing was compared" in told.stderr, told
        both = (one, two)
        eventually(
            "that both notice",
            lambda: all("Another Plimsoll agent writes" in json.dumps(each.status()) for each in both),
        )
        for agent in both:
            assert agent.status()["state"] == "degraded"
            refused = agent("claim", "--name", "more", "--resources", "VCPU=1")
            assert refused.returncode and "Another Plimsoll agent" in refused.stderr, refused
            assert f"plimsoll adopt {root}" in json.dumps(agent.status())
            for words in (("audit",), ("audit", "--heal"), ("look",)):
                told = agent(*words)
                assert told.returncode and "Another Plimsoll agent" in told.stderr, told
                assert "nothing differs" not in told.stdout
            assert "journaled" in agent("release", "before").stdout
        two.stop()
        one.stop()
        one.start()
        assert one.status()["state"] == "degraded"  # a restart is no decision of an operator
        one.stop()
        command(one, "adopt", root)
        one.start()
        eventually("that it is ready", lambda: one.status()["state"] == "ready")
        eventually("the release of before", lambda: "before" not in one("instances").stdout)
        assert one("audit").returncode == 0, one("audit").stdout
        assert one("claim", "--name", "last", "--resources", "VCPU=1").returncode == 0
    finally:
        for agent in started:
            agent.kill()
