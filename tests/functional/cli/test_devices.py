"""`plimsoll devices` on a real agent with cards: agent.api.views, agent.tracker.cordons."""

import json
import os
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kits.agent import opened
from kits.api_client import serving
from kits.cli_process import one_line, output_of, plimsoll
from kits.status import Sight

from agent.config.settings import load
from agent.errors import ExitCode
from agent.state.cordon import Cordon

VF = "0000:41:02.0"
WEB = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"
NIC, VFS = "0000:41:00.0", [f"0000:41:02.{number}" for number in range(8)]
WHOLE_GPU = "0000:83:00.0"


def devices(path: Path) -> dict[str, dict[str, object]]:
    answer = json.loads(output_of(path, "devices", "list", "-o", "json"))
    return {device["unit"]: device for device in answer["devices"]}


def reserved(shown: Sight, name: str) -> int:
    shown.world.agent.reconcile("a test")
    tree, _ = shown.world.operations.tree()
    return sum(each.inventories[name].reserved for each in tree if name in each.inventories)


def claim(path: Path, *resources: str) -> list[str]:
    answer = json.loads(output_of(path, "claim", "--resources", ",".join(resources), "-o", "json"))
    return [unit for here in answer["units"].values() for units in here.values() for unit in units]


def test_devices_are_listed_with_who_has_them(fresh: tuple[Sight, Path]) -> None:
    _, path = fresh
    assert devices(path)[VF]["holder"] is None
    assert devices(path)[VF]["holder_name"] == ""
    output_of(path, "claim", WEB, "--name", "web1", "--resources", "SRIOV_NET_VF=1")
    (unit,) = (unit for unit, device in devices(path).items() if device["holder"] == WEB)
    assert devices(path)[unit]["holder_name"] == "web1"
    columns = ("-c", "device", "-c", "holder", "-c", "name")
    assert f'"{unit}","{WEB}","web1"' in output_of(path, "devices", "list", *columns, "-o", "csv")
    assert "PCPU" not in output_of(path, "devices", "list")


def test_a_cordoned_device_is_offered_to_nobody_and_cleared_again(fresh: tuple[Sight, Path]) -> None:
    shown, path = fresh
    before = reserved(shown, "SRIOV_NET_VF")
    said = output_of(path, "devices", "cordon", VF, "--reason", "loses its link")
    assert said == f"cordoned: {VF} is given to no guest until `plimsoll devices clear`\n"
    assert reserved(shown, "SRIOV_NET_VF") == before + 1
    assert f"The device {VF} is cordoned by uid {os.getuid()}: loses its link." in output_of(path, "status")
    assert "cordoned: loses its link" in output_of(path, "devices", "list")
    explained = output_of(path, "explain", VF)
    assert "It is withheld: no claim has it" in explained and "is cordoned by uid" in explained
    given = [claim(path, "SRIOV_NET_VF=1") for _ in VFS[1:]]
    assert sorted(unit for (unit,) in given) == VFS[1:]
    refused = plimsoll(path, "claim", "--resources", "SRIOV_NET_VF=1")
    assert refused.returncode == ExitCode.REFUSED
    assert "1 more cordoned or unhealthy (`plimsoll devices list`)" in one_line(refused)
    output_of(path, "devices", "clear", VF)
    assert reserved(shown, "SRIOV_NET_VF") == before
    assert claim(path, "SRIOV_NET_VF=1") == [VF]


def test_a_cordon_holds_at_once_before_any_pass(fresh: tuple[Sight, Path]) -> None:
    _, path = fresh
    output_of(path, "devices", "cordon", WHOLE_GPU)
    refused = plimsoll(path, "claim", "--resources", "PGPU=1")
    assert refused.returncode == ExitCode.REFUSED
    output_of(path, "devices", "clear", WHOLE_GPU)
    assert claim(path, "PGPU=1") == [WHOLE_GPU]


def test_who_has_a_cordoned_device_keeps_it_and_nobody_gets_it_after(fresh: tuple[Sight, Path]) -> None:
    shown, path = fresh
    before = reserved(shown, "PGPU")
    output_of(path, "claim", "--name", "train", "--resources", "PGPU=1")
    output_of(path, "devices", "cordon", WHOLE_GPU)
    assert reserved(shown, "PGPU") == before, "its holder's allocation stays within the capacity"
    assert json.loads(output_of(path, "audit", "-o", "json"))["findings"] == []
    output_of(path, "release", "train")
    assert plimsoll(path, "claim", "--resources", "PGPU=1").returncode == ExitCode.REFUSED
    assert reserved(shown, "PGPU") == before + 1


def test_the_address_of_a_card_stands_for_all_that_it_offers(fresh: tuple[Sight, Path]) -> None:
    shown, path = fresh
    shown.world.driver.change(flat_devices=False)
    shown.world.agent.reconcile("a test")
    output_of(path, "devices", "cordon", NIC)
    assert plimsoll(path, "claim", "--resources", "SRIOV_NET_VF=1").returncode == ExitCode.REFUSED
    assert all(devices(path)[vf]["cordon"] for vf in VFS)


def test_a_cordon_outlives_the_agent(fresh: tuple[Sight, Path]) -> None:
    shown, path = fresh
    output_of(path, "devices", "cordon", WHOLE_GPU, "--reason", "sent in")
    shown.world.close()
    again = opened(load([shown.directory / "plimsoll.conf"]))
    try:
        again.agent.reconcile("the start")
        with serving(again.operations, shown.directory / "t"):
            refused = plimsoll(shown.directory / "t", "claim", "--resources", "PGPU=1")
            assert refused.returncode == ExitCode.REFUSED
            assert "sent in" in output_of(shown.directory / "t", "status")
    finally:
        again.close()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("cordon", "0000:ff:00.0"), "0000:ff:00.0 is no device that this host offers"),
        (("cordon", ""), "ADDRESS is an empty text"),
        (("clear", VF), f"{VF} is neither cordoned nor unhealthy"),
        (("cordon", VF, "--reason", "x" * 256), "reason"),
    ],
)
def test_what_cannot_be_cordoned_or_cleared_is_said(
    fresh: tuple[Sight, Path], words: tuple[str, ...], said: str
) -> None:
    refused = plimsoll(fresh[1], "devices", *words)
    assert refused.returncode == ExitCode.USAGE
    assert said in one_line(refused)


def test_two_devices_that_are_cordoned_at_once_are_both_cordoned(
    fresh: tuple[Sight, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, path = fresh
    journal, first_is_on_disk = shown.world.journal, threading.Event()
    write = journal.remember_cordons

    def write_slowly(cordons: Mapping[str, Cordon], event: str, detail: str) -> None:
        write(cordons, event, detail)
        first_is_on_disk.set()
        time.sleep(0.2)  # the other request comes before this one has ended

    monkeypatch.setattr(journal, "remember_cordons", write_slowly)
    with ThreadPoolExecutor(2) as threads:
        cordons = [Cordon(unit, "", 0, 1.0) for unit in VFS[:2]]
        first = threads.submit(shown.world.operations.cordon, cordons[0])
        assert first_is_on_disk.wait(10)
        second = threads.submit(shown.world.operations.cordon, cordons[1])
        first.result(10)
        second.result(10)
    assert journal.cordons() == {cordon.address: cordon for cordon in cordons}
    listed = devices(path)
    assert all(listed[unit]["cordon"] for unit in VFS[:2])
