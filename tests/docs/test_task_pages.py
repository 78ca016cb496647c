"""The pages of tasks: their commands, as they stand, on a host; and what follows from them."""

import fnmatch
import json
import re
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.doc_commands import DOCS, EMBEDDED, Host, blocks, fenced, served_placement
from kits.pci_tree import PciTree
from kits.tracker import fast_directory

from agent.cli.parser import build, defaults
from agent.daemon.service_install import Sources, all_paths
from agent.errors import PlimsollError
from drivers.host.domain_xml import passed_addresses

CELLS = [{"id": 0, "cpus": "0-7", "memory_mb": 131072}]
THREADS = ("0-15,32-47", "16-31,48-63")
CARD = "0000:84:00.0"
WHOLE_CARD = {"address": CARD, "total": 1, "resource_class": "PGPU", "units": [CARD]}
GPUS = [{"address": CARD, "total": 8}]
OTHER = "8d7b4f34-5d0c-4d8c-8a2d-6b1f0e9c7a21"
CONSUMER = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"
TASKS = (
    "gpu-guest",
    "maintenance",
    "capping",
    "backup",
    "removing",
    "programs",
    "python",
    "other-programs",
    "terraform",
    "places",
    "install",
    "after-a-reboot",
)


@pytest.fixture
def directory() -> Iterator[Path]:
    with fast_directory() as name:
        yield Path(name)


def test_maintenance(directory: Path) -> None:
    pause, resume = blocks("maintenance.md")
    with Host(directory, cells=CELLS) as host:
        assert "new memory on Tuesday" in host.run(pause)
        host.run("plimsoll claim --resources VCPU=1", code=5)
        assert host.run(resume).startswith("resumed: ")
        host.run("plimsoll claim --resources VCPU=1")


def test_a_guest_that_is_shut_off_without_a_claim_is_left_on_a_drained_host(directory: Path) -> None:
    text = (DOCS / "maintenance.md").read_text("utf-8")
    with Host(directory, cells=CELLS, guests=[_shut_off("template")], disk_gb=100) as host:
        advice = host.run("plimsoll drain --reason 'a test'", code=3).splitlines()[-1]
        assert advice.startswith("shut off: ")
        for command in ("virsh undefine", "virsh migrate --offline --persistent --undefinesource"):
            assert command in advice and f"{command} NAME" in text


def test_capping(directory: Path) -> None:
    (commands,) = blocks("capping.md")
    with Host(directory, cells=CELLS, gpus=GPUS) as host:
        host.settings.write_text(host.settings.read_text() + fenced("capping.md", "ini"))
        assert "0 of 65536 in use." in host.run(commands)
        host.run("plimsoll claim --resources VGPU=5", code=5)
        host.run("plimsoll claim --resources VGPU=4,MEMORY_MB=65536")
        host.run("plimsoll claim --resources MEMORY_MB=1", code=5)


def test_backup_and_restore(directory: Path) -> None:
    backup, restore, _ = blocks("backup.md")
    with Host(directory, cells=CELLS) as host:
        host.run(f"plimsoll claim {CONSUMER} --name web1 --resources VCPU=1")
        host.run(backup)
        host.run("plimsoll release web1; plimsoll claim --name later --resources VCPU=1")
        assert "nothing differs" in host.run(restore)
        instances = host.run("plimsoll instances")
        assert "web1" in instances and "later" not in instances


def test_backup_with_a_remote_placement_and_restore_on_a_new_disk(directory: Path) -> None:
    backup, restore, settings = blocks("backup.md")
    guest = {"uuid": CONSUMER, "name": "web1", "state": "shutoff", "resources": {"VCPU": 1}}
    later = {"uuid": OTHER, "name": "later", "resources": {"VCPU": 2}}
    with served_placement(directory) as section:
        before, after = directory / "before", directory / "after"
        for disk in (before, after):
            disk.mkdir()
        with Host(before, "kvm-1", section, cells=CELLS, guests=[guest]) as host:
            host.run(f"plimsoll claim {CONSUMER} --name web1 --resources VCPU=1")
            host.run(backup)
            assert {path.name for path in (before / "backup" / "state").iterdir()} == {
                "agent.db",
                "host_id",
                "host_name",
            }
            uuid = json.loads(host.run("plimsoll status -o json"))["uuid"]
        shutil.copytree(before / "backup", after / "backup")
        with Host(after, "another-name", cells=CELLS, guests=[guest, later]) as host:
            host.run(settings)
            moved = host.settings.read_text().replace(str(before), str(after))
            host.settings.write_text(moved)
            assert "unclaimed instance" in host.run(restore, code=3)
            status = json.loads(host.run("plimsoll status -o json"))
            assert (status["host"], status["uuid"]) == ("kvm-1", uuid)
            host.run("plimsoll audit --heal", code=4)
            assert host.run("plimsoll instances").count(" claimed ") == 2


def test_what_is_there_after_a_restart(directory: Path) -> None:
    (look,) = blocks("after-a-reboot.md")
    with Host(directory, cells=CELLS, gpus=[WHOLE_CARD]) as host:
        host.run("plimsoll claim --name web1 --resources VCPU=1")
        host.run(f"plimsoll devices cordon {CARD} --reason 'a test'; plimsoll pause --reason 'a kernel'")
        host.run("systemctl stop plimsoll-agent; systemctl start plimsoll-agent")
        assert "a kernel" in host.run("plimsoll status") and "a test" in host.run("plimsoll devices list")
        host.run("plimsoll resume; plimsoll devices clear " + CARD)
        assert "web1" in host.run(look)


def test_joining_a_fleet(directory: Path) -> None:
    (commands,) = blocks("joining.md")
    copy, rest = commands.replace("HOST", "kvm-1").split("plimsoll placement ping", 1)
    with served_placement(directory) as section, Host(directory, "kvm-1", cells=CELLS, gpus=GPUS) as host:
        host.run(f"plimsoll claim {CONSUMER} --name web1 --resources VCPU=1,VGPU=2")
        host.run(copy)
        joined = host.settings.with_name("joined.conf")
        joined.write_text(host.settings.read_text().replace(EMBEDDED, section))
        host.run(f"cd /etc/plimsoll\nplimsoll placement ping{rest}")
        assert "http" in host.run("plimsoll placement ping --config-file /etc/plimsoll/plimsoll.conf")
        host.run("plimsoll look; plimsoll plan")
        assert "VCPU=1,VGPU=2" in host.run("plimsoll instances")


def test_the_table_of_places_has_each_file_of_the_state(directory: Path) -> None:
    text = (DOCS / "places.md").read_text("utf-8")
    rows = re.findall(r"^\| (`/var/lib/plimsoll/.*?) \|.*`plimsoll` 0600 \|$", text, re.MULTILINE)
    documented = [
        name.removeprefix("/var/lib/plimsoll/") for row in rows for name in re.findall(r"`(.*?)`", row)
    ]
    with Host(directory, cells=CELLS, gpus=[WHOLE_CARD]) as host:
        power = "[compute]\ncpu_dedicated_set = 4-7\ncpu_power_management = true\n"
        host.settings.write_text(host.settings.read_text() + power)
        host.run("systemctl stop plimsoll-agent; systemctl start plimsoll-agent")
        host.run("plimsoll claim --resources PGPU=1; plimsoll claim --resources PCPU=1,MEMORY_MB=512")
        host.run(f"plimsoll devices cordon {CARD}; plimsoll reshape --dry-run; plimsoll look || true")
        host.run("systemctl stop plimsoll-agent")
        host.run("plimsoll placement export --config-file /etc/plimsoll/plimsoll.conf")
        files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (directory / "state").iterdir()}
        assert {"agent.db", "placement.db", "host_id", "cpus.json"} <= set(files)
        undocumented = [
            name for name in files if not any(fnmatch.fnmatch(name, known) for known in documented)
        ]
        assert undocumented == []
        assert set(files.values()) == {0o600}
        host.run("systemctl start plimsoll-agent")


def test_the_table_of_places_has_each_file_that_install_service_writes() -> None:
    column = "".join(re.findall(r"^\| (`/.*?`) \|", (DOCS / "places.md").read_text("utf-8"), re.MULTILINE))
    documented = re.findall(r"`(.*?)`", column)
    undocumented = [
        path
        for path in all_paths(Sources.find())
        if not any(fnmatch.fnmatch(f"/{path}", known) for known in documented)
        and not any(fnmatch.fnmatch(f"/{path}", f"/etc/plimsoll/{known}") for known in documented)
    ]
    assert undocumented == []


def test_removing_a_host_of_a_fleet(directory: Path) -> None:
    (commands,) = blocks("removing.md")
    with Host(directory, "kvm-1", cells=CELLS, gpus=GPUS) as host:
        host.run("plimsoll drain --reason 'a test'")
        host.run(commands)
        left = host.run(
            "plimsoll placement export --config-file /etc/plimsoll/plimsoll.conf | "
            "jq '.resource_providers | length'"
        )
        assert left.strip() == "0"
        host.run("systemctl start plimsoll-agent")
        assert "kvm-1" in host.run("plimsoll tree"), "a host that comes back is reported again"


def _with_a_card() -> dict[str, object]:
    """A host with one whole card and one guest that libvirt knows and that is shut off."""
    return {"cells": CELLS, "gpus": [WHOLE_CARD], "guests": [_shut_off("train1")], "disk_gb": 100}


def _shut_off(name: str, vcpus: int = 2, memory_mb: int = 2048) -> dict[str, object]:
    """A guest that libvirt knows, with a disk of 40 GiB."""
    resources = {"VCPU": vcpus, "MEMORY_MB": memory_mb, "DISK_GB": 40}
    return {"uuid": CONSUMER, "name": name, "state": "shutoff", "resources": resources}


def test_the_hosts_that_stay_in_the_fleet_notice_nothing(directory: Path) -> None:
    (commands,) = blocks("removing.md")
    with served_placement(directory) as section:
        for name in ("kvm-1", "kvm-2"):
            (directory / name).mkdir()
        with (
            Host(directory / "kvm-1", "kvm-1", section, cells=CELLS, gpus=GPUS) as leaving,
            Host(directory / "kvm-2", "kvm-2", section, cells=CELLS, gpus=GPUS) as staying,
        ):
            staying.run(f"plimsoll claim {CONSUMER} --name web1 --resources VCPU=1,VGPU=2")
            leaving.run("plimsoll claim --name lost --resources VCPU=1")
            export = "plimsoll placement export --config-file /etc/plimsoll/plimsoll.conf"
            before = staying.run(f"{export} --root kvm-2")
            assert "all is well" in leaving.run(commands)
            assert staying.run(f"{export} --root kvm-2") == before
            names = staying.run(f"{export} | jq -r '.resource_providers[].name'").split()
            assert sorted(names) == ["kvm-2", f"kvm-2_pci_{CARD}"]
            staying.run("plimsoll look")


def test_a_gpu_from_its_specification_to_a_running_guest(directory: Path) -> None:
    look, claim, start = blocks("gpu-guest.md")
    tree = PciTree(directory / "root")
    tree.add(CARD, "nvidia", 13, class_="0x030200")
    with Host(directory, **_with_a_card(), root_path=str(tree.root)) as host:
        host.libvirt.define("train1", CONSUMER)
        host.settings.write_text(host.settings.read_text() + fenced("gpu-guest.md", "ini"))
        assert f"node1_pci_{CARD}: 0 of 1 in use." in host.run(look)
        checked = host.run(f"plimsoll doctor --device {CARD} --config-file /etc/plimsoll/plimsoll.conf")
        assert "libvirt binds it to vfio-pci when a guest with managed='yes' starts" in checked
        assert f"1 PGPU on node1_pci_{CARD}: {CARD}" in host.run(claim)
        assert passed_addresses(host.libvirt.xml("train1")) == {CARD: True}
        host.run(start)
        host.run("plimsoll look")
        (row,) = host.run("plimsoll instances").splitlines()[1:]
        assert row.split()[:4] == [CONSUMER, "train1", "running", "claimed"]


def test_a_claim_by_name_is_for_the_guest_of_that_name(directory: Path) -> None:
    with Host(directory, **_with_a_card()) as host:
        host.libvirt.define("train1", CONSUMER)
        host.run("plimsoll claim --name train1 --flavor vcpus=2,memory_mb=2048 --spec resources:PGPU=1")
        (row,) = (line for line in host.run("plimsoll instances").splitlines() if "train1" in line)
        assert row.split()[:4] == [CONSUMER, "train1", "shutoff", "claimed"]


def test_a_claim_under_a_new_uuid_keeps_the_card_from_the_guest_of_that_name(directory: Path) -> None:
    (_, _, start), (by_hand,) = blocks("gpu-guest.md"), blocks("gpu-guest.md", "by hand")
    with Host(directory, **_with_a_card()) as host:
        host.run("plimsoll claim --new --name train1 --flavor vcpus=2,memory_mb=2048 --spec resources:PGPU=1")
        host.libvirt.define("train1", CONSUMER)
        host.run("virsh dumpxml train1 | plimsoll domain train1 -", code=2)
        host.libvirt.define("train1", CONSUMER, by_hand)
        host.run(start, code=1)


def test_a_domain_that_names_the_card_is_claimed_when_it_starts(directory: Path) -> None:
    (_, _, start), (by_hand,) = blocks("gpu-guest.md"), blocks("gpu-guest.md", "by hand")
    with Host(directory, **_with_a_card()) as host:
        host.libvirt.define("train1", CONSUMER, by_hand)
        host.run(start)
        assert f"1 PGPU on node1_pci_{CARD}: {CARD}" in host.run("plimsoll explain train1")


NIC = {
    "ifname": "enp65s0f0",
    "address": "0000:41:00.0",
    "vfs": ["0000:41:02.0"],
    "physical_network": "physnet0",
}
PAGES_HOST = [
    {**CELLS[0], "id": cell, "cpus": cpus, "pages": {2048: 4096}} for cell, cpus in enumerate(THREADS)
]


@pytest.mark.parametrize(
    ("page", "number", "guest", "vcpus", "memory_mb", "given"),
    [
        ("gpus", 0, "render1", 2, 2048, "VGPU=1"),
        ("gpus", 1, "train1", 2, 2048, "PGPU=1"),
        ("sriov", 0, "net1", 2, 2048, "SRIOV_NET_VF=1"),
        ("numa", 0, "numa1", 8, 16384, "CUSTOM_HUGEPAGES_2048KIB=8192"),
    ],
)
def test_a_guest_that_libvirt_knows_gets_what_it_needs(
    directory: Path, page: str, number: int, guest: str, vcpus: int, memory_mb: int, given: str
) -> None:
    script = blocks(f"{page}.md")[number]
    cards = [{"address": "0000:42:00.0", "total": 8}, WHOLE_CARD]
    known = _shut_off(guest, vcpus, memory_mb)
    with Host(directory, cells=PAGES_HOST, disk_gb=100, gpus=cards, nics=[NIC], guests=[known]) as host:
        host.libvirt.define(guest, CONSUMER, vcpus=vcpus, memory_mb=memory_mb)
        if page == "numa":
            host.settings.write_text(host.settings.read_text() + fenced("numa.md", "ini"))
        host.run(script)
        if "--start" not in script:
            host.run(f"virsh start {guest}")
        table = host.run("plimsoll instances --column uuid --column claim --column resources")
        ((uuid, state, resources),) = map(str.split, table.splitlines()[1:])
        assert (uuid, state) == (CONSUMER, "claimed")
        assert {"DISK_GB=40", given} <= set(resources.split(","))


def test_programs_of_the_shell(directory: Path) -> None:
    curl, command_line = blocks("programs.md")
    with Host(directory, cells=CELLS) as host:
        said = host.run(curl)
        assert said.startswith("ready\n") and CONSUMER in said and '"released": true' in said
        assert "web1" in host.run(command_line)
        assert CONSUMER not in host.run("plimsoll instances")


def test_a_program_in_python(directory: Path) -> None:
    (program,) = blocks("programs.md", "python")
    with Host(directory, cells=CELLS) as host:
        (directory / "program.py").write_text(program)
        command = f"{sys.executable} {directory}/program.py"
        assert host.run(command).startswith("claimed {")
        assert host.run("plimsoll instances") == "no guests, no claims\n"
        host.run("plimsoll pause --reason 'a test'")
        refused = host.run(command)
        assert refused.startswith("refused: Claims are closed: the host is paused")


def test_a_program_has_a_claim_as_long_as_it_runs(directory: Path) -> None:
    _, _, pinned, podman, incus = blocks("other-programs.md")
    with Host(directory, cells=CELLS, gpus=[WHOLE_CARD], disk_gb=100) as host:
        compute = "[compute]\ncpu_shared_set = 0-3\ncpu_dedicated_set = 4-7\n"
        host.settings.write_text(host.settings.read_text() + compute)
        host.run("systemctl reload plimsoll-agent")
        said, shown = directory / "said", directory / "shown"
        for name in ("podman", "incus", "taskset"):  # each leaves its words, and what is claimed meanwhile
            host.program(name, f'echo {name} "$@" >>{said}; plimsoll instances >>{shown}\n')
        (group,) = re.findall(r"readlink .*?\)", podman)
        host.run(podman.replace(group, "echo /groups/17)"))
        host.run(incus)
        host.run(pinned)
        assert said.read_text().splitlines() in [
            [
                *[
                    "podman run --rm --name render --device /dev/vfio/vfio --device /dev/vfio/17 "
                    "registry.example/render"
                ],
                f"incus config device add c1 gpu0 gpu pci={CARD}",
                *["incus start c1", "incus list --format csv --columns s c1"],
                "incus config device remove c1 gpu0",
                f"taskset -c {cpus} nproc",
            ]
            for cpus in ("4-5", "6-7")
        ]
        assert {"render", "c1", "bench"} <= set(shown.read_text().split())
        assert host.run("plimsoll instances") == "no guests, no claims\n"


@pytest.mark.parametrize(("number", "given"), [(0, "DISK_GB=40"), (1, "PGPU=1")])
def test_a_guest_of_virsh_and_one_of_virt_install(directory: Path, number: int, given: str) -> None:
    script = blocks("other-programs.md")[number]
    known = _shut_off("web1", 2, 2048)
    with Host(directory, cells=CELLS, disk_gb=100, gpus=[WHOLE_CARD], guests=[known]) as host:
        host.libvirt.define("web1", CONSUMER, vcpus=2, memory_mb=2048)
        (directory / "printed.xml").write_text((host.libvirt.store / "web1.xml").read_text())
        host.program("virt-install", f"cat {directory}/printed.xml\n")
        host.run(script)
        ((uuid, state, resources),) = (
            line.split()
            for line in host.run("plimsoll instances -c uuid -c claim -c resources").splitlines()[1:]
        )
        assert (uuid, state) == (CONSUMER, "claimed") and given in resources.split(",")


@pytest.mark.parametrize("page", TASKS)
def test_each_command_of_the_pages_is_one_that_there_is(page: str) -> None:
    text = (DOCS / f"{page}.md").read_text("utf-8")
    lines = re.findall(r"^ {4,}(?:\$ |# |/opt/plimsoll/bin/)?plimsoll ([a-z].*)$", text, re.MULTILINE)
    for line in lines:
        words = line.partition("  #")[0].partition(" | ")[0].rstrip("\\ ").split()
        try:
            build().parse_args([word.strip("'\"") for word in _joined(words)], defaults())
        except PlimsollError as error:
            raise AssertionError(f"{page}: plimsoll {line}: {error.message}") from error


def _joined(words: list[str]) -> Iterator[str]:
    """The words with those between quotes as one."""
    quoted = ""
    for word in words:
        quoted = f"{quoted} {word}".strip() if quoted else word
        if quoted.count('"') % 2 == 0:
            yield quoted
            quoted = ""


@pytest.mark.parametrize("page", (*TASKS, "gate"))
def test_the_first_pages_lead_to_each_task(page: str) -> None:
    assert f"(docs/{page}.md" in (DOCS.parent / "README.md").read_text()
    table = (DOCS / "index.md").read_text().partition("```")[0]
    assert f"({page}.md" in table
