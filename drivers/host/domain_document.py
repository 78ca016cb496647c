"""A domain's XML as a document that is changed in places and otherwise stays as it was. Pure.

lxml keeps comments, white space and the order of attributes. It writes every attribute in double quotes,
libvirt in single ones, and it moves name spaces to the front: `text` returns to the quotes and to the first
tag of the original. So a document without changes is the same, byte for byte, but for attributes of mixed
quotes and for empty elements written as two tags.
"""

import re
from collections.abc import Mapping

from lxml import etree

from agent.errors import DriverDataError
from drivers.host.xml_parser import SIZE_MAX

Element = etree._Element

INDENT = "  "
_DECLARATION = re.compile(r"\s*<\?xml[^>]*\?>\s*")
_MARKUP = re.compile(r"<!--.*?-->|<!\[CDATA\[.*?\]\]>|<\?.*?\?>|<[^<>]*>", re.DOTALL)
_ATTRIBUTE = re.compile(r'="([^"]*)"')
_FIRST_TAG = re.compile(r"<domain\b[^<>]*[^<>/]>|<domain>")
_SINGLE_QUOTED = re.compile(r"<[A-Za-z][^<>]*='")


class DomainDocument:
    """The document. `root` is its <domain>, of which only the content may be changed."""

    def __init__(self, text: str, what: str = "the domain") -> None:
        """Raises DriverDataError, naming `what`, for anything but a domain without a document type."""
        if len(text) > SIZE_MAX:
            raise DriverDataError(f"{what}: its XML has more than {SIZE_MAX} characters")
        declaration = _DECLARATION.match(text)
        self._before = declaration.group() if declaration else ""
        self._tail = text[len(text.rstrip()) :]
        self._single_quotes = _SINGLE_QUOTED.search(text) is not None
        parser = etree.XMLParser(
            resolve_entities=False, no_network=True, huge_tree=False, load_dtd=False, strip_cdata=False
        )
        try:
            self.root: Element = etree.fromstring(text[len(self._before) :], parser)
        except (etree.XMLSyntaxError, ValueError) as error:
            raise DriverDataError(f"{what}: this is not XML: {error}") from error
        info = self.root.getroottree().docinfo
        if info is not None and info.doctype:  # type: ignore[union-attr]
            raise DriverDataError(f"{what}: a document type is not allowed")
        if self.root.tag != "domain":
            raise DriverDataError(f"{what}: <domain> was expected, not <{str(self.root.tag)[:40]}>")

        first = _FIRST_TAG.search(text)
        self._first_tag = first.group() if first else None

    @property
    def text(self) -> str:
        """The document as text."""
        written = str(etree.tostring(self.root.getroottree(), encoding="unicode"))
        if self._single_quotes:
            written = _MARKUP.sub(_with_single_quotes, written)
        if self._first_tag is not None:
            first_tag = self._first_tag
            written = _FIRST_TAG.sub(lambda _: first_tag, written, count=1)
        return f"{self._before}{written}{self._tail}"


def _with_single_quotes(markup: re.Match[str]) -> str:
    tag = markup.group()
    if tag.startswith(("<!", "<?")):
        return tag
    return _ATTRIBUTE.sub(_single_quoted, tag)


def _single_quoted(attribute: re.Match[str]) -> str:
    value = attribute[1]
    return attribute.group() if "'" in value else f"='{value.replace('&quot;', chr(34))}'"


def child(parent: Element, tag: str, after: tuple[str, ...] = ()) -> Element:
    """The first child with this tag; if there is none, a new one behind the last with a tag of `after`."""
    found = parent.find(tag)
    return found if found is not None else add_child(parent, tag, {}, after)


def add_child(
    parent: Element, tag: str, attributes: Mapping[str, str], after: tuple[str, ...] = ()
) -> Element:
    """Add a child behind the last one with a tag of `after`, or at the end, indented like its siblings."""
    element = etree.Element(tag, dict(attributes))
    position = len(parent)
    behind = [number for number, sibling in enumerate(parent) if sibling.tag in after]
    if behind:
        position = behind[-1] + 1
    parent.insert(position, element)
    _indent(parent, element)
    return element


def remove(element: Element) -> None:
    """Remove an element with its content; the white space around it closes up."""
    parent = element.getparent()
    assert parent is not None
    before = element.getprevious()
    if element.getnext() is None:
        if before is not None:
            before.tail = element.tail
        else:
            parent.text = element.tail
    parent.remove(element)
    if len(parent) == 0 and not (parent.text or "").strip():
        parent.text = None


def set_text(element: Element, text: str) -> None:
    """Give the element this text, if it has another one."""
    if (element.text or "").strip() != text:
        element.text = text


def _indent(parent: Element, element: Element) -> None:
    depth = sum(1 for _ in element.iterancestors())
    inner, outer = f"\n{INDENT * depth}", f"\n{INDENT * (depth - 1)}"
    before, behind = element.getprevious(), element.getnext()
    if before is None:
        parent.text = inner
    else:
        before.tail = inner
    element.tail = outer if behind is None else inner
