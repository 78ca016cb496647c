"""Provider config files and SIGHUP, with the real daemon as a process."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kits.daemon_process import Daemon, Manager, eventually

from agent.errors import ExitCode

GOOD = """\
meta: {schema_version: '1.0'}
providers:
  - identification: {uuid: $COMPUTE_NODE}
    inventories: {additional: [CUSTOM_LICENSE: {total: %d}]}
    traits: {additional: [CUSTOM_RACK_7]}
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    directory = tmp_path / "provider_config"
    directory.mkdir()
    return directory


@pytest.fixture
def daemon(tmp_path: Path, files: Path) -> Iterator[Daemon]:
    daemon = Daemon(
        tmp_path, {"DEFAULT": {"compute_driver": "fake"}, "compute": {"provider_config_location": files}}
    )
    yield daemon
    daemon.close()


def root(daemon: Daemon) -> dict[str, Any]:
    tree = daemon.client.get("/v1/tree")["resource_providers"]
    (found,) = [each for each in tree if each["parent_provider_uuid"] is None]
    return dict(found)


def licenses(daemon: Daemon) -> int:
    return int(root(daemon)["inventories"].get("CUSTOM_LICENSE", {"total": 0})["total"])


def test_a_reload_reads_the_files_again_and_keeps_the_old_on_any_error(
    daemon: Daemon, files: Path, tmp_path: Path
) -> None:
    """Scenario 23 with a real process: applied at the start, followed at SIGHUP, refused with its key."""
    manager = Manager(tmp_path / "notify")
    daemon.environment["NOTIFY_SOCKET"] = str(manager.path)
    (files / "a.yaml").write_text(GOOD % 4)
    daemon.start()
    assert licenses(daemon) == 4 and "CUSTOM_RACK_7" in root(daemon)["traits"]
    assert daemon.claim({"CUSTOM_LICENSE": 2})["state"] == "claimed"

    wrong = {
        "a.yaml: the file is not valid YAML": "a: [",
        "a.yaml: providers[0].inventories.additional[0].CUSTOM_LICENSE.total": GOOD % -1,
        "a.yaml: providers[0].inventories.additional[0].VCPU": (GOOD % 4).replace("CUSTOM_LICENSE", "VCPU"),
    }
    for number, (key, text) in enumerate(wrong.items()):
        (files / "a.yaml").write_text(text)
        daemon.hang_up()
        eventually("the refusal", lambda key=key: daemon.lines(key))
        eventually("the end of the reload", lambda n=number: len(manager.heard("READY")) == n + 2)
        assert daemon.lines("The settings were not reloaded, the running ones stay")
        assert licenses(daemon) == 4

    (files / "a.yaml").write_text(GOOD % 9)
    daemon.hang_up()
    eventually("the new inventory", lambda: licenses(daemon) == 9)
    assert daemon.lines("Reloaded: the provider config files.")
    (files / "a.yaml").unlink()
    daemon.hang_up()
    eventually("what is held stays", lambda: any("CUSTOM_LICENSE" in r for r in daemon.status()["reasons"]))
    assert licenses(daemon) == 9 and "CUSTOM_RACK_7" not in root(daemon)["traits"]
    assert daemon.stop() == ExitCode.DONE
    manager.close()


def test_what_contradicts_the_driver_is_refused_by_a_reload(daemon: Daemon, files: Path) -> None:
    daemon.options["fake"] = {"host_file": daemon.directory / "host.yaml"}
    (daemon.directory / "host.yaml").write_text(
        "cells: [{id: 0, cpus: 0-7, memory_mb: 8192}]\n"
        "gpus: [{address: '0000:41:00.0', resource_class: CUSTOM_GPU, total: 4}]\n"
    )
    daemon.write()
    daemon.start()
    own = (GOOD % 4).replace("uuid: $COMPUTE_NODE", "name: 'node1_pci_0000:41:00.0'")
    (files / "b.yaml").write_text(own.replace("CUSTOM_LICENSE", "CUSTOM_GPU"))
    daemon.hang_up()
    eventually("the refusal", lambda: daemon.lines("b.yaml: providers[0].inventories.additional: the driver"))
    assert licenses(daemon) == 0
    daemon.stop()
    daemon.start()
    assert any("reports CUSTOM_GPU" in reason for reason in daemon.status()["reasons"]), "told at a start"
    assert daemon.claim({"CUSTOM_GPU": 4})["state"] == "claimed"


def test_a_start_with_a_file_that_cannot_be_used_is_refused(daemon: Daemon, files: Path) -> None:
    (files / "a.yaml").write_text(GOOD % -1)
    assert daemon.launch().wait(30) == ExitCode.USAGE
    assert daemon.lines("a.yaml: providers[0].inventories.additional[0].CUSTOM_LICENSE.total: -1 is less")
