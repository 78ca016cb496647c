"""Turn a driver's description into the full provider tree that Placement is to have. Pure.

A driver names its providers; Placement knows them by uuid, and other services write below the same root.
`resolve` gives each described provider its uuid and keeps what others wrote unchanged: providers that the
agent neither wrote nor describes (bandwidth providers of a network agent, an operator's), and, on the agent's
own providers, the classes, traits and aggregates that the agent did not write. The standard traits that the
driver could report are an exception, as in nova: the driver alone decides about them, because a scheduler
that finds a wrong one sends guests that cannot start here.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from uuid import UUID, uuid5

import os_resource_classes

from agent.device_names import DASHED_UUID, standard_traits
from agent.driver import DescribedInventory, DescribedProvider, Description
from agent.errors import DriverDataError
from agent.providers.divided_cards import Card
from agent.shapes import Classes, Units, UnitsToMake
from agent.tree import MAX_UNIT, Inventory, Provider, ProviderTree

_CUSTOM = re.compile(r"CUSTOM_[A-Z0-9_]+")
_NAME_MAX = 200
_CUSTOM_MAX = 255
_RESOURCE_CLASSES = frozenset(os_resource_classes.STANDARDS)


@dataclass(frozen=True, slots=True)
class OwnedProvider:
    """What the agent has written on one provider."""

    classes: frozenset[str] = frozenset()
    traits: frozenset[str] = frozenset()
    aggregates: frozenset[str] = frozenset()

    def __or__(self, other: "OwnedProvider") -> "OwnedProvider":
        return OwnedProvider(
            self.classes | other.classes, self.traits | other.traits, self.aggregates | other.aggregates
        )


@dataclass(frozen=True, slots=True)
class OwnedProviders:
    """{provider uuid: what the agent has written there}; all else in the tree belongs to others.

    The journal must have the union, `owned | resolved.owned`, before a plan is applied, and `resolved.owned`
    after it. Then the agent recognizes all that it wrote, wherever a crash interrupts it.
    """

    providers: Mapping[str, OwnedProvider] = field(default_factory=dict)

    def __contains__(self, uuid: object) -> bool:
        return uuid in self.providers

    def get(self, uuid: str) -> OwnedProvider:
        """What the agent has written on that provider; empty if it is not the agent's."""
        return self.providers.get(uuid, OwnedProvider())

    def __or__(self, other: "OwnedProviders") -> "OwnedProviders":
        both = {**self.providers, **other.providers}
        return OwnedProviders({uuid: self.get(uuid) | other.get(uuid) for uuid in both})

    def within(self, tree: ProviderTree) -> "OwnedProviders":
        """The part that is on providers of the tree."""
        return OwnedProviders({uuid: owned for uuid, owned in self.providers.items() if uuid in tree})


@dataclass(frozen=True, slots=True)
class ResolvedDescription:
    """A driver's description with uuids, merged with what others have in Placement.

    `tree` is the complete tree that Placement is to have, and `owned` the agent's part of it. The other
    mappings have provider uuids as keys: `devices` {uuid: device}, `units` {uuid: {class: (unit, ...)}},
    `cells` {uuid: id of the NUMA cell that the provider is on}, `ways` {uuid: sets of classes that exclude
    each other} and `to_make` {uuid: units that do not exist yet}; see `DescribedProvider`. `problems` are
    sentences on what was left out of the description, and `notices` those that are no fault. `gone` {uuid:
    classes} has claimed units that exist no more in its totals (`agent.providers.retention`), `cordoned`
    {uuid: classes} units that an operator has cordoned, or that the driver has `withheld`. `cards` {uuid:
    card} share room among classes; `unit_drivers` as of `DescribedProvider`.
    """

    tree: ProviderTree
    owned: OwnedProviders
    devices: Mapping[str, str]
    units: Units
    problems: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    cells: Mapping[str, int] = field(default_factory=dict)
    ways: Mapping[str, tuple[frozenset[str], ...]] = field(default_factory=dict)
    to_make: UnitsToMake = field(default_factory=dict)
    gone: Classes = field(default_factory=dict)
    cordoned: Classes = field(default_factory=dict)
    cards: Mapping[str, Card] = field(default_factory=dict)
    withheld: Classes = field(default_factory=dict)
    unit_drivers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def resolve(
    description: Description, current: ProviderTree, owned: OwnedProviders, root_uuid: str
) -> ResolvedDescription:
    """Merge a driver's description into Placement's tree `current`.

    `owned` is what the agent has written to `current` before. A described provider whose name is below the
    root keeps its uuid. A new one gets uuid5(root, name), the same at every attempt. Raises DriverDataError
    where the description is not a tree, or where amounts in it are invalid.
    """
    _check(description)
    uuids = uuids_of(description, current, root_uuid)
    problems = [*description.problems]
    notices: list[str] = []
    wanted: dict[str, Provider] = {}
    ours: dict[str, OwnedProvider] = {}
    reportable = standard_traits() & description.reportable
    for described in description.providers:
        uuid = uuids[described.name]
        current_provider = current.get(uuid) or Provider(uuid, described.name)
        known = _known_names(described, problems, notices)
        parent = current_provider.parent if described.parent is None else uuids[described.parent]
        written = owned.get(uuid)
        decided = replace(written, traits=written.traits | reportable)
        wanted[uuid] = _merged(current_provider, known, decided, parent, problems)
        classes = frozenset(name for name, inventory in known.inventories.items() if inventory.total)
        ours[uuid] = OwnedProvider(classes, known.traits, known.aggregates)
    for provider, remaining in _others(current, owned, wanted):
        wanted[provider.uuid] = provider
        if remaining is not None:
            ours[provider.uuid] = remaining
    by_uuid = {uuids[described.name]: described for described in description.providers}
    return ResolvedDescription(
        ProviderTree(wanted.values()),
        OwnedProviders(ours),
        {uuid: described.device for uuid, described in by_uuid.items()},
        {uuid: described.units for uuid, described in by_uuid.items() if described.units},
        tuple(problems),
        tuple(notices),
        {uuid: described.cell for uuid, described in by_uuid.items() if described.cell is not None},
        {uuid: described.ways for uuid, described in by_uuid.items() if described.ways},
        {uuid: described.to_make for uuid, described in by_uuid.items() if described.to_make},
        cards={
            uuid: Card.of(described.card) for uuid, described in by_uuid.items() if described.card is not None
        },
        withheld={uuid: described.withheld for uuid, described in by_uuid.items() if described.withheld},
        unit_drivers={
            uuid: described.unit_drivers for uuid, described in by_uuid.items() if described.unit_drivers
        },
    )


def recognize_owned(current: ProviderTree, root_uuid: str) -> OwnedProviders:
    """Find what the agent has written to Placement, after its state database was lost.

    Providers whose uuid is uuid5(root, name) are the agent's, with their inventories. The writer of traits
    and aggregates cannot be recognized, so they count as another's, and so does everything on the root.
    """
    return OwnedProviders(
        {
            provider.uuid: OwnedProvider(classes=frozenset(provider.inventories))
            for provider in current
            if provider.uuid == uuid_of_new(root_uuid, provider.name)
        }
    )


def _check(description: Description) -> None:
    if not description.providers or description.providers[0].parent is not None:
        raise DriverDataError(
            "The driver's description must begin with the host, and the host must have no parent."
        )
    seen: set[str] = set()
    for provider in description.providers:
        name = provider.name
        if name in seen:
            raise DriverDataError(f"The driver describes provider {name!r} twice.")
        if not 1 <= len(name) <= _NAME_MAX:
            raise DriverDataError(
                f"The driver describes a provider with a name of {len(name)} characters ({name[:40]!r}); "
                f"Placement accepts 1 to {_NAME_MAX}."
            )
        if seen and provider.parent not in seen:
            raise DriverDataError(
                f"The driver describes provider {name!r} under {provider.parent!r}, "
                "which does not come before it."
            )
        seen.add(name)


def uuids_of(description: Description, current: ProviderTree, root_uuid: str) -> dict[str, str]:
    """{name: uuid} of the described providers, both those in Placement's tree `current` and new ones."""
    under_root = {p.name: p.uuid for p in current.subtree(root_uuid)} if root_uuid in current else {}
    uuids = {description.providers[0].name: root_uuid}
    for described in description.providers[1:]:
        uuid = under_root.get(described.name)
        if uuid is not None and uuid != root_uuid:
            uuids[described.name] = uuid
    taken = set(uuids.values())
    for described in description.providers:
        if described.name not in uuids:
            # `uuid_of_new`, with a counter where another provider, renamed since, has that uuid.
            uuid = uuid_of_new(root_uuid, described.name)
            count = 1
            while uuid in taken:
                count += 1
                uuid = uuid_of_new(root_uuid, f"{described.name}#{count}")
            uuids[described.name] = uuid
            taken.add(uuids[described.name])
    return uuids


@lru_cache(maxsize=4096)
def uuid_of_new(root_uuid: str, name: str) -> str:
    """uuid5(root, name): the uuid that the agent gives a provider below the root, and gives it again."""
    return str(uuid5(UUID(root_uuid), name))


def _is_custom(name: str) -> bool:
    return _CUSTOM.fullmatch(name) is not None and len(name) <= _CUSTOM_MAX


def _known_names(described: DescribedProvider, problems: list[str], notices: list[str]) -> DescribedProvider:
    """The described provider without names that Placement does not accept; adds a sentence for each.

    A trait in the form of a standard one is no problem: the installed os-traits is older than the driver.
    """
    unknown = {
        "resource class": [
            name for name in described.inventories if name not in _RESOURCE_CLASSES and not _is_custom(name)
        ],
        "trait": [
            name for name in described.traits if name not in standard_traits() and not _is_custom(name)
        ],
        "aggregate": [name for name in described.aggregates if not DASHED_UUID.fullmatch(name)],
    }
    if not any(unknown.values()):
        return described
    for kind, names in unknown.items():
        for name in sorted(names):
            is_newer = kind == "trait" and not name.startswith("CUSTOM_")
            (notices if is_newer else problems).append(
                f"The driver reports the {kind} {name!r} on provider {described.name!r}; that is "
                f"{'no uuid' if kind == 'aggregate' else 'neither a standard name nor a CUSTOM_ one'}, "
                "so it was left out."
            )
    return replace(
        described,
        inventories={
            name: inventory
            for name, inventory in described.inventories.items()
            if name not in unknown["resource class"]
        },
        traits=described.traits.difference(unknown["trait"]),
        aggregates=described.aggregates.difference(unknown["aggregate"]),
    )


def _merged(
    now: Provider, known: DescribedProvider, decided: OwnedProvider, parent: str | None, problems: list[str]
) -> Provider:
    """The described provider together with what others wrote on it.

    `decided` is what the agent decides about: what it does not describe of that goes away.
    """
    inventories = {
        name: inventory
        for name, inventory in now.inventories.items()
        if name not in decided.classes and name not in known.inventories
    }
    for name, described in known.inventories.items():
        _check_amounts(known.name, name, described)
        if not described.total:
            continue
        before, ratio = now.inventories.get(name), described.allocation_ratio
        if ratio is None:
            ratio = described.initial_allocation_ratio if before is None else before.allocation_ratio
        if described.reserved > described.total:
            problems.append(
                f"{described.reserved} of {name} {'is' if described.reserved == 1 else 'are'} "
                f"reserved on provider {known.name!r}, which has only "
                f"{described.total}: nothing of it is offered. Lower the reserved amount."
            )
        inventories[name] = Inventory(
            described.total,
            min(described.reserved, described.total),
            described.min_unit,
            described.total if described.max_unit is None else described.max_unit,
            described.step_size,
            ratio,
        )
    return Provider(
        now.uuid,
        known.name,
        parent,
        inventories,
        known.traits | (now.traits - decided.traits),
        known.aggregates | (now.aggregates - decided.aggregates),
        now.generation,
    )


def _check_amounts(provider: str, resource_class: str, inventory: DescribedInventory) -> None:
    ratio = (
        inventory.initial_allocation_ratio
        if inventory.allocation_ratio is None
        else inventory.allocation_ratio
    )
    max_unit = inventory.total if inventory.max_unit is None else inventory.max_unit
    fine = (
        0 <= inventory.total <= MAX_UNIT
        and inventory.reserved >= 0
        and inventory.min_unit >= 1
        and inventory.step_size >= 1
        and (1 <= max_unit <= MAX_UNIT or not inventory.total)
        and ratio > 0
    )
    if not fine:
        raise DriverDataError(
            f"The driver reports an inventory of {resource_class} on {provider!r} that is invalid: "
            f"total {inventory.total}, reserved {inventory.reserved}, min_unit {inventory.min_unit}, "
            f"max_unit {max_unit}, step_size {inventory.step_size}, allocation_ratio {ratio}."
        )


def _others(
    current: ProviderTree, owned: OwnedProviders, wanted: Mapping[str, Provider]
) -> Iterator[tuple[Provider, OwnedProvider | None]]:
    """The providers that stay although they are not described, each with what the agent still has on it.

    A provider that the agent wrote goes away, unless other services have providers below it or inventories on
    it. Then it stays, without the agent's inventories but still the agent's, until those are gone.
    """
    needed: set[str] = set()
    for provider in current.bottom_up():
        if provider.uuid in wanted:
            continue
        written = owned.get(provider.uuid)
        foreign = {
            name: inventory for name, inventory in provider.inventories.items() if name not in written.classes
        }
        if provider.uuid not in owned:
            yield provider, None
        elif foreign or provider.uuid in needed:
            yield replace(provider, inventories=foreign), replace(written, classes=frozenset())
        else:
            continue
        if provider.parent is not None:
            needed.add(provider.parent)
