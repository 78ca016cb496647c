"""`plimsoll init`: look at the host, propose a configuration and its tree, write it after asking."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.cli.grammar import not_empty
from agent.cli.output import Output
from agent.cli.provider_tree import tree_lines
from agent.cli.terminal import Style, plain
from agent.cli.waiting import waiting
from agent.errors import DriverError, ExitCode, SettingsError, StateError, UsageError

if TYPE_CHECKING:
    from agent.api.shapes.providers import TreeShape
    from agent.cli.grammar import CommandAdder

FILE_DEFAULT = "/etc/plimsoll/plimsoll.conf"
AGENT_GROUP = "plimsoll"


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
    Output(args.output).show(
        {"file": str(path), "configuration": text, **tree},
        lambda style: _lines(path, text, tree, style),
    )
    if not args.yes and not _agreed(path):
        print("nothing was written", file=sys.stderr)
        return ExitCode.DONE
    _write(path, text)
    service = "systemctl restart plimsoll-agent && plimsoll status"
    next_command = service if args.file == FILE_DEFAULT else f"plimsoll agent --config-file {path}"
    print(f"written: {path}; next: {next_command}", file=sys.stderr)
    return ExitCode.DONE


def _proposed(args: Namespace) -> tuple[str, TreeShape]:
    """The text of the file, and the tree that the agent would report with it. Raises SettingsError."""
    from dataclasses import replace

    from agent.config.options import AGENT_OPTIONS, driver_class
    from agent.config.proposal import own_suggestions, propose

    (named,) = (option for option in AGENT_OPTIONS["DEFAULT"] if option.dest == "host")
    host = args.host or named.default
    first = _settings(f"[DEFAULT]\nhost = {host}\ncompute_driver = {args.driver}\n")
    driver = driver_class(args.driver).create(replace(first.driver, state_path=None, read_only=True))
    try:
        suggested = (*own_suggestions(host, args.driver, driver.topology()), *driver.suggest())
    except DriverError as error:
        raise SettingsError(
            f"The driver {args.driver} cannot read the host: {error.message}; `plimsoll doctor` says more. "
            "Without a hypervisor, --driver fake shows an example."
        ) from error
    finally:
        driver.close()
    text = propose(suggested)
    return text, _tree(_settings(text), host)


def _settings(text: str) -> Any:
    from tempfile import NamedTemporaryFile

    from agent.config.settings import load

    with NamedTemporaryFile("w", suffix=".conf", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        return load((Path(file.name),))


def _tree(settings: Any, host: str) -> TreeShape:
    from dataclasses import replace

    from agent.api.views import tree_view
    from agent.config.options import driver_class
    from agent.providers.disk_space import DISK, disk_in_use, disk_warning
    from agent.providers.resolve import OwnedProviders, resolve
    from agent.tree import NIL_UUID, Provider, ProviderTree

    driver = driver_class(settings.compute_driver).create(
        replace(settings.driver, state_path=None, read_only=True)
    )
    try:
        root = ProviderTree((Provider(NIL_UUID, host),))
        description = driver.describe()
        warning = disk_warning(
            description.providers[0].inventories.get(DISK),
            disk_in_use(driver.guests()),
            driver.disk_free_gb(),
        )
        tree = resolve(description, root, OwnedProviders(), NIL_UUID).tree
        return tree_view(tree, {}, warnings=[warning] if warning else [])
    finally:
        driver.close()


def _lines(path: Path, text: str, tree: TreeShape, style: Style) -> list[str]:
    return [
        f"== {path} would be",
        *map(plain, text.splitlines()),
        "",
        "== and the agent would report",
        *tree_lines(tree["resource_providers"], style),
        *(f"warning: {plain(text)}" for text in tree["warnings"]),
    ]


def _agreed(path: Path) -> bool:
    """Whether a person at a terminal agrees; without a terminal the answer is no."""
    if not sys.stdin.isatty():
        return False
    print(f"\nWrite {path}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


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
