"""Add what an operator configured in provider config files to what the driver describes. Pure.

An entry for one provider, by name or uuid, replaces the general entry ($COMPUTE_NODE) for that provider
entirely. The driver has precedence: a class that it reports itself is left out of the entry, and a sentence
says so. An entry for a provider that the driver does not describe has no effect.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import os_traits

from agent.driver import DescribedProvider, Description
from agent.providers.provider_config import COMPUTE_NODE, ProviderConfig, ProviderEntry

STATUS_DISABLED: str = os_traits.COMPUTE_STATUS_DISABLED
CLOSED = "CUSTOM_PLIMSOLL_CLOSED"
"""Beside STATUS_DISABLED: the agent has set both, in one write, since the host is closed.

So Placement itself keeps who disabled the host: also where the journal is away, or the agent dies in between.
"""


@dataclass(frozen=True, slots=True)
class OverlayResult:
    """The description with the configured inventories and traits.

    `conflicts` are sentences on what was left out; `unmatched` are the entries whose provider is not
    described.
    """

    description: Description
    conflicts: tuple[str, ...] = ()
    unmatched: tuple[ProviderEntry, ...] = ()


def overlay(config: ProviderConfig, description: Description, uuids: Mapping[str, str]) -> OverlayResult:
    """Add the configured entries to the description.

    `uuids` is {provider name: uuid} of all described providers.
    """
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
                f"{entry.where}.identification: {entry.provider} is {name}, which "
                f"{chosen[name].where} already configures; this entry is ignored. Merge the two entries."
            )
        else:
            chosen[name] = entry
    providers = tuple(
        _with_entry(provider, chosen[provider.name], _moved_from(provider.name, description), conflicts)
        if provider.name in chosen
        else provider
        for provider in description.providers
    )
    return OverlayResult(replace(description, providers=providers), tuple(conflicts), tuple(unmatched))


def with_status_disabled(description: Description) -> Description:
    """The description of a host that schedulers must not choose, by nova's trait."""
    host, *others = description.providers
    disabled = replace(host, traits=host.traits | {STATUS_DISABLED})
    return replace(description, providers=(disabled, *others))


def closed_traits(traits: frozenset[str], *, closed: bool, paused: bool) -> frozenset[str]:
    """The root's traits on a host that has been closed for long, or is open again.

    What another client said stays. `paused`: a pause tells schedulers as well, so its trait stays.
    """
    if closed:
        return traits if STATUS_DISABLED in traits else traits | {STATUS_DISABLED, CLOSED}
    if CLOSED not in traits:
        return traits
    return traits - ({CLOSED} if paused else {CLOSED, STATUS_DISABLED})


def _moved_from(name: str, description: Description) -> frozenset[str]:
    """The classes that the driver moves away from the provider: it reports them there, too."""
    return frozenset(
        moved
        for move in description.moves
        if move.from_resource_provider == name
        for moved in move.moved_resources
    )


def _with_entry(
    described: DescribedProvider, entry: ProviderEntry, moved: Iterable[str], conflicts: list[str]
) -> DescribedProvider:
    reported = {*described.inventories, *moved}
    for name in sorted(reported & entry.inventories.keys()):
        conflicts.append(
            f"{entry.where}.inventories.additional: the driver itself reports {name} on {described.name}; "
            "this inventory is ignored. Remove it from the file, or choose another class."
        )
    added = {name: inventory for name, inventory in entry.inventories.items() if name not in reported}
    return replace(
        described,
        inventories={**described.inventories, **added},
        traits=described.traits | entry.traits,
    )
