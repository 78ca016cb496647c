"""A carving: how cards are to be divided, from what the operator declared and what guests need. Pure.

Beside it, what the kernel shows of the functions and mediated devices that a carving is about, the units that
claims and domains need after a boot in their form in the plan file, and what names and numbers of sysfs look
like, so that no path is built from anything else.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.claims.claim import Claim
from agent.device_names import PCI_ADDRESS, address_of
from agent.driver import CarvedUnit, DeclaredCarving, Guest
from agent.errors import UsageError
from agent.json_checks import read_list, read_object, read_text, read_whole

UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", re.ASCII)
"""The name of a driver, or the id of a type of mediated devices."""

NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Mdev:
    """A mediated device: the function on which it is, and the id of its type."""

    parent: str
    type_id: str


@dataclass(frozen=True, slots=True)
class SeenFunction:
    """A PCI function. `driver` and `override` are empty without one; `card` is that of a virtual function.

    `vfs_max` is None where its driver makes no virtual functions, or is not bound yet. `vfs_number` is how
    many it was told to make, `vfs` those that are there, `vf_addresses` the addresses that the first
    `vfs_max` ones have, as far as they can be told. `autoprobe`: the kernel binds drivers to new ones; None
    where it does not tell.
    `vgpu_type` is the number of its vGPU type under a vendor's own VFIO driver, None under any other, and
    `vgpu_place` the slot of the card in which that vGPU starts, None where it has no place.
    `mdev_types` are the ids of the types of mediated devices that it offers. `type_sizes` {number of a vGPU
    type, or id of a type of mediated devices: its frame buffer in MiB} where the vendor's driver tells it.
    `uses` are clauses on what has it: "its interface enp65s0v0 is up".
    """

    address: str
    driver: str = ""
    override: str = ""
    card: str | None = None
    vfs_max: int | None = None
    vfs_number: int = 0
    vfs: tuple[str, ...] = ()
    vf_addresses: tuple[str, ...] = ()
    autoprobe: bool | None = None
    vgpu_type: str | None = None
    mdev_types: frozenset[str] = frozenset()
    uses: tuple[str, ...] = ()
    type_sizes: Mapping[str, int] = field(default_factory=dict)
    vgpu_place: int | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """{address: function} of the functions that exist, and {uuid: mediated device}."""

    functions: Mapping[str, SeenFunction] = field(default_factory=dict)
    mdevs: Mapping[str, Mdev] = field(default_factory=dict)

    def card_of(self, address: str) -> str:
        """The card of a virtual function, also of one that is still to be made; else the address itself."""
        function = self.functions.get(address)
        if function is not None:
            return function.card or address
        for card in self.functions.values():
            if address in card.vf_addresses:
                return card.address
        return address

    def size_of(self, card: str, type_id: str) -> int:
        """The frame buffer of a type in MiB, as any function of the card tells it; 0 where none does."""
        functions = (each for each in self.functions.values() if card in (each.card, each.address))
        return max((each.type_sizes.get(type_id, 0) for each in functions), default=0)

    def has_use(self, address: str) -> bool:
        """Whether something has the function, or a mediated device is on it."""
        function = self.functions.get(address)
        return bool(function and function.uses) or any(mdev.parent == address for mdev in self.mdevs.values())


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


VERSION = 1
UNITS_MAX = 4096
PLACEMENT_MAX = 2**16
NAME_MAX = 64
_TEXTS: Mapping[str, tuple[re.Pattern[str], str]] = {
    "unit": (re.compile(f"{PCI_ADDRESS.pattern}|{UUID.pattern}", re.ASCII), "a PCI address or a uuid"),
    "card": (PCI_ADDRESS, "a PCI address"),
    "parent": (PCI_ADDRESS, "a PCI address"),
    "type_id": (re.compile(f"(?:{NAME.pattern})?", re.ASCII), "the id of a type"),
}
_KEYS = (*_TEXTS, "placement", "holder")


def needed_units(
    claims: Iterable[Claim],
    guests: Iterable[Guest],
    carved: Iterable[CarvedUnit],
    former: Iterable[NeededUnit],
) -> tuple[NeededUnit, ...]:
    """The units of cards that claims and guests have, by their names.

    How a unit was made is told by the driver (`carved`) where it knows that, else by the claim for which it
    is made, else by `former`, what was needed before: after a boot the unit itself may be gone. A function
    whose vGPU a claim has in one place is not needed in the other place in which its guest may have it.
    """
    known = {name: need.unit for need in former for name in need.unit.names}
    holders: dict[str, str] = {}
    for claim in claims:
        holder = _holder(claim.request.name, claim.consumer)
        for _, _, unit in claim.exact:
            holders.setdefault(unit, holder)
        for unit, making in claim.makings.items():
            known[unit] = _to_make(unit, making)
    in_place = {address_of(unit) for unit in holders if address_of(unit) != unit}
    for guest in guests:
        for used in guest.units:
            if address_of(used.unit) in in_place:
                continue
            holders.setdefault(used.unit, _holder(guest.name, guest.uuid))
    known |= {name: unit for unit in carved for name in unit.names}
    return tuple(NeededUnit(known[unit], holders[unit]) for unit in sorted(holders) if unit in known)


def _to_make(unit: str, making: Mapping[str, str]) -> CarvedUnit:
    parent, place = making["parent"], making.get("placement", "")
    if place.isdecimal():  # the vGPU of a function
        return CarvedUnit(parent, parent, parent, making["type"], int(place))
    return CarvedUnit(unit, parent, parent, making["type"])


def _holder(name: str, uuid: str) -> str:
    shown = "".join(character for character in name if character.isprintable())[:NAME_MAX]
    return f"instance {shown} ({uuid})" if shown else f"instance {uuid}"


def needs_to_json(needs: Iterable[NeededUnit]) -> dict[str, Any]:
    """The content of the plan file, as `read_needs` reads it."""
    return {
        "version": VERSION,
        "units": [
            {
                **{key: getattr(need.unit, key) for key in _TEXTS},
                "placement": need.unit.placement,
                "holder": need.holder,
            }
            for need in needs
        ],
    }


def read_needs(data: object) -> tuple[NeededUnit, ...]:
    """The units in the content of a plan file. Raises UsageError for anything else."""
    content: Mapping[str, Any] = read_object(data, "", ("version", "units"))
    if content.get("version") != VERSION:
        raise UsageError(f"version: this Plimsoll knows version {VERSION} of the file.")
    units = read_list(content.get("units"), "units")
    if len(units) > UNITS_MAX:
        raise UsageError(f"units: there are {len(units)}, and {UNITS_MAX} are allowed.")
    return tuple(_needs(units))


def _needs(units: Iterable[object]) -> Iterator[NeededUnit]:
    for number, value in enumerate(units):
        path = f"units[{number}]"
        record: Mapping[str, Any] = read_object(value, path, _KEYS)
        texts = {
            key: read_text(record.get(key), f"{path}.{key}", pattern, wanted)
            for key, (pattern, wanted) in _TEXTS.items()
        }
        placement = record.get("placement")
        if placement is not None:
            placement = read_whole(placement, f"{path}.placement", 0, PLACEMENT_MAX)
        holder = read_text(record.get("holder"), f"{path}.holder")
        if not holder.isprintable():
            raise UsageError(f"{path}.holder: it has characters that cannot be shown.")
        yield NeededUnit(CarvedUnit(placement=placement, **texts), holder)
