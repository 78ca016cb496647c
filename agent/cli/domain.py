"""`plimsoll domain`."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from agent.cli.client import Client, claim_path, client_of
from agent.cli.consumers import INSTANCE_HELP, find_instance
from agent.cli.grammar import complete_instances
from agent.cli.libvirt_domain import Libvirt, add_libvirt_options
from agent.cli.output import Output
from agent.cli.text_file import read_text_file
from agent.errors import ExitCode

if TYPE_CHECKING:
    from agent.api.shapes.claims import DomainShape
    from agent.cli.grammar import CommandAdder


def add_domain_command(add: CommandAdder) -> None:
    """Add `plimsoll domain`."""
    command = add(
        "domain",
        domain,
        "complete the XML of a domain with what its claim gave; print, define or start it",
        "Writes the exact devices, CPUs, cells, memory and pages of the claim into the domain; leaves the\n"
        "rest as it is. A device fills the <hostdev> or <interface type='hostdev'> whose alias is `ua-` and\n"
        "the name of its request group or PCI alias; a device that the domain does not mention is added. A\n"
        "domain that contradicts its claim is refused, line by line. Without FILE the command takes the\n"
        "domain that libvirt has.",
        "  plimsoll domain web1 web1.xml > complete.xml\n"
        "  plimsoll domain web1 web1.xml --define --start\n"
        "  plimsoll domain web1 --replace | virsh migrate --live --xml /dev/stdin web1 qemu+ssh://b/system",
    )
    complete_instances(command.add_argument("consumer", metavar="CONSUMER", help=INSTANCE_HELP))
    command.add_argument("file", nargs="?", metavar="FILE", help="the domain's XML; - is standard input")
    command.add_argument(
        "--replace",
        action="store_true",
        help="write over what the domain has from a former place, as for the destination of a move",
    )
    add_libvirt_options(command)


def domain(args: Namespace) -> ExitCode:
    """Complete a domain."""
    client = client_of(args)
    consumer = find_instance(client, args.consumer)
    xml = (
        Libvirt(args.connect).definition(consumer)
        if args.file is None
        else read_text_file("domain", args.file)
    )
    show_domain(args, complete_domain(client, consumer, xml, replace=args.replace))
    return ExitCode.DONE


def complete_domain(client: Client, consumer: str, xml: str, *, replace: bool = False) -> DomainShape:
    """The domain with what the consumer's claim gave. Raises what the agent raises."""
    body = {"xml": xml, "replace": replace}
    answer: DomainShape = client.request("POST", f"{claim_path(consumer)}/domain", body)
    return answer


def show_domain(args: Namespace, written: DomainShape) -> None:
    """Define or start the domain where that was asked for, else print it."""
    if args.define or args.start:
        done = Libvirt(args.connect).hand_over(written, start=args.start)
        Output(args.output).show(written, lambda _: [done])
    else:
        Output(args.output).show(written, lambda _: [written["xml"].rstrip("\n")])
