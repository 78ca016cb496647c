"""Explain why a request does not fit: one shortfall for each resource and provider. Pure."""

from collections.abc import Iterable, Iterator

from agent.claims.claim import Shortfall
from agent.claims.fit_search import STEPS_MAX, FitSearch, FitSlot, HostStock, ProviderIndex, any_of_clause
from agent.claims.near_names import near_class, near_trait
from agent.claims.request import ClaimRequest
from agent.errors import counted


def shortfalls(
    request: ClaimRequest, stock: HostStock, slots: list[FitSlot], search: FitSearch
) -> tuple[Shortfall, ...]:
    """The shortfalls of a request that does not fit, at least one.

    `slots` are those of the request, and `search` is the search that failed. Rules are disabled one after the
    other, to find the one that the failure is due to.
    """
    of_single_slots = tuple(
        shortfall for slot in slots if not slot.options for shortfall in _of_slot(slot, stock)
    )
    if of_single_slots:
        return of_single_slots
    if search.gave_up:
        asked = sum(request.resources.values())
        reason = f"no arrangement was found within {STEPS_MAX} steps; ask for fewer groups at once"
        return (Shortfall.at(stock.host.root, "", asked, 0, reason),)
    if FitSearch(request, stock, slots, traits=False).run():
        return tuple(_of_traits(stock, slots))
    if FitSearch(request, stock, slots, subtrees=False).run():
        return tuple(_of_subtrees(request, stock, slots))
    if FitSearch(request, stock, slots, isolated=False).run():
        return tuple(_of_isolation(stock, slots))
    return tuple(_of_crowding(stock, slots))


def root_shortfalls(request: ClaimRequest, host: ProviderIndex) -> Iterator[Shortfall]:
    """A shortfall for each trait that the host's root lacks, or must not have."""
    traits = host.root.traits if host.root else frozenset()
    for trait in sorted(request.root_required - traits):
        yield Shortfall.at(host.root, "", 0, 0, f"lacks trait {trait}")
    for trait in sorted(request.root_forbidden & traits):
        yield Shortfall.at(host.root, "", 0, 0, f"has the forbidden trait {trait}")


def _of_slot(slot: FitSlot, stock: HostStock) -> Iterator[Shortfall]:
    """The shortfalls of a slot that no provider can serve alone."""
    candidates = [
        provider
        for provider in stock.host.providers
        if any(name in provider.inventories for name in slot.resources)
    ]
    for provider in candidates:
        for name, reason in stock.obstacles(slot.group, slot.resources, provider):
            free = stock.free(provider, name)
            yield Shortfall.at(provider, name, slot.resources.get(name, 0), free, _in_group(slot, reason))
        if provider.uuid in slot.barred:
            for name, amount in slot.resources.items():
                reason = _in_group(slot, slot.barred[provider.uuid])
                yield Shortfall.at(provider, name, amount, stock.free(provider, name), reason)
    if not candidates:
        for name, amount in (slot.resources or {"": 0}).items():
            yield Shortfall.at(stock.host.root, name, amount, 0, _in_group(slot, _nothing(slot, stock.host)))


def _nothing(slot: FitSlot, host: ProviderIndex) -> str:
    if host.root is None:
        return "the host has no inventory yet"
    if slot.resources:
        return "no provider of this host has it" + _meant(
            near_class(name, host.by_class) for name in slot.resources if name not in host.by_class
        )
    wanted = [any_of_clause("trait", any_of) for any_of in slot.group.required]
    wanted += [any_of_clause("aggregate", any_of) for any_of in slot.group.member_of]
    return f"no provider of this host has {' and '.join(wanted)}" + _meant_traits(slot, host)


def _meant_traits(slot: FitSlot, host: ProviderIndex) -> str:
    present = frozenset().union(*(provider.traits for provider in host.providers))
    return _meant(near_trait(name, present) for any_of in slot.group.required for name in sorted(any_of))


def _meant(near: Iterable[str | None]) -> str:
    names = [name for name in near if name is not None]
    return f"; did you mean {' and '.join(names)}?" if names else ""


def _in_group(slot: FitSlot, reason: str) -> str:
    return f"group {slot.group.suffix!r}: {reason}" if slot.group.suffix else reason


def _of_traits(stock: HostStock, slots: list[FitSlot]) -> Iterator[Shortfall]:
    unsuffixed = [slot for slot in slots if not slot.group.suffix]
    able = [provider for slot in unsuffixed for provider in slot.options]
    missing = [
        any_of_clause("trait", any_of)
        for any_of in unsuffixed[0].group.required
        if not any(any_of & provider.traits for provider in able)
    ]
    reason = "the providers that have the required traits cannot give all of the group together"
    if missing:
        reason = f"no provider that can give any of the group has {' or '.join(missing)}"
        reason += _meant_traits(unsuffixed[0], stock.host)
    for slot in unsuffixed:
        yield from _everywhere(slot, stock, reason)


def _of_subtrees(request: ClaimRequest, stock: HostStock, slots: list[FitSlot]) -> Iterator[Shortfall]:
    for suffixes in request.same_subtree:
        groups = ", ".join(map(repr, sorted(suffixes)))
        for slot in slots:
            if slot.group.suffix in suffixes:
                reason = f"the groups {groups} must lie in one subtree, and here they do not fit together"
                yield from _everywhere(slot, stock, reason)


def _of_isolation(stock: HostStock, slots: list[FitSlot]) -> Iterator[Shortfall]:
    suffixed = [slot for slot in slots if slot.group.suffix]
    serving = {provider.uuid for slot in suffixed for provider in slot.options}
    reason = (
        f"group_policy isolate puts each of {counted(len(suffixed), 'group')} on a provider of its own, "
        f"and {len(serving)} can serve them"
    )
    for slot in suffixed:
        yield from _everywhere(slot, stock, reason)


def _of_crowding(stock: HostStock, slots: list[FitSlot]) -> Iterator[Shortfall]:
    """Each slot fits alone, but several slots compete for the same resources."""
    for name in dict.fromkeys(name for slot in slots for name in slot.resources):
        askers = [slot for slot in slots if name in slot.resources]
        if len(askers) < 2:
            continue
        asked = sum(slot.resources[name] for slot in askers)
        for provider in {provider.uuid: provider for slot in askers for provider in slot.options}.values():
            groups = ", ".join(repr(slot.group.suffix) for slot in askers)
            free = stock.free(provider, name)
            yield Shortfall.at(
                provider, name, asked, free, f"the groups {groups} together ask for more than fits"
            )


def _everywhere(slot: FitSlot, stock: HostStock, reason: str) -> Iterator[Shortfall]:
    for name, amount in (slot.resources or {"": 0}).items():
        for provider in slot.options:
            yield Shortfall.at(provider, name, amount, stock.free(provider, name), _in_group(slot, reason))
