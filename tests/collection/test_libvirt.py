"""A domain that the module `claim` starts, on a real libvirtd."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import libvirt
import pytest
import yaml
from kits.daemon_process import Daemon
from kits.doc_commands import fenced
from kits.libvirt_daemon import MissingPrograms, PrivateLibvirtd, small_domain
from kits.playing import play

pytestmark = [pytest.mark.ansible, pytest.mark.libvirtd]

UUID = "b0000000-0000-4000-8000-000000000001"


@pytest.fixture
def libvirtd() -> Iterator[PrivateLibvirtd]:
    try:
        daemon = PrivateLibvirtd()
    except MissingPrograms as error:
        pytest.fail(f"this test needs a libvirtd: {error}")
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.stop()


@pytest.fixture
def agent(tmp_path: Path, libvirtd: PrivateLibvirtd) -> Iterator[Daemon]:
    daemon = Daemon(
        tmp_path,
        {
            "DEFAULT": {"compute_driver": "libvirt", "reserved_host_memory_mb": 0},
            "libvirt": {"connection_uri": libvirtd.uri, "images_path": libvirtd.images},
            "placement": {"kind": "embedded"},
        },
    )
    daemon.start()
    yield daemon
    daemon.close()


def test_a_domain_is_claimed_and_started_once(agent: Daemon, libvirtd: PrivateLibvirtd) -> None:
    (task,) = yaml.safe_load(fenced("ansible.md", "yaml", 1))
    asked = task["plimsoll.host.claim"]
    start = {"claim": {**asked, "domain": small_domain("web1", UUID), "connect": libvirtd.uri}}
    absent = {"claim": {"consumer": UUID, "state": "absent"}}
    with closing(libvirt.open(libvirtd.uri)) as connection:
        (would,) = play(agent, start, check=True)
        assert would["changed"] and would["started"] and not connection.listAllDomains()
        made, again, refused = play(agent, start, start, absent)
        (domain,) = connection.listAllDomains()
        assert domain.isActive() and domain.UUIDString() == UUID and UUID in agent.claims()
        assert made["changed"] and made["started"] and f"<uuid>{UUID}</uuid>" in made["xml"]
        assert not again["changed"] and not again["started"] and again["claim"] == made["claim"]
        assert made["claim"]["made_by"]["program"] == "ansible"
        assert refused["failed"] and refused["error"] == "Refused"
        domain.destroy()
        (would,) = play(agent, start, check=True)
        (restarted,) = play(agent, start)
        assert would["changed"] and restarted["changed"] and domain.isActive()
        domain.destroy()
        domain.undefine()
        (released,) = play(agent, absent)
        assert released["changed"] and agent.claims() == {}


def test_a_domain_that_libvirt_refuses_leaves_no_claim(agent: Daemon, libvirtd: PrivateLibvirtd) -> None:
    bad = small_domain("web1", UUID, devices="<emulator>/nowhere/qemu</emulator>")
    start = {"start": True, "connect": libvirtd.uri}
    failed, big = play(
        agent,
        {"claim": {"domain": bad, **start}},
        {"claim": {"domain": small_domain("web1", UUID, memory_mb=1 << 30), **start}},
    )
    assert failed["failed"] and "libvirt did not define the domain" in failed["msg"]
    assert "was released again" in failed["msg"] and agent.claims() == {}
    assert big["failed"] and big["error"] == "Refused" and "MEMORY_MB" in big["msg"]


def test_a_libvirt_that_is_away_is_said(agent: Daemon) -> None:
    away = "qemu+unix:///session?socket=/nowhere"
    (failed,) = play(agent, {"claim": {"domain": small_domain("web1", UUID), "start": True, "connect": away}})
    assert failed["failed"] and "cannot be reached" in failed["msg"] and agent.claims() == {}
    (said_before,) = play(
        agent, {"claim": {"domain": small_domain("web1", UUID), "start": True, "connect": away}}, check=True
    )
    assert said_before["failed"] and said_before["msg"] == failed["msg"]


def test_a_start_without_the_command_leaves_no_claim(
    tmp_path: Path, agent: Daemon, libvirtd: PrivateLibvirtd
) -> None:
    """A Python that has the package is another environment here, without the command."""
    own = Path(sys.executable).parent
    (tmp_path / "bare/bin").mkdir(parents=True)
    (tmp_path / "bare/bin/python3").symlink_to((own / "python3").resolve())
    (tmp_path / "bare/lib").symlink_to(own.parent / "lib")
    shutil.copy(own.parent / "pyvenv.cfg", tmp_path / "bare")
    start = {"claim": {"domain": small_domain("web1", UUID), "start": True, "connect": libvirtd.uri}}
    bare: dict[str, Any] = {
        "python": str(tmp_path / "bare/bin/python3"),
        "environment": {"PATH": "/usr/bin:/bin"},
    }
    (none,), (would,) = play(agent, start, **bare), play(agent, start, check=True, **bare)
    assert "nothing was claimed" in none["msg"] and "ansible_python_interpreter" in none["msg"]
    assert would["failed"] and would["msg"] == none["msg"] and agent.claims() == {}
    command = tmp_path / "bare/bin/plimsoll"
    command.touch(mode=0o755)
    command.write_bytes(b"\x7fELF")
    (broken,) = play(agent, start, **bare)
    assert f"{command} cannot be run" in broken["msg"] and "was released again" in broken["msg"]
    assert agent.claims() == {}


def test_the_command_is_found_beside_the_python_that_is_set(agent: Daemon, libvirtd: PrivateLibvirtd) -> None:
    start = {"claim": {"domain": small_domain("web1", UUID), "start": True, "connect": libvirtd.uri}}
    (made,) = play(agent, start, environment={"PATH": "/usr/bin:/bin"})
    assert made["started"], made
    with closing(libvirt.open(libvirtd.uri)) as connection:
        connection.lookupByUUIDString(UUID).destroy()


def test_a_play_that_was_cut_before_the_start_goes_on(agent: Daemon, libvirtd: PrivateLibvirtd) -> None:
    domain = {"domain": small_domain("web1", UUID), "connect": libvirtd.uri}
    with closing(libvirt.open(libvirtd.uri)) as connection:
        claimed, started = play(agent, {"claim": domain}, {"claim": {**domain, "start": True}})
        assert claimed["changed"] and "started" not in claimed
        assert started["changed"] and started["started"] and started["claim"] == claimed["claim"]
        bad = {**domain, "domain": small_domain("web1", UUID, devices="<emulator>/nowhere/qemu</emulator>")}
        (guest,) = connection.listAllDomains()
        guest.destroy()
        (failed,) = play(agent, {"claim": {**bad, "start": True}})
        assert failed["failed"] and "released" not in failed["msg"] and UUID in agent.claims()
