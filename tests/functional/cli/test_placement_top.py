"""`plimsoll placement top`: all hosts of a served core, and what an OpenStack Placement tells."""

from __future__ import annotations

import json
import os
import pty
import select
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kits.cli_process import one_line, output_of, plimsoll
from kits.embedded_api import Api, claim, new
from kits.placements import OpenStack

from agent.cli import top as screen
from agent.cli.main import main
from agent.errors import ExitCode
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.placement.embedded import Core
from agent.placement.embedded.serve import Server
from agent.tree import Inventory, Provider

NOTE = {"state": "ready", "version": "0.1.0"}
FLAVORS = {
    "m1.large": {"vcpus": 4, "memory_mb": 8192, "disk_gb": 40},
    "gpu": {"vcpus": 1, "memory_mb": 1024, "extra_specs": {"resources1:VGPU": "1"}},
}


class Served:
    """Three hosts: one is well, one closed, one silent because it has never left a note."""

    def __init__(self, core: Core, url: str) -> None:
        self.core, self.url, self.api = core, url, Api(core)
        for name in ("alpha", "beta", "\x1b[31mgamma"):
            uuid = self.api.provider(name)
            totals = {"VCPU": 16, "MEMORY_MB": 32768, "DISK_GB": 100}
            self.api.set_inventories(uuid, {each: {"total": total} for each, total in totals.items()})
            self.api.set_inventories(self.api.provider(f"{name} card", parent=uuid), {"VGPU": {"total": 2}})
            self.api.done(
                "PUT", f"/hosts/{uuid}/note", NOTE | ({"closed": "by hand"} if name == "beta" else {})
            )
        self.api.done("PUT", f"/allocations/{new()}", claim({self.uuid("alpha"): {"VCPU": 4}}))

    def uuid(self, name: str) -> str:
        return str(self.api.core._store.model.uuid_by_name[name])


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    url = f"unix:{tmp_path / 'placement.sock'}"
    with closing(Core.open(tmp_path / "state")) as core, Server(core, [url]):
        yield Served(core, url)


@pytest.fixture
def flavors(tmp_path: Path) -> str:
    file = tmp_path / "flavors.json"
    file.write_text(json.dumps(FLAVORS))
    return str(file)


NOWHERE = Path("/nonexistent")


def shown(*words: str) -> str:
    return output_of(NOWHERE, "placement", "top", *words)


def told(*words: str) -> Any:
    return json.loads(shown(*words, "-o", "json"))


def test_the_table_has_all_hosts_and_a_sentence(served: Served, flavors: str) -> None:
    out = shown("--url", served.url, "--room-for", "m1.large", "--flavors", flavors)
    titles, *rows = [line for line in out.splitlines() if line]
    assert titles.split()[:4] == ["HOST", "STATE", "ROOM", "STRANDED"] and "FREE VCPU" in titles
    assert rows[0].split()[:5] == ["beta", "closed", "-", "-", "16/16"] and rows[0].endswith("by hand")
    assert rows[1].split()[:5] == ["\\x1b[31mgamma", "ready", "2", "0", "16/16"]
    assert rows[2].split()[:5] == ["alpha", "ready", "2", "0", "12/16"]
    assert rows[3] == "3 hosts: 1 closed; room for 4 m1.large, 0 stranded"


def test_room_is_told_for_amounts_too(served: Served, flavors: str) -> None:
    assert told("--url", served.url, "--room-for", "vcpus=4,memory_mb=8GiB")["room"] == 7
    assert told("--url", served.url, "--room-for", "VGPU=1")["room"] == 4
    answer = told("--url", served.url, "--room-for", "gpu", "--flavors", flavors)
    assert answer["sentence"].endswith("room for 4 gpu, 0 stranded")
    assert answer["resources"]["VGPU"] == [4, 4] and answer["not_known"] == []


def test_it_is_sorted_searched_and_grouped(served: Served) -> None:
    assert told("--url", served.url, "--sort", "VCPU")["rows"][0]["name"] == "alpha"
    assert [row["name"] for row in told("--url", served.url, "--search", "BY HAND")["rows"]] == ["beta"]
    lines = shown("--url", served.url, "--group", "state", "--class", "VGPU").splitlines()
    assert [line.split()[:2] for line in lines[1:3]] == [["closed", "1"], ["ready", "2"]]
    assert lines[1].split()[2] == "-" and lines[0].split()[-4:] == ["INSTANCES", "MOVES", "WITH", "FINDINGS"]
    names = shown("--url", served.url, "-o", "csv", "-c", "HOST").splitlines()
    assert len(names) == 4 and names[0] == '"HOST"'


def test_a_standby_says_that_it_has_no_notes(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.core._home, "is_active", False)
    out = shown("--url", served.url)
    assert "This server has no notes of hosts: it is a standby" in out and "FINDINGS" not in out


def test_flavors_may_be_those_of_openstackclient(served: Served, tmp_path: Path) -> None:
    file = tmp_path / "list.json"
    listed = {"Name": "m1.tiny", "VCPUs": 1, "RAM": 512, "Disk": 0, "Properties": {"resources1:VGPU": "2"}}
    file.write_text(json.dumps([listed]))
    assert told("--url", served.url, "--room-for", "m1.tiny", "--flavors", str(file))["room"] == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--room-for", "m9"), "Cannot tell the room for 'm9'"),
        (("--room-for", "vcpus=4"), "memory_mb"),
        (("--room-for", "CUSTOM_X=1"), "No such resource class or trait: CUSTOM_X"),
        (("--sort", "colour"), "There is no column 'colour'"),
        (("--watch", "0"), "from 0.5 to 3600"),
        (("--class", "VGPU", "--class", "SRIOV_NET_VF"), "--class is given 2 times"),
        (("--room-for", "m9", "--flavors", "FLAVORS"), "has no flavor 'm9'; it has m1.large, gpu."),
        (("--room-for", "a", "--flavors", "/nonexistent"), "cannot be read"),
        (("--room-for", "a", "--flavors", "BROKEN"), "holds no flavors"),
        (("--room-for", "a", "--flavors", "ALIAS"), "a asks for devices by alias"),
        (("--room-for", "a", "--flavors", "WRONG"), "a.vcpus: expected a whole number"),
    ],
)
def test_what_cannot_be_shown_is_one_line(
    served: Served, flavors: str, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    files = {
        "BROKEN": "[1]",
        "ALIAS": '{"a": {"vcpus": 1, "memory_mb": 1, "extra_specs": {"pci_passthrough:alias": "a:1"}}}',
        "WRONG": '{"a": {"vcpus": 0, "memory_mb": 1}}',
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    names = {"FLAVORS": flavors, **{name: str(tmp_path / name) for name in files}}
    done = plimsoll(
        NOWHERE, "placement", "top", "--url", served.url, *(names.get(each, each) for each in words)
    )
    assert done.returncode == ExitCode.USAGE and said in one_line(done)


def test_it_is_drawn_again_until_q(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, in which the second drawing shows what has changed since."""
    ours, theirs = pty.openpty()
    drawn = b""
    with os.fdopen(theirs, "w") as out, os.fdopen(os.dup(theirs)) as keys:
        monkeypatch.setattr("sys.stdout", out)
        monkeypatch.setattr("sys.stdin", keys)
        codes: list[int] = []
        words = ["placement", "top", "--url", served.url, "--watch", "1"]
        thread = threading.Thread(target=lambda: codes.append(main(words)))
        thread.start()

        def until(text: bytes) -> None:
            nonlocal drawn
            end = time.monotonic() + 20
            while text not in drawn and time.monotonic() < end:
                if select.select([ours], [], [], 0.2)[0]:
                    drawn += os.read(ours, 65536)
            assert text in drawn, drawn

        until(b"3 hosts: 1 closed")
        served.api.done("PUT", f"/hosts/{served.uuid('alpha')}/note", {**NOTE, "closed": "too"})
        until(b"3 hosts: 2 closed")
        os.write(ours, b"q")
        until(screen.LEAVE.encode())
        thread.join(10)
    os.close(ours)
    assert codes == [ExitCode.DONE]


def test_openstack_placement_shows_what_it_knows_and_says_what_it_does_not(openstack: OpenStack) -> None:
    openstack.empty()
    url = str(openstack.options["endpoint_override"])
    with closing(openstack.transport()) as transport:
        client = PlacementClient(transport)
        uuids = {}
        for name, vcpus in (("alpha", 16), ("beta", 8), ("full", 1)):
            uuids[name] = new()
            client.create_provider(Provider(uuids[name], name))
            client.put_inventories(uuids[name], 0, {"VCPU": Inventory(vcpus), "DISK_GB": Inventory(vcpus)})
        card = new()
        client.create_provider(Provider(card, "card", uuids["alpha"]))
        client.put_inventories(card, 0, {"VGPU": Inventory(3)})
        for amounts in ({uuids["alpha"]: {"VCPU": 6}}, {uuids["full"]: {"VCPU": 1, "DISK_GB": 1}}):
            client.write_allocations(ConsumerAllocations(new(), amounts))
    answer = told(
        "--url", url, "--room-for", "resources=VCPU:2,DISK_GB:3".removeprefix("resources=").replace(":", "=")
    )
    assert [(row["name"], row["room"], row["resources"]["VCPU"]) for row in answer["rows"]] == [
        ("alpha", 5, [10, 16]),
        ("beta", 2, [8, 8]),
    ]
    assert answer["rows"][0]["resources"]["VGPU"] == [3, 3]
    assert "has no notes of hosts" in answer["not_known"][0] and "full" in answer["not_known"][1]
    out = shown("--url", url)
    assert "FINDINGS" not in out and "This Placement has no notes of hosts" in out
