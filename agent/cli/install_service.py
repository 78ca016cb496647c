"""`plimsoll install-service`: make a service of a wheel that pip installed, on any host with systemd."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from agent.cli.output import Output
from agent.errors import ExitCode, StateError, UsageError

if TYPE_CHECKING:
    import subprocess

    from agent.cli.grammar import CommandAdder
    from agent.daemon.service_install import ServiceFile

COMMAND_TIMEOUT_S = 120.0
SYSTEMD_RUNS = Path("run/systemd/system")
RESTORECON = ("/usr/sbin/restorecon", "/sbin/restorecon")
UNIT = "plimsoll-agent"
DEVICES = "plimsoll-devices"
CPUS = "plimsoll-cpus"
PATHS = ("plimsoll-mixed-vgpus.path", f"{CPUS}.path")
NEXT = "done; `plimsoll doctor` lists what is still missing, `plimsoll init` proposes the settings"
KEPT = (
    "done; kept are /etc/plimsoll, /var/lib/plimsoll and the user plimsoll: remove them to forget this host"
)


def add_install_service_command(add: CommandAdder) -> None:
    """Add `plimsoll install-service`."""
    command = add(
        "install-service",
        install_service,
        "make a service of a wheel that pip installed: units, user, directories, completion, man pages",
        "Shows the plan, then carries it out. What is there already stays; the same command again, also\n"
        "after an upgrade of the wheel, writes what differs. The service is enabled and started. Needs\n"
        "systemd and root. The Debian package needs no such command. --dry-run ends with 3 if there is\n"
        "something to do. --remove takes away what it wrote, and keeps /etc/plimsoll and\n"
        "/var/lib/plimsoll: the settings, the host's identity and its claims.",
        "  /opt/plimsoll/bin/plimsoll install-service --dry-run\n"
        "  /opt/plimsoll/bin/plimsoll install-service\n"
        "  plimsoll install-service --remove",
    )
    command.add_argument("--dry-run", action="store_true", help="only show the plan")
    command.add_argument("--remove", action="store_true", help="stop the service and remove it")
    command.add_argument(
        "--full-connection",
        action="store_true",
        help="also a polkit rule by which the agent may manage libvirt, as the group libvirt may",
    )
    command.add_argument(
        "--root", metavar="DIR", type=Path, default=Path("/"), help="write below DIR, and start nothing"
    )


def install_service(args: Namespace) -> ExitCode:
    """Install or remove the service."""
    here = args.root == Path("/")
    if here and not (args.root / SYSTEMD_RUNS).is_dir():
        raise UsageError("This host does not run systemd: start `plimsoll agent` by your service manager.")
    if here and not args.dry_run and os.geteuid() != 0:
        raise UsageError("install-service writes below /etc and /usr/local: run it as root.")
    plan = _removal(args) if args.remove else _installation(args)
    Output(args.output).show({"plan": [step.text for step in plan]}, lambda _: _lines(plan))
    if args.dry_run:
        return ExitCode.DRIFT_FOUND if plan else ExitCode.DONE
    for step in plan:
        step.run()
    if plan and args.output == "table":
        print(KEPT if args.remove else NEXT)
    return ExitCode.DONE


class _Step:
    """One step of the plan, in words, and what carries it out."""

    def __init__(self, text: str) -> None:
        self.text = text

    def run(self) -> None:
        """Carry it out. Raises StateError."""


class _Write(_Step):
    def __init__(self, root: Path, file: ServiceFile) -> None:
        super().__init__(f"write {root / file.path}")
        self._root, self._file = root, file

    def run(self) -> None:
        from agent.daemon.service_install import write

        write(self._root, self._file)


class _Link(_Step):
    def __init__(self, link: Path, target: Path) -> None:
        super().__init__(f"link {link} to {target}")
        self._link, self._target = link, target

    def run(self) -> None:
        try:
            self._link.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._link.unlink(missing_ok=True)
            self._link.symlink_to(self._target)
        except OSError as error:
            raise StateError(f"{self._link} cannot be made: {error.strerror}; run this as root.") from error


class _Remove(_Step):
    def __init__(self, root: Path, path: Path) -> None:
        super().__init__(f"remove {root / path}")
        self._root, self._path = root, path

    def run(self) -> None:
        from agent.daemon.service_install import remove

        remove(self._root, self._path)


class _Run(_Step):
    def __init__(self, *words: str) -> None:
        super().__init__(f"run {' '.join(words)}")
        self._words = words

    def run(self) -> None:
        done = _ask(*self._words)
        if done.returncode:
            reason = done.stderr.strip() or done.stdout.strip() or f"it ended with {done.returncode}"
            raise StateError(
                f"`{' '.join(self._words)}` failed: {reason}. What was written so far stays; mend the cause, "
                "and run the same command again."
            )


class _DisableGate(_Step):
    def __init__(self) -> None:
        super().__init__("disable the gate: remove the hook from libvirt's folder")

    def run(self) -> None:
        from agent.gate.install import disable

        disable()


def _installation(args: Namespace) -> list[_Step]:
    from agent.daemon.service_install import (
        LINK,
        Sources,
        check_executable,
        check_no_package,
        service_files,
        to_write,
    )

    executable = Path(sys.argv[0]).absolute()
    check_no_package(args.root)
    check_executable(executable)
    wanted = service_files(
        Sources.find(), executable, _systemd_version(), full_connection=args.full_connection
    )
    steps: list[_Step] = [_Write(args.root, file) for file in to_write(args.root, wanted)]
    link = args.root / LINK
    if executable != link and not (link.is_symlink() and link.readlink() == executable):
        if link.exists() and not link.is_symlink():
            raise UsageError(f"{link} exists and is no link: move it away, then run this again.")
        steps.append(_Link(link, executable))
    if args.root == Path("/"):
        steps.extend(_starts(bool(steps)))
    return steps


def _starts(changed: bool) -> Iterator[_Step]:
    """The steps after the files; none where nothing changed and the service runs."""
    active = _state_of("is-active")
    if not changed and active and _state_of("is-enabled"):
        return
    restorecon = next((name for name in RESTORECON if Path(name).exists()), None)
    if restorecon:  # the labels of SELinux
        yield _Run(restorecon, "-R", "/etc/systemd/system", "/etc/plimsoll", "/usr/local/share/man")
    yield _Run("systemd-sysusers")
    yield _Run("systemd-tmpfiles", "--create", "/etc/tmpfiles.d/plimsoll.conf")
    yield _Run("systemctl", "daemon-reload")
    yield _Run("systemctl", "enable", DEVICES)  # what a boot takes away is there now
    yield _Run("systemctl", "enable", CPUS)
    yield _Run("systemctl", "enable", "--now", *PATHS)
    yield _Run("systemctl", "enable", "--now", UNIT)
    if active:
        yield _Run("systemctl", "restart", UNIT)


def _removal(args: Namespace) -> list[_Step]:
    from agent.daemon.service_install import LINK, Sources, all_paths, check_no_package, to_remove
    from agent.gate.install import HookState, hook_state

    check_no_package(args.root)
    found = to_remove(args.root, all_paths(Sources.find()))
    link = args.root / LINK
    steps: list[_Step] = []
    if args.root == Path("/"):
        if hook_state() in (HookState.ENABLED, HookState.OUTDATED):
            steps.append(_DisableGate())
        if any(path.name == f"{UNIT}.service" for path in found):
            steps.append(_Run("systemctl", "disable", "--now", UNIT))
        names = {path.name for path in found}
        steps += [
            _Run("systemctl", "disable", unit) for unit in (DEVICES, CPUS) if f"{unit}.service" in names
        ]
        steps += [_Run("systemctl", "disable", "--now", path) for path in PATHS if path in names]
    steps.extend(_Remove(args.root, path) for path in found)
    if link.is_symlink() and link.readlink().name == "plimsoll" and link.readlink().is_absolute():
        steps.append(_Remove(args.root, LINK))
    if steps and args.root == Path("/"):
        steps.append(_Run("systemctl", "daemon-reload"))
    return steps


def _state_of(question: str) -> bool:
    return _ask("systemctl", "--quiet", question, UNIT).returncode == 0


def _systemd_version() -> int:
    """The version of systemd here; 0 where it cannot be told."""
    words = _ask("systemctl", "--version").stdout.split()
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0


def _ask(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the system. Raises StateError where it cannot be run."""
    import subprocess

    try:
        return subprocess.run(  # noqa: S603 - fixed commands, by PATH as each distribution has them
            words, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StateError(f"`{' '.join(words)}` cannot be run: {error}.") from error


def _lines(plan: list[_Step]) -> list[str]:
    return [step.text for step in plan] or ["nothing to do"]
