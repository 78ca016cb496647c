"""Who has a function open over VFIO, and what is read and written of its VRAM."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.examples import examples
from kits.pci_tree import PciTree, recorded_tree
from kits.vram_card import CARD, FUNCTIONS, XeGpu
from kits.xe_debugfs import LAYOUTS, XeDebugfs

from agent.carving.carver import Carver, CarvingJournal
from agent.carving.carving import MigInstance, Plan, Sight, Step, StepKind
from agent.carving.kernel import CONFIRM_S, Kernel, NvidiaSmi, joined_groups, vfio_uses, write_text
from agent.codec import decode, encode
from agent.device_names import mig_slices
from agent.driver import DeclaredCarving, RootSight
from agent.durable.files import vram_quota
from agent.errors import UsageError
from drivers.host.sysfs import Sysfs


@pytest.fixture
def device(tmp_path: Path) -> Path:
    folder = tmp_path / "0000:41:10.0"
    folder.mkdir()
    (folder / "enable").write_text("0\n")
    (folder / "iommu_group").symlink_to(tmp_path / "iommu_groups" / "17")
    (folder / "vfio-dev" / "vfio3").mkdir(parents=True)
    return folder


def opens(proc: Path, process: int, name: str, file: str) -> None:
    folder = proc / str(process)
    (folder / "fd").mkdir(parents=True)
    (folder / "fd" / "7").symlink_to(file)
    (folder / "comm").write_text(f"{name}\n")


def test_a_function_that_no_process_has_open_is_free(device: Path, tmp_path: Path) -> None:
    opens(tmp_path / "proc", 1, "qemu", "/dev/vfio/18")
    assert list(vfio_uses(device, "vfio-pci", tmp_path / "proc")) == []


@pytest.mark.parametrize("file", ["/dev/vfio/17", "/dev/vfio/devices/vfio3"])
def test_who_has_its_group_or_the_function_itself_open_is_named(
    device: Path, tmp_path: Path, file: str
) -> None:
    opens(tmp_path / "proc", 42, "qemu-system-x86", file)
    assert list(vfio_uses(device, "vfio-pci", tmp_path / "proc")) == [
        "process 42 (qemu-system-x86) has it open"
    ]


def test_an_enabled_function_is_in_use_though_its_process_cannot_be_seen(
    device: Path, tmp_path: Path
) -> None:
    (device / "enable").write_text("1\n")
    assert list(vfio_uses(device, "vfio-pci", tmp_path / "proc")) == [
        "a guest or another program has it open over vfio-pci"
    ]


def test_what_the_kernel_does_not_tell_is_not_taken_for_free(device: Path, tmp_path: Path) -> None:
    (device / "enable").unlink()
    assert list(vfio_uses(device, "vfio-pci", tmp_path)) == ["its driver vfio-pci may give it to a guest"]


@pytest.fixture
def xe(tmp_path: Path) -> PciTree:
    return recorded_tree(tmp_path, "xe")


def vram_of(tree: PciTree, function: str) -> tuple[str | None, int | None, bool]:
    """What the carver sees: the MiB, their place, and whether it has a quota."""
    seen = Kernel(tree.sys, 0.1, tree.proc).seen([function]).functions[function]
    return seen.vgpu_type, seen.vgpu_place, seen.vram


def test_the_quota_of_a_function_is_found_by_its_number_on_the_card(xe: PciTree) -> None:
    gpu, sysfs = XeGpu(xe.devices), Sysfs(xe.sys, xe.proc)
    gpu.quota(FUNCTIONS[2]).write_text("8589934592\n")
    assert [vram_of(xe, function) for function in FUNCTIONS[1:3]] == [("0", 0, True), ("8192", 0, True)]
    assert [sysfs.vram(each) for each in (*FUNCTIONS[1:3], CARD)] == [(0, True), (8192, True), None]
    assert sysfs.vgpu_type(FUNCTIONS[2]) is None
    assert vram_quota(xe.devices / CARD) is None


def test_a_quota_that_cannot_be_changed_is_read_and_left_alone(xe: PciTree) -> None:
    xe_quota = XeGpu(xe.devices).quota(FUNCTIONS[0])
    xe_quota.write_text("5368709120\n")
    xe_quota.chmod(0o444)
    assert Sysfs(xe.sys, xe.proc).vram(FUNCTIONS[0]) == (5120, False)
    assert vram_of(xe, FUNCTIONS[0]) == (None, None, True)


@pytest.mark.parametrize("text", ["", "85899", "garbage\n", "-1\n"])
def test_a_quota_that_the_kernel_does_not_tell_is_none_yet(xe: PciTree, text: str) -> None:
    """One that is half written is less than a MiB, or no number; the card stays one with quotas."""
    XeGpu(xe.devices).quota(FUNCTIONS[0]).write_text(text)
    assert Sysfs(xe.sys, xe.proc).vram(FUNCTIONS[0]) == (0 if text == "85899" else None, True)
    assert vram_of(xe, FUNCTIONS[0]) == ("0", 0, True)


def test_an_amount_that_the_driver_rounds_or_does_not_have_is_told(
    xe: PciTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = Kernel(xe.sys, 0.1, xe.proc)
    kernel.do(Step(StepKind.VRAM, CARD, FUNCTIONS[0], "8192"))
    assert vram_of(xe, FUNCTIONS[0])[0] == "8192"
    monkeypatch.setattr("agent.carving.kernel.write_text", lambda path, _: path.write_text("8590983168\n"))
    with pytest.raises(OSError, match="the driver rounds it, or has not so much left"):
        kernel.do(Step(StepKind.VRAM, CARD, FUNCTIONS[0], "8192"))
    with pytest.raises(OSError, match="no quota of VRAM"):
        kernel.do(Step(StepKind.VRAM, CARD, "0000:41:00.0", "8192"))


def test_execution_quanta_are_written_to_each_function_and_after_a_boot_again(
    xe: PciTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profiles = [
        xe.devices / CARD / "sriov_admin" / name / "profile" for name in ("vf1", "vf2", "vf3", "vf4", "pf")
    ]
    declared = DeclaredCarving(quotas={"execution_quanta": {CARD: "25/500000"}})
    carver = Carver(Kernel(xe.sys, 1.0, xe.proc), CarvingJournal(tmp_path / "run" / "journal"), declared)
    for _ in range(2):
        for each in profiles:  # as after a boot
            (each / "exec_quantum_ms").write_text("0\n")
            (each / "preempt_timeout_us").write_text("0\n")
        (profiles[2] / "preempt_timeout_us").write_text("500000\n")
        assert [step.function for step in carver.carve().steps] == list(FUNCTIONS)
        assert [(each / "exec_quantum_ms").read_text() for each in profiles] == ["25\n"] * 4 + ["0\n"]
        assert carver.look().steps == ()
    (profiles[1] / "exec_quantum_ms").write_text("2")  # half written
    assert [step.function for step in carver.carve().steps] == [FUNCTIONS[1]]
    assert {(each / "preempt_timeout_us").read_text() for each in profiles[:4]} == {"500000\n"}
    step = Step(StepKind.QUANTA, CARD, FUNCTIONS[0], "25/500000")
    with pytest.raises(UsageError):
        carver.kernel.do(Step(StepKind.QUANTA, CARD, FUNCTIONS[0], "25"))
    monkeypatch.setattr("agent.carving.kernel.write_text", lambda path, _: path.write_text("24\n"))
    with pytest.raises(OSError, match="the driver aligns them"):
        carver.kernel.do(step)
    (profiles[0] / "exec_quantum_ms").unlink()
    assert carver.kernel.seen([FUNCTIONS[0]]).functions[FUNCTIONS[0]].quotas == {}
    with pytest.raises(OSError, match="no execution quanta"):
        carver.kernel.do(step)


class Quotas:
    """A card of xe in one layout of debugfs, whose functions are to have so many contexts and doorbells."""

    def __init__(
        self, tree: PciTree, journal: Path, layout: str, pair: str = "8192/32", gts: int = 2
    ) -> None:
        self.tree, self.debugfs = tree, XeDebugfs(tree.sys, CARD, layout, gts)
        declared = DeclaredCarving(quotas={"context_quotas": {CARD: pair}})
        self.carver = Carver(Kernel(tree.sys, 0.05, tree.proc), CarvingJournal(journal), declared)

    def all(self) -> dict[str, tuple[str, ...]]:
        """{function: what it has, of each GT}."""
        return {vf: self.debugfs.of(number) for number, vf in enumerate(FUNCTIONS, start=1)}


@pytest.fixture(params=LAYOUTS)
def quotas(
    xe: PciTree, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Quotas:
    made = Quotas(xe, tmp_path / "run" / "journal", request.param)
    made.debugfs.share(4)
    monkeypatch.setattr("agent.carving.kernel.write_text", made.debugfs.write)
    return made


def test_contexts_and_doorbells_are_written_for_each_gt_and_after_a_boot_again(quotas: Quotas) -> None:
    debugfs = quotas.debugfs
    for _ in range(2):
        debugfs.share(4)
        carved = quotas.carver.carve()
        assert [(step.kind, step.function) for step in carved.steps] == [
            (StepKind.CONTEXTS, vf) for vf in FUNCTIONS
        ]
        assert carved.steps[0].text == (
            f"write 8192/32 to contexts_quota and doorbells_quota of {FUNCTIONS[0]}"
        )
        assert (carved.failures, carved.refusals) == ((), ())
        assert quotas.all() == dict.fromkeys(FUNCTIONS, ("8192/32",) * 2)
        assert quotas.carver.look() == Plan()
    assert debugfs.of(5) == ("0/0", "0/0"), "no function that is not there"
    assert [(debugfs.folder(gt, 0) / "contexts_spare").read_text() for gt in (0, 1)] == ["256\n"] * 2
    with pytest.raises(UsageError):
        quotas.carver.kernel.do(Step(StepKind.CONTEXTS, CARD, FUNCTIONS[0], "8192"))


@pytest.mark.parametrize("text", ["", "81", "8192\n8", "garbage"])
def test_a_quota_that_is_half_written_is_written_again(quotas: Quotas, text: str) -> None:
    quotas.carver.carve()
    quotas.debugfs.quota(1, 3, "contexts").write_text(text)
    assert [step.function for step in quotas.carver.carve().steps] == [FUNCTIONS[2]]
    assert quotas.all() == dict.fromkeys(FUNCTIONS, ("8192/32",) * 2)


@pytest.mark.parametrize("failing", range(4))
@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.EPERM, "Operation not permitted"),
        (errno.EBUSY, "Device or resource busy"),
        (errno.EINVAL, "its driver takes no such numbers; name others in [devices] context_quotas"),
        (errno.EDQUOT, "its card has not so many left in one piece; name fewer in [devices] context_quotas"),
        (errno.ENOSPC, "its card has not so many left in one piece; name fewer in [devices] context_quotas"),
    ],
)
def test_a_write_that_is_refused_leaves_what_the_function_had_and_the_others_go_on(
    quotas: Quotas, monkeypatch: pytest.MonkeyPatch, failing: int, number: int, reason: str
) -> None:
    debugfs, had = quotas.debugfs, quotas.all()
    refused = debugfs.quota(failing // 2, 2, ("contexts", "doorbells")[failing % 2]).resolve()

    def write(path: Path, text: str) -> None:
        if path.resolve() == refused and text in ("8192", "32"):
            debugfs.write(path, "0")
            raise OSError(number, os.strerror(number))
        debugfs.write(path, text)

    monkeypatch.setattr("agent.carving.kernel.write_text", write)
    step = Step(StepKind.CONTEXTS, CARD, FUNCTIONS[1], "8192/32")
    assert quotas.carver.carve().failures == (f"{FUNCTIONS[1]}: cannot {step.text}: {reason}.",)
    assert quotas.all() == dict.fromkeys(FUNCTIONS, ("8192/32",) * 2) | {FUNCTIONS[1]: had[FUNCTIONS[1]]}


def test_more_than_the_card_has_is_told_and_changes_nothing(quotas: Quotas) -> None:
    had = quotas.all()
    for pair, reason in (("16384/32", "has not so many left"), ("8192/257", "takes no such numbers")):
        declared = DeclaredCarving(quotas={"context_quotas": {CARD: pair}})
        failures = replace(quotas.carver, declared=declared).carve().failures
        assert len(failures) == 4 and all(reason in failure for failure in failures)
        assert quotas.all() == had


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, 16000), st.integers(0, 64)), min_size=8, max_size=8),
    st.tuples(st.integers(1, 16314), st.integers(0, 64)),
)
def test_each_function_gets_all_or_keeps_all_and_less_than_a_share_is_always_given(
    quotas: Quotas, former: list[tuple[int, int]], wanted: tuple[int, int]
) -> None:
    pair = "/".join(map(str, wanted))

    def failing() -> set[str]:
        failed = set()
        for vf in FUNCTIONS:
            try:
                quotas.carver.kernel.do(Step(StepKind.CONTEXTS, CARD, vf, pair))
            except OSError:
                failed.add(vf)
        return failed

    quotas.debugfs.share(0)
    for number, (contexts, doorbells) in enumerate(former):
        quotas.debugfs.give(number // 4, number % 4 + 1, "contexts", contexts)
        quotas.debugfs.give(number // 4, number % 4 + 1, "doorbells", doorbells)
    had, failed = quotas.all(), failing()
    assert quotas.all() == {vf: had[vf] if vf in failed else (pair,) * 2 for vf in FUNCTIONS}
    quotas.debugfs.share(4)
    assert failing() == set()
    assert quotas.all() == dict.fromkeys(FUNCTIONS, (pair,) * 2)


def test_what_the_driver_makes_of_a_quota_is_read_back(
    quotas: Quotas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.carving.kernel.write_text", lambda path, _: path.write_text("8000\n"))
    failures = quotas.carver.carve().failures
    assert len(failures) == 4 and "name others in [devices] context_quotas" in failures[0]


@pytest.mark.parametrize("fails", ["missing", "aligned"])
def test_execution_quanta_that_fail_keep_no_function_from_its_contexts_and_no_boot_waiting(
    quotas: Quotas, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """Linux before 6.19 has none of them; a card can have 63 functions, and libvirt waits for the run."""
    slept: list[float] = []
    monkeypatch.setattr("agent.carving.kernel.time.sleep", slept.append)
    monkeypatch.setattr("agent.carving.kernel.time.monotonic", lambda: sum(slept))
    files = [*(quotas.tree.devices / CARD / "sriov_admin").glob("vf*/profile/exec_quantum_ms")]
    assert len(files) == len(FUNCTIONS)
    for file in files if fails == "missing" else ():
        file.unlink()

    def write(path: Path, text: str) -> None:
        if path.name in ("exec_quantum_ms", "preempt_timeout_us"):
            path.write_text("24\n")
        else:
            quotas.debugfs.write(path, text)

    monkeypatch.setattr("agent.carving.kernel.write_text", write)
    declared = {**quotas.carver.declared.quotas, "execution_quanta": {CARD: "25/500000"}}
    carver = replace(quotas.carver, declared=DeclaredCarving(quotas=declared))
    carver = replace(carver, kernel=Kernel(quotas.tree.sys, 30.0, quotas.tree.proc))
    carved = carver.carve()
    reason = "has no execution quanta" if fails == "missing" else "the driver aligns them"
    assert [reason in each for each in carved.failures] == [True] * len(FUNCTIONS)
    assert quotas.all() == dict.fromkeys(FUNCTIONS, ("8192/32",) * 2)
    assert sum(slept) < CONFIRM_S * 1.1, "once for the card, not for each function"


def test_a_card_without_a_media_gt_has_quotas_of_one(xe: PciTree, tmp_path: Path) -> None:
    for number, layout in enumerate(LAYOUTS):
        tree = recorded_tree(tmp_path / str(number), "xe")
        quotas = Quotas(tree, tmp_path / "run" / "journal", layout, gts=1)
        # A later kernel may have no links for the clients of the first layout any more.
        shutil.rmtree(quotas.debugfs.root / "tile0", ignore_errors=True)
        assert [step.function for step in quotas.carver.look().steps] == [*FUNCTIONS]
        assert quotas.carver.kernel.seen([FUNCTIONS[0]]).functions[FUNCTIONS[0]].quotas == {
            "execution_quanta": "0/0",
            "context_quotas": "0/0",
        }


def test_a_function_that_vanishes_and_one_without_quotas_are_told(quotas: Quotas) -> None:
    step = quotas.carver.look().steps[1]
    (quotas.tree.devices / CARD / "virtfn1").unlink()
    had = quotas.all()
    with pytest.raises(OSError, match="its driver has no context quotas for it"):
        quotas.carver.kernel.do(step)
    assert quotas.all() == had
    assert step.function not in {each.function for each in quotas.carver.look().steps}
    shutil.rmtree(quotas.debugfs.root)
    assert len(quotas.carver.carve().failures) == 3


@pytest.mark.parametrize(
    ("lockdown", "problem"),
    [("none [integrity] confidentiality", "the kernel is locked down"), ("", "debugfs is not mounted")],
)
def test_debugfs_that_is_locked_or_not_mounted_is_refused_and_changes_nothing(
    quotas: Quotas, lockdown: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    security, had = quotas.tree.sys / "kernel" / "security", quotas.all()
    security.mkdir()
    (security / "lockdown").write_text("[none] integrity confidentiality\n")
    assert quotas.carver.look().refusals == ()
    if lockdown:
        (security / "lockdown").write_text(lockdown + "\n")
    else:
        (quotas.tree.sys / "kernel" / "debug").rename(quotas.tree.root / "unmounted")
        (quotas.tree.sys / "kernel" / "debug").mkdir()
    monkeypatch.undo()
    quanta = {"execution_quanta": {CARD: "25/500000"}}
    declared = replace(quotas.carver.declared, quotas={**quotas.carver.declared.quotas, **quanta})
    carved = replace(quotas.carver, declared=declared).carve()
    (refusal,) = carved.refusals
    assert refusal.startswith(f"{CARD}: [devices] context_quotas cannot be written: {problem}")
    assert {step.kind for step in carved.steps} == {StepKind.QUANTA} and carved.failures == ()
    if lockdown:
        assert quotas.all() == had


def test_without_functions_the_card_is_shared_out_by_its_driver_again(
    quotas: Quotas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From Linux 6.19 on, what is written to debugfs ends that (`xe_sriov_pf_provision_set_custom_mode`)."""
    monkeypatch.undo()
    restore = quotas.debugfs.root / "sriov" / "restore_auto_provisioning"
    for number in range(4):
        (quotas.tree.devices / CARD / f"virtfn{number}").unlink()
    quotas.carver.kernel.do(Step(StepKind.VFS, CARD, CARD, "0"))
    assert not restore.exists() or restore.read_text() == "1\n"
    assert restore.exists() == (quotas.debugfs.layout == "6.19")

    def locked(path: Path, text: str) -> None:
        if path == restore:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        path.write_text(text)

    monkeypatch.setattr("agent.carving.kernel.write_text", locked)
    quotas.carver.kernel.do(Step(StepKind.VFS, CARD, CARD, "0"))


GIM_CARD = "0000:0c:00.0"
GIVE = """cd {devices}/{card}
rm -f virtfn*
for n in $(seq ${{3#--num-vf=}}); do
  mkdir -p ../0000:0c:02.$((n - 1))
  ln -s ../0000:0c:02.$((n - 1)) virtfn$((n - 1))
  ln -sfn ../{card} ../0000:0c:02.$((n - 1))/physfn
done
echo ${{3#--num-vf=}} >sriov_numvfs
echo "GPU: 0
    NUM_VF_ENABLED: Successfully set enabled VFs to ${{3#--num-vf=}}"
"""


def test_gim_gives_its_cards_functions_by_amd_smi_and_after_a_boot_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = recorded_tree(tmp_path / "root", "gim")
    script = GIVE.format(devices=tree.devices, card=GIM_CARD)
    calls = nvidia_smi(tmp_path, monkeypatch, script, name="amd-smi")
    declared = DeclaredCarving({GIM_CARD: 8})
    carver = Carver(Kernel(tree.sys, 1.0, tree.proc), CarvingJournal(tmp_path / "run" / "journal"), declared)
    for _ in range(2):
        carved = carver.carve()
        assert (carved.failures, carved.refusals) == ((), ())
        assert carver.kernel.seen([GIM_CARD]).functions[GIM_CARD].vfs == tuple(
            f"0000:0c:02.{number}" for number in range(8)
        )
        assert carver.look().steps == ()
        for number in range(1, 8):  # a boot: GIM's own option says one function
            (tree.devices / GIM_CARD / f"virtfn{number}").unlink()
        (tree.devices / GIM_CARD / "sriov_numvfs").write_text("1\n")
    assert calls.read_text() == f"set --gpu={GIM_CARD} --num-vf=8\n" * 2
    # It ends with 0 where it fails (smi_cli_main.cpp, smi_cli_exception.cpp), and says so on stderr.
    busy = "SMI-LIB has returned status -1030 - Device busy. Status code: -1030"
    nvidia_smi(tmp_path, monkeypatch, f"echo '{busy}' >&2", name="amd-smi")
    assert f"the card has another number of them then; amd-smi: {busy}." in carver.carve().failures[0]
    nvidia_smi(tmp_path, monkeypatch, "echo 'VF is busy' >&2; exit 2", name="amd-smi")
    assert carver.carve().failures == (
        f"{GIM_CARD}: cannot let amd-smi give {GIM_CARD} 8 virtual functions: amd-smi: VF is busy.",
    )
    with pytest.raises(UsageError):
        carver.kernel.do(Step(StepKind.NUM_VF, GIM_CARD, GIM_CARD, "8 --xgmi"))


def test_the_port_of_a_function_is_set_on_its_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree, port = PciTree(tmp_path), "52:54:00:00:00:01 VLAN 7"
    nic = tree.add("0000:41:00.0", "igb")
    for vf in ("0000:41:10.0", "0000:41:10.2"):
        tree.add(vf, pf="0000:41:00.0")
    tree.interface("enp65s0", nic)
    given: dict[tuple[str, int], str] = {}
    monkeypatch.setattr(
        "agent.carving.kernel.read_ports", lambda: {name: {at: text} for (name, at), text in given.items()}
    )
    monkeypatch.setattr(
        "agent.carving.kernel.set_port", lambda name, at, text: given.update({(name, at): text})
    )
    kernel = Kernel(tree.sys, 0.1, tree.proc)
    kernel.do(Step(StepKind.PORT, "0000:41:00.0", "0000:41:10.2", port))
    assert given == {("enp65s0", 1): port}
    seen = kernel.seen(["0000:41:00.0"]).functions
    assert [seen[vf].port for vf in ("0000:41:00.0", "0000:41:10.0", "0000:41:10.2")] == ["", "", port]
    with pytest.raises(UsageError):
        kernel.do(Step(StepKind.PORT, "0000:41:00.0", "0000:41:10.2", "52:54:00; rm"))
    with pytest.raises(OSError, match="no network interface"):
        kernel.do(Step(StepKind.PORT, "0000:41:00.0", "0000:41:00.0", port))

    def refused(*_: object) -> None:
        raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")

    monkeypatch.setattr("agent.carving.kernel.set_port", refused)
    with pytest.raises(OSError, match="needs CAP_NET_ADMIN and AF_NETLINK"):
        kernel.do(Step(StepKind.PORT, "0000:41:00.0", "0000:41:10.2", port))


LISTED = """
+-------------------------------------------------------+
| GPU instances:                                        |
| GPU   Name             Profile  Instance   Placement  |
|                          ID       ID       Start:Size |
|=======================================================|
|   0  MIG 1g.5gb+me       20        9          2:1     |
+-------------------------------------------------------+
|   0  MIG 3g.20gb          9        2          4:4     |
+-------------------------------------------------------+
"""
COMPUTING = """
+--------------------------------------------------------------------+
| Compute instances:                                                 |
| GPU     GPU       Name             Profile   Instance   Placement  |
|       Instance                       ID        ID       Start:Size |
|         ID                                                         |
|====================================================================|
|   0      2       MIG 3g.20gb          2         0          0:3     |
+--------------------------------------------------------------------+
"""
# As in a guide to ThetaGPU: without their places, and here a part of the GPU instance.
OLD_COMPUTING = """
+-------------------------------------------------------+
| Compute instances:                                    |
| GPU     GPU       Name             Profile   Instance |
|       Instance                       ID        ID     |
|         ID                                            |
|=======================================================|
|   0      2       MIG 1c.3g.20gb       0         0     |
+-------------------------------------------------------+
"""
NONE = "No GPU instances found: Not Found"
OFF = "No MIG-enabled devices found."
GPU, OTHER_GPU = "0000:84:00.0", "0000:85:00.0"
ME = MigInstance("9", range(2, 3), computes=False)
THIRD = MigInstance("2", range(4, 8), computes=True)


def nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, *lines: str, name: str = "nvidia-smi") -> Path:
    """A program in its place that does these lines of a shell script; it notes how it was called."""
    program = folder / name
    program.write_text("\n".join(("#!/bin/sh", f'echo "$*" >>{folder}/calls', *lines)) + "\n")
    program.chmod(0o755)
    monkeypatch.setattr(f"agent.carving.kernel.{name.upper().replace('-', '_')}", str(program))
    return folder / "calls"


def lists(folder: Path) -> str:
    """The line of a shell script that lists the instances of `LISTED`."""
    (folder / "gpu").write_text(LISTED)
    (folder / "compute").write_text(COMPUTING)
    return f"case $4 in -lgi) cat {folder}/gpu;; -lci) cat {folder}/compute;; esac"


def with_gpus(folder: Path) -> Kernel:
    """A host with two GPUs that are there."""
    tree = PciTree(folder / "root")
    for gpu in (GPU, OTHER_GPU):
        tree.add(gpu, "nvidia")
    return Kernel(tree.sys, 0.1, tree.proc)


def on_gpu(kind: StepKind, value: str, unit: str = "") -> Step:
    return Step(kind, GPU, GPU, value, unit)


@pytest.mark.parametrize(
    ("said", "code", "found"),
    [
        (NONE, 6, {}),
        (OFF, 6, None),
        ("", 9, None),
        (NONE, 0, {}),
        ("half of a | MIG 3g.20gb  9", 0, None),
        (LISTED + "|   0  MIG 3g.20gb", 0, None),
        ("", 0, None),
    ],
)
def test_what_nvidia_smi_does_not_list_is_not_there(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    said: str,
    code: int,
    found: dict[str, MigInstance] | None,
) -> None:
    (tmp_path / "said").write_text(said)
    calls = nvidia_smi(tmp_path, monkeypatch, f"cat {tmp_path}/said", f"exit {code}")
    assert NvidiaSmi().instances(GPU) == found
    assert calls.read_text() == "mig -i 0000:84:00.0 -lgi\n"


@pytest.mark.parametrize("said", ["", "Segmentation fault", COMPUTING + "|   0  9  MIG "])
def test_instances_whose_compute_instances_are_not_told_are_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    nvidia_smi(tmp_path, monkeypatch, lists(tmp_path))
    (tmp_path / "compute").write_text(said)
    asked = NvidiaSmi()
    assert asked.instances(GPU) is None, "none is taken for one without a compute instance"
    assert asked.problem(GPU).startswith("`nvidia-smi mig -lci` prints no table of them: ")


def test_a_mig_instance_is_created_in_its_place_with_a_compute_instance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = with_gpus(tmp_path)
    calls = nvidia_smi(tmp_path, monkeypatch, lists(tmp_path))
    kernel.do(on_gpu(StepKind.MIG, "3g.20gb:4"))
    assert calls.read_text().splitlines()[0] == "mig -i 0000:84:00.0 -cgi 3g.20gb:4 -C"
    assert kernel.seen([GPU]).functions[GPU].mig is None, "only named cards are asked for"
    assert kernel.seen([GPU], {GPU}).functions[GPU].mig == {"1g.5gb+me:2": ME, "3g.20gb:4": THIRD}
    calls.write_text("")
    kernel.do(on_gpu(StepKind.MIG_COMPUTE, "3g.20gb:4", "2"))
    assert calls.read_text().splitlines()[0] == "mig -i 0000:84:00.0 -gi 2 -cci"
    for missing in (on_gpu(StepKind.MIG, "3g.20gb:0"), on_gpu(StepKind.MIG_COMPUTE, "1g.5gb+me:2", "9")):
        with pytest.raises(OSError, match="does not list it"):
            kernel.do(missing)
    for value, unit in (("3g.20gb:0 -dgi", ""), ("3g.20gb:00", ""), ("3g.20gb:0", "1 -dgi")):
        with pytest.raises(UsageError):
            kernel.do(on_gpu(StepKind.MIG_COMPUTE, value, unit))


def test_the_names_and_tables_of_other_cards_and_drivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Profiles of RTX PRO 6000 (NVIDIA's MIG user guide) have 3, 6 or 12 of its memory slices."""
    listed = LISTED.replace(
        "1g.5gb+me       20        9          2:1", "1g.24gb+me.all  65        3          9:3"
    )
    nvidia_smi(tmp_path, monkeypatch, lists(tmp_path))
    (tmp_path / "gpu").write_text(listed)
    (tmp_path / "compute").write_text(OLD_COMPUTING)
    third = MigInstance("3", range(9, 12), computes=False)
    assert NvidiaSmi().instances(GPU) == {"1g.24gb+me.all:9": third, "3g.20gb:4": THIRD}
    declared = [
        mig_slices(f"{name}:{at}") for name, at in (("1g.24gb-me", 9), ("2g.48gb+gfx", 6), ("4g.96gb+gfx", 0))
    ]
    assert [each.start for each in declared] == [9, 6, 0]


def test_what_nvidia_smi_refuses_is_told_in_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = with_gpus(tmp_path)
    nvidia_smi(tmp_path, monkeypatch, "printf 'Unable to create: In \\377use by another client' >&2; exit 19")
    with pytest.raises(OSError, match=r"nvidia-smi: Unable to create: In .use by another client"):
        kernel.do(on_gpu(StepKind.MIG, "3g.20gb:4"))
    nvidia_smi(tmp_path, monkeypatch, "echo All done.; kill -9 $$")
    with pytest.raises(
        TimeoutError, match=r"its MIG mode .* nvidia-smi: signal 9 ended it: All done; .* -mig 1"
    ):
        kernel.do(on_gpu(StepKind.AWAIT, Sight.MIG))


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (("#",), "nvidia-smi cannot be run: Permission denied"),
        (("sleep 60 & echo $! >child; wait",), "nvidia-smi does not end within 1 s"),
        (("sleep 60 & echo $! >child; exit 0",), "nvidia-smi does not end within 1 s"),
        (("exec >&- 2>&-; echo $$ >child; sleep 60",), "nvidia-smi does not end within 1 s"),
        (("yes",), "nvidia-smi prints more than 1048576 bytes"),
        (("echo 0xDEADBEEF",), "`nvidia-smi mig -lgi` prints no table of them: 0xDEADBEEF"),
    ],
)
def test_a_card_that_nvidia_smi_does_not_answer_for_keeps_no_other_from_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: tuple[str, ...], problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("agent.carving.kernel.TOOL_S", 1.0)
    kernel = with_gpus(tmp_path)
    calls = nvidia_smi(tmp_path, monkeypatch, f"[ $3 = {OTHER_GPU} ] && echo '{OFF}' && exit 6", *lines)
    if "Permission" in problem:
        Path(tmp_path / "nvidia-smi").chmod(0o644)
    declared = DeclaredCarving(mig={GPU: ("3g.20gb:4",), OTHER_GPU: ("7g.40gb:0",)})
    carver = Carver(kernel, CarvingJournal(tmp_path / "run" / "journal"), declared)
    (refusal, *_) = carver.look().refusals
    assert refusal.startswith(f"{GPU}: its MIG instances are not known: ") and problem in refusal
    asked = calls.read_text().count(GPU) if calls.exists() else 0
    began = time.monotonic()
    carved = carver.carve()
    assert refusal in carved.refusals and time.monotonic() - began < 30
    if asked:
        assert asked == calls.read_text().count(GPU) == 1, "the card is asked about once"
        assert [step.card for step in carved.steps] == [OTHER_GPU]
    if (tmp_path / "child").exists():
        child = Path("/proc", (tmp_path / "child").read_text().strip(), "stat")
        until = time.monotonic() + 30
        while child.exists() and ") Z" not in child.read_text():
            assert time.monotonic() < until, "what it started goes on"


def test_a_boot_takes_mig_instances_and_the_carver_makes_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, compute = tmp_path / "made", tmp_path / "compute"
    calls = nvidia_smi(
        tmp_path,
        monkeypatch,
        "case $4 in",
        f'-cgi) echo "| 0 MIG ${{5%:*}} 9 1${{5#*:}} ${{5#*:}}:4 |" >>{made}',
        f"[ -e {tmp_path}/fails ] && echo 'Failed to create compute instances' && exit 3",
        f'echo "| 0 1${{5#*:}} MIG 3g.20gb 2 0 |" >>{compute};;',
        f'-gi) echo "| 0 $5 MIG 3g.20gb 2 0 |" >>{compute};;',
        f"-lgi) cat {made} || {{ echo '{NONE}'; exit 6; }};;",
        f"-lci) cat {compute} || {{ echo 'No compute instances found: Not Found'; exit 6; }};;",
        "esac",
    )
    declared = DeclaredCarving(mig={GPU: ("3g.20gb:0", "3g.20gb:4")})
    tree = PciTree(tmp_path / "root")
    tree.add(GPU, "nvidia")

    def boot() -> Carver:
        made.unlink(missing_ok=True)
        compute.unlink(missing_ok=True)
        kernel = Kernel(tree.sys, 1.0, tree.proc)
        return Carver(kernel, CarvingJournal(tmp_path / "run" / "journal"), declared)

    for _ in range(2):
        carver, wanted = boot(), ["3g.20gb:0", "3g.20gb:4"]
        carved = carver.carve()
        assert [step.value for step in carved.steps] == wanted and not carved.failures
        assert carver.look().steps == ()
    (tmp_path / "fails").touch()
    carved = boot().carve()
    assert len(carved.failures) == 2, "an instance that fails keeps no other from its steps"
    assert all("Failed to create compute instances" in failure for failure in carved.failures)
    (tmp_path / "fails").unlink()
    calls.write_text("")
    carver = Carver(Kernel(tree.sys, 1.0, tree.proc), carver.journal, declared)
    assert [(step.kind, step.value, step.unit) for step in carver.carve().steps] == [
        (StepKind.MIG_COMPUTE, "3g.20gb:0", "10"),
        (StepKind.MIG_COMPUTE, "3g.20gb:4", "14"),
    ]
    assert calls.read_text().count("-lgi") <= 5, "once at first, and after each step"
    assert carver.look() == Plan()
    calls.write_text("")
    assert Carver(carver.kernel, carver.journal, declared, mixed_only=True).look().steps == ()
    assert calls.read_text() == "", "between boots nvidia-smi is not asked"


# Groups of GPUs

# The matrix is that of a public record of driver 580.105.08, with four A100-SXM4-80GB and a network card; the
# codes of a terminal around its first line are in another one. The addresses are of neither.
A100S = [f"0000:{bus}:00.0" for bus in ("07", "0f", "47", "4e")]
LIST = "".join(f"{number}, 0000{card.upper()}\n" for number, card in enumerate(A100S))
MATRIX = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV12\tNV12\tNV12\tSYS\t32-63,96-127\t1\t\tN/A\n"
    "GPU1\tNV12\t X \tNV12\tNV12\tSYS\t32-63,96-127\t1\t\tN/A\n"
    "GPU2\tNV12\tNV12\t X \tNV12\tSYS\t32-63,96-127\t1\t\tN/A\n"
    "GPU3\tNV12\tNV12\tNV12\t X \tSYS\t32-63,96-127\t1\t\tN/A\n"
    "NIC0\tSYS\tSYS\tSYS\tSYS\t X \t\t\t\t\n"
    "\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n\nNIC Legend:\n\n"
    "  NIC0: rocep49s0\n"
)
PAIRS = MATRIX
for old, new in (
    ("0\t X \tNV12\tNV12\tNV12", "0\t X \tNV4\tPXB\tSYS"),
    ("1\tNV12\t X \tNV12\tNV12", "1\tNV4\t X \tSYS\tSYS"),
    ("2\tNV12\tNV12\t X \tNV12", "2\tPXB\tSYS\t X \tNODE"),
    ("3\tNV12\tNV12\tNV12", "3\tSYS\tSYS\tNODE"),
):
    PAIRS = PAIRS.replace(old, new)


def with_links(folder: Path, monkeypatch: pytest.MonkeyPatch, matrix: str, listed: str = LIST) -> Kernel:
    """A host with those GPUs, and an nvidia-smi that prints this."""
    (folder / "list").write_text(listed)
    (folder / "matrix").write_text(matrix)
    nvidia_smi(folder, monkeypatch, f"case $1 in topo) cat {folder}/matrix;; *) cat {folder}/list;; esac")
    tree = PciTree(folder / "root")
    for card in A100S:
        tree.add(card)
        tree.bind(card, "nvidia")
    return Kernel(tree.sys, 0.1, tree.proc)


@pytest.mark.parametrize(
    ("matrix", "groups"),
    [
        (MATRIX, [A100S]),
        (MATRIX.replace("\x1b[4m", "").replace("\x1b[0m", ""), [A100S]),
        (PAIRS, [A100S[:2]]),
    ],
)
def test_the_gpus_that_nvlink_joins_are_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, matrix: str, groups: list[list[str]]
) -> None:
    kernel = with_links(tmp_path, monkeypatch, matrix)
    found = kernel.sight(RootSight(), links=True)
    assert found.groups == {card: group[0] for group in groups for card in group} and not found.problem
    former = RootSight(groups={A100S[3]: A100S[3]})
    (tmp_path / "calls").unlink()
    assert kernel.sight(former, links=False).groups == former.groups and not (tmp_path / "calls").exists()


@pytest.mark.parametrize(
    ("matrix", "listed", "problem"),
    [
        ("", LIST, "no table of the links of GPUs, but: "),
        ("Failed to run topology matrix\n", LIST, "no table of the links of GPUs, but: "),
        (MATRIX[: len(MATRIX) // 4], LIST, "no table of the links of GPUs, but: "),
        (MATRIX.replace("GPU3\tNV12", "GPU7\tNV12"), LIST, "no table of the links of GPUs, but: "),
        (MATRIX, LIST + "4, 00000000:90:00.0\n", "no table of the links of GPUs, but: "),
        (MATRIX, "No devices were found\n", "no table of the links of GPUs, but: "),
        (PAIRS.replace("GPU1\tNV4", "GPU1\tSYS"), LIST, "none to some of their group"),
        (PAIRS.replace("PXB", "NV1"), LIST, "none to some of their group"),
    ],
)
def test_links_that_are_none_or_make_no_group_leave_what_was_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, matrix: str, listed: str, problem: str
) -> None:
    former = dict.fromkeys(A100S[:2], A100S[0])
    found = with_links(tmp_path, monkeypatch, matrix, listed).sight(RootSight(groups=former), links=True)
    assert found.groups == former and problem in found.problem


def test_an_nvidia_smi_that_fails_leaves_the_groups_as_they_were_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, file = with_links(tmp_path, monkeypatch, MATRIX), tmp_path / "lib" / "seen.json"
    carver = Carver(kernel, CarvingJournal(tmp_path / "run" / "journal"), DeclaredCarving(links=True))
    assert carver.tell(file) == () and len(json.loads(file.read_text())["groups"]) == 4
    nvidia_smi(tmp_path, monkeypatch, "echo NVML: Driver/library version mismatch; exit 18")
    (problem,) = carver.tell(file)
    assert "stay as they were known: nvidia-smi: NVML: Driver/library version mismatch." in problem
    assert len(json.loads(file.read_text())["groups"]) == 4
    nvidia_smi(tmp_path, monkeypatch, r"printf '\033%.0s' $(seq 250)")
    for _ in range(2):
        (problem,) = carver.tell(file)
        assert "no table of the links of GPUs, but: " in problem and "\\x1b" in problem
        assert len(decode(RootSight, json.loads(file.read_text())).groups) == 4, "and the agent can read it"
    file.write_text("[" * 100_000)
    nvidia_smi(
        tmp_path, monkeypatch, f"case $1 in topo) cat {tmp_path}/matrix;; *) cat {tmp_path}/list;; esac"
    )
    assert carver.tell(file) == () and len(json.loads(file.read_text())["groups"]) == 4


def test_a_gpu_that_is_gone_keeps_no_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bridge of the other two was taken away with it; what is no address goes, too."""
    kernel = with_links(tmp_path, monkeypatch, PAIRS)
    former = {**dict.fromkeys([*A100S, "0000:99:00.0"], A100S[0]), "\ud800": A100S[3]}
    assert kernel.sight(RootSight(groups=former), links=True).groups == dict.fromkeys(A100S[:2], A100S[0])
    assert kernel.sight(RootSight(groups=former), links=False).groups == dict.fromkeys(A100S, A100S[0])


def test_the_gpus_of_a_hive_are_a_group_also_while_guests_have_some(tmp_path: Path) -> None:
    """amdgpu prints the id of a hive as one number (amdgpu_xgmi_show_attrs), below each card of it."""
    tree = PciTree(tmp_path)
    hives = {"a3": "15472393061137125718", "b3": "15472393061137125718", "c3": "9", "d3": None}
    for bus, hive in hives.items():
        card = tree.add(f"0000:{bus}:00.0")
        tree.bind(card.name, "amdgpu")
        (card / "drm").mkdir()
        if hive is not None:
            (card / "xgmi_hive_info").mkdir()
            (card / "xgmi_hive_info" / "xgmi_hive_id").write_text(f"{hive}\n")
    kernel, pair = Kernel(tree.sys, 0.1, tree.proc), ["0000:a3:00.0", "0000:b3:00.0"]
    found = kernel.sight(
        RootSight(groups=dict.fromkeys(["0000:c3:00.0", "0000:d3:00.0"], "0000:c3:00.0")), links=True
    )
    assert found == RootSight(groups=dict.fromkeys(pair, pair[0])), (
        "all cards are seen, and two are apart now"
    )
    tree.bind(pair[1], "vfio-pci")
    again = kernel.sight(found, links=True)
    assert again == found, "a guest has the second one"
    (tree.devices / "0000:d3:00.0" / "xgmi_hive_info").mkdir()
    (tree.devices / "0000:d3:00.0" / "xgmi_hive_info" / "xgmi_hive_id").write_text("0x12\n")
    assert kernel.sight(found, links=True) == replace(
        found, problem="xgmi_hive_id of 0000:d3:00.0 is no number"
    )


@pytest.mark.parametrize("missing", ["xgmi_hive_id", "xgmi_hive_info", "drm", "text"])
def test_a_gpu_that_amdgpu_is_still_starting_is_taken_out_of_no_group(tmp_path: Path, missing: str) -> None:
    """The link to the driver is there before its probe, which takes seconds (`really_probe`), as at a boot.

    amdgpu joins the hive, and then registers the device of DRM; a card without a hive has that alone.
    """
    tree, pair = PciTree(tmp_path), ["0000:a3:00.0", "0000:b3:00.0"]
    for name in pair:
        card = tree.add(name)
        tree.bind(name, "amdgpu")
        (card / "drm").mkdir()
        (card / "xgmi_hive_info").mkdir()
        (card / "xgmi_hive_info" / "xgmi_hive_id").write_text("9\n")
    kernel = Kernel(tree.sys, 0.1, tree.proc)
    known = kernel.sight(RootSight(), links=True)
    assert known.groups == dict.fromkeys(pair, pair[0]) and not known.problem
    if missing == "text":
        (card / "xgmi_hive_info" / "xgmi_hive_id").write_text("")
    else:
        (card / "xgmi_hive_info" / "xgmi_hive_id").unlink()
    if missing in ("xgmi_hive_info", "drm"):
        (card / "xgmi_hive_info").rmdir()
    if missing == "drm":
        (card / "drm").rmdir()
    found = kernel.sight(known, links=True)
    if missing == "xgmi_hive_info":
        assert not found.groups and not found.problem, "it has left the hive"
    else:
        assert found.groups == known.groups and f"xgmi_hive_id of {pair[1]} is no number" in found.problem


# As `amd-smi topology` of GIM prints it (smi_cli_api_host_topology.cpp), with MODE_2 on four of MI300X.
MI300S = [f"0000:{bus}:00.0" for bus in ("0c", "22", "38", "5c")]
YES, NO = f"{'ENABLED':13}", f"{'DISABLED':13}"
SHARING = (
    "FB_SHARING_TABLE:\n"
    + "".join(f"{cell:13}" for cell in ("", *MI300S))
    + "\n"
    + "".join(f"{card:13}{YES * 2 + NO * 2 if card in MI300S[:2] else NO * 2 + YES * 2}\n" for card in MI300S)
    + "\n\n"
)


@pytest.mark.parametrize(
    ("said", "groups", "problem"),
    [
        (SHARING, [MI300S[:2], MI300S[2:]], ""),
        (SHARING.replace("DISABLED", "ENABLED "), [MI300S], ""),
        (SHARING.replace("ENABLED ", "N/A     "), [], ""),
        (SHARING[:-60], [], "no table"),
        (
            "Command 'topology' is not supported on the system. Run 'help' for more info. Status code: -5",
            [],
            "-5",
        ),
        (SHARING.replace(NO, YES, 1), [], "none to some of their group"),
    ],
)
def test_the_gpus_under_gim_that_share_their_vram_are_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, groups: list[list[str]], problem: str
) -> None:
    tree = PciTree(tmp_path / "root")
    for card in MI300S:
        tree.add(card)
        tree.bind(card, "gim")
    (tmp_path / "said").write_text(said)
    calls = nvidia_smi(tmp_path, monkeypatch, f"cat {tmp_path}/said", name="amd-smi")
    found = Kernel(tree.sys, 0.1, tree.proc).sight(RootSight(), links=True)
    assert found.groups == {card: group[0] for group in groups for card in group}
    assert problem in found.problem and bool(problem) == bool(found.problem)
    assert calls.read_text() == "topology --fb-sharing\n"


@pytest.mark.parametrize(
    ("former", "seen", "groups"),
    [
        ("", "ab", "ab"),
        ("ab", "a b", ""),
        ("abc", "a b", "abc"),
        ("abcd", "bc", "abcd"),
        ("abcd", "bc d", "abcd"),
        ("ab", "bcd", "abcd"),
        ("ab cd", "ef", "ab cd ef"),
        ("ab", "ab cd", "ab cd"),
    ],
)
def test_groups_before_and_now(former: str, seen: str, groups: str) -> None:
    """Each letter is a GPU, each word a group; of `former`, those that are not in `seen` are with guests."""
    before = {gpu: group[0] for group in former.split() for gpu in group}
    now = {gpu: frozenset(group) for group in seen.split() for gpu in group}
    assert joined_groups(before, now) == {gpu: group[0] for group in groups.split() for gpu in group}


H100 = "0000:18:00.0"


def test_modes_are_read_and_stay_known_while_a_card_cannot_be_read(tmp_path: Path) -> None:
    """What is gone, or has no such mode any more, is forgotten; what was never read is left out."""
    tree = PciTree(tmp_path)
    for number, word in enumerate((0, 1, 3, 0xFFFFFFFF, 0xFFFFFFFF)):
        tree.add_h100(f"0000:{number}8:00.0", word)
    tree.add("0000:58:00.0", "vfio-pci", vendor="0x10de", device="0x1eb8")
    (tree.add_h100("0000:18:10.0", 0) / "physfn").symlink_to(tree.devices / "0000:18:00.0")
    kernel = Kernel(tree.sys, 0.1, tree.proc)
    known = {"0000:08:00.0": "on", "0000:38:00.0": "on", "0000:58:00.0": "on", "0000:99:00.0": "on"}
    for links in (False, True):
        found = kernel.sight(RootSight(cc_modes=known), links=links)
        assert found.cc_modes == {
            "0000:08:00.0": "off",
            "0000:18:00.0": "on",
            "0000:28:00.0": "devtools",
            "0000:38:00.0": "on",
        }
    (tree.devices / "0000:08:00.0" / "resource0").unlink()
    assert kernel.sight(found, links=False).cc_modes == found.cc_modes


@pytest.mark.parametrize(
    ("files", "driver", "control", "mode"),
    [
        ({}, "vfio-pci", "auto", "on"),
        ({"enable": "1"}, "vfio-pci", "auto", None),
        ({}, "vfio-pci", "on", None),
        ({}, "nvidia", "auto", None),
        ({"enable": "what"}, "vfio-pci", "auto", None),
    ],
)
def test_a_card_that_sleeps_under_vfio_is_woken_to_be_read_and_sleeps_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: dict[str, str],
    driver: str,
    control: str,
    mode: str | None,
) -> None:
    """None that a guest has, whose own power it is, and none of a driver of the host.

    The kernel wakes a device before the write of `on` ends (Documentation/ABI/testing/sysfs-devices-power).
    """
    tree, states = PciTree(tmp_path), {"on": "D0", "auto": "D3hot"}
    card = tree.add_h100(H100, 1, power_state="D3hot", **files)
    tree.bind(H100, driver)
    (card / "power" / "control").write_text(f"{control}\n")
    written = []

    def write(path: Path, text: str) -> None:
        write_text(path, text)
        written.append((path, text))
        (card / "power_state").write_text(states[text])

    monkeypatch.setattr("agent.carving.kernel.write_text", write)
    found = Kernel(tree.sys, 0.1, tree.proc).sight(RootSight(), links=False)
    assert found.cc_modes == ({H100: mode} if mode else {})
    file = tree.devices / H100 / "power" / "control"
    assert written == ([(file, "on"), (file, "auto")] if mode else [])
    assert file.read_text().strip() == control


def test_a_card_that_cannot_be_woken_keeps_its_known_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = PciTree(tmp_path)
    tree.add_h100(H100, 1, power_state="D3hot")

    def fails(path: Path, text: str) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr("agent.carving.kernel.write_text", fails)
    found = Kernel(tree.sys, 0.1, tree.proc).sight(RootSight(cc_modes={H100: "off"}), links=False)
    assert found.cc_modes == {H100: "off"}


@pytest.mark.parametrize("mixed_only", [False, True])
def test_modes_that_are_forgotten_with_a_file_that_cannot_be_used_are_told(
    tmp_path: Path, mixed_only: bool
) -> None:
    """Once: then the file is as it should be. A first run has nothing to forget."""
    tree, file = PciTree(tmp_path), tmp_path / "lib" / "seen.json"
    tree.add_h100(H100, 0xFFFFFFFF)
    readable = tree.add_h100("0000:28:00.0", 1) / "resource0"
    plan = DeclaredCarving(), (), mixed_only
    carver = Carver(Kernel(tree.sys, 0.1, tree.proc), CarvingJournal(tmp_path / "j"), *plan)
    assert carver.tell(file) == ()
    for broken in ("{", '{"cc_modes": {"0000:18:00.0": 7}}', "[]"):
        file.write_text(broken)
        (sentence,) = carver.tell(file)
        assert f"of {H100} are forgotten" in sentence and str(file) in sentence, sentence
        assert json.loads(file.read_text())["cc_modes"] == {"0000:28:00.0": "on"}
        assert carver.tell(file) == ()
    (tree.devices / H100).unlink()
    file.write_text("{")
    assert carver.tell(file) == (), "what could be read is not forgotten"
    readable.unlink()
    file.write_text(json.dumps({"cc_modes": {"0000:28:00.0": "newer"}}))
    assert carver.tell(file) == ()
    assert json.loads(file.read_text())["cc_modes"] == {"0000:28:00.0": "newer"}


def test_a_run_of_itself_reads_the_modes_of_cards_that_nobody_has_and_nothing_else(tmp_path: Path) -> None:
    """A guest can switch its card's memory off at any moment, and on some hosts a read is then fatal."""
    tree, file = PciTree(tmp_path), tmp_path / "lib" / "seen.json"
    for number, enabled in enumerate(("0", "1", "1")):
        tree.add_h100(f"0000:{number}8:00.0", 1, enable=enabled)
    tree.bind("0000:28:00.0", "nvidia")
    carver, by_hand = (
        Carver(Kernel(tree.sys, 0.1, tree.proc), CarvingJournal(tmp_path / "j"), DeclaredCarving(), (), mixed)
        for mixed in (True, False)
    )
    assert carver.tell(file) == () and json.loads(file.read_text())["cc_modes"] == {
        "0000:08:00.0": "on",
        "0000:28:00.0": "on",
    }
    former = RootSight(
        {H100: {"mlx5_vfio_pci": True}}, {H100: H100}, "nvidia-smi fails", {"0000:18:00.0": "off"}
    )
    file.write_text(json.dumps(encode(RootSight, former)))
    assert carver.tell(file) == ()
    modes = {"0000:08:00.0": "on", "0000:18:00.0": "off", "0000:28:00.0": "on"}
    assert decode(RootSight, json.loads(file.read_text())) == replace(former, cc_modes=modes)
    stamp = file.stat().st_ino
    assert carver.tell(file) == () and file.stat().st_ino == stamp, "what is known is not written again"
    by_hand.tell(file)
    assert decode(RootSight, json.loads(file.read_text())).cc_modes["0000:18:00.0"] == "on"
