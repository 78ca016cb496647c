"""The support bundle holds what helps and none of the secrets; nor does anything else the agent says."""

import http.client
import json
import signal
import socket
import tarfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.agent import opened, told
from kits.agent_process import Agent
from kits.api_client import ask, serving
from kits.cli_process import one_line, plimsoll
from kits.daemon_process import eventually
from kits.placements import Embedded

from agent.doctor.examine import MASK, mask
from agent.errors import ExitCode
from agent.log import is_ordinary

CANARY = 'canary-7f3a"\\é-9b1c'
READS = (
    "status",
    "tree",
    "instances",
    "plan",
    "history",
    "overview",
    "explain?what=node1",
    "config",
    "audit",
)
REMOTE = f"""[placement]
kind = remote
auth_type = admin_token
endpoint_override = http://127.0.0.1:1/placement
timeout = 1
token = {CANARY}
[log]
level = debug
"""


def contents(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        return {
            member.name.split("/", 1)[1]: archive.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in archive
        }


def test_a_canary_is_in_no_output_log_file_or_bundle(tmp_path: Path) -> None:
    """In none of what the agent says, wherever it is said; placement is away, so errors name its address."""
    door = bound_port()
    agent = Agent(tmp_path, more=f"{REMOTE}[http]\nlisten = 127.0.0.1:{door}\n")
    agent.start()
    bundle, config = tmp_path / "bundle.tar.gz", ("--config-file", str(agent.file))
    try:
        said = [
            agent(*words)
            for words in (
                ("config", "show", *config, "-o", "yaml"),
                ("doctor", *config),
                ("placement", "ping", *config),
                ("claim", "--resources", "VCPU=1"),
                ("support-bundle", "--to", str(bundle), *config),
            )
        ]
        told = [ask(agent.socket, "GET", f"/v1/{name}").body for name in READS]
        texts = [fetched(door, path) for path in ("/", "/metrics", "/healthz", "/readyz")]
        agent.file.write_text(
            agent.file.read_text("utf-8").replace("http://", "http://user:canary-7f3a@"), "utf-8"
        )
        said.append(agent("config", "validate", *config))
        agent.signal(signal.SIGHUP)
        eventually("the refusal of the settings", lambda: "not reloaded" in agent.log())
    finally:
        agent.stop()
    texts += [json.dumps(each, ensure_ascii=False) for each in told]
    texts += [done.stdout + done.stderr for done in said]
    texts += [agent.log(), *contents(bundle).values()]
    texts += [path.read_bytes().decode("utf-8", "replace") for path in (tmp_path / "state").glob("*.db*")]
    for text in texts:
        assert "canary-7f3a" not in text and "-9b1c" not in text
    assert all(texts) and "Placement" in texts[0] and "plimsoll_" in texts[1]
    assert bundle.stat().st_mode & 0o777 == 0o600
    members = contents(bundle)
    assert json.loads(members["status.json"])["host"] == "node1"
    assert json.loads(members["config.json"])["placement"]["token"]["value"] == MASK
    assert {"doctor.json", "tree.json", "history.json", "log.txt"} <= members.keys()


def test_a_secret_that_is_an_ordinary_word_leaves_the_word_in_history_and_bundle(tmp_path: Path) -> None:
    """The token of [placement] is `admin`: it is masked as a value, and readable as the word that it is."""
    path, bundle = tmp_path / "s", tmp_path / "bundle.tar.gz"
    reason = "the admin of rack 7 asked, token=admin"
    with opened(told(tmp_path, Embedded(tmp_path), "[placement]\ntoken = admin\n")) as world:
        world.agent.reconcile("the start")
        with serving(world.operations, path):
            claimed = plimsoll(path, "claim", "--name", "admin", "--resources", "VCPU=1")
            assert claimed.returncode == ExitCode.DONE, claimed.stderr
            assert plimsoll(path, "pause", "--reason", reason).returncode == ExitCode.DONE
            history = plimsoll(path, "history").stdout
            config = ("--config-file", str(tmp_path / "plimsoll.conf"))
            done = plimsoll(path, "support-bundle", "--to", str(bundle), *config)
            assert done.returncode == ExitCode.DONE, done.stderr
    assert "the admin of rack 7 asked" in history and "(admin)" in history
    members = contents(bundle)
    for member in ("history.json", "status.json"):
        assert "the admin of rack 7 asked, token=***" in members[member]
    events = json.loads(members["history.json"])["events"]
    assert "admin" in {event["name"] for event in events}
    (instance,) = (
        each for each in json.loads(members["instances.json"])["instances"] if each["name"] == "admin"
    )
    assert instance["claim"]["name"] == "admin"
    assert json.loads(members["config.json"])["placement"]["token"]["value"] == MASK
    assert not any("token=admin" in text or "token = admin" in text for text in members.values())


def fetched(port: int, path: str) -> str:
    with closing(http.client.HTTPConnection("localhost", port, timeout=10)) as connection:
        connection.request("GET", path)
        return connection.getresponse().read().decode()


def bound_port() -> int:
    """One that is free just now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_without_an_agent_it_says_so_inside(tmp_path: Path) -> None:
    bundle, config = tmp_path / "bundle.tar.gz", tmp_path / "plimsoll.conf"
    config.write_text("[DEFAULT]\ncompute_driver = fake\n")
    done = plimsoll(tmp_path / "none", "support-bundle", "--to", str(bundle), "--config-file", str(config))
    assert done.returncode == ExitCode.DONE, done.stderr
    assert json.loads(contents(bundle)["status.json"])["error"]["code"] == "plimsoll.daemon.unreachable"


def test_a_file_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.tar.gz"
    bundle.write_bytes(b"mine")
    done = plimsoll(tmp_path / "none", "support-bundle", "--to", str(bundle))
    assert done.returncode == ExitCode.USAGE and "exists already" in one_line(done)
    assert bundle.read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("password = hunter2", "password = ***"),
        ('"token": "abc def", "x": 1', '"token": ***, "x": 1'),
        ("X-Auth-Token: gAAAAAB", "X-Auth-Token: ***"),
        ("mysql://nova:pw@db/nova", "mysql://***@db/nova"),
        ('"password": {"value": null}', '"password": {"value": null}'),
        ("tokens of Keystone may be wrong", "tokens of Keystone may be wrong"),
    ],
)
def test_what_is_called_a_secret_is_masked_whoever_wrote_it(text: str, masked: str) -> None:
    assert mask(text, ()) == masked


@given(st.text(min_size=4).filter(lambda secret: not is_ordinary(secret)), st.text(), st.text())
def test_a_secret_is_nowhere_in_the_text(secret: str, before: str, after: str) -> None:
    assert secret not in mask(f"{before}{secret}{after}", [secret]) or secret in MASK * 3
