"""`plimsoll config` and `plimsoll init` on files, for which no agent has to run; what looks leaves a host
bare.
"""

import json
import os
import pty
import socket
import subprocess
from pathlib import Path

import pytest
from kits.agent import request, told, world_of
from kits.cli_process import COMMAND, DEADLINE_S, ENVIRONMENT, one_line, plimsoll
from kits.placements import Embedded
from kits.status import Sight
from kits.terminal import Terminal

from agent.config.settings import DEFAULT_FILE
from agent.errors import ExitCode
from agent.providers.resolve import uuid_of_new

HOST = "0c1f7a52-8f0e-4f2b-9d4b-3a5f0a7c6e21"
FAKE = "[DEFAULT]\ncompute_driver = fake\n"


@pytest.fixture
def nowhere(tmp_path: Path) -> Path:
    return tmp_path / "no-agent"


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "plimsoll.conf"
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_good_settings_are_good(nowhere: Path, tmp_path: Path) -> None:
    file = written(tmp_path, FAKE + "host = here\n")
    done = plimsoll(nowhere, "config", "validate", "--config-file", file)
    assert (done.returncode, done.stdout) == (ExitCode.DONE, f"the settings are good: {file}\n")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (FAKE + "hots = here\n", "hots"),
        (FAKE + "update_resources_interval = often\n", "update_resources_interval"),
        (FAKE + "[api]\nclaimers = no-such-user\n", "no-such-user"),
        ("no section\n", "plimsoll.conf"),
    ],
)
@pytest.mark.parametrize("command", [("config", "validate"), ("config", "show")])
def test_bad_settings_are_one_line_and_2(
    nowhere: Path, tmp_path: Path, command: tuple[str, ...], text: str, complaint: str
) -> None:
    done = plimsoll(nowhere, *command, "--config-file", written(tmp_path, text))
    assert done.returncode == ExitCode.USAGE
    assert complaint in one_line(done)


def test_a_file_that_is_not_there(nowhere: Path, tmp_path: Path) -> None:
    done = plimsoll(nowhere, "config", "validate", "--config-file", str(tmp_path / "none.conf"))
    assert done.returncode == ExitCode.USAGE
    assert "none.conf" in one_line(done)


def test_a_provider_file_may_name_the_providers_by_the_uuids_that_the_agent_gave_them(
    nowhere: Path, tmp_path: Path
) -> None:
    """The agent makes the host's uuid at its first start, and keeps it in the state directory."""
    file, state = tmp_path / "plimsoll.conf", tmp_path / "state"
    (tmp_path / "files").mkdir()
    state.mkdir(mode=0o700)
    file.write_text(
        f"[DEFAULT]\ncompute_driver = fake\nhost = node1\nstate_path = {state}\n"
        f"[compute]\nprovider_config_location = {tmp_path}/files\n"
    )

    def notes(uuid: str) -> list[str]:
        (tmp_path / "files" / "a.yaml").write_text(
            f"meta: {{schema_version: '1.0'}}\nproviders:\n  - identification: {{uuid: {uuid}}}\n"
            "    inventories: {additional: [{CUSTOM_X: {total: 10}}]}\n"
        )
        done = plimsoll(nowhere, "config", "validate", "--config-file", str(file), "-o", "json")
        assert done.returncode == ExitCode.DONE, done.stderr
        return list(json.loads(done.stdout)["notes"])

    card = uuid_of_new(HOST, "node1_net_enp65s0f0")
    for uuid in (HOST, card):
        (note,) = notes(uuid)
        assert f"whether this host has the provider {uuid} is not known" in note and "host_id" in note
    (state / "host_id").write_text(f"{HOST}\n")
    for uuid in (HOST, card):
        assert notes(uuid) == []
    (note,) = notes("0c1f7a52-8f0e-4f2b-9d4b-3a5f0a7c6e22")
    assert "this host's driver describes no provider 0c1f7a52-8f0e-4f2b-9d4b-3a5f0a7c6e22" in note


def test_the_sample_is_a_file_that_is_good_and_changes_nothing(nowhere: Path, tmp_path: Path) -> None:
    sample = plimsoll(nowhere, "config", "sample")
    assert sample.returncode == ExitCode.DONE
    empty = plimsoll(nowhere, "config", "show", "--config-file", written(tmp_path, ""), "-o", "json")
    file = written(tmp_path, sample.stdout)
    assert plimsoll(nowhere, "config", "validate", "--config-file", file).returncode == ExitCode.DONE
    filled = plimsoll(nowhere, "config", "show", "--config-file", file, "-o", "json")
    assert json.loads(filled.stdout) == json.loads(empty.stdout)


def test_show_masks_secrets_and_tells_origins(nowhere: Path, tmp_path: Path) -> None:
    file = written(tmp_path, FAKE + "[placement]\npassword = canary\n")
    done = plimsoll(nowhere, "config", "show", "--config-file", file)
    assert "canary" not in done.stdout
    (line,) = (line for line in done.stdout.splitlines() if "compute_driver" in line)
    assert line.split()[2] == "fake" and file in line


def test_adopt_makes_this_host_the_one_that_is_told(nowhere: Path, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    file = written(tmp_path, f"{FAKE}host = here\nstate_path = {tmp_path / 'state'}\n")
    done = plimsoll(nowhere, "adopt", HOST.upper(), "--config-file", file)
    assert (done.returncode, done.stderr) == (ExitCode.DONE, "")
    assert HOST in done.stdout
    assert (tmp_path / "state" / "host_id").read_text().strip() == HOST
    wrong = plimsoll(nowhere, "adopt", "web1", "--config-file", file)
    assert wrong.returncode == ExitCode.USAGE
    assert "'web1' is not a uuid" in one_line(wrong)
    assert (tmp_path / "state" / "host_id").read_text().strip() == HOST


def test_without_files_show_asks_the_agent(nowhere: Path) -> None:
    assert plimsoll(nowhere, "config", "show").returncode == ExitCode.UNREACHABLE


def test_config_show_asks_the_agent(host: Sight, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {
        "DEFAULT": {"host": {"value": "host1", "origin": "default"}},
        "api": {"claimers": {"value": ["alice", "@ops"], "origin": "/etc/plimsoll/plimsoll.conf"}},
    }
    monkeypatch.setattr(host.world.operations, "configuration", lambda: options)
    assert plimsoll(path, "config", "show").stdout == (
        "GROUP      OPTION    VALUE       ORIGIN\n"
        "[DEFAULT]  host      host1       default\n"
        "[api]      claimers  alice,@ops  /etc/plimsoll/plimsoll.conf\n"
    )


def init(tmp_path: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return plimsoll(
        tmp_path / "none", "init", "--driver", "fake", "--file", str(tmp_path / "plimsoll.conf"), *words
    )


def test_what_it_writes_is_good_and_reports_what_it_showed(tmp_path: Path) -> None:
    done = init(tmp_path, "--host", "node7", "--yes", "-o", "json")
    assert done.returncode == ExitCode.DONE, done.stderr
    file = tmp_path / "plimsoll.conf"
    told = json.loads(done.stdout)
    assert file.read_text("utf-8") == told["configuration"]
    assert told["resource_providers"][0]["name"] == "node7"
    good = plimsoll(tmp_path / "none", "config", "validate", "--config-file", str(file))
    assert good.returncode == ExitCode.DONE, good.stderr


def test_disk_gb_beyond_the_free_space_is_a_warning(tmp_path: Path) -> None:
    host = tmp_path / "host.yaml"
    host.write_text("cells: [{id: 0, cpus: 0-3, memory_mb: 4096}]\ndisk_gb: 500\ndisk_free_gb: 120\n")
    words = ("init", "--driver", "fake", "--file", str(tmp_path / "plimsoll.conf"))
    done = plimsoll(tmp_path / "none", *words, environment={"OS_FAKE__HOST_FILE": str(host)})
    assert done.returncode == ExitCode.DONE, done.stderr
    assert "warning: 500 DISK_GB can still be claimed" in done.stdout
    assert "reserved_host_disk_mb = 389120" in done.stdout


def test_nobody_who_does_not_agree_gets_a_file(tmp_path: Path) -> None:
    done = init(tmp_path)
    assert done.returncode == ExitCode.DONE
    assert "compute_driver = fake" in done.stdout and "VCPU" in done.stdout
    assert "nothing was written" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "plimsoll.conf"
    file.write_text("mine", encoding="utf-8")
    done = init(tmp_path, "--yes")
    assert done.returncode == ExitCode.USAGE and "--force" in one_line(done)
    assert file.read_text("utf-8") == "mine"
    assert init(tmp_path, "--yes", "--force").returncode == ExitCode.DONE
    assert "compute_driver" in file.read_text("utf-8")
    assert (tmp_path / "plimsoll.conf.old").read_text("utf-8") == "mine"


def test_a_directory_that_is_not_there_is_told(tmp_path: Path) -> None:
    file = tmp_path / "none" / "plimsoll.conf"
    done = plimsoll(tmp_path / "s", "init", "--driver", "fake", "--file", str(file), "--yes")
    assert done.returncode == ExitCode.FAILED
    assert (
        done.stderr.startswith(f"plimsoll: {file} cannot be written: No such file")
        and "--file" in done.stderr
    )


def test_it_asks_a_person(tmp_path: Path) -> None:
    for answer, written in ((b"n\n", False), (b"y\n", True)):
        ours, theirs = pty.openpty()
        os.write(ours, answer)
        file = tmp_path / "asked.conf"
        done = subprocess.run(
            [*COMMAND, "init", "--driver", "fake", "--file", str(file)],
            stdin=theirs,
            capture_output=True,
            env=ENVIRONMENT,
            timeout=DEADLINE_S,
            check=True,
        )
        os.close(ours)
        os.close(theirs)
        assert b"[y/N]" in done.stderr
        assert file.exists() is written


def test_without_a_hypervisor_it_says_what_to_do(tmp_path: Path) -> None:
    done = plimsoll(tmp_path / "none", "init", "--driver", "nope", "--file", str(tmp_path / "c"), "--yes")
    assert done.returncode == ExitCode.USAGE and "nope" in one_line(done)


def settings_file(directory: Path, more: str = "") -> str:
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
    file = settings_file(tmp_path)
    if has_directory:
        (tmp_path / "state").mkdir(mode=0o700)
    before = files(tmp_path)
    done = plimsoll(tmp_path / "s", *words, "--config-file", file)
    assert done.returncode == code, done.stderr
    assert files(tmp_path) == before


def test_a_dry_run_offline_leaves_the_state_as_it_is(tmp_path: Path) -> None:
    world = world_of(told(tmp_path, Embedded(tmp_path)))
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
    file = settings_file(tmp_path, more.format(tmp_path))
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
    file = settings_file(tmp_path, f"[compute]\nprovider_config_location = {folder}\n")
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
    file, path = settings_file(tmp_path), tmp_path / "s"
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
