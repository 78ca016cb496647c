"""The kernel's view of cards and CPUs in sysfs, and what is written there to carve cards and to power CPUs.

Paths are built from parts that are checked here, each as what it is, and no link of the plan file is
followed.

libvirt leaves a function bound to VFIO's driver when its guest ends, so the driver alone says nothing.
While a process has the function open, the driver keeps it enabled; `enable` in sysfs is how often, and any
user may read it. Which process that is stands below /proc, as far as this process may see others.

Source: https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-bus-pci,
https://docs.kernel.org/PCI/pci-iov-howto.html, https://docs.kernel.org/driver-api/vfio.html,
https://docs.kernel.org/driver-api/vfio-mediated-device.html,
https://docs.kernel.org/core-api/cpu_hotplug.html, https://docs.kernel.org/admin-guide/pm/cpufreq.html
Documentation/ABI/testing/sysfs-driver-intel-xe-sriov of Linux 7.0, fs/debugfs/file.c (`debugfs_locked_down`),
xe_gt_sriov_pf_debugfs.c and xe_sriov_pf_provision.c of 6.12 and 6.19, and `amd-smi set --num-vf` of
https://github.com/amd/MxGPU-Virtualization, smi-lib/docs/how_to/amdsmi_cli_usage.md
"""

import contextlib
import errno
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from agent.carving.carving import (
    NAME,
    NUMBER,
    QUOTAS,
    Mdev,
    MigInstance,
    Seen,
    SeenFunction,
    Sight,
    Step,
    StepKind,
)
from agent.carving.cpus import OFFLINE, ONLINE, CpuStep
from agent.device_names import DASHED_UUID, MIG_INSTANCE, PCI_ADDRESS, PORT, is_vfio, vgpu_gib
from agent.driver import RootSight
from agent.durable.files import (
    cc_modes,
    cc_register,
    entries,
    link_name,
    read_number,
    read_text,
    sriov_profile,
    vram_quota,
)
from agent.durable.netlink import read_ports, set_port
from agent.errors import UsageError, counted, plain


def write_text(path: Path, text: str) -> None:
    """One write of the whole text, as the kernel wants it. Never creates the file. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(descriptor, f"{text}\n".encode("ascii"))
    finally:
        os.close(descriptor)


def vfio_uses(device: Path, driver: str, proc: Path) -> Iterator[str]:
    """Clauses on who has the function open; `device` is its folder in sysfs, `driver` one of VFIO's.

    There is one as well where the kernel does not tell.
    """
    # The files below /dev over which the function can be opened: its group's, and its own.
    nodes = {f"/dev/vfio/devices/{entry.name}" for entry in entries(device / "vfio-dev")}
    group = link_name(device / "iommu_group")
    nodes |= {f"/dev/vfio/{group}"} if group else set()
    has_process = False
    for process in proc.glob("[0-9]*"):
        try:
            is_open = any(str(link.readlink()) in nodes for link in (process / "fd").iterdir())
            name = (process / "comm").read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            continue
        if is_open:
            has_process = True
            shown = "".join(each for each in name if each.isprintable())
            yield f"process {process.name} ({shown}) has it open"
    enabled = read_number(device / "enable")
    if enabled is None:
        yield f"its driver {driver} may give it to a guest"
    elif enabled and not has_process:
        yield f"a guest or another program has it open over {driver}"


@contextlib.contextmanager
def _awake(device: Path, *, of_guests: bool) -> Iterator[None]:
    """Under VFIO a function that no guest has sleeps: wake it meanwhile.

    Raises OSError, without `of_guests` also for one that a guest has: the guest can switch its memory off at
    any moment, and on some hosts a read is then fatal (CVE-2020-12888).
    """
    control, is_idle = device / "power" / "control", read_number(device / "enable") == 0
    under_vfio = is_vfio(link_name(device / "driver"))
    if under_vfio and not (is_idle or of_guests):
        raise OSError(errno.EBUSY, "a guest may have it")
    wakes = under_vfio and is_idle and read_text(control) == "auto"
    if wakes:
        write_text(control, "on")
    try:
        yield
    finally:
        if wakes:
            write_text(control, "auto")


WAIT_S = 30.0
"""How long a step waits for a driver or for functions. Drivers of large cards take seconds to come up."""
CONFIRM_S = 5.0
"""How long the effect of a write may take; some drivers are bound in a thread of the kernel."""
POLL_S = 0.02
MIB = 2**20
NVIDIA_SMI = "/usr/bin/nvidia-smi"
AMD_SMI = "/usr/local/bin/amd-smi"
"""Where GIM's package installs it."""
TOOL_S = 30.0
TOOL_SIZE_MAX = 2**20
PAIR = re.compile(r"[0-9]{1,9}/[0-9]{1,9}", re.ASCII)
_TOO_MANY = "its card has not so many left in one piece; name fewer"
_REFUSED = {
    errno.EDQUOT: _TOO_MANY,
    errno.ENOSPC: _TOO_MANY,
    errno.EINVAL: "its driver takes no such numbers; name others",
}

_VGPU_NAME = re.compile(r"^([0-9]{1,9}) *: *(\S.*?) *$", re.ASCII | re.MULTILINE)
_FRAME_BUFFER = re.compile(r"\bframebuffer=([0-9]{1,9})M\b", re.ASCII)
_MIG_LINE = re.compile(r"\bMIG (\S+) +[0-9]+ +([0-9]{1,9}) +([0-9]{1,3}):([0-9]{1,3})\b", re.ASCII)
_COMPUTE_LINE = re.compile(r"^\| +[0-9]+ +([0-9]{1,9}) +MIG \S+ +[0-9]+ +[0-9]+\b", re.ASCII | re.MULTILINE)
_TABLE_LINE = re.compile(r"^\|.* MIG ", re.MULTILINE)
_NO_MIG_LINE = re.compile(r"No (?:GPU|compute) instances found")
_GPU_LINE = re.compile(
    r"^([0-9]{1,3}), *([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]) *$", re.ASCII | re.MULTILINE
)
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_NVLINK = re.compile(r"NV[0-9]{1,3}", re.ASCII)
_SHARES = re.compile("ENABLED")
_HIVE = re.compile(r"[0-9]{1,20}", re.ASCII)
_NO_OVERRIDE = "(null)"
_LAST_FUNCTION = 0xFFFF


class Kernel:
    """The devices below `sys`, and the processes below `proc`. `wait_s` bounds each wait.

    nvidia-smi takes seconds: it is asked once about the MIG instances of a card, and after each step on it.
    """

    def __init__(self, sys: Path = Path("/sys"), wait_s: float = WAIT_S, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._devices = sys / "bus" / "pci" / "devices"
        self._probe = sys / "bus" / "pci" / "drivers_probe"
        self._drivers = sys / "bus" / "pci" / "drivers"
        self._mdevs = sys / "bus" / "mdev" / "devices"
        self._lockdown = sys / "kernel" / "security" / "lockdown"
        self._debugfs = sys / "kernel" / "debug"
        self._dri = self._debugfs / "dri"
        self._wait_s = wait_s
        self._nvidia_smi = NvidiaSmi()
        self._mig: dict[str, Mapping[str, MigInstance] | None] = {}
        self._without: set[tuple[str, StepKind]] = set()
        """Cards of which a function has no such quotas: the other functions are not waited for, too."""

    def seen(self, named: Iterable[str], mig: Collection[str] = ()) -> Seen:
        """What there is of the named functions, of their cards and of all virtual functions of these.

        All mediated devices of the host are in it, and the MIG instances of the cards `mig`. Raises
        UsageError where a name is no PCI address.
        """
        functions: dict[str, SeenFunction] = {}
        queue = sorted(set(named))
        while queue:
            address = queue.pop()
            function = self._function(address) if address not in functions else None
            if function is not None:
                functions[address] = function
                queue += [*function.vfs, *([function.card] if function.card else [])]
        ports = read_ports()
        for address, function in functions.items():
            interface, number = self._port_place(self._device(address))
            port = ports.get(interface, {}).get(number, "")
            if address in mig and self._mig.get(address) is None:
                self._mig[address] = self._nvidia_smi.instances(address)
            instances, problem = self._mig.get(address), self._nvidia_smi.problem(address)
            functions[address] = replace(function, port=port, mig=instances, mig_problem=problem)
        problem = ""
        if not entries(self._debugfs):
            problem = (
                "debugfs is not mounted, or hidden from this user: as root, run `systemctl start "
                "sys-kernel-debug.mount`"
            )
        elif "[none]" not in (read_text(self._lockdown) or "[none]"):
            problem = (
                "the kernel is locked down, as with Secure Boot, and lets no program write to debugfs; take "
                "the card out of the option, or boot without lockdown"
            )
        return Seen(functions, dict(self._existing_mdevs()), problem)

    def sight(self, former: RootSight, *, links: bool) -> RootSight:
        """What only root sees of devices now; without `links`, with the groups of `former`.

        A GPU that is gone from the bus is in no group any more.

        VFIO shows each device from its binding on, and `migration` below it if the driver migrates it.

        Source: drivers/vfio/debugfs.c of Linux, from 6.8 on, and `__vfio_register_dev` of vfio_main.c;
        amdgpu_xgmi.c (`xgmi_hive_info`)
        """
        migrates = {
            shown.name: {link_name(self._devices / shown.name / "driver"): (shown / "migration").is_dir()}
            for shown in entries(self._debugfs / "vfio")
            if PCI_ADDRESS.fullmatch(shown.name)
        }
        modes = self.cc_modes(former.cc_modes)
        there = {device.name for device in entries(self._devices)}
        known = {gpu: first for gpu, first in former.groups.items() if gpu in there}
        if not links:
            return RootSight(migrates, known, cc_modes=modes)
        # Each GPU that has its own driver is in a group, if only with itself; of others nothing is seen.
        groups: dict[str, frozenset[str]] = {}
        problem = ""
        hives = {}
        for gpu in entries(self._drivers / "amdgpu"):
            if PCI_ADDRESS.fullmatch(gpu.name):
                # It is listed before amdgpu has started it: then it has a DRM device, and a hive if any.
                started = self._becomes((gpu / "drm").is_dir, self._wait_s)
                alone = gpu.name if started and not (gpu / "xgmi_hive_info").exists() else ""
                hives[gpu.name] = read_text(gpu / "xgmi_hive_info" / "xgmi_hive_id") or alone
        for card, hive in hives.items():
            if hive == card or _HIVE.fullmatch(hive):
                groups[card] = frozenset(other for other in hives if hives[other] == hive)
            else:
                problem = f"xgmi_hive_id of {card} is no number"
        for driver, ask in (("nvidia", nvlink_groups), ("gim", sharing_groups)):
            try:
                if any(PCI_ADDRESS.fullmatch(card.name) for card in entries(self._drivers / driver)):
                    groups |= ask()
            except OSError as error:
                problem = str(error.strerror)
        return RootSight(migrates, joined_groups(known, groups), problem, modes)

    def cc_modes(self, former: Mapping[str, str], *, of_guests: bool = True) -> dict[str, str]:
        """The modes of confidential computing, see `RootSight`; as in `former` where they cannot be read."""
        return cc_modes(entries(self._devices), former, partial(_awake, of_guests=of_guests))

    def cc_cards(self) -> set[str]:
        """The cards that have a mode of confidential computing, whether it can be read or not."""
        return {card.name for card in entries(self._devices) if cc_register(card) is not None}

    def do(self, step: Step) -> None:
        """Take the step, and see that the kernel did it.

        Raises OSError where it did not, TimeoutError for a wait in vain, UsageError for a step whose parts
        are not what they should be.
        """
        device = self._device(step.function)
        self._mig.pop(step.function, None)
        match step.kind:
            case StepKind.AWAIT:
                self._wait_for(step)
            case StepKind.AUTOPROBE:
                write_text(device / "sriov_drivers_autoprobe", _part(NUMBER, step.value))
            case StepKind.VFS:
                number, file = int(_part(NUMBER, step.value)), device / "sriov_numvfs"
                write_text(file, step.value)
                functions = counted(number, "virtual function")
                self._confirm(
                    lambda: read_number(file) == number and bool(number or not _vfs(device)),
                    f"the driver does not make {functions}; the kernel's log may say why",
                )
                # After a write to debugfs, xe keeps quotas without functions, and gives none to new ones.
                with contextlib.suppress(FileNotFoundError, PermissionError):
                    if number == 0:
                        write_text(self._dri / step.function / "sriov" / "restore_auto_provisioning", "1")
            case StepKind.OVERRIDE:
                write_text(device / "driver_override", _part(NAME, step.value) if step.value else "")
            case StepKind.UNBIND:
                self._unbind(step)
            case StepKind.BIND:
                self._bind(step)
            case StepKind.CREATE_MDEV:
                self._create_mdev(step)
            case StepKind.REMOVE_MDEV:
                if self._is_mdev(step):
                    write_text(self._mdevs / _part(DASHED_UUID, step.unit) / "remove", "1")
                    self._confirm(lambda: not self._is_mdev(step), "the kernel does not remove the device")
            case _:
                self._set_up(step)

    # Reading

    def _device(self, address: str) -> Path:
        return self._devices / _part(PCI_ADDRESS, address)

    def _function(self, address: str) -> SeenFunction | None:
        device = self._device(address)
        if not device.is_dir():
            return None
        driver = link_name(device / "driver")
        override = read_text(device / "driver_override")
        autoprobe = read_text(device / "sriov_drivers_autoprobe")
        vfs_max = read_number(device / "sriov_totalvfs")
        vfs = _vfs(device)
        uses: list[str] = []
        if is_vfio(driver) or (device / "vfio-dev").is_dir():
            uses += vfio_uses(device, driver, self._proc)
        for interface in entries(device / "net"):
            if int(read_text(interface / "flags") or "0", 16) & 1:
                uses.append(f"its interface {interface.name} is up")
        if any(entries(device / "nvme")):
            uses.append("it is a disk of the host")
        if read_text(device / "boot_vga") == "1":
            uses.append("it shows the host's console")
        # {number of a vGPU type, or id of a mediated type: MiB of its frame buffer}, as far as it is told.
        sizes: dict[str, int] = {}
        for number, name in _VGPU_NAME.findall(read_text(device / "nvidia" / "creatable_vgpu_types") or ""):
            gib = vgpu_gib(name)
            if gib is not None:
                sizes[number] = gib * 1024
        mdev_types = entries(device / "mdev_supported_types")
        for entry in mdev_types:
            told = _FRAME_BUFFER.search(read_text(entry / "description") or "")
            if told:
                sizes[entry.name] = int(told[1])
        vgpu_type = read_text(device / "nvidia" / "current_vgpu_type")
        vgpu_place = read_number(device / "nvidia" / "placement_id")
        quota = vram_quota(device)
        if quota is not None and quota[1]:
            vgpu_type, vgpu_place = str((read_number(quota[0]) or 0) // MIB), 0
        return SeenFunction(
            address,
            driver,
            "" if override in (None, _NO_OVERRIDE) else str(override),
            link_name(device / "physfn") or None,
            vfs_max if driver else None,
            read_number(device / "sriov_numvfs") or 0,
            vfs,
            tuple(_vf_addresses(device, address, vfs, vfs_max or 0)),
            None if autoprobe is None else autoprobe != "0",
            vgpu_type,
            frozenset(entry.name for entry in mdev_types),
            tuple(uses),
            sizes,
            vgpu_place,
            quota is not None,
            quotas={name: pair for kind, (name, _) in QUOTAS.items() if (pair := self._quota(kind, device))},
        )

    def _quota_folders(self, kind: StepKind, device: Path) -> list[Path]:
        """The folders with the quotas of a virtual function: contexts and doorbells are of each GT."""
        folders = [sriov_profile(device) or device]
        if kind is StepKind.CONTEXTS:
            vf, card = f"vf{_vf_number(device) + 1}", self._dri / link_name(device / "physfn")
            folders = sorted(card.glob(f"sriov/{vf}/tile*/gt*")) or sorted(card.glob(f"gt*/{vf}"))
        return [each for each in folders if (each / QUOTAS[kind][1][0]).exists()]

    def _quota(self, kind: StepKind, device: Path) -> str | None:
        """The pair of a virtual function, such as 25/500000, or the different ones of its folders."""
        pairs = {
            "/".join(str(read_number(folder / name)) for name in QUOTAS[kind][1])
            for folder in self._quota_folders(kind, device)
        }
        return ", ".join(sorted(pairs)) or None

    def _write_quota(self, kind: StepKind, device: Path, pair: str) -> None:
        """Write the pair into each folder, or leave all as it was: xe takes first what the function has."""
        option, names = QUOTAS[kind]
        without = (link_name(device / "physfn"), kind)
        wait_s = 0.0 if without in self._without else min(CONFIRM_S, self._wait_s)
        if not self._becomes(lambda: self._quota(kind, device) is not None, wait_s):
            self._without.add(without)
            raise OSError(errno.ENOENT, f"its driver has no {option.replace('_', ' ')} for it")
        former: dict[Path, str] = {}
        try:
            for folder in self._quota_folders(kind, device):
                for name, number in zip(names, pair.split("/"), strict=True):
                    former[folder / name] = read_text(folder / name) or ""
                    write_text(folder / name, number)
        except OSError as error:
            for file, number in reversed(former.items()):
                with contextlib.suppress(OSError):
                    write_text(file, number)
            if error.errno not in _REFUSED:
                raise
            raise OSError(error.errno, f"{_REFUSED[error.errno]} in [devices] {option}") from error
        if self._quota(kind, device) != pair:
            raise OSError(errno.EIO, f"the driver aligns them; name others in [devices] {option}")

    def _port_place(self, device: Path) -> tuple[str, int]:
        """(network interface of its card, its number there) of a virtual function; ("", -1) without one."""
        interface, number = next(iter(entries(device / "physfn" / "net")), None), _vf_number(device)
        return (interface.name, number) if interface is not None and number >= 0 else ("", -1)

    def _existing_mdevs(self) -> Iterator[tuple[str, Mdev]]:
        for entry in entries(self._mdevs):
            if DASHED_UUID.fullmatch(entry.name):
                yield entry.name, Mdev(entry.resolve().parent.name, link_name(entry / "mdev_type"))

    # Writing

    def _becomes(self, is_so: Callable[[], bool], within_s: float) -> bool:
        end = time.monotonic() + within_s
        while not is_so():
            if time.monotonic() > end:
                return False
            time.sleep(POLL_S)
        return True

    def _confirm(self, is_so: Callable[[], bool], what: str) -> None:
        """Raises OSError with `what` where the kernel does not show what was written."""
        if not self._becomes(is_so, min(CONFIRM_S, self._wait_s)):
            raise OSError(errno.EIO, what)

    def _wait_for(self, step: Step) -> None:
        def is_there() -> bool:
            function = self._function(step.function)
            if function is None:
                return False
            match Sight(step.value):
                case Sight.FUNCTION:
                    return True
                case Sight.SRIOV:
                    return function.vfs_max is not None
                case Sight.VFS:
                    return len(function.vfs) >= int(_part(NUMBER, step.unit))
                case Sight.VGPU_TYPE | Sight.VRAM:
                    return function.vgpu_type is not None
                case Sight.MDEV_TYPE:
                    return step.unit in function.mdev_types
                case Sight.MIG:
                    return self._nvidia_smi.instances(step.function) is not None

        if not self._becomes(is_there, self._wait_s):
            waited = f"{self._wait_s:g} s were not enough to {step.text}"
            said = self._nvidia_smi.problem(step.function, later=True) if step.value == Sight.MIG else ""
            if said:
                waited += f": {said}; `nvidia-smi -i {step.function} -mig 1` switches MIG mode on"
            raise TimeoutError(errno.ETIMEDOUT, waited, step.function)

    def _unbind(self, step: Step) -> None:
        driver = self._device(step.function) / "driver"
        bound = link_name(driver)
        if bound and bound != step.value:
            raise OSError(errno.EBUSY, f"{bound} is bound meanwhile")
        if bound:
            write_text(self._drivers / _part(NAME, bound) / "unbind", step.function)
            self._confirm(lambda: not link_name(driver), f"{bound} does not let go of it")

    def _bind(self, step: Step) -> None:
        driver = _part(NAME, step.value) if step.value else ""
        if driver and not (self._drivers / driver).is_dir():
            raise OSError(errno.ENOENT, f"the driver {driver} is not loaded; add it to /etc/modules-load.d")
        write_text(self._probe, step.function)
        if driver:
            link = self._device(step.function) / "driver"
            self._confirm(
                lambda: link_name(link) == driver, f"{driver} does not take it; the kernel's log may say why"
            )

    def _set_up(self, step: Step) -> None:
        device = self._device(step.function)
        if step.kind is StepKind.NUM_VF:
            number = _part(NUMBER, step.value)
            # It ends with 0 where it fails, too.
            said = run_tool(AMD_SMI, "set", f"--gpu={step.function}", f"--num-vf={number}")
            self._confirm(
                lambda: len(_vfs(device)) == int(number),
                f"the card has another number of them then; amd-smi: {shown(said)}",
            )
            return
        if step.kind in (StepKind.MIG, StepKind.MIG_COMPUTE):
            instance = _part(MIG_INSTANCE, step.value)
            whole = ("-cgi", instance, "-C")
            words = whole if step.kind is StepKind.MIG else ("-gi", _part(NUMBER, step.unit), "-cci")
            self._nvidia_smi.ask(step.function, *words)
            self._confirm(
                lambda: any(
                    name == instance and made.computes
                    for name, made in (self._nvidia_smi.instances(step.function) or {}).items()
                ),
                "nvidia-smi does not list it then",
            )
            return
        if step.kind is StepKind.PORT:
            interface, place = self._port_place(device)
            if not interface:
                raise OSError(errno.ENODEV, "its card has no network interface")
            try:
                set_port(interface, place, _part(PORT, step.value))
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.EAFNOSUPPORT):
                    raise
                raise OSError(error.errno, "it needs CAP_NET_ADMIN and AF_NETLINK, see [devices]") from error
            return
        if step.kind in QUOTAS:
            self._write_quota(step.kind, device, _part(PAIR, step.value))
            return
        number = _part(NUMBER, step.value)
        if step.kind is StepKind.VRAM:
            quota = vram_quota(device)
            if quota is None:
                raise OSError(errno.ENOENT, "its driver has no quota of VRAM for it")
            file = quota[0]
            write_text(file, str(int(number) * MIB))
            # The driver may round it; a claim says the amount, so a size must be one that it takes as it is.
            self._confirm(
                lambda: read_number(file) == int(number) * MIB,
                "the driver rounds it, or has not so much left; name another size in [devices] vram_cards",
            )
            return
        vendor = device / "nvidia"
        if step.unit:
            write_text(vendor / "placement_id", _part(NUMBER, step.unit))
        write_text(vendor / "current_vgpu_type", number)
        self._confirm(
            lambda: (
                read_text(vendor / "current_vgpu_type") == number
                and (not step.unit or read_text(vendor / "placement_id") == step.unit)
            ),
            f"the card does not take the vGPU type {number} {f'at {step.unit}' if step.unit else 'here'} now",
        )

    def _create_mdev(self, step: Step) -> None:
        uuid, type_id = _part(DASHED_UUID, step.unit), _part(NAME, step.value)
        try:
            write_text(self._device(step.function) / "mdev_supported_types" / type_id / "create", uuid)
        except FileExistsError:
            if not self._is_mdev(step):  # else mdevctl was faster
                raise
        self._confirm(lambda: self._is_mdev(step), "the kernel does not show the device")

    def _is_mdev(self, step: Step) -> bool:
        return dict(self._existing_mdevs()).get(step.unit) == Mdev(step.function, step.value)


def shown(said: str) -> str:
    """The first words of what a tool prints, on one line, for a sentence."""
    return plain(" ".join(said.split())[:200])[:200].rstrip(".") or "nothing"


def run_tool(program: str, *words: str) -> str:
    """What a vendor's tool prints, without input. Raises OSError with that where it fails, errno EIO then.

    One that takes longer than `TOOL_S`, or prints more, is killed with all that it started.
    """
    name, end, said = Path(program).name, time.monotonic() + TOOL_S, b""
    try:
        tool = subprocess.Popen(  # noqa: S603 - words that are checked
            [program, *words],
            bufsize=0,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise OSError(error.errno, f"{program} cannot be run: {error.strerror}") from error
    assert tool.stdout is not None
    try:
        while select.select([tool.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
            block = os.read(tool.stdout.fileno(), 2**16)
            said += block
            if len(said) > TOOL_SIZE_MAX:
                raise OSError(errno.EFBIG, f"{name} prints more than {TOOL_SIZE_MAX} bytes")
            if not block:
                tool.wait(max(0.0, end - time.monotonic()))
                break
    except subprocess.TimeoutExpired:
        pass  # it closed its outputs, and goes on
    finally:
        tool.stdout.close()
        code = tool.returncode
        if code is None:
            os.killpg(tool.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # one that hangs in the kernel stays there
                tool.wait(1)
    if code is None:
        raise TimeoutError(errno.ETIMEDOUT, f"{name} does not end within {TOOL_S:g} s")
    text = said.decode(errors="replace")
    if code:
        reason = shown(text) if text.strip() else ""
        ended = f"signal {-code} ended it" if code < 0 else "" if reason else f"it ends with {code}"
        raise OSError(errno.EIO, ": ".join(filter(None, (name, ended, reason))))
    return text


def nvlink_groups() -> dict[str, frozenset[str]]:
    """The groups of the GPUs that nvidia-smi lists, as of `groups_in`. Raises OSError as `run_tool` and that.

    Source: `nvidia-smi topo -m` in public records, up to driver 580: of pairs, and of boards with NVSwitch
    """
    listed = _GPU_LINE.findall(run_tool(NVIDIA_SMI, "--query-gpu=index,pci.bus_id", "--format=csv,noheader"))
    gpus = {f"GPU{index}": f"{int(domain, 16):04x}:{rest.lower()}" for index, domain, rest in listed}
    text = _ESCAPE.sub("", run_tool(NVIDIA_SMI, "topo", "-m"))
    rows = [[cell.strip() for cell in line.split("\t")][: len(gpus) + 1] for line in text.splitlines()]
    table = {gpus[name]: dict(zip(gpus.values(), row, strict=False)) for name, *row in rows if name in gpus}
    return groups_in(text, table if ["", *gpus] in rows else {}, _NVLINK)


def sharing_groups() -> dict[str, frozenset[str]]:
    """The groups of GPUs under GIM whose functions reach each other's VRAM by XGMI; as `nvlink_groups`.

    Source: `amd-smi topology` of MxGPU-Virtualization, smi-lib/cli/cpp/src/host/smi_cli_api_host_topology.cpp
    """
    text = run_tool(AMD_SMI, "topology", "--fb-sharing")
    rows = [line.split() for line in text.splitlines()]
    gpus = next((row for row in rows if row and all(map(PCI_ADDRESS.fullmatch, row))), [])
    names = {row[0]: row[1:] for row in rows if row and row != gpus and row[0] in gpus}
    return groups_in(text, {gpu: dict(zip(gpus, row, strict=False)) for gpu, row in names.items()}, _SHARES)


def groups_in(
    text: str, table: Mapping[str, Mapping[str, str]], linked: re.Pattern[str]
) -> dict[str, frozenset[str]]:
    """{GPU: those that it is linked with, and itself} of {GPU: {GPU: what a tool's `text` has of the two}}.

    Raises OSError where that is no table of all, or GPUs of a group are not linked each with each.
    """
    if not table or any(row.keys() != table.keys() for row in table.values()):
        raise OSError(errno.EIO, f"no table of the links of GPUs, but: {shown(text)}")
    groups = {
        gpu: frozenset(other for other, word in row.items() if other == gpu or linked.fullmatch(word))
        for gpu, row in table.items()
    }
    if any(groups[other] != group for group in groups.values() for other in group):
        raise OSError(errno.EIO, "GPUs that have links have none to some of their group")
    return groups


def joined_groups(former: Mapping[str, str], seen: Mapping[str, frozenset[str]]) -> dict[str, str]:
    """{GPU: first one of its group}, of the groups before and what is `seen` of each GPU now.

    A group of which some GPUs are not seen, as guests have them, goes on.
    """
    groups = [set(each) for each in {*seen.values()} if len(each) > 1]
    for first in {*former.values()}:
        members = {gpu for gpu in former if former[gpu] == first}
        if not members <= seen.keys():
            members |= {gpu for group in groups if group & members for gpu in group}
            groups = [*(group for group in groups if not group & members), members]
    return {gpu: min(group) for group in groups for gpu in sorted(group)}


class NvidiaSmi:
    """What nvidia-smi says of MIG, and does.

    Where it fails it is asked again: a boot may not have come so far. Where it cannot be run, does not end,
    does not stop printing or prints something else than its table, it is not run again for that card.
    """

    def __init__(self) -> None:
        self._problems: dict[str, OSError] = {}

    def problem(self, card: str, *, later: bool = False) -> str:
        """Why it is not asked about the card again, or with `later` why it did not answer; empty without."""
        error = self._problems.get(card)
        return str(error.strerror) if error and (later or error.errno != errno.EIO) else ""

    def ask(self, card: str, *words: str) -> str:
        """As of `run_tool`: what `nvidia-smi mig` prints of the card, also where it says that it has none."""
        if self.problem(card):
            raise self._problems[card]
        self._problems.pop(card, None)
        try:
            return run_tool(NVIDIA_SMI, "mig", "-i", card, *words)
        except OSError as error:
            if _NO_MIG_LINE.search(str(error.strerror)):
                return str(error.strerror)
            self._problems[card] = error
            raise

    def instances(self, card: str) -> dict[str, MigInstance] | None:
        """The MIG instances of the card, such as 3g.20gb:4; None where it has no MIG mode or does not say."""
        tables: list[list[Any]] = []
        for word, row in (("-lgi", _MIG_LINE), ("-lci", _COMPUTE_LINE)):
            try:
                said = self.ask(card, word)
            except OSError:
                return None
            tables.append(row.findall(said))
            if _NO_MIG_LINE.search(said):
                break
            if not tables[-1] or len(tables[-1]) != len(_TABLE_LINE.findall(said)):
                problem = f"`nvidia-smi mig {word}` prints no table of them: {shown(said)}"
                self._problems[card] = OSError(errno.EBADMSG, problem)
                return None
        rows, computing = tables[0], set(tables[-1])
        return {
            f"{name}:{start}": MigInstance(
                number, range(int(start), int(start) + int(size)), number in computing
            )
            for name, number, start, size in rows
        }


def _part(pattern: re.Pattern[str], text: str) -> str:
    """The text. Raises UsageError where it is not what the pattern says."""
    if not pattern.fullmatch(text):
        raise UsageError(f"{text[:80]!r} is no name or number of sysfs that a carving may use.")
    return text


def _vfs(device: Path) -> tuple[str, ...]:
    """The addresses of the virtual functions that are there, by their numbers."""
    found = {}
    for link in device.glob("virtfn*"):
        number = link.name.removeprefix("virtfn")
        if number.isdecimal():
            found[int(number)] = link.resolve().name
    return tuple(found[number] for number in sorted(found))


def _vf_number(device: Path) -> int:
    """The number of a virtual function on its card, from 0 on; -1 where it is none."""
    links = (device / "physfn").glob("virtfn*")
    numbers = (each.name.removeprefix("virtfn") for each in links if link_name(each) == device.name)
    return next((int(each) for each in numbers if each.isdecimal()), -1)


def _vf_addresses(device: Path, address: str, vfs: tuple[str, ...], vfs_max: int) -> Iterator[str]:
    """The addresses that the first `vfs_max` virtual functions have, as far as the kernel tells them."""
    yield from vfs
    offset, stride = read_number(device / "sriov_offset"), read_number(device / "sriov_stride")
    match = PCI_ADDRESS.fullmatch(address)
    if not offset or stride is None or match is None:
        return
    own = int(match[2], 16) << 8 | int(match[3], 16) << 3 | int(match[4])
    for number in range(len(vfs), vfs_max):
        routing_id = own + offset + number * stride
        if routing_id <= _LAST_FUNCTION:
            yield f"{match[1]}:{routing_id >> 8:02x}:{routing_id >> 3 & 31:02x}.{routing_id & 7}"


CPUS = Path("sys/devices/system/cpu")
DAEMONS = ("run/libvirtd.pid", "run/virtqemud.pid")
GUESTS = Path("run/libvirt/qemu")
_STATES = {"1": ONLINE, "0": OFFLINE}
_VALUES = {state: value for value, state in _STATES.items()}


class CpuKernel:
    """The CPUs of the host whose root directory is `root`."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def states(self, cpus: Iterable[int], *, governors: bool) -> dict[int, str]:
        """{CPU: its state} for those whose state the kernel can change; `governors`: the state is one."""
        texts = {cpu: read_text(self._file(cpu, governors=governors)) or "" for cpu in cpus}
        if governors:
            return {cpu: text for cpu, text in texts.items() if text}
        return {cpu: _STATES[text] for cpu, text in texts.items() if text in _STATES}

    def guests_may_start(self) -> bool:
        """Whether libvirt runs, or guests do that it started: another one may start at any time."""
        return any((self._root / name).exists() for name in DAEMONS) or any(
            (self._root / GUESTS).glob("*.xml")
        )

    def do(self, step: CpuStep) -> None:
        """Take the step. Raises OSError where the kernel refuses it."""
        governors = step.state not in _VALUES
        write_text(self._file(step.cpu, governors=governors), _VALUES.get(step.state, step.state))

    def _file(self, cpu: int, *, governors: bool) -> Path:
        name = "cpufreq/scaling_governor" if governors else "online"
        return self._root / CPUS / f"cpu{cpu}" / name
