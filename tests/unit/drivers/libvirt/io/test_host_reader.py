"""Reading the host of libvirt's test driver, and what is reported when that fails."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import libvirt
import pytest
from kits.libvirt_node import connection_to, domain, write_node

from agent.errors import DriverUnavailable
from drivers.libvirt.describe.options import LibvirtOptions
from drivers.libvirt.io.connection import Connection
from drivers.libvirt.io.host_reader import HostReader


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    connection = connection_to(write_node(tmp_path / "node.xml", [domain(1)]))
    yield connection
    connection.close()


def test_slow_facts_are_read_once_in_a_connection(connection: Connection, tmp_path: Path) -> None:
    reader = HostReader(connection, LibvirtOptions(images_path=str(tmp_path), full_connection=False))
    facts = reader.read()
    assert facts.online and facts.memory_mb > 0
    assert facts.guests is None, "the second connection is switched off"
    assert facts.libvirt == (0, 0, 0), "the test driver has the client's version, and binds no driver"
    assert reader.read().capabilities is facts.capabilities


def test_a_cell_that_is_plugged_in_is_read_at_once(connection: Connection, tmp_path: Path) -> None:
    """And once more while its memory comes, block by block; the memory of cells with CPUs is no matter."""
    nodes = tmp_path / "devices" / "system" / "node"
    options = LibvirtOptions(images_path=str(tmp_path), sysfs_path=str(tmp_path), full_connection=False)
    reader = HostReader(connection, options)
    facts = reader.read()
    for node, cpus, kib, is_read in (("1", "", 0, True), ("1", "", 2**20, True), ("0", "0-3", 2**20, False)):
        folder = nodes / f"node{node}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
        (folder / "meminfo").write_text(f"Node {node} MemTotal: {kib:>12} kB\nNode {node} MemFree: 1 kB\n")
        before, facts = facts, reader.read()
        assert (facts.capabilities is not before.capabilities) == is_read
        (folder / "meminfo").write_text(f"Node {node} MemTotal: {kib:>12} kB\nNode {node} MemFree: 2 kB\n")
        assert reader.read().capabilities is facts.capabilities


def test_a_libvirt_that_lost_its_cells_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a cell was unplugged, one that counted the cells when it started describes none of them."""

    def fail(_: object) -> None:
        raise libvirt.libvirtError("An error occurred, but the cause is unknown")

    bare = "<capabilities><host><cpu><arch>x86_64</arch></cpu></host></capabilities>"
    monkeypatch.setattr("drivers.libvirt.io.host_reader.CAPABILITIES_INTERVAL_S", -1.0)
    options = LibvirtOptions(images_path=str(tmp_path), full_connection=False)
    for is_known in (True, False):
        with closing(connection_to("test:///default")) as connection, monkeypatch.context() as patch:
            reader = HostReader(connection, options)
            if is_known:
                reader.read()
            else:
                patch.setattr(libvirt.virConnect, "getInfo", fail)
            patch.setattr(libvirt.virConnect, "getCapabilities", lambda _: bare)
            with pytest.raises(DriverUnavailable, match=r"no NUMA cell.* restart libvirtd"):
                reader.read()


def test_cached_images_take_what_their_blocks_take_on_the_file_system_of_the_guests(
    connection: Connection, tmp_path: Path
) -> None:
    """As nova counts: files alone, their blocks and not their length, whole GiB, one file system."""
    cache = tmp_path / "_base"
    options = LibvirtOptions(images_path=str(tmp_path), image_cache_path=str(cache), full_connection=False)
    reader = HostReader(connection, options)
    assert reader.read().image_cache_mb == 0, "the directory comes with the first image"
    (cache / "swap").mkdir(parents=True)
    (cache / "swap" / "x").write_bytes(b"x" * 4096)
    assert reader.read().image_cache_mb == 0
    with (cache / "image").open("wb") as file:
        file.write(b"x" * 4096)
        file.truncate(3 * 2**30)  # sparse: its blocks are a few KiB
    assert reader.read().image_cache_mb == 1024
    elsewhere = LibvirtOptions(images_path="/proc", image_cache_path=str(cache), full_connection=False)
    assert HostReader(connection, elsewhere).read().image_cache_mb == 0


def test_a_directory_that_is_missing_is_named_with_what_to_do(connection: Connection) -> None:
    reader = HostReader(connection, LibvirtOptions(images_path="/no/such/directory", full_connection=False))
    with pytest.raises(DriverUnavailable, match=r"/no/such/directory: No such file .* create the directory"):
        reader.read()
