import contextlib
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kits.paths import CHECKOUT

from agent.driver import Guest, GuestState, UsedMemory, UsedUnit
from agent.errors import DriverDataError
from drivers.fake import FakeHost, Gpu, default_host, load_host, parse_host

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
