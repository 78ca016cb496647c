"""Why a claim is refused: what was asked, what is free, and where; and the errors that say so. Pure.

A refusal is a list of shortfalls. All are made here but for those of agent.claims.book: what is missing
because others have it. Their clauses come from where a place is rejected: a provider in `HostStock.obstacles`
(agent.claims.fit_search), a NUMA cell in `CellPairs` and `nova_affinity` (agent.claims.guest_cells). The fit
and the tracker hand them on as they are. The error's sentence is what the command line prints.

A finding whose repair would be refused tells shortfalls as well: those of the fit, or those of
`Observation.lacking` (agent.audit.observation).
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from agent.claims.claim import Claim, Shortfall
from agent.claims.fit_search import (
    SCARCE,
    STEPS_MAX,
    FitSearch,
    FitSlot,
    HostStock,
    ProviderIndex,
    any_of_clause,
)
from agent.claims.guest_cells import KIB_PER_MIB, Misfit
from agent.claims.host_cells import CellStock, CellUse, HostCells, cell_use, memory_use, page_key
from agent.claims.near_names import near_class, near_trait
from agent.claims.request import ClaimRequest
from agent.claims.rows import Row
from agent.device_names import VRAM_CLASS, vram_sizes
from agent.driver import Guest, UsedMemory
from agent.errors import ClaimConflict, DoesNotFit, GuestRuns, by_force, counted
from agent.shapes import Allocations, beyond, by_class
from agent.tree import Provider, ProviderTree

SHOWN_MAX = 4

_MEMORY = "MEMORY_MB"
_PAGES = "pages:"


CELLS_UNKNOWN = "the driver has not reported the host's NUMA cells yet"


# The sentences


def does_not_fit(request: ClaimRequest, shortfalls: Sequence[Shortfall]) -> DoesNotFit:
    """The error for a request that does not fit: the first shortfalls in its sentence, all in `details`."""
    clauses = []
    for shortfall in shortfalls[:SHOWN_MAX]:
        clause = shortfall.reason
        if shortfall.resource_class:
            where = f" on {shortfall.provider}" if shortfall.provider else ""
            asked = f"{shortfall.asked} {shortfall.resource_class} asked"
            clause = f"{asked}, {shortfall.free} free{where} ({shortfall.reason})"
        elif shortfall.traits and shortfall.provider:
            clause = f"{shortfall.provider} {shortfall.reason}"
        clauses.append(clause)
    if len(clauses) < len(shortfalls):
        clauses.append(f"and {len(shortfalls) - len(clauses)} more")
    return DoesNotFit(
        f"The claim of {label(request)} does not fit: {'; '.join(clauses)}.",
        consumer=request.consumer,
        shortfalls=[shortfall.to_json() for shortfall in shortfalls],
    )


_WORDS = re.compile(r"[\w-]+", re.ASCII)


def refused_by_placement(
    request: ClaimRequest,
    allocations: Allocations,
    message: str,
    tree: ProviderTree,
    free: Callable[[str, str, str], int],
) -> DoesNotFit:
    """The error for a request that fits by the agent's book, and that Placement refuses with `message`.

    It is of the class and the provider that the message names, else of all. `free` (provider uuid, class,
    consumer) returns the amount that the book says is free.
    """
    asked = [(uuid, *pair) for uuid, amounts in allocations.items() for pair in amounts.items()]
    words = frozenset(_WORDS.findall(message))
    named = [each for each in asked if each[0] in words and each[1] in words]
    return does_not_fit(
        request,
        [
            Shortfall(
                name,
                amount,
                free(uuid, name, request.consumer),
                provider_label(uuid, tree),
                uuid,
                f"Placement refuses: {message}",
            )
            for uuid, name, amount in named or asked
        ],
    )


def other_claim_conflict(claim: Claim) -> ClaimConflict:
    """The error for a consumer that already has a claim for another request."""
    return ClaimConflict(
        f"{label(claim.request)} is {claim.state} already, with another request "
        f"({amounts_text(claim.request.resources)}): release it first {by_force(claim.consumer)}.",
        consumer=claim.consumer,
        holds={uuid: dict(amounts) for uuid, amounts in claim.allocations.items()},
    )


def guest_runs(guest: Guest, row: Row) -> GuestRuns:
    """The error for the release of a claim whose guest runs; `row` is the guest's in the book."""
    offered = by_class(beyond(row.need, row.used.amounts).values())
    reserved = by_class(row.used.amounts.values())
    effects = [
        f"{amounts_text(amounts)} {effect}"
        for amounts, effect in (
            (offered, "would be offered to others"),
            (reserved, "would stay reserved only while the guest runs"),
        )
        if amounts
    ]
    return GuestRuns(
        f"The guest {guest.name} ({guest.uuid}) is {guest.state} on this host, and the agent keeps its claim"
        f"{': without it, ' * bool(effects)}{', and '.join(effects)}. Stop the guest first, or use --force.",
        consumer=guest.uuid,
        offered=offered,
        reserved=reserved,
    )


def not_covered_conflict(
    request: ClaimRequest, held: Allocations, shortfalls: Sequence[Shortfall], tree: ProviderTree
) -> ClaimConflict:
    """The error for a consumer whose allocation, written by another service, does not cover the request."""
    allocated = "; ".join(
        f"{provider_label(uuid, tree)}: {amounts_text(amounts)}"
        for uuid, amounts in sorted(held.items(), key=lambda item: item[0])
    )
    on_this_host = any(uuid in tree for uuid in held)
    why = "; ".join(
        f"{shortfall.asked} {shortfall.resource_class} asked, {shortfall.free} held"
        + (f", {shortfall.reason}" if shortfall.free >= shortfall.asked else "")
        for shortfall in shortfalls[:SHOWN_MAX]
    )
    return ClaimConflict(
        f"{label(request)} already has an allocation in Placement: {allocated}; "
        + (f"that does not cover the claim ({why})." if on_this_host else "none of it is on this host.")
        + " Release that first, or ask for what it has.",
        consumer=request.consumer,
        holds={uuid: dict(amounts) for uuid, amounts in held.items()},
    )


def label(request: ClaimRequest) -> str:
    """The consumer in a sentence: "name (uuid)", or "consumer uuid"."""
    return f"{request.name} ({request.consumer})" if request.name else f"consumer {request.consumer}"


def amounts_text(
    resources: Mapping[str, int], units: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> str:
    """{class: amount} in a sentence: "2048 MEMORY_MB, 2 VCPU".

    `units` {class: exact units} are named with their amounts: "1 SRIOV_NET_VF (0000:41:02.0), 2 VCPU".
    """
    return ", ".join(
        f"{amount} {name}" + (f" ({', '.join(units[name])})" if units.get(name) else "")
        for name, amount in sorted(resources.items())
    )


def provider_label(uuid: str, tree: ProviderTree) -> str:
    """The provider in a sentence: its name, or "provider uuid" where the tree does not have it."""
    provider = tree.get(uuid)
    return provider.name if provider else f"provider {uuid}"


# What the providers lack


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
        suffixed = [slot for slot in slots if slot.group.suffix]
        serving = {provider.uuid for slot in suffixed for provider in slot.options}
        reason = (
            f"group_policy isolate puts each of {counted(len(suffixed), 'group')} on a provider of its own, "
            f"and {len(serving)} can serve them"
        )
        return tuple(shortfall for slot in suffixed for shortfall in _everywhere(slot, stock, reason))
    # What is asked for fits piece by piece, and maybe no single rule says why it does not fit together.
    reason = "what is asked for cannot be had together"
    return (
        tuple(_of_crowding(stock, slots))
        or tuple(_of_exclusion(stock, slots))
        or tuple(shortfall for slot in slots for shortfall in _everywhere(slot, stock, reason))
    )


def root_shortfalls(request: ClaimRequest, host: ProviderIndex) -> Iterator[Shortfall]:
    """A shortfall for each trait that the host's root lacks, or must not have."""
    traits = host.root.traits if host.root else frozenset()
    for trait in sorted(request.root_required - traits):
        yield Shortfall.at(host.root, "", 0, 0, f"lacks trait {trait}", [trait])
    for trait in sorted(request.root_forbidden & traits):
        yield Shortfall.at(host.root, "", 0, 0, f"has the forbidden trait {trait}", [trait])


def _of_slot(slot: FitSlot, stock: HostStock) -> Iterator[Shortfall]:
    """The shortfalls of a slot that no provider can serve alone."""
    candidates = [
        provider
        for provider in stock.host.providers
        if any(name in provider.inventories for name in slot.resources)
    ]
    for provider in candidates:
        yield from _at_provider(slot, stock, provider)
    if not candidates:
        reason = _in_group(slot, _nothing(slot, stock.host))
        wanted = frozenset[str]() if slot.resources else frozenset[str]().union(*slot.group.required)
        for name, amount in (slot.resources or {"": 0}).items():
            yield Shortfall.at(stock.host.root, name, amount, 0, reason, wanted)


def _at_provider(slot: FitSlot, stock: HostStock, provider: Provider, place: str = "") -> Iterator[Shortfall]:
    """Why it cannot serve the slot alone; `place` says first where the provider is."""
    traits_of = stock.trait_obstacles(slot.group, provider)
    for name, reason in stock.obstacles(slot.group, slot.resources, provider):
        asked, free = slot.resources.get(name, 0), stock.free(provider, name)
        traits = traits_of.get(reason, ())
        clause, is_scarce = _in_group(slot, place + reason), reason.startswith(SCARCE)
        yield Shortfall.at(provider, name, asked, free, clause, traits, is_scarce=is_scarce)
    if provider.uuid in slot.barred:
        for name, amount in slot.resources.items():
            reason = _in_group(slot, place + slot.barred[provider.uuid])
            yield Shortfall.at(provider, name, amount, stock.free(provider, name), reason)


def _nothing(slot: FitSlot, host: ProviderIndex) -> str:
    if host.root is None:
        return "the host has no inventory yet"
    if VRAM_CLASS in slot.resources and (sizes := vram_sizes(host.by_class)):
        return f"no function of this host has so much; the largest have {sizes[-1]} MiB"
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
        any_of
        for any_of in unsuffixed[0].group.required
        if not any(any_of & provider.traits for provider in able)
    ]
    reason = "the providers that have the required traits cannot give all of the group together"
    if missing:
        wanted = " or ".join(any_of_clause("trait", any_of) for any_of in missing)
        reason = f"no provider that can give any of the group has {wanted}"
        reason += _meant_traits(unsuffixed[0], stock.host)
    for slot in unsuffixed:
        yield from _everywhere(slot, stock, reason, frozenset[str]().union(*missing))


def _of_subtrees(request: ClaimRequest, stock: HostStock, slots: list[FitSlot]) -> Iterator[Shortfall]:
    """For each provider below which a group without resources wants the others: what is missing there."""
    for suffixes in request.same_subtree:
        members = [slot for slot in slots if slot.group.suffix in suffixes]
        asking = [slot for slot in members if slot.resources]
        groups = ", ".join(repr(slot.group.suffix) for slot in asking)
        tops = [slot for slot in members if not slot.resources and slot.group.required]
        for slot in () if tops else asking:
            reason = f"the groups {groups} must lie in one subtree, and here they do not fit together"
            yield from _everywhere(slot, stock, reason)
        for group, above in ((each.group, provider) for each in tops for provider in each.options):
            below = {each.uuid: each for each in stock.host.tree.subtree(above.uuid)}
            wanted = " and ".join(any_of_clause("trait", any_of) for any_of in group.required)
            lacking: list[Shortfall] = []
            taken: dict[tuple[str, str], Shortfall] = {}
            for slot in asking:
                serving = below.keys() & {option.uuid for option in slot.options}
                place, before = f"below {above.name}, which has {wanted}, ", len(lacking)
                for card in below.values():
                    if card.uuid not in serving and slot.resources.keys() & card.inventories.keys():
                        for lack in _at_provider(slot, stock, card, place):
                            taken.setdefault((lack.provider_uuid, lack.resource_class), lack)
                            lacking += () if serving else (lack,)
                if len(lacking) == before and not serving:
                    reason = _in_group(slot, f"nothing below it has that, and it has {wanted}")
                    lacking += (Shortfall.at(above, *each, 0, reason) for each in slot.resources.items())
            apart = f"has {wanted}, and below it the groups {groups} do not fit together"
            traits = frozenset[str]().union(*group.required)
            yield from lacking or [Shortfall.at(above, "", 0, 0, apart, traits), *taken.values()]


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


def _of_exclusion(stock: HostStock, slots: list[FitSlot]) -> Iterator[Shortfall]:
    """Each class can be had alone, but a provider cannot give several of them together."""
    options = {provider.uuid: provider for slot in slots for provider in slot.options}
    for provider in options.values():
        wanted = by_class(slot.resources for slot in slots if provider in slot.options)
        if stock.can_give_together(provider, wanted):
            continue
        ways = stock.host.ways.get(provider.uuid, ())
        excluding = [sorted(way & wanted.keys())[0] for way in ways if way & wanted.keys()]
        card = stock.host.cards.get(provider.uuid)
        sharing = frozenset(card.classes if card else ()).union(*ways)
        names = sorted(wanted.keys() & sharing)
        reason = (
            f"{' and '.join(excluding)} exclude each other there"
            if len(excluding) > 1
            else f"it has no room for {amounts_text({name: wanted[name] for name in names})} together"
        )
        for name in names:
            yield Shortfall.at(provider, name, wanted[name], stock.free(provider, name), reason)


def _everywhere(
    slot: FitSlot, stock: HostStock, reason: str, traits: Iterable[str] = ()
) -> Iterator[Shortfall]:
    reason = _in_group(slot, reason)
    for name, amount in (slot.resources or {"": 0}).items():
        for provider in slot.options:
            free = stock.free(provider, name)
            yield Shortfall.at(provider, name, amount, free, reason, traits)


def held_shortfall(root: Provider | None, name: str, asked: int, held: int) -> Shortfall:
    """The shortfall of a consumer whose own allocations have too little of the class."""
    return Shortfall.at(root, name, asked, held, f"only {counted(held, 'of it is', 'of it are')} held")


def no_place(card: Provider | None, name: str, asked: int, free: int) -> Shortfall:
    """The shortfall of a card that has enough of the class, but no places for it beside what is on it."""
    reason = "the card has no place for all of it beside what is on it"
    return Shortfall.at(card, name, asked, free, reason)


# What the NUMA cells lack


def cells_unknown(root: Provider | None, cells: int) -> Shortfall:
    """The shortfall of a guest with so many cells, before the driver has reported the host's."""
    return Shortfall.at(root, "", cells, 0, CELLS_UNKNOWN)


def misfit_shortfall(misfit: Misfit, stock: HostStock, host: HostCells) -> Shortfall:
    """The shortfall of a host cell that cannot take a cell of the guest."""
    uuid = next((cell.provider for cell in host.cells if cell.id == misfit.host_cell), None)
    provider = stock.host.tree.get(uuid) if uuid else stock.host.root
    reason = misfit.reason
    if misfit.host_cell >= 0:
        reason = f"guest cell {misfit.guest_cell}: host cell {misfit.host_cell} {misfit.reason}"
    return Shortfall.at(provider, misfit.resource_class, misfit.asked, misfit.free, reason)


def memory_shortfalls(
    memory: Collection[UsedMemory], claim: Claim | None, cells: CellStock, stock: HostStock
) -> tuple[Shortfall, ...]:
    """The shortfalls of a guest's bound memory, against its claim's cells if it has any, else the host's.

    A guest that starts with its own domain XML is checked for what its hypervisor will need: memory that is
    bound to a cell must be free on that cell, memory that is bound to several cells on these cells together,
    and large pages that are bound to no cell on all cells together. There are none if the
    driver has not reported the host's cells.
    """
    memory, _ = cells.host.split_memory(memory)  # a class of its own counts the rest
    if not cells.host.cells or not memory:
        return ()
    if claim is not None and claim.cells:
        available: CellUse = cell_use(claim.cells, cells.host.small_page_kib)
        return tuple(_compare(memory, available, cells.host, stock, "its claim has"))
    room: Counter[tuple[int, str]] = Counter()
    for cell in cells.free(stock):
        room[cell.id, "memory_mb"] = cell.memory_mb if cell.loose_mb is None else cell.loose_mb
        room.update({(cell.id, page_key(size)): count for size, count in cell.pages.items()})
    return tuple(_compare(memory, room, cells.host, stock, "there are"))


def _compare(
    memory: Collection[UsedMemory], room: CellUse, host: HostCells, stock: HostStock, has: str
) -> Iterator[Shortfall]:
    left = Counter(room)
    for (where, what), asked in _asked_by_cells(memory, host).items():
        among = sorted(where or {cell.id for cell in host.cells})
        free = sum(max(0, left[cell, what]) for cell in among)
        if asked > free:
            uuids = {cell.provider for cell in host.cells if cell.id in among}
            provider = stock.host.tree.get(uuids.pop()) if len(uuids) == 1 else stock.host.root
            size = what.removeprefix(_PAGES) if what.startswith(_PAGES) else ""
            unit_kib = int(size) if size else KIB_PER_MIB
            cells = f"host {'cell' if len(among) == 1 else 'cells'} {', '.join(map(str, among))}"
            here = f"{counted(free, 'page')} of {size} KiB" if size else f"{free} MiB"
            yield Shortfall.at(
                provider,
                _MEMORY,
                asked * unit_kib // KIB_PER_MIB,
                free * unit_kib // KIB_PER_MIB,
                f"{has} {here} {'' if has.startswith('its') else 'free '}on {cells}, {asked} asked",
            )
        rest = asked
        for cell in among:
            part = min(rest, max(0, left[cell, what]))
            left[cell, what] -= part
            rest -= part


def _asked_by_cells(
    memory: Collection[UsedMemory], host: HostCells
) -> Mapping[tuple[frozenset[int], str], int]:
    """{(cells, empty for any; resource): amount}, the tightest binding first; see `CellUse`."""
    asked: Counter[tuple[frozenset[int], str]] = Counter()
    together: dict[str, set[int]] = {}
    split: Counter[str] = Counter()
    anywhere: Counter[tuple[frozenset[int], str]] = Counter()
    for part in memory:
        what, amount = memory_use(part.memory_mb, part.page_kib, host.small_page_kib)
        if part.cell is None:
            anywhere[frozenset(), what] += amount
        elif part.guest_cell is None:
            together.setdefault(what, set()).add(part.cell)
            split[what] += amount
        else:
            asked[frozenset({part.cell}), what] += amount
    asked.update({(frozenset(together[what]), what): amount for what, amount in split.items()})
    asked.update(anywhere)
    return asked
