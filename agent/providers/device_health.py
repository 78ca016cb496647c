"""Whether a device is well, by what the kernel shows at each look, and which devices no guest gets. Pure.

A device that shows a symptom is not unhealthy at once, and one without any not well at once: `DEBOUNCE`
says how many looks in a row it takes, and `TRANSITIONS` which state follows. Each number there is a bound.

A device that an operator has cordoned is given to no guest either; its present consumers keep it.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, NamedTuple

from agent.codec import FORGOTTEN
from agent.device_names import address_of
from agent.driver import DeviceSigns, Guest
from agent.errors import counted
from agent.providers.reservations import with_reserved
from agent.providers.resolve import ResolvedDescription
from agent.shapes import Units, Usages, by_class
from agent.tree import ProviderTree

CELL = "numa:"
"""What the address of a cell's memory begins with."""


class Symptom(StrEnum):
    """What shows that a device is not well."""

    NO_ANSWER = "no answer"
    NO_DRIVER = "no driver"
    NO_LINK = "no link"
    FATAL_ERRORS = "fatal errors"
    NONFATAL_ERRORS = "nonfatal errors"
    MEMORY_ERRORS = "memory errors"
    NO_POWER = "no power"


MEANINGS: Mapping[Symptom, str] = {
    Symptom.NO_ANSWER: "it is not on the bus, or its configuration space reads as ones",
    Symptom.NO_DRIVER: "the driver that it had, or that its driver_override names, is not bound to it",
    Symptom.NO_LINK: "no network interface of the card is up with a link",
    Symptom.FATAL_ERRORS: "PCI Express reports new fatal errors (aer_dev_fatal)",
    Symptom.NONFATAL_ERRORS: "PCI Express goes on reporting nonfatal errors (aer_dev_nonfatal)",
    Symptom.MEMORY_ERRORS: "its memory has new uncorrected errors",
    Symptom.NO_POWER: "a change of its power state failed",
}
"""{symptom: a clause on it}"""


class Debounce(NamedTuple):
    """How many looks in a row show a symptom before its device is unhealthy, and none before it is well."""

    looks: int
    quiet: int


DEBOUNCE: Mapping[Symptom, Debounce] = {
    Symptom.NO_ANSWER: Debounce(2, 6),  # a reset of the device takes up to some seconds
    Symptom.NO_DRIVER: Debounce(3, 2),  # libvirt binds another one at the start and the end of a guest
    Symptom.NO_LINK: Debounce(3, 6),
    Symptom.FATAL_ERRORS: Debounce(1, 60),
    Symptom.NONFATAL_ERRORS: Debounce(3, 60),
    Symptom.MEMORY_ERRORS: Debounce(1, 360),
    Symptom.NO_POWER: Debounce(2, 6),
}


class HealthState(StrEnum):
    """A device that is WELL or a SUSPECT is offered; one that is UNHEALTHY or RECOVERING is not."""

    WELL = "well"
    SUSPECT = "suspect"
    UNHEALTHY = "unhealthy"
    RECOVERING = "recovering"


class Outcome(StrEnum):
    """What a look adds up to: a symptom that is new, or there for long enough; none, or none for so long."""

    SHOWN = "shown"
    CONFIRMED = "confirmed"
    QUIET = "quiet"
    SETTLED = "settled"


_W, _S, _U, _R = HealthState
TRANSITIONS: Mapping[HealthState, Mapping[Outcome, HealthState]] = {
    _W: {Outcome.SHOWN: _S, Outcome.CONFIRMED: _U, Outcome.QUIET: _W, Outcome.SETTLED: _W},
    _S: {Outcome.SHOWN: _S, Outcome.CONFIRMED: _U, Outcome.QUIET: _W, Outcome.SETTLED: _W},
    _U: {Outcome.SHOWN: _U, Outcome.CONFIRMED: _U, Outcome.QUIET: _R, Outcome.SETTLED: _W},
    _R: {Outcome.SHOWN: _U, Outcome.CONFIRMED: _U, Outcome.QUIET: _R, Outcome.SETTLED: _W},
}
"""{state: {outcome of a look: the next state}}"""

WITHHELD = frozenset({HealthState.UNHEALTHY, HealthState.RECOVERING})
LOOKS_MAX = max(looks for debounce in DEBOUNCE.values() for looks in debounce)


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """What the looks so far say of one device.

    `runs` {symptom: in how many looks in a row it was shown, to the last one}; `quiet` is how many looks in a
    row showed none. `causes` made the device unhealthy, at `since` (seconds since the epoch, UTC). `excused`
    are symptoms that an operator has cleared: they count again once they have gone. `driver` is the host's
    driver that was bound last, empty if none was. A restart forgets the looks, and nothing else.
    """

    address: str
    state: HealthState = HealthState.WELL
    runs: Annotated[Mapping[Symptom, int], FORGOTTEN] = field(default_factory=dict)
    quiet: Annotated[int, FORGOTTEN] = 0
    causes: frozenset[Symptom] = frozenset()
    since: float = 0.0
    excused: frozenset[Symptom] = frozenset()
    driver: str = ""

    @property
    def is_withheld(self) -> bool:
        """Whether it is given to no guest."""
        return self.state in WITHHELD

    @property
    def reason(self) -> str:
        """Clauses on why it is unhealthy."""
        return "; ".join(MEANINGS[symptom] for symptom in Symptom if symptom in self.causes)

    @property
    def sentence(self) -> str:
        """What it is, and how it ends."""
        recovering = " It shows none of that now." if self.state is HealthState.RECOVERING else ""
        name = f"The device {self.address}"
        if self.address.startswith(CELL):
            name = f"The memory in large pages of NUMA cell {self.address.removeprefix(CELL)}"
        return (
            f"{name} is unhealthy: {self.reason}.{recovering} It is given to no guest; the guest "
            "that has it keeps it. It is offered again when it is well, or by "
            f"`plimsoll devices clear {self.address}`."
        )


def look(known: DeviceHealth, before: DeviceSigns | None, signs: DeviceSigns, at: float) -> DeviceHealth:
    """What is known of the device after this look; `before` are the signs of the look before, if any.

    An operator's excuse ends with its symptom. `at` is the time, see `DeviceHealth`.
    """
    shown = frozenset(symptoms(signs, before, known.driver))
    excused = known.excused & shown
    counted = shown - excused
    runs = {symptom: min(known.runs.get(symptom, 0) + 1, LOOKS_MAX) for symptom in counted}
    quiet = 0 if counted else min(known.quiet + 1, LOOKS_MAX)
    confirmed = frozenset(symptom for symptom, run in runs.items() if run >= DEBOUNCE[symptom].looks)
    needed = max((DEBOUNCE[symptom].quiet for symptom in known.causes), default=0)
    outcome = Outcome.SETTLED if quiet >= needed else Outcome.QUIET
    if runs:
        outcome = Outcome.CONFIRMED if confirmed else Outcome.SHOWN
    state = TRANSITIONS[known.state][outcome]
    newly = state in WITHHELD and known.state not in WITHHELD
    return DeviceHealth(
        known.address,
        state,
        runs,
        quiet,
        (known.causes | confirmed) if state in WITHHELD else frozenset(),
        at if newly else known.since if state in WITHHELD else 0.0,
        excused,
        known.driver if signs.vfio or not signs.driver else signs.driver,
    )


def cleared(known: DeviceHealth) -> DeviceHealth:
    """The device as an operator has cleared it: it is offered, and what made it unhealthy is excused."""
    return replace(
        known,
        state=HealthState.WELL,
        runs={},
        quiet=0,
        causes=frozenset(),
        since=0.0,
        excused=known.excused | known.causes,
    )


def symptoms(signs: DeviceSigns, before: DeviceSigns | None, driver: str) -> Iterator[Symptom]:
    """The symptoms that the signs show.

    Errors count if there are more than at the look before. `driver` is the host's driver that was bound last:
    a device that never had one may be meant for guests alone.
    """
    if signs.answers is False:
        yield Symptom.NO_ANSWER
    lacks_driver = signs.driver != signs.only_driver if signs.only_driver else driver and not signs.driver
    if signs.driver is not None and lacks_driver:
        yield Symptom.NO_DRIVER
    if signs.has_link is False:
        yield Symptom.NO_LINK
    if before is not None:
        yield from (
            symptom
            for symptom, now, then in (
                (Symptom.FATAL_ERRORS, signs.fatal_errors, before.fatal_errors),
                (Symptom.NONFATAL_ERRORS, signs.nonfatal_errors, before.nonfatal_errors),
                (Symptom.MEMORY_ERRORS, signs.memory_errors, before.memory_errors),
            )
            if now is not None and then is not None and now > then
        )
    if signs.has_power is False:
        yield Symptom.NO_POWER


Cordoned = frozenset[tuple[str, str]]
"""{(resource class, exact unit), ...} that are given to no consumer that does not have them"""


def cordoned_units(units: Units, devices: Mapping[str, str], addresses: Collection[str]) -> Cordoned:
    """The exact units at these addresses.

    An address is that of an exact unit, or the PCI address of a card, which stands for all of its units.
    `units` are all that the host offers, `devices` {provider uuid: `DescribedProvider.device`}.
    """
    cards = {f"pci:{address}" for address in addresses}
    return frozenset(
        (name, unit)
        for uuid, classes in units.items()
        for name, exact in classes.items()
        for unit in exact
        if unit in addresses or address_of(unit) in addresses or devices.get(uuid) in cards
    )


def idle_cordoned(units: Units, cordoned: Cordoned, taken: Collection[tuple[str, str]]) -> Usages:
    """{provider uuid: {class: number}} of the cordoned units that no consumer has."""
    idle = {
        uuid: {
            name: sum((name, unit) in cordoned and (name, unit) not in taken for unit in exact)
            for name, exact in classes.items()
        }
        for uuid, classes in units.items()
    }
    return {
        uuid: {name: number for name, number in amounts.items() if number}
        for uuid, amounts in idle.items()
        if any(amounts.values())
    }


def idle_pages(
    tree: ProviderTree, devices: Mapping[str, str], used: Usages, addresses: Collection[str]
) -> Usages:
    """{provider uuid: {class: number}} of the idle large pages on the cells among `addresses`.

    The address of a cell is that of its `DescribedProvider.device`, such as "numa:0". Pages have no exact
    units, so `used` says how many consumers have.
    """
    kinds = tuple(f"pages:{address.removeprefix(CELL)}:" for address in addresses if address.startswith(CELL))
    return {
        uuid: {
            name: max(0, inventory.capacity - used.get(uuid, {}).get(name, 0))
            for name, inventory in tree[uuid].inventories.items()
        }
        for uuid, device in devices.items()
        if kinds and device.startswith(kinds) and uuid in tree
    }


def idle_withheld(resolved: ResolvedDescription, used: Usages, guests: Collection[Guest]) -> Usages:
    """{provider uuid: {class: amount}} of what the driver withholds, and no consumer has.

    `guests` have claims: what they bind to its cell is theirs, also before a reshape takes it there.
    """
    idle = {}
    for uuid, names in resolved.withheld.items():
        cell, inventories = resolved.cells.get(uuid), resolved.tree[uuid].inventories
        bound = sum(part.memory_mb for guest in guests for part in guest.memory if part.cell == cell)
        idle[uuid] = {
            name: max(0, inventories[name].capacity - max(bound, used.get(uuid, {}).get(name, 0)))
            for name in names & inventories.keys()
        }
    return idle


def with_idle(used: Usages, idle: Usages) -> Usages:
    """The usages with the idle cordoned units as if guests used them: they exclude what a use excludes."""
    return {**used, **{uuid: by_class((used.get(uuid, {}), here)) for uuid, here in idle.items()}}


def reserve_cordoned(
    resolved: ResolvedDescription, cordoned: Cordoned, idle: Usages, pages: Usages
) -> ResolvedDescription:
    """`resolved` with the `idle` units and `pages` reserved, and the classes of what is withheld noted."""
    classes = {
        uuid: frozenset(
            name for name, exact in by_class.items() if any((name, unit) in cordoned for unit in exact)
        )
        for uuid, by_class in resolved.units.items()
    } | {uuid: frozenset(amounts) for uuid, amounts in pages.items()}
    return replace(
        resolved,
        tree=with_reserved(resolved.tree, {**idle, **pages}),
        cordoned={uuid: names for uuid, names in classes.items() if names},
    )


HOLDERS_SHOWN_MAX = 8


def unhealthy_sentences(
    unhealthy: Mapping[str, DeviceHealth], cards: Mapping[str, str], holders: Mapping[str, str]
) -> Iterator[str]:
    """What is not well, and who has it: a sentence for each card, or device that is no part of one.

    `unhealthy` {address: health}; `cards` {address of a function: address of its card} of all functions of
    the host; `holders` {address: consumer that has it, as people know it}.
    """
    by_card: dict[str, list[DeviceHealth]] = {}
    for address, health in unhealthy.items():
        by_card.setdefault(cards.get(address, address), []).append(health)
    for card, found in by_card.items():
        if len(found) == 1:
            yield found[0].sentence
            continue
        functions = [address for address, of in cards.items() if of == card and address != card]
        sick = sorted(health.address for health in found if health.address != card)
        all_functions = counted(len(functions), "function")
        subject = (
            f"The card {card} is unhealthy, with {len(sick)} of its {all_functions}"
            if len(sick) < len(found)
            else f"{len(sick)} of the {all_functions} of the card {card} are unhealthy"
        )
        causes = frozenset().union(*(health.causes for health in found))
        reason = "; ".join(MEANINGS[symptom] for symptom in Symptom if symptom in causes)
        recovers = all(health.state is HealthState.RECOVERING for health in found)
        recovering = " They show none of that now." if recovers else ""
        held: dict[str, list[str]] = {}
        for address in sick:
            if address in holders:
                held.setdefault(holders[address], []).append(address)
        clauses = [f"{holder} has {', '.join(units)}" for holder, units in sorted(held.items())]
        more = len(clauses) - HOLDERS_SHOWN_MAX
        if more > 0:
            clauses[HOLDERS_SHOWN_MAX:] = [counted(more, "more guest has some", "more guests have some")]
        kept = f"the guests that have some keep them ({'; '.join(clauses)})" if held else "no guest has any"
        yield (
            f"{subject}: {reason}.{recovering} They are given to no guest; {kept}. They "
            f"are offered again when they are well, or by `plimsoll devices clear {card}`."
        )
