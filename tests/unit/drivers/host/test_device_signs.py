"""What sysfs shows of the health of devices, also where it shows little: drivers.host.sysfs_files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kits.pci_tree import PciTree, recorded_tree

from agent.driver import DescribedInventory, DescribedProvider, DeviceSigns
from drivers.host.device_signs import CHECKS, device_addresses, read_signs
from drivers.host.sysfs_files import entries, read_bytes, read_number

PF, VF, GPU = "0000:41:00.0", "0000:41:10.0", "0000:83:00.0"
AER = "Undefined 0\nDLP 0\nSDES 0\nTLP {0}\nTOTAL_ERR_{1} {0}"


@pytest.fixture
def tree(tmp_path: Path) -> PciTree:
    return PciTree(tmp_path)


def signs(tree: PciTree, address: str) -> DeviceSigns:
    (found,) = read_signs(tree.sys, [address])
    return found


def test_a_device_that_the_kernel_does_not_have_does_not_answer(tree: PciTree) -> None:
    assert signs(tree, GPU) == DeviceSigns(GPU, answers=False)


def test_what_the_kernel_does_not_tell_is_not_known(tree: PciTree) -> None:
    tree.add(GPU)
    assert signs(tree, GPU) == DeviceSigns(GPU, driver="")
    assert read_signs(tree.sys, [GPU], ()) == (DeviceSigns(GPU),)
    assert read_number(tree.devices / GPU / "class") is None and entries(tree.devices / "none") == []


@pytest.mark.parametrize(
    ("header", "answers"),
    [
        (b"\xff" * 64, False),
        (b"\xff" * 256, False),
        (b"\xff" * 4 + bytes(60), True),  # a virtual function: only its ids read as ones
        (b"\x86\x80\xc9\x10" + b"\xff" * 60, True),
        (b"", None),
    ],
)
def test_only_a_configuration_space_of_ones_alone_is_no_answer(
    tree: PciTree, header: bytes, answers: bool | None
) -> None:
    (tree.add(GPU) / "config").write_bytes(header)
    assert signs(tree, GPU).answers is answers


@pytest.mark.parametrize(
    ("status", "answers"),
    [("suspended", None), ("suspending", None), ("active", False), ("unsupported", False)],
)
def test_a_device_that_sleeps_is_not_woken(tree: PciTree, status: str, answers: bool | None) -> None:
    device = tree.add(GPU, power_state="D3cold")
    (device / "config").write_bytes(b"\xff" * 64)
    (device / "power").mkdir()
    (device / "power" / "runtime_status").write_text(f"{status}\n")
    assert signs(tree, GPU).answers is answers
    assert signs(tree, GPU).has_power is True


@pytest.mark.parametrize(("state", "status"), [("error", "active"), ("D0", "error")])
def test_a_power_state_that_could_not_be_changed(tree: PciTree, state: str, status: str) -> None:
    device = tree.add(GPU, power_state=state)
    (device / "power").mkdir()
    (device / "power" / "runtime_status").write_text(f"{status}\n")
    assert signs(tree, GPU).has_power is False


def test_the_bound_driver_and_the_only_one_that_may_be(tree: PciTree) -> None:
    tree.add(GPU, "nvidia", driver_override="(null)")
    tree.add(VF, "vfio-pci", driver_override="vfio-pci")
    assert signs(tree, GPU) == DeviceSigns(GPU, driver="nvidia")
    assert signs(tree, VF) == DeviceSigns(VF, driver="vfio-pci", vfio=True, only_driver="vfio-pci")


def test_a_card_has_a_link_if_one_of_its_interfaces_has(tree: PciTree) -> None:
    card = tree.add(PF, "igb")
    first, second = tree.interface("enp65s0f0", card), tree.interface("enp65s0f1", card)
    (first / "carrier").write_text("0\n")
    assert signs(tree, PF).has_link is None, "only the guest that has the card needs it up"
    tree.add(VF, pf=PF)
    assert signs(tree, PF).has_link is False, "the kernel tells no carrier of the second, which is down"
    (second / "carrier").write_text("1\n")
    assert signs(tree, PF).has_link is True
    assert signs(tree, VF).has_link is None


def test_errors_are_counted_by_severity(tree: PciTree) -> None:
    device = tree.add(
        GPU,
        aer_dev_fatal=AER.format(3, "FATAL"),
        aer_dev_nonfatal=AER.format(5, "NONFATAL"),
        aer_dev_correctable=AER.format(99, "COR"),
    )
    (device / "ras").mkdir()
    (device / "ras" / "umc_err_count").write_text("ue: 2\nce: 17\n")
    found = signs(tree, GPU)
    assert (found.fatal_errors, found.nonfatal_errors, found.memory_errors) == (3, 5, 2)


@pytest.mark.parametrize(
    ("check", "field"),
    [
        ("answer", "answers"),
        ("driver", "driver"),
        ("link", "has_link"),
        ("errors", "fatal_errors"),
        ("memory", "memory_errors"),
        ("power", "has_power"),
    ],
)
def test_each_check_can_be_left_out(tree: PciTree, check: str, field: str) -> None:
    device = tree.add(PF, "igb", aer_dev_fatal=AER.format(1, "FATAL"), power_state="D0")
    (device / "config").write_bytes(bytes(64))
    (device / "ras").mkdir()
    (device / "ras" / "umc_err_count").write_text("ue: 0\nce: 0\n")
    (tree.interface("enp65s0f0", device) / "carrier").write_text("1\n")
    tree.add(VF, pf=PF)
    (without,) = read_signs(tree.sys, [PF], set(CHECKS) - {check})
    assert getattr(signs(tree, PF), field) is not None and getattr(without, field) is None


def test_every_card_and_every_function_among_the_units_is_looked_at() -> None:
    one = {"SRIOV_NET_VF": DescribedInventory(1)}
    providers = (
        DescribedProvider("node1", device="host", units={"PCPU": ("0", "1")}),
        DescribedProvider("nic", "node1", one, device=f"pci:{PF}", units={"SRIOV_NET_VF": (VF,)}),
        DescribedProvider("gpu", "node1", one, device=f"pci:{GPU}", units={"VGPU": ("4b20d080-1b54",)}),
    )
    assert device_addresses(providers) == (PF, VF, GPU)


def test_a_recorded_host_has_no_sign_of_ill_health(tmp_path: Path) -> None:
    tree = recorded_tree(tmp_path)
    for found in read_signs(tree.sys, sorted(each.name for each in tree.devices.iterdir())):
        assert False not in (found.answers, found.has_link, found.has_power)


def test_no_more_is_read_than_asked_for(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"x" * 100)
    os.close(writing)
    assert read_bytes(Path(f"/dev/fd/{reading}"), 64) == b"x" * 64
    assert os.read(reading, 100) == b"x" * 36
    os.close(reading)
    assert read_bytes(tmp_path, 64) is None


def test_memory_that_the_kernel_could_not_take_out_of_use_counts(tree: PciTree) -> None:
    tree.cells(node0="0-3", node1="4-7")
    failures = tree.sys / "devices" / "system" / "node" / "node1" / "memory_failure"
    failures.mkdir()
    for name, count in (("total", 5), ("recovered", 3), ("failed", 1), ("delayed", 1)):
        (failures / name).write_text(f"{count}\n")
    pages = [DescribedProvider(f"node1_{cell}", device=f"pages:{cell}:2048") for cell in (0, 1)]
    addresses = device_addresses([*pages, DescribedProvider("cell", device="numa:7")])
    assert addresses == ("numa:0", "numa:1")
    assert read_signs(tree.sys, addresses) == (DeviceSigns("numa:0"), DeviceSigns("numa:1", memory_errors=2))
    assert read_signs(tree.sys, ["numa:1"], ["answer"]) == (DeviceSigns("numa:1"),)
