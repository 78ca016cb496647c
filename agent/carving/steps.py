"""The steps of a plan: each is one write to sysfs, or a wait for what the kernel does after one. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agent.json_checks import read_choice, read_object, read_text


class StepKind(StrEnum):
    """What a step does."""

    AWAIT = "wait"
    AUTOPROBE = "autoprobe"
    VFS = "vfs"
    OVERRIDE = "driver_override"
    UNBIND = "unbind"
    BIND = "bind"
    VGPU_TYPE = "vgpu_type"
    CREATE_MDEV = "create_mdev"
    REMOVE_MDEV = "remove_mdev"


class Sight(StrEnum):
    """What a wait is for."""

    FUNCTION = "the device"
    SRIOV = "its driver"
    VFS = "its virtual functions"
    VGPU_TYPE = "its vGPU types"
    MDEV_TYPE = "its types of mediated devices"


_TEXTS: Mapping[StepKind, str] = {
    StepKind.AWAIT: "wait for {value} of {function}",
    StepKind.AUTOPROBE: "write {value} to sriov_drivers_autoprobe of {function}",
    StepKind.VFS: "write {value} to sriov_numvfs of {function}",
    StepKind.OVERRIDE: "write {value!r} to driver_override of {function}",
    StepKind.UNBIND: "unbind {function} from {value}",
    StepKind.BIND: "bind {function} to {value}",
    StepKind.VGPU_TYPE: "write {value} to current_vgpu_type of {function}",
    StepKind.CREATE_MDEV: "create mediated device {unit} of type {value} on {function}",
    StepKind.REMOVE_MDEV: "remove mediated device {unit} of type {value} on {function}",
}


@dataclass(frozen=True, slots=True)
class Step:
    """One step on a function of a card; both are PCI addresses.

    `value` is what is written, the driver to unbind from, or what is waited for (a `Sight`). `unit` is the
    uuid of a mediated device, the place of a vGPU type (empty: any), or how much is waited for.
    """

    kind: StepKind
    card: str
    function: str
    value: str
    unit: str = ""

    @property
    def text(self) -> str:
        """What it does, in words."""
        if self.kind is StepKind.AWAIT and self.value == Sight.FUNCTION:
            return f"wait for the device {self.function}"
        if self.kind is StepKind.BIND and not self.value:
            return f"bind {self.function} to the driver that the kernel has for it"
        if self.kind is StepKind.VGPU_TYPE and self.unit:
            return f"write {self.value} to current_vgpu_type of {self.function}, at placement_id {self.unit}"
        return _TEXTS[self.kind].format(value=self.value, function=self.function, unit=self.unit)

    def to_json(self) -> dict[str, str]:
        """The form that `read_step` reads."""
        return {
            "kind": self.kind.value,
            "card": self.card,
            "function": self.function,
            "value": self.value,
            "unit": self.unit,
        }


def read_step(value: object) -> Step:
    """The inverse of `Step.to_json`. Raises UsageError for anything else."""
    record: Mapping[str, Any] = read_object(value, "step", ("kind", "card", "function", "value", "unit"))
    texts = {key: read_text(record.get(key), f"step.{key}") for key in ("card", "function", "value", "unit")}
    return Step(StepKind(read_choice(record.get("kind"), "step.kind", list(StepKind))), **texts)
