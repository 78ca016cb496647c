"""The host that the fake driver pretends to run on: its schema, devices, and file."""

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kits.paths import CHECKOUT

from agent.driver import (
    DescribedInventory,
    DescribedProvider,
    Guest,
    GuestState,
    HostSettings,
    UsedMemory,
    UsedUnit,
)
from agent.errors import DriverDataError
from drivers.fake.driver import default_host, describe_host
from drivers.fake.host import (
    AMOUNT,
    DEVICE_KINDS,
    HOST_SCHEMA,
    TEXT,
    DividedGpu,
    FakeHost,
    Gpu,
    Nic,
    cell,
    dataclass_schema,
    described,
    file_key,
    key_rows,
    list_of,
    load_host,
    parse_host,
    record,
)


@dataclass
class Thing:
    name: str = field(metadata=file_key(TEXT, "its name", unique=True))
    count: int = field(default=0, metadata=file_key(AMOUNT, "how many"))


def test_a_field_without_default_is_a_required_key() -> None:
    schema = dataclass_schema(Thing)
    assert schema["required"] == ["name"]
    assert schema["properties"]["count"] == {**AMOUNT, "description": "how many"}
    assert schema["additionalProperties"] is False


def test_a_row_for_each_key_also_of_the_objects_in_a_list() -> None:
    schema = record(things=described(list_of(dataclass_schema(Thing)), "all things"))
    assert list(key_rows(schema)) == [
        ("things", "all things"),
        ("things[].name", "its name"),
        ("things[].count", "how many"),
    ]


def test_each_key_of_the_host_file_has_a_description_that_fits_into_a_table() -> None:
    rows = dict(key_rows(HOST_SCHEMA))
    assert {"disk_gb", "gpus[].address", "nics[].vfs", "guests[].units[].device"} <= rows.keys()
    assert all(text and "|" not in text and not text.endswith(".") for text in rows.values())


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
    assert {key: devices for key, devices in host.devices.items() if devices} == {
        "gpus": (CARD,),
        "nics": (NIC,),
    }
    assert host.devices.keys() == DEVICE_KINDS.keys()
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


def test_the_threads_of_a_core_are_numbered_as_on_x86() -> None:
    assert cell(0, frozenset({0, 1, 4, 5}), 1024, threads=2).siblings == (
        frozenset({0, 4}),
        frozenset({1, 5}),
    )


CELL = "cells: [{id: 0, cpus: 0-3, memory_mb: 4096}]\n"


def test_the_built_in_host_has_two_cells_two_gpus_and_two_network_cards() -> None:
    host = default_host()
    assert [len(cell.cpus) for cell in host.cells] == [32, 32]
    assert {frozenset({0, 32}), frozenset({15, 47})} <= set(host.cells[0].siblings)
    assert [gpu.resource_class for gpu in host.gpus] == ["VGPU", "PGPU"]
    assert [len(nic.vfs) for nic in host.nics] == [8, 8]


def test_pci_addresses_need_no_quotes() -> None:
    """In YAML 1.1, 0000:41:00.0 is a number in base sixty."""
    assert parse_host(CELL + "gpus: [{address: 0000:41:00.0, total: 2}]") == FakeHost(
        cells=parse_host(CELL).cells, gpus=(Gpu("0000:41:00.0", total=2),)
    )


def test_a_guests_units_count_as_its_resources() -> None:
    host = parse_host(
        CELL
        + """
guests:
  - uuid: A0000000-0000-4000-8000-000000000001
    name: one
    state: shutoff
    resources: {VCPU: 2, MEMORY_MB: 512}
    units: [{resource_class: VGPU, unit: u1, device: "pci:0000:41:00.0"}]
    memory: [{cell: 0, memory_mb: 512, page_kib: 2048}]
"""
    )
    assert host.guests == (
        Guest(
            uuid="a0000000-0000-4000-8000-000000000001",
            name="one",
            state=GuestState.SHUTOFF,
            resources={"VGPU": 1, "VCPU": 2, "MEMORY_MB": 512},
            units=(UsedUnit("VGPU", "u1", "pci:0000:41:00.0"),),
            memory=(UsedMemory(0, 512, 2048),),
        ),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the top level: None is not of type 'object'"),
        ("cells: []", "cells: "),
        ("cells: [{id: 0, memory_mb: 1}]", r"cells\[0\]: 'cpus' is a required property"),
        (
            "cells: [{id: 0, cpus: 0-2, threads: 2, memory_mb: 1}]",
            r"cells\[0\].cpus: 3 CPUs cannot be cores of 2 threads",
        ),
        ("cells: [{id: 0, cpus: x, memory_mb: 1}]", r"cells\[0\].cpus: 'x' is neither"),
        (CELL + "gpu: []", "'gpu' was unexpected"),
        (CELL + "gpus: [{address: 41:00.0}]", r"gpus\[0\].address: "),
        (CELL + "gpus: [{address: 0000:41:00.0, total: -1}]", r"gpus\[0\].total: "),
        (CELL + "gpus: [{address: 0000:41:00.0, numa: 7}]", r"gpus\[0\].numa: there is no cell 7"),
        (
            CELL + "gpus: [{address: 0000:41:00.0}, {address: 0000:41:00.0}]",
            "address 0000:41:00.0 is there twice",
        ),
        (
            CELL + f"guests: [{{uuid: {'1' * 32}, name: x, memory: [{{cell: 7, memory_mb: 1}}]}}]",
            "the memory of guest 11111111-.*: there is no cell 7",
        ),
        (CELL + "guests: [{uuid: one, name: x}]", r"guests\[0\].uuid: "),
        ("cells: [{id: 0, cpus: 0, memory_mb: 1}, {id: 1, cpus: 0, memory_mb: 1}]", "CPU 0 is there twice"),
        (CELL + "gpus: []\ngpus: []", "this is not YAML: the key 'gpus' is there twice"),
        ("cells: [", "this is not YAML"),
        ("? [1]\n: 2", "this is not YAML"),
        ("!!python/object/apply:os.getcwd []", "this is not YAML"),
    ],
)
def test_bad_input_names_file_and_key(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "host.yaml"
    path.write_text(text)
    with pytest.raises(DriverDataError, match=message) as caught:
        load_host(path)
    assert str(caught.value).startswith(f"{path}: ")


_SCALARS = (
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["0-3", "0000:41:00.0"])
)
_KEYS = st.sampled_from(
    ["cells", "gpus", "nics", "guests", "id", "cpus", "memory_mb", "address", "vfs", "uuid"]
)


@given(
    st.recursive(
        _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS | st.text(), inner)
    )
)
def test_no_document_does_worse_than_driverdataerror(document: object) -> None:
    with contextlib.suppress(DriverDataError):
        parse_host(yaml.safe_dump(document))


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_no_bytes_do_worse_than_driverdataerror(text: str | bytes) -> None:
    with contextlib.suppress(DriverDataError):
        parse_host(text)


def test_the_example_in_the_documentation_is_a_host() -> None:
    text = (CHECKOUT / "docs" / "drivers.md").read_text()
    host = parse_host(text.split("```yaml")[1].split("```")[0])
    assert host.report_numa
    assert host.guests[0].resources == {"SRIOV_NET_VF": 1, "VCPU": 2, "MEMORY_MB": 2048, "DISK_GB": 20}
