"""`plimsoll explain` on a real agent: who owns what, and why."""

import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from kits.cli_process import one_line, output_of, plimsoll
from kits.status import FORGOTTEN, HOST, MDEVS, MIGRATION, VGPU_CARD, Sight, guest, uuid_of

from agent.driver import UsedUnit
from agent.errors import ExitCode

CARD = f"{HOST}_pci_{VGPU_CARD}"


def test_a_unit_is_explained(full: tuple[Sight, Path]) -> None:
    shown, path = full
    (unit,) = shown.world.agent.host_status.overview().claims[uuid_of("db1")].units.values()
    (address,) = unit["SRIOV_NET_VF"]
    said = output_of(path, "explain", address)
    assert f"It is one exact SRIOV_NET_VF of provider {HOST}_net_enp65s0f0 (pci:0000:41:00.0)." in said
    assert f"db1 ({uuid_of('db1')}) owns it since 20" in said
    assert f"The guest db1 ({uuid_of('db1')}), running, uses it." in said


def test_times_are_those_of_the_host(full: tuple[Sight, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Asia/Kolkata")
        time.tzset()
        said = output_of(full[1], "explain", uuid_of("render-a"))
    time.tzset()
    assert re.search(r"since 20\S+ \S+\+05:30\. ", said)


def test_a_free_unit_and_one_that_is_used_without_a_claim(fresh: tuple[Sight, Path]) -> None:
    shown, path = fresh
    assert "It is free: no claim has it, and no guest uses it." in output_of(path, "explain", MDEVS[0])
    unit = UsedUnit("VGPU", MDEVS[0], f"pci:{VGPU_CARD}")
    shown.world.driver.add_guest(replace(guest("squatter", VCPU=1), units=(unit,)))
    shown.world.agent.reconcile("an event")
    said = output_of(path, "explain", MDEVS[0].upper())
    assert f"The guest squatter ({uuid_of('squatter')}), running, uses it." in said
    assert "No claim owns it" in said


def test_a_class_is_explained_with_each_provider_and_who_holds_some(full: tuple[Sight, Path]) -> None:
    said = output_of(full[1], "explain", "vgpu")
    assert f"{CARD}: 6 of 8 in use." in said
    assert f"render-a ({uuid_of('render-a')}) holds 2 since 20" in said


def test_a_consumer_is_found_by_the_beginning_of_its_uuid(full: tuple[Sight, Path]) -> None:
    uuid = uuid_of("render-a")
    assert output_of(full[1], "explain", uuid[:8]) == output_of(full[1], "explain", uuid)


def test_a_provider_and_a_receipt_are_found_by_the_beginning_of_their_uuid(full: tuple[Sight, Path]) -> None:
    shown, path = full
    (card,) = (each for each in shown.host_status.overview().tree if each.name == CARD)
    (receipt,) = shown.host_status.receipts()
    for uuid in (card.uuid, receipt.id):
        assert output_of(path, "explain", uuid[:8].upper()) == output_of(path, "explain", uuid)


def test_a_device_is_explained_with_its_holders(full: tuple[Sight, Path]) -> None:
    _, path = full
    by_name = output_of(path, "explain", CARD)
    assert by_name == output_of(path, "explain", VGPU_CARD) == output_of(path, "explain", f"pci:{VGPU_CARD}")
    assert "6 of 8 VGPU in use" in by_name and "CUSTOM_GPU_TESLA_M60" in by_name
    assert f"render-a ({uuid_of('render-a')}) holds 2 VGPU (" in by_name
    assert "moved inventory to or from it." in by_name


def test_a_consumer_is_explained_by_uuid_and_by_name(full: tuple[Sight, Path]) -> None:
    _, path = full
    said = output_of(path, "explain", "render-b")
    assert (
        said
        == output_of(path, "explain", uuid_of("render-b"))
        == output_of(path, "explain", uuid_of("render-b").upper())
    )
    assert "Its guest is here, running." in said
    assert "It requested 120 DISK_GB, 16384 MEMORY_MB, 8 VCPU, 4 VGPU, and holds:" in said
    assert re.search(rf"4 VGPU on {re.escape(CARD)}: [0-9a-f-]{{36}}, ", said)
    assert f"moved its 4 VGPU from {HOST} to {CARD}" in said
    assert "lately\n" in said and "  grant  render-b: " in said


def test_a_move_is_explained_from_either_side(full: tuple[Sight, Path]) -> None:
    _, path = full
    said = output_of(path, "explain", "web1")
    assert f"Its move (same_host_resize, migration {MIGRATION}, this host is both) is begun" in said
    assert "The migration holds 40 DISK_GB" in said
    migration = output_of(path, "explain", MIGRATION)
    assert "It is a migration" in migration and f"The move of web1 ({uuid_of('web1')})" in migration


def test_one_whom_nobody_claimed_for(full: tuple[Sight, Path]) -> None:
    said = output_of(full[1], "explain", FORGOTTEN)
    assert "It has no claim" in said and "Finding of the audit: unclaimed instance" in said


def test_a_receipt_is_explained(full: tuple[Sight, Path]) -> None:
    shown, path = full
    (receipt,) = shown.host_status.receipts()
    said = output_of(path, "explain", receipt.id)
    assert f"moved from {HOST} to {CARD}." in said and "of 5 consumers moved as well" in said


@pytest.mark.parametrize(
    ("word", "near"),
    [("kvm-7", "kvm-07"), ("rendr-a", "render-a"), ("render", "render-a"), (MDEVS[0][:9], MDEVS[0])],
)
def test_what_is_not_known_has_near_matches(full: tuple[Sight, Path], word: str, near: str) -> None:
    done = plimsoll(full[1], "explain", word)
    assert done.returncode == ExitCode.FAILED
    line = one_line(done)
    assert f"is called {word!r}" in line and "Did you mean " in line and near in line


@pytest.mark.parametrize("word", ["", "   ", "x" * 5000, "../../etc", "%00", "\x1b[31m"])
def test_any_word_gets_an_answer(full: tuple[Sight, Path], word: str) -> None:
    done = plimsoll(full[1], "explain", word)
    assert done.returncode == (ExitCode.FAILED if word.strip() else ExitCode.USAGE)
    assert "\x1b" not in one_line(done)
