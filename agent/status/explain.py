"""Who owns a unit, what a consumer holds and why, who is on a provider: `plimsoll explain`. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import get_close_matches

from agent.claims.claim import Claim, ClaimState
from agent.claims.numa.cell_fit import PlacedCell
from agent.claims.request import ClaimRequest
from agent.cpuset import format_cpu_set
from agent.errors import UnknownConsumer
from agent.moves.states import Move
from agent.reshape.receipt import Receipt
from agent.reshape.types import name_of
from agent.shapes import Allocations, Units
from agent.status.overview import Overview
from agent.tree import Provider

HOLDERS_TOLD_MAX = 50
NEAR_MAX = 5
NEAR_CUTOFF = 0.6
WORD_CHARS_MAX = 255


@dataclass(frozen=True, slots=True)
class ExplainSources:
    """What is searched: `devices` {provider uuid: the device behind it}."""

    seen: Overview
    devices: Mapping[str, str] = field(default_factory=dict)
    receipts: tuple[Receipt, ...] = ()


@dataclass(frozen=True, slots=True)
class ExplainedThing:
    """One thing that the word names. `kind` is consumer, provider, unit or reshape; `lines` are sentences."""

    kind: str
    id: str
    name: str
    lines: tuple[str, ...]


def explain(known: ExplainSources, word: str) -> tuple[ExplainedThing, ...]:
    """All that `word` names: a consumer or provider by uuid or name, a device, an exact unit, a receipt.

    Raises UnknownConsumer, with near matches in `near`.
    """
    asked = word.strip()[:WORD_CHARS_MAX]
    lower = asked.lower()
    found = (
        *(_consumer(known, each) for each in _consumers(known.seen, asked)),
        *(_provider(known, each) for each in known.seen.tree if lower in _names(known, each)),
        *(_unit(known, *each) for each in _units(known.seen) if lower in _words(*each)),
        *(_reshape(known, each) for each in known.receipts if each.id == asked),
    )
    if not found:
        raise _unknown(known, asked)
    return found


# Finding


def _consumers(seen: Overview, asked: str) -> list[str]:
    """By uuid, or by the name of the guest or the claim."""
    everybody = _everybody(seen)
    if asked.lower() in everybody:
        return [asked.lower()]
    migrations = {move.migration for move in seen.moves}
    return sorted(uuid for uuid in everybody - migrations if asked and seen.name_of(uuid) == asked)


def _everybody(seen: Overview) -> set[str]:
    moving = {uuid for move in seen.moves for uuid in (move.instance, move.migration)}
    return {*(guest.uuid for guest in seen.guests), *seen.claims, *seen.others, *moving}


def _names(known: ExplainSources, provider: Provider) -> tuple[str, ...]:
    device = known.devices.get(provider.uuid, "")
    address = device.partition(":")[2]
    return tuple(each.lower() for each in (provider.uuid, provider.name, device, address) if each)


def _units(seen: Overview) -> list[tuple[str, str, str]]:
    """(provider uuid, class, unit): those that the driver offers, and those that are claimed all the same."""
    holdings: Iterable[Units] = (seen.offered, *(claim.units for claim in seen.claims.values()))
    return sorted(
        {
            (uuid, name, unit)
            for units in holdings
            for uuid, by in units.items()
            for name in by
            for unit in by[name]
        }
    )


def _words(_: str, name: str, unit: str) -> tuple[str, str]:
    return unit.lower(), f"{name}:{unit}".lower()


def _unknown(known: ExplainSources, asked: str) -> UnknownConsumer:
    seen = known.seen
    words = {each for provider in seen.tree for each in (provider.name, *_names(known, provider))}
    words |= {each for uuid in _everybody(seen) for each in (uuid, seen.name_of(uuid)) if each}
    words |= {unit for _, _, unit in _units(seen)} | {receipt.id for receipt in known.receipts}
    parts = sorted(word for word in words if asked and asked.lower() in word.lower())
    near = list(dict.fromkeys((*parts, *get_close_matches(asked, sorted(words), NEAR_MAX, NEAR_CUTOFF))))[
        :NEAR_MAX
    ]
    hint = (
        f"Did you mean {' or '.join(near)}?"
        if near
        else "`plimsoll instances` and `plimsoll tree` list what there is."
    )
    return UnknownConsumer(
        f"Nothing on this host is called {asked!r}: no consumer, provider, device, unit or receipt. {hint}",
        asked=asked,
        near=near,
    )


# Telling


def _consumer(known: ExplainSources, uuid: str) -> ExplainedThing:
    lines = tuple(_consumer_lines(known, uuid))
    return ExplainedThing("consumer", uuid, known.seen.name_of(uuid), lines)


def _consumer_lines(known: ExplainSources, uuid: str) -> Iterator[str]:
    seen = known.seen
    claim = seen.claims.get(uuid)
    moves = [move for move in seen.moves if uuid in (move.instance, move.migration)]
    if any(move.migration == uuid for move in moves):
        yield "It is a migration: a consumer that holds an instance's other place while that moves."
    else:
        guest = seen.guest_by_uuid.get(uuid)
        yield f"Its guest is here, {guest.state}." if guest else "No guest of it is on this host."
        if guest and guest.problem:
            yield guest.problem
    if claim is not None and not any(move.migration == uuid for move in moves):
        yield from _claim_lines(seen, claim)
    elif uuid in seen.others:
        yield "It holds this in placement, which somebody else wrote, and no claim of this agent:"
        yield from _holding_lines(seen, seen.others[uuid], {})
    elif claim is None and not moves:
        yield "Nobody has claimed for it: `plimsoll audit` says what to do."
    for move in moves:
        yield _move_line(seen, move, uuid)
    for receipt in known.receipts:
        for each in receipt.relocations:
            if each.consumer == uuid:
                source, target = (name_of(where, seen.tree) for where in (each.source, each.target))
                moved = f"moved its {each.amount} {each.resource_class} from {source} to {target}"
                yield f"Reshape {receipt.id} of {_when(receipt.at)} {moved}."
    yield from _findings(seen, uuid)


def _claim_lines(seen: Overview, claim: Claim) -> Iterator[str]:
    how = {
        ClaimState.CLAIMING: "A claim for it is under way",
        ClaimState.CLAIMED: "It is claimed for",
        ClaimState.RELEASING: "Its claim is to be released when placement answers",
    }[claim.state]
    by = (
        "its allocation was there, written by somebody else, and adopted"
        if claim.adopted
        else "by this agent"
    )
    yield f"{how}, {by}, since {_when(claim.since)}. It asked for {_asked(claim.request)}, and holds:"
    yield from _holding_lines(seen, claim.allocations, claim.units)
    yield from _cell_lines(claim.cells)


def _cell_lines(cells: Iterable[PlacedCell]) -> Iterator[str]:
    for cell in cells:
        pinned = ", ".join(f"{cpu} on {pin}" for cpu, pin in sorted(cell.pinning.items()))
        told = [f"CPU {pinned}"] if pinned else []
        if cell.floating:
            told.append(f"{len(cell.floating)} CPUs on its shared ones")
        told.append(f"{cell.memory_mb} MiB in pages of {cell.page_kib} KiB")
        if cell.withheld:
            told.append(f"CPU {format_cpu_set(cell.withheld)} withheld from all")
        yield f"  guest cell {cell.guest_cell} on host cell {cell.host_cell}: {'; '.join(told)}"


def _holding_lines(seen: Overview, allocations: Allocations, units: Units) -> Iterator[str]:
    for uuid, amounts in sorted(allocations.items(), key=lambda each: name_of(each[0], seen.tree)):
        for name, amount in sorted(amounts.items()):
            exact = units.get(uuid, {}).get(name, ())
            which = f": {', '.join(exact)}" if exact else ""
            yield f"  {amount} {name} on {name_of(uuid, seen.tree)}{which}"


def _asked(request: ClaimRequest) -> str:
    told = []
    for group in request.groups:
        amounts = ", ".join(f"{amount} {name}" for name, amount in sorted(group.resources.items()))
        required = [" or ".join(sorted(any_of)) for any_of in group.required]
        traits = [*required, *(f"not {trait}" for trait in sorted(group.forbidden))]
        told.append((amounts or "a provider") + (f" with {', '.join(traits)}" if traits else ""))
    return "; ".join(told)


def _move_line(seen: Overview, move: Move, uuid: str) -> str:
    what = (
        f"{'Its move' if uuid == move.instance else f'The move of {_called(seen, move.instance)}'} "
        f"({move.kind}, migration {move.migration}, this host is {move.role}) is {move.state}, "
        f"since {_when(move.since)}"
    )
    if move.ended:
        return f"{what}."
    holding = (*_holding_lines(seen, move.handed, move.old.units), *_cell_lines(move.old.cells))
    held = "; ".join(each.strip() for each in holding)
    return f"{what}. The migration holds {held or 'nothing here'}."


def _provider(known: ExplainSources, provider: Provider) -> ExplainedThing:
    return ExplainedThing("provider", provider.uuid, provider.name, tuple(_provider_lines(known, provider)))


def _provider_lines(known: ExplainSources, provider: Provider) -> Iterator[str]:
    seen = known.seen
    device = known.devices.get(provider.uuid)
    parent = (
        f"hangs under {name_of(provider.parent, seen.tree)}" if provider.parent else "is the root of the tree"
    )
    behind = f"; behind it is {device}" if device else "; this agent did not make it"
    yield f"It {parent}{behind}."
    used = seen.used.get(provider.uuid, {})
    for name, inventory in sorted(provider.inventories.items()):
        yield (
            f"{used.get(name, 0)} of {inventory.capacity} {name} in use (total {inventory.total}, reserved "
            f"{inventory.reserved}, ratio {inventory.allocation_ratio:g})."
        )
    if provider.traits:
        yield f"Traits: {', '.join(sorted(provider.traits))}."
    told = list(_holders(seen, provider.uuid))
    yield from told[:HOLDERS_TOLD_MAX]
    if len(told) > HOLDERS_TOLD_MAX:
        yield f"And {len(told) - HOLDERS_TOLD_MAX} more hold something of it."
    for receipt in known.receipts:
        if any(provider.uuid == slot.provider for slot in (*receipt.before, *receipt.after)):
            yield f"Reshape {receipt.id} of {_when(receipt.at)} moved inventory to or from it."
    yield from _findings(seen, provider.uuid)


def _holders(seen: Overview, uuid: str) -> Iterator[str]:
    for consumer, claim in sorted(seen.claims.items()):
        if uuid in claim.allocations:
            held = ", ".join(f"{amount} {name}" for name, amount in sorted(claim.allocations[uuid].items()))
            exact = ", ".join(unit for units in claim.units.get(uuid, {}).values() for unit in units)
            yield (
                f"{_called(seen, consumer)} holds {held}{f' ({exact})' if exact else ''} "
                f"since {_when(claim.since)}."
            )
    for consumer, where in sorted(seen.others.items()):
        if uuid in where:
            held = ", ".join(f"{amount} {name}" for name, amount in sorted(where[uuid].items()))
            yield f"{_called(seen, consumer)} holds {held}, written by somebody else."


def _unit(known: ExplainSources, uuid: str, name: str, unit: str) -> ExplainedThing:
    return ExplainedThing("unit", f"{name}:{unit}", unit, tuple(_unit_lines(known, uuid, name, unit)))


def _unit_lines(known: ExplainSources, uuid: str, name: str, unit: str) -> Iterator[str]:
    seen = known.seen
    device = known.devices.get(uuid)
    behind = f" ({device})" if device else ""
    yield f"It is one exact {name} of provider {name_of(uuid, seen.tree)}{behind}."
    if unit not in seen.offered.get(uuid, {}).get(name, ()):
        yield "The driver does not offer it any more."
    owners = [each for each in seen.claims.values() if unit in each.units.get(uuid, {}).get(name, ())]
    users = [
        guest
        for guest in seen.guests
        if any((used.resource_class, used.unit) == (name, unit) for used in guest.units)
    ]
    for claim in owners:
        yield _owner_line(seen, claim)
        if name == "PCPU" and any(unit in map(str, cell.withheld) for cell in claim.cells):
            yield "It is withheld from everybody: a sibling of it is isolated."
    for guest in users:
        yield f"The guest {guest.name} ({guest.uuid}), {guest.state}, uses it."
    if users and not owners:
        yield "Nobody claimed it for that guest; nobody else is given it. `plimsoll audit` says what to do."
    if not users and not owners:
        yield "It is free: no claim has it, and no guest uses it."


def _owner_line(seen: Overview, claim: Claim) -> str:
    for move in seen.under_way:
        if claim.consumer == move.migration:
            return (
                f"The migration {move.migration} ({move.kind}, {move.state}) owns it since "
                f"{_when(move.since)}, so that {_called(seen, move.instance)} can have it back until the "
                "move is confirmed."
            )
    how = "adopted" if claim.adopted else claim.state
    return f"{_called(seen, claim.consumer)} owns it since {_when(claim.since)} ({how})."


def _reshape(known: ExplainSources, receipt: Receipt) -> ExplainedThing:
    lines = [
        f"The reshape was done at {_when(receipt.at)}"
        + (f", to undo {receipt.undoes}." if receipt.undoes else ".")
    ]
    for move in receipt.moves:
        moved = ", ".join(f"{amount} {name}" for name, amount in sorted(move.moved_resources.items()))
        lines.append(f"{moved} went from {move.from_resource_provider} to {move.to_resource_provider}.")
    consumers = sorted({each.consumer for each in receipt.relocations})
    who = ", ".join(_called(known.seen, each) for each in consumers[:HOLDERS_TOLD_MAX])
    lines.append(f"The allocations of {len(consumers)} consumers went along{f': {who}' if who else ''}.")
    return ExplainedThing("reshape", receipt.id, receipt.id, tuple(lines))


def _findings(seen: Overview, subject: str) -> Iterator[str]:
    for finding in seen.findings:
        if finding.subject == subject:
            yield f"The audit found: {finding.kind}: {finding.reason}"


def _called(seen: Overview, uuid: str) -> str:
    name = seen.name_of(uuid)
    return f"{name} ({uuid})" if name else uuid


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ", timespec="seconds")
