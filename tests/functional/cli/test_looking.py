"""Commands that look leave a bare host bare; `config validate` finds what a start would refuse."""

import os
import socket
from pathlib import Path

import pytest
from kits.agent import opened, request, told
from kits.cli_process import one_line, plimsoll
from kits.placements import Embedded
from kits.terminal import Terminal

from agent.config.settings import DEFAULT_FILE
from agent.errors import ExitCode

HOST = "0c1f7a52-8f0e-4f2b-9d4b-3a5f0a7c6e21"


def written(directory: Path, more: str = "") -> str:
    path = directory / "plimsoll.conf"
    path.touch(mode=0o600)
    path.write_text(
        f"[DEFAULT]\ncompute_driver = fake\nhost = node1\nstate_path = {directory / 'state'}\n"
        f"[api]\nsocket = {directory / 's'}\n{more}"
    )
    return str(path)


def files(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else b""
        for path in directory.rglob("*")
    }


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("adopt", "no-uuid"), ExitCode.USAGE),
        (("reshape", "--offline", "--dry-run"), ExitCode.DONE),
        (("doctor",), ExitCode.DONE),
        (("config", "validate"), ExitCode.DONE),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
@pytest.mark.parametrize("has_directory", [False, True])
def test_a_bare_host_stays_bare(
    tmp_path: Path, words: tuple[str, ...], code: ExitCode, has_directory: bool
) -> None:
    file = written(tmp_path)
    if has_directory:
        (tmp_path / "state").mkdir(mode=0o700)
    before = files(tmp_path)
    done = plimsoll(tmp_path / "s", *words, "--config-file", file)
    assert done.returncode == code, done.stderr
    assert files(tmp_path) == before


def test_a_dry_run_offline_leaves_the_state_as_it_is(tmp_path: Path) -> None:
    world = opened(told(tmp_path, Embedded(tmp_path)))
    world.agent.reconcile("the start")
    world.operations.claim(request(VCPU=1))
    file = str(tmp_path / "plimsoll.conf")
    busy = plimsoll(tmp_path / "s", "reshape", "--offline", "--dry-run", "--config-file", file)
    assert busy.returncode == ExitCode.FAILED and "running" in one_line(busy)
    world.close()
    before = files(tmp_path)
    done = plimsoll(tmp_path / "s", "reshape", "--offline", "--dry-run", "--config-file", file)
    assert (done.returncode, done.stdout) == (ExitCode.DONE, "nothing to move\n"), done.stderr
    assert files(tmp_path) == before


@pytest.mark.skipif(DEFAULT_FILE.exists(), reason="this machine has a configuration")
def test_adopt_asks_where_there_is_no_configuration(tmp_path: Path) -> None:
    environment = {"OS_DEFAULT__STATE_PATH": str(tmp_path), "OS_DEFAULT__COMPUTE_DRIVER": "fake"}
    asked = plimsoll(tmp_path / "s", "adopt", HOST, environment=environment)
    assert asked.returncode == ExitCode.USAGE
    assert "no configuration" in one_line(asked) and os.uname().nodename in asked.stderr
    assert files(tmp_path) == {}
    done = plimsoll(tmp_path / "s", "adopt", HOST, "--yes", environment=environment)
    assert done.returncode == ExitCode.DONE
    assert (tmp_path / "host_id").read_text() == f"{HOST}\n"


@pytest.mark.skipif(DEFAULT_FILE.exists(), reason="this machine has a configuration")
@pytest.mark.parametrize(("answer", "agrees"), [("n", False), ("", False), ("y", True)])
def test_adopt_on_a_terminal_writes_only_after_yes(tmp_path: Path, answer: str, agrees: bool) -> None:
    environment = {"OS_DEFAULT__STATE_PATH": str(tmp_path), "OS_DEFAULT__COMPUTE_DRIVER": "fake"}
    with Terminal(tmp_path / "s", "adopt", HOST, environment=environment) as terminal:
        terminal.read_until("Go on? [y/N] ")
        assert f"this host would be {os.uname().nodename}, {HOST}" in " ".join(terminal.text.split())
        assert files(tmp_path) == {}, "it asks before it writes"
        os.write(terminal.keys, f"{answer}\n".encode())
        terminal.read_until("from now on; start the agent" if agrees else "nothing was written")
        assert terminal.process.wait(10) == (ExitCode.DONE if agrees else ExitCode.USAGE)
    if agrees:
        assert (tmp_path / "host_id").read_text() == f"{HOST}\n"
    else:
        assert files(tmp_path) == {}


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ("readers = root\nreaders = nobody\n", "given 2 times"),
        (
            "[placement]\nkind = remote\nauth_type = pasword\nauth_url = http://127.0.0.1:1/v3\n",
            "auth_type",
        ),
        ("[placement]\nserve = 127.0.0.1\n", "serve"),
        ("[placement]\nserve = 192.0.2.7:8778\n", "serve"),
        ("[http]\nlisten = everywhere:80\n", "listen"),
        ("[placement]\nserve = unix:{0}/none/x.sock\n", "No such file"),
        ("[placement]\nserve = unix:{0}/plain\n", "is no socket"),
    ],
)
def test_config_validate_finds_what_the_start_would_refuse(tmp_path: Path, more: str, complaint: str) -> None:
    (tmp_path / "plain").touch()
    file = written(tmp_path, more.format(tmp_path))
    done = plimsoll(tmp_path / "s", "config", "validate", "--config-file", file)
    assert done.returncode == ExitCode.USAGE, done.stdout
    assert complaint in one_line(done)
    started = plimsoll(tmp_path / "s", "agent", "--config-file", file)
    assert started.returncode == ExitCode.USAGE, started.stderr
    assert "Could not load" not in started.stderr, "a library's warning beside the agent's sentence"


def test_config_validate_finds_a_provider_config_file_that_contradicts_the_driver(tmp_path: Path) -> None:
    folder = tmp_path / "provider_config"
    folder.mkdir()
    (folder / "a.yaml").write_text(
        "meta: {schema_version: '1.0'}\nproviders:\n- identification: {uuid: $COMPUTE_NODE}\n"
        "  inventories: {additional: [{CUSTOM_LICENCE: {total: 2}}]}\n"
    )
    file = written(tmp_path, f"[compute]\nprovider_config_location = {folder}\n")
    assert plimsoll(tmp_path / "s", "config", "validate", "--config-file", file).returncode == ExitCode.DONE
    (folder / "b.yaml").write_text(
        "meta: {schema_version: '1.0'}\nproviders:\n- identification: {name: node1}\n"
        "  traits: {additional: [CUSTOM_A]}\n- identification: {name: node1}\n"
        "  traits: {additional: [CUSTOM_B]}\n"
    )
    done = plimsoll(tmp_path / "s", "config", "validate", "--config-file", file)
    assert done.returncode == ExitCode.USAGE and "b.yaml" in one_line(done)


@pytest.mark.parametrize("case", ["plain", "running"])
def test_an_agent_that_cannot_listen_ends_before_it_is_ready(tmp_path: Path, case: str) -> None:
    file, path = written(tmp_path), tmp_path / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        if case == "running":
            other.bind(str(path))
            other.listen()
        else:
            path.touch()
        before = files(tmp_path)
        done = plimsoll(path, "config", "validate", "--config-file", file)
        assert done.returncode == (ExitCode.USAGE if case == "plain" else ExitCode.DONE)
        assert files(tmp_path) == before
        started = plimsoll(path, "agent", "--config-file", file)
    assert started.returncode == (ExitCode.USAGE if case == "plain" else ExitCode.FAILED)
    assert "Ready" not in started.stderr and not (tmp_path / "state" / "placement.db").exists()
