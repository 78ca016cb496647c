"""The units that claims and domains need after a boot, and their form in the plan file. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from agent.carving.carving import NeededUnit
from agent.carving.names import ADDRESS, NAME, UUID
from agent.claims.claim import Claim
from agent.device_names import address_of
from agent.driver import CarvedUnit, Guest
from agent.errors import UsageError
from agent.json_checks import read_list, read_object, read_text, read_whole

VERSION = 1
UNITS_MAX = 4096
PLACEMENT_MAX = 2**16
NAME_MAX = 64
_TEXTS: Mapping[str, tuple[re.Pattern[str], str]] = {
    "unit": (re.compile(f"{ADDRESS.pattern}|{UUID.pattern}", re.ASCII), "a PCI address or a uuid"),
    "card": (ADDRESS, "a PCI address"),
    "parent": (ADDRESS, "a PCI address"),
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
