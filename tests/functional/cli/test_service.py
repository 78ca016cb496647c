"""`plimsoll install-service`: the plan, the files, and their removal, below a directory of the test's own."""

import configparser
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.paths import CHECKOUT

from agent.cli.parser import build, defaults
from agent.daemon import service_install
from agent.errors import ExitCode, PlimsollError, UsageError

COMMAND = Path("/opt/plimsoll-test/bin/plimsoll")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The root below which the service goes; the command is one that the service can start."""
    monkeypatch.setattr(service_install, "check_executable", lambda _: None)
    monkeypatch.setattr(sys, "argv", [str(COMMAND)])
    yield tmp_path / "root"


def run(*words: str) -> ExitCode:
    args = build().parse_args(["install-service", *words], defaults())
    code: ExitCode = args.run(args)
    return code


def files(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


def test_a_plan_writes_nothing(installed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--root", str(installed), "--dry-run") is ExitCode.DRIFT_FOUND
    assert f"write {installed}/etc/systemd/system/plimsoll-agent.service\n" in capsys.readouterr().out
    assert not installed.exists()


def test_the_units_start_the_installed_command(installed: Path) -> None:
    assert run("--root", str(installed)) is ExitCode.DONE
    for unit, words in (("plimsoll-agent", "agent"), ("plimsoll-reshape", "reshape --offline")):
        parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
        parser.optionxform = str  # type: ignore[assignment, method-assign]
        parser.read(installed / f"etc/systemd/system/{unit}.service")
        assert parser["Service"]["ExecStart"] == f"{COMMAND} {words}"
        assert parser["Service"]["User"] == "plimsoll"
    carving = (installed / "etc/systemd/system/plimsoll-devices.service").read_text()
    assert f"ExecStart={COMMAND} devices apply\n" in carving
    for_claims = (installed / "etc/systemd/system/plimsoll-mixed-vgpus.service").read_text()
    assert f"ExecStart={COMMAND} devices apply --mixed-size\n" in for_claims
    assert (installed / "etc/systemd/system/plimsoll-mixed-vgpus.path").exists()
    assert (installed / "etc/systemd/system/plimsoll-cc-modes.timer").exists()
    powers = (installed / "etc/systemd/system/plimsoll-cpus.service").read_text()
    assert f"ExecStart={COMMAND} cpus apply\n" in powers
    assert (installed / "etc/systemd/system/plimsoll-cpus.path").exists()
    assert "u plimsoll" in (installed / "etc/sysusers.d/plimsoll.conf").read_text()
    assert "/run/plimsoll" in (installed / "etc/tmpfiles.d/plimsoll.conf").read_text()
    assert (installed / "usr/local/bin/plimsoll").readlink() == COMMAND
    assert not (installed / service_install.RULE).exists(), "the right to manage libvirt is asked for"


def test_the_same_again_does_nothing_and_an_upgrade_writes_what_differs(
    installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("--root", str(installed))
    before = files(installed)
    capsys.readouterr()
    assert run("--root", str(installed), "--dry-run") is ExitCode.DONE
    assert capsys.readouterr().out == "nothing to do\n"
    unit = installed / "etc/systemd/system/plimsoll-agent.service"
    gate = installed / "etc/plimsoll/gate.conf"
    unit.write_text("[Unit]\nDescription=an older version\n")
    gate.write_text("[gate]\non_silence = refuse\n")
    assert run("--root", str(installed)) is ExitCode.DONE
    assert capsys.readouterr().out.splitlines()[:-1] == [f"write {unit}"]
    assert files(installed) == {**before, "etc/plimsoll/gate.conf": "[gate]\non_silence = refuse\n"}


def test_a_removal_takes_away_what_it_wrote_and_no_more(
    installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("--root", str(installed), "--full-connection")
    assert "org.libvirt.unix.manage" in (installed / service_install.RULE).read_text()
    settings = installed / "etc/plimsoll/plimsoll.conf"
    settings.write_text("[DEFAULT]\n")
    other = installed / "etc/systemd/system/other.service"
    other.write_text("[Unit]\n")
    capsys.readouterr()
    assert run("--root", str(installed), "--remove", "--dry-run") is ExitCode.DRIFT_FOUND
    assert settings.exists() and "remove " in capsys.readouterr().out
    assert run("--root", str(installed), "--remove") is ExitCode.DONE
    assert "the user plimsoll: remove them to forget this host" in capsys.readouterr().out
    assert set(files(installed)) == {
        "etc/plimsoll/plimsoll.conf",
        "etc/plimsoll/gate.conf",
        "etc/systemd/system/other.service",
    }
    assert not (installed / "usr/local/bin/plimsoll").is_symlink()
    assert run("--root", str(installed), "--remove", "--dry-run") is ExitCode.DONE


@pytest.mark.parametrize(
    "path", ["/home/me/venv/bin/plimsoll", "/root/venv/bin/plimsoll", "/tmp/venv/bin/plimsoll"]
)
def test_a_command_that_the_sandbox_hides_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="directory of its own, such as /opt/plimsoll"):
        service_install.check_executable(Path(path))


def test_a_host_with_the_package_is_left_alone(installed: Path) -> None:
    unit = installed / service_install.PACKAGED_UNIT
    unit.parent.mkdir(parents=True)
    unit.touch()
    for words in ((), ("--remove",), ("--dry-run",)):
        with pytest.raises(PlimsollError, match="is a package's"):
            run("--root", str(installed), *words)


def test_a_file_of_somebody_else_at_the_command_s_place_is_left_alone(installed: Path) -> None:
    link = installed / service_install.LINK
    link.parent.mkdir(parents=True)
    link.write_text("#!/bin/sh\n")
    with pytest.raises(UsageError, match="is no link"):
        run("--root", str(installed))
    assert not (installed / "etc").exists()


@pytest.mark.slow
def test_the_wheel_has_all_that_the_service_needs(tmp_path: Path) -> None:
    source = tmp_path / "src"
    shutil.copytree(
        CHECKOUT,
        source,
        ignore=lambda folder, names: {
            name for name in names if name in {"tests", "build", "dist"} or name.startswith(".")
        },
    )
    for name, text in (("man/plimsoll.1", ".TH PLIMSOLL 1\n"), ("completion/plimsoll", "# bash\n")):
        (source / "build/docs" / name).parent.mkdir(parents=True)
        (source / "build/docs" / name).write_text(text)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-q", "--no-deps")
    subprocess.run([*pip, "--no-build-isolation", "-w", str(tmp_path), str(source)], check=True, timeout=100)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    root = tmp_path / "root"
    script = (
        "import sys; sys.argv = ['/opt/x/bin/plimsoll']; from agent.daemon import service_install; "
        "service_install.check_executable = lambda _: None; from agent.cli.main import main; "
        f"sys.exit(main(['install-service', '--root', {str(root)!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        env={"PYTHONPATH": str(tmp_path / "site"), "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert str(CHECKOUT) not in done.stdout + done.stderr
    assert {
        "usr/local/share/man/man1/plimsoll.1",
        "usr/local/share/bash-completion/completions/plimsoll",
        "etc/plimsoll/plimsoll.conf.sample",
        "etc/systemd/system/plimsoll-agent.service",
    } <= set(files(root))
    assert re.search(
        r"^ExecStart=/opt/x/bin/plimsoll agent$",
        files(root)["etc/systemd/system/plimsoll-agent.service"],
        re.M,
    )
