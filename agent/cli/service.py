"""The agent on this host, and its settings.

`plimsoll config` shows and checks the settings and prints a sample, `plimsoll init` proposes some.
`install-service` makes a service of the agent, `adopt` names its host. `plimsoll doctor`
finds what keeps it from working, and `plimsoll support-bundle` has the doctor's checks among much else.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from agent import errors
from agent.cli import grammar
from agent.cli.client import Client, client_of
from agent.cli.output import Style, show, table_lines, waiting
from agent.cli.tree import tree_lines
from agent.errors import ExitCode, counted, plain
from plimsoll.wire import SOCKET_DEFAULT

if TYPE_CHECKING:
    import subprocess

    from agent.api.shapes.host import TreeShape

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
FILE_DEFAULT = "/etc/plimsoll/plimsoll.conf"
AGENT_GROUP = "plimsoll"


# The settings


def add_config_command(add: grammar.CommandAdder) -> None:
    """Add `plimsoll config`."""
    config = add(
        "config",
        None,
        "show or check the agent's settings, or print a sample",
        "Without files, `show` asks the running agent, and `validate` reads the files that the agent reads.",
        "  plimsoll config show\n"
        "  plimsoll config validate --config-file /etc/plimsoll/plimsoll.conf\n"
        "  plimsoll config sample > plimsoll.conf",
    )
    add_verb = grammar.add_verbs(config)
    grammar.add_settings_options(
        add_verb(
            "show",
            show_settings,
            "show the value of each option, and where it comes from",
            "Asks the running agent; with --config-file or --config-dir, reads those instead. Secrets are\n"
            "masked.",
            "  plimsoll config show\n  plimsoll config show --config-file plimsoll.conf",
        )
    )
    grammar.add_settings_options(
        add_verb(
            "validate",
            validate,
            "check settings without using them",
            "Ends with 2 and one line for the first fault that a start of the agent would refuse: an\n"
            "unknown option, a value out of range, a key given twice, options that contradict each other,\n"
            "a path at which a file or a socket cannot be made, provider config files that contradict what\n"
            "the driver describes, and options of drivers that are wrong with any compute_driver. Below\n"
            "that the settings are good, it tells what an agent would start with and not offer as meant:\n"
            "what is reserved beyond what the host has, provider config files that match nothing. It does\n"
            "not look whether another process listens at an address.",
            "  plimsoll config validate\n  plimsoll config validate --config-file plimsoll.conf",
        )
    )
    add_verb(
        "sample",
        print_sample,
        "print a file with every option at its default",
        "Every option is commented out, with its meaning and the values that it allows.",
        "  plimsoll config sample > /etc/plimsoll/plimsoll.conf",
    )


def show_settings(args: Namespace) -> ExitCode:
    """Show the settings of the running agent, or those of the given files."""
    from agent.api.shapes.host import SETTING_COLUMNS, SettingRow

    answer: Any
    if args.config_file or args.config_dir:
        from agent.config.settings import describe

        answer = describe(grammar.load_settings(args))
    else:
        answer = client_of(args).get("/v1/config")
    rows = [
        SettingRow(group, option, setting)
        for group, options in answer.items()
        for option, setting in options.items()
    ]
    show(args, answer, lambda style: table_lines(SETTING_COLUMNS, rows, style))
    return ExitCode.DONE


def validate(args: Namespace) -> ExitCode:
    """Check settings files. Raises SettingsError where they are wrong."""
    from agent.config.check import check_start
    from agent.state.identity import written_uuid

    settings = grammar.load_settings(args)
    directories = (settings.state_path, *(path.parent for path in settings.files))
    notes = check_start(settings, written_uuid(directories))
    files = [str(path) for path in settings.files]
    source = ", ".join(files) if files else "no file, so every option has its default"
    lines = [f"the settings are good: {source}", *map(plain, notes)]
    show(args, {"valid": True, "files": files, "notes": list(notes)}, lambda _: lines)
    return ExitCode.DONE


def print_sample(args: Namespace) -> ExitCode:
    """Print a sample of a settings file."""
    from agent.config.options import sample

    text = sample()
    show(args, {"sample": text}, lambda _: text.splitlines())
    return ExitCode.DONE


def add_init_command(add: grammar.CommandAdder) -> None:
    """Add `plimsoll init`."""
    command = add(
        "init",
        init,
        "propose a configuration for this host, and write it after asking",
        "Looks at the host through the driver, proposes each option with its reason, and draws the tree\n"
        "that the agent would report. Options that only you can know are commented out. The command\n"
        "writes nothing before you agree, and replaces an existing file only with --force.",
        "  plimsoll init\n  plimsoll init --driver fake --file ./plimsoll.conf\n  plimsoll init --yes",
    )
    command.add_argument("--driver", default="libvirt", metavar="NAME", help="the virt driver (libvirt)")
    command.add_argument(
        "--host", metavar="NAME", type=grammar.not_empty, help="the host's name (default: its hostname)"
    )
    command.add_argument("--file", default=FILE_DEFAULT, metavar="FILE", help=f"default {FILE_DEFAULT}")
    command.add_argument("--yes", action="store_true", help="write without asking")
    command.add_argument("--force", action="store_true", help="replace a file; the old one becomes FILE.old")


def init(args: Namespace) -> ExitCode:
    """Propose a configuration, and write it after the operator agrees."""
    path = Path(args.file)
    if path.exists() and not args.force:
        raise errors.UsageError(
            f"{path} exists already: `plimsoll config validate` checks it; --force replaces it, and keeps "
            f"it as {path.name}.old"
        )
    with waiting("looking at the host"):
        text, tree = _proposed(args)
    show(
        args,
        {"file": str(path), "configuration": text, **tree},
        lambda style: [
            f"== {path} would be",
            *map(plain, text.splitlines()),
            "",
            "== and the agent would report",
            *tree_lines(tree["resource_providers"], style),
            *(f"warning: {plain(text)}" for text in tree["warnings"]),
        ],
    )
    # Without a terminal the answer is no.
    if not (args.yes or (sys.stdin.isatty() and _agrees(f"\nWrite {path}?"))):
        print("nothing was written", file=sys.stderr)
        return ExitCode.DONE
    _write(path, text)
    service = "systemctl restart plimsoll-agent && plimsoll status"
    next_command = service if args.file == FILE_DEFAULT else f"plimsoll agent --config-file {path}"
    print(f"written: {path}; next: {next_command}", file=sys.stderr)
    return ExitCode.DONE


def _proposed(args: Namespace) -> tuple[str, TreeShape]:
    """The text of the file, and the tree that the agent would report with it. Raises SettingsError."""
    from agent.api.views import tree_view
    from agent.config.options import AGENT_OPTIONS, own_suggestions, propose
    from agent.config.settings import read_only_driver
    from agent.providers.limits import DISK, disk_in_use, disk_warning
    from agent.providers.resolve import OwnedProviders, resolve
    from agent.tree import NIL_UUID, Provider, ProviderTree

    (named,) = (option for option in AGENT_OPTIONS["DEFAULT"] if option.dest == "host")
    host = args.host or named.default
    first = _settings(f"[DEFAULT]\nhost = {host}\ncompute_driver = {args.driver}\n")
    with closing(read_only_driver(first)) as driver:
        try:
            suggested = (*own_suggestions(host, args.driver, driver.topology()), *driver.suggest())
        except errors.DriverError as error:
            raise errors.SettingsError(
                f"The driver {args.driver} cannot read the host: {error.message}; `plimsoll doctor` says "
                "more. Without a hypervisor, --driver fake shows an example."
            ) from error
    text = propose(suggested)
    with closing(read_only_driver(_settings(text))) as driver:
        root = ProviderTree((Provider(NIL_UUID, host),))
        description = driver.describe()
        inventory = description.providers[0].inventories.get(DISK)
        warning = disk_warning(inventory, disk_in_use(driver.guests()), driver.disk_free_gb())
        tree = resolve(description, root, OwnedProviders(), NIL_UUID).tree
    return text, tree_view(tree, {}, warnings=[warning] if warning else [])


def _settings(text: str) -> Any:
    from tempfile import NamedTemporaryFile

    from agent.config.settings import load

    with NamedTemporaryFile("w", suffix=".conf", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        return load((Path(file.name),))


def _write(path: Path, text: str) -> None:
    """Raises StateError, OSError."""
    import shutil

    from agent.durable.files import write_atomically

    try:
        if path.is_file():
            path.with_name(f"{path.name}.old").write_bytes(path.read_bytes())
        write_atomically(path, text)
    except OSError as error:
        raise errors.StateError(
            f"{path} cannot be written: {error.strerror}; make its directory, run this as root, or name "
            "another file with --file."
        ) from error
    try:
        shutil.chown(path, group=AGENT_GROUP)
        path.chmod(0o640)
    except LookupError:  # no such group: the agent was not installed as a service
        path.chmod(0o644)


def _agrees(question: str) -> bool:
    """Whether the person at the terminal says yes."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


# The service


def add_install_service_command(add: grammar.CommandAdder) -> None:
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
        raise errors.UsageError(
            "This host does not run systemd: start `plimsoll agent` by your service manager."
        )
    if here and not args.dry_run and os.geteuid() != 0:
        raise errors.UsageError("install-service writes below /etc and /usr/local: run it as root.")
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
            raise errors.StateError(
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
        raise errors.StateError(f"{link} cannot be made: {error.strerror}; run this as root.") from error


def _installation(args: Namespace) -> list[_Step]:
    from agent.daemon import service_install

    executable = Path(sys.argv[0]).absolute()
    service_install.check_no_package(args.root)
    service_install.check_executable(executable)
    # The version of systemd here; 0 where it cannot be told.
    words = _ask("systemctl", "--version").stdout.split()
    version = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
    wanted = service_install.service_files(
        service_install.Sources.find(),
        executable,
        version,
        full_connection=args.full_connection,
    )
    steps = [
        _Step(f"write {args.root / file.path}", partial(service_install.write, args.root, file))
        for file in service_install.to_write(args.root, wanted)
    ]
    link = args.root / service_install.LINK
    if executable != link and not (link.is_symlink() and link.readlink() == executable):
        if link.exists() and not link.is_symlink():
            raise errors.UsageError(f"{link} exists and is no link: move it away, then run this again.")
        steps.append(_Step(f"link {link} to {executable}", partial(_link, link, executable)))
    if args.root == Path("/"):
        steps.extend(_starts(bool(steps)))
    return steps


def _starts(changed: bool) -> Iterator[_Step]:
    """The steps after the files; none where nothing changed and the service runs."""
    active = _ask("systemctl", "--quiet", "is-active", UNIT).returncode == 0
    if not changed and active and _ask("systemctl", "--quiet", "is-enabled", UNIT).returncode == 0:
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
    from agent.daemon import service_install
    from agent.gate.install import HookState, disable, hook_state

    service_install.check_no_package(args.root)
    found = service_install.to_remove(args.root, service_install.all_paths(service_install.Sources.find()))
    link = args.root / service_install.LINK
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
        started = (*PATHS, service_install.CC_MODES)
        steps += [_command("systemctl", "disable", "--now", unit) for unit in started if unit in names]
    if link.is_symlink() and link.readlink().name == "plimsoll" and link.readlink().is_absolute():
        found = (*found, service_install.LINK)
    steps += [
        _Step(f"remove {args.root / path}", partial(service_install.remove, args.root, path))
        for path in found
    ]
    if steps and args.root == Path("/"):
        steps.append(_command("systemctl", "daemon-reload"))
    return steps


def _ask(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the system. Raises StateError where it cannot be run."""
    import subprocess

    try:
        return subprocess.run(  # noqa: S603 - fixed commands, by PATH as each distribution has them
            words, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise errors.StateError(f"`{' '.join(words)}` cannot be run: {error}.") from error


def add_adopt_command(add: grammar.CommandAdder) -> None:
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
    grammar.add_settings_options(command)


def adopt(args: Namespace) -> ExitCode:
    """Write the identity of the host into the state directory, without settings only if a person agrees."""
    from agent.daemon.offline import adopt as write_identity
    from agent.state.identity import canonical_uuid

    host_uuid, settings = canonical_uuid(args.uuid), grammar.load_settings(args)
    if not settings.files and not args.yes:
        without = f"there is no configuration file, so this host would be {settings.host}, {host_uuid}"
        if not sys.stdin.isatty():
            raise errors.UsageError(
                f"{without}: nothing was written. Write a configuration first (`plimsoll init`), name one "
                "with --config-file, or use --yes."
            )
        if not _agrees(f"{without}; its state is in {settings.state_path}. Go on?"):
            raise errors.UsageError("nothing was written")
    identity = write_identity(settings, host_uuid)
    line = f"this host, {identity.name}, is {identity.uuid} from now on; start the agent"
    show(args, {"uuid": identity.uuid, "name": identity.name}, lambda _: [line])
    return ExitCode.DONE


def add_doctor_command(add: grammar.CommandAdder) -> None:
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
        type=grammar.not_empty,
        help="check a PCI device: its driver, who holds it, its IOMMU group",
    )
    grammar.add_settings_options(command)


def doctor(args: Namespace) -> ExitCode:
    """Check the host and the agent."""
    from agent.doctor.check import CheckVerdict, worst
    from agent.doctor.examine import examine, examine_device

    def ask(socket: str) -> object:
        return Client(socket, args.timeout, quiet=True).get("/v1/status")

    socket = args.socket if args.socket != SOCKET_DEFAULT else None
    checks = []
    with waiting("looking at the host") as show_activity:
        settings = grammar.settings_paths(args)
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


def add_support_bundle_command(add: grammar.CommandAdder) -> None:
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
    grammar.add_settings_options(command)


def support_bundle(args: Namespace) -> ExitCode:
    """Write the bundle."""
    from agent.doctor.examine import gather

    given = args.socket if args.socket != SOCKET_DEFAULT else ""

    def ask(socket: str, path: str) -> Any:
        return Client(given or socket or args.socket, args.timeout).get(path)

    path, members = gather(args.to, *grammar.settings_paths(args), ask)
    show(
        args,
        {"file": str(path), "members": members},
        lambda _: [f"{path}: {', '.join(members)}", "look through it before you hand it on"],
    )
    return ExitCode.DONE
