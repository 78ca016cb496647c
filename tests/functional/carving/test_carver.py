"""The carver on a directory that looks like sysfs: what a boot took away is there again, after any crash."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.carved_sysfs import CarvedSysfs, SysfsCard

from agent.carving.carver import Carver, CarvingJournal
from agent.carving.carving import NeededUnit, Plan, Sight, Step, StepKind
from agent.carving.kernel import Kernel
from agent.driver import CarvedUnit, DeclaredCarving
from agent.errors import StateError, UsageError

NIC = SysfsCard("0000:41:00.0", "igb", 7, 0x80, 2, "igbvf")
GPU = SysfsCard("0000:84:00.0", "nvidia", 4, 1, 1, "nvidia", vf_mdev_type="nvidia-471")
NEW_GPU = SysfsCard("0000:85:00.0", "nvidia", 4, 1, 1, "nvidia", vendor_vfio=True)
OLD_GPU = SysfsCard("0000:42:00.0", "nvidia", mdev_type="nvidia-11")
WHOLE = SysfsCard("0000:83:00.0", "nouveau")
UUIDS = [f"00000000-0000-0000-0000-00000000000{number}" for number in range(1, 5)]
ALLOWED = {"nvidia-471": frozenset({GPU.address, NEW_GPU.address}), "nvidia-11": frozenset[str]()}


class Cut(Exception):
    """The process is killed."""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[CarvedSysfs]:
    with CarvedSysfs(tmp_path, NIC, GPU, NEW_GPU, OLD_GPU, WHOLE) as sysfs:
        yield sysfs


def carver(host: CarvedSysfs, declared: DeclaredCarving, *needed: NeededUnit, wait_s: float = 3.0) -> Carver:
    journal = CarvingJournal(host.sys.parent / "run" / "journal.json")
    return Carver(Kernel(host.sys, wait_s, host.proc), journal, declared, needed)


def mdev(uuid: str, parent: str, type_id: str, holder: str = "instance gpu1") -> NeededUnit:
    return NeededUnit(CarvedUnit(uuid, parent, parent, type_id), holder)


FULL = DeclaredCarving(
    {NIC.address: 3, GPU.address: 4, NEW_GPU.address: 2},
    {WHOLE.address: "vfio-pci"},
    {NIC.address: "vfio-pci"},
    {NEW_GPU.vf_address(1): "nvidia-468"},
    ALLOWED,
)
NEEDED = (
    mdev(UUIDS[0], GPU.vf_address(2), "nvidia-471"),
    mdev(UUIDS[1], OLD_GPU.address, "nvidia-11"),
    mdev(UUIDS[2], OLD_GPU.address, "nvidia-11", "instance gpu2"),
    NeededUnit(
        CarvedUnit(NEW_GPU.vf_address(0), NEW_GPU.address, NEW_GPU.vf_address(0), "nvidia-471", 12), "vm3"
    ),
    NeededUnit(CarvedUnit(NIC.vf_address(1), NIC.address, NIC.vf_address(1)), "instance web1"),
)


def test_what_a_boot_took_away_is_made_again(host: CarvedSysfs) -> None:
    carved = carver(host, FULL, *NEEDED).carve()
    assert (carved.failures, carved.refusals) == ((), ())
    assert host.vfs(NIC.address) == ["0000:41:10.0", "0000:41:10.2", "0000:41:10.4"]  # as in the lab
    assert {host.driver(vf) for vf in host.vfs(NIC.address)} == {"vfio-pci"}
    assert host.driver(WHOLE.address) == "vfio-pci"
    assert host.mdevs() == {
        UUIDS[0]: ("0000:84:00.3", "nvidia-471"),
        UUIDS[1]: (OLD_GPU.address, "nvidia-11"),
        UUIDS[2]: (OLD_GPU.address, "nvidia-11"),
    }
    types = [(host.at(vf) / "nvidia" / "current_vgpu_type").read_text() for vf in host.vfs(NEW_GPU.address)]
    assert types == ["471\n", "468\n"]
    assert (host.at(NEW_GPU.vf_address(0)) / "nvidia" / "placement_id").read_text() == "12\n"
    assert carver(host, FULL, *NEEDED).look() == Plan()


def test_functions_whose_driver_is_not_named_any_more_get_the_kernel_s(host: CarvedSysfs) -> None:
    """As after a boot, so that a boot changes nothing."""
    named = DeclaredCarving({NIC.address: 2}, {}, {NIC.address: "vfio-pci"}, {}, {})
    plain = DeclaredCarving({NIC.address: 2}, {}, {}, {}, {})
    for declared in (named, DeclaredCarving({NIC.address: 0}, {}, {}, {}, {})):
        assert carver(host, declared).carve().failures == ()
    assert carver(host, plain).carve().failures == ()
    assert {host.driver(vf) for vf in host.vfs(NIC.address)} == {NIC.vf_driver}
    before = host.shape()
    host.reboot()
    carver(host, plain).carve()
    assert host.shape() == before


def test_a_run_that_is_killed_at_any_step_is_finished_by_the_next(host: CarvedSysfs) -> None:
    carver(host, FULL, *NEEDED).carve()
    whole = host.shape()
    steps = len(_steps_after_reboot(host))
    assert steps > 15
    draw = random.Random(17)
    for number in draw.sample(range(steps), 6):
        host.reboot()
        taken: list[Step] = []

        def cut_at(step: Step, number: int = number, taken: list[Step] = taken) -> None:
            taken.append(step)
            if len(taken) > number:
                raise Cut

        with pytest.raises(Cut):
            carver(host, FULL, *NEEDED).carve(cut_at)
        assert carver(host, FULL, *NEEDED).carve().failures == ()
        assert host.shape() == whole, number


def _steps_after_reboot(host: CarvedSysfs) -> tuple[Step, ...]:
    host.reboot()
    return carver(host, FULL, *NEEDED).carve().steps


def test_what_a_killed_run_made_and_nobody_wants_is_undone(host: CarvedSysfs) -> None:
    def cut(step: Step) -> None:
        if step.kind is StepKind.CREATE_MDEV and step.unit == UUIDS[0]:
            raise Cut

    with pytest.raises(Cut):
        carver(host, FULL, *NEEDED).carve(cut)
    host.open_over_vfio(NIC.vf_address(0))
    nothing = DeclaredCarving(mdev_types=ALLOWED)
    texts = [step.text for step in carver(host, nothing).look().steps]
    assert f"remove mediated device {UUIDS[1]} of type nvidia-11 on {OLD_GPU.address}" in texts
    carver(host, nothing).carve()
    assert host.mdevs() == {}
    assert (host.at(WHOLE.address) / "driver_override").read_text().strip() == ""
    assert host.vfs(NIC.address), "a guest has one of them meanwhile"
    assert carver(host, nothing).look() == Plan()


def test_a_number_that_would_change_is_refused_with_who_holds_it_and_the_rest_is_done(
    host: CarvedSysfs,
) -> None:
    carver(host, DeclaredCarving({NIC.address: 2})).carve()
    held = NeededUnit(CarvedUnit(NIC.vf_address(1), NIC.address, NIC.vf_address(1)), "instance web1 (a0)")
    other = mdev(UUIDS[1], OLD_GPU.address, "nvidia-11")
    carved = carver(host, DeclaredCarving({NIC.address: 3}, mdev_types=ALLOWED), held, other).carve()
    assert carved.refusals == (
        "0000:41:00.0 has 2 virtual functions, and [devices] sriov_vfs wants 3; the number cannot change "
        "while one is in use: instance web1 (a0) has 0000:41:10.2.",
    )
    assert len(host.vfs(NIC.address)) == 2 and list(host.mdevs()) == [UUIDS[1]]


def test_the_sizes_of_types_are_those_that_the_vendors_driver_tells(host: CarvedSysfs) -> None:
    carver(host, DeclaredCarving({NEW_GPU.address: 1, GPU.address: 1})).carve()
    (host.at(NEW_GPU.vf_address(0)) / "nvidia" / "creatable_vgpu_types").write_text(
        "ID    : vGPU Name\n468   : NVIDIA A100-4C\n471   : NVIDIA A100-10C\n"
        "699   : NVIDIA RTX 6000 Ada-48Q\n475   : NVIDIA A100-1-5C\n"
    )
    (host.at(GPU.vf_address(0)) / "mdev_supported_types" / "nvidia-471" / "description").write_text(
        "num_heads=1, frl_config=60, framebuffer=10240M, max_resolution=4096x2160, max_instance=4\n"
    )
    kernel = Kernel(host.sys, proc=host.proc)
    sizes = {
        name: each.type_sizes for name, each in kernel.seen([NEW_GPU.address, GPU.address]).functions.items()
    }
    assert sizes[NEW_GPU.vf_address(0)] == {"468": 4096, "471": 10240, "699": 49152}
    assert sizes[GPU.vf_address(0)] == {"nvidia-471": 10240}


def test_a_function_on_vfio_without_a_guest_is_not_in_use(host: CarvedSysfs) -> None:
    declared = DeclaredCarving({NIC.address: 2}, vf_drivers={NIC.address: "vfio-pci"})
    assert not carver(host, declared).carve().failures
    more = DeclaredCarving({NIC.address: 3}, vf_drivers={NIC.address: "vfio-pci"})
    assert carver(host, more).look().refusals == ()
    assert not carver(host, more).carve().failures
    assert [host.driver(vf) for vf in host.vfs(NIC.address)] == ["vfio-pci"] * 3


@pytest.mark.parametrize(
    ("process", "who"),
    [(4711, "process 4711 (qemu-system-x86) has it open"), (None, "a guest or another program has it open")],
)
def test_a_function_that_a_guest_has_open_over_vfio_keeps_the_number(
    host: CarvedSysfs, process: int | None, who: str
) -> None:
    declared = DeclaredCarving({NIC.address: 2}, vf_drivers={NIC.address: "vfio-pci"})
    carver(host, declared).carve()
    host.open_over_vfio(NIC.vf_address(1), process)
    found = carver(host, DeclaredCarving({NIC.address: 3})).look()
    assert found.steps == () and f"0000:41:10.2: {who}" in found.refusals[0]


def test_a_function_of_which_the_kernel_tells_nothing_counts_as_in_use(host: CarvedSysfs) -> None:
    carver(host, DeclaredCarving({NIC.address: 1}, vf_drivers={NIC.address: "vfio-pci"})).carve()
    (host.at(NIC.vf_address(0)) / "enable").unlink()
    (refusal,) = carver(host, DeclaredCarving({NIC.address: 2})).look().refusals
    assert "its driver vfio-pci may give it to a guest" in refusal


def test_an_interface_that_is_up_keeps_the_number_as_well(host: CarvedSysfs) -> None:
    carver(host, DeclaredCarving({NIC.address: 2})).carve()
    interface = host.at(NIC.vf_address(0)) / "net" / "enp65s0v0"
    interface.mkdir(parents=True)
    (interface / "flags").write_text("0x1003\n")
    (refusal,) = carver(host, DeclaredCarving({NIC.address: 0})).look().refusals
    assert refusal.endswith("0000:41:10.0: its interface enp65s0v0 is up.")


def test_a_disk_of_the_host_keeps_the_number_as_well(host: CarvedSysfs) -> None:
    carver(host, DeclaredCarving({NIC.address: 2})).carve()
    (host.at(NIC.vf_address(1)) / "nvme" / "nvme3").mkdir(parents=True)
    (refusal,) = carver(host, DeclaredCarving({NIC.address: 0})).look().refusals
    assert refusal.endswith("0000:41:10.2: it is a disk of the host.")


def test_a_card_that_can_have_no_functions_now_has_no_address_for_one(host: CarvedSysfs) -> None:
    """Its driver has set the most to 0; where functions would begin, the kernel tells all the same."""
    (host.at(NIC.address) / "sriov_totalvfs").write_text("0\n")
    seen = Kernel(host.sys, proc=host.proc).seen([NIC.address, GPU.address]).functions
    assert seen[NIC.address].vf_addresses == ()
    assert seen[GPU.address].vf_addresses == tuple(map(GPU.vf_address, range(4)))


def test_a_card_that_does_not_come_leaves_the_others_alone(host: CarvedSysfs) -> None:
    declared = DeclaredCarving({"0000:99:00.0": 2, NIC.address: 1}, {"0000:98:00.0": "vfio-pci"})
    carved = carver(host, declared, wait_s=0.2).carve()
    assert len(host.vfs(NIC.address)) == 1
    assert [failure.split()[0] for failure in carved.failures] == ["0000:98:00.0:", "0000:99:00.0:"]
    assert "cannot wait for the device 0000:98:00.0:" in carved.failures[0]


def test_a_driver_that_is_not_loaded_is_told(host: CarvedSysfs) -> None:
    (failure,) = carver(host, DeclaredCarving(drivers={WHOLE.address: "mlx5_vfio_pci"})).carve().failures
    assert "the driver mlx5_vfio_pci is not loaded" in failure


@pytest.mark.parametrize(
    "step",
    [
        Step(StepKind.VFS, "", "../../../etc", "1"),
        Step(StepKind.OVERRIDE, "", WHOLE.address, "../x"),
        Step(StepKind.CREATE_MDEV, "", OLD_GPU.address, "../nvidia-11", UUIDS[0]),
        Step(StepKind.CREATE_MDEV, "", OLD_GPU.address, "nvidia-11", "../x"),
        Step(StepKind.VGPU_TYPE, "", NEW_GPU.address, "1\n2"),
    ],
)
def test_no_path_is_built_from_anything_but_names_of_sysfs(host: CarvedSysfs, step: Step) -> None:
    before = host.shape()
    with pytest.raises(UsageError):
        Kernel(host.sys, proc=host.proc).do(step)
    assert host.shape() == before


@pytest.mark.parametrize(
    ("function", "sight", "much", "is_seen"),
    [
        (WHOLE.address, Sight.FUNCTION, "", True),
        ("0000:99:00.0", Sight.FUNCTION, "", False),
        (NIC.address, Sight.SRIOV, "", True),
        (WHOLE.address, Sight.SRIOV, "", False),
        (NIC.address, Sight.VFS, "2", True),
        (NIC.address, Sight.VFS, "3", False),
        (NEW_GPU.vf_address(0), Sight.VGPU_TYPE, "", True),
        (NIC.vf_address(0), Sight.VGPU_TYPE, "", False),
        (OLD_GPU.address, Sight.MDEV_TYPE, "nvidia-11", True),
        (OLD_GPU.address, Sight.MDEV_TYPE, "nvidia-12", False),
    ],
)
def test_a_wait_ends_as_soon_as_the_kernel_shows_what_is_waited_for(
    host: CarvedSysfs, function: str, sight: Sight, much: str, *, is_seen: bool
) -> None:
    carver(host, DeclaredCarving({NIC.address: 2, NEW_GPU.address: 1})).carve()
    step = Step(StepKind.AWAIT, function, function, sight, much)
    kernel = Kernel(host.sys, 0.05, host.proc)
    if is_seen:
        kernel.do(step)
    else:
        with pytest.raises(TimeoutError, match=r"0\.05 s were not enough to wait for"):
            kernel.do(step)


@pytest.mark.parametrize(
    ("step", "failure"),
    [
        (Step(StepKind.UNBIND, "", WHOLE.address, "nouveau"), "nouveau does not let go of it"),
        (Step(StepKind.UNBIND, "", WHOLE.address, "igb"), "nouveau is bound meanwhile"),
        (Step(StepKind.UNBIND, "", NIC.vf_address(0), "igb"), ""),
        (Step(StepKind.BIND, "", WHOLE.address, "vfio-pci"), "vfio-pci does not take it"),
        (Step(StepKind.BIND, "", WHOLE.address, "igb"), "the driver igb is not loaded"),
        (Step(StepKind.BIND, "", WHOLE.address, ""), ""),
        (Step(StepKind.CREATE_MDEV, "", OLD_GPU.address, "nvidia-11", UUIDS[0]), "does not show the device"),
        (Step(StepKind.VGPU_TYPE, "", WHOLE.address, "471"), "does not take the vGPU type 471 here now"),
        (Step(StepKind.VGPU_TYPE, "", OLD_GPU.address, "471", "20"), "the vGPU type 471 at 20 now"),
        (Step(StepKind.VGPU_TYPE, "", OLD_GPU.address, "471"), ""),
        (Step(StepKind.REMOVE_MDEV, "", OLD_GPU.address, "nvidia-11", UUIDS[0]), ""),
    ],
)
def test_what_the_kernel_does_not_do_is_told(tmp_path: Path, step: Step, failure: str) -> None:
    """A kernel that takes each write, and does nothing."""
    still = CarvedSysfs(tmp_path, WHOLE, OLD_GPU)
    for card in (WHOLE, OLD_GPU):
        (still.at(card.address) / "nvidia").mkdir()
        (still.at(card.address) / "nvidia" / "placement_id").symlink_to("/dev/null")
    (still.at(WHOLE.address) / "nvidia" / "current_vgpu_type").symlink_to("/dev/null")
    (still.at(OLD_GPU.address) / "nvidia" / "current_vgpu_type").write_text("0\n")
    kernel = Kernel(still.sys, 0.05, still.proc)
    if failure:
        with pytest.raises(OSError, match=failure):
            kernel.do(step)
    else:
        kernel.do(step)


@pytest.mark.parametrize(
    ("file", "text", "use"),
    [
        ("boot_vga", "1\n", "it shows the host's console"),
        ("boot_vga", "0\n", ""),
        ("net/enp3s0/flags", "0x1003\n", "its interface enp3s0 is up"),
        ("net/enp3s0/flags", "0x1002\n", ""),
        ("nvme/nvme0/state", "live\n", "it is a disk of the host"),
    ],
)
def test_what_the_host_itself_uses_is_seen(host: CarvedSysfs, file: str, text: str, use: str) -> None:
    path = host.at(WHOLE.address) / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    seen = Kernel(host.sys, proc=host.proc).seen([WHOLE.address]).functions
    assert seen[WHOLE.address].uses == ((use,) if use else ())


def test_a_journal_on_a_path_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    journal, folder = CarvingJournal(tmp_path / "file" / "journal.json"), CarvingJournal(tmp_path)
    with pytest.raises(StateError, match=r"cannot be opened: .*; run it as root"), journal.alone():
        pass
    with pytest.raises(StateError, match=r"cannot be written: .*; run it as root"):
        journal.write(())
    with pytest.raises(StateError, match="cannot be read: Is a directory; run this as root"):
        folder.unfinished()
    assert CarvingJournal(tmp_path / "none").unfinished() == ()


def test_a_journal_that_cannot_be_removed_is_told_since_the_next_run_goes_on_from_it(tmp_path: Path) -> None:
    journal = CarvingJournal(tmp_path / "journal.json")
    (tmp_path / "journal.json").mkdir()
    with pytest.raises(StateError, match="cannot be removed"):
        journal.end()


def test_a_journal_that_is_none_stops_the_carver(host: CarvedSysfs) -> None:
    found = carver(host, FULL)
    (host.sys.parent / "run").mkdir()
    (host.sys.parent / "run" / "journal.json").write_text("[1]")
    with pytest.raises(StateError, match="remove it"):
        found.carve()
    assert host.vfs(NIC.address) == []
