"""`plimsoll explain --capacity` and `plimsoll defrag --dry-run` on a real agent with two cells and a GPU.

Their answers are those of agent.api.views, in the shapes of agent.api.shapes.claims.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.agent import World, opened, told
from kits.api_client import serving
from kits.cli_process import one_line, output_of, plimsoll
from kits.placements import Embedded

from agent.errors import ExitCode
from drivers.fake import Gpu, cell

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
