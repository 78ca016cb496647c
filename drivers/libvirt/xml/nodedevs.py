"""libvirt's node devices as values. Pure.

Names of node devices are never parsed where the XML says the same: a network device's changes with its MAC
address, a mediated device's with libvirt's version. Source: https://libvirt.org/formatnode.html
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element

from agent.errors import DriverDataError
from drivers.host.xml_parser import number, parse_xml, pci_address, text_of, uuid_of

_NAME_UUID = re.compile(r"mdev_([0-9a-f]{8}(?:_[0-9a-f]{4}){3}_[0-9a-f]{12})", re.ASCII)


@dataclass(frozen=True, slots=True)
class MdevType:
    """A type of mediated device; `available` is how many more can be made now, not a total."""

    id: str
    name: str
    available: int


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A PCI function. `vendor_id` and `product_id` are four hexadecimal digits, `class_id` is like 0x030200.

    `vfs` are the addresses of its virtual functions, `vfs_max` how many it can have (None: it is no physical
    function), `physical_function` the address of the one it belongs to. `numa` None: no affinity.
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


@dataclass(frozen=True, slots=True)
class NetDevice:
    """A network interface; `parent` is a node device's name."""

    name: str
    parent: str
    interface: str


@dataclass(frozen=True, slots=True)
class MediatedDevice:
    """A mediated device; `parent` is a node device's name. One that is not active is defined only."""

    name: str
    uuid: str
    parent: str
    type_id: str
    active: bool = True


NodeDevice = PciDevice | NetDevice | MediatedDevice


def parse_node_device(text: str, what: str = "a node device", *, active: bool = True) -> NodeDevice | None:
    """None for a device of a kind that is of no interest here. Raises DriverDataError naming `what`."""
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
        iommu_devices=tuple(pci_address(each, what) for each in capability.findall("iommuGroup/address")),
        vfs=() if virtual is None else tuple(pci_address(each, what) for each in virtual.findall("address")),
        vfs_max=None if virtual is None else number(virtual.get("maxCount", "0"), f"{what}: maxCount"),
        physical_function=None if physical is None else pci_address(physical, what),
        mdev_types=_mdev_types(capability, what),
    )


def _id(capability: Element, tag: str, what: str) -> str:
    element = capability.find(tag)
    return f"{number(None if element is None else element.get('id'), f'{what}: <{tag}>', 0xFFFF):04x}"


def _numa(capability: Element, what: str) -> int | None:
    node = capability.find("numa")
    if node is None or node.get("node", "-1") == "-1":
        return None
    return number(node.get("node"), f"{what}: <numa>", 2**16)


def _mdev_types(capability: Element, what: str) -> dict[str, MdevType]:
    found = {}
    for each in capability.findall("capability[@type='mdev_types']/type"):
        type_id = each.get("id", "")
        available = number(
            each.findtext("availableInstances"), f"{what}: availableInstances of {type_id[:40]}"
        )
        found[type_id] = MdevType(type_id, each.findtext("name", ""), available)
    return found


def _net(name: str, root: Element, capability: Element, what: str) -> NetDevice:
    return NetDevice(name, root.findtext("parent", ""), text_of(capability, "interface", what))


def _mdev(name: str, root: Element, capability: Element, what: str, active: bool) -> MediatedDevice:
    kind = capability.find("type")
    if kind is None or not kind.get("id"):
        raise DriverDataError(f"{what}: a mediated device without a type")
    uuid = capability.findtext("uuid")
    if uuid is None:  # libvirt before 7.3 has it in the name only
        match = _NAME_UUID.match(name)
        uuid = match[1].replace("_", "-") if match else ""
    return MediatedDevice(
        name, uuid_of(uuid, what), text_of(root, "parent", what), kind.get("id", ""), active
    )
