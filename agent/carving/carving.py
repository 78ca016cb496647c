"""A carving: how cards are to be divided, from what the operator declared and what guests need. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from agent.carving.seen import Mdev, Seen
from agent.driver import CarvedUnit, DeclaredCarving

NO_TYPE = "0"
"""The number of the vGPU type of a function that has none."""


@dataclass(frozen=True, slots=True)
class NeededUnit:
    """A unit that a claim or a domain has, and `holder`: who that is, as a sentence names it."""

    unit: CarvedUnit
    holder: str


@dataclass(frozen=True, slots=True)
class VgpuType:
    """The vGPU type of a function under a vendor's own VFIO driver: its number, and the place on the card.

    `placement` None leaves the place to the vendor's driver.
    """

    number: str
    placement: int | None = None


@dataclass(frozen=True, slots=True)
class Carving:
    """What is to be there. Keys are PCI addresses, but for `mdevs` {uuid: mediated device}.

    `vfs` {card: number of virtual functions}, `drivers` {function: the only driver it may have}, `vf_drivers`
    {card: the same for all of its virtual functions}, `types` {function: vGPU type}. `holders` {address of a
    function, or uuid: who has it}. `mixed` are the cards whose functions have no other types than these.
    """

    vfs: Mapping[str, int] = field(default_factory=dict)
    drivers: Mapping[str, str] = field(default_factory=dict)
    vf_drivers: Mapping[str, str] = field(default_factory=dict)
    types: Mapping[str, VgpuType] = field(default_factory=dict)
    mdevs: Mapping[str, Mdev] = field(default_factory=dict)
    holders: Mapping[str, str] = field(default_factory=dict)
    mixed: frozenset[str] = frozenset()

    def held_on(self, function: str) -> Iterator[str]:
        """Clauses on who has the function itself, or a mediated device on it."""
        if function in self.holders:
            yield f"{self.holders[function]} has {function}"
        for uuid, mdev in self.mdevs.items():
            if mdev.parent == function and uuid in self.holders:
                yield f"{self.holders[uuid]} has {uuid} on {function}"


def on_mixed_cards(
    declared: DeclaredCarving, needed: Iterable[NeededUnit], seen: Seen
) -> tuple[DeclaredCarving, tuple[NeededUnit, ...]]:
    """What is declared and needed on cards in mixed-size mode, and nothing of other cards."""
    return (
        DeclaredCarving(mdev_types=declared.mdev_types, mixed=declared.mixed),
        tuple(need for need in needed if seen.card_of(need.unit.parent) in declared.mixed),
    )


def join(
    declared: DeclaredCarving, needed: Iterable[NeededUnit], seen: Seen
) -> tuple[Carving, tuple[str, ...]]:
    """(the carving, sentences on units that the operator's options do not allow).

    The needed units come from a file of the agent, which is not root; so a unit counts only on a function,
    and with a type, that the operator named. To which card a function belongs is told by `seen` alone.
    """
    types: dict[str, VgpuType] = {}
    mdevs: dict[str, Mdev] = {}
    holders: dict[str, str] = {}
    problems = []
    for function, type_id in declared.vgpu_types.items():
        if seen.card_of(function) in declared.mixed:
            problems.append(
                f"[devices] vgpu_types gives {function} a type, and mixed_size_cards has its card, whose "
                "types are those that claims need; remove one of the two."
            )
        else:
            types[function] = VgpuType(_number(type_id))
    for need in needed:
        unit = need.unit
        holders[unit.unit] = need.holder
        problem = _problem(declared, need, seen)
        if problem:
            problems.append(problem)
        elif unit.type_id and unit.parent != unit.unit:
            mdevs[unit.unit] = Mdev(unit.parent, unit.type_id)
        elif unit.type_id:
            types[unit.unit] = VgpuType(_number(unit.type_id), unit.placement)
    carving = Carving(
        declared.vfs, declared.drivers, declared.vf_drivers, types, mdevs, holders, declared.mixed
    )
    return carving, tuple(problems)


def _problem(declared: DeclaredCarving, need: NeededUnit, seen: Seen) -> str:
    unit = need.unit
    card = seen.card_of(unit.parent)
    if unit.type_id and not declared.allows(unit.type_id, unit.parent, card):
        return (
            f"{need.holder} has {unit.unit} of type {unit.type_id} on {unit.parent}, which [devices] "
            "enabled_mdev_types and the device_addresses of the type do not allow; it is not made."
        )
    if not unit.type_id and unit.unit not in seen.functions and unit.card not in declared.vfs:
        return (
            f"{need.holder} has {unit.unit}, which is not there, and [devices] sriov_vfs does not say how "
            f"many virtual functions {unit.card} is to have."
        )
    return ""


def _number(type_id: str) -> str:
    """The number of a type: nvidia-471 is 471."""
    return type_id.rpartition("-")[2]
