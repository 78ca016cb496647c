"""`plimsoll explain` on a real agent: who owns what, and why; how many guests fit, and what makes room.

The answers of `--capacity` and of `plimsoll defrag --dry-run`, on a host with two cells and a GPU, are
those of agent.api.routes, in the shapes of agent.api.shapes.instance.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kits.agent import World, opened, told
from kits.api_client import serving
from kits.cli_process import one_line, output_of, plimsoll
from kits.placements import Embedded
from kits.status import FORGOTTEN, HOST, MDEVS, MIGRATION, VGPU_CARD, Sight, guest, uuid_of

from agent.driver import UsedUnit
from agent.errors import ExitCode
from drivers.fake.host import Gpu, cell

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


GPU = "0000:83:00.0"
DEDICATED = "[compute]\ncpu_dedicated_set = 0-15\n"
PLAIN = ("--flavor", "vcpus=6,memory_mb=4096", "--spec", "hw:cpu_policy=dedicated")
GPU_GUEST = (
    *("--flavor", "vcpus=4,memory_mb=2048", "--spec", "hw:cpu_policy=dedicated"),
    *("--spec", "resources_GPU:PGPU=1", "--spec", "hw:pci_numa_affinity_policy=required"),
)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[tuple[World, Path]]:
    """Two cells of 8 CPUs with a GPU on cell 0; each has a guest, "left" and "right"."""
    world = opened(told(tmp_path, Embedded(tmp_path), DEDICATED))
    cells = tuple(cell(number, frozenset(range(8 * number, 8 * number + 8)), 16384) for number in (0, 1))
    world.driver.change(cells=cells, gpus=(), nics=(), report_numa=True)
    world.agent.reconcile("the start")
    with serving(world.operations, tmp_path / "s"):
        yield world, tmp_path / "s"
    world.close()


def two_guests(host: tuple[World, Path]) -> dict[int, str]:
    """{cell: name of the guest there}; the GPU comes when they are there."""
    world, path = host
    places: dict[int, str] = {}
    for name in ("one", "two"):
        claim = json.loads(output_of(path, "claim", *PLAIN, "--name", name, "-o", "json"))
        places[claim["cells"][0]["host_cell"]] = name
    assert sorted(places) == [0, 1]
    world.driver.change(gpus=(Gpu(GPU, "PGPU", 1, (GPU,), numa=0),))
    world.agent.reconcile("a card was plugged in")
    return places


def test_capacity_says_how_often_and_what_is_stranded_by_whom(host: tuple[World, Path]) -> None:
    _, path = host
    on = two_guests(host)
    said = output_of(path, "explain", "--capacity", *GPU_GUEST)
    lines = said.splitlines()
    assert lines[0] == "0 guests fit" and "why not one more" in lines
    (row,) = (line for line in lines if GPU in line and "PGPU" in line)
    assert row.split()[1:4] == ["PGPU", "1", on[0]], "the guest beside the GPU strands it"
    output_of(path, "release", on[0])
    assert output_of(path, "explain", "--capacity", *GPU_GUEST).splitlines()[0] == "1 guest fits"
    shared = output_of(path, "explain", "--capacity", "--resources", "MEMORY_MB=1")
    assert shared.splitlines() == ["256 guests fit, and maybe more"]


def test_a_guest_that_fits_nowhere_else_here_goes_to_another_host(host: tuple[World, Path]) -> None:
    _, path = host
    on = two_guests(host)
    said = output_of(path, "defrag", "--dry-run", *GPU_GUEST)
    lines = said.splitlines()
    assert lines[0] == "1 move makes room for it"
    assert lines[2].startswith(f"1. {on[0]} (") and lines[2].endswith("to another host")
    assert "plimsoll move begin " in lines[3] and lines[3].endswith(f"--domain {on[0]}.xml")
    assert GPU in said.partition("then it gets")[2]
    refused = plimsoll(path, "claim", *GPU_GUEST, "--dry-run")
    assert refused.returncode == ExitCode.REFUSED, "nothing was moved"


def test_a_guest_that_has_room_on_the_other_cell_stays_here(host: tuple[World, Path]) -> None:
    _, path = host
    on = two_guests(host)
    output_of(path, "release", on[1])
    answer = json.loads(output_of(path, "defrag", "--dry-run", *GPU_GUEST, "-o", "json"))
    (move,) = answer["moves"]
    assert move["name"] == on[0] and answer["fewest"] and answer["possible"]
    assert [each["host_cell"] for each in move["here"]["cells"]] == [1]
    assert [each["host_cell"] for each in answer["place"]["cells"]] == [0]
    said = output_of(path, "defrag", "--dry-run", *GPU_GUEST)
    assert "on this host, while it runs, to" in said


def test_the_move_on_this_host_is_made_as_the_documentation_says(host: tuple[World, Path]) -> None:
    """docs/cli.md: begin a same-host resize to the same size, take the guest to its new place, confirm."""
    _, path = host
    on = two_guests(host)
    output_of(path, "release", on[1])
    (told,) = json.loads(output_of(path, "defrag", "--dry-run", *GPU_GUEST, "-o", "json"))["moves"]
    kind = ("--kind", "same-host-resize")
    begun = json.loads(output_of(path, "move", "begin", on[0], *kind, *PLAIN, "-o", "json"))
    assert begun["new"]["cells"] == told["here"]["cells"], "the place that defrag told"
    assert "0->8,1->9,2->10" in output_of(path, "move", "show", begun["migration"])
    output_of(path, "move", "confirm", begun["migration"])
    claim = json.loads(output_of(path, "claim", *GPU_GUEST, "--name", "train", "-o", "json"))
    assert [each["host_cell"] for each in claim["cells"]] == [0]


def test_the_command_for_the_other_host_asks_for_the_same(host: tuple[World, Path]) -> None:
    world, path = host
    wanted = ("--resources", "MEMORY_MB=30000", "--group", "disk:DISK_GB=1")
    world.driver.change(disk_gb=10, report_numa=False)
    world.agent.reconcile("a disk")
    output_of(path, "claim", *wanted, "--name", "big", "-o", "json")
    said = output_of(path, "defrag", "--dry-run", "--resources", "MEMORY_MB=20000")
    (line,) = (line for line in said.splitlines() if "move begin" in line)
    words = shlex.split(line.partition("there: ")[2])
    assert words[:3] == ["plimsoll", "move", "begin"] and words[4:6] == ["--kind", "live-migrate"]
    assert sorted(words[6:]) == sorted(wanted)


def test_a_guest_with_a_device_moves_cold(host: tuple[World, Path]) -> None:
    world, path = host
    world.driver.change(gpus=(Gpu(GPU, "PGPU", 1, (GPU,), numa=0),))
    world.agent.reconcile("a card")
    output_of(path, "claim", "--resources", "PGPU=1,MEMORY_MB=1024", "--name", "train", "-o", "json")
    said = output_of(path, "defrag", "--dry-run", "--resources", "PGPU=1")
    assert "--kind cold-migrate" in said and "train" in said


def test_where_it_fits_and_where_nothing_helps(host: tuple[World, Path]) -> None:
    _, path = host
    assert output_of(path, "defrag", "--dry-run", *PLAIN) == "it fits: no guest has to move\n"
    refused = plimsoll(path, "defrag", "--dry-run", "--resources", "PGPU=1")
    assert refused.returncode == ExitCode.REFUSED
    assert refused.stdout.splitlines()[0] == "no moves of guests make room for it"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("defrag", *PLAIN), "give --dry-run"),
        (("defrag", "--dry-run"), "give the resources by"),
        (("explain",), "give WHAT to explain, or --capacity"),
        (("explain", "web1", "--capacity", *PLAIN), "either WHAT or --capacity"),
        (("explain", "web1", *PLAIN), "--flavor needs --capacity"),
    ],
)
def test_what_is_missing_or_too_much_is_said(
    host: tuple[World, Path], words: tuple[str, ...], said: str
) -> None:
    refused = plimsoll(host[1], *words)
    assert refused.returncode == ExitCode.USAGE and said in one_line(refused)
