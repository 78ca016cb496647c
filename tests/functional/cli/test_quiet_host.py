"""A finished host is quiet; disk space and options that the host does not have are told; a lost state is."""

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from kits.agent import opened, told
from kits.api_client import serving
from kits.cli_process import one_line, plimsoll
from kits.placements import Embedded
from kits.served_agent import ServedAgent
from kits.tracker import uuid_of

from agent.driver import Guest, GuestState
from agent.errors import ExitCode

UUID = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"
OTHER = "0c1f7a52-8f0e-4f2b-9d4b-3a5f0a7c6e21"


def test_a_trait_that_os_traits_does_not_know_is_logged_once_and_no_reason(
    agent: ServedAgent, caplog: pytest.LogCaptureFixture
) -> None:
    driver = agent.world.driver
    with caplog.at_level(logging.WARNING):
        driver.change(traits=driver.host.traits | {"HW_CPU_FROM_THE_FUTURE"})
        for _ in range(2):
            agent.world.agent.reconcile("an event")
    assert len([record for record in caplog.records if "HW_CPU_FROM_THE_FUTURE" in record.message]) == 1
    looked = agent("look")
    assert looked.returncode == ExitCode.DONE and "FUTURE" not in looked.stdout


def test_one_domain_that_libvirt_cannot_answer_for_leaves_the_host_open(agent: ServedAgent) -> None:
    hung = Guest(OTHER, "hung", GuestState.RUNNING, {"VCPU": 1}, problem="libvirt cannot read it: timed out")
    agent.world.driver.add_guest(hung)
    agent.world.driver.add_guest(Guest(UUID, "web1", GuestState.RUNNING, {"VCPU": 2}))
    agent.world.agent.reconcile("an event")
    status = agent("status").stdout
    assert "\nstate      ready\n" in status and "\nclaims     0, open\n" in status
    assert "driver     fake, ok" in status
    assert agent("claim", UUID, "--resources", "VCPU=2").returncode == ExitCode.DONE
    rows = {line.split()[1]: line for line in agent("instances").stdout.splitlines()}
    assert "running  claimed" in rows["web1"] and "running" in rows["hung"]


def test_a_guest_that_libvirt_does_not_answer_for_is_told_with_its_claim(agent: ServedAgent) -> None:
    """It is not called unclaimed, nor is a claim proposed that cannot be made."""
    driver = agent.world.driver
    assert agent("claim", UUID, "--name", "web1", "--resources", "VCPU=2").returncode == ExitCode.DONE
    for uuid, name in ((UUID, "web1"), (OTHER, "hung")):
        unread = f"libvirt does not answer for domain {name} ({uuid}): timed out"
        driver.add_guest(Guest(uuid, name, GuestState.RUNNING, {"VCPU": 2}, problem=unread))
    driver.add_guest(Guest(uuid_of("off"), "off", GuestState.SHUTOFF, {}, problem="odd XML"))
    looked = agent("look")
    assert looked.returncode == ExitCode.DRIFT_FOUND
    reasons = json.loads(agent("status", "-o", "json").stdout)["reasons"]
    assert [reason.partition("; ")[0] for reason in sorted(reasons)] == [
        f"libvirt does not answer for domain hung ({OTHER}): timed out. hung ({OTHER}) has no claim",
        f"libvirt does not answer for domain web1 ({UUID}): timed out. web1 ({UUID}) has a claim",
    ]
    assert not any("beyond what is claimed" in reason for reason in reasons)


def test_disk_gb_beyond_the_free_space_is_a_warning_in_tree(agent: ServedAgent) -> None:
    assert "warning" not in agent("tree").stdout
    agent.world.driver.change(disk_gb=500, disk_free_gb=120)
    agent.world.agent.reconcile("an event")
    shown = agent("tree").stdout
    assert "warning: 500 DISK_GB can still be claimed" in shown
    assert "reserved_host_disk_mb = 389120" in shown  # 380 GiB
    agent.world.driver.change(disk_free_gb=500)
    assert "warning" not in agent("tree").stdout


def test_disk_gb_beyond_the_free_space_is_a_warning_in_init_and_doctor(tmp_path: Path) -> None:
    host = tmp_path / "host.yaml"
    host.write_text("cells: [{id: 0, cpus: 0-3, memory_mb: 4096}]\ndisk_gb: 500\ndisk_free_gb: 120\n")
    file = tmp_path / "plimsoll.conf"
    file.write_text(
        f"[DEFAULT]\ncompute_driver = fake\nstate_path = {tmp_path / 'state'}\n[fake]\nhost_file = {host}\n"
    )
    done = plimsoll(tmp_path / "s", "doctor", "--config-file", str(file))
    assert done.returncode == ExitCode.DONE
    assert "warning  space" in done.stdout and "reserved_host_disk_mb = 389120" in done.stdout


def test_garbage_in_host_id_is_answered_with_the_uuid_that_the_journal_knows(tmp_path: Path) -> None:
    settings = told(tmp_path, Embedded(tmp_path))
    opened(settings).close()
    known = (tmp_path / "host_id").read_text().strip()
    (tmp_path / "host_id").write_text("\x00garbage\n")
    file = str(tmp_path / "plimsoll.conf")
    started = plimsoll(tmp_path / "s", "agent", "--config-file", file)
    assert started.returncode == ExitCode.FAILED
    assert f"plimsoll adopt {known}" in started.stderr
    examined = plimsoll(tmp_path / "s", "doctor", "--config-file", file)
    assert examined.returncode == ExitCode.FAILED and f"plimsoll adopt {known}" in examined.stdout
    assert plimsoll(tmp_path / "s", "adopt", known, "--config-file", file).returncode == ExitCode.DONE
    assert (tmp_path / "host_id").read_text() == f"{known}\n"


def test_an_empty_state_directory_beside_running_guests_is_told_and_nothing_is_offered(
    tmp_path: Path,
) -> None:
    """Placement knows the host. After `adopt`, what runs is not offered."""
    before, after = tmp_path / "before", tmp_path / "after"
    for directory in (before, after):
        directory.mkdir()
    world = opened(told(before, Embedded(before)))
    guest = Guest(UUID, "web1", GuestState.RUNNING, {"VCPU": 2, "MEMORY_MB": 200_000})
    world.agent.reconcile("the start")
    world.driver.add_guest(guest)
    with serving(world.operations, before / "s"):
        resources = "VCPU=2,MEMORY_MB=200000"
        assert plimsoll(before / "s", "claim", UUID, "--resources", resources).returncode == ExitCode.DONE
    known = (before / "host_id").read_text().strip()
    world.close()
    for file in before.glob("placement.db*"):
        shutil.copy(file, after / file.name)

    with opened(told(after, Embedded(after))) as lost:
        lost.driver.add_guest(guest)
        lost.agent.reconcile("the start")
        with serving(lost.operations, after / "s"):
            status = plimsoll(after / "s", "status").stdout
            assert "degraded" in status and f"plimsoll adopt {known}" in status
            assert "1 guest runs here, and the agent's state directory is new" in status
            claim = plimsoll(after / "s", "claim", "--resources", "VCPU=1")
            assert claim.returncode == ExitCode.REFUSED and "state directory is new" in one_line(claim)

    done = plimsoll(after / "s", "adopt", known, "--config-file", str(after / "plimsoll.conf"))
    assert done.returncode == ExitCode.DONE, done.stderr
    with opened(told(after, Embedded(after))) as again:
        again.driver.add_guest(replace(guest))
        again.agent.reconcile("the start")
        with serving(again.operations, after / "s"):
            refused = plimsoll(after / "s", "claim", "--resources", "MEMORY_MB=100000")
            assert refused.returncode == ExitCode.REFUSED and "does not fit" in one_line(refused)
