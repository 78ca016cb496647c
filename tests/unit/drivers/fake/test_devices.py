"""Each kind of device as a provider, and as keys of the host file."""

from agent.driver import DescribedInventory, DescribedProvider
from drivers.fake.devices import Gpu, Nic
from drivers.fake.host import DEVICE_KINDS, FakeHost, cell
from drivers.fake.schema import dataclass_schema

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
