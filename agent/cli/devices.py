"""`plimsoll devices`: the devices that guests can have, and those that an operator keeps from them."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from agent.cli.client import client_of
from agent.cli.grammar import add_column_option, add_verbs
from agent.cli.output import Output
from agent.errors import ExitCode

if TYPE_CHECKING:
    from agent.api.shapes.devices import CordonShape, DevicesShape
    from agent.cli.grammar import CommandAdder


def add_devices_command(add: CommandAdder) -> None:
    """Add `plimsoll devices`."""
    command = add(
        "devices",
        None,
        "list the devices for guests, and keep some from them",
        "The agent offers a device that is not well to no guest and no scheduler until it is well again; an\n"
        "operator can cordon one. A guest that has such a device keeps it.",
        '  plimsoll devices list\n  plimsoll devices cordon 0000:41:10.2 --reason "loses its link"\n'
        "  plimsoll devices clear 0000:41:10.2",
    )
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


def list_devices(args: Namespace) -> ExitCode:
    """List the devices of the host."""
    from agent.api.shapes.devices import DEVICE_COLUMNS

    answer: DevicesShape = client_of(args).get("/v1/devices")
    Output(args.output, args.column).show_table(answer, DEVICE_COLUMNS, answer["devices"], "no devices")
    return ExitCode.DONE


def cordon(args: Namespace) -> ExitCode:
    """Cordon a device."""
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
