"""Laying what an operator configured over what the driver describes. Pure.

An entry of a provider's own, by name or uuid, beats the one for the host in general ($COMPUTE_NODE), all of
it. What the driver reports itself stays the driver's: such a class is left out of the entry, and named.
Providers of others under our root are theirs, whatever an entry says.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from agent.driver import DescribedProvider, Description
from agent.providers.provider_config import COMPUTE_NODE, ProviderConfig, ProviderEntry


@dataclass(frozen=True, slots=True)
class OverlayResult:
    """`conflicts` are sentences on what was left out; `unmatched` the entries of providers not described."""

    description: Description
    conflicts: tuple[str, ...] = ()
    unmatched: tuple[ProviderEntry, ...] = ()


def overlay(config: ProviderConfig, description: Description, uuids: Mapping[str, str]) -> OverlayResult:
    """The description with what is configured added; `uuids` {provider name: uuid} of all described."""
    if not config.entries:
        return OverlayResult(description)
    names = {uuid: name for name, uuid in uuids.items()}
    conflicts: list[str] = []
    unmatched: list[ProviderEntry] = []
    chosen: dict[str, ProviderEntry] = {}
    for entry in sorted(config.entries, key=lambda entry: entry.uuid == COMPUTE_NODE):
        if entry.uuid == COMPUTE_NODE:
            chosen.setdefault(description.providers[0].name, entry)
            continue
        name = entry.name if entry.uuid is None else names.get(entry.uuid)
        if name is None or name not in uuids:
            unmatched.append(entry)
        elif name in chosen:
            conflicts.append(
                f"{entry.where}.identification: {entry.provider} is {name}, which is configured in "
                f"{chosen[name].where} already; this entry is left out. Put both into one."
            )
        else:
            chosen[name] = entry
    providers = tuple(
        _laid(each, chosen[each.name], _moved_from(each.name, description), conflicts)
        if each.name in chosen
        else each
        for each in description.providers
    )
    return OverlayResult(replace(description, providers=providers), tuple(conflicts), tuple(unmatched))


def _moved_from(name: str, description: Description) -> frozenset[str]:
    """The classes that by the driver's word went away from the provider: they are the driver's there, too."""
    return frozenset(
        moved
        for move in description.moves
        if move.from_resource_provider == name
        for moved in move.moved_resources
    )


def _laid(
    described: DescribedProvider, entry: ProviderEntry, moved: Iterable[str], conflicts: list[str]
) -> DescribedProvider:
    reported = {*described.inventories, *moved}
    for name in sorted(reported & entry.inventories.keys()):
        conflicts.append(
            f"{entry.where}.inventories.additional: the driver itself reports {name} on {described.name}; "
            "what the file says of it is left out. Take it out of the file, or choose another class."
        )
    added = {name: each for name, each in entry.inventories.items() if name not in reported}
    return replace(
        described,
        inventories={**described.inventories, **added},
        traits=described.traits | entry.traits,
    )
