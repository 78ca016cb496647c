"""`plimsoll where` against a served core, without an agent: sentences, tables, exit codes, bad input."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from kits.cli_process import one_line, plimsoll
from kits.fleet_questions import uuid_of
from kits.paths import CHECKOUT
from kits.served_agent import ServedAgent

from agent.api.shapes.fleet import PLACE_COLUMNS
from agent.errors import ExitCode
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.placement.connect import open_transport
from agent.placement.host_note import HostNote, MoveNote
from agent.tree import Inventory, Provider

FLAVOR = ("--flavor", "vcpus=4,memory_mb=8GiB")
WEB, DB, BIG = uuid_of("web1"), uuid_of("db1"), uuid_of("big1")


def write_host(
    client: PlacementClient, name: str, memory_mb: int, traits: frozenset[str], cards: int
) -> None:
    root = uuid_of(name)
    generation = client.create_provider(Provider(root, name))
    if traits:
        generation = client.put_traits(root, generation, traits)
    inventories = {"VCPU": Inventory(16), "MEMORY_MB": Inventory(memory_mb, reserved=1024)}
    client.put_inventories(root, generation, inventories)
    for number in range(cards):
        card = f"{name}_gpu{number}"
        generation = client.create_provider(Provider(uuid_of(card), card, root))
        generation = client.put_traits(uuid_of(card), generation, {"CUSTOM_L40S"})
        client.put_inventories(uuid_of(card), generation, {"VGPU": Inventory(2)})


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """hv1 to hv3 with memory that is full but for 8178 MiB and less, hv4 disabled, hv5 small."""
    directory = tmp_path_factory.mktemp("where")
    options = {"serve": [f"unix:{directory}/s"]}
    with closing(open_transport("embedded", state_dir=directory, options=options)) as transport:
        client = PlacementClient(transport)
        client.ensure_trait("CUSTOM_L40S")
        client.ensure_trait("CUSTOM_H100")
        for number in (1, 2, 3):
            write_host(client, f"hv{number}", 65536, frozenset(), 1)
        write_host(client, "hv4", 65536, frozenset({"COMPUTE_STATUS_DISABLED"}), 0)
        write_host(client, "hv5", 4096, frozenset(), 0)
        for number, (consumer, memory) in enumerate(((WEB, 56334), (DB, 57000), (BIG, 60000)), start=1):
            held = {uuid_of(f"hv{number}"): {"VCPU": 2, "MEMORY_MB": memory}}
            client.write_allocations(ConsumerAllocations(consumer, held))
        client.write_allocations(ConsumerAllocations(uuid_of("g"), {uuid_of("hv3_gpu0"): {"VGPU": 2}}))
        yield f"unix:{directory}/s"


def where(url: str, *words: str) -> CompletedProcess[str]:
    done: CompletedProcess[str] = plimsoll(Path("/nowhere"), "where", *words, "--placement", url)
    return done


def json_of(done: CompletedProcess[str]) -> Any:
    return json.loads(done.stdout)


def test_the_hosts_that_fit_come_with_what_the_guest_would_get(url: str) -> None:
    done = where(url, "--resources", "VCPU=4,MEMORY_MB=8000", "--group", "1:VGPU=1")
    assert (done.returncode, done.stderr) == (ExitCode.DONE, "")
    assert done.stdout == (
        "it fits: 1 host has room for it\n"
        "\n"
        f"{PLACE_COLUMNS[0].title}  GETS                                        LEFT ON THE HOST\n"
        "hv1   hv1 MEMORY_MB=8000,VCPU=4; hv1_gpu0 VGPU=1  MEMORY_MB=178,VCPU=10,VGPU=1\n"
    )


def test_the_strategy_decides_which_host_is_best(url: str) -> None:
    for strategy, best in (("pack", "hv3"), ("spread", "hv5")):
        answer = json_of(
            where(url, "--resources", "VCPU=1,MEMORY_MB=512", "--strategy", strategy, "-o", "json")
        )
        assert answer["places"][0]["host"] == best


def test_not_now_names_what_is_short_who_holds_it_and_the_smallest_change(url: str) -> None:
    done = where(url, *FLAVOR)
    assert (done.returncode, done.stderr) == (ExitCode.REFUSED, "")
    assert done.stdout == (
        "not now: 4 of 5 hosts could; hv1, the nearest, is 14 MiB of MEMORY_MB short\n"
        "closed: hv4 (disabled for schedulers by COMPUTE_STATUS_DISABLED)\n"
        "\n"
        "HOST  LACKS      REQUEST         ASKED  FREE  TOTAL  PROVIDER  HELD BY\n"
        f"hv1   MEMORY_MB  memory_mb=8192   8192  8178  65536  hv1       {WEB} 56334\n"
        f"hv2   MEMORY_MB  memory_mb=8192   8192  7512  65536  hv2       {DB} 57000\n"
        f"hv3   MEMORY_MB  memory_mb=8192   8192  4512  65536  hv3       {BIG} 60000\n"
        "hv5   MEMORY_MB  memory_mb=8192   8192  3072   4096  hv5       -\n"
        "\n"
        "FIRST OBSTACLE    REQUEST         HOSTS  FOR GOOD  FIT WITHOUT IT\n"
        "closed or silent  -                   1         0               1\n"
        "8192 MEMORY_MB    memory_mb=8192      4         1               4\n"
        "\n"
        "smallest change that makes room:\n"
        f"  release {WEB} on hv1 (no other host was found for it)\n"
        "  hv4 has room once it takes claims again (`plimsoll resume` there if an operator paused it)\n"
    )
    for page in ("README.md", "docs/where.md"):
        shown = f"$ plimsoll where {' '.join(FLAVOR)}\n{done.stdout}"
        assert shown in (CHECKOUT / page).read_text(encoding="utf-8")


def test_an_instance_in_the_way_is_moved_to_a_host_that_has_room_for_it(url: str) -> None:
    done = where(url, "--group", "1:VGPU=2", "--host", "hv3")
    assert done.returncode == ExitCode.REFUSED
    assert done.stdout.splitlines()[0] == "not now: hv3 is 2 VGPU short"
    assert done.stdout.splitlines()[-1] == f"  move {uuid_of('g')} from hv3 to hv1"


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An instance moves from f1 to f2, and a reshape of f3 waits."""
    directory = tmp_path_factory.mktemp("moved")
    options = {"serve": [f"unix:{directory}/s"]}
    with closing(open_transport("embedded", state_dir=directory, options=options)) as transport:
        client = PlacementClient(transport)
        for name in ("f1", "f2", "f3"):
            write_host(client, name, 4096, frozenset(), 0)
        for name, consumer in (("f1", BIG), ("f2", WEB), ("f3", DB)):
            held, kind = {uuid_of(name): {"VCPU": 10}}, "MIGRATION" if name == "f1" else "INSTANCE"
            client.write_allocations(ConsumerAllocations(consumer, held, consumer_type=kind))
        move = MoveNote(WEB, "web1", "live_migrate", "destination", "begun")
        client.leave_note(uuid_of("f2"), HostNote("ready", "0.1.0", moves=(move,)))
        client.leave_note(uuid_of("f3"), HostNote("ready", "0.1.0", reshape="it waits for a move"))
        yield f"unix:{directory}/s"


@pytest.mark.parametrize(
    ("host", "change"),
    [
        ("f1", f"confirm the move whose migration {BIG} has a place on f1 (`plimsoll move confirm`)"),
        ("f2", f"revert the move of {WEB} to f2 (`plimsoll move revert`)"),
        ("f3", "f3 may have room once its reshape is done: it waits for a move"),
    ],
    ids=["source", "destination", "reshape"],
)
def test_the_end_of_a_move_that_makes_room_is_named_and_a_reshape_that_may(
    moved: str, host: str, change: str
) -> None:
    done = where(moved, "--resources", "VCPU=8", "--host", host)
    assert done.returncode == ExitCode.REFUSED
    assert f"  {change}" in done.stdout.splitlines()


def test_never_rests_on_no_host_whose_reshape_is_pending(moved: str) -> None:
    """It has less than that now, even without guests, and may have more once the reshape is done."""
    of_f3 = ("--resources", "VCPU=20", "--host", "f3")
    for words in (of_f3, of_f3[:2], ("--resources", "VCPU=6", "--count", "9")):
        done = where(moved, *words)
        assert done.returncode == ExitCode.REFUSED and done.stdout.startswith("not now: ")
        assert "not known: What f3 can give after the reshape that is pending there." in done.stdout
    assert where(moved, "--resources", "VCPU=20", "--host", "f1").returncode == ExitCode.NEVER


def test_of_a_host_that_reports_no_cells_it_is_said_that_they_are_not_known(moved: str) -> None:
    words = ("--flavor", "vcpus=4,memory_mb=1024", "--host", "f1")
    done = where(moved, *words, "--spec", "hw:numa_nodes=2")
    assert done.returncode == ExitCode.DONE
    assert done.stdout.splitlines()[-1] == (
        "not known: NUMA cells of f1: none are reported. Such a host decides whether it has cells for the "
        "guest when it is claimed from."
    )
    assert "not known" not in where(moved, *words).stdout


def test_never_names_what_no_host_has_in_the_words_of_the_request(url: str) -> None:
    done = where(url, *FLAVOR, "--spec", "resources1:VGPU=1", "--spec", "trait1:CUSTOM_H100=required")
    assert (done.returncode, done.stderr) == (ExitCode.NEVER, "")
    lines = done.stdout.splitlines()
    assert lines[0] == (
        "never: none of 5 hosts has trait CUSTOM_H100 beside the rest of the request, "
        "even with nothing in use"
    )
    assert lines[1] == "closed: hv4 (disabled for schedulers by COMPUTE_STATUS_DISABLED)"
    assert lines[-1].split() == ["trait", "CUSTOM_H100", "trait1:CUSTOM_H100=required", "3", "3", "0"]
    numa = where(url, *FLAVOR, "--spec", "hw:numa_nodes=2", "--spec", "hw:cpu_policy=dedicated")
    assert numa.returncode == ExitCode.NEVER
    assert "2 PCPU          hw:cpu_policy=dedicated hw:numa_nodes=2      5" in numa.stdout
    absent = where(url, "--resources", "VCPU=1,CUSTOM_ABSENT=1")
    assert absent.returncode == ExitCode.NEVER
    assert absent.stdout.startswith("never: none of 5 hosts has 1 CUSTOM_ABSENT, even with nothing in use\n")


def test_guests_that_are_counted_against_each_other(url: str) -> None:
    words = ("--resources", "VCPU=4,MEMORY_MB=4000", "-o", "json", "--count")
    three = json_of(where(url, *words, "3"))
    assert three["verdict"] == "fits"
    assert [place["host"] for place in three["places"]] == ["hv1", "hv1", "hv3"]
    assert (three["hosts"]["fit"], three["hosts"]["complete"]) == (2, False)
    done = where(url, *words, "5")
    assert done.returncode == ExitCode.REFUSED
    five = json_of(done)
    assert len(five["places"]) == 4
    assert five["sentence"] == (
        "not now: 4 of 5 have a place; 4 of 5 hosts could; hv2, the nearest, is 488 MiB of MEMORY_MB short"
    )
    never = where(url, "--group", "1:VGPU=2", "--count", "4")
    assert never.returncode == ExitCode.NEVER
    assert never.stdout.startswith(
        "never: 2 of 4 have a place; not all of them fit on 5 hosts, even with nothing in use\n"
    )


def test_alternatives_count_in_their_order(url: str) -> None:
    four, two, one = (("--group", f"1:VGPU={number}") for number in (4, 2, 1))
    answer = json_of(where(url, *four, "--or", *two, "--or", *one, "-o", "json"))
    assert (answer["verdict"], answer["alternative"]) == ("fits", 1)
    done = where(url, *four, "--or", "--resources", "MEMORY_MB=9000")
    assert done.returncode == ExitCode.REFUSED
    assert done.stdout.startswith("none of 2 alternatives fits; number 2 is not now: 4 of 5 hosts could; ")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--host", "hv9"), "Placement has no host 'hv9': did you mean hv5?"),
        (("--host", "hv1_gpu0"), "'hv1_gpu0' is a provider of a host and no host: name its root provider."),
        (("--host", "hv1", "--host", "hv1"), "--host is given 2 times: ask of one host, or of all"),
        (("--count", "0"), "--count '0' is not a whole number from 1 to 1000"),
        (
            ("--domain", "/dev/null", "--or", "--domain", "/dev/null"),
            "--domain is given 2 times: alternatives are asked for beside one domain; ask for each domain",
        ),
        (("--domain", "/dev/null"), "where: --domain needs the driver of an agent, so it cannot go with --p"),
        (("--spec", "pci_passthrough:alias=a:1"), "pci_passthrough:alias: an alias is in the settings of an"),
        (
            ("--or",),
            "give the resources by --file, by --flavor, by --resources or --group, and none is given",
        ),
    ],
)
def test_bad_input_gets_a_sentence(url: str, words: tuple[str, ...], sentence: str) -> None:
    done = where(url, *FLAVOR, *words)
    assert done.returncode == ExitCode.USAGE
    assert one_line(done).startswith(f"plimsoll: {sentence}")


def test_a_request_of_very_many_groups_is_refused(url: str, tmp_path: Path) -> None:
    groups = [{"suffix": f"g{number}", "resources": {"VGPU": 1}} for number in range(10_000)]
    (tmp_path / "body.json").write_text(json.dumps({"groups": groups, "group_policy": "none"}))
    done = where(url, "--file", str(tmp_path / "body.json"))
    assert done.returncode == ExitCode.USAGE
    assert one_line(done).startswith("plimsoll: groups: 10000 groups are asked for, 64 are allowed")


def test_a_url_of_another_kind_is_refused_by_the_name_of_its_option() -> None:
    done = where("ftp://example", *FLAVOR)
    assert done.returncode == ExitCode.USAGE
    assert one_line(done).startswith(
        "plimsoll: --placement takes http://..., https://... or unix:PATH, not 'ftp"
    )


def test_a_placement_that_does_not_answer_is_named(tmp_path: Path) -> None:
    done = where(f"unix:{tmp_path}/absent", *FLAVOR)
    assert done.returncode == ExitCode.FAILED
    assert f"{tmp_path}/absent" in one_line(done)


def test_an_agent_is_asked_for_its_own_placement(agent: ServedAgent) -> None:
    done = agent("where", "--resources", "VCPU=1", "-o", "json")
    assert (done.returncode, done.stderr) == (ExitCode.DONE, "")
    (place,) = json_of(done)["places"]
    assert place["uuid"] == agent.world.operations.identity.uuid
    short = agent("where", "--resources", "VCPU=100000")
    assert short.returncode == ExitCode.NEVER
