"""Attribute what a guest uses to the providers of its host. Pure.

The driver reports a guest's amounts without providers. An exact unit is on the provider that offers it, and
bound memory on the provider of its cell; but what the row has where the class is no longer stays there, until
a reshape has moved it. Of the rest, a provider on which the row holds or claims the class has as much as is
held or claimed there; what exceeds that is spread over the providers with that class, first those of the
cells that the guest's memory is on, and the host's own before those that it shares. So is it with memory that
may be on any of several cells: which of them has it, no driver can say.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from agent.claims.fit_search import ProviderIndex
from agent.claims.guest_cells import KIB_PER_MIB
from agent.claims.host_cells import HostCells
from agent.claims.rows import NOT_USED, Row, Use
from agent.device_names import CONTEXT, page_class
from agent.driver import Guest, UsedUnit
from agent.shapes import Units, Usages, add_units
from agent.tree import ProviderTree

_MEMORY = "MEMORY_MB"


@dataclass(frozen=True)
class Place:
    """A host: its providers, all exact units that it offers, and its cells.

    `found` are the guests that were here before the state directory, and that nothing is claimed for yet:
    they use what their domains need, running or not.
    """

    host: ProviderIndex = field(default_factory=lambda: ProviderIndex.of(ProviderTree()))
    offered: Units = field(default_factory=dict)
    cells: HostCells = field(default_factory=HostCells)
    found: frozenset[str] = frozenset()

    @cached_property
    def provider_of_unit(self) -> Mapping[tuple[str, str], str]:
        """{(class, unit): provider uuid}"""
        return {
            (name, unit): uuid
            for uuid, classes in self.offered.items()
            for name, units in classes.items()
            for unit in units
        }

    @cached_property
    def unit_names(self) -> frozenset[str]:
        """All exact units that the host offers, of all classes."""
        return frozenset(unit for _, unit in self.provider_of_unit)


def use_of(row: Row, place: Place, counted: Collection[tuple[str, str]] = ()) -> Use:
    """What the row's guest uses there; what is held and claimed in the row decides where.

    `counted` are (class, exact unit) that another guest uses as well, and that count for that one: they are
    among the units, and not in the amounts.
    """
    return _Attribution(row, row.guest, place, counted).use() if row.guest is not None else NOT_USED


class _Attribution:
    """Attributes one guest's use; `use` once."""

    def __init__(
        self, row: Row, guest: Guest, place: Place, counted: Collection[tuple[str, str]] = ()
    ) -> None:
        self._row = row
        self._counted = counted
        self._guest = guest
        self._place = place
        self._amounts: dict[str, dict[str, int]] = {}
        self._rest = {name: amount for name, amount in guest.resources.items() if amount > 0}

    def use(self) -> Use:
        has = self._has()
        units, stray = self._units(has)
        if self._guest.is_off and self._guest.uuid not in self._place.found:
            return Use(self._claimed_elsewhere(units, has), units, stray)
        for uuid, classes in units.items():
            for name, exact in classes.items():
                elsewhere = sum((name, unit) in self._counted for unit in exact)
                self._rest[name] = self._rest.get(name, 0) - elsewhere
                self._add_units(uuid, name, len(exact) - elsewhere, has)
        for used in stray:
            if not any(name == used.resource_class for amounts in has.values() for name in amounts):
                self._rest[used.resource_class] = self._rest.get(used.resource_class, 0) - 1
        for uuid, amounts in has.items():
            for name, amount in amounts.items():
                if not self._has_class(uuid, name):
                    left = amount - self._amounts.get(uuid, {}).get(name, 0)
                    self._add(uuid, name, min(left, self._rest.get(name, 0)))
        self._add_bound_memory(has)
        for name in [name for name, amount in self._rest.items() if amount > 0]:
            for uuid, amounts in has.items():
                left = amounts.get(name, 0) - self._amounts.get(uuid, {}).get(name, 0)
                self._add(uuid, name, min(left, self._rest[name]))
            self._spread(name)
        return Use(self._amounts, units, stray)

    def _claimed_elsewhere(self, units: Units, has: Usages) -> dict[str, dict[str, int]]:
        """{provider: {class: units}} that the guest keeps although its claim names a place that is gone.

        A guest that is shut off uses nothing, and needs what is claimed for it: here, by units that it names.
        """
        gone = {
            (name, unit)
            for claim in self._row.claimed.values()
            for uuid, name, unit in claim.exact
            if name not in has.get(uuid, {})
        }
        amounts: dict[str, dict[str, int]] = {}
        for uuid, classes in units.items():
            for name, exact in classes.items():
                if kept := sum((name, unit) in gone for unit in exact):
                    amounts.setdefault(uuid, {})[name] = kept
        return amounts

    def _has(self) -> Usages:
        """What is held and claimed, without claims that no reshape will move.

        A reshape moves the claims whose consumers hold what moves; another client has deleted the others', or
        an agent with a copy of this host's disk has moved them. So what is claimed and not held does not
        count on a provider that is gone, nor where the class is gone while the row holds the class elsewhere,
        or the driver offers the claim's units elsewhere.
        """
        held, tree = self._row.held_amounts, self._place.host.tree
        held_classes = {name for amounts in held.values() for name in amounts}
        offered_elsewhere = {
            (uuid, name)
            for claim in self._row.claimed.values()
            for uuid, name, unit in claim.exact
            if self._place.provider_of_unit.get((name, unit), uuid) != uuid
        }
        return {
            uuid: {
                name: amount
                for name, amount in amounts.items()
                if name in held.get(uuid, {})
                or self._has_class(uuid, name)
                or (name not in held_classes and (uuid, name) not in offered_elsewhere)
            }
            for uuid, amounts in self._row.has.items()
            if uuid in held or tree.get(uuid) is not None
        }

    def _units(self, has: Usages) -> tuple[dict[str, dict[str, tuple[str, ...]]], tuple[UsedUnit, ...]]:
        """({provider: {class: units}}, units that are nowhere on this host)"""
        claimed = {
            (name, unit): uuid
            for claim in self._row.claimed.values()
            for uuid, name, unit in claim.exact
            if name in has.get(uuid, {})
        }
        units: dict[str, dict[str, tuple[str, ...]]] = {}
        stray = []
        for used in self._guest.units:
            key = used.resource_class, used.unit
            uuid = claimed.get(key) or self._place.provider_of_unit.get(key)
            if uuid is None:
                stray.append(used)
            else:
                add_units(units, uuid, *key)
        return units, tuple(stray)

    def _add_units(self, uuid: str, name: str, count: int, has: Usages) -> None:
        for other, amounts in has.items():
            if other != uuid and not self._place.offered.get(other, {}).get(name):
                left = amounts.get(name, 0) - self._amounts.get(other, {}).get(name, 0)
                moved = min(count, max(0, left))
                self._add(other, name, moved)
                count -= moved
        self._add(uuid, name, count)

    def _add_bound_memory(self, has: Usages) -> None:
        cells = {cell.id: cell for cell in self._place.cells.cells}
        on_several: dict[str, int] = {}
        for memory in self._guest.memory:
            cell = cells.get(memory.cell) if memory.cell is not None else None
            if cell is None:
                continue
            if self._has_class(cell.provider, _MEMORY):
                if memory.guest_cell is None:
                    on_several[cell.provider] = on_several.get(cell.provider, 0) + memory.memory_mb
                else:
                    left = max(0, self._rest.get(_MEMORY, 0))
                    self._add(cell.provider, _MEMORY, min(memory.memory_mb, left))
            if memory.page_kib is not None:
                name, uuid = page_class(memory.page_kib), cell.page_providers.get(memory.page_kib, "")
                if self._has_class(uuid, name):
                    pages = -(-memory.memory_mb * KIB_PER_MIB // memory.page_kib)
                    self._add(uuid, name, pages)
        # Memory on several cells counts where the row has it, and the rest of it in the shares of the cells.
        left = min(sum(on_several.values()), max(0, self._rest.get(_MEMORY, 0)))
        parts: Counter[str] = Counter()
        for uuid in on_several:
            more = has.get(uuid, {}).get(_MEMORY, 0) - self._amounts.get(uuid, {}).get(_MEMORY, 0)
            parts[uuid] = min(left, max(0, more))
            left -= parts[uuid]
        for uuid, share in on_several.items():
            more = min(left, max(0, share - parts[uuid]))
            parts[uuid] += more
            left -= more
        for uuid, part in parts.items():
            self._add(uuid, _MEMORY, part)

    def _spread(self, name: str) -> None:
        """Spread the rest evenly over the providers, to none more than its capacity if that is possible."""
        host, left, kinds = self._place.host, self._rest[name], self._guest.encryption
        offering = host.by_class.get(name, ())
        of_kind = [each for each in offering if kinds & each.traits] if name == CONTEXT else ()
        having = [(each.uuid, each.inventories[name].capacity) for each in of_kind or offering]
        own = [pair for pair in having if host.is_own(pair[0])] or having
        near = {memory.cell for memory in self._guest.memory if memory.cell is not None}
        on_cells = [pair for pair in own if self._place.cells.of_provider.get(pair[0]) in near]
        among = sorted(on_cells or own, key=lambda pair: pair[1])
        for number, (uuid, capacity) in zip(range(len(among), 0, -1), among, strict=True):
            share = -(-left // number) if number == 1 else min(-(-left // number), capacity)
            self._add(uuid, name, share)
            left -= share

    def _has_class(self, uuid: str, name: str) -> bool:
        provider = self._place.host.tree.get(uuid)
        return provider is not None and name in provider.inventories

    def _add(self, uuid: str, name: str, amount: int) -> None:
        if amount > 0:
            amounts = self._amounts.setdefault(uuid, {})
            amounts[name] = amounts.get(name, 0) + amount
            self._rest[name] = self._rest.get(name, 0) - amount


def gone_units(place: Place, rows: Iterable[Row]) -> Iterator[tuple[str, str, str, str]]:
    """(provider, class, unit, consumer) of each claimed unit that exists nowhere on the host any more.

    One that is still to be made is not gone, unless it has a place on its card, which the card has no more.
    """
    for row in rows:
        for claim in row.claimed.values():
            for uuid, name, unit in claim.exact:
                if unit not in place.unit_names and unit not in claim.replaceable:
                    yield uuid, name, unit, claim.consumer
