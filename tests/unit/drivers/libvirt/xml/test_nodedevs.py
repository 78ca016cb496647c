from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.libvirt_node import DATA
from kits.recorded_cards import A100, M60, NIC0, cards

from agent.errors import DriverDataError
from drivers.libvirt.describe.cards import cards_of
from drivers.libvirt.xml.nodedevs import (
    MdevType,
    MediatedDevice,
    parse_node_device,
)

MOMENTS = ("boot", "vfs", "mdevs", "domains", "vendor-vfio", "migrated-in")


def test_a_pci_device_as_recorded() -> None:
    device = cards("vfs")[A100].vfs[0]
    assert (device.address, device.vendor_id, device.product_id, device.class_id) == (
        "0000:84:00.1",
        "10de",
        "20f1",
        0x030200,
    )
    assert (device.driver, device.numa, device.physical_function) == ("nvidia", 1, A100)
    assert device.iommu_devices == ("0000:84:00.1",)
    assert device.mdev_types["nvidia-471"] == MdevType("nvidia-471", "GRID A100-10C", 1)


MDEV = "<device><name>{name}</name><parent>p</parent><capability type='mdev'>{inside}</capability></device>"


def test_an_old_libvirt_has_the_uuid_in_the_name_only() -> None:
    name = "mdev_11111111_1111_4111_8111_111111111111"
    device = parse_node_device(MDEV.format(name=name, inside="<type id='nvidia-11'/>"))
    assert device == MediatedDevice(name, "11111111-1111-4111-8111-111111111111", "p", "nvidia-11")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<device/>", "d: <name> is missing or empty"),
        (MDEV.format(name="x", inside="<type id='t'/>"), "d: '' is not a uuid"),
        (MDEV.format(name="x", inside=""), "d: the mediated device has no type"),
        ("<device><name>x</name><capability type='pci'/></device>", "d: PCI domain: '' is not a number"),
        ("<device><name>x</name><capability type='net'/></device>", "d: <interface> is missing or empty"),
    ],
)
def test_what_makes_no_sense_is_named(text: str, message: str) -> None:
    with pytest.raises(DriverDataError, match=message):
        parse_node_device(text, "d")


def test_kinds_that_are_of_no_interest() -> None:
    assert parse_node_device("<device><name>x</name><capability type='storage'/></device>") is None


@pytest.mark.parametrize("moment", MOMENTS)
def test_everything_recorded_is_understood(moment: str) -> None:
    found = cards(moment)
    assert {M60, A100, NIC0} <= found.keys() or moment == "migrated-in"
    assert all(card.numa in (0, 1) for address, card in found.items() if address[5:7] != "00")


@given(st.data())
def test_recorded_devices_with_bytes_damaged(data: st.DataObject) -> None:
    root = ElementTree.parse(DATA / "devices" / "mdevs.xml").getroot()
    text = ElementTree.tostring(data.draw(st.sampled_from(root.findall(".//device"))), encoding="unicode")
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(text)))
        text = text[:place] + data.draw(st.text(max_size=3)) + text[place + data.draw(st.integers(0, 9)) :]
    try:
        device = parse_node_device(text)
    except DriverDataError as error:
        assert error.message.startswith("a node device: ")
    else:
        assert device is None or cards_of([device]) is not None
