"""Parse node devices: PCI functions, network interfaces, vDPA and mediated devices. Pure.

Names of node devices are not parsed where the XML has the value: the name of a network device changes with
its MAC address, that of a mediated device with libvirt's version. Source: https://libvirt.org/formatnode.html
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element

from agent.errors import DriverDataError
from drivers.host.xml_parser import number, parse_xml, pci_address, text_of, uuid_of

_NAME_UUID = re.compile(r"mdev_([0-9a-f]{8}(?:_[0-9a-f]{4}){3}_[0-9a-f]{12})", re.ASCII)


@dataclass(frozen=True, slots=True)
class MdevType:
    """A type of mediated device; `available` is how many more can be created now, not a total."""

    id: str
    name: str
    available: int


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A PCI function. `vendor_id` and `product_id` are four hexadecimal digits, `class_id` is like 0x030200.

    `vfs` are the addresses of its virtual functions; `vfs_max` is how many it can have, None if it is not a
    physical function. `physical_function` is the address of the one to which a virtual function belongs.
    `numa` is the id of its NUMA cell, None without affinity; `iommu_devices` are the addresses in its group.
    `serial` is the serial number in its vital product data (VPD), which libvirt reports from 7.9.
    """

    name: str
    address: str
    vendor_id: str
    product_id: str
    class_id: int
    driver: str = ""
    numa: int | None = None
    iommu_devices: tuple[str, ...] = ()
    vfs: tuple[str, ...] = ()
    vfs_max: int | None = None
    physical_function: str | None = None
    mdev_types: Mapping[str, MdevType] = field(default_factory=dict)
    serial: str = ""


@dataclass(frozen=True, slots=True)
class NetDevice:
    """A network interface; `parent` is a node device's name."""

    name: str
    parent: str
    interface: str


@dataclass(frozen=True, slots=True)
class MediatedDevice:
    """A mediated device; `parent` is a node device's name. One that is not active is only defined."""

    name: str
    uuid: str
    parent: str
    type_id: str
    active: bool = True


@dataclass(frozen=True, slots=True)
class VdpaDevice:
    """A vDPA device; `parent` is a node device's name, `path` its device such as /dev/vhost-vdpa-0."""

    name: str
    parent: str
    path: str


NodeDevice = PciDevice | NetDevice | MediatedDevice | VdpaDevice


def parse_node_device(text: str, what: str = "a node device", *, active: bool = True) -> NodeDevice | None:
    """The device, None for kinds that the driver does not use. Raises DriverDataError naming `what`."""
    root = parse_xml(text, what, "device")
    name = text_of(root, "name", what)
    for capability in root.findall("capability"):
        match capability.get("type"):
            case "pci":
                return _pci(name, root, capability, what)
            case "net":
                return _net(name, root, capability, what)
            case "mdev":
                return _mdev(name, root, capability, what, active)
            case "vdpa":
                path = capability.findtext("chardev", "").strip()
                return VdpaDevice(name, root.findtext("parent", ""), path) if path else None
    return None


def _pci(name: str, root: Element, capability: Element, what: str) -> PciDevice:
    address = Element(
        "address", {part: capability.findtext(part, "") for part in ("domain", "bus", "slot", "function")}
    )
    physical = capability.find("capability[@type='phys_function']/address")
    virtual = capability.find("capability[@type='virt_functions']")
    return PciDevice(
        name=name,
        address=pci_address(address, what),
        vendor_id=_id(capability, "vendor", what),
        product_id=_id(capability, "product", what),
        class_id=number(capability.findtext("class", "0"), f"{what}: <class>", 0xFFFFFF),
        driver=root.findtext("driver/name", ""),
        numa=_numa(capability, what),
        iommu_devices=_addresses(capability.findall("iommuGroup/address"), what),
        vfs=() if virtual is None else _addresses(virtual.findall("address"), what),
        vfs_max=None if virtual is None else number(virtual.get("maxCount", "0"), f"{what}: maxCount"),
        physical_function=None if physical is None else pci_address(physical, what),
        mdev_types=_mdev_types(capability, what),
        serial=capability.findtext(
            "capability[@type='vpd']/fields[@access='readonly']/serial_number", ""
        ).strip(),
    )


def _addresses(elements: Iterable[Element], what: str) -> tuple[str, ...]:
    return tuple(pci_address(element, what) for element in elements)


def _id(capability: Element, tag: str, what: str) -> str:
    element = capability.find(tag)
    return f"{number(None if element is None else element.get('id'), f'{what}: <{tag}>', 0xFFFF):04x}"


def _numa(capability: Element, what: str) -> int | None:
    node = capability.find("numa")
    if node is None or node.get("node", "-1") == "-1":
        return None
    return number(node.get("node"), f"{what}: <numa>", 2**16)


def _mdev_types(capability: Element, what: str) -> dict[str, MdevType]:
    types = {}
    for element in capability.findall("capability[@type='mdev_types']/type"):
        type_id = element.get("id", "")
        available = number(
            element.findtext("availableInstances"), f"{what}: availableInstances of {type_id[:40]}"
        )
        types[type_id] = MdevType(type_id, element.findtext("name", ""), available)
    return types


def _net(name: str, root: Element, capability: Element, what: str) -> NetDevice:
    return NetDevice(name, root.findtext("parent", ""), text_of(capability, "interface", what))


def _mdev(name: str, root: Element, capability: Element, what: str, active: bool) -> MediatedDevice:
    kind = capability.find("type")
    if kind is None or not kind.get("id"):
        raise DriverDataError(f"{what}: the mediated device has no type")
    uuid = capability.findtext("uuid")
    if uuid is None:  # libvirt before 7.3 has the uuid in the name only
        match = _NAME_UUID.match(name)
        uuid = match[1].replace("_", "-") if match else ""
    return MediatedDevice(
        name, uuid_of(uuid, what), text_of(root, "parent", what), kind.get("id", ""), active
    )
