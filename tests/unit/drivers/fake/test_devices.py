"""Each kind of device as a provider, and as keys of the host file."""

import pytest

from agent.driver import DescribedInventory, DescribedProvider, HostSettings
from agent.errors import DriverDataError
from drivers.fake.describe import describe_host
from drivers.fake.devices import DividedGpu, Gpu, Nic
from drivers.fake.host import DEVICE_KINDS, FakeHost, cell
from drivers.fake.host_file import parse_host
from drivers.fake.schema import dataclass_schema

CARD_ADDRESS = "0000:84:00.0"
CARD = Gpu("0000:42:00.0", "PGPU", 1, ("0000:42:00.0",), frozenset({"CUSTOM_T4"}), numa=1)
NIC = Nic(
    "eth0", "0000:41:00.0", ("0000:41:02.0", "0000:41:02.1"), "physnet0", 1000, 2000, whole="CUSTOM_NIC"
)


def inventory(total: int) -> DescribedInventory:
    return DescribedInventory(total, allocation_ratio=1.0)


def test_a_card_is_a_provider_with_its_class_and_its_exact_units() -> None:
    assert CARD.describe("node1", "node1_numa1") == DescribedProvider(
        name="node1_pci_0000:42:00.0",
        parent="node1_numa1",
        inventories={"PGPU": inventory(1)},
        traits=frozenset({"CUSTOM_T4"}),
        device="pci:0000:42:00.0",
        units={"PGPU": ("0000:42:00.0",)},
        cell=1,
    )


def test_types_of_one_total_share_the_card_and_others_exclude_each_other() -> None:
    types = {"CUSTOM_LARGE": 1, "CUSTOM_SMALL": 2, "CUSTOM_OTHER": 2}
    provider = Gpu("0000:42:00.0", types=types).describe("node1", "node1")
    assert {name: inventory.total for name, inventory in provider.inventories.items()} == types
    assert provider.units["CUSTOM_SMALL"] == ("0000:42:00.0/0", "0000:42:00.0/1")
    assert provider.ways == (frozenset({"CUSTOM_LARGE"}), frozenset({"CUSTOM_SMALL", "CUSTOM_OTHER"}))


def test_a_network_card_has_functions_bandwidth_and_the_trait_of_its_network() -> None:
    provider = NIC.describe("node1", "node1")
    assert provider.name == "node1_net_eth0"
    assert provider.inventories == {
        "SRIOV_NET_VF": inventory(2),
        "CUSTOM_NIC": inventory(1),
        "NET_BW_EGR_KILOBIT_PER_SEC": inventory(1000),
        "NET_BW_IGR_KILOBIT_PER_SEC": inventory(2000),
    }
    assert provider.units == {"SRIOV_NET_VF": NIC.vfs, "CUSTOM_NIC": (NIC.address,)}
    assert provider.ways == (frozenset({"SRIOV_NET_VF"}), frozenset({"CUSTOM_NIC"}))
    assert provider.traits == {"CUSTOM_PHYSNET_PHYSNET0"}


def test_a_class_with_nothing_of_it_is_not_reported() -> None:
    assert Nic("eth0", "0000:41:00.0").describe("node1", "node1").inventories == {}


def test_each_kind_is_a_key_of_the_host_file() -> None:
    host = FakeHost((cell(0, frozenset({0}), 1),), gpus=(CARD,), nics=(NIC,))
    assert (host.devices["gpus"], host.devices["nics"]) == ((CARD,), (NIC,))
    for kind in DEVICE_KINDS.values():
        schema = dataclass_schema(kind)
        assert "address" in schema["required"]
        assert {"address", "traits", "numa"} <= schema["properties"].keys()


def test_a_divided_card_offers_each_place_as_a_unit_and_as_many_as_it_can_have() -> None:
    shapes = {"CUSTOM_ONE": "1g.5gb", "CUSTOM_THREE": "3g.20gb", "CUSTOM_FOUR": "4g.20gb"}
    described = DividedGpu(CARD_ADDRESS, "MIG A100 40 GB", shapes, numa=1).describe("n", "n_numa1")
    assert {name: inventory.total for name, inventory in described.inventories.items()} == {
        "CUSTOM_ONE": 7,
        "CUSTOM_THREE": 2,
        "CUSTOM_FOUR": 1,
    }
    assert described.units["CUSTOM_THREE"] == (
        f"{CARD_ADDRESS}/CUSTOM_THREE@0",
        f"{CARD_ADDRESS}/CUSTOM_THREE@4",
    )
    assert (
        described.card is not None and described.card.slots == 8 and described.device == f"pci:{CARD_ADDRESS}"
    )
    mixed = DividedGpu(CARD_ADDRESS, "mixed A40", {"CUSTOM_16": "16"}).describe("n", "n")
    assert mixed.inventories["CUSTOM_16"].total == 2, "three need 48 GiB, and have two places"


def test_a_shape_that_the_card_does_not_have_is_an_error() -> None:
    with pytest.raises(DriverDataError, match="MIG A30 has no shape '9g'"):
        DividedGpu(CARD_ADDRESS, "MIG A30", {"CUSTOM_NINE": "9g"}).describe("n", "n")


def test_a_divided_card_of_a_host_file_has_a_provider_of_its_own_even_on_a_flat_host() -> None:
    text = f"""
    cells: [{{id: 0, cpus: 0-3, memory_mb: 4096}}]
    flat_devices: true
    divided_gpus: [{{address: "{CARD_ADDRESS}", table: "mixed L4", shapes: {{CUSTOM_8: "8"}}}}]
    """
    described = describe_host(parse_host(text), HostSettings(), "n")
    assert [provider.name for provider in described.providers] == ["n", f"n_pci_{CARD_ADDRESS}"]
    assert "CUSTOM_8" not in described.providers[0].inventories
    assert not any(CARD_ADDRESS in move.from_resource_provider for move in described.moves)
    with pytest.raises(DriverDataError, match="table"):
        parse_host(text.replace("mixed L4", "mixed Voodoo"))
