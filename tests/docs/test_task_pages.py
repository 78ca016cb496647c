"""The pages of tasks: their commands, as they stand, on a host; and what follows from them."""

import http.client
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kits.doc_commands import DOCS, Host, blocks, fenced
from kits.tracker import fast_directory

from agent.cli.parser import build, defaults
from agent.errors import PlimsollError

CELLS = [{"id": 0, "cpus": "0-7", "memory_mb": 131072}]
GPUS = [{"address": "0000:84:00.0", "total": 8}]
CONSUMER = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"
TASKS = ("gpu-guest", "maintenance", "capping", "backup", "removing", "programs", "places", "install")


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


def test_capping(directory: Path) -> None:
    (commands,) = blocks("capping.md")
    with Host(directory, cells=CELLS, gpus=GPUS) as host:
        host.settings.write_text(host.settings.read_text() + fenced("capping.md", "ini"))
        assert "0 of 65536 in use." in host.run(commands)
        host.run("plimsoll claim --resources VGPU=5", code=5)
        host.run("plimsoll claim --resources VGPU=4,MEMORY_MB=65536")
        host.run("plimsoll claim --resources MEMORY_MB=1", code=5)


def test_backup_and_restore(directory: Path) -> None:
    backup, restore = blocks("backup.md")
    with Host(directory, cells=CELLS) as host:
        host.run(f"plimsoll claim {CONSUMER} --name web1 --resources VCPU=1")
        host.run(backup)
        host.run("plimsoll release web1; plimsoll claim --name later --resources VCPU=1")
        assert "nothing differs" in host.run(restore)
        instances = host.run("plimsoll instances")
        assert "web1" in instances and "later" not in instances


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


def test_a_gpu_is_claimed_and_explained(directory: Path) -> None:
    (commands,) = blocks("gpu-guest.md")
    card = {"address": "0000:84:00.0", "total": 1, "resource_class": "PGPU", "units": ["0000:84:00.0"]}
    with Host(directory, cells=CELLS, gpus=[card]) as host:
        said = host.run(commands)
        assert "1 PGPU on node1_pci_0000:84:00.0: 0000:84:00.0" in said


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
        done = _run(host.placed(program))
        assert done.startswith("claimed {")
        assert CONSUMER not in host.run("plimsoll instances")
        host.run("plimsoll pause --reason 'a test'")
        refused = _run(host.placed(program))
        assert refused.startswith("refused: Claims are closed: the host is paused")


def test_what_the_tasks_of_ansible_send(directory: Path) -> None:
    tasks = yaml.safe_load(fenced("programs.md", "yaml"))
    with Host(directory, cells=CELLS) as host:
        for task in tasks:
            uri = task["ansible.builtin.uri"]
            connection = http.client.HTTPConnection("localhost", timeout=30)
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.connect(host.placed(uri["unix_socket"]))
            path = uri["url"].removeprefix("http://localhost")
            body = json.dumps(uri["body"]) if "body" in uri else None
            connection.request(
                uri["method"], path, body, {"Content-Type": "application/json"} if body else {}
            )
            reply = connection.getresponse()
            codes = uri["status_code"] if isinstance(uri["status_code"], list) else [uri["status_code"]]
            assert reply.status in codes, reply.read()
            connection.close()


def test_the_program_of_terraform(directory: Path) -> None:
    (program,) = blocks("programs.md", "terraform")
    with Host(directory, cells=CELLS) as host:
        (directory / "fits").write_text(program)
        for asked, fits in (("VCPU=2,MEMORY_MB=512", "true"), ("VCPU=2000", "false")):
            query = json.dumps({"resources": asked})
            answer = json.loads(host.run(f"echo {query!r} | sh {directory}/fits"))
            assert answer["fits"] == fits and all(isinstance(value, str) for value in answer.values())
            assert bool(answer["why"]) is (fits == "false")


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


def _run(program: str) -> str:
    """What the Python program writes to its output."""
    return subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=60, check=True
    ).stdout


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
