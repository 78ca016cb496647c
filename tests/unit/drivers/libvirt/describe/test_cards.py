import pytest
from kits.recorded_cards import A100, M60, NIC0, NIC1, T4, cards

from drivers.libvirt.describe.cards import cards_of, mdev_total, mdev_types
from drivers.libvirt.xml import (
    MediatedDevice,
    NetDevice,
    PciDevice,
)


def test_virtual_functions_belong_to_their_card() -> None:
    at_boot, with_vfs = cards("boot"), cards("vfs")
    assert at_boot.keys() == with_vfs.keys(), "virtual functions are no cards"
    assert [vf.address for vf in with_vfs[NIC0].vfs] == list(with_vfs[NIC0].device.vfs)
    assert [len(with_vfs[address].vfs) for address in (NIC0, NIC1, A100, M60)] == [4, 2, 4, 0]
    assert at_boot[NIC0].vfs == ()
    assert (at_boot[NIC0].device.vfs_max, at_boot[T4].device.vfs_max) == (7, None)


def test_a_cards_interface_is_the_physical_functions() -> None:
    card = cards("vfs")[NIC0]
    assert card.interface is not None
    assert (card.interface.interface, card.is_network, card.numa) == ("enp65s0", True, 0)
    assert cards("vfs")[M60].interface is None


def test_mediated_devices_belong_to_the_card_through_its_virtual_functions() -> None:
    found = cards("mdevs")
    assert [mdev.uuid[:8] for mdev in found[M60].mdevs] == ["11111111", "22222222"]
    assert [(mdev.uuid[:8], mdev.active) for mdev in found[A100].mdevs] == [
        ("33333333", True),
        ("55555555", False),
    ]
    assert mdev_types(found[T4]) == frozenset()
    assert "nvidia-471" in mdev_types(found[A100])


@pytest.mark.parametrize("moment", ["boot", "vfs", "mdevs", "domains"])
def test_a_total_stays_as_it_is_while_devices_are_made(moment: str) -> None:
    """An 8 GiB card is good for 16 of 512 MiB, before and after two were made, of two types of that size."""
    assert mdev_total(cards(moment)[M60], "nvidia-11") == 16


def test_a_type_that_is_excluded_by_those_that_are_there_counts_what_is_there() -> None:
    card = cards("mdevs")[M60]
    assert card.device.mdev_types["nvidia-22"].available == 0
    assert mdev_total(card, "nvidia-22") == 2, "a device in use never vanishes"
    assert mdev_total(cards("boot")[M60], "nvidia-22") == 1


@pytest.mark.parametrize(
    ("moment", "type_id", "most", "total"),
    [
        ("vfs", "nvidia-471", 4, 4),
        ("vfs", "nvidia-473", 1, 1),
        ("mdevs", "nvidia-471", 4, 4),
        ("vfs", "nvidia-473", None, 1),
        ("mdevs", "nvidia-471", None, 2),
        ("boot", "nvidia-471", 4, 0),
    ],
)
def test_the_functions_of_a_card_offer_the_same_room_again(
    moment: str, type_id: str, most: int | None, total: int
) -> None:
    """Four functions each offer one A100-40C; the card holds one."""
    assert mdev_total(cards(moment)[A100], type_id, most) == total


@pytest.mark.parametrize(("cap", "total"), [(None, 16), (5, 5), (2, 2), (1, 2), (0, 2), (99, 16)])
def test_a_cap_caps_exactly_and_takes_nothing_away(cap: int | None, total: int) -> None:
    """Scenario 100."""
    assert mdev_total(cards("mdevs")[M60], "nvidia-11", max_instances=cap) == total


def test_devices_that_are_half_gone_are_left_for_the_next_look() -> None:
    """libvirtd learns of a card's functions one by one."""
    orphan = PciDevice("vf", "0000:41:10.0", "8086", "10ca", 0x020000, physical_function=NIC0)
    mdev = MediatedDevice("m", "11111111-1111-4111-8111-111111111111", "gone", "t")
    net = NetDevice("n", "gone", "eth0")
    assert cards_of([orphan, mdev, net]) == ()
