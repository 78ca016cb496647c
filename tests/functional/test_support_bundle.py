"""The support bundle holds what helps and none of the secrets; nor does anything else the agent says."""

import json
import tarfile
from pathlib import Path

import pytest
from agentprocess import Agent
from cliprocess import one_line, plimsoll
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import ExitCode
from agent.masking import LEAST_CHARS, MASK, mask

CANARY = 'canary-7f3a"\\é-9b1c'
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


def test_a_canary_is_in_no_output_log_or_bundle(tmp_path: Path) -> None:
    agent = Agent(tmp_path, more=REMOTE)
    agent.start()
    bundle = tmp_path / "bundle.tar.gz"
    try:
        said = [
            agent(*words)
            for words in (
                ("status",),
                ("config", "show"),
                ("config", "show", "--config-file", str(agent.file), "-o", "yaml"),
                ("doctor", "--config-file", str(agent.file)),
                ("placement", "ping", "--config-file", str(agent.file)),
                ("claim", "--resources", "VCPU=1"),
                ("support-bundle", "--to", str(bundle), "--config-file", str(agent.file)),
            )
        ]
    finally:
        agent.stop()
    texts = [done.stdout + done.stderr for done in said]
    texts += [(tmp_path / "log").read_text("utf-8"), *contents(bundle).values()]
    for text in texts:
        assert "canary-7f3a" not in text and "-9b1c" not in text
    assert bundle.stat().st_mode & 0o777 == 0o600
    members = contents(bundle)
    assert json.loads(members["status.json"])["host"] == "node1"
    assert json.loads(members["config.json"])["placement"]["token"]["value"] == MASK
    assert {"doctor.json", "tree.json", "log.txt"} <= members.keys()


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
    assert done.returncode == ExitCode.USAGE and "is there already" in one_line(done)
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


@given(st.text(min_size=LEAST_CHARS), st.text(), st.text())
def test_a_secret_is_nowhere_in_the_text(secret: str, before: str, after: str) -> None:
    assert secret not in mask(f"{before}{secret}{after}", [secret]) or secret in MASK * 3
