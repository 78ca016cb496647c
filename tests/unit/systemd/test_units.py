"""The units of systemd: they are well formed, they are shut tight, and what the package needs is in them."""

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from kits.paths import CHECKOUT

from agent.carving.files import CPUS_NAME, PLAN_NAME
from agent.config.options import all_options, driver_classes
from agent.driver import ROOT_SIGHT

SYSTEMD = CHECKOUT / "systemd"
AGENTS = ("plimsoll-agent.service", "plimsoll-reshape.service")
DEVICES = "plimsoll-devices.service"
TOLD = {f"StateDirectory={ROOT_SIGHT.parent.name}", "StateDirectoryMode=0755"}
"""What root sees of devices is for the agent to read."""
MIXED_VGPUS = "plimsoll-mixed-vgpus.service"
MIXED_VGPUS_PATH = "plimsoll-mixed-vgpus.path"
CPUS, CPUS_PATH = "plimsoll-cpus.service", "plimsoll-cpus.path"
UNITS = (*AGENTS, DEVICES, MIXED_VGPUS, CPUS)
EXPOSURE_MAX = 1.5
SERVICE_STATE = "plimsoll"
SANDBOX = re.compile(
    r"^(?:Ambient|Capability|Device|Keyring|Limit|Lock|Memory|NoNew|Private|Protect|Remove|Restrict\w+=|"
    r"SystemCall|LoadCredential|User|Group|UMask|StateDirectory|ConfigurationDirectory)"
)

analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")


def lines(unit: str) -> list[str]:
    return (SYSTEMD / unit).read_text(encoding="utf-8").splitlines()


@analyze
@pytest.mark.parametrize("unit", UNITS)
def test_systemd_has_nothing_to_say_about_the_unit(unit: str, tmp_path: Path) -> None:
    there = tmp_path / unit
    there.write_text("\n".join(lines(unit)).replace("/usr/bin/plimsoll", "/bin/true"), encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(there)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@analyze
@pytest.mark.parametrize("unit", UNITS)
def test_the_unit_is_shut_tight(unit: str) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(SYSTEMD / unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found.group(1)) <= EXPOSURE_MAX


def test_both_units_are_shut_in_the_same_way() -> None:
    agent, reshape = ({line for line in lines(unit) if SANDBOX.match(line)} for unit in AGENTS)
    assert agent == reshape


@pytest.mark.parametrize("unit", [DEVICES, CPUS])
def test_what_a_boot_needs_is_done_before_guests_and_the_agent_start(unit: str) -> None:
    (before,) = [line for line in lines(unit) if line.startswith("Before=")]
    assert "WantedBy=multi-user.target" in lines(unit)
    assert {
        "libvirtd.service",
        "virtqemud.service",
        "libvirt-guests.service",
        "plimsoll-agent.service",
    } <= {*before.removeprefix("Before=").split()}


def test_what_carves_runs_as_root_with_one_capability_and_without_network_or_secrets() -> None:
    told = lines(DEVICES)
    assert "User=root" in told and "CapabilityBoundingSet=CAP_DAC_READ_SEARCH" in told
    assert "AmbientCapabilities=" in told and "RestrictAddressFamilies=none" in told
    assert not any(line.startswith("LoadCredential") for line in told)
    agent = {line for line in lines(AGENTS[0]) if SANDBOX.match(line)}
    looser = agent - {*told}
    assert {line.partition("=")[0] for line in looser} == {
        "CapabilityBoundingSet",
        "ConfigurationDirectory",
        "ConfigurationDirectoryMode",
        "Group",
        "LoadCredential",
        "ProtectKernelTunables",
        "RestrictAddressFamilies",
        "StateDirectory",
        "StateDirectoryMode",
        "User",
    }


def test_both_units_that_write_to_cards_are_shut_in_the_same_way() -> None:
    boot, claims = ({line for line in lines(unit) if SANDBOX.match(line)} for unit in (DEVICES, MIXED_VGPUS))
    assert boot == claims and claims >= TOLD
    assert "RuntimeDirectory=plimsoll-devices" in lines(MIXED_VGPUS), "one journal and one lock"


@pytest.mark.parametrize("unit", [DEVICES, MIXED_VGPUS])
def test_what_carves_cards_can_write_below_sys_and_to_debugfs_there(unit: str) -> None:
    """ProtectSystem=strict leaves /sys alone; debugfs is mounted before sysinit.target is reached."""
    told = lines(unit)
    assert "ProtectSystem=strict" in told and "DefaultDependencies=no" not in told
    shut = ("ProtectKernelTunables=", "ReadOnlyPaths=", "InaccessiblePaths=", "TemporaryFileSystem=")
    assert not any(line.startswith(shut) for line in told)


def test_a_claim_starts_what_makes_its_vgpu_however_many_come_in_a_row() -> None:
    state = f"/var/lib/{SERVICE_STATE}"
    assert f"StateDirectory={SERVICE_STATE}" in lines(AGENTS[0])
    assert f"PathChanged={state}/{PLAN_NAME}" in lines(MIXED_VGPUS_PATH)
    told = lines(MIXED_VGPUS)
    assert "StartLimitIntervalSec=0" in told and "RemainAfterExit=yes" not in told
    assert "After=plimsoll-devices.service" in told, "not while a boot's run is under way"
    path = lines(MIXED_VGPUS_PATH)
    assert not any(line.startswith("After=") for line in path), "paths.target comes before services"


def test_what_changes_cpus_is_shut_in_as_what_carves_cards_and_reaches_no_network() -> None:
    cards, cpus = ({line for line in lines(unit) if SANDBOX.match(line)} for unit in (DEVICES, CPUS))
    assert cpus - cards == {"PrivateNetwork=yes"} and cards - TOLD <= cpus


def test_a_claim_of_cpus_starts_what_brings_them_up_however_many_come_in_a_row() -> None:
    assert f"PathChanged=/var/lib/{SERVICE_STATE}/{CPUS_NAME}" in lines(CPUS_PATH)
    assert "StartLimitIntervalSec=0" in lines(CPUS) and "RemainAfterExit=yes" not in lines(CPUS)


@analyze
@pytest.mark.parametrize(
    ("service", "path"),
    [(MIXED_VGPUS, MIXED_VGPUS_PATH), (CPUS, CPUS_PATH), (MIXED_VGPUS, "plimsoll-cc-modes.timer")],
    ids=("vgpus", "cpus", "modes"),
)
def test_systemd_has_nothing_to_say_about_what_starts_the_unit(
    service: str, path: str, tmp_path: Path
) -> None:
    for unit in (service, path):
        text = "\n".join(lines(unit)).replace("/usr/bin/plimsoll", "/bin/true")
        (tmp_path / unit).write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_every_secret_of_the_settings_can_come_as_a_credential() -> None:
    secrets = {
        f"{group}.{option.dest}"
        for group, options in all_options(driver_classes()[0]).items()
        for option in options
        if option.secret
    }
    loaded = {line.partition("=")[2] for line in lines(AGENTS[0]) if line.startswith("LoadCredential=")}
    assert loaded == secrets


def test_the_user_is_made_and_belongs_to_nobody_else() -> None:
    user = (SYSTEMD / "sysusers.d" / "plimsoll.conf").read_text(encoding="utf-8")
    entries = [line.split()[:2] for line in user.splitlines() if line and not line.startswith("#")]
    assert entries == [["u", "plimsoll"]], "no `m`: it is in no other group"
    for unit in AGENTS:
        parsed = configparser.ConfigParser(strict=False, interpolation=None)
        parsed.read_string("\n".join(lines(unit)))
        assert (parsed["Service"]["User"], parsed["Service"]["Group"]) == ("plimsoll", "plimsoll")
        assert "SupplementaryGroups" not in parsed["Service"]


def test_the_newer_systemd_gets_what_the_older_one_does_not_know() -> None:
    newer = (SYSTEMD / "plimsoll-agent.service.d" / "50-systemd-254.conf").read_text(encoding="utf-8")
    assert "Type=notify-reload" in newer and "ImportCredential=placement.*" in newer
