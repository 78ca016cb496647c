"""The agent as a service: `plimsoll agent` runs it, `install-service` installs it, `adopt` names its host.

`plimsoll doctor` finds what keeps it from working, and `plimsoll support-bundle` has the doctor's checks
among much else.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from agent.cli.client import SOCKET_DEFAULT, Client
from agent.cli.grammar import CommandAdder, add_settings_options, load_settings, not_empty, settings_paths
from agent.cli.output import Style, show, waiting
from agent.errors import ExitCode, StateError, UsageError, counted, plain

if TYPE_CHECKING:
    import subprocess


COMMAND_TIMEOUT_S = 120.0
SYSTEMD_RUNS = Path("run/systemd/system")
RESTORECON = ("/usr/sbin/restorecon", "/sbin/restorecon")
VERDICT_COLOURS = {"good": "green", "warning": "yellow", "bad": "red"}
UNIT = "plimsoll-agent"
DEVICES = "plimsoll-devices"
CPUS = "plimsoll-cpus"
PATHS = ("plimsoll-mixed-vgpus.path", f"{CPUS}.path")
NEXT = "done; `plimsoll doctor` lists what is still missing, `plimsoll init` proposes the settings"
KEPT = (
    "done; kept are /etc/plimsoll, /var/lib/plimsoll and the user plimsoll: remove them to forget this host"
)


def add_agent_command(add: CommandAdder) -> None:
    """Add `plimsoll agent`."""
    command = add(
        "agent",
        agent,
        "run the agent, in the foreground",
        "The service runs this command. SIGTERM stops the agent, SIGHUP reads the settings again.",
        "  plimsoll agent\n  plimsoll agent --config-file ./plimsoll.conf",
    )
    add_settings_options(command)


def agent(args: Namespace) -> ExitCode:
    """Run the agent until a signal stops it."""
    from agent.daemon.service import run

    return ExitCode(run(*settings_paths(args)))


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
    show(
        args,
        {"plan": [step.text for step in plan]},
        lambda _: [step.text for step in plan] or ["nothing to do"],
    )
    if args.dry_run:
        return ExitCode.DRIFT_FOUND if plan else ExitCode.DONE
    for step in plan:
        step.run()
    if plan and args.output == "table":
        print(KEPT if args.remove else NEXT)
    return ExitCode.DONE


class _Step(NamedTuple):
    """One step of the plan, in words, and what carries it out; that raises StateError."""

    text: str
    run: Callable[[], None]


def _command(*words: str) -> _Step:
    """The step that runs a command of the system."""

    def run() -> None:
        done = _ask(*words)
        if done.returncode:
            reason = done.stderr.strip() or done.stdout.strip() or f"it ended with {done.returncode}"
            raise StateError(
                f"`{' '.join(words)}` failed: {reason}. What was written so far stays; mend the cause, "
                "and run the same command again."
            )

    return _Step(f"run {' '.join(words)}", run)


def _link(link: Path, target: Path) -> None:
    try:
        link.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    except OSError as error:
        raise StateError(f"{link} cannot be made: {error.strerror}; run this as root.") from error


def _installation(args: Namespace) -> list[_Step]:
    from agent.daemon.service_install import (
        LINK,
        Sources,
        check_executable,
        check_no_package,
        service_files,
        to_write,
        write,
    )

    executable = Path(sys.argv[0]).absolute()
    check_no_package(args.root)
    check_executable(executable)
    # The version of systemd here; 0 where it cannot be told.
    words = _ask("systemctl", "--version").stdout.split()
    version = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
    wanted = service_files(
        Sources.find(),
        executable,
        version,
        full_connection=args.full_connection,
    )
    steps = [
        _Step(f"write {args.root / file.path}", partial(write, args.root, file))
        for file in to_write(args.root, wanted)
    ]
    link = args.root / LINK
    if executable != link and not (link.is_symlink() and link.readlink() == executable):
        if link.exists() and not link.is_symlink():
            raise UsageError(f"{link} exists and is no link: move it away, then run this again.")
        steps.append(_Step(f"link {link} to {executable}", partial(_link, link, executable)))
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
        yield _command(restorecon, "-R", "/etc/systemd/system", "/etc/plimsoll", "/usr/local/share/man")
    yield _command("systemd-sysusers")
    yield _command("systemd-tmpfiles", "--create", "/etc/tmpfiles.d/plimsoll.conf")
    yield _command("systemctl", "daemon-reload")
    yield _command("systemctl", "enable", DEVICES)  # what a boot takes away is there now
    yield _command("systemctl", "enable", CPUS)
    yield _command("systemctl", "enable", "--now", *PATHS)
    yield _command("systemctl", "enable", "--now", UNIT)
    if active:
        yield _command("systemctl", "restart", UNIT)


def _removal(args: Namespace) -> list[_Step]:
    from agent.daemon.service_install import LINK, Sources, all_paths, check_no_package, remove, to_remove
    from agent.gate.install import HookState, disable, hook_state

    check_no_package(args.root)
    found = to_remove(args.root, all_paths(Sources.find()))
    link = args.root / LINK
    steps: list[_Step] = []
    if args.root == Path("/"):
        if hook_state() in (HookState.ENABLED, HookState.OUTDATED):
            steps.append(_Step("disable the gate: remove the hook from libvirt's folder", disable))
        if any(path.name == f"{UNIT}.service" for path in found):
            steps.append(_command("systemctl", "disable", "--now", UNIT))
        names = {path.name for path in found}
        steps += [
            _command("systemctl", "disable", unit) for unit in (DEVICES, CPUS) if f"{unit}.service" in names
        ]
        steps += [_command("systemctl", "disable", "--now", path) for path in PATHS if path in names]
    if link.is_symlink() and link.readlink().name == "plimsoll" and link.readlink().is_absolute():
        found = (*found, LINK)
    steps += [_Step(f"remove {args.root / path}", partial(remove, args.root, path)) for path in found]
    if steps and args.root == Path("/"):
        steps.append(_command("systemctl", "daemon-reload"))
    return steps


def _state_of(question: str) -> bool:
    return _ask("systemctl", "--quiet", question, UNIT).returncode == 0


def _ask(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the system. Raises StateError where it cannot be run."""
    import subprocess

    try:
        return subprocess.run(  # noqa: S603 - fixed commands, by PATH as each distribution has them
            words, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StateError(f"`{' '.join(words)}` cannot be run: {error}.") from error


def add_adopt_command(add: CommandAdder) -> None:
    """Add `plimsoll adopt`."""
    command = add(
        "adopt",
        adopt,
        "say which host this is, while the agent is not running",
        "For a host whose uuid file is lost, that was renamed, or whose name belongs to another provider in\n"
        "Placement: the agent's error names this command and the uuid. From then on the agent is the host\n"
        "of that uuid, under the name in its settings.",
        "  plimsoll adopt 0c1f7a52-8f0e-4f2b-9d4b-3a5f0a7c6e21",
    )
    command.add_argument("uuid", metavar="UUID", help="the uuid of the host's root provider")
    command.add_argument("--yes", action="store_true", help="do not ask, also without a configuration file")
    add_settings_options(command)


def adopt(args: Namespace) -> ExitCode:
    """Write the identity of the host into the state directory, without settings only if a person agrees."""
    from agent.daemon.offline import adopt as write_identity
    from agent.state.identity import canonical_uuid

    host_uuid, settings = canonical_uuid(args.uuid), load_settings(args)
    if not settings.files and not args.yes:
        without = f"there is no configuration file, so this host would be {settings.host}, {host_uuid}"
        if not sys.stdin.isatty():
            raise UsageError(
                f"{without}: nothing was written. Write a configuration first (`plimsoll init`), name one "
                "with --config-file, or use --yes."
            )
        question = f"{without}; its state is in {settings.state_path}. Go on? [y/N] "
        print(question, end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise UsageError("nothing was written")
    identity = write_identity(settings, host_uuid)
    line = f"this host, {identity.name}, is {identity.uuid} from now on; start the agent"
    show(args, {"uuid": identity.uuid, "name": identity.name}, lambda _: [line])
    return ExitCode.DONE


def add_doctor_command(add: CommandAdder) -> None:
    """Add `plimsoll doctor`."""
    command = add(
        "doctor",
        doctor,
        "find what prevents the agent from working on this host, and the remedy",
        "Checks versions, clock, settings, state directory, databases, identity, the running agent,\n"
        "Placement and the hypervisor; changes nothing, and works without an agent. Run it as root, or as\n"
        "the agent's user. Ends with 1 if something is bad, with 0 if there are only warnings.\n"
        "With --device: whether a guest can be given that PCI device now.",
        "  plimsoll doctor\n  plimsoll doctor --device 0000:41:00.0\n"
        "  plimsoll doctor -o json | jq '.checks[] | select(.verdict != \"good\")'",
    )
    command.add_argument(
        "--device",
        metavar="ADDRESS",
        type=not_empty,
        help="check a PCI device: its driver, who holds it, its IOMMU group",
    )
    add_settings_options(command)


def doctor(args: Namespace) -> ExitCode:
    """Check the host and the agent."""
    from agent.doctor.check import CheckVerdict, worst
    from agent.doctor.examine import examine, examine_device

    def ask(socket: str) -> object:
        return Client(socket, args.timeout, quiet=True).get("/v1/status")

    socket = args.socket if args.socket != SOCKET_DEFAULT else None
    checks = []
    with waiting("looking at the host") as show_activity:
        settings = settings_paths(args)
        device = args.device
        for check in examine_device(*settings, device) if device else examine(*settings, ask, socket):
            checks.append(check)
            show_activity(
                f"looking at the host; {counted(len(checks), 'check')} done, the last one: {check.name}"
            )

    def lines(style: Style) -> Iterator[str]:
        width = max(len(check.name) for check in checks)
        for check in checks:
            verdict = style.paint(VERDICT_COLOURS[check.verdict], f"{check.verdict:<7}")
            yield f"{verdict}  {check.name:<{width}}  {plain(check.sentence)}"
            if check.verdict is not CheckVerdict.GOOD:
                yield f"{'':7}  {'':<{width}}  -> {plain(check.remedy)}"

    show(args, {"checks": [check.to_json() for check in checks]}, lines)
    return ExitCode.FAILED if worst(checks) is CheckVerdict.BAD else ExitCode.DONE


def add_support_bundle_command(add: CommandAdder) -> None:
    """Add `plimsoll support-bundle`."""
    command = add(
        "support-bundle",
        support_bundle,
        "gather what is known about the agent in one file, with secrets masked",
        "Contains status, tree, claims, moves, findings, settings, the doctor's checks and the end of the\n"
        "log, as a .tar.gz that only you can read. The values of secret options are masked everywhere. The\n"
        "bundle names what could not be gathered. Look through it before you hand it on.",
        "  plimsoll support-bundle\n  plimsoll support-bundle --to /tmp/plimsoll.tar.gz",
    )
    command.add_argument(
        "--to", metavar="FILE", help="the file to write (default: plimsoll-HOST-TIME.tar.gz here)"
    )
    add_settings_options(command)


def support_bundle(args: Namespace) -> ExitCode:
    """Write the bundle."""
    from agent.doctor.examine import gather

    given = args.socket if args.socket != SOCKET_DEFAULT else ""

    def ask(socket: str, path: str) -> Any:
        return Client(given or socket or args.socket, args.timeout).get(path)

    path, members = gather(args.to, *settings_paths(args), ask)
    show(
        args,
        {"file": str(path), "members": members},
        lambda _: [f"{path}: {', '.join(members)}", "look through it before you hand it on"],
    )
    return ExitCode.DONE
