"""`plimsoll reshape` against the real agent, and in its stead while it is not running."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kits.agent_process import Agent
from kits.cli_process import one_line, plimsoll

from agent.errors import ExitCode

GPU = "node1_pci_0000:41:00.0"


class Host:
    """A host file, and the agent that reads it."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "host.yaml"
        self.flat(True)
        self.agent = Agent(directory, self._file)

    def flat(self, flat: bool, **more: object) -> None:
        text = yaml.safe_dump(
            {
                **more,
                "cells": [{"id": 0, "cpus": "0-7", "memory_mb": 8192}],
                "gpus": [{"address": "0000:41:00.0", "total": 4}, {"address": "0000:42:00.0", "total": 4}],
                "flat_devices": flat,
            }
        )
        new = self._file.with_suffix(".new")
        new.write_text(text)
        new.replace(self._file)

    def offline(self, *words: str) -> subprocess.CompletedProcess[str]:
        return plimsoll(
            self.agent.socket, "reshape", "--offline", "--config-file", str(self.agent.file), *words
        )

    def vgpus(self) -> dict[str, int]:
        """{provider: total of VGPU}"""
        tree = json.loads(self.agent("tree", "-o", "json").stdout)["resource_providers"]
        return {
            each["name"]: each["inventories"]["VGPU"]["total"]
            for each in tree
            if "VGPU" in each["inventories"]
        }

    def held(self, consumer: str) -> dict[str, int]:
        tree = {
            e["uuid"]: e["name"]
            for e in json.loads(self.agent("tree", "-o", "json").stdout)["resource_providers"]
        }
        shown = json.loads(self.agent("instances", "-o", "json").stdout)["instances"]
        (claim,) = (each["claim"] for each in shown if each["uuid"] == consumer)
        return {tree[uuid]: held["resources"]["VGPU"] for uuid, held in claim["allocations"].items()}


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    try:
        yield host
    finally:
        host.agent.stop()


def test_dry_run_reshape_and_undo_offline_and_online(host: Host) -> None:
    """Scenario 92, and the one-shot: first seen, then done offline, then undone and done again online."""
    host.agent.start()
    claimed = host.agent("claim", "--name", "train1", "--resources", "VGPU=3", "-o", "json")
    consumer = json.loads(claimed.stdout)["consumer"]
    refused = host.offline()
    assert refused.returncode == ExitCode.FAILED and "is in use by process" in one_line(refused)
    assert host.agent("reshape").stdout == "nothing to move\n"
    assert host.agent("reshape", "--dry-run").stdout == "nothing to move\n"
    host.agent.stop()

    host.flat(False)
    shown = host.offline("--dry-run")
    assert shown.returncode == ExitCode.DRIFT_FOUND, shown.stderr
    lines = shown.stdout.splitlines()
    assert lines[0] == "before:" and "after:" in lines and "moves:" in lines
    assert any(line.startswith("├─ ") and GPU in line for line in lines)
    assert f"VGPU        3  {consumer} (train1)  node1  {GPU}" in lines
    assert host.offline("--dry-run").returncode == ExitCode.DRIFT_FOUND, "nothing was written"

    done = host.offline("-o", "json")
    assert done.returncode == ExitCode.DONE, done.stderr
    (receipt,) = json.loads(done.stdout)["receipts"]
    assert host.offline("--dry-run").returncode == ExitCode.DONE
    host.agent.start()
    assert host.vgpus() == {GPU: 4, "node1_pci_0000:42:00.0": 4}
    assert host.held(consumer) == {GPU: 3}

    undo = host.agent("reshape", "--undo", receipt["id"], "--dry-run")
    assert undo.returncode == ExitCode.DRIFT_FOUND and f"{consumer} (train1)  {GPU}  node1" in undo.stdout
    undone = host.agent("reshape", "--undo", receipt["id"])
    assert (undone.returncode, undone.stdout.splitlines()[0]) == (ExitCode.DONE, "done")
    assert host.vgpus() == {"node1": 8} and host.held(consumer) == {"node1": 3}
    assert receipt["id"] in host.agent("status").stdout
    (told,) = (
        line for line in host.agent("history").stdout.splitlines() if f"an undo of {receipt['id']}" in line
    )
    assert told.split()[2] == "reshape"
    again = host.agent("reshape", "--undo", receipt["id"])
    assert again.returncode == ExitCode.USAGE and "already undone" in one_line(again)
    assert host.agent("reshape", "--undo", "nonsense").returncode == ExitCode.USAGE

    assert host.agent("reshape").returncode == ExitCode.DONE
    assert host.held(consumer) == {GPU: 3}
    table = host.agent("reshape", "--dry-run").stdout
    assert table.startswith("nothing to move\n") and f"undid {receipt['id']}" in table
    assert "VGPU: node1 -> 2 providers" in table and "VGPU: 2 providers -> node1" in table
    assert host.agent("release", consumer).returncode == ExitCode.DONE


def test_offline_without_an_agent_that_ran_makes_no_host(tmp_path: Path) -> None:
    done = Host(tmp_path).offline()
    assert (done.returncode, done.stdout) == (ExitCode.DONE, "nothing to move\n")
    assert not (tmp_path / "state").exists()


def test_to_cells_and_back_offline(host: Host) -> None:
    """Done and undone while no agent runs; the next one finds its claim where it was."""
    host.flat(False)
    host.agent.start()
    claimed = host.agent("claim", "--resources", "VCPU=2,MEMORY_MB=512,VGPU=1", "-o", "json")
    consumer = json.loads(claimed.stdout)["consumer"]
    before = json.loads(host.agent("instances", "-o", "json").stdout)
    host.agent.stop()
    host.flat(False, report_numa=True)
    shown = host.offline("--dry-run")
    assert shown.returncode == ExitCode.DRIFT_FOUND, shown.stderr
    rows = [line.split() for line in shown.stdout.partition("moves:")[2].splitlines()[2:4]]
    assert rows == [
        [n, a, consumer, "node1", "node1_numa0"] for n, a in (("MEMORY_MB", "512"), ("VCPU", "2"))
    ]
    done = host.offline("-o", "json")
    (receipt,) = json.loads(done.stdout)["receipts"]
    undone = host.offline("--undo", receipt["id"])
    assert undone.returncode == ExitCode.DONE, undone.stderr
    host.flat(False)
    host.agent.start()
    assert json.loads(host.agent("instances", "-o", "json").stdout) == before
    assert host.agent("release", consumer).returncode == ExitCode.DONE


def test_a_running_agent_reshapes_by_itself_or_says_why_not(host: Host) -> None:
    """Scenario 10 in part: it needs no restart."""
    host.agent.start()
    claims = [host.agent("claim", "--resources", "VGPU=5", "-o", "json")]
    consumer = json.loads(claims[0].stdout)["consumer"]
    host.flat(False)
    refused = host.agent("reshape")
    assert refused.returncode == ExitCode.REFUSED and "no single target has room" in one_line(refused)
    preview = host.agent("reshape", "--dry-run")
    assert preview.returncode == ExitCode.REFUSED
    assert preview.stdout.partition("moves:\n")[2].startswith("none, as the reshape is refused\n")
    status = json.loads(host.agent("status", "-o", "json").stdout)
    assert status["state"] == "degraded" and "no single target has room" in status["reasons"][0]
    assert status["claims"]["open"] is True
    assert host.agent("claim", "--resources", "VCPU=1").returncode == ExitCode.DONE
    assert host.agent("claim", "--resources", "VGPU=1").returncode == ExitCode.REFUSED
    assert host.agent("reshape", "--dry-run").returncode == ExitCode.REFUSED
    assert host.agent("release", consumer).returncode == ExitCode.DONE
    assert host.agent("reshape").returncode == ExitCode.DONE
    assert host.vgpus() == {GPU: 4, "node1_pci_0000:42:00.0": 4}
    assert json.loads(host.agent("status", "-o", "json").stdout)["state"] == "ready"


def test_a_reshape_that_waits_for_a_move_says_to_end_it(host: Host) -> None:
    """Cards of four units: the old and the new place of web1, three units each, and two of db1 do not fit."""
    migration = "0d1c7a52-8f0e-4f2b-9d4b-3a5f0a7c6e21"
    host.agent.start()
    for name, amount in (("web1", 3), ("db1", 2)):
        host.agent("claim", "--name", name, "--resources", f"VGPU={amount},VCPU=1")
    resize = ("move", "begin", "web1", "--kind", "resize", "--migration", migration)
    assert host.agent(*resize, "--resources", "VGPU=3,VCPU=2").returncode == ExitCode.DONE
    host.flat(False)
    web1, db1 = (
        each["uuid"]
        for name in ("web1", "db1")
        for each in json.loads(host.agent("instances", "-o", "json").stdout)["instances"]
        if each["name"] == name and not each["migration_of"]
    )
    refused = one_line(host.agent("reshape"))
    assert f"db1 ({db1}) holds 2 VGPU of node1" in refused
    assert refused.endswith(
        f"It may wait for the move of web1 ({web1}), which holds two places: end it with `plimsoll move "
        f"confirm {migration}` or `plimsoll move revert {migration}`."
    )
    assert host.agent("move", "confirm", migration).returncode == ExitCode.DONE
    assert host.agent("reshape").returncode == ExitCode.DONE
    assert host.vgpus() == {GPU: 4, "node1_pci_0000:42:00.0": 4}
