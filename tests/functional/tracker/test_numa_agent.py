"""NUMA cells through the command line and the real process: shown, told, kept over SIGKILL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from kits.agent_process import Agent

from agent.errors import ExitCode

INSTANCE, MIGRATION = str(uuid4()), str(uuid4())
COMPUTE = "[compute]\ncpu_shared_set = 0-3,32-35,16-19,48-51\ncpu_dedicated_set = 4-15,36-47,20-31,52-63\n"
PINNED = ("--spec", "hw:cpu_policy=dedicated", "--spec", "hw:numa_nodes=2", "--spec", "hw:mem_page_size=1GB")


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    made = Agent(tmp_path, more=COMPUTE)
    made.start()
    yield made
    assert made.stop() == 0


def flavor(vcpus: int, memory_mb: int) -> tuple[str, str]:
    return "--flavor", f"vcpus={vcpus},memory_mb={memory_mb}"


def told(agent: Agent, *words: str) -> Any:
    done = agent(*words, "-o", "json")
    assert done.returncode == ExitCode.DONE, done.stderr
    return json.loads(done.stdout)


def shown_of(agent: Agent) -> Any:
    return next(each for each in told(agent, "instances")["instances"] if each["uuid"] == INSTANCE)


def test_cells_are_shown_and_kept_over_sigkill_in_claims_and_in_moves(agent: Agent) -> None:
    shown = agent("claim", INSTANCE, *flavor(4, 8192), *PINNED)
    assert shown.returncode == ExitCode.DONE, shown.stderr
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert ["0", "0", "0->4,1->36", "-", "-", "4096", "1048576"] in lines
    assert ["1", "1", "2->20,3->52", "-", "-", "4096", "1048576"] in lines
    assert "  guest cell 1 on host cell 1: CPU 2 on 20, 3 on 52; 4096 MiB in pages of 1048576 KiB" in (
        agent("explain", INSTANCE).stdout
    )
    before = shown_of(agent)
    assert [cell["pinned_cpus"] for cell in before["claim"]["cells"]] == [
        {"0": 4, "1": 36},
        {"2": 20, "3": 52},
    ]
    agent.kill()
    agent.start()
    assert shown_of(agent) == before
    larger = ("--migration", MIGRATION, "--kind", "resize", *flavor(6, 8192), *PINNED)
    move = told(agent, "move", "begin", INSTANCE, *larger)
    old, new = move["old"]["cells"], move["new"]["cells"]
    assert old == before["claim"]["cells"] == move["handed"]["cells"]
    taken = [{pin for cell in cells for pin in cell["pinned_cpus"].values()} for cells in (old, new)]
    assert (len(taken[0]), len(taken[1]), taken[0] & taken[1]) == (4, 6, set())
    table = agent("move", "show", MIGRATION).stdout
    assert "0->4,1->36" in table and table.count("GUEST CELL") == 2
    agent.kill()
    agent.start()
    assert told(agent, "move", "show", MIGRATION) == move
    assert agent("claim", "new", *flavor(2, 4096), *PINNED, "--dry-run").returncode == ExitCode.REFUSED
    told(agent, "move", "revert", MIGRATION)
    assert shown_of(agent)["claim"]["cells"] == old


def test_a_refusal_names_the_cells_in_a_dry_run_and_for_real(agent: Agent) -> None:
    asked = ("new", *flavor(2, 32768), *PINNED)
    reason = "guest cell 0: host cell 1 has 8 pages of 1048576 KiB free, 16384 MiB asked"
    dry = agent("claim", *asked, "--dry-run")
    assert (dry.returncode, reason in dry.stdout) == (ExitCode.REFUSED, True)
    refused = agent("claim", *asked)
    assert (refused.returncode, reason in refused.stderr) == (ExitCode.REFUSED, True)
    fits = agent("claim", "new", *flavor(2, 2048), *PINNED, "--dry-run")
    assert (fits.returncode, "0->4" in fits.stdout) == (ExitCode.DONE, True)
