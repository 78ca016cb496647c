"""Write what a claim gave to a guest into the XML of its domain. Pure.

Each device of the claim fills the <hostdev> or <interface type='hostdev'> that carries its label as an alias
(`ua-red` for the group `red`), then one of its kind that names no device of the host yet; a device for which
the domain has no element gets a new one. CPUs, cells, memory and pages are written where the domain says
nothing of them. What the domain says otherwise than the claim is a contradiction, and nothing is written.

Source: https://libvirt.org/formatdomain.html
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace as changed

from lxml import etree

from agent.cpuset import format_cpu_set, parse_cpu_set
from agent.device_names import DASHED_UUID, PCI_ADDRESS, device_aliases
from agent.driver import DeviceKind, GivenCell, GivenDevice, GivenResources
from agent.errors import DriverDataError, UsageError, counted
from drivers.host.domain_xml import ALIAS_PREFIX, DomainXml, alias_of, device_kind, shown_tag
from drivers.host.xml_parser import SIZE_MAX, pci_address, size_bytes, size_bytes_of_page

# The document

Element = etree._Element

INDENT = "  "
_DECLARATION = re.compile(r"\s*<\?xml[^>]*\?>\s*")
_MARKUP = re.compile(r"<!--.*?-->|<!\[CDATA\[.*?\]\]>|<\?.*?\?>|<[^<>]*>", re.DOTALL)
_ATTRIBUTE = re.compile(r'="([^"]*)"')
_FIRST_TAG = re.compile(r"<domain\b[^<>]*[^<>/]>|<domain>")
_SINGLE_QUOTED = re.compile(r"<[A-Za-z][^<>]*='")


class DomainDocument:
    """A domain's XML as a document that is changed in places and otherwise stays as it was.

    `root` is its <domain>, of which only the content may be changed.

    lxml keeps comments, white space and the order of attributes. It writes every attribute in double quotes,
    libvirt in single ones, and it moves name spaces to the front: `text` returns to the quotes and to the
    first tag of the original. So a document without changes is the same, byte for byte, but for attributes of
    mixed quotes and for empty elements written as two tags.
    """

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
    return _ATTRIBUTE.sub(
        lambda each: each.group() if "'" in each[1] else f"='{each[1].replace('&quot;', chr(34))}'", tag
    )


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
    depth = sum(1 for _ in element.iterancestors())
    inner, outer = f"\n{INDENT * depth}", f"\n{INDENT * (depth - 1)}"
    before, following = element.getprevious(), element.getnext()
    if before is None:
        parent.text = inner
    else:
        before.tail = inner
    element.tail = outer if following is None else inner
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


# What a claim gave

VF_CLASS = "SRIOV_NET_VF"
KIB_PER_MIB = 1024
LAST_BUS = 254
BUSES_PER_CELL = 24
"""How many bus numbers of the guest each expander bus may use for its ports."""

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
    claimed_cpus = frozenset(given.pinned.values())
    given, apart_mb = _with_own_pins(document.root, given), sum(given.cpuless_mb.values())
    named = Counter[int | None]()
    for part in DomainXml(document.root, "the domain").used_memory():  # type: ignore[arg-type]
        named[part.cell] += part.memory_mb
    if not given.cells and given.cpuless_mb.items() <= named.items():
        # The claim has what the domain names, which may be other than a cell of the guest for each.
        given, apart_mb = changed(given, memory_mb=given.memory_mb + apart_mb), 0
    else:
        given = given.with_memory_cells()
    contradictions = list(_contradictions(document.root, given, apart_mb, replace))
    devices = _device_elements(document.root, given.devices, replace)
    if not replace:
        # A host's device that the claim does not have, or that is another one than the label's.
        filled = {id(element): device for device, element in devices.items() if element is not None}
        units = {device.unit for device in given.devices}
        for element in _host_devices(document.root):
            unit, device = _unit_of(element), filled.get(id(element))
            if unit is not None and device is not None and unit != device.unit:
                contradictions.append(
                    f"{shown_tag(element)} is {unit}, and the claim has {device.unit} there"
                )
            elif unit is not None and unit not in units:
                contradictions.append(f"{shown_tag(element)} is {unit}, which the claim does not have")
    if contradictions:
        raise UsageError(
            f"The domain of {given.name or given.uuid} contradicts its claim: {'; '.join(contradictions)}",
            contradictions=contradictions,
        )
    root = document.root
    set_text(child(root, "name", ()), given.name or given.uuid)
    set_text(child(root, "uuid", ("name",)), given.uuid)
    if root.find("memory") is None:
        memory = add_child(root, "memory", {"unit": "MiB"}, after=("name", "uuid", "metadata", "title"))
        memory.text = str(given.memory_mb)
    for element in root.findall("memory") + root.findall("currentMemory") if apart_mb else ():
        element.set("unit", "MiB")
        element.text = str(given.memory_mb)
    _write_processors(document.root, given, claimed_cpus, replace=replace)
    if given.cells:
        _write_cells(document.root, given.cells)
    names = device_aliases(device.label for device in given.devices)
    aliases = dict(zip(given.devices, names, strict=True))
    written = {
        device: _write_device(document.root, device, aliases[device], found)
        for device, found in devices.items()
    }
    _write_localities(document.root, given, written)
    return document.text


def _with_own_pins(root: Element, given: GivenResources) -> GivenResources:
    """What the claim gave, with the claim's CPUs where the domain has them, if it names exactly these.

    A claim without cells does not say which vCPU has which; two vCPUs may be on one, and the emulator on
    another.
    """
    xml, claimed = DomainXml(root, "the domain"), frozenset(given.pinned.values())  # type: ignore[arg-type]
    pins = {cpu: min(cpus) for cpu, cpus in xml.pins.items() if len(cpus) == 1 and cpus <= claimed}
    emulator = xml.cpu_set(root.find("cputune/emulatorpin"))  # type: ignore[arg-type]
    others = emulator if len(emulator) == 1 else frozenset[int]()
    floating = len(xml.vcpus) - len(pins)
    if given.cells or not claimed or not claimed <= others.union(pins.values()):
        return given
    if floating + len(claimed) != given.vcpus:
        return given
    return changed(given, vcpus=len(xml.vcpus), pinned=pins)


# Contradictions


def _contradictions(root: Element, given: GivenResources, apart_mb: int, replace: bool) -> Iterator[str]:
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
        kib = _kib(memory)
        if root.find("devices/memory") is not None:  # a part may take no memory of the host
            kib = DomainXml(root, "the domain").memory_mb * KIB_PER_MIB  # type: ignore[arg-type]
        if -(-kib // KIB_PER_MIB) not in (given.memory_mb, given.memory_mb - apart_mb):
            yield f"<memory> is {kib} KiB, and the claim has {given.memory_mb} MiB"
    if apart_mb and root.find("numatune/memory") is not None and root.find("cpu/numa/cell") is None:
        yield (
            f"<numatune> binds all memory alike, and the claim has {apart_mb} MiB of cells without CPUs: "
            "give the guest a <cell> for each of them"
        )
    if not replace:
        # A CPU of its own must be the very one; one that floats may do so over fewer CPUs than it could.
        alone = _own_pins(given)
        for cpu, wanted in sorted(_pins(given).items()):
            element = root.find(f"cputune/vcpupin[@vcpu='{cpu}']")
            cpus = frozenset() if element is None else _cpus_of(element)
            if cpus and (cpus != wanted if cpu in alone else not cpus <= wanted):
                yield (
                    f"<vcpupin vcpu='{cpu}'> is {format_cpu_set(cpus)}, and the claim has "
                    f"{format_cpu_set(wanted)}"
                )
        emulator = root.find("cputune/emulatorpin")
        own = [cpu for cell in given.cells for cpu in cell.emulator]
        named = frozenset() if emulator is None else _cpus_of(emulator)
        if own and len(named) == 1 and not named <= set(own):
            yield f"<emulatorpin> is {format_cpu_set(named)}, and the claim has {format_cpu_set(own)}"
        yield from _cell_contradictions(root, given.cells)


def _cell_contradictions(root: Element, given: Sequence[GivenCell]) -> Iterator[str]:
    if not given:
        return
    elements = root.findall("cpu/numa/cell")
    xml = DomainXml(root, "the domain")  # type: ignore[arg-type]
    if elements and len(elements) not in (len(given), sum(1 for cell in given if cell.cpus)):
        yield f"<numa> has {counted(len(elements), 'cell')}, and the claim has {len(given)}"
        return
    for cell in given:
        element = root.find(f"cpu/numa/cell[@id='{cell.cell}']")
        if element is not None:
            cpus = _cpus_of(element, "cpus") - xml.later_vcpus
            if cpus and cpus != cell.cpus:
                yield (
                    f"<cell id='{cell.cell}'> has the CPUs {format_cpu_set(cpus)}, and the claim has "
                    f"{format_cpu_set(cell.cpus)}"
                )
            size = etree.Element("memory", unit=element.get("unit", "KiB"))
            size.text = element.get("memory", "0")
            memory_kib, plugged_mb = _kib(size), xml.plugged_mb(cell.cell)
            if memory_kib and -(-memory_kib // KIB_PER_MIB) + plugged_mb != cell.memory_mb:
                plugged = f" and {plugged_mb} MiB in memory devices" if plugged_mb else ""
                yield (
                    f"<cell id='{cell.cell}'> has {memory_kib} KiB{plugged}, and the claim has "
                    f"{cell.memory_mb} MiB"
                )
        elif xml.plugged_mb(cell.cell) >= cell.memory_mb:
            yield (
                f"the memory devices of cell {cell.cell} have {xml.plugged_mb(cell.cell)} MiB, and the claim "
                f"has {cell.memory_mb} MiB for all of it"
            )
        bound = root.find(f"numatune/memnode[@cellid='{cell.cell}']")
        if bound is not None and _cpus_of(bound, "nodeset") != {cell.host_cell}:
            on = "no cell" if cell.host_cell is None else cell.host_cell
            yield (
                f"<memnode cellid='{cell.cell}'> is on cell {bound.get('nodeset')} of the host, and the "
                f"claim is on {on}"
            )
    whole = root.find("numatune/memory")
    cells = frozenset(cell.host_cell for cell in given if cell.host_cell is not None)
    if whole is not None and whole.get("nodeset") and not cells <= _cpus_of(whole, "nodeset"):
        yield (
            f"<numatune> has the cells {whole.get('nodeset')} of the host, and the claim is on "
            f"{format_cpu_set(cells)}"
        )
    if whole is not None and whole.get("mode", "strict") != "strict":
        yield f"<numatune> has the mode {whole.get('mode')}, and a claim on cells is strict"
    in_bytes = (size_bytes_of_page(page, "<page>") for page in root.findall(_PAGE))  # type: ignore[arg-type]
    sizes = {-(-size // 1024) for size in in_bytes}
    claimed = {cell.page_kib for cell in given if cell.page_kib is not None}
    if sizes and sizes != claimed:
        shown = f"{format_cpu_set(frozenset(claimed))} KiB" if claimed else "small pages"
        yield f"<page> has {format_cpu_set(frozenset(sizes))} KiB, and the claim has {shown}"


# Devices

_FITTING_KINDS = {
    DeviceKind.INTERFACE: (DeviceKind.INTERFACE, DeviceKind.PCI),
    DeviceKind.PCI: (DeviceKind.PCI,),
    DeviceKind.MEDIATED: (DeviceKind.MEDIATED,),
}
"""{how a domain is to name a device: the kinds of the elements that can}"""


def _device_elements(
    root: Element, devices: Sequence[GivenDevice], replace: bool
) -> dict[GivenDevice, Element | None]:
    """{device: the element that is to name it}; None where a new one is needed."""
    elements = list(_host_devices(root))
    found: dict[GivenDevice, Element | None] = {}
    names = device_aliases(device.label for device in devices)
    for device, name in zip(devices, names, strict=True):
        # In any case: suffixes of nova's groups are upper case.
        same_names = (each for each in elements if name and alias_of(each).lower() == name.lower())
        named = next(same_names, None)
        same = next((each for each in elements if _unit_of(each) == device.unit), None)
        found[device] = named if named is not None else same
        elements = [each for each in elements if each is not found[device]]
    for device, element in found.items():
        if element is None:
            found[device] = next(
                (
                    each
                    for each in elements
                    if not alias_of(each)
                    and device_kind(each.tag, each.get("type")) in _FITTING_KINDS[kind_of(device)]
                    and (replace or _unit_of(each) is None)
                ),
                None,
            )
            elements = [each for each in elements if each is not found[device]]
    return found


def _write_device(root: Element, device: GivenDevice, alias: str, element: Element | None) -> Element:
    kind = kind_of(device)
    if element is None:
        devices = child(root, "devices")
        if kind is DeviceKind.INTERFACE:
            attributes = {"type": "hostdev", "managed": "yes"}
            element = add_child(devices, "interface", attributes, after=("interface",))
        else:
            attributes = {"mode": "subsystem", "type": "pci", "managed": "yes"}
            if kind is DeviceKind.MEDIATED:
                attributes = {"mode": "subsystem", "type": "mdev", "model": "vfio-pci"}
            element = add_child(devices, "hostdev", attributes, after=("hostdev",))
        if alias:
            add_child(element, "alias", {"name": f"{ALIAS_PREFIX}{alias}"})
    source = child(element, "source")
    address = source.find("address")
    if kind is DeviceKind.MEDIATED:
        if address is None:
            add_child(source, "address", {"uuid": device.unit})
        elif (address.get("uuid") or "").lower() != device.unit:
            address.set("uuid", device.unit)
        return element
    parts = PCI_ADDRESS.fullmatch(device.unit)
    if parts is None:
        raise UsageError(f"{device.unit} is no PCI address.")
    if address is None:
        address = add_child(source, "address", {"type": "pci"} if kind is DeviceKind.INTERFACE else {})
    if _unit_of(element) != device.unit:
        for name, value in zip(("domain", "bus", "slot", "function"), parts.groups(), strict=True):
            address.set(name, f"0x{value}")
    return element


def kind_of(device: GivenDevice) -> DeviceKind:
    """How a domain names the device. Raises UsageError for a unit that no domain can name."""
    if device.resource_class == VF_CLASS:
        return DeviceKind.INTERFACE
    if PCI_ADDRESS.fullmatch(device.unit):
        return DeviceKind.PCI
    if DASHED_UUID.fullmatch(device.unit):
        return DeviceKind.MEDIATED
    raise UsageError(
        f"{device.resource_class} {device.unit} is neither a PCI address nor the uuid of a mediated device, "
        "so no domain can name it."
    )


def _host_devices(root: Element) -> Iterator[Element]:
    for element in root.findall("devices/*"):
        if device_kind(element.tag, element.get("type")) is not None:
            yield element


def _unit_of(element: Element) -> str | None:
    """The device of the host that the element names, None if it names none yet."""
    address = element.find("source/address")
    if address is None:
        return None
    if element.get("type") == "mdev":
        return (address.get("uuid") or "").lower() or None
    return pci_address(address, shown_tag(element)) if address.get("bus") is not None else None  # type: ignore[arg-type]


# CPUs, memory and cells


def _write_processors(
    root: Element, given: GivenResources, claimed: frozenset[int], *, replace: bool
) -> None:
    vcpu = root.find("vcpu")
    if vcpu is None:
        attributes = {"placement": "static"}
        vcpu = add_child(root, "vcpu", attributes, after=("memory", "currentMemory", "memoryBacking"))
        vcpu.text = str(given.vcpus)
    pins = _pins(given)
    own = frozenset[int]().union(*(cell.emulator for cell in given.cells))
    if not (pins or own):
        return
    tune = child(root, "cputune", ("vcpu", "vcpus", "iothreads", "iothreadids"))
    for cpu, cpus in sorted(pins.items()):
        pin = tune.find(f"vcpupin[@vcpu='{cpu}']")
        if pin is None:
            pin = add_child(tune, "vcpupin", {"vcpu": str(cpu)}, after=("vcpupin", *_BEFORE_PINS))
        if replace or not _cpus_of(pin) or not _cpus_of(pin) <= cpus:
            pin.set("cpuset", format_cpu_set(cpus))
    allowed = own or claimed.union(*pins.values())
    emulator = tune.find("emulatorpin")
    if emulator is None:
        emulator = add_child(tune, "emulatorpin", {}, after=("vcpupin",))
    named = _cpus_of(emulator)
    # Where the claim has no CPU for the emulator alone, its threads may be on those that the domain names.
    if not named or ((own or replace) and not named <= allowed):
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
    tune = child(root, "numatune", ("vcpu", "vcpus", "cputune"))
    host_cells = {cell.cell: cell.host_cell for cell in cells if cell.host_cell is not None}
    if len(host_cells) == len(cells):
        memory = child(tune, "memory")
        memory.set("mode", "strict")
        memory.set("nodeset", format_cpu_set(frozenset(host_cells.values())))
    for guest_cell, host_cell in host_cells.items():
        node = tune.find(f"memnode[@cellid='{guest_cell}']")
        if node is None:
            node = add_child(tune, "memnode", {"cellid": str(guest_cell)}, after=("memory", "memnode"))
        node.set("mode", "strict")
        node.set("nodeset", str(host_cell))
    xml = DomainXml(root, "the domain")  # type: ignore[arg-type]
    numa = child(child(root, "cpu", _BEFORE_CPU), "numa")
    for cell in cells:
        element = numa.find(f"cell[@id='{cell.cell}']")
        if element is None:
            element = add_child(numa, "cell", {"id": str(cell.cell)})
        later = _cpus_of(element, "cpus") & xml.later_vcpus
        if cell.cpus | later:
            element.set("cpus", format_cpu_set(cell.cpus | later))
        element.set("memory", str((cell.memory_mb - xml.plugged_mb(cell.cell)) * KIB_PER_MIB))
        element.set("unit", "KiB")
    for guest_cell, _, device in xml.memory_devices:
        own = device.find("source/nodemask")
        if own is not None and guest_cell in host_cells:
            own.text = str(host_cells[guest_cell])
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
    guest_cells = {cell.host_cell: cell.cell for cell in given.cells if cell.host_cell is not None}
    by_cell: dict[int, list[Element]] = {}
    for device, element in written.items():
        if device.cell in guest_cells and element.find("address[@type='pci']") is None:
            by_cell.setdefault(guest_cells[device.cell], []).append(element)
    controllers = root.findall("devices/controller[@type='pci']")
    taken = [int(text) for each in controllers if (text := each.get("index") or "0").isdecimal()]
    index = max(taken, default=0) + 1
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


def _kib(element: Element) -> int:
    return size_bytes(element, f"<{element.tag}>") // KIB_PER_MIB  # type: ignore[arg-type]
