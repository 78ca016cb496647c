"""What `plimsoll config validate` says of settings with which an agent starts, and does not work as meant."""

from pathlib import Path

import pytest

from agent.config.check import check_start
from agent.config.settings import load
from agent.errors import SettingsError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "host.yaml").write_text(
        "cells: [{id: 0, cpus: 0-7, memory_mb: 8192, pages: {2048: 16}}]\ndisk_gb: 100\n"
    )
    return tmp_path / "plimsoll.conf"


def checked(file: Path, text: str) -> tuple[str, ...]:
    file.write_text(
        f"[DEFAULT]\ncompute_driver = fake\nhost = node1\nstate_path = {file.parent}\n{text}\n"
        f"[api]\nsocket = {file.parent}/s\n[fake]\nhost_file = {file.parent}/host.yaml\n"
    )
    return check_start(load([file]))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "reserved_host_memory_mb = 8193",
            "reserved_host_memory_mb = 8193 leaves nothing of the 8192 MEM",
        ),
        (
            "reserved_host_memory_mb = 8192",
            "reserved_host_memory_mb = 8192 leaves nothing of the 8192 MEM",
        ),
        (
            "reserved_host_disk_mb = 102400",
            "leaves nothing of the 100 DISK_GB",
        ),
        ("reserved_host_cpus = 8", "reserved_host_cpus = 8 leaves nothing of the 8 VCPU"),
        ("reserved_huge_pages = node:0,size:2048,count:17", "17 pages of 2048 KiB on cell 0, which has 16"),
        ("reserved_huge_pages = node:1,size:2048,count:1", "cell 1, which this host does not have"),
        ("reserved_huge_pages = node:0,size:4096,count:1", "1 page of 4096 KiB on cell 0, which has 0"),
    ],
)
def test_what_offers_nothing_or_too_much_is_told(file: Path, text: str, said: str) -> None:
    (note,) = checked(file, text)
    assert said in note


@pytest.mark.parametrize(
    "text",
    [
        "cpu_allocation_ratio = 1000000",
        "reserved_host_memory_mb = 8191\nreserved_host_disk_mb = 102399\nreserved_host_cpus = 7",
        "reserved_huge_pages = node:0,size:2048,count:16",
    ],
)
def test_what_leaves_something_is_good(file: Path, text: str) -> None:
    assert checked(file, text) == ()


PROVIDER = """meta: {{schema_version: '1.0'}}
providers:
  - identification: {{name: {name}}}
    inventories: {{additional: [{{CUSTOM_X: {{total: 10}}}}]}}
"""


def test_a_provider_file_that_matches_nothing_is_told(file: Path, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    location = f"[compute]\nprovider_config_location = {tmp_path}/files"
    (tmp_path / "files/a.yaml").write_text(PROVIDER.format(name="node2"))
    (note,) = checked(file, location)
    assert "a.yaml: providers[0]" in note and "describes no provider node2" in note
    (tmp_path / "files/a.yaml").write_text(PROVIDER.format(name="node1"))
    assert checked(file, location) == ()


@pytest.mark.parametrize("name", ["cpu", "ram", "disk", "initial_cpu", "initial_ram", "initial_disk"])
def test_an_absurd_ratio_is_refused_as_in_a_provider_file(file: Path, name: str) -> None:
    for ratio in ("100000000000000000000", "1e20", "1000001"):
        with pytest.raises(SettingsError, match=rf"{name}_allocation_ratio = .* to 1000000"):
            checked(file, f"{name}_allocation_ratio = {ratio}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('device_spec = {"vendor_id": "8086", "vendor_id": "8087"}', "vendor_id is given twice"),
        ('device_spec = [{"address": {"bus": "41", "bus": "42"}}]', "bus is given twice"),
        ('device_spec = {"vendor_id": "8086", "colour": 1}', "'colour' is not known"),
        ("device_spec = {", "is not JSON"),
        ('alias = {"name": "a", "name": "b", "resource_class": "PGPU"}', "name is given twice"),
    ],
)
def test_the_json_of_pci_is_checked_with_any_driver(file: Path, text: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        checked(file, f"[pci]\n{text}")
