"""Names and unique prefixes wherever a uuid is taken; moves, by name, on both hosts; completion by TAB."""

import csv
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import shtab
from kits.agent import World, opened
from kits.api_client import serving
from kits.cli_process import COMMAND, DEADLINE_S, ENVIRONMENT, one_line, output_of, plimsoll
from kits.status import FORGOTTEN, MIGRATION, Sight, guest, uuid_of

from agent.cli.parser import build
from agent.config.settings import Settings, load
from agent.driver import Guest, GuestState
from agent.errors import ExitCode
from agent.status.web import render_page

WANTED = ("--resources", "VCPU=1,MEMORY_MB=512")
WEB = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"
MOVE = "0d1c7a52-8f0e-4f2b-9d4b-3a5f0a7c6e21"


class Hosts(NamedTuple):
    source: Path
    destination: Path
    at_source: World


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    """Two hosts on one embedded core; no pass runs by itself."""
    a = opened(_settings(tmp_path / "a", "node1"))
    b = opened(_settings(tmp_path / "b", "node2"), over=a.wire.inner)
    for world in (b, a):
        world.agent.reconcile("the start")
    with serving(a.operations, tmp_path / "s"), serving(b.operations, tmp_path / "t"):
        yield Hosts(tmp_path / "s", tmp_path / "t", a)
    for world in (b, a):
        world.close()


def _settings(directory: Path, host: str) -> Settings:
    directory.mkdir()
    file = directory / "plimsoll.conf"
    lines = ["[DEFAULT]", "compute_driver = fake", f"host = {host}", f"state_path = {directory}"]
    file.write_text("\n".join([*lines, "[placement]", "kind = embedded"]) + "\n")
    return load([file])


def test_an_instance_by_its_name_in_each_command_that_takes_a_uuid(full: tuple[Sight, Path]) -> None:
    _, path = full
    uuid = uuid_of(FORGOTTEN)
    for command in (("explain",), ("history", "--consumer")):
        assert output_of(path, *command, FORGOTTEN) == output_of(path, *command, uuid)
        assert output_of(path, *command, uuid[:8]) == output_of(path, *command, uuid)
    found = plimsoll(path, "audit", FORGOTTEN)
    assert found.returncode == ExitCode.DRIFT_FOUND and uuid in found.stdout
    assert found.stdout == plimsoll(path, "audit", uuid[:6]).stdout
    assert output_of(path, "audit", "db1") == "nothing differs\n"


def test_a_migration_is_told_from_its_instance(full: tuple[Sight, Path]) -> None:
    _, path = full
    (row,) = (line for line in output_of(path, "instances").splitlines() if MIGRATION in line)
    assert row.split()[:4] == [MIGRATION, "web1", "none", "migration"]
    assert f"Its move (same_host_resize, migration {MIGRATION}" in output_of(path, "explain", "web1")
    assert plimsoll(path, "release", "web1", "--help").returncode == ExitCode.DONE
    events = output_of(path, "history", "--consumer", "web1")
    assert f"{uuid_of('web1')} (web1)" in events and f"{MIGRATION} (web1)" not in events


def test_tables_show_names_and_uuids(full: tuple[Sight, Path]) -> None:
    _, path = full
    for command in (("instances",), ("move", "list"), ("top", "--once"), ("history", "--limit", "100")):
        said = output_of(path, *command)
        assert uuid_of("web1") in said and "web1" in said
    assert uuid_of("db1") in output_of(path, "top", "--once")


def test_tables_are_csv_with_the_columns_that_were_asked_for(full: tuple[Sight, Path]) -> None:
    """As `openstack` clients write it: each text in quotes, the titles first, -c once for each column."""
    _, path = full
    shown = output_of(path, "instances", "-o", "csv", "-c", "name", "-c", "uuid").splitlines()
    assert shown[0] == '"NAME","UUID"'
    assert f'"db1","{uuid_of("db1")}"' in shown
    rows = list(csv.reader(output_of(path, "instances", "-o", "csv").splitlines()))
    assert {len(row) for row in rows} == {len(rows[0])} and rows[0][:2] == ["UUID", "NAME"]
    table = output_of(path, "instances", "-c", "NAME", "-c", "claim").splitlines()
    assert table[0].split() == ["NAME", "CLAIM"] and "db1            claimed" in table
    assert output_of(path, "history", "-o", "csv", "-c", "what", "--limit", "1") == '"WHAT"\n"move_grant"\n'


def test_csv_is_refused_before_the_command_changes_anything(fresh: tuple[Sight, Path]) -> None:
    _, path = fresh
    output_of(path, "claim", "--name", "db1", *WANTED)
    output_of(path, "pause", "--reason", "new memory")
    before = [output_of(path, command) for command in ("instances", "history")]
    for words in (
        ("claim", WEB, *WANTED),
        ("release", "db1"),
        ("pause", "--reason", "new disks"),
        ("drain",),
        ("resume",),
        ("devices", "cordon", "0000:41:00.0"),
        ("move", "begin", "db1", "--kind", "live-migrate"),
        ("audit", "--heal"),
    ):
        refused = plimsoll(path, *words, "-o", "csv")
        assert refused.returncode == ExitCode.USAGE
        assert "cannot be csv: take json or yaml" in refused.stderr and refused.stdout == ""
    assert [output_of(path, command) for command in ("instances", "history")] == before
    assert "new memory" in output_of(path, "status")


def test_the_history_finds_what_was_released_by_its_name(fresh: tuple[Sight, Path]) -> None:
    sight, path = fresh
    output_of(path, "claim", WEB, *WANTED, "--name", "web1")
    by_uuid = output_of(path, "release", "web1") and output_of(path, "history", "--consumer", WEB)
    assert f"{WEB} (web1)" in by_uuid and "release" in by_uuid
    for word in ("web1", WEB[:8], WEB[:8].upper()):
        assert output_of(path, "history", "--consumer", word) == by_uuid
    explained = plimsoll(path, "explain", "web1")
    assert explained.returncode == ExitCode.FAILED
    assert f"{WEB} (last event: gone at " in one_line(explained) and "plimsoll history" in one_line(explained)

    def claim_and_release(uuid: str) -> None:
        output_of(path, "claim", uuid, *WANTED, "--name", "web1")
        output_of(path, "release", uuid)

    other, third = WEB.replace("5b2c", "6b2c"), WEB.replace("5b2c", "7b2c")
    claim_and_release(other)
    both = plimsoll(path, "history", "--consumer", "web1")
    assert both.returncode == ExitCode.USAGE and WEB in both.stderr and other in both.stderr
    output_of(path, "claim", third, *WANTED, "--name", "web1")
    assert third in output_of(path, "history", "--consumer", "web1"), "what is here comes before what is gone"
    missing = plimsoll(path, "history", "--consumer", "web2")
    assert missing.returncode == ExitCode.FAILED and "did you mean web1?" in one_line(missing)
    assert sight.host_status.find_event_subject(MIGRATION) == MIGRATION, "a uuid needs no event"


def test_the_history_knows_a_guest_by_the_name_that_libvirt_gives_it(fresh: tuple[Sight, Path]) -> None:
    """Where the claim was made without a name, or under another one."""
    sight, path = fresh
    for name in ("bare", "named"):
        label = ("--name", "else") if name == "named" else ()
        output_of(path, "claim", uuid_of(name), *WANTED, *label)
        sight.world.driver.add_guest(guest(name, VCPU=1, MEMORY_MB=512))
    sight.world.agent.reconcile("guests")
    for name in ("bare", "named"):
        sight.world.driver.remove_guest(uuid_of(name))
    sight.world.agent.reconcile("no guests")
    for name in ("bare", "named"):
        output_of(path, "release", uuid_of(name))
        assert f"{uuid_of(name)} ({name})" in output_of(path, "history", "--consumer", name)


def test_a_resize_keeps_the_name(fresh: tuple[Sight, Path]) -> None:
    _, path = fresh
    output_of(path, "claim", WEB, *WANTED, "--name", "web1")
    begun = ("move", "begin", "web1", "--kind", "resize", "--migration", MOVE, "--resources", "VCPU=2")
    assert f"same_host_resize of {WEB} (web1): begun" in output_of(path, *begun)
    assert output_of(path, *begun) == output_of(path, *begun), "the same request again is no error"
    assert "(web1): confirmed" in output_of(path, "move", "confirm", "web1")
    assert f"{WEB}  web1 " in output_of(path, "instances")


def test_the_source_looks_before_it_says_that_it_knows_no_such_move(hosts: Hosts) -> None:
    output_of(hosts.source, "claim", WEB, *WANTED, "--name", "web1")
    refused = plimsoll(hosts.destination, "move", "begin", "web1", "--kind", "cold-migrate", *WANTED)
    assert refused.returncode == ExitCode.FAILED and "give its uuid" in one_line(refused)
    begun = output_of(
        hosts.destination, "move", "begin", WEB, "--kind", "cold-migrate", "--migration", MOVE, *WANTED
    )
    assert "node1  " in begun and "node2  " in begun, "providers of both hosts have their names"
    # No pass and no verification has run at the source since.
    shown = output_of(hosts.source, "move", "show", MOVE)
    assert f"of {WEB} (web1): begun" in shown and "node1  " in shown
    assert "web1" in output_of(hosts.source, "move", "list")
    assert "(web1): confirmed" in output_of(hosts.source, "move", "confirm", "web1")
    assert "confirmed" in output_of(hosts.destination, "move", "list", "--all")


def test_a_migration_that_nobody_began_is_refused_after_the_look(hosts: Hosts) -> None:
    refused = plimsoll(hosts.source, "move", "confirm", "web1")
    assert refused.returncode == ExitCode.FAILED and "no migration 'web1'" in one_line(refused)


def test_tab_completes_consumers_from_the_running_agent(full: tuple[Sight, Path], tmp_path: Path) -> None:
    script = tmp_path / "plimsoll"
    script.write_text(shtab.complete(build(), shell="bash"), encoding="utf-8")
    _, path = full
    assert _completed(script, path, "release", "we") == ["web1", "web2"]
    assert _completed(script, path, "domain", "we") == ["web1", "web2"]
    assert _completed(script, path, "explain", uuid_of("db1")[:5]) == [uuid_of("db1")]
    assert _completed(script, path, "move", "confirm", MIGRATION[:4]) == [MIGRATION]
    assert _completed(script, tmp_path / "nobody", "release", "we") == []


def _completed(script: Path, socket: Path, *words: str) -> list[str]:
    """What bash offers after `plimsoll WORDS`."""
    spelt = " ".join(map(shlex.quote, ("plimsoll", *words)))
    asked = (
        f'plimsoll() {{ {sys.executable} -m agent.cli.main "$@"; }}; source {script}; '
        f"COMP_WORDS=({spelt}); COMP_CWORD={len(words)}; "
        f'_shtab_plimsoll plimsoll {shlex.quote(words[-1])} x; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(
        ["bash", "-c", asked],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
        env={**ENVIRONMENT, "PLIMSOLL_SOCKET": str(socket)},
    )
    return done.stdout.split()


def claimed(path: Path, *words: str) -> str:
    """The uuid of the claim that the command makes."""
    return str(json.loads(output_of(path, "claim", *words, "-o", "json"))["consumer"])


def number_of_claims(path: Path) -> int:
    return int(json.loads(output_of(path, "status", "-o", "json"))["claims"]["count"])


def test_one_name_is_one_claim_unless_it_is_to_be_new(fresh: tuple[Sight, Path], tmp_path: Path) -> None:
    _, path = fresh
    web = claimed(path, "--name", "web1", *WANTED)
    assert claimed(path, "--name", "web1", *WANTED) == web
    (tmp_path / "body").write_text('{"name": "web1", "groups": [{"resources": {"VCPU":1,"MEMORY_MB":512}}]}')
    assert claimed(path, "--file", str(tmp_path / "body")) == web
    assert claimed(path, "web1", *WANTED, "--name", "web1") == web
    assert claimed(path, web[:8], *WANTED, "--name", "web1") == web
    assert claimed(path, "web1", *WANTED) == claimed(path, web, *WANTED) == web
    assert number_of_claims(path) == 1
    other = plimsoll(path, "claim", "--name", "web1", "--resources", "VCPU=7")
    assert other.returncode == ExitCode.REFUSED
    assert f"web1 ({web}) is claimed already, with another request (512 MEMORY_MB, 1 VCPU)" in one_line(other)
    assert "where its guest runs); --new claims for another instance" in one_line(other)
    new = {claimed(path, *words, "--name", "web1", *WANTED) for words in (("--new",), ("new",))}
    assert len(new | {web}) == number_of_claims(path) == 3
    unclear = plimsoll(path, "claim", "--name", "web1", *WANTED)
    assert unclear.returncode == ExitCode.USAGE
    assert all(uuid in one_line(unclear) for uuid in {web, *new}) and "--new" in one_line(unclear)


def test_one_name_is_one_claim_for_two_that_claim_at_once(fresh: tuple[Sight, Path]) -> None:
    """As a script that somebody starts twice: none of them can see the claim of the others yet."""
    _, path = fresh
    words = ("claim", "--name", "web1", *WANTED, "-o", "json", "--socket", str(path))
    both = [subprocess.Popen([*COMMAND, *words], env=ENVIRONMENT, stdout=subprocess.PIPE) for _ in range(4)]
    made = {json.loads(each.communicate(timeout=DEADLINE_S)[0])["consumer"] for each in both}
    assert len(made) == number_of_claims(path) == 1


def test_a_claim_finds_the_guest_of_that_name(fresh: tuple[Sight, Path]) -> None:
    shown, path = fresh
    for name in ("web1", "web2"):
        shown.world.driver.add_guest(guest(name, VCPU=1, MEMORY_MB=512))
    shown.world.agent.reconcile("two guests")
    explained = json.loads(output_of(path, "claim", "--name", "web1", *WANTED, "--dry-run", "-o", "json"))
    assert explained["consumer"] == uuid_of("web1")
    assert claimed(path, "web1", *WANTED) == uuid_of("web1")
    assert claimed(path, "--name", "web2", *WANTED) == uuid_of("web2")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("web3", *WANTED),
            "this host has no instance 'web3': did you mean web1? --name claims for a new one",
        ),
        (("x", *WANTED), "`plimsoll instances` lists those that there are; --name claims for a new one"),
        (("web1", "--new", *WANTED), "--new makes a new instance, and CONSUMER names one"),
    ],
)
def test_a_consumer_that_is_no_instance(fresh: tuple[Sight, Path], words: tuple[str, ...], said: str) -> None:
    _, path = fresh
    claimed(path, "--name", "web1", *WANTED)
    done = plimsoll(path, "claim", *words)
    assert done.returncode != ExitCode.DONE and said in one_line(done)
    assert number_of_claims(path) == 1


@pytest.fixture
def moving(hosts: Hosts) -> Hosts:
    """A guest of the source is on its way: the migration holds its place there, and the source knows it."""
    output_of(hosts.source, "claim", WEB, *WANTED, "--name", "web1")
    hosts.at_source.driver.add_guest(Guest(WEB, "web1", GuestState.RUNNING, {"VCPU": 1, "MEMORY_MB": 512}))
    hosts.at_source.agent.reconcile("a guest")
    begin = ("move", "begin", WEB, "--kind", "live-migrate", "--migration", MOVE, *WANTED)
    output_of(hosts.destination, *begin, "--name", "web1")
    assert MOVE in output_of(hosts.source, "move", "list")
    return hosts


def test_a_release_at_the_source_of_a_move_says_how_to_end_that(moving: Hosts) -> None:
    """Force does not release it there, so it is not advised."""
    refused = plimsoll(moving.source, "release", "web1")
    assert refused.returncode == ExitCode.REFUSED
    assert f"`plimsoll move confirm {MOVE}`" in one_line(refused) and "--force" not in one_line(refused)
    output_of(moving.source, "move", "revert", MOVE)


def test_a_release_at_the_destination_of_a_move_needs_force(moving: Hosts) -> None:
    """It frees the place at the source, where the guest runs."""
    refused = plimsoll(moving.destination, "release", "web1")
    assert refused.returncode == ExitCode.REFUSED
    assert f"`plimsoll move revert {MOVE}`" in one_line(refused) and "--force" in one_line(refused)
    assert MOVE in output_of(moving.source, "move", "list")
    output_of(moving.destination, "release", "web1", "--force")


def test_a_moving_guest_is_not_unclaimed(moving: Hosts) -> None:
    for command in (("instances",), ("top", "--once")):
        text = output_of(moving.source, *command)
        assert "UNCLAIMED" not in text and re.search(r"web1 .*running +moving +MEMORY_MB=512,VCPU=1", text)
    (row,) = (
        each
        for each in json.loads(output_of(moving.source, "instances", "-o", "json"))["instances"]
        if each["uuid"] == WEB
    )
    assert (row["claim"], row["migration"]) == (None, MOVE)
    drained = plimsoll(moving.source, "drain").stdout
    assert (
        "moving: `plimsoll move list` says whose turn it is" in drained and "unclaimed" not in drained.lower()
    )
    status = moving.at_source.agent.host_status
    page = render_page(status.overview(), None, ()).partition("</style>")[2]
    assert '<span class="tag busy">moving</span>' in page and "unclaimed" not in page
    assert b"plimsoll_unclaimed_guests 0.0" in status.metrics()
    assert "1 unclaimed" not in output_of(moving.source, "tree")


def test_a_name_is_that_of_an_instance_that_moves_away_until_the_move_has_ended(hosts: Hosts) -> None:
    """It has no guest, and its claim is the migration's here."""
    output_of(hosts.source, "claim", WEB, *WANTED, "--name", "web1")
    begin = ("move", "begin", WEB, "--kind", "cold-migrate", "--migration", MOVE, *WANTED)
    output_of(hosts.destination, *begin, "--name", "web1")
    assert MOVE in output_of(hosts.source, "move", "list")
    refused = plimsoll(hosts.source, "claim", "--name", "web1", *WANTED)
    assert refused.returncode == ExitCode.REFUSED
    assert f"web1 ({WEB}) is moving (migration {MOVE}, " in one_line(refused)
    assert "--new" in one_line(refused)
    output_of(hosts.source, "move", "confirm", MOVE)
    assert claimed(hosts.source, "--name", "web1", *WANTED) != WEB


@pytest.mark.parametrize("kind", ["resize", "rebuild", "live-migrate"])
def test_a_begin_that_is_refused_beside_a_move_says_which(hosts: Hosts, kind: str) -> None:
    """The source has not looked since the move began elsewhere; Placement knows it."""
    output_of(hosts.source, "claim", WEB, *WANTED, "--name", "web1")
    output_of(hosts.destination, "move", "begin", WEB, "--kind", "live-migrate", "--migration", MOVE, *WANTED)
    refused = plimsoll(hosts.source, "move", "begin", "web1", "--kind", kind, "--resources", "VCPU=2")
    assert refused.returncode == ExitCode.REFUSED
    assert f"web1 ({WEB}) is moving (migration {MOVE}, " in one_line(refused)
    assert "confirm or revert that first" in one_line(refused)
    again = plimsoll(hosts.source, "move", "begin", "web1", "--kind", "resize", "--resources", "VCPU=2")
    assert f"web1 ({WEB}) is moving already: migration {MOVE} " in one_line(again)


PORT = """<domain type='kvm'><name>web2</name><memory>524288</memory><vcpu>1</vcpu><devices>
<interface type='hostdev'><source>
<address type='pci' domain='0x0000' bus='0x41' slot='0x02' function='0x0'/></source></interface>
</devices></domain>
"""


def test_a_refusal_names_the_holder_by_its_name(fresh: tuple[Sight, Path], tmp_path: Path) -> None:
    _, path = fresh
    (tmp_path / "web2.xml").write_text(PORT)
    claim = ("claim", "--domain", str(tmp_path / "web2.xml"))
    web1 = claimed(path, "--name", "web1", *WANTED, "--group", "net:SRIOV_NET_VF=1")
    refused = plimsoll(path, *claim)
    assert f"0000:41:02.0 belongs to web1 ({web1})" in one_line(refused)
    begin = ("move", "begin", "web1", "--kind", "resize", "--migration", MOVE)
    output_of(path, *begin, "--resources", "VCPU=2,MEMORY_MB=512")
    refused = plimsoll(path, *claim)
    assert f"0000:41:02.0 belongs to migration {MOVE} of web1 ({web1})" in one_line(refused)
    assert f"web1 ({web1}) is moving (migration {MOVE}, same_host_resize, begun)" in one_line(
        plimsoll(path, "claim", "web1", "--resources", "VCPU=3")
    )
