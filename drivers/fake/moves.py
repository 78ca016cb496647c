"""The fake host's move instructions: whence its inventory would have moved, had it been elsewhere. Pure.

They stand for ever: one whose source placement does not have, or not any more, is no work.
"""

from collections.abc import Iterator, Sequence

from agent.driver import Cell, DescribedProvider, Guest, MoveInstruction
from drivers.fake.host import FakeHost
from drivers.host.providers import cell_provider_name

CPU_AND_MEMORY = ("VCPU", "PCPU", "MEMORY_MB")


def derived_moves(
    host: FakeHost,
    name: str,
    cpus: tuple[frozenset[int], frozenset[int]],
    cards: Sequence[DescribedProvider],
) -> Iterator[MoveInstruction]:
    """`cpus` are the shared and the dedicated ones; `cards` the devices' providers, nested."""
    for card in cards:
        yield _card_move(host, name, card)
    for cell in host.cells:
        yield from _cell_moves(host, name, cpus, cell)
    if host.report_numa:
        for cell in host.cells:
            below = (cpus[0] & cell.cpus, cpus[1] & cell.cpus)
            guests = [guest for guest in host.guests if _cells_of(host, guest) == {cell.id}]
            provider = cell_provider_name(name, cell.id)
            yield from _cpu_moves((name, provider), provider, below, guests)
    else:
        sources = (name, *(cell_provider_name(name, cell.id) for cell in host.cells))
        yield from _cpu_moves(sources, name, cpus, host.guests)


def _card_move(host: FakeHost, name: str, card: DescribedProvider) -> MoveInstruction:
    amounts = {resource_class: each.total for resource_class, each in card.inventories.items()}
    if host.flat_devices:
        return MoveInstruction(card.name, amounts, name)
    owners = {guest.uuid: share for guest in host.guests if (share := _on_card(guest, card))}
    return MoveInstruction(name, amounts, card.name, owners)


def _on_card(guest: Guest, card: DescribedProvider) -> dict[str, int]:
    """What the guest uses of the card; of amounts without exact units all, if it has units of no other."""
    mine: dict[str, int] = {}
    for used in guest.units:
        if used.device == card.device and used.resource_class in card.inventories:
            mine[used.resource_class] = mine.get(used.resource_class, 0) + 1
    if mine and all(guest.resources.get(resource_class) == amount for resource_class, amount in mine.items()):
        exact = {used.resource_class for used in guest.units}
        for resource_class in card.inventories.keys() - exact:
            if resource_class in guest.resources:
                mine[resource_class] = guest.resources[resource_class]
    return mine


def _cell_moves(
    host: FakeHost, name: str, cpus: tuple[frozenset[int], frozenset[int]], cell: Cell
) -> Iterator[MoveInstruction]:
    shared, dedicated = cpus
    totals = {
        "VCPU": len(shared & cell.cpus),
        "PCPU": len(dedicated & cell.cpus),
        "MEMORY_MB": cell.memory_mb,
    }
    amounts = {resource_class: total for resource_class, total in totals.items() if total}
    if not host.report_numa:
        yield MoveInstruction(cell_provider_name(name, cell.id), amounts, name)
        return
    owners = {
        guest.uuid: {c: guest.resources[c] for c in CPU_AND_MEMORY if guest.resources.get(c) and c in amounts}
        for guest in host.guests
        if _cells_of(host, guest) == {cell.id}
    }
    yield MoveInstruction(
        name,
        amounts,
        cell_provider_name(name, cell.id),
        {who: share for who, share in owners.items() if share},
    )


def _cells_of(host: FakeHost, guest: Guest) -> set[int]:
    """The cells that the guest's CPUs are pinned to."""
    found = set()
    for used in guest.units:
        for cell in host.cells:
            if used.device == f"numa:{cell.id}" or (
                used.resource_class == "PCPU" and used.unit.isdecimal() and int(used.unit) in cell.cpus
            ):
                found.add(cell.id)
    return found


def _cpu_moves(
    sources: Sequence[str],
    provider: str,
    cpus: tuple[frozenset[int], frozenset[int]],
    guests: Sequence[Guest],
) -> Iterator[MoveInstruction]:
    """Pinned guests held VCPU before CPUs were dedicated, and will again if none are."""
    shared, dedicated = cpus
    pinned = {
        guest.uuid: {"VCPU": guest.resources["PCPU"]} for guest in guests if guest.resources.get("PCPU")
    }
    for source in sources:
        if dedicated:
            yield MoveInstruction(source, {"VCPU": len(dedicated)}, provider, pinned, {"VCPU": "PCPU"})
        elif shared:
            yield MoveInstruction(source, {"PCPU": len(shared)}, provider, None, {"PCPU": "VCPU"})
