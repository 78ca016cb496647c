"""Write what a claim gave to a guest into the XML of its domain. Pure.

Each device of the claim fills the <hostdev> or <interface type='hostdev'> that carries its label as an alias
(`ua-red` for the group `red`), then one of its kind that names no device of the host yet; a device for which
the domain has no element gets a new one. CPUs, cells, memory and pages are written where the domain says
nothing of them. What the domain says otherwise than the claim is a contradiction, and nothing is written.

Source: https://libvirt.org/formatdomain.html
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from lxml import etree

from agent.cpuset import format_cpu_set, parse_cpu_set
from agent.device_names import device_aliases
from agent.driver import DeviceKind, GivenCell, GivenDevice, GivenResources
from agent.errors import DriverDataError, UsageError, counted
from drivers.host.domain_document import DomainDocument, Element, add_child, child, set_text
from drivers.host.domain_memory import file_bytes
from drivers.host.domain_needs import ALIAS_PREFIX, device_kind
from drivers.host.xml_parser import parse_xml, pci_address, size_bytes, size_bytes_of_page

VF_CLASS = "SRIOV_NET_VF"
KIB_PER_MIB = 1024
LAST_BUS = 254
BUSES_PER_CELL = 24
"""How many bus numbers of the guest each expander bus may use for its ports."""

_PCI = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.ASCII)

_PAGE = "memoryBacking/hugepages/page"
_BEFORE_PINS = ("shares", "global_period", "global_quota", "period", "quota", "emulator_period")
_BEFORE_CPU = (
    *("metadata", "title", "description", "name", "uuid", "genid", "iothreadids", "iothreads"),
    *("maxMemory", "memory", "currentMemory", "memoryBacking", "vcpu", "vcpus", "cputune", "numatune"),
    *("resource", "sysinfo", "os", "features"),
)


def write_domain(text: str, given: GivenResources, *, replace: bool = False) -> str:
    """The XML with everything that the claim gave.

    `replace`: what the domain has from a former place is written over, as for the destination of a move.
    Raises UsageError with each contradiction in `contradictions`, DriverDataError for malformed XML.
    """
    document = DomainDocument(text, f"the domain of {given.name or given.uuid}")
    contradictions = list(_contradictions(document.root, given, replace))
    devices = _device_elements(document.root, given.devices, replace)
    if not replace:
        contradictions += _device_contradictions(document.root, devices, given)
    if contradictions:
        raise UsageError(
            f"The domain of {given.name or given.uuid} contradicts its claim: {'; '.join(contradictions)}",
            contradictions=contradictions,
        )
    _write_identity(document.root, given)
    _write_processors(document.root, given, replace=replace)
    _write_cells(document.root, given.cells)
    aliases = dict(zip(given.devices, _aliases(given.devices), strict=True))
    written = {
        device: _write_device(document.root, device, aliases[device], found)
        for device, found in devices.items()
    }
    _write_localities(document.root, given, written)
    return document.text


# Contradictions


def _contradictions(root: Element, given: GivenResources, replace: bool) -> Iterator[str]:
    uuid = (root.findtext("uuid") or "").strip()
    if uuid and uuid.lower() != given.uuid:
        yield f"<uuid> is {uuid}, and the claim is of {given.uuid}"
    vcpus = (root.findtext("vcpu") or "").strip()
    vcpu = root.find("vcpu")
    if vcpu is not None and vcpu.get("current"):
        vcpus = vcpu.get("current", "")  # the others are plugged in later
    if vcpus and vcpus != str(given.vcpus):
        yield f"<vcpu> is {vcpus}, and the claim has {counted(given.vcpus, 'CPU')}"
    memory = root.find("memory")
    if memory is not None:
        kib = _kib(memory) - _kib_in_files(root)
        if -(-kib // KIB_PER_MIB) != given.memory_mb:
            yield f"<memory> is {kib} KiB, and the claim has {given.memory_mb} MiB"
    if not replace:
        yield from _pin_contradictions(root, given)
        yield from _cell_contradictions(root, given.cells)


def _kib_in_files(root: Element) -> int:
    """The part of <memory> that takes no memory of the host."""
    what = "the domain"
    if root.find("devices/memory") is None:
        return 0
    return (
        file_bytes(parse_xml(str(etree.tostring(root, encoding="unicode")), what, "domain"), what)
        // KIB_PER_MIB
    )


def _pin_contradictions(root: Element, given: GivenResources) -> Iterator[str]:
    """A CPU of its own must be the very one; one that floats may do so over fewer CPUs than it could."""
    alone = _own_pins(given)
    for cpu, wanted in sorted(_pins(given).items()):
        element = root.find(f"cputune/vcpupin[@vcpu='{cpu}']")
        cpus = frozenset() if element is None else _cpus_of(element)
        if cpus and (cpus != wanted if cpu in alone else not cpus <= wanted):
            yield (
                f"<vcpupin vcpu='{cpu}'> is {format_cpu_set(cpus)}, and the claim has "
                f"{format_cpu_set(wanted)}"
            )


def _cell_contradictions(root: Element, given: Sequence[GivenCell]) -> Iterator[str]:
    if not given:
        return
    elements = root.findall("cpu/numa/cell")
    if elements and len(elements) != len(given):
        yield f"<numa> has {counted(len(elements), 'cell')}, and the claim has {len(given)}"
        return
    for cell in given:
        element = root.find(f"cpu/numa/cell[@id='{cell.cell}']")
        if element is not None:
            yield from _one_cell_contradictions(element, cell)
        bound = root.find(f"numatune/memnode[@cellid='{cell.cell}']")
        if bound is not None and _cpus_of(bound, "nodeset") != {cell.host_cell}:
            yield (
                f"<memnode cellid='{cell.cell}'> is on cell {bound.get('nodeset')} of the host, and the "
                f"claim is on {cell.host_cell}"
            )
    whole = root.find("numatune/memory")
    cells = frozenset(cell.host_cell for cell in given)
    if whole is not None and whole.get("nodeset") and not cells <= _cpus_of(whole, "nodeset"):
        yield (
            f"<numatune> has the cells {whole.get('nodeset')} of the host, and the claim is on "
            f"{format_cpu_set(cells)}"
        )
    if whole is not None and whole.get("mode", "strict") != "strict":
        yield f"<numatune> has the mode {whole.get('mode')}, and a claim on cells is strict"
    sizes = {-(-_page_bytes(page) // 1024) for page in root.findall(_PAGE)}
    claimed = {cell.page_kib for cell in given if cell.page_kib is not None}
    if sizes and sizes != claimed:
        shown = f"{format_cpu_set(frozenset(claimed))} KiB" if claimed else "small pages"
        yield f"<page> has {format_cpu_set(frozenset(sizes))} KiB, and the claim has {shown}"


def _one_cell_contradictions(element: Element, cell: GivenCell) -> Iterator[str]:
    cpus = _cpus_of(element, "cpus")
    if cpus and cpus != cell.cpus:
        yield (
            f"<cell id='{cell.cell}'> has the CPUs {format_cpu_set(cpus)}, and the claim has "
            f"{format_cpu_set(cell.cpus)}"
        )
    memory_kib = _cell_kib(element)
    if memory_kib and -(-memory_kib // KIB_PER_MIB) != cell.memory_mb:
        yield f"<cell id='{cell.cell}'> has {memory_kib} KiB, and the claim has {cell.memory_mb} MiB"


def _device_contradictions(
    root: Element, devices: Mapping[GivenDevice, Element | None], given: GivenResources
) -> list[str]:
    """A host's device in the domain that the claim does not have, or that is another one than the label's."""
    filled = {id(element): device for device, element in devices.items() if element is not None}
    units = {device.unit for device in given.devices}
    sentences = []
    for element in _host_devices(root):
        unit = _unit_of(element)
        device = filled.get(id(element))
        if unit is not None and device is not None and unit != device.unit:
            sentences.append(f"{_shown(element)} is {unit}, and the claim has {device.unit} there")
        elif unit is not None and unit not in units:
            sentences.append(f"{_shown(element)} is {unit}, which the claim does not have")
    return sentences


# Devices


def _device_elements(
    root: Element, devices: Sequence[GivenDevice], replace: bool
) -> dict[GivenDevice, Element | None]:
    """{device: the element that is to name it}; None where a new one is needed."""
    elements = list(_host_devices(root))
    found: dict[GivenDevice, Element | None] = {}
    for device, alias in zip(devices, _aliases(devices), strict=True):
        named = next((each for each in elements if alias and _has_alias(each, alias)), None)
        same = next((each for each in elements if _unit_of(each) == device.unit), None)
        found[device] = named if named is not None else same
        elements = [each for each in elements if each is not found[device]]
    for device, element in found.items():
        if element is None:
            found[device] = next(
                (
                    each
                    for each in elements
                    if _alias_of(each) is None
                    and _fits_kind(each, kind_of(device))
                    and (replace or _unit_of(each) is None)
                ),
                None,
            )
            elements = [each for each in elements if each is not found[device]]
    return found


def _aliases(devices: Iterable[GivenDevice]) -> list[str]:
    """The alias of each device, empty for one without a label."""
    names = device_aliases(device.label for device in devices)
    return [f"{ALIAS_PREFIX}{name}" if name else "" for name in names]


def _write_device(root: Element, device: GivenDevice, alias: str, element: Element | None) -> Element:
    kind = kind_of(device)
    if element is None:
        element = _new_element(root, kind)
        if alias:
            add_child(element, "alias", {"name": alias})
    source = child(element, "source")
    address = source.find("address")
    if kind is DeviceKind.MEDIATED:
        if address is None:
            add_child(source, "address", {"uuid": device.unit})
        elif (address.get("uuid") or "").lower() != device.unit:
            address.set("uuid", device.unit)
        return element
    domain, bus, slot, function = _pci_parts(device.unit)
    if address is None:
        address = add_child(source, "address", {"type": "pci"} if kind is DeviceKind.INTERFACE else {})
    if _unit_of(element) != device.unit:
        for name, value in (("domain", domain), ("bus", bus), ("slot", slot), ("function", function)):
            address.set(name, f"0x{value}")
    return element


def _new_element(root: Element, kind: DeviceKind) -> Element:
    devices = child(root, "devices")
    if kind is DeviceKind.INTERFACE:
        return add_child(devices, "interface", {"type": "hostdev", "managed": "yes"}, after=("interface",))
    if kind is DeviceKind.PCI:
        attributes = {"mode": "subsystem", "type": "pci", "managed": "yes"}
    else:
        attributes = {"mode": "subsystem", "type": "mdev", "model": "vfio-pci"}
    return add_child(devices, "hostdev", attributes, after=("hostdev",))


def kind_of(device: GivenDevice) -> DeviceKind:
    """How a domain names the device. Raises UsageError for a unit that no domain can name."""
    if device.resource_class == VF_CLASS:
        return DeviceKind.INTERFACE
    if _PCI.fullmatch(device.unit):
        return DeviceKind.PCI
    if re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", device.unit):
        return DeviceKind.MEDIATED
    raise UsageError(
        f"{device.resource_class} {device.unit} is neither a PCI address nor the uuid of a mediated device, "
        "so no domain can name it."
    )


def _host_devices(root: Element) -> Iterator[Element]:
    for element in root.findall("devices/*"):
        if device_kind(element.tag, element.get("type")) is not None:
            yield element


def _fits_kind(element: Element, kind: DeviceKind) -> bool:
    own = device_kind(element.tag, element.get("type"))
    return own is kind or (own is DeviceKind.PCI and kind is DeviceKind.INTERFACE)


def _alias_of(element: Element) -> str | None:
    alias = element.find("alias")
    name = alias.get("name") if alias is not None else None
    return name if name and name.startswith(ALIAS_PREFIX) else None


def _has_alias(element: Element, alias: str) -> bool:
    """Whether the element carries the alias, in any case: suffixes of nova's groups are upper case."""
    return (_alias_of(element) or "").lower() == alias.lower()


def _unit_of(element: Element) -> str | None:
    """The device of the host that the element names, None if it names none yet."""
    address = element.find("source/address")
    if address is None:
        return None
    if element.get("type") == "mdev":
        return (address.get("uuid") or "").lower() or None
    return pci_address(address, _shown(element)) if address.get("bus") is not None else None  # type: ignore[arg-type]


def _shown(element: Element) -> str:
    alias = _alias_of(element)
    return f"<{element.tag}>" + (f" {alias}" if alias else "")


def _pci_parts(unit: str) -> tuple[str, str, str, str]:
    match = _PCI.fullmatch(unit)
    if match is None:
        raise UsageError(f"{unit} is no PCI address.")
    return match[1], match[2], match[3], match[4]


# CPUs, memory and cells


def _write_identity(root: Element, given: GivenResources) -> None:
    set_text(child(root, "name", ()), given.name or given.uuid)
    set_text(child(root, "uuid", ("name",)), given.uuid)
    if root.find("memory") is None:
        memory = add_child(root, "memory", {"unit": "MiB"}, after=("name", "uuid", "metadata", "title"))
        memory.text = str(given.memory_mb)


def _write_processors(root: Element, given: GivenResources, *, replace: bool) -> None:
    vcpu = root.find("vcpu")
    if vcpu is None:
        attributes = {"placement": "static"}
        vcpu = add_child(root, "vcpu", attributes, after=("memory", "currentMemory", "memoryBacking"))
        vcpu.text = str(given.vcpus)
    pins = _pins(given)
    if not pins:
        return
    tune = child(root, "cputune", ("vcpu", "vcpus", "iothreads", "iothreadids"))
    for cpu, cpus in sorted(pins.items()):
        pin = tune.find(f"vcpupin[@vcpu='{cpu}']")
        if pin is None:
            pin = add_child(tune, "vcpupin", {"vcpu": str(cpu)}, after=("vcpupin", *_BEFORE_PINS))
        if replace or not _cpus_of(pin) or not _cpus_of(pin) <= cpus:
            pin.set("cpuset", format_cpu_set(cpus))
    own = frozenset[int]().union(*(cell.emulator for cell in given.cells))
    allowed = own or frozenset().union(*pins.values())
    emulator = tune.find("emulatorpin")
    if emulator is None:
        emulator = add_child(tune, "emulatorpin", {}, after=("vcpupin",))
        emulator.set("cpuset", format_cpu_set(allowed))
    elif not _cpus_of(emulator) <= allowed:
        emulator.set("cpuset", format_cpu_set(allowed))


def _own_pins(given: GivenResources) -> dict[int, int]:
    """{guest CPU: the host CPU of its own}"""
    pins = dict(given.pinned)
    for cell in given.cells:
        pins |= cell.pinned
    return pins


def _pins(given: GivenResources) -> dict[int, frozenset[int]]:
    """{guest CPU: host CPUs that it may run on}"""
    pins = {cpu: frozenset({pin}) for cpu, pin in _own_pins(given).items()}
    for cell in given.cells:
        if cell.shared_cpus:
            pins |= dict.fromkeys(cell.floating, cell.shared_cpus)
    return pins


def _write_cells(root: Element, cells: Sequence[GivenCell]) -> None:
    if not cells:
        return
    tune = child(root, "numatune", ("vcpu", "vcpus", "cputune"))
    memory = child(tune, "memory")
    memory.set("mode", "strict")
    memory.set("nodeset", format_cpu_set(frozenset(cell.host_cell for cell in cells)))
    for cell in cells:
        node = tune.find(f"memnode[@cellid='{cell.cell}']")
        if node is None:
            node = add_child(tune, "memnode", {"cellid": str(cell.cell)}, after=("memory", "memnode"))
        node.set("mode", "strict")
        node.set("nodeset", str(cell.host_cell))
    numa = child(child(root, "cpu", _BEFORE_CPU), "numa")
    for cell in cells:
        element = numa.find(f"cell[@id='{cell.cell}']")
        if element is None:
            element = add_child(numa, "cell", {"id": str(cell.cell)})
        element.set("cpus", format_cpu_set(cell.cpus))
        element.set("memory", str(cell.memory_mb * KIB_PER_MIB))
        element.set("unit", "KiB")
    _write_pages(root, cells)


def _write_pages(root: Element, cells: Sequence[GivenCell]) -> None:
    sizes = {cell.page_kib for cell in cells if cell.page_kib is not None}
    if not sizes:
        return
    backing = child(root, "memoryBacking", ("memory", "currentMemory"))
    pages = child(backing, "hugepages")
    for page in pages.findall("page"):
        pages.remove(page)
    for size in sorted(sizes):
        having = frozenset(cell.cell for cell in cells if cell.page_kib == size)
        attributes = {"size": str(size), "unit": "KiB", "nodeset": format_cpu_set(having)}
        add_child(pages, "page", attributes)


# Where the guest sees its devices


def _write_localities(root: Element, given: GivenResources, written: Mapping[GivenDevice, Element]) -> None:
    """Put the devices of each cell behind an expander bus of that cell.

    A domain that has such buses already, or whose machine has no PCI Express, is left as it is.
    """
    machine = root.find("os/type")
    has_express = machine is not None and "q35" in (machine.get("machine") or "")
    models = {element.get("model") for element in root.findall("devices/controller[@type='pci']")}
    if not has_express or "pcie-expander-bus" in models:
        return
    guest_cells = {cell.host_cell: cell.cell for cell in given.cells}
    by_cell: dict[int, list[Element]] = {}
    for device, element in written.items():
        if device.cell in guest_cells and element.find("address[@type='pci']") is None:
            by_cell.setdefault(guest_cells[device.cell], []).append(element)
    index = _first_free_index(root)
    for number, (cell, elements) in enumerate(sorted(by_cell.items())):
        bus = LAST_BUS - BUSES_PER_CELL * (number + 1)
        expander = _add_controller(root, index, "pcie-expander-bus")
        target = add_child(expander, "target", {"busNr": str(bus)})
        add_child(target, "node", {}).text = str(cell)
        expander_index, index = index, index + 1
        for slot, element in enumerate(elements):
            port = _add_controller(root, index, "pcie-root-port")
            add_child(port, "address", _guest_address(expander_index, slot))
            add_child(element, "address", _guest_address(index, 0))
            index += 1


def _first_free_index(root: Element) -> int:
    indexes = [
        int(element.get("index") or 0)
        for element in root.findall("devices/controller[@type='pci']")
        if (element.get("index") or "0").isdecimal()
    ]
    return max(indexes, default=0) + 1


def _add_controller(root: Element, index: int, model: str) -> Element:
    attributes = {"type": "pci", "index": str(index), "model": model}
    return add_child(child(root, "devices"), "controller", attributes, after=("controller", "emulator"))


def _guest_address(bus: int, slot: int) -> dict[str, str]:
    return {
        "type": "pci",
        "domain": "0x0000",
        "bus": f"0x{bus:02x}",
        "slot": f"0x{slot:02x}",
        "function": "0x0",
    }


def _cpus_of(element: Element, attribute: str = "cpuset") -> frozenset[int]:
    try:
        return parse_cpu_set(element.get(attribute) or "")
    except ValueError as error:
        raise DriverDataError(f"<{element.tag}>: {error}") from error


def _cell_kib(element: Element) -> int:
    """The memory of a <cell>, 0 where it has none."""
    size = etree.Element("memory", unit=element.get("unit", "KiB"))
    size.text = element.get("memory", "0")
    return _kib(size)


def _page_bytes(page: Element) -> int:
    return size_bytes_of_page(page, "<page>")  # type: ignore[arg-type]


def _kib(element: Element) -> int:
    return size_bytes(element, f"<{element.tag}>") // KIB_PER_MIB  # type: ignore[arg-type]
