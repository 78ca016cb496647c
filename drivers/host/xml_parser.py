"""Parse libvirt's XML, with a bound on its size and without document types. Pure.

Users of the host write domain XML, so the parser trusts nothing in it: every error is a DriverDataError.
"""

import re
import uuid
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from agent.errors import DriverDataError

SIZE_MAX = 2**20
HOST_SIZE_MAX = 16 * 2**20
"""Both in characters. Capabilities list every CPU of the host, and every machine type of every emulator."""

_DECIMAL = re.compile(r"[0-9]{1,20}", re.ASCII)
_HEXADECIMAL = re.compile(r"0[xX][0-9a-fA-F]{1,8}", re.ASCII)
_BYTES = {
    "b": 1,
    "bytes": 1,
    "KB": 10**3,
    "k": 2**10,
    "KiB": 2**10,
    "MB": 10**6,
    "M": 2**20,
    "MiB": 2**20,
    "GB": 10**9,
    "G": 2**30,
    "GiB": 2**30,
    "TB": 10**12,
    "T": 2**40,
    "TiB": 2**40,
}


class _NoDocumentType(ElementTree.TreeBuilder):
    def doctype(self, name: str, public_id: str | None, system: str | None) -> None:
        raise DriverDataError("a document type is not allowed")


def parse_xml(text: str, what: str, root: str, size_max: int = SIZE_MAX) -> Element:
    """The root element, whose tag must be `root`. Raises DriverDataError naming `what`."""
    if len(text) > size_max:
        raise DriverDataError(f"{what}: its XML has more than {size_max} characters")
    parser = ElementTree.XMLParser(target=_NoDocumentType())  # noqa: S314 - see _NoDocumentType and the limit
    try:
        parser.feed(text)
        element: Any = parser.close()
    except DriverDataError as error:
        raise DriverDataError(f"{what}: {error}") from error
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise DriverDataError(f"{what}: this is not XML: {error}") from error
    if not isinstance(element, Element) or element.tag != root:
        raise DriverDataError(f"{what}: <{root}> was expected, not <{str(element.tag)[:40]}>")
    return element


def text_of(element: Element, path: str, what: str) -> str:
    """The text at `path`, stripped. Raises DriverDataError where it is missing or empty."""
    text = (element.findtext(path) or "").strip()
    if not text:
        raise DriverDataError(f"{what}: <{path}> is missing or empty")
    return text


def number(text: str | None, what: str, maximum: int = 2**31 - 1) -> int:
    """A decimal or hexadecimal (0x) number from 0 to `maximum`. Raises DriverDataError naming `what`."""
    text = (text or "").strip()
    if _DECIMAL.fullmatch(text):
        value = int(text)
    elif _HEXADECIMAL.fullmatch(text):
        value = int(text, 16)
    else:
        raise DriverDataError(f"{what}: {text[:40]!r} is not a number")
    if value > maximum:
        raise DriverDataError(f"{what}: {value} is more than {maximum}")
    return value


def size_bytes(element: Element, what: str) -> int:
    """The size in an element, in its `unit` or in KiB, in bytes. Raises DriverDataError naming `what`."""
    unit = element.get("unit", "KiB")
    if unit not in _BYTES:
        raise DriverDataError(f"{what}: {unit[:40]!r} is not a unit of size")
    return number(element.text, what, 2**64) * _BYTES[unit]


def uuid_of(text: str | None, what: str) -> str:
    """The uuid with dashes and in lower case. Raises DriverDataError naming `what`."""
    try:
        return str(uuid.UUID((text or "").strip()))
    except ValueError as error:
        raise DriverDataError(f"{what}: {(text or '')[:50]!r} is not a uuid") from error


def pci_address(address: Element, what: str) -> str:
    """ "0000:41:10.2" from <address domain= bus= slot= function=/>. Raises DriverDataError naming `what`."""
    parts = {
        name: number(address.get(name, "0" if name == "domain" else None), f"{what}: PCI {name}", maximum)
        for name, maximum in (("domain", 0xFFFFFFFF), ("bus", 0xFF), ("slot", 0x1F), ("function", 7))
    }
    return "{domain:04x}:{bus:02x}:{slot:02x}.{function:x}".format(**parts)


def size_bytes_of_page(page: Element, what: str) -> int:
    """The size of one page of <pages unit='KiB' size='2048'>, whose text is the number of pages."""
    size = Element("size", unit=page.get("unit", "KiB"))
    size.text = page.get("size")
    return size_bytes(size, f"{what}: page size")
