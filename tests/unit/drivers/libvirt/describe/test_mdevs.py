from kits.recorded_cards import amounts, cards, describe, under_cells

from agent.driver import DescribedProvider
from drivers.libvirt.describe.cards import MdevSpec
from drivers.libvirt.describe.devices import DeviceFacts, DeviceSettings, card_contexts, describe_cards

M60_TYPES = (
    MdevSpec("nvidia-11", frozenset({"0000:42:00.0", "0000:82:00.0"}), "CUSTOM_SMALL"),
    MdevSpec("nvidia-12", frozenset({"0000:42:00.0", "0000:82:00.0"}), "CUSTOM_DESK", 8),
    MdevSpec("nvidia-22", frozenset({"0000:42:00.0", "0000:82:00.0"}), "CUSTOM_BIG"),
)


M60_MOST = {"nvidia-11": 16, "nvidia-12": 16, "nvidia-22": 1}


def typed(moment: str, held: frozenset[str] = frozenset()) -> dict[str, DescribedProvider]:
    facts = DeviceFacts(tuple(cards(moment).values()), {"0000:42:00.0": M60_MOST, "0000:82:00.0": M60_MOST})
    settings = DeviceSettings(mdevs=M60_TYPES)
    found = describe_cards(card_contexts(facts, settings, held), "node1", under_cells)
    return {provider.device: provider for provider in found}


def test_types_of_one_card_share_it_or_exclude_each_other() -> None:
    card = typed("boot")["pci:0000:42:00.0"]
    assert amounts(card) == {"CUSTOM_SMALL": 16, "CUSTOM_DESK": 8, "CUSTOM_BIG": 1}
    assert card.ways == (frozenset({"CUSTOM_SMALL", "CUSTOM_DESK"}), frozenset({"CUSTOM_BIG"}))
    assert {"CUSTOM_MDEV_TYPE_NVIDIA_11", "CUSTOM_MDEV_TYPE_NVIDIA_22"} <= card.traits
    assert not any(inventory.reserved for inventory in card.inventories.values())
    for resource_class, units in card.units.items():
        assert list(card.to_make[resource_class]) == list(units), "none is there yet"
        assert len(units) == card.inventories[resource_class].total


def test_what_is_made_takes_the_room_of_other_types() -> None:
    first, second = (typed("mdevs")[f"pci:0000:{bus}:00.0"] for bus in ("42", "82"))
    assert {name: (each.total, each.reserved) for name, each in first.inventories.items()} == {
        "CUSTOM_SMALL": (16, 1),  # one nvidia-12 is there
        "CUSTOM_DESK": (8, 0),
        "CUSTOM_BIG": (1, 1),
    }
    assert first.units["CUSTOM_SMALL"][0] == "11111111-1111-4111-8111-111111111111"
    assert {name: each.total - each.reserved for name, each in second.inventories.items()} == {
        "CUSTOM_SMALL": 0,
        "CUSTOM_DESK": 0,
        "CUSTOM_BIG": 0,  # one of another size is there, and nothing else fits
    }


def test_what_can_be_made_has_its_uuid_parent_and_type_already() -> None:
    before, after = describe("vfs"), describe("mdevs")
    m60, a100 = "pci:0000:42:00.0", "pci:0000:84:00.0"
    makings = before[m60].to_make["VGPU"]
    assert len(makings) == 10
    assert all(each == {"parent": "0000:42:00.0", "type": "nvidia-11"} for each in makings.values())
    parents = [each["parent"] for each in before[a100].to_make["VGPU"].values()]
    assert parents == ["0000:84:00.1", "0000:84:00.2", "0000:84:00.3", "0000:84:00.4"], "one each"
    there = "33333333-3333-4333-8333-333333333333"
    assert after[a100].units["VGPU"][0] == there, "what is there goes first"
    assert list(after[a100].to_make["VGPU"]) == list(before[a100].to_make["VGPU"])[1:], "and the rest stays"


def test_what_is_there_of_another_type_is_not_given_out() -> None:
    idle = next(m.uuid for c in tuple(cards("mdevs").values()) for m in c.mdevs if m.type_id == "nvidia-12")
    card = describe("mdevs")["pci:0000:42:00.0"]
    assert idle not in card.units["VGPU"]
    assert len(card.units["VGPU"]) == card.inventories["VGPU"].total - 1, "it takes room all the same"
    in_use = describe("mdevs", held=frozenset({idle}))["pci:0000:42:00.0"]
    assert idle in in_use.units["VGPU"], "where its guest is found"
