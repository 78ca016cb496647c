"""Namespaces as the kernel shows them: those in mode devdax that have a name."""

from __future__ import annotations

from pathlib import Path

import pytest

from drivers.libvirt.describe.pmem import PmemNamespace
from drivers.libvirt.io.pmem_sysfs import read_namespaces


def write(sysfs: Path, **files: str) -> None:
    for name, text in files.items():
        path = sysfs / "bus/nd/devices" / name.replace("__", "/").replace("_o_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


@pytest.mark.parametrize("below", ["dax1_o_1__dax1_o_0__dev", "dax1_o_1__dax__dax1_o_0__dev"])
def test_a_namespace_has_the_size_and_the_device_of_its_dax_region(tmp_path: Path, below: str) -> None:
    """The region has a number of its own, dax1.1; its character device is dax1.0, in both layouts."""
    write(tmp_path, namespace1_o_0__alt_name="ns0", namespace1_o_0__holder="dax1.1")
    write(tmp_path, dax1_o_1__size="6339690496", dax1_o_1__align="2097152", **{below: "252:3"})
    assert read_namespaces(tmp_path) == (PmemNamespace("ns0", "/dev/dax1.0", 6339690496, 2097152),)


def test_what_guests_cannot_have_is_left_out(tmp_path: Path) -> None:
    assert read_namespaces(tmp_path) == ()
    write(tmp_path, namespace0_o_0__alt_name="", namespace0_o_0__holder="dax0.0")
    write(tmp_path, namespace0_o_1__alt_name="disk", namespace0_o_1__holder="btt0.0")
    write(tmp_path, namespace0_o_2__alt_name="raw", namespace0_o_2__holder="")
    write(tmp_path, namespace0_o_3__alt_name="evil", namespace0_o_3__holder="dax/../../x")
    write(tmp_path, namespace0_o_4__alt_name="starting", namespace0_o_4__holder="dax0.4")
    write(tmp_path, dax0_o_4__size="", dax0_o_4__align="2097152")
    assert read_namespaces(tmp_path) == ()
