"""[pci] device_spec offers the same functions as nova's own reading of it."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from nova import exception
from nova.pci import devspec, utils

from agent.errors import DriverDataError, SettingsError
from drivers.libvirt.describe.cards import Card, check_remote_managed, parse_device_specs
from drivers.libvirt.xml import NetDevice, PciDevice

CARD = "0000:41:00.0"
VFS = tuple(f"0000:41:10.{number}" for number in range(3))
PLAIN = ("0000:05:00.0", "0000:4a:1f.1", "0001:41:00.0")
PARTS = {
    "domain": ("0000", "0", ".*", "0001"),
    "bus": ("41", "4", "41|05", "[0-4]."),
    "slot": ("00", "10", "1", ".*"),
    "function": ("0", "[0-2]", "0|2"),
}
GLOBS = (
    *(
        "0000:41:00.0",
        "*:41:00.0",
        ":41:",
        "41:10.",
        "10.*",
        "10.2",
        ".1",
        "0:5:0.0",
        "*:*:*.*",
        "0000:41:10.*",
    ),
    *("0000:41:10.1", "4A:1f.1", "1:41:00.0", "41:00.8", "0000:41:20.0", "0:0:41:00.0", "x:41:00.0"),
)


def device(address: str, vfs: int | None = None, parent: str | None = None) -> PciDevice:
    product_id = "10ca" if parent else "10c9"
    return PciDevice(address, address, "8086", product_id, 0x20000, vfs_max=vfs, physical_function=parent)


def cards() -> list[tuple[Card, PciDevice]]:
    """Each function with its card."""
    vfs = tuple(device(address, parent=CARD) for address in VFS)
    card = Card(device(CARD, vfs=7), vfs=vfs)
    return [
        *((card, function) for function in (card.device, *vfs)),
        *((Card(device(address)), device(address)) for address in PLAIN),
    ]


def of_nova(spec: dict[str, Any]) -> set[str] | None:
    try:
        read = devspec.PciDeviceSpec(json.loads(json.dumps(spec)))
    except exception.NovaException:
        return None
    return {
        function.address
        for _, function in cards()
        if read.match(
            {
                "vendor_id": function.vendor_id,
                "product_id": function.product_id,
                "address": function.address,
                "parent_addr": function.physical_function,
            }
        )
    }


def own(spec: dict[str, Any]) -> set[str] | None:
    try:
        (read,) = parse_device_specs((json.dumps(spec),))
    except SettingsError:
        return None
    return {function.address for card, function in cards() if read.matches(function, card)}


@pytest.fixture(autouse=True)
def _one_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nova reads in sysfs."""
    monkeypatch.setattr(utils, "is_physical_function", lambda *parts: "{}:{}:{}.{}".format(*parts) == CARD)


@pytest.mark.parametrize("glob", GLOBS)
def test_a_glob_offers_what_nova_offers(glob: str) -> None:
    assert own({"address": glob}) == of_nova({"address": glob})


def test_regular_expressions_offer_what_nova_offers() -> None:
    choices = [[(name, text) for text in (*texts, None)] for name, texts in PARTS.items()]
    for chosen in product(*choices):
        spec = {"address": {name: text for name, text in chosen if text is not None}}
        assert own(spec) == of_nova(spec), spec


@pytest.mark.parametrize(
    "ids",
    [
        {"vendor_id": "8086"},
        {"vendor_id": "*", "product_id": "10CA", "address": "0000:41:00.0"},
        {"vendor_id": "0x8086", "product_id": "10c9"},
        {"vendor_id": "dead"},
    ],
)
def test_ids_offer_what_nova_offers(ids: dict[str, str]) -> None:
    assert own(ids) == of_nova(ids)


NAMES = (
    {"address": CARD},
    {"devname": "eth0"},
    {"devname": "eth1"},
    {"address": "*:41:*.*"},
    {"address": "0000:41:10.*"},
    {"address": "0000:41:10.1"},
    {"address": {"bus": "41"}},
    {},
)
IDS = [
    {**vendor, **product}
    for vendor in ({}, {"vendor_id": "8086"}, {"vendor_id": "15b3"})
    for product in ({}, {"product_id": "10c9"}, {"product_id": "10ca"}, {"product_id": "1889"})
]
SERIALS = ({}, {CARD}, {VFS[0]}, {CARD, VFS[1]})
"""Which functions of the card have a serial number of their own."""


@pytest.mark.parametrize("serials", SERIALS, ids=lambda serials: "+".join(sorted(serials)) or "none")
def test_remote_managed_functions_are_those_that_nova_takes(
    serials: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """nova does not start where a spec makes a physical function remote_managed."""
    monkeypatch.setattr(utils, "get_vf_product_id_by_pf_addr", lambda address: "10ca")
    monkeypatch.setattr(utils, "get_pci_ids_by_pci_addr", lambda address: ("8086", "10c9"))
    monkeypatch.setattr(
        utils, "get_function_by_ifname", lambda name: (CARD, True) if name == "eth0" else (None, False)
    )
    vfs = tuple(replace(device(address, parent=CARD), serial=serial(address, serials)) for address in VFS)
    pf = replace(device(CARD, vfs=7), serial=serial(CARD, serials))
    card = Card(pf, vfs=vfs, interface=NetDevice("net", "pci", "eth0"))
    for name, ids in product(NAMES, IDS):
        spec = {**name, **ids, "remote_managed": "true"}
        if not name and not ids:
            continue  # the agent wants a spec to name something
        assert own_ports(spec, card) == ports_of_nova(spec, card), spec


def serial(address: str, serials: set[str]) -> str:
    return "MT1" if address in serials else ""


def ports_of_nova(spec: dict[str, Any], card: Card) -> set[str] | None:
    try:
        read = devspec.PciDeviceSpec(json.loads(json.dumps(spec)))
    except exception.PciDeviceRemoteManagedNotPresent:
        return set()  # nova does not start; the agent's status names the spec
    except exception.NovaException:
        return None
    return {
        function.address
        for function in (card.device, *card.vfs)
        if read.match(
            {
                "vendor_id": function.vendor_id,
                "product_id": function.product_id,
                "address": function.address,
                "parent_addr": function.physical_function,
                # nova's driver takes a virtual function's own serial number, else its card's
                "capabilities": {"vpd": {"card_serial_number": function.serial or card.device.serial}},
            }
        )
    }


def own_ports(spec: dict[str, Any], card: Card) -> set[str] | None:
    try:
        (read,) = specs = parse_device_specs((json.dumps(spec),))
        check_remote_managed((card,), specs)
    except (SettingsError, DriverDataError):
        return None
    return {function.address for function in (card.device, *card.vfs) if read.matches(function, card)}
