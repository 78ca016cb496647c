"""`plimsoll domain`: complete a domain's XML, and hand it to the libvirt of this host.

Handing over makes the domain's mediated devices, defines the domain and starts it.
"""

from __future__ import annotations

import contextlib
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import quoteattr

from agent.cli.claim_request import read_text_file
from agent.cli.client import INSTANCE_HELP, Client, claim_path, client_of, find_instance
from agent.cli.grammar import CommandAdder, complete_instances, not_empty
from agent.cli.output import show
from agent.device_names import VRAM_PREFIX
from agent.durable.files import read_text, vram_quota
from agent.errors import ExitCode, PlimsollError, UsageError, plain

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from agent.api.shapes.instance import DomainShape, MakingShape


CONNECTION_DEFAULT = "qemu:///system"
SYS = Path("/sys")
VGPU_WAIT_S, POLL_S = 30.0, 0.2
"""How long the carver may take to write the vGPU types of a claim, and how often they are looked at."""


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
    written = complete_domain(client, consumer, xml, replace=args.replace)
    if args.define or args.start:
        done = Libvirt(args.connect).hand_over(written, start=args.start)
        show(args, written, lambda _: [done])
    else:
        show(args, written, lambda _: [written["xml"].rstrip("\n")])
    return ExitCode.DONE


def complete_domain(client: Client, consumer: str, xml: str, *, replace: bool = False) -> DomainShape:
    """The domain with what the consumer's claim gave. Raises what the agent raises."""
    body = {"xml": xml, "replace": replace}
    answer: DomainShape = client.request("POST", f"{claim_path(consumer)}/domain", body)
    return answer


def add_libvirt_options(command: ArgumentParser) -> None:
    """Add the options that hand a domain to libvirt."""
    command.add_argument("--define", action="store_true", help="define the domain in libvirt")
    command.add_argument("--start", action="store_true", help="define the domain and start it")
    command.add_argument(
        "--connect",
        metavar="URI",
        type=not_empty,
        default=CONNECTION_DEFAULT,
        help=f"the libvirt to use (default {CONNECTION_DEFAULT})",
    )


class Libvirt:
    """A connection to libvirt. What fails half-way is undone."""

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
        try:
            return self._xml_of(self._connection.lookupByUUIDString(uuid))
        except self._libvirt.libvirtError as error:
            raise UsageError(
                f"domain: libvirt has no domain {uuid}: give its XML as a FILE ({error})"
            ) from error

    def hand_over(self, written: DomainShape, *, start: bool) -> str:
        """Define the domain, with `start` also make its mediated devices and start it; what was done.

        A domain that runs is only defined, for its next start.
        Raises PlimsollError where libvirt refuses; then libvirt has what it had before.
        """
        with contextlib.ExitStack() as undo:
            step = "define"
            try:
                former = self._former(written["consumer"])
                domain = self._connection.defineXMLFlags(
                    written["xml"], self._libvirt.VIR_DOMAIN_DEFINE_VALIDATE
                )
                undo.callback(self._quietly, self._restore, domain, former)
                runs = bool(domain.isActive())
                if start and not runs:
                    step = "make the mediated devices of"
                    for device in self._make(written["claim"]["to_make"]):
                        undo.callback(self._quietly, device.destroy)
                    step = "start"
                    domain.create()
            except self._libvirt.libvirtError as error:
                raise PlimsollError(f"libvirt did not {step} the domain: {error}") from error
            undo.pop_all()
        name = plain(str(domain.name()))
        if start and runs:
            return f"{name} runs already; it is defined for its next start"
        return f"{'started' if start else 'defined'} {name}"

    def _former(self, uuid: str) -> str | None:
        try:
            return self._xml_of(self._connection.lookupByUUIDString(uuid))
        except self._libvirt.libvirtError as error:
            if error.get_error_code() != self._libvirt.VIR_ERR_NO_DOMAIN:
                raise
            return None

    def _xml_of(self, domain: Any) -> str:
        flags = self._libvirt.VIR_DOMAIN_XML_INACTIVE | self._libvirt.VIR_DOMAIN_XML_SECURE
        return str(domain.XMLDesc(flags))

    def _restore(self, domain: Any, former: str | None) -> None:
        if former is None:
            domain.undefineFlags(self._libvirt.VIR_DOMAIN_UNDEFINE_KEEP_NVRAM)
        else:
            self._connection.defineXML(former)

    def _make(self, to_make: Mapping[str, MakingShape]) -> Iterator[Any]:
        """Make the mediated devices that do not exist yet, each when the caller asks for the next one.

        Raises PlimsollError where a function does not have its vGPU type after VGPU_WAIT_S.
        """
        flags = self._libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_MDEV
        present = " ".join(device.name() for device in self._connection.listAllDevices(flags))
        for making in (making for making in to_make.values() if "placement" in making):
            # The carver writes the type of a vGPU of a function, in its place, or the function's VRAM.
            device = SYS / "bus" / "pci" / "devices" / making["parent"]
            number, place = making["type"].rpartition("-")[2], making["placement"]
            files = [device / "nvidia" / name for name in ("current_vgpu_type", "placement_id")]
            wanted, what = [number, place], f"the vGPU type {making['type']} at {place}"
            quota = vram_quota(device)
            if making["type"].startswith(VRAM_PREFIX) and quota is not None:
                files, wanted, what = [quota[0]], [str(int(number) << 20)], f"{number} MiB of VRAM"
            end = time.monotonic() + VGPU_WAIT_S
            while [read_text(file) for file in files] != wanted:
                if time.monotonic() > end:
                    raise PlimsollError(
                        f"{making['parent']} did not get {what}: run `plimsoll devices apply` as root, which "
                        "writes it, and then start the domain"
                    )
                time.sleep(POLL_S)
        for uuid, making in to_make.items():
            if "placement" not in making and uuid.replace("-", "_") not in present:
                parent = making["parent"].replace(":", "_").replace(".", "_")
                yield self._connection.nodeDeviceCreateXML(
                    f"<device><parent>pci_{parent}</parent><capability type='mdev'>"
                    f"<type id={quoteattr(making['type'])}/><uuid>{uuid}</uuid></capability></device>"
                )

    def _quietly(self, action: Any, *arguments: Any) -> None:
        """The error that is under way says more than one of its undoing."""
        with contextlib.suppress(self._libvirt.libvirtError):
            action(*arguments)
