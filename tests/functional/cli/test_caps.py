"""A cap of a resource class on the command line: what is offered, what is refused, and what stays."""

import logging
import re
from pathlib import Path

import pytest
from kits.agent import opened, told
from kits.api_client import serving
from kits.cli_process import one_line, output_of, plimsoll
from kits.placements import Embedded, Placement

from agent.config.settings import load
from agent.errors import ExitCode


def test_guests_get_no_more_than_the_cap_together(placement: Placement, tmp_path: Path) -> None:
    told(tmp_path, placement)
    file = tmp_path / "plimsoll.conf"
    settings = file.read_text()
    file.write_text(settings + "cap = VCPU=4\ncap = MEMORY_MB=1024\n")
    world = opened(load([file]))
    try:
        world.agent.reconcile("the start")
        with serving(world.operations, tmp_path / "s"):
            output_of(tmp_path / "s", "claim", "--name", "web1", "--resources", "VCPU=2,MEMORY_MB=512")
            refused = plimsoll(tmp_path / "s", "claim", "--resources", "VCPU=3,MEMORY_MB=512")
            assert refused.returncode == ExitCode.REFUSED and "3 VCPU asked" in one_line(refused)
            output_of(tmp_path / "s", "claim", "--resources", "VCPU=1,MEMORY_MB=512")
            assert "3/4 " in output_of(tmp_path / "s", "tree"), "one host CPU, overcommitted by 4"
            # A lower cap takes nothing away; without a cap the host offers all of it again.
            for cap, code in (("cap = VCPU=1\n", ExitCode.REFUSED), ("", ExitCode.DONE)):
                file.write_text(settings + cap)
                world.agent.apply_settings(load([file]), None)
                world.agent.reconcile("the reload")
                done = plimsoll(tmp_path / "s", "claim", "--dry-run", "--resources", "VCPU=1,MEMORY_MB=64")
                assert done.returncode == code, done.stdout
                assert "web1" in output_of(tmp_path / "s", "instances")
    finally:
        world.close()


def test_a_cap_that_matches_nothing_is_told_by_the_doctor_and_once_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = told(tmp_path, Embedded(tmp_path), "[DEFAULT]\ncap = CUSTOM_GPUS=4\ncap = VCPU=8\n")
    said = "[DEFAULT] cap = CUSTOM_GPUS=4 has no effect: no provider of this host has CUSTOM_GPUS."
    examined = plimsoll(tmp_path / "s", "doctor", "--config-file", str(tmp_path / "plimsoll.conf"))
    assert examined.returncode == ExitCode.DONE
    assert re.search(rf"(?m)^warning  options +{re.escape(said)}$", examined.stdout)
    assert "cap = VCPU" not in examined.stdout
    world = opened(settings)
    try:
        with caplog.at_level(logging.INFO):
            for _ in range(2):
                world.agent.reconcile("an event")
        assert [said in record.message for record in caplog.records].count(True) == 1
        with serving(world.operations, tmp_path / "s"):
            assert said not in output_of(tmp_path / "s", "look"), "it is no reason"
    finally:
        world.close()


def test_a_cap_of_nothing_below_what_is_in_use_is_told(placement: Placement, tmp_path: Path) -> None:
    """By the refusal, the status and the audit, each with the option."""
    told(tmp_path, placement)
    file = tmp_path / "plimsoll.conf"
    settings = file.read_text()
    world = opened(load([file]))
    cap = "[DEFAULT] cap = DISK_GB=0"
    try:
        world.agent.reconcile("the start")
        with serving(world.operations, tmp_path / "s"):
            output_of(tmp_path / "s", "claim", "--name", "web1", "--resources", "DISK_GB=1")
            file.write_text(settings + "cap = DISK_GB=0\n")
            world.agent.apply_settings(load([file]), None)
            world.agent.reconcile("the reload")
            refused = plimsoll(tmp_path / "s", "claim", "--resources", "DISK_GB=1")
            assert f"none of it is offered, with {cap}" in one_line(refused)
            (reason,) = world.operations.status().reasons
            assert "over capacity" in reason and cap in reason
            audited = plimsoll(tmp_path / "s", "audit")
            assert audited.returncode == ExitCode.DRIFT_FOUND
            assert "shrunk inventory" in audited.stdout and cap in audited.stdout
    finally:
        world.close()
