"""Where a domain's memory must be, from its XML: on which of the host's nodes, and in what pages. Pure.

Source: https://libvirt.org/formatdomain.html#numa-node-tuning and #memory-backing
"""

from collections.abc import Iterator
from xml.etree.ElementTree import Element

from agent.cpuset import parse_cpu_set
from agent.driver import UsedMemory
from agent.errors import DriverDataError
from drivers.host.inventory import shares
from drivers.libvirt.xml.capabilities import size_bytes_of_page
from drivers.libvirt.xml.parse import number, size_bytes

BYTES_PER_MIB = 2**20
CELLS_MAX = 1024
USUAL_KIB = 2048


def memory_nodes(root: Element, what: str) -> frozenset[int]:
    """<numatune><memory>, the nodes of all of it; a mode other than strict is a wish."""
    return _nodes(root.find("numatune/memory"), what)


def used_memory(root: Element, what: str, usual_kib: int = USUAL_KIB) -> Iterator[UsedMemory]:
    """The memory of each guest cell; of a domain without any, all of it.

    `usual_kib` is the size of large pages of which the domain says none.

    Memory that may be on several nodes is counted evenly on them, since nobody says where it came to be;
    memory that may be anywhere is left out, unless it is in large pages: those are of some node.
    """
    everywhere = memory_nodes(root, what)
    own = {
        number(element.get("cellid"), f"{what}: <memnode>", CELLS_MAX): _nodes(element, what)
        for element in root.findall("numatune/memnode")
    }
    for cell, memory_mb in _guest_cells(root, what):
        nodes = sorted(own.get(cell, everywhere))
        whole = cell if len(nodes) == 1 else None
        page_kib = _page_kib(root, cell, what, usual_kib)
        if not nodes and page_kib is not None:
            yield UsedMemory(None, memory_mb, page_kib)
        for node, share_mb in zip(nodes, shares(memory_mb, max(1, len(nodes))), strict=False):
            yield UsedMemory(node, share_mb, page_kib, whole)


def _guest_cells(root: Element, what: str) -> Iterator[tuple[int, int]]:
    """(the guest's cell, MiB)"""
    cells = root.findall("cpu/numa/cell")
    for index, cell in enumerate(cells):
        number_of = number(cell.get("id", str(index)), f"{what}: <cell>", CELLS_MAX)
        size = Element("memory", {"unit": cell.get("unit", "KiB")})
        size.text = cell.get("memory")
        yield number_of, -(-size_bytes(size, f"{what}: <cell>") // BYTES_PER_MIB)
    memory = root.find("memory")
    if not cells and memory is not None:
        yield 0, -(-size_bytes(memory, f"{what}: <memory>") // BYTES_PER_MIB)


def _page_kib(root: Element, cell: int, what: str, usual_kib: int) -> int | None:
    """The size of a guest cell's pages in KiB, None where the domain asks for none."""
    asked = root.find("memoryBacking/hugepages")
    pages = root.findall("memoryBacking/hugepages/page")
    named = [page for page in pages if cell in cpu_set(page, what, "nodeset")]
    common = [page for page in pages if page.get("nodeset") is None]
    for page in (*named, *common):
        size_kib = size_bytes_of_page(page, what) // 2**10
        if not size_kib:
            raise DriverDataError(f"{what}: <page>: no page is smaller than 1 KiB")
        return size_kib
    return usual_kib if asked is not None and not pages else None


def _nodes(element: Element | None, what: str) -> frozenset[int]:
    if element is None or element.get("mode", "strict") != "strict":
        return frozenset()
    return cpu_set(element, what, "nodeset")


def cpu_set(element: Element | None, what: str, attribute: str = "cpuset") -> frozenset[int]:
    """A set of numbers in an attribute, empty where it is not there. Raises DriverDataError."""
    try:
        return frozenset() if element is None else parse_cpu_set(element.get(attribute, ""))
    except ValueError as error:
        raise DriverDataError(f"{what}: <{element.tag if element is not None else ''}>: {error}") from error
