"""The cells of CPUs from a directory that looks like sysfs."""

from pathlib import Path

from drivers.libvirt.io.cpu_sysfs import read_cells


def test_a_cpu_is_on_the_cell_that_its_link_names(tmp_path: Path) -> None:
    """As on a host whose CPU 1 is offline; CPU 2 has no cell, and CPU 9 is not there."""
    cpus = tmp_path / "devices" / "system" / "cpu"
    for cpu, links in ((0, ["node0", "topology"]), (1, ["node1", "node_x"]), (2, ["topology"])):
        for link in links:
            (cpus / f"cpu{cpu}" / link).mkdir(parents=True)
    assert read_cells(tmp_path, (0, 1, 2, 9)) == {0: 0, 1: 1, 2: None, 9: None}
