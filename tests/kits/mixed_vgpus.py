"""A GPU in mixed-size mode in a directory like sysfs, which behaves as the lab's module: each size has its
own places, the first free one is taken where none is wanted, and what does not fit is refused.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

from agent.carving.carving import Step, StepKind
from agent.carving.kernel import Kernel

A100 = "0000:84:00.0"
A100_TYPES: Mapping[str, tuple[str, int, tuple[int, ...]]] = {
    "468": ("NVIDIA A100-4C", 4, (0, 6, 10, 16, 20, 26, 30, 36)),
    "469": ("NVIDIA A100-5C", 5, (0, 5, 10, 15, 20, 25, 30, 35)),
    "470": ("NVIDIA A100-8C", 8, (0, 12, 20, 32)),
    "471": ("NVIDIA A100-10C", 10, (0, 10, 20, 30)),
    "472": ("NVIDIA A100-20C", 20, (0, 20)),
    "473": ("NVIDIA A100-40C", 40, (0,)),
}
"""{number: (name, GiB, places)}, as the lab's module has them"""


class MixedGpu:
    """The functions of the card below `devices`, in vendor-specific VFIO mode."""

    def __init__(self, devices: Path, functions: tuple[str, ...]) -> None:
        self.devices, self.functions = devices, functions
        self.clear()

    def clear(self) -> None:
        """As after a boot: no function has a type."""
        for function in self.functions:
            self._write(function, "current_vgpu_type", "0")
            self._write(function, "placement_id", "-1")
        self._name_types()

    def vgpus(self) -> dict[str, tuple[str, int]]:
        """{function: (number of its type, place)} of those that have one."""
        found = {each: (self._read(each, "current_vgpu_type"), self.place(each)) for each in self.functions}
        return {function: vgpu for function, vgpu in found.items() if vgpu[0] != "0"}

    def place(self, function: str) -> int:
        return int(self._read(function, "placement_id"))

    def slots(self) -> set[int]:
        """The slots of the card that vGPUs take."""
        return {
            slot for number, at in self.vgpus().values() for slot in range(at, at + A100_TYPES[number][1])
        }

    def most(self, number: str) -> int:
        """How many more of a type can be made, if no other is: by trying all sets of places."""
        _, gib, starts = A100_TYPES[number]
        slots, free = self.slots(), len(self.functions) - len(self.vgpus())
        places = [
            set(range(start, start + gib)) for start in starts if not slots & {*range(start, start + gib)}
        ]
        return max(
            many
            for many in range(min(free, len(places)) + 1)
            if any(
                len(set().union(*chosen)) == sum(map(len, chosen)) for chosen in combinations(places, many)
            )
        )

    def set_type(self, function: str, number: str, place: str) -> None:
        """Raises OSError where the card refuses it."""
        if number == "0":
            self._write(function, "placement_id", "-1")
        elif self._read(function, "current_vgpu_type") != "0":
            raise OSError(errno.EBUSY, "Device or resource busy")
        else:
            _, gib, starts = A100_TYPES[number]
            slots = self.slots()
            wanted = [start for start in starts if place in ("", str(start))]
            free = [start for start in wanted if not slots & {*range(start, start + gib)}]
            if not free:
                raise OSError(errno.ENOSPC, "No space left on device")
            self._write(function, "placement_id", str(free[0]))
        self._write(function, "current_vgpu_type", number)
        self._name_types()

    def _name_types(self) -> None:
        for function in self.functions:
            rows = [
                f"{number:5} : {name}"
                for number, (name, _, _) in A100_TYPES.items()
                if self._read(function, "current_vgpu_type") == "0" and self.most(number)
            ]
            self._write(function, "creatable_vgpu_types", "\n".join(["ID    : vGPU Name", *rows]))

    def _read(self, function: str, name: str) -> str:
        return (self.devices / function / "nvidia" / name).read_text().strip()

    def _write(self, function: str, name: str, text: str) -> None:
        folder = self.devices / function / "nvidia"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(f"{text}\n")


class MixedKernel(Kernel):
    """The kernel, whose card refuses what does not fit."""

    def __init__(self, sys: Path, proc: Path, gpu: MixedGpu) -> None:
        super().__init__(sys, 1.0, proc)
        self._gpu = gpu

    def do(self, step: Step) -> None:
        """See `Kernel`."""
        if step.kind is StepKind.VGPU_TYPE:
            self._gpu.set_type(step.function, step.value, step.unit)
        super().do(step)
        if step.kind is StepKind.VGPU_TYPE and step.value == "0":
            self._gpu.set_type(step.function, "0", "")
