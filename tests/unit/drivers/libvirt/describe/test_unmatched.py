"""Options that match nothing on a recorded host."""

from dataclasses import replace

from kits.recorded_cards import SETTINGS, cards

from drivers.libvirt.describe.cards import MdevSpec, parse_device_specs
from drivers.libvirt.describe.devices import DeviceFacts, DeviceSettings
from drivers.libvirt.describe.options import unmatched_options

FACTS = DeviceFacts(tuple(cards("vfs").values()))


def test_options_that_match_are_not_named() -> None:
    assert list(unmatched_options(FACTS, SETTINGS)) == []
    assert list(unmatched_options(FACTS, DeviceSettings())) == []


def test_a_spec_that_matches_nothing_is_named_by_its_number_and_its_selection() -> None:
    (extra,) = parse_device_specs(('{"vendor_id": "dead", "product_id": "beef"}',))
    (sentence,) = unmatched_options(FACTS, replace(SETTINGS, specs=(*SETTINGS.specs, extra)))
    number = len(SETTINGS.specs) + 1
    assert sentence.startswith(f"[pci] device_spec number {number} (vendor_id dead, product_id beef)")


def test_types_addresses_and_interfaces_that_are_not_there_are_named() -> None:
    settings = DeviceSettings(
        mdevs=(MdevSpec("nvidia-11", frozenset({"0000:99:00.0"})), MdevSpec("nvidia-1000")),
        bandwidth={"eth99": (1, 1)},
    )
    sentences = list(unmatched_options(FACTS, settings))
    assert any("0000:99:00.0" in sentence for sentence in sentences)
    assert any("nvidia-1000" in sentence for sentence in sentences)
    assert any("eth99" in sentence for sentence in sentences)
