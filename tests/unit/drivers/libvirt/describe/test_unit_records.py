from kits.libvirt_node import DATA
from kits.recorded_cards import A100, M60, NIC0, NIC1, T4, cards

from agent.driver import DescribedProvider
from drivers.host.domain_xml import parse_domain
from drivers.libvirt.describe.cards import Card, MdevSpec, cards_of
from drivers.libvirt.describe.devices import DeviceFacts, DeviceSettings
from drivers.libvirt.describe.unit_records import unit_locations
from drivers.libvirt.xml import (
    MediatedDevice,
    PciDevice,
)


def owners_of(found: tuple[Card, ...]) -> dict[str, str]:
    """{unit: `Card.key`}, with a provider for each card and its functions."""
    described = [
        DescribedProvider(
            card.key,
            device=card.key,
            units={"PCI": (card.device.address, *(vf.address for vf in card.vfs))},
        )
        for card in found
    ]
    settings = DeviceSettings(mdevs=(MdevSpec("t"),))
    return {
        unit: place.device for unit, place in unit_locations(described, DeviceFacts(found), settings).items()
    }


def test_every_device_of_every_recorded_domain_has_its_card() -> None:
    owners = owners_of(tuple(cards("domains").values()))
    held = {}
    for name in ("vm-mdev", "vm-vf", "vm-gpu", "vm-both", "vm-off-inactive"):
        domain = parse_domain((DATA / "domains" / f"{name}.xml").read_text())
        held[name] = [owners[unit] for unit in (*domain.mdevs, *domain.pci_devices, *domain.interfaces)]
    assert held == {
        "vm-mdev": [f"pci:{M60}"],
        "vm-vf": [f"pci:{NIC0}"],
        "vm-gpu": [f"pci:{T4}"],
        "vm-both": [f"pci:{A100}", f"pci:{NIC0}"],
        "vm-off-inactive": ["pci:0000:82:00.0", f"pci:{NIC1}"],
    }


def test_the_active_one_of_two_devices_with_one_uuid_holds_it() -> None:
    uuid = "11111111-1111-4111-8111-111111111111"
    functions = [PciDevice(f"p{n}", f"0000:0{n}:00.0", "10de", "13f2", 0x030200) for n in (1, 2)]
    for active in ((True, False), (False, True)):
        mdevs = [MediatedDevice(f"m{n}", uuid, f"p{n}", "t", active[n - 1]) for n in (1, 2)]
        holder = "pci:0000:01:00.0" if active[0] else "pci:0000:02:00.0"
        assert owners_of(cards_of([*functions, *mdevs]))[uuid] == holder
