"""docs/python.md: its programs, as they stand, on hosts of the fake driver; and its lists."""

import http.server
import inspect
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from kits.daemon_process import eventually
from kits.doc_commands import DOCS, blocks
from kits.paths import CHECKOUT

import plimsoll
from agent.api.routes import ROUTES
from plimsoll import shapes
from plimsoll.testing import fake_host

PAGE = "python.md"
GPUS = [f"0000:{bus}:00.0" for bus in ("42", "43")]
HOST = {
    "cells": [{"id": 0, "cpus": "0-7", "memory_mb": 8192}],
    "gpus": [{"address": gpu, "resource_class": "PGPU", "total": 1, "units": [gpu]} for gpu in GPUS],
}


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[plimsoll.Agent]:
    with fake_host(tmp_path, HOST) as agent:
        yield agent


def program(directory: Path, mark: str, imports: str = "") -> Path:
    """The marked block as a file."""
    (text,) = blocks(PAGE, mark)
    file = directory / f"{mark}.py"
    file.write_text(imports + text)
    return file


@contextmanager
def running(directory: Path, file: Path, *words: str) -> Iterator["subprocess.Popen[str]"]:
    environment = {**os.environ, "PLIMSOLL_SOCKET": f"{directory}/plimsoll.sock", "PYTHONPATH": str(CHECKOUT)}
    with subprocess.Popen(
        [sys.executable, str(file), *words],
        env=environment,
        cwd=directory,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def output(directory: Path, file: Path, *words: str) -> str:
    with running(directory, file, *words) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out


def test_claims(agent: plimsoll.Agent, tmp_path: Path) -> None:
    said = output(tmp_path, program(tmp_path, "claims", "import plimsoll\n"))
    assert said.startswith("start the guest with [{'PGPU': ('0000:4")
    made = {claim.name: claim.made_by for claim in (one.claim for one in agent.instances()) if claim}
    assert made == dict.fromkeys(("web1", "db1", "train1"), shapes.Maker(uid=os.getuid(), program="my-cloud"))


def test_a_placement(tmp_path: Path) -> None:
    said = output(tmp_path, program(tmp_path, "placement", "import plimsoll\n"))
    assert "{'VCPU': 2, 'MEMORY_MB': 512}" in said and said.endswith("it fits: 1 host has room for it\n")


def test_the_scheduler(tmp_path: Path) -> None:
    with ExitStack() as stack:
        hosts = {}
        for number in range(3):
            directory = tmp_path / f"hv{number}"
            directory.mkdir()
            cells = [{"id": 0, "cpus": "0-7", "memory_mb": 512 + 1024 * (number + 1)}]  # 512 are reserved
            hosts[f"{directory}/plimsoll.sock"] = stack.enter_context(fake_host(directory, {"cells": cells}))
        file = program(tmp_path, "scheduler")
        placed = [output(tmp_path, file, f"g{n}", "1", "1024", *hosts).split()[0] for n in range(6)]
        assert sorted(placed.count(address) for address in hosts) == [1, 2, 3], "each host is full"
        with running(tmp_path, file, "g7", "1", "1024", *hosts) as process:
            assert "no host has room" in process.communicate(timeout=60)[1]
        first, *_ = hosts
        hosts[first].release(hosts[first].instances()[0].uuid)
        hosts[first].pause("a test")
        with running(tmp_path, file, "g7", "1", "1024", *hosts, str(tmp_path / "none")) as process:
            assert "no host has room" in process.communicate(timeout=60)[1]


def test_the_queue_of_jobs(agent: plimsoll.Agent, tmp_path: Path) -> None:
    job = f"mkdir {tmp_path}/$GPU && sleep 0.3 && rmdir {tmp_path}/$GPU && echo $GPU >>{tmp_path}/done"
    output(tmp_path, program(tmp_path, "jobs"), *[job] * 5)
    assert sorted(set((tmp_path / "done").read_text().split())) == GPUS
    assert (tmp_path / "done").read_text().count("\n") == 5 and agent.instances() == ()


def test_the_web_hook(agent: plimsoll.Agent, tmp_path: Path) -> None:
    posted: list[dict[str, str]] = []

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    file, last = program(tmp_path, "webhook"), tmp_path / "last"
    last.write_text("1-0")  # of another journal
    with http.server.HTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        with running(tmp_path, file, url, str(last)):
            eventually("the gap is posted", lambda: posted)
            claim = agent.claim(name="web1", resources={"VCPU": 1})
            newest = agent.history(limit=1)[0].id
            eventually("the claim is posted", lambda: last.read_text() == newest)
        agent.release(claim.consumer)
        with running(tmp_path, file, url, str(last)):
            newest = agent.history(limit=1)[0].id
            eventually("the release is posted", lambda: last.read_text() == newest)
        server.shutdown()
    assert [change["event"] for change in posted] == ["gap", "begin", "grant", "release", "gone"]
    assert {change["name"] for change in posted[1:]} == {"web1"}


def test_the_fixture(tmp_path: Path) -> None:
    program(tmp_path, "fixture").rename(tmp_path / "test_it.py")
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", str(tmp_path / "test_it.py")],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed" in done.stdout, done.stdout


def test_a_host_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(plimsoll.Unavailable, match=r"host\.yaml"), fake_host(tmp_path, {"cells": 7}):
        pass


def test_a_directory_that_is_missing_or_long_and_one_that_is_in_use(tmp_path: Path) -> None:
    directory = tmp_path / ("x" * 100)
    with fake_host(directory) as agent:
        claim = agent.claim(resources={"VCPU": 1})
    with fake_host(directory) as again:
        assert again.show_claim(claim.consumer) == claim
    with (
        fake_host(tmp_path / "short"),
        pytest.raises(plimsoll.Conflict, match="runs already"),
        fake_host(tmp_path / "short"),
    ):
        pass


def test_a_test_that_is_killed_leaves_no_agent(tmp_path: Path) -> None:
    test = (
        "import os, pathlib, sys\nfrom plimsoll.testing import fake_host\n"
        "with fake_host(pathlib.Path(sys.argv[1])) as agent:\n"
        "    print(agent.status().pid, flush=True)\n    os.kill(os.getpid(), 9)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    command = [sys.executable, "-c", test, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == -9
    eventually("the agent ends", lambda: not (tmp_path / "plimsoll.sock").exists())


def test_the_page_names_each_method_and_each_error() -> None:
    text = (DOCS / PAGE).read_text("utf-8")
    methods = {route.function.__name__ for route in ROUTES} | {
        name for name, _ in inspect.getmembers(plimsoll.Agent, inspect.isfunction) if name[0] != "_"
    }
    assert [
        name for name in sorted(methods - {"close"}) if f"`{name}`" not in text and f"`{name}(" not in text
    ] == []
    errors = [name for name in plimsoll.__all__ if isinstance(getattr(plimsoll, name), type)]
    assert [name for name in errors if f"`{name}" not in text and f"`plimsoll.{name}" not in text] == []
