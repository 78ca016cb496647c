"""`plimsoll devices`: the devices that guests can have, and those that an operator keeps from them.

Its verbs `plan`, `apply` and `assert` are in `agent.cli.carve`.
"""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from agent.cli.carve import ROOT, add_carving_verbs, plan
from agent.cli.client import client_of
from agent.cli.grammar import add_column_option, add_verbs
from agent.cli.output import Output
from agent.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from agent.api.shapes.providers import CordonShape, DevicesShape
    from agent.cli.grammar import CommandAdder


def add_devices_command(add: CommandAdder) -> None:
    """Add `plimsoll devices`."""
    command = add(
        "devices",
        dry_run,
        "list the devices for guests, keep some from them, and make again what a boot took away",
        "The agent offers a device that is not well to no guest and no scheduler until it is well again; an\n"
        "operator can cordon one. A guest that has such a device keeps it.",
        '  plimsoll devices list\n  plimsoll devices cordon 0000:41:10.2 --reason "loses its link"\n'
        "  plimsoll devices clear 0000:41:10.2\n  plimsoll devices --dry-run",
    )
    command.add_argument("--dry-run", action="store_true", help="the same as `plimsoll devices plan`")
    command.set_defaults(missing=command, config_file=None, config_dir=None, root=ROOT, mixed_size=False)
    add_verb = add_verbs(command)
    listing = add_verb(
        "list",
        list_devices,
        "list the devices, who has each, and which are withheld",
        "CPUs are not listed; `plimsoll tree` shows them.",
        "  plimsoll devices list\n  plimsoll devices list -o csv -c device -c holder",
    )
    add_column_option(listing)
    cordoning = add_verb(
        "cordon",
        cordon,
        "give a device to no guest, until `plimsoll devices clear`",
        "A guest that has the device keeps it. The cordon is kept over restarts of the agent. The address\n"
        "of a card stands for all that the card offers.",
        '  plimsoll devices cordon 0000:83:00.0 --reason "fell off the bus twice"',
    )
    cordoning.add_argument(
        "address", metavar="ADDRESS", help="a PCI address, or the uuid of a mediated device"
    )
    cordoning.add_argument("--reason", default="", help="why, for `plimsoll status`")
    clearing = add_verb(
        "clear",
        clear,
        "give a device to guests again",
        "Ends the cordon of this address. A device that is unhealthy is offered in spite of the symptoms\n"
        "that it shows now; one that comes later counts again.",
        "  plimsoll devices clear 0000:83:00.0",
    )
    clearing.add_argument("address", metavar="ADDRESS", help="the address that is cordoned or unhealthy")
    add_carving_verbs(add_verb)


def dry_run(args: Namespace) -> ExitCode:
    """Show what `plimsoll devices apply` would do; without --dry-run, a verb is missing."""
    if not args.dry_run:
        args.missing.error("a command is missing")
    return plan(args)


def list_devices(args: Namespace) -> ExitCode:
    """List the devices of the host."""
    from agent.api.shapes.providers import DEVICE_COLUMNS

    answer: DevicesShape = client_of(args).get("/v1/devices")
    Output(args.output, args.column).show_table(answer, DEVICE_COLUMNS, answer["devices"], "no devices")
    return ExitCode.DONE


def cordon(args: Namespace) -> ExitCode:
    """Cordon a device."""
    if not args.address.strip():
        raise UsageError(
            "devices cordon: ADDRESS is an empty text; `plimsoll devices list` shows the addresses"
        )
    body = {"address": args.address, "reason": args.reason}
    answer: CordonShape = client_of(args).request("POST", "/v1/devices/cordon", body)
    line = f"cordoned: {answer['address']} is given to no guest until `plimsoll devices clear`"
    Output(args.output).show(answer, lambda _: [line])
    return ExitCode.DONE


def clear(args: Namespace) -> ExitCode:
    """Offer a device again."""
    answer = client_of(args).request("POST", "/v1/devices/clear", {"address": args.address})
    Output(args.output).show(answer, lambda _: [f"cleared: {args.address} is given to guests again"])
    return ExitCode.DONE
