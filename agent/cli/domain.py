"""`plimsoll domain`."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.cli.client import Client, claim_path, client_of
from agent.cli.consumers import INSTANCE_HELP, find_instance
from agent.cli.output import Output
from agent.errors import ExitCode, PlimsollError, UsageError

if TYPE_CHECKING:
    import argparse

    from agent.api.shapes.claims import DomainShape
    from agent.cli.grammar import CommandAdder

CHARS_MAX = 2**20
CONNECTION_DEFAULT = "qemu:///system"


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
    command.add_argument("consumer", metavar="CONSUMER", help=INSTANCE_HELP)
    command.add_argument("file", nargs="?", metavar="FILE", help="the domain's XML; - is standard input")
    command.add_argument(
        "--replace",
        action="store_true",
        help="write over what the domain has from a former place, as for the destination of a move",
    )
    add_libvirt_options(command)


def add_libvirt_options(command: argparse.ArgumentParser) -> None:
    """Add the options that hand the domain to libvirt."""
    command.add_argument("--define", action="store_true", help="define the domain in libvirt")
    command.add_argument("--start", action="store_true", help="define the domain and start it")
    command.add_argument(
        "--connect",
        metavar="URI",
        default=CONNECTION_DEFAULT,
        help=f"the libvirt to use (default {CONNECTION_DEFAULT})",
    )


def domain(args: Namespace) -> ExitCode:
    """Complete a domain."""
    client = client_of(args)
    consumer = find_instance(client, args.consumer)
    xml = read_domain(args.file) if args.file is not None else Libvirt(args.connect).definition(consumer)
    show_domain(args, complete(client, consumer, xml, replace=args.replace))
    return ExitCode.DONE


def complete(client: Client, consumer: str, xml: str, *, replace: bool = False) -> DomainShape:
    """The domain with what the consumer's claim gave. Raises what the agent raises."""
    body = {"xml": xml, "replace": replace}
    answer: DomainShape = client.request("POST", f"{claim_path(consumer)}/domain", body)
    return answer


def show_domain(args: Namespace, written: DomainShape) -> None:
    """Define or start the domain where that was asked for, else print it."""
    if args.define or args.start:
        name = Libvirt(args.connect).define(written["xml"], start=args.start)
        Output(args.output).show(written, lambda _: [f"{'started' if args.start else 'defined'} {name}"])
    else:
        Output(args.output).show(written, lambda _: [written["xml"].rstrip("\n")])


def read_domain(name: str) -> str:
    """The text of a file, or of standard input for `-`. Raises UsageError where it cannot be read."""
    where = "standard input" if name == "-" else name
    try:
        if name == "-":
            text = sys.stdin.read(CHARS_MAX + 1)
        else:
            with Path(name).open(encoding="utf-8", newline="") as file:
                text = file.read(CHARS_MAX + 1)
    except OSError as error:
        raise UsageError(f"domain: {where} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"domain: {where} is not UTF-8: {error.reason}") from error
    if len(text) > CHARS_MAX:
        raise UsageError(f"domain: {where} is longer than the {CHARS_MAX} characters that the agent takes")
    return text


class Libvirt:
    """The libvirt of this host, for a command that hands a domain to it."""

    def __init__(self, uri: str) -> None:
        """Raises PlimsollError where it cannot be reached."""
        try:
            import libvirt
        except ImportError as error:
            raise PlimsollError(
                "libvirt's Python binding is not installed: give the domain as a FILE, and define it with "
                "`virsh define`"
            ) from error
        self._libvirt: Any = libvirt
        libvirt.registerErrorHandler(lambda _context, _error: None, None)
        try:
            self._connection = libvirt.open(uri)
        except libvirt.libvirtError as error:
            raise PlimsollError(f"libvirt at {uri} cannot be reached: {error}") from error

    def definition(self, uuid: str) -> str:
        """The definition of the domain. Raises UsageError where libvirt has no such domain."""
        flags = self._libvirt.VIR_DOMAIN_XML_INACTIVE | self._libvirt.VIR_DOMAIN_XML_SECURE
        try:
            return str(self._connection.lookupByUUIDString(uuid).XMLDesc(flags))
        except self._libvirt.libvirtError as error:
            raise UsageError(
                f"domain: libvirt has no domain {uuid}: give its XML as a FILE ({error})"
            ) from error

    def define(self, xml: str, *, start: bool) -> str:
        """Define the domain, and start it; its name. Raises PlimsollError where libvirt refuses."""
        step = "define"
        try:
            domain = self._connection.defineXMLFlags(xml, self._libvirt.VIR_DOMAIN_DEFINE_VALIDATE)
            if start:
                step = "start"
                domain.create()
            return str(domain.name())
        except self._libvirt.libvirtError as error:
            raise PlimsollError(f"libvirt did not {step} the domain: {error}") from error
