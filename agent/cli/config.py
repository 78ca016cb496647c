"""`plimsoll config` shows and checks the settings, and prints a sample; `plimsoll init` proposes some."""

from __future__ import annotations

import sys
from argparse import Namespace
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.cli.client import client_of
from agent.cli.grammar import CommandAdder, add_settings_options, add_verbs, load_settings, not_empty
from agent.cli.output import show, table_lines, waiting
from agent.cli.tree import tree_lines
from agent.errors import DriverError, ExitCode, SettingsError, StateError, UsageError, plain

if TYPE_CHECKING:
    from agent.api.shapes.host import TreeShape

FILE_DEFAULT = "/etc/plimsoll/plimsoll.conf"
AGENT_GROUP = "plimsoll"


def add_config_command(add: CommandAdder) -> None:
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
    add_verb = add_verbs(config)
    add_settings_options(
        add_verb(
            "show",
            show_settings,
            "show the value of each option, and where it comes from",
            "Asks the running agent; with --config-file or --config-dir, reads those instead. Secrets are\n"
            "masked.",
            "  plimsoll config show\n  plimsoll config show --config-file plimsoll.conf",
        )
    )
    add_settings_options(
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

        answer = describe(load_settings(args))
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

    settings = load_settings(args)
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


def add_init_command(add: CommandAdder) -> None:
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
        "--host", metavar="NAME", type=not_empty, help="the host's name (default: its hostname)"
    )
    command.add_argument("--file", default=FILE_DEFAULT, metavar="FILE", help=f"default {FILE_DEFAULT}")
    command.add_argument("--yes", action="store_true", help="write without asking")
    command.add_argument("--force", action="store_true", help="replace a file; the old one becomes FILE.old")


def init(args: Namespace) -> ExitCode:
    """Propose a configuration, and write it after the operator agrees."""
    path = Path(args.file)
    if path.exists() and not args.force:
        raise UsageError(
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
    if not args.yes:
        agreed = False  # without a terminal the answer is no
        if sys.stdin.isatty():
            print(f"\nWrite {path}? [y/N] ", end="", file=sys.stderr, flush=True)
            agreed = sys.stdin.readline().strip().lower() in ("y", "yes")
        if not agreed:
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
        except DriverError as error:
            raise SettingsError(
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
        if path.exists():
            path.with_name(f"{path.name}.old").write_bytes(path.read_bytes())
        write_atomically(path, text)
    except OSError as error:
        raise StateError(
            f"{path} cannot be written: {error.strerror}; make its directory, run this as root, or name "
            "another file with --file."
        ) from error
    try:
        shutil.chown(path, group=AGENT_GROUP)
        path.chmod(0o640)
    except LookupError:  # no such group: the agent was not installed as a service
        path.chmod(0o644)
