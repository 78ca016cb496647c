"""The memory of a domain that its XML binds to NUMA nodes of the host or to huge pages. Pure.

Source: https://libvirt.org/formatdomain.html#numa-node-tuning and #memory-backing
"""

from collections.abc import Iterator
from xml.etree.ElementTree import Element

from agent.cpuset import parse_cpu_set
from agent.driver import UsedMemory
from agent.errors import DriverDataError
from drivers.host.providers import shares
from drivers.host.xml_parser import number, size_bytes, size_bytes_of_page

BYTES_PER_MIB = 2**20
CELLS_MAX = 1024
DEFAULT_HUGE_PAGE_KIB = 2048
_MEMORY_OF_THE_HOST = ("dimm", "virtio-mem")
"""A virtio-mem counts in full: its guest may take all of it."""
_FILES = ("nvdimm", "virtio-pmem")


def memory_nodes(root: Element, what: str) -> frozenset[int]:
    """The nodes in <numatune><memory>, for the whole domain. Any mode but strict binds nothing."""
    return bound_nodes(root.find("numatune/memory"), what)


def used_memory(root: Element, what: str, huge_page_kib: int = DEFAULT_HUGE_PAGE_KIB) -> Iterator[UsedMemory]:
    """The bound memory of each guest cell, or of the whole domain if it has no guest cells.

    `huge_page_kib` is the size of huge pages where the XML gives none. Memory that may be on several nodes is
    divided evenly among them, because libvirt does not report where it is. Unbound memory is left out unless
    it is in huge pages, which the host takes from one of its nodes. Memory devices, which may be plugged
    while the guest runs, belong to guest cells and may have nodes and pages of their own.
    """
    domain_nodes = memory_nodes(root, what)
    cell_nodes = {
        number(element.get("cellid"), f"{what}: <memnode>", CELLS_MAX): bound_nodes(element, what)
        for element in root.findall("numatune/memnode")
    }
    for cell, memory_mb, device in (*guest_cells(root, what), *_memory_devices(root, what)):
        nodes = sorted(_own_nodes(device, what) or cell_nodes.get(cell, domain_nodes))
        guest_cell = cell if len(nodes) == 1 else None
        page_kib = _own_page_kib(device, what) or page_kib_of(root, cell, what, huge_page_kib)
        if not nodes and page_kib is not None:
            yield UsedMemory(None, memory_mb, page_kib)
        for node, share_mb in zip(nodes, shares(memory_mb, max(1, len(nodes))), strict=False):
            yield UsedMemory(node, share_mb, page_kib, guest_cell)


def guest_cells(root: Element, what: str) -> Iterator[tuple[int, int, None]]:
    """(guest cell, its memory in MiB, None), without memory devices"""
    cells = root.findall("cpu/numa/cell")
    for index, cell in enumerate(cells):
        guest_cell = number(cell.get("id", str(index)), f"{what}: <cell>", CELLS_MAX)
        size = Element("memory", {"unit": cell.get("unit", "KiB")})
        size.text = cell.get("memory")
        yield guest_cell, -(-size_bytes(size, f"{what}: <cell>") // BYTES_PER_MIB), None
    memory = root.find("memory")
    if not cells and memory is not None:
        yield 0, -(-size_bytes(memory, f"{what}: <memory>") // BYTES_PER_MIB), None


def _memory_devices(root: Element, what: str) -> Iterator[tuple[int, int, Element]]:
    """(guest cell, MiB, device) of each memory device that takes memory of the host."""
    for device in root.findall("devices/memory"):
        size = device.find("target/size")
        if device.get("model") in _MEMORY_OF_THE_HOST and size is not None:
            cell = number(device.findtext("target/node", "0"), f"{what}: memory device", CELLS_MAX)
            yield cell, -(-size_bytes(size, f"{what}: memory device") // BYTES_PER_MIB), device


def memory_files(root: Element) -> tuple[str, ...]:
    """The paths of the memory devices that take no memory of the host."""
    return tuple(path for device in _files(root) if (path := (device.findtext("source/path") or "").strip()))


def epc_bytes(root: Element, what: str) -> int:
    """The memory for SGX enclaves, which is none of the host's other memory."""
    return _device_bytes(root, what, ("sgx-epc",))


def _device_bytes(root: Element, what: str, models: tuple[str, ...]) -> int:
    devices = (device for device in root.findall("devices/memory") if device.get("model") in models)
    sizes = (device.find("target/size") for device in devices)
    return sum(size_bytes(size, f"{what}: memory device") for size in sizes if size is not None)


def file_bytes(root: Element, what: str) -> int:
    """The part of <memory> that is in such devices, or for enclaves: libvirt adds their sizes to it."""
    cells = root.findall("cpu/numa/cell")
    in_files = _device_bytes(root, what, (*_FILES, *(("sgx-epc",) if cells else ())))
    memory = root.find("memory")
    whole = 0 if memory is None else size_bytes(memory, f"{what}: <memory>")
    in_cells = sum(mb for _, mb, _ in guest_cells(root, what)) if cells else 1
    return in_files if whole - in_files >= in_cells * BYTES_PER_MIB else 0


def _files(root: Element) -> list[Element]:
    return [device for device in root.findall("devices/memory") if device.get("model") in _FILES]


def _own_nodes(device: Element | None, what: str) -> frozenset[int]:
    """The nodes that the memory device has for itself."""
    text = device.findtext("source/nodemask") if device is not None else None
    try:
        return parse_cpu_set(text) if text else frozenset()
    except ValueError as error:
        raise DriverDataError(f"{what}: <nodemask>: {error}") from error


def _own_page_kib(device: Element | None, what: str) -> int | None:
    size = device.find("source/pagesize") if device is not None else None
    return size_bytes(size, f"{what}: <pagesize>") // 2**10 if size is not None else None


def page_kib_of(root: Element, cell: int, what: str, huge_page_kib: int) -> int | None:
    """The page size in KiB that the domain asks for this guest cell; None if it asks for none."""
    huge_pages = root.find("memoryBacking/hugepages")
    pages = root.findall("memoryBacking/hugepages/page")
    for_this_cell = [page for page in pages if cell in cpu_set(page, what, "nodeset")]
    for_all_cells = [page for page in pages if page.get("nodeset") is None]
    for page in (*for_this_cell, *for_all_cells):
        size_kib = size_bytes_of_page(page, what) // 2**10
        if not size_kib:
            raise DriverDataError(f"{what}: <page>: a page has at least 1 KiB")
        return size_kib
    return huge_page_kib if huge_pages is not None and not pages else None


def bound_nodes(element: Element | None, what: str) -> frozenset[int]:
    """The nodes of the host to which a <memory> or a <memnode> binds memory; none in any mode but strict."""
    if element is None or element.get("mode", "strict") != "strict":
        return frozenset()
    return cpu_set(element, what, "nodeset")


def cpu_set(element: Element | None, what: str, attribute: str = "cpuset") -> frozenset[int]:
    """The set of numbers in an attribute; empty if it is missing. Raises DriverDataError naming `what`."""
    try:
        return frozenset() if element is None else parse_cpu_set(element.get(attribute, ""))
    except ValueError as error:
        raise DriverDataError(f"{what}: <{element.tag if element is not None else ''}>: {error}") from error
