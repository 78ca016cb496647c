"""`plimsoll config`: show and check settings, and print a sample."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from agent.cli.client import client_of
from agent.cli.grammar import add_verbs
from agent.cli.output import Output
from agent.cli.settings_files import add_settings_options, load_settings
from agent.cli.tables import table_lines
from agent.cli.terminal import Style, plain
from agent.errors import ExitCode

if TYPE_CHECKING:
    from agent.cli.grammar import CommandAdder


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
            show,
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
            "the driver describes, and options of drivers that are wrong whichever driver is chosen. Below\n"
            "that the settings are good, it tells what an agent would start with and not offer as meant:\n"
            "what is reserved beyond what the host has, provider config files that match nothing. It does\n"
            "not look whether another process listens at an address.",
            "  plimsoll config validate\n  plimsoll config validate --config-file plimsoll.conf",
        )
    )
    add_verb(
        "sample",
        sample,
        "print a file with every option at its default",
        "Every option is commented out, with its meaning and the values that it allows.",
        "  plimsoll config sample > /etc/plimsoll/plimsoll.conf",
    )


def show(args: Namespace) -> ExitCode:
    """Show the settings of the running agent, or those of the given files."""
    if args.config_file or args.config_dir:
        from agent.config.settings import describe

        answer = describe(load_settings(args))
    else:
        answer = client_of(args).get("/v1/config")
    Output(args.output).show(answer, lambda style: _lines(answer, style))
    return ExitCode.DONE


def _lines(groups: dict[str, dict[str, Any]], style: Style) -> Iterable[str]:
    from agent.api.shapes.host import SETTING_COLUMNS, SettingRow

    rows = [
        SettingRow(group, option, setting)
        for group, options in groups.items()
        for option, setting in options.items()
    ]
    return table_lines(SETTING_COLUMNS, rows, style)


def validate(args: Namespace) -> ExitCode:
    """Check settings files. Raises SettingsError where they are wrong."""
    from agent.config.check import check_start

    settings = load_settings(args)
    notes = check_start(settings)
    files = [str(path) for path in settings.files]
    source = ", ".join(files) if files else "no file, so every option has its default"
    lines = [f"the settings are good: {source}", *map(plain, notes)]
    Output(args.output).show({"valid": True, "files": files, "notes": list(notes)}, lambda _: lines)
    return ExitCode.DONE


def sample(args: Namespace) -> ExitCode:
    """Print a sample of a settings file."""
    from agent.config.settings import sample

    text = sample()
    Output(args.output).show({"sample": text}, lambda _: text.splitlines())
    return ExitCode.DONE
