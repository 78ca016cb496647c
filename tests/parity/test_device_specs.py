"""[pci] device_spec offers the same functions as nova's own reading of it."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest
from nova import exception
from nova.pci import devspec, utils

from agent.errors import SettingsError
from drivers.libvirt.describe.cards import Card
from drivers.libvirt.describe.device_spec import parse_device_specs
from drivers.libvirt.xml.nodedevs import PciDevice

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
