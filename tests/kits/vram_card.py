"""A GPU of Intel's xe in a directory like sysfs: its functions have quotas of VRAM, whose sum is bounded."""

from __future__ import annotations

import errno
from pathlib import Path

from agent.carving.carving import Step, StepKind
from agent.carving.kernel import Kernel
from kits.libvirt_node import recorded_devices

CARD = "0000:84:00.0"
FUNCTIONS = tuple(f"0000:84:00.{number}" for number in (1, 2, 3, 4))
TOTAL_MIB = 40960


def xe_devices() -> list[str]:
    """libvirt's XML of the recorded host, with the card of xe in place of the A100."""
    return [
        text.replace("20f1", "e211").replace("0x10de", "0x8086").replace("<name>nvidia<", "<name>xe<")
        if "0000:84:00" in text
        else text
        for text in recorded_devices("vendor-vfio")
    ]


class XeGpu:
    """The functions of the card below `devices`, where the recorded tree `xe` has them."""

    def __init__(self, devices: Path) -> None:
        self._devices = devices
        self.clear()

    def clear(self) -> None:
        """No function has VRAM, as after a boot that provisions nothing."""
        for function in FUNCTIONS:
            self.quota(function).write_text("0\n")

    def provision(self) -> None:
        """As after a boot: the driver shares the VRAM out among all functions."""
        for function in FUNCTIONS:
            self.quota(function).write_text(f"{TOTAL_MIB // len(FUNCTIONS) << 20}\n")

    def quota(self, function: str) -> Path:
        return self._devices / CARD / "sriov_admin" / f"vf{function[-1]}" / "profile" / "vram_quota"

    def mib(self, function: str) -> int:
        return int(self.quota(function).read_text()) >> 20

    def vgpus(self) -> dict[str, tuple[str, int]]:
        """{function: (its MiB, 0)} of those that have VRAM."""
        return {each: (str(self.mib(each)), 0) for each in FUNCTIONS if self.mib(each)}

    def most(self, number: str) -> int:
        """How many more functions of so many MiB the card can have."""
        left = TOTAL_MIB - sum(map(self.mib, FUNCTIONS))
        return min(len(FUNCTIONS) - len(self.vgpus()), left // int(number))

    def set_type(self, function: str, number: str, _place: str = "") -> None:
        """Raises OSError where the card has not so much left."""
        others = sum(self.mib(each) for each in FUNCTIONS if each != function)
        if others + int(number) > TOTAL_MIB:
            raise OSError(errno.EIO, "Input/output error")
        self.quota(function).write_text(f"{int(number) << 20}\n")


class XeKernel(Kernel):
    """The kernel, whose card refuses what it does not have."""

    def __init__(self, sys: Path, proc: Path, gpu: XeGpu) -> None:
        super().__init__(sys, 1.0, proc)
        self._gpu = gpu

    def do(self, step: Step) -> None:
        """See `Kernel`."""
        if step.kind is StepKind.VRAM:
            self._gpu.set_type(step.function, step.value)
        super().do(step)
