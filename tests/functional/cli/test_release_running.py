"""`plimsoll release` of a guest that runs, and the repairs that `plimsoll audit` offers, on a real agent."""

import json

import pytest
from kits.served_agent import ServedAgent

from agent.driver import Guest, GuestState
from agent.errors import ExitCode

UUID = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"
WANTED = "VCPU=2,MEMORY_MB=1024,DISK_GB=20"
USED = {"VCPU": 2, "MEMORY_MB": 1024}


def claimed(agent: ServedAgent, state: GuestState) -> None:
    assert agent("claim", UUID, "--resources", WANTED, "--name", "web1").returncode == ExitCode.DONE
    agent.world.driver.add_guest(Guest(UUID, "web1", state, USED))
    agent.world.agent.reconcile("an event")


def test_the_claim_of_a_running_guest_is_not_released_without_force(agent: ServedAgent) -> None:
    claimed(agent, GuestState.RUNNING)
    refused = agent("release", "web1")
    assert (refused.returncode, refused.stdout) == (ExitCode.REFUSED, "")
    (line,) = refused.stderr.splitlines()
    assert "web1" in line and "running" in line and "--force" in line
    assert "20 DISK_GB would be offered to others" in line
    assert "without it, 20 DISK_GB" in line and "2 VCPU would stay reserved only while the guest runs" in line
    assert UUID in agent("instances").stdout and "claimed" in agent("instances").stdout


def test_with_force_it_is_released_and_what_the_guest_uses_stays_reserved(agent: ServedAgent) -> None:
    claimed(agent, GuestState.RUNNING)
    done = agent("release", "web1", "--force")
    assert (done.returncode, done.stdout) == (ExitCode.DONE, f"released {UUID}\n")
    assert "UNCLAIMED" in agent("instances").stdout
    agent.world.agent.reconcile("the release")
    (root, *_) = json.loads(agent("tree", "-o", "json").stdout)["resource_providers"]
    assert root["inventories"]["MEMORY_MB"]["reserved"] == 512 + 1024
    assert root["usages"]["VCPU"] == 0 and root["usages"]["DISK_GB"] == 0


def test_a_guest_that_has_stopped_since_the_last_pass_is_released(agent: ServedAgent) -> None:
    claimed(agent, GuestState.RUNNING)
    agent.world.driver.remove_guest(UUID)
    assert agent("release", "web1").returncode == ExitCode.DONE


def test_a_guest_that_is_shut_off_needs_no_force(agent: ServedAgent) -> None:
    claimed(agent, GuestState.SHUTOFF)
    assert agent("release", "web1").returncode == ExitCode.DONE


@pytest.mark.parametrize("memory_mb", [512, 4096])
def test_the_repair_that_the_audit_offers_works_also_for_a_large_guest(
    agent: ServedAgent, memory_mb: int
) -> None:
    """What the guest uses is reserved: that is not counted against the guest itself."""
    (root, *_) = json.loads(agent("tree", "-o", "json").stdout)["resource_providers"]
    capacity = root["inventories"]["MEMORY_MB"]["capacity"]
    used = {"VCPU": 1, "MEMORY_MB": capacity if memory_mb == 4096 else memory_mb}
    agent.world.driver.add_guest(Guest(UUID, "web1", GuestState.RUNNING, used))
    found = agent("look")
    assert found.returncode == ExitCode.DRIFT_FOUND
    assert f"repair: claim what the guest {UUID} uses" in found.stdout
    healed = agent("audit", "--heal")
    assert (healed.returncode, healed.stderr) == (ExitCode.DRIFT_HEALED, "")
    assert agent("look").returncode == ExitCode.DONE
    assert "claimed" in agent("instances").stdout
