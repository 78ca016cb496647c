import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from agent.driver import DriverSettings, Guest, GuestState, HostSettings
from agent.errors import DriverDataError, DriverUnavailable, SettingsError
from drivers.fake import FakeDriver, FakeHost, Gpu, Nic, cell, default_host

FILE = "cells: [{{id: 0, cpus: 0-3, memory_mb: {memory_mb}}}]\n"


def guest(number: int) -> Guest:
    return Guest(
        uuid=f"a0000000-0000-4000-8000-{number:012}",
        name=f"guest-{number}",
        state=GuestState.RUNNING,
        resources={"VCPU": 1, "MEMORY_MB": 512},
    )


def test_an_impossible_cpu_set_is_named() -> None:
    driver = FakeDriver(settings=DriverSettings("n", HostSettings(cpu_dedicated_set=frozenset({99}))))
    assert "PCPU" not in driver.describe().providers[0].inventories
    (sentence,) = driver.unmatched_options()
    assert "names CPU 99" in sentence
    with pytest.raises(SettingsError, match="both name CPU 1"):
        FakeDriver.create(
            DriverSettings("n", HostSettings(cpu_shared_set=frozenset({1}), cpu_dedicated_set=frozenset({1})))
        )


def test_an_unchanged_host_is_the_very_same_object_and_takes_no_time() -> None:
    gpus = tuple(Gpu(f"0000:{bus:02x}:00.0", total=4) for bus in range(128))
    nics = tuple(
        Nic(f"eth{bus}", f"0001:{bus:02x}:00.0", tuple(f"0001:{bus:02x}:01.{vf}" for vf in range(8)))
        for bus in range(127)
    )
    driver = FakeDriver(
        FakeHost(
            default_host().cells, gpus=gpus, nics=nics, guests=tuple(guest(number) for number in range(500))
        )
    )
    description, guests = driver.describe(), driver.guests()
    assert (len(description.providers), len(guests)) == (260, 500)
    started = time.perf_counter()
    assert driver.describe() is description
    assert driver.guests() is guests
    assert time.perf_counter() - started < 0.005
    driver.add_guest(guest(501))
    assert driver.describe() is not None
    assert driver.describe() is description
    driver.change(gpus=tuple(reversed(tuple(reversed(gpus)))))
    assert driver.describe() is description


def test_guests_come_and_go_in_the_order_of_their_uuids() -> None:
    driver = FakeDriver()
    driver.add_guest(guest(2))
    driver.add_guest(guest(1))
    driver.add_guest(replace(guest(2), name="renamed"))
    assert [each.name for each in driver.guests()] == ["guest-1", "renamed"]
    driver.remove_guest(guest(1).uuid)
    assert [each.name for each in driver.guests()] == ["renamed"]
    with pytest.raises(KeyError):
        driver.remove_guest(guest(1).uuid)


def test_faults_come_as_often_as_told_and_then_stop() -> None:
    driver = FakeDriver()
    driver.fail(2)
    driver.fail(error=DriverDataError("nonsense"))
    with pytest.raises(DriverUnavailable):
        driver.describe()
    with pytest.raises(DriverUnavailable):
        driver.guests()
    with pytest.raises(DriverDataError, match="nonsense"):
        driver.topology()
    assert len(driver.topology().cells) == 2


def test_a_delay_ends_with_close() -> None:
    driver = FakeDriver()
    driver.delay(0.05)
    started = time.monotonic()
    driver.describe()
    assert time.monotonic() - started >= 0.05
    driver.delay(60)
    threading.Timer(0.05, driver.close).start()
    with pytest.raises(DriverUnavailable, match="closed"):
        driver.guests()
    assert time.monotonic() - started < 10
    driver.close()


def test_watchers_hear_of_every_scripted_change() -> None:
    driver = FakeDriver()
    heard: list[str] = []
    driver.watch(heard.append)
    driver.change(disk_gb=10)
    driver.add_guest(guest(1))
    driver.fire("because")
    assert heard == ["the fake host's disk_gb changed", "the fake host's guests changed", "because"]


def from_file(path: Path) -> FakeDriver:
    return FakeDriver.create(DriverSettings(host="node1", options={"fake": {"host_file": str(path)}}))


def test_a_changed_file_changes_the_host_and_wakes_the_watchers(tmp_path: Path) -> None:
    path = tmp_path / "host.yaml"
    path.write_text(FILE.format(memory_mb=4096))
    driver = from_file(path)
    heard = threading.Event()
    driver.watch(lambda why: heard.set())
    try:
        assert driver.describe().providers[0].inventories["MEMORY_MB"].total == 4096
        path.write_text(FILE.format(memory_mb=16384))
        assert driver.describe().providers[0].inventories["MEMORY_MB"].total == 16384
        assert heard.wait(10)
    finally:
        driver.close()


def test_a_file_can_make_the_hypervisor_go_away_and_come_back(tmp_path: Path) -> None:
    path = tmp_path / "host.yaml"
    path.write_text(FILE.format(memory_mb=4096) + "unavailable: it is being serviced\n")
    driver = from_file(path)
    with pytest.raises(DriverUnavailable, match="it is being serviced"):
        driver.describe()
    path.write_text(FILE.format(memory_mb=4096))
    description = driver.describe()
    path.write_text("cells: 3")
    for _ in range(2):
        with pytest.raises(DriverDataError, match="cells"):
            driver.describe()
    path.unlink()
    with pytest.raises(DriverUnavailable, match=r"cannot read the host file .*: No such file"):
        driver.describe()
    path.write_text(FILE.format(memory_mb=4096))
    assert driver.describe() is description


def test_a_bad_file_at_start_is_a_settings_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        from_file(tmp_path / "missing.yaml")
    (tmp_path / "bad.yaml").write_text("cells: 3")
    with pytest.raises(SettingsError, match=r"\[fake\] host_file: .*bad.yaml: cells: 3 is not"):
        from_file(tmp_path / "bad.yaml")


def test_without_options_the_built_in_host_is_there() -> None:
    driver = FakeDriver.create(DriverSettings(host="node1"))
    assert driver.describe().providers[0].name == "node1"
    assert driver.host.cells == (cell(0, *_first(0)), cell(1, *_first(1)))
    driver.close()


def _first(index: int) -> tuple[frozenset[int], int, int, dict[int, int]]:
    each = default_host().cells[index]
    return each.cpus, each.memory_mb, 2, dict(each.pages)
