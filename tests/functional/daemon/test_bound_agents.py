"""Agents as processes on `plimsoll placement serve` over TLS, each with a token that is bound to its host."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kits.agent_process import Agent
from kits.daemon_process import eventually
from kits.served_core_client import DoorClient, door_client
from kits.served_process import ServedCore, served_process

TOKENS = {"node1": "token-of-the-first-host", "node2": "token-of-the-second-host"}
ADMIN = "token-of-the-operator"
INSTANCE, GUEST = (str(uuid.uuid5(uuid.NAMESPACE_DNS, name)) for name in ("instance", "guest"))


def host_file(path: Path, more: str = "guests: []\n") -> Path:
    number = 1 if "node1" in str(path) else 2
    path.write_text(
        'disk_gb: 100\ncells: [{id: 0, cpus: "0-7", memory_mb: 16384, pages: {4: 4194304}}]\n'
        f"nics: [{{ifname: eth0, address: 0000:4{number}:00.0, numa: 0, vfs: [0000:4{number}:02.0]}}]\n{more}"
    )
    return path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServedCore]:
    lines = [f"{name} service {token} host={name}\n" for name, token in TOKENS.items()]
    with served_process(tmp_path / "served", "".join([*lines, f"ops service {ADMIN}\n"])) as server:
        yield server


@pytest.fixture
def ops(server: ServedCore) -> Iterator[DoorClient]:
    headers = {"X-Auth-Token": ADMIN}
    with door_client(f"127.0.0.1:{server.port}", headers, ca=server.certificate) as client:
        yield client


@pytest.fixture
def agents(server: ServedCore, tmp_path: Path) -> Iterator[tuple[Agent, Agent]]:
    made = []
    for name, token in TOKENS.items():
        directory = tmp_path / name
        directory.mkdir()
        section = (
            f"[placement]\nkind = remote\nauth_type = admin_token\ntoken = {token}\ntimeout = 10\n"
            f"endpoint_override = {server.url}\ncafile = {server.certificate}\n"
        )
        agent = Agent(directory, host_file(directory / "host.yaml"), section)
        agent.file.write_text(agent.file.read_text().replace("host = node1", f"host = {name}"))
        agent.start()
        made.append(agent)
    yield made[0], made[1]
    for agent in made:
        assert agent.stop() == 0
        assert "is bound to" not in agent.log()


def done(agent: Agent, *words: str, code: int = 0) -> Any:
    said = agent(*words, "-o", "json")
    assert said.returncode == code, (words, said.stdout, said.stderr)
    return json.loads(said.stdout) if said.stdout else None


def held(ops: DoorClient, consumer: str) -> set[str]:
    """The names of the root providers on which the consumer has something."""
    names = set()
    for provider in ops("GET", f"/allocations/{consumer}").body["allocations"]:
        root = ops("GET", f"/resource_providers/{provider}").body["root_provider_uuid"]
        names.add(ops("GET", f"/resource_providers/{root}").body["name"])
    return names


def test_two_hosts_do_all_their_work_each_with_its_own_token(
    agents: tuple[Agent, Agent], ops: DoorClient, tmp_path: Path
) -> None:
    one, two = agents
    for agent in agents:
        assert agent.status()["state"] == "ready", agent.status()
    # a claim, and a resize on the host
    done(one, "claim", INSTANCE, "--name", "web", "--resources", "VCPU=2,MEMORY_MB=512,SRIOV_NET_VF=1")
    flavor = ("--flavor", "vcpus=3,memory_mb=1024,disk_gb=10")
    resized = done(one, "move", "begin", INSTANCE, "--kind", "resize", *flavor)
    done(one, "move", "confirm", resized["migration"])
    # moves to the other host: one is reverted at its source, one at its destination, one is confirmed there
    for who, verb, where in ((one, "revert", "node1"), (two, "revert", "node1"), (two, "confirm", "node2")):
        begun = done(two, "move", "begin", INSTANCE, "--kind", "cold-migrate", *flavor)["migration"]
        assert (held(ops, INSTANCE), held(ops, begun)) == ({"node2"}, {"node1"})
        for agent in agents:
            done(agent, "look")
        done(who, "move", verb, begun)
        assert (held(ops, INSTANCE), held(ops, begun)) == ({where}, set())
        for agent in agents:
            done(agent, "look")
    # a reshape with a claim on it, and a guest without a claim that the audit heals
    guest = (
        "report_numa: true\nguests:\n"
        f"- {{uuid: {INSTANCE}, name: web, resources: {{VCPU: 3, MEMORY_MB: 1024}}}}\n"
        f"- {{uuid: {GUEST}, name: other, resources: {{VCPU: 1, MEMORY_MB: 256}}}}\n"
    )
    host_file(tmp_path / "node2" / "host.yaml", guest)
    done(two, "look", code=3)
    eventually("the reshape", lambda: "node2_numa0" in json.dumps(done(two, "tree")))
    assert held(ops, INSTANCE) == {"node2"}
    done(two, "audit", "--heal", code=4)
    assert held(ops, GUEST) == {"node2"}
    done(two, "release", GUEST, "--force")
    done(two, "release", INSTANCE, "--force")
    assert held(ops, INSTANCE) == held(ops, GUEST) == set()
    for agent in agents:
        assert agent.status()["state"] == "ready", agent.status()


def test_an_agent_with_the_token_of_another_host_says_so(
    server: ServedCore, ops: DoorClient, tmp_path: Path
) -> None:
    directory = tmp_path / "node1"
    directory.mkdir()
    section = (
        f"[placement]\nkind = remote\nauth_type = admin_token\ntoken = {TOKENS['node2']}\n"
        f"endpoint_override = {server.url}\ncafile = {server.certificate}\n"
    )
    agent = Agent(directory, host_file(directory / "host.yaml"), section)
    agent.start()
    try:
        said = agent("status").stdout
        assert "The token node2 is bound to the host node2 and may not write" in said, said
        assert ops("GET", "/resource_providers").body["resource_providers"] == []
    finally:
        agent.stop()
