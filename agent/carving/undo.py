"""Undo what a run that was cut off did and that is not wanted any more. Pure.

What is still wanted is finished by the plan, which needs no memory. Without the journal, what the run did
otherwise could not be told from what the operator or another program did.
"""

from collections.abc import Callable, Iterable, Mapping

from agent.carving.carving import NO_TYPE, Carving
from agent.carving.seen import Mdev, Seen, SeenFunction
from agent.carving.steps import Step, StepKind


def undo(unfinished: Iterable[Step], carving: Carving, seen: Seen) -> tuple[Step, ...]:
    """The steps back, the last first.

    There is none for a device that a claim or a domain has, or that is not there.
    """
    back: dict[Step, None] = {}
    for step in reversed(tuple(unfinished)):
        function, look = seen.functions.get(step.function), _BACK.get(step.kind)
        if function is not None and look is not None and step.function not in carving.holders:
            undone = look(step, function, carving, seen)
            back |= {undone: None} if undone is not None else {}
    return tuple(back)


def _mdev(step: Step, function: SeenFunction, carving: Carving, seen: Seen) -> Step | None:
    made = seen.mdevs.get(step.unit) == Mdev(function.address, step.value)
    wanted = step.unit in carving.mdevs or step.unit in carving.holders
    return _as(step, StepKind.REMOVE_MDEV, step.value) if made and not wanted else None


def _type(step: Step, function: SeenFunction, carving: Carving, _: Seen) -> Step | None:
    ours = function.vgpu_type == step.value != NO_TYPE and step.function not in carving.types
    return _as(step, StepKind.VGPU_TYPE, NO_TYPE, "") if ours else None


def _override(step: Step, function: SeenFunction, carving: Carving, _: Seen) -> Step | None:
    ours = function.override == step.value != "" and not _names_driver(step, carving)
    return _as(step, StepKind.OVERRIDE, "") if ours else None


def _unbound(step: Step, function: SeenFunction, carving: Carving, _: Seen) -> Step | None:
    ours = not function.driver and not _names_driver(step, carving)
    return _as(step, StepKind.BIND, "") if ours else None


def _autoprobe(step: Step, function: SeenFunction, carving: Carving, _: Seen) -> Step | None:
    ours = function.autoprobe is False and step.function not in carving.vf_drivers
    return _as(step, StepKind.AUTOPROBE, "1") if ours else None


def _vfs(step: Step, function: SeenFunction, carving: Carving, seen: Seen) -> Step | None:
    unused = not any(seen.has_use(vf) or any(carving.held_on(vf)) for vf in function.vfs)
    ours = function.vfs_number and step.function not in carving.vfs and unused
    return _as(step, StepKind.VFS, "0") if ours else None


def _names_driver(step: Step, carving: Carving) -> bool:
    return step.function in carving.drivers or step.card in carving.vf_drivers


def _as(step: Step, kind: StepKind, value: str, unit: str | None = None) -> Step:
    return Step(kind, step.card, step.function, value, step.unit if unit is None else unit)


_BACK: Mapping[StepKind, Callable[[Step, SeenFunction, Carving, Seen], Step | None]] = {
    StepKind.CREATE_MDEV: _mdev,
    StepKind.VGPU_TYPE: _type,
    StepKind.OVERRIDE: _override,
    StepKind.UNBIND: _unbound,
    StepKind.AUTOPROBE: _autoprobe,
    StepKind.VFS: _vfs,
}
