"""`plimsoll init`: it proposes, draws, asks, and only then writes."""

import json
import os
import pty
import subprocess
from pathlib import Path

from kits.cli_process import COMMAND, DEADLINE_S, ENVIRONMENT, one_line, plimsoll

from agent.errors import ExitCode


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
