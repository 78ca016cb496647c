"""The real daemon, as a process: it starts, claims, is killed, and nothing is lost."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from kits.cli_process import plimsoll
from kits.daemon_process import Daemon, Manager, eventually
from kits.libvirt_daemon import PrivateLibvirtd
from kits.pci_tree import PciTree
from kits.placements import OpenStack
from kits.threads import at_once

from agent.errors import ClaimsClosed, DaemonUnreachable, DoesNotFit, ExitCode, PlimsollError

CLIENTS = 16
RESIDENT_MAX_MB = 80

Make = Callable[..., Daemon]

FAKE = {"DEFAULT": {"compute_driver": "fake"}}
TEST_LIBVIRT = {"DEFAULT": {"compute_driver": "libvirt"}, "libvirt": {"connection_uri": "test:///default"}}
LIBVIRTD = {"DEFAULT": {"compute_driver": "libvirt"}, "libvirt": {"connection_uri": "qemu:///system"}}


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    daemons: list[Daemon] = []

    def make(options: Mapping[str, Mapping[str, Any]] = FAKE) -> Daemon:
        daemons.append(Daemon(tmp_path, options))
        return daemons[-1]

    yield make
    for daemon in daemons:
        daemon.close()


@pytest.fixture
def daemon(make: Make) -> Daemon:
    """With the fake driver, and running."""
    daemon = make()
    daemon.start()
    return daemon


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    manager = Manager(tmp_path / "notify")
    yield manager
    manager.close()


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(FAKE, id="fake"),
        pytest.param(TEST_LIBVIRT, id="test-libvirt"),
        pytest.param(LIBVIRTD, id="libvirtd", marks=[pytest.mark.libvirtd, pytest.mark.slow]),
    ],
)
def test_a_claim_outlives_kill_9(
    make: Make, options: Mapping[str, Mapping[str, Any]], request: pytest.FixtureRequest
) -> None:
    if options is LIBVIRTD:
        request.getfixturevalue("system_libvirtd")
    daemon = make(options)
    daemon.start()
    eventually("ready", lambda: daemon.status()["state"] == "ready")
    host = daemon.status()["uuid"]
    made = daemon.claim({"VCPU": 1})  # libvirt's test host has a guest that uses all memory
    daemon.kill()

    daemon.start()
    assert daemon.status()["uuid"] == host
    assert daemon.claims() == {made["consumer"]: made}
    assert daemon.used() == {"VCPU": 1}
    daemon.release(made["consumer"])
    assert daemon.used() == {}
    assert daemon.claims() == {}
    assert daemon.stop() == ExitCode.DONE


def test_sixteen_clients_at_once_and_kill_9_in_the_middle(daemon: Daemon) -> None:
    """What was acknowledged is there; what was not is there as a whole or not at all."""
    asked: list[str] = []
    acknowledged: list[str] = []
    enough = threading.Semaphore(0)

    def client() -> None:
        while True:
            consumer = str(uuid4())
            asked.append(consumer)
            try:
                daemon.claim({"VCPU": 1, "MEMORY_MB": 16}, consumer)
            except DaemonUnreachable:
                return
            acknowledged.append(consumer)
            enough.release()

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for _ in range(4 * CLIENTS):
        assert enough.acquire(timeout=30)
    daemon.kill()
    for thread in threads:
        thread.join()

    daemon.start()
    eventually("ready", lambda: daemon.status()["state"] == "ready")
    found = daemon.claims()
    assert set(acknowledged) <= set(found) <= set(asked)
    assert {claim["state"] for claim in found.values()} == {"claimed"}
    assert daemon.used() == {"VCPU": len(found), "MEMORY_MB": 16 * len(found)}
    for consumer in found:
        daemon.release(consumer)
    assert daemon.used() == {}


def test_the_last_unit_is_given_once(daemon: Daemon) -> None:
    def client() -> str:
        try:
            daemon.claim({"PGPU": 1})
        except PlimsollError as error:
            return error.code
        return "claimed"

    outcomes = at_once(*[client] * CLIENTS)
    assert outcomes.count("claimed") == 1
    assert set(outcomes) == {"claimed", "plimsoll.claim.does_not_fit"}
    assert daemon.used() == {"PGPU": 1}


@pytest.mark.parametrize(
    ("group", "option", "value"),
    [
        pytest.param("DEFAULT", "reserved_host_memory_mb", "plenty", id="a bad value"),
        pytest.param("DEFAULT", "reserved_host_memroy_mb", "512", id="an unknown option"),
        pytest.param("fake", "host_file", "/nowhere/host.yaml", id="one that the driver refuses"),
    ],
)
def test_a_bad_reload_leaves_the_running_settings(
    make: Make, manager: Manager, group: str, option: str, value: str
) -> None:
    daemon = make()
    daemon.environment["NOTIFY_SOCKET"] = str(manager.path)
    daemon.start()
    before = daemon.client.get("/v1/config")
    daemon.options.setdefault(group, {})[option] = value
    daemon.options["DEFAULT"]["reserved_host_cpus"] = 3
    daemon.write()
    daemon.hang_up()
    eventually("the refusal", lambda: daemon.lines("The settings were not reloaded, the running ones stay"))
    eventually("the end of the reload", lambda: len(manager.heard("READY")) == 2)
    assert "MONOTONIC_USEC" in manager.heard("RELOADING")[0]
    status = manager.heard("READY")[1]["STATUS"]
    assert option in status and "not reloaded" in status
    assert daemon.client.get("/v1/config") == before
    assert daemon.claim({"VCPU": 1})["state"] == "claimed"


def test_a_good_reload_changes_the_inventory_and_names_what_needs_a_restart(daemon: Daemon) -> None:
    daemon.options["DEFAULT"] |= {"reserved_host_memory_mb": 4096, "host": "node2"}
    daemon.write()
    daemon.hang_up()

    def reserved() -> int:
        (root,) = [
            each
            for each in daemon.client.get("/v1/tree")["resource_providers"]
            if each["parent_provider_uuid"] is None
        ]
        found: int = root["inventories"]["MEMORY_MB"]["reserved"]
        return found

    eventually("the new inventory", lambda: reserved() == 4096)
    assert daemon.lines("A restart is necessary to change [DEFAULT] host.")
    assert daemon.status()["host"] == "node1"
    daemon.stop()
    assert daemon.launch().wait(30) == ExitCode.FAILED
    assert daemon.lines("This host was named 'node1' and is now named 'node2'")


def test_the_watchdog_is_fed_and_the_start_is_told(make: Make, manager: Manager) -> None:
    daemon = make()
    daemon.environment |= {"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "600000"}
    daemon.start()
    eventually("three pings", lambda: len(manager.heard("WATCHDOG")) >= 3)
    assert len(manager.heard("READY")) == 1
    assert any("EXTEND_TIMEOUT_USEC" in message for message in manager.messages)
    assert daemon.stop() == ExitCode.DONE
    assert manager.heard("STOPPING")


def test_sigterm_leaves_cleanly(daemon: Daemon) -> None:
    assert daemon.stop() == ExitCode.DONE
    assert not daemon.socket.exists()
    assert "Stopped." in daemon.lines("level=info")[-1]
    assert not daemon.lines("Traceback")
    daemon.start()
    assert daemon.status()["state"] == "ready"


def test_signals_that_come_at_once_do_not_hold_it_up(make: Make) -> None:
    daemon = make()
    for _ in range(3):
        daemon.start()
        for _ in range(40):
            daemon.hang_up()
            assert daemon.process is not None
            daemon.process.terminate()
        assert daemon.stop() == ExitCode.DONE


def test_the_idle_daemon_is_small(daemon: Daemon) -> None:
    daemon.claim({"VCPU": 1})
    assert daemon.resident_mb() < RESIDENT_MAX_MB


def test_a_hypervisor_away_at_the_start_is_a_state(make: Make, tmp_path: Path) -> None:
    host = tmp_path / "host.json"
    away = {"cells": [{"id": 0, "cpus": "0-3", "memory_mb": 4096}], "disk_gb": 10}
    host.write_text(json.dumps({**away, "unavailable": "the hypervisor is being repaired"}))
    daemon = make({**FAKE, "fake": {"host_file": host}})
    daemon.start()
    status = daemon.status()
    assert status["state"] == "degraded" and not status["claims"]["open"]
    assert "being repaired" in status["reasons"][0] and not status["driver"]["ok"]
    with pytest.raises(ClaimsClosed, match="being repaired"):
        daemon.claim({"VCPU": 1})
    host.write_text(json.dumps(away))
    eventually("ready", lambda: daemon.status()["state"] == "ready")
    assert daemon.claim({"VCPU": 1})["state"] == "claimed"
    assert len(daemon.lines("Degraded:")) == 1 and len(daemon.lines("Ready:")) == 1


def test_a_change_of_the_host_is_seen_at_once(make: Make, tmp_path: Path) -> None:
    host = tmp_path / "host.json"
    now = {"cells": [{"id": 0, "cpus": "0-3", "memory_mb": 4096}], "disk_gb": 10}
    host.write_text(json.dumps(now))
    daemon = make({**FAKE, "fake": {"host_file": host}})
    daemon.start()
    host.write_text(json.dumps({**now, "disk_gb": 77}))

    def disk_gb() -> int:
        (root,) = daemon.client.get("/v1/tree")["resource_providers"]
        found: int = root["inventories"]["DISK_GB"]["total"]
        return found

    eventually("the new disk", lambda: disk_gb() == 77, 10)


def test_settings_that_cannot_be_used_end_it_with_one_line(make: Make) -> None:
    daemon = make({"DEFAULT": {"compute_driver": "fake", "reserved_host_memroy_mb": 1}})
    assert daemon.launch().wait(30) == ExitCode.USAGE
    (line,) = daemon.log.read_text().splitlines()
    assert "reserved_host_memroy_mb" in line and "'reserved_host_memory_mb'" in line


def test_two_agents_do_not_share_a_state_directory(make: Make) -> None:
    first = make()
    first.start()
    second = make()
    assert second.launch().wait(30) == ExitCode.FAILED
    assert first.process is not None
    assert second.lines(f"is in use by process {first.process.pid}")
    assert first.status()["state"] == "ready"


def test_a_journal_that_was_emptied_is_told_and_its_claims_are_found(daemon: Daemon) -> None:
    daemon.claim({"VCPU": 1})
    daemon.stop()
    assert daemon.lines("journal is new") == []
    for file in (daemon.directory / "state").glob("agent.db*"):
        file.unlink()
    (daemon.directory / "state" / "agent.db").touch(mode=0o600)
    daemon.start()
    assert len(daemon.lines("the agent's journal is new")) == 1
    assert daemon.claims() == {} and daemon.used() == {"VCPU": 1}


def test_secrets_do_not_reach_the_log(make: Make) -> None:
    daemon = make({"DEFAULT": {"compute_driver": "fake"}, "placement": {"password": "canary"}})
    daemon.options["log"] = {"level": "debug"}
    daemon.write()
    daemon.start()
    daemon.claim({"VCPU": 1})
    assert "canary" not in json.dumps(daemon.client.get("/v1/config"))
    daemon.stop()
    assert not daemon.lines("canary")


@pytest.fixture
def remote(openstack: OpenStack) -> Iterator[OpenStack]:
    """A real, empty OpenStack Placement at whose address nobody answers at first."""
    openstack.empty()
    openstack.close_door()
    yield openstack
    openstack.close_door()
    openstack.open_door()


def test_a_remote_placement_that_comes_late_goes_away_and_comes_back(make: Make, remote: OpenStack) -> None:
    daemon = make({**FAKE, "placement": {"kind": remote.kind, **remote.options}})
    daemon.start()
    status = daemon.status()
    assert status["state"] == "degraded" and not status["placement"]["ok"] and status["driver"]["ok"]
    with pytest.raises(ClaimsClosed, match="did not answer"):
        daemon.claim({"VCPU": 1})
    remote.open_door()
    eventually("ready", lambda: daemon.status()["state"] == "ready")
    kept, given_back = daemon.claim({"VCPU": 1})["consumer"], daemon.claim({"VCPU": 2, "PGPU": 1})["consumer"]

    remote.close_door()
    assert daemon.client.request("DELETE", f"/v1/claims/{given_back}") == {
        "consumer": given_back,
        "released": False,
    }
    eventually("degraded", lambda: daemon.status()["state"] == "degraded")
    daemon.kill()
    daemon.start()
    assert daemon.claims()[given_back]["state"] == "releasing"
    remote.open_door()
    eventually("ready", lambda: daemon.status()["state"] == "ready")
    eventually("the release", lambda: daemon.used() == {"VCPU": 1})
    assert set(daemon.claims()) == {kept}
    assert len(daemon.lines("Degraded:")) == 3


@pytest.mark.libvirtd
@pytest.mark.slow
def test_a_libvirtd_that_comes_late_crashes_and_comes_back(make: Make, libvirtd: PrivateLibvirtd) -> None:
    libvirtd.kill()
    uri = {"connection_uri": libvirtd.uri, "images_path": libvirtd.images, "full_connection": False}
    daemon = make({"DEFAULT": {"compute_driver": "libvirt"}, "libvirt": uri})
    daemon.start()
    status = daemon.status()
    assert status["state"] == "degraded" and not status["driver"]["ok"] and status["placement"]["ok"]
    with pytest.raises(ClaimsClosed):
        daemon.claim({"VCPU": 1})
    libvirtd.start()
    eventually("ready", lambda: daemon.status()["state"] == "ready", 90)
    daemon.claim({"VCPU": 1})
    before = daemon.client.get("/v1/tree")

    libvirtd.kill()
    eventually("degraded", lambda: daemon.status()["state"] == "degraded")
    assert daemon.client.get("/v1/tree") == before
    libvirtd.start()
    eventually("ready", lambda: daemon.status()["state"] == "ready", 90)
    assert daemon.client.get("/v1/tree") == before
    assert len(daemon.lines("Degraded:")) == len(daemon.lines("Ready:")) == 2


@pytest.mark.slow
def test_the_daemon_looks_at_its_devices_and_withholds_one_that_does_not_answer(
    make: Make, tmp_path: Path
) -> None:
    gpu = "0000:83:00.0"
    tree = PciTree(tmp_path / "root")
    (tree.add(gpu, "nvidia") / "config").write_bytes(b"\xff" * 64)
    host = tmp_path / "host.yaml"
    host.write_text(
        "cells: [{id: 0, cpus: 0-3, memory_mb: 4096}]\n"
        f'gpus: [{{address: "{gpu}", resource_class: PGPU, units: ["{gpu}"]}}]\n'
        f"root_path: {tree.root}\n"
    )
    daemon = make({**FAKE, "fake": {"host_file": str(host)}})
    daemon.start()
    eventually("ready", lambda: daemon.status()["state"] == "ready")
    eventually("withheld", lambda: any(gpu in reason for reason in daemon.status()["reasons"]), 30.0)
    with pytest.raises(DoesNotFit):
        daemon.claim({"PGPU": 1})


def test_options_that_match_nothing_are_told_by_the_doctor_and_once_at_the_start(make: Make) -> None:
    """libvirt's test driver has no PCI device."""
    spec = {"device_spec": '{"vendor_id": "fffe", "product_id": "fffe"}'}
    daemon = make({**TEST_LIBVIRT, "pci": spec})
    daemon.start()
    eventually("it is told", lambda: daemon.lines("fffe"))
    looked = plimsoll(daemon.socket, "look")
    assert "fffe" not in looked.stdout, "it is no reason"
    examined = plimsoll(daemon.socket, "doctor", "--config-file", str(daemon.file))
    assert "warning  options" in examined.stdout and "fffe" in examined.stdout
    assert len(daemon.lines("fffe")) == 1
