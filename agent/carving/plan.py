"""Plan the steps from what the kernel shows to a carving, and those that undo a run that was cut off. Pure.

A step is one write to sysfs, or a wait for what the kernel does after one. A plan has no memory: after each
step it can be made anew from what is seen then, and its first step is the next one. So a run that ended in
the middle is finished by the next run. Only what is not wanted any more needs the journal to be undone:
without it, what the run did could not be told from what the operator or another program did.

The order on a card is that of https://docs.kernel.org/PCI/pci-iov-howto.html: no driver may take the virtual
functions before theirs is named, and types and mediated devices come when the functions are there. The
largest come first: a small one where the driver puts it may leave no place for a large one, but a large one
leaves the small ones theirs.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

from agent.carving.carving import NO_TYPE, Carving, Mdev, Seen, SeenFunction, VgpuType
from agent.errors import counted
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


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps in their order, and sentences on what is not done, with who stands in the way."""

    steps: tuple[Step, ...] = ()
    refusals: tuple[str, ...] = ()


def plan(carving: Carving, seen: Seen) -> Plan:
    """What is to be done. Where nothing differs the plan is empty."""
    planner = _Planner(carving, seen)
    for card in planner.cards():
        planner.plan_card(card)
    return Plan(tuple(planner.steps), tuple(planner.refusals))


class _Planner:
    """Collects steps. `functions` are those seen, and those that the steps so far make."""

    def __init__(self, carving: Carving, seen: Seen) -> None:
        self.steps: list[Step] = []
        self.refusals: list[str] = []
        self._carving = carving
        self._seen = seen
        self._functions = dict(seen.functions)
        self._complete: set[str] = set()
        """Cards that get no other virtual functions than those they have."""

    def cards(self) -> list[str]:
        """The cards that the carving is about, in the order of their addresses."""
        wanted = self._carving
        named = {*wanted.drivers, *wanted.types, *(mdev.parent for mdev in wanted.mdevs.values())}
        there = wanted.mixed & self._functions.keys()
        return sorted({*wanted.vfs, *wanted.vf_drivers, *there, *map(self._seen.card_of, named)})

    def plan_card(self, card: str) -> None:
        """Plan the steps of a card: its functions, then their drivers, types and mediated devices."""
        wanted = self._carving
        if card in wanted.drivers:
            self._plan_driver(card, card, wanted.drivers[card])
        if card in wanted.vfs:
            self._plan_vfs(card, wanted.vfs[card])
        for function, driver in sorted(self._drivers_of_vfs(card).items()):
            self._plan_driver(card, function, driver)
        if card in wanted.mixed:
            for address in sorted(self._functions):
                if self._functions[address].card == card:
                    self._plan_free_room(card, self._functions[address])
        types = sorted(self._on(card, wanted.types).items())
        for function, vgpu_type in sorted(types, key=lambda item: -self._seen.size_of(card, item[1].number)):
            self._plan_type(card, function, vgpu_type)
        mdevs = sorted(item for item in wanted.mdevs.items() if self._seen.card_of(item[1].parent) == card)
        for uuid, mdev in sorted(mdevs, key=lambda item: -self._seen.size_of(card, item[1].type_id)):
            self._plan_mdev(card, uuid, mdev)

    def _on(self, card: str, wanted: Mapping[str, _T]) -> dict[str, _T]:
        return {function: value for function, value in wanted.items() if self._seen.card_of(function) == card}

    def _drivers_of_vfs(self, card: str) -> dict[str, str]:
        general = self._carving.vf_drivers.get(card)
        vfs = [function.address for function in self._functions.values() if function.card == card]
        drivers = dict.fromkeys(vfs, general) if general is not None else {}
        own = self._on(card, self._carving.drivers)
        own.pop(card, None)
        return drivers | own

    def _add(self, kind: StepKind, card: str, function: str, value: str, unit: str = "") -> None:
        self.steps.append(Step(kind, card, function, value, unit))

    # Virtual functions

    def _plan_vfs(self, card: str, number: int) -> None:
        function = self._functions.get(card)
        if function is None or function.vfs_max is None:
            if number == 0 and function is not None:
                return
            self._add(StepKind.AWAIT, card, card, Sight.SRIOV)
            function = replace(function or SeenFunction(card), vfs_max=number)
        if function.vfs_max is not None and number > function.vfs_max:
            self.refusals.append(
                f"{card} can have {counted(function.vfs_max, 'virtual function')}, and [devices] sriov_vfs "
                f"wants {number}."
            )
            self._complete.add(card)
            return
        changes = function.vfs_number != number
        if changes and function.vfs_number and not self._may_remove_vfs(function, number):
            self._complete.add(card)
            return
        if changes and function.vfs_number:
            self._add(StepKind.VFS, card, card, "0")
            self._forget_vfs(card)
        names_driver = card in self._carving.vf_drivers
        if names_driver and function.autoprobe is not False:
            self._add(StepKind.AUTOPROBE, card, card, "0")
        if not names_driver and changes and number and function.autoprobe is False:
            # An earlier carving named a driver; without one the functions are to be as after a boot.
            self._add(StepKind.AUTOPROBE, card, card, "1")
        if changes and number:
            self._add(StepKind.VFS, card, card, str(number))
        if number and (changes or len(function.vfs) < number):
            self._add(StepKind.AWAIT, card, card, Sight.VFS, str(number))
            for address in function.vf_addresses[:number]:
                self._functions.setdefault(address, SeenFunction(address, card=card))
        else:
            self._complete.add(card)

    def _may_remove_vfs(self, card: SeenFunction, number: int) -> bool:
        """Whether nothing has any of the card's virtual functions; if something has, a refusal says what."""
        held = [clause for vf in card.vfs for clause in self._what_has(vf)]
        if held:
            self.refusals.append(
                f"{card.address} has {counted(card.vfs_number or 0, 'virtual function')}, and [devices] "
                f"sriov_vfs wants {number}; the number cannot change while one is in use: {'; '.join(held)}."
            )
        return not held

    def _what_has(self, vf: str) -> Iterator[str]:
        yield from self._carving.held_on(vf)
        function = self._functions.get(vf)
        if function is not None:
            yield from (f"{vf}: {use}" for use in function.uses)
        for uuid, mdev in sorted(self._seen.mdevs.items()):
            if mdev.parent == vf and uuid not in self._carving.holders:
                yield f"{vf} has the mediated device {uuid}"

    def _forget_vfs(self, card: str) -> None:
        self._functions = {
            address: function for address, function in self._functions.items() if function.card != card
        }

    # Functions

    def _function(self, card: str, address: str) -> SeenFunction | None:
        """The function, after a wait where it is not there yet; None where it will not come."""
        function = self._functions.get(address)
        if function is not None:
            return function
        if card != address and card in self._complete:
            self.refusals.append(f"{address} is none of the virtual functions of {card}.")
            return None
        self._add(StepKind.AWAIT, card, address, Sight.FUNCTION)
        return SeenFunction(address)

    def _plan_driver(self, card: str, address: str, driver: str) -> None:
        function = self._function(card, address)
        if function is None:
            return
        if function.driver not in ("", driver) and function.uses:
            self.refusals.append(
                f"{address} has the driver {function.driver}, and [devices] driver_overrides wants {driver}; "
                f"it cannot change while the device is in use: {'; '.join(function.uses)}."
            )
            return
        if function.override != driver:
            self._add(StepKind.OVERRIDE, card, address, driver)
        if function.driver not in ("", driver):
            self._add(StepKind.UNBIND, card, address, function.driver)
        if function.driver != driver:
            self._add(StepKind.BIND, card, address, driver)
        self._functions[address] = replace(function, driver=driver, override=driver)

    def _plan_free_room(self, card: str, function: SeenFunction) -> None:
        """Take away a type that is not wanted, or not in that place: it stands in the way of others."""
        wanted = self._carving.types.get(function.address)
        if function.vgpu_type in (None, NO_TYPE) or (wanted is not None and _is(function, wanted)):
            return
        held = () if wanted is not None else tuple(self._carving.held_on(function.address))
        if held or function.uses:
            self.refusals.append(
                f"{function.address} has the vGPU type {function.vgpu_type}, which no claim has there; it "
                f"stays while it is in use: {'; '.join((*held, *function.uses))}."
            )
            return
        self._add(StepKind.VGPU_TYPE, card, function.address, NO_TYPE)
        self._functions[function.address] = replace(function, vgpu_type=NO_TYPE, vgpu_place=None)

    def _plan_type(self, card: str, address: str, wanted: VgpuType) -> None:
        function = self._function(card, address)
        if function is None or function.vgpu_type == wanted.number:
            return
        if function.vgpu_type not in (None, NO_TYPE):
            if card in self._carving.mixed:  # refused already
                return
            held = [*self._carving.held_on(address), *function.uses]
            self.refusals.append(
                f"{address} has the vGPU type {function.vgpu_type}, and {wanted.number} is wanted"
                f"{': ' + '; '.join(held) if held else ''}; write 0 to its current_vgpu_type when no guest "
                "has it."
            )
            return
        if function.vgpu_type is None:
            self._add(StepKind.AWAIT, card, address, Sight.VGPU_TYPE)
        place = "" if wanted.placement is None else str(wanted.placement)
        self._add(StepKind.VGPU_TYPE, card, address, wanted.number, place)

    def _plan_mdev(self, card: str, uuid: str, wanted: Mdev) -> None:
        there = self._seen.mdevs.get(uuid)
        if there == wanted:
            return
        if there is not None:
            self.refusals.append(
                f"The mediated device {uuid} is of type {there.type_id} on {there.parent}, and type "
                f"{wanted.type_id} on {wanted.parent} is needed; remove it when no guest has it."
            )
            return
        function = self._function(card, wanted.parent)
        if function is None:
            return
        if wanted.type_id not in function.mdev_types:
            self._add(StepKind.AWAIT, card, wanted.parent, Sight.MDEV_TYPE, wanted.type_id)
        self._add(StepKind.CREATE_MDEV, card, wanted.parent, wanted.type_id, uuid)


def _is(function: SeenFunction, wanted: VgpuType) -> bool:
    return function.vgpu_type == wanted.number and wanted.placement in (None, function.vgpu_place)


def undo(unfinished: Iterable[Step], carving: Carving, seen: Seen) -> tuple[Step, ...]:
    """The steps back, the last first.

    There is none for a device that a claim or a domain has, or that is not there.
    """
    back: dict[Step, None] = {}
    for step in reversed(tuple(unfinished)):
        function = seen.functions.get(step.function)
        if function is not None and step.function not in carving.holders:
            undone = _step_back(step, function, carving, seen)
            back |= {undone: None} if undone is not None else {}
    return tuple(back)


def _step_back(step: Step, function: SeenFunction, carving: Carving, seen: Seen) -> Step | None:
    """The step that takes this one back; None where its effect is not there, or is wanted now."""
    names_driver = step.function in carving.drivers or step.card in carving.vf_drivers
    match step.kind:
        case StepKind.CREATE_MDEV:
            made = seen.mdevs.get(step.unit) == Mdev(function.address, step.value)
            wanted = step.unit in carving.mdevs or step.unit in carving.holders
            return replace(step, kind=StepKind.REMOVE_MDEV) if made and not wanted else None
        case StepKind.VGPU_TYPE:
            ours = function.vgpu_type == step.value != NO_TYPE and step.function not in carving.types
            return replace(step, value=NO_TYPE, unit="") if ours else None
        case StepKind.OVERRIDE:
            ours = function.override == step.value != "" and not names_driver
            return replace(step, value="") if ours else None
        case StepKind.UNBIND:
            unbound = not function.driver and not names_driver
            return replace(step, kind=StepKind.BIND, value="") if unbound else None
        case StepKind.AUTOPROBE:
            ours = function.autoprobe is False and step.function not in carving.vf_drivers
            return replace(step, value="1") if ours else None
        case StepKind.VFS:
            unused = not any(seen.has_use(vf) or any(carving.held_on(vf)) for vf in function.vfs)
            ours = function.vfs_number > 0 and step.function not in carving.vfs and unused
            return replace(step, value="0") if ours else None
        case _:
            return None
