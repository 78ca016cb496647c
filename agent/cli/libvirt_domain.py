"""Hand a domain to the libvirt of this host: make its mediated devices, define it, start it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import quoteattr

from agent.cli.grammar import not_empty
from agent.cli.terminal import plain
from agent.errors import PlimsollError, UsageError

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from agent.api.shapes.claims import DomainShape, MakingShape

CONNECTION_DEFAULT = "qemu:///system"
SYS = Path("/sys")
VGPU_WAIT_S, POLL_S = 30.0, 0.2
"""How long the carver may take to write the vGPU types of a claim, and how often they are looked at."""


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
        """Make the mediated devices that do not exist yet, each when the caller asks for the next one."""
        flags = self._libvirt.VIR_CONNECT_LIST_NODE_DEVICES_CAP_MDEV
        present = " ".join(device.name() for device in self._connection.listAllDevices(flags))
        for making in to_make.values():
            if "placement" in making:
                _await_vgpu(making)
        for uuid, making in to_make.items():
            if "placement" not in making and uuid.replace("-", "_") not in present:
                yield self._connection.nodeDeviceCreateXML(_mdev_xml(uuid, making))

    def _quietly(self, action: Any, *arguments: Any) -> None:
        """The error that is under way says more than one of its undoing."""
        with contextlib.suppress(self._libvirt.libvirtError):
            action(*arguments)


def _await_vgpu(making: MakingShape) -> None:
    """Wait until the function has its vGPU type in its place. Raises PlimsollError after VGPU_WAIT_S."""
    vendor = SYS / "bus" / "pci" / "devices" / making["parent"] / "nvidia"
    wanted = [making["type"].rpartition("-")[2], making["placement"]]
    end = time.monotonic() + VGPU_WAIT_S
    while [_text(vendor / name) for name in ("current_vgpu_type", "placement_id")] != wanted:
        if time.monotonic() > end:
            raise PlimsollError(
                f"{making['parent']} did not get the vGPU type {making['type']} at {making['placement']}: "
                "run `plimsoll devices apply` as root, which writes it, and then start the domain"
            )
        time.sleep(POLL_S)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _mdev_xml(uuid: str, making: MakingShape) -> str:
    parent = making["parent"].replace(":", "_").replace(".", "_")
    return (
        f"<device><parent>pci_{parent}</parent><capability type='mdev'><type id={quoteattr(making['type'])}/>"
        f"<uuid>{uuid}</uuid></capability></device>"
    )
