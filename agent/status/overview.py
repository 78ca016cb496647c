"""The agent's condition (starting, ready, degraded by a fault, stopping; each change is logged once), and
the host at one moment, from the agent's memory alone.

`explain` says in sentences what the host knows of a consumer, a provider, a class, a unit or a reshape: it is
the command `plimsoll explain`. It does no I/O.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches
from enum import StrEnum
from functools import cached_property

from agent import errors, log
from agent.audit.finding import Finding
from agent.claims.claim import Claim, ClaimState
from agent.claims.guest_cells import PlacedCell
from agent.claims.request import ClaimRequest
from agent.cpuset import format_cpu_set
from agent.driver import Guest
from agent.errors import counted
from agent.gate.effect import GateEffect
from agent.moves.circumstances import Circumstances, consumer_names, moved_away_advice
from agent.moves.states import Move
from agent.providers.device_health import DeviceHealth
from agent.reconcile.pass_report import PassReport
from agent.reshape.laws import name_of
from agent.reshape.receipt import Receipt
from agent.shapes import Allocations, Amounts, Units, Usages
from agent.state.operators import Pause
from agent.tree import Provider, ProviderTree

LOG = log.get(__name__)

OWN = "agent"
PLACEMENT = "placement"
STARTING = "the agent is starting and has not seen the whole host yet"
"""Why claims are closed before the first pass."""
HOLDERS_SHOWN_MAX = 50
NEAR_MAX = 5
NEAR_CUTOFF = 0.6
WORD_CHARS_MAX = 255
PREFIX_MIN = 4


class HostState(StrEnum):
    """The states of the agent."""

    STARTING = "starting"
    READY = "ready"
    DEGRADED = "degraded"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class Fault:
    """A part that failed (driver, placement, identity, reshape, agent), and why, in a sentence."""

    concern: str
    sentence: str
    away: bool = False
    """The part does not answer. Such faults are equal even if their sentences differ."""

    @classmethod
    def of(cls, error: errors.PlimsollError) -> "Fault":
        """The fault that this error is a sign of."""
        away = isinstance(error, errors.DriverUnavailable | errors.PlacementUnavailable)
        concern = "identity" if isinstance(error, errors.IdentityError) else OWN
        if isinstance(error, errors.DriverError | errors.PlacementError):
            concern = "driver" if isinstance(error, errors.DriverError) else PLACEMENT
        return cls(concern, error.message, away)

    def is_new(self, before: "Fault | None") -> bool:
        """True if this is another fault than `before`."""
        same = before is not None and (self.concern, self.away) == (before.concern, before.away)
        return not same or (not self.away and before is not None and self.sentence != before.sentence)


class Condition:
    """The agent's state, and the fault that degrades it. Any thread may call.

    `on_change` is called after each change, with the state and a sentence; `clock` gives seconds since 1970.
    """

    def __init__(
        self, on_change: Callable[[HostState, str], None], clock: Callable[[], float] = time.time
    ) -> None:
        self._on_change = on_change
        self._clock = clock
        self._lock = threading.Lock()
        self.state = HostState.STARTING
        self.since = clock()
        self.fault: Fault | None = None

    def degrade(self, fault: Fault) -> None:
        """Become degraded by this fault. The same fault again changes nothing."""
        if self._turn(HostState.DEGRADED, fault):
            fields = {"event": "degraded", "concern": fault.concern}
            LOG.warning("Degraded: %s", fault.sentence, fields=fields)
            self._on_change(HostState.DEGRADED, fault.sentence)

    def become_ready(self, sentence: str) -> None:
        """Become ready: no part has a fault."""
        if self._turn(HostState.READY, None):
            LOG.info("Ready: %s", sentence, fields={"event": "ready"})
            self._on_change(HostState.READY, sentence)

    def begin_stop(self) -> None:
        """Become stopping; the state changes no more."""
        self._turn(HostState.STOPPING, None)

    def _turn(self, state: HostState, fault: Fault | None) -> bool:
        """True if that changed the state or the fault."""
        with self._lock:
            if self.state is HostState.STOPPING:
                return False
            before, self.fault = self.fault, fault
            if state is not self.state:
                self.since = self._clock()
                self.state = state
                return True
            return fault is not None and fault.is_new(before)


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """One check; `reason` is a sentence if it failed."""

    name: str
    ok: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Health:
    """The checks. If one of `live` failed, restart the agent; if one of `ready` failed, claim elsewhere."""

    state: str
    live: tuple[HealthCheck, ...]
    ready: tuple[HealthCheck, ...]


@dataclass(frozen=True, slots=True)
class Status:
    """How the agent is. Times are seconds since 1970.

    `state` was reached at `since`; `reasons` are sentences, why it is not ready or what to look at. `driver`
    and `placement` name the kind, `fault` is what failed. `closed` is why claims are closed; `schedulers`:
    they are offered the host. `next_try` is when the agent tries again after a fault. `findings` counts what
    the last audit left, which ended at `audited`. `pid` is the process.
    """

    host: str
    uuid: str | None
    state: HostState
    since: float
    driver: str
    placement: str
    pid: int
    reasons: tuple[str, ...] = ()
    fault: Fault | None = None
    closed: str | None = None
    claims: int = 0
    schedulers: bool = True
    gate: GateEffect = field(default_factory=GateEffect)
    pause: Pause | None = None
    last_pass: PassReport | None = None
    next_try: float | None = None
    findings: int = 0
    audited: float | None = None

    def error(self, concern: str) -> str | None:
        """Why this part (see `Fault`) does not work; None: it works."""
        return self.fault.sentence if self.fault is not None and self.fault.concern == concern else None


@dataclass(frozen=True)
class Overview:
    """The host as the agent knows it. Times are seconds since 1970.

    `used` {provider uuid: {class: amount}} counts all consumers, as of the last pass and the claims since.
    `unclaimed`, of the same form, is what all guests together use beyond what is held and claimed for them;
    the book and the audit have it by instance.
    `offered` has the exact units that the driver offers. `others` is {consumer without a claim: its
    allocations}. `moves` has those under way and those that ended recently, oldest first. `pending` counts
    the writes that wait for Placement or for a guest to leave. `reshape_pending` is the reason why a due
    reshape was not done. `seen` is what the host sees beside the records of its moves.
    `unhealthy` {address: health} are the devices that are not well. `pass_age_s` is how long ago the last
    pass ended, or the agent started.
    """

    at: float
    status: Status
    health: Health
    pass_age_s: float = 0.0
    tree: ProviderTree = field(default_factory=ProviderTree)
    used: Usages = field(default_factory=dict)
    offered: Units = field(default_factory=dict)
    guests: tuple[Guest, ...] = ()
    claims: Mapping[str, Claim] = field(default_factory=dict)
    others: Mapping[str, Allocations] = field(default_factory=dict)
    moves: tuple[Move, ...] = ()
    findings: tuple[Finding, ...] = ()
    pending: int = 0
    reshape_pending: str | None = None
    unclaimed: Usages = field(default_factory=dict)
    seen: Circumstances = field(default_factory=Circumstances)
    unhealthy: Mapping[str, DeviceHealth] = field(default_factory=dict)

    @property
    def instances(self) -> tuple[tuple[Guest | None, Claim | None], ...]:
        """Guests and their claims, in the order of uuids; one of the two may be None."""
        guests = {guest.uuid: guest for guest in self.guests}
        return tuple((guests.get(uuid), self.claims.get(uuid)) for uuid in sorted({*guests, *self.claims}))

    @property
    def under_way(self) -> tuple[Move, ...]:
        """The moves that have not ended."""
        return tuple(move for move in self.moves if not move.ended)

    @cached_property
    def moving(self) -> frozenset[str]:
        """The instances that are in a move, on this host or from or to it."""
        return frozenset(move.instance for move in self.under_way)

    def name_of(self, consumer: str) -> str:
        """The name of the consumer's guest, of its claim, or of its migration's instance; "" if unknown."""
        return self._names.get(consumer, "")

    @cached_property
    def guest_by_uuid(self) -> Mapping[str, Guest]:
        """{uuid: guest}."""
        return {guest.uuid: guest for guest in self.guests}

    @cached_property
    def _names(self) -> Mapping[str, str]:
        return consumer_names(self.guests, self.claims.values(), self.moves)


# What a word stands for


@dataclass(frozen=True, slots=True)
class ExplainSources:
    """The data that `explain` searches.

    `devices` is {provider uuid: device, as pci:0000:84:00.0}, `withheld` {exact unit: a sentence on why no
    other consumer gets it}.
    """

    overview: Overview
    devices: Mapping[str, str] = field(default_factory=dict)
    receipts: tuple[Receipt, ...] = ()
    withheld: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExplainedItem:
    """One thing of that name; `lines` are sentences.

    `kind` is consumer, provider, resource class, unit or reshape.
    """

    kind: str
    id: str
    name: str
    lines: tuple[str, ...]


def explain(known: ExplainSources, word: str) -> tuple[ExplainedItem, ...]:
    """Each thing that `word` names: a consumer, a provider, a class, a device, a unit, a receipt.

    A uuid, and a receipt, may be named by its beginning, of PREFIX_MIN characters or more.
    Raises UnknownConsumer, with similar names in `near`; UsageError for an empty text.
    """
    wanted = word.strip()[:WORD_CHARS_MAX]
    if not wanted:
        raise errors.UsageError(
            "what: it is an empty text; name a consumer, a provider, a class, a device, a unit or a receipt.",
            parameter="what",
        )
    lower = wanted.lower()
    items = (
        *(
            ExplainedItem("consumer", uuid, known.overview.name_of(uuid), tuple(_consumer_lines(known, uuid)))
            for uuid in _matching_consumers(known.overview, wanted)
        ),
        *(
            ExplainedItem("provider", provider.uuid, provider.name, tuple(_provider_lines(known, provider)))
            for provider in known.overview.tree
            if lower in _provider_names(known, provider) or _begins(provider.uuid, lower)
        ),
        *(
            ExplainedItem("resource class", name, name, tuple(_class_lines(known, name)))
            for name in sorted({name for provider in known.overview.tree for name in provider.inventories})
            if name == wanted.upper()
        ),
        *(
            ExplainedItem("unit", f"{name}:{unit}", unit, tuple(_unit_lines(known, uuid, name, unit)))
            for uuid, name, unit in _units(known.overview)
            if lower in (unit.lower(), f"{name}:{unit}".lower())
        ),
        *(_explain_reshape(known, receipt) for receipt in known.receipts if _begins(receipt.id, lower)),
    )
    if items:
        return items
    overview = known.overview
    names = {
        name for provider in overview.tree for name in (provider.name, *_provider_names(known, provider))
    }
    names |= {name for uuid in _consumers(overview) for name in (uuid, overview.name_of(uuid)) if name}
    names |= {unit for _, _, unit in _units(overview)} | {receipt.id for receipt in known.receipts}
    containing = sorted(name for name in names if lower in name.lower())
    similar = get_close_matches(wanted, sorted(names), NEAR_MAX, NEAR_CUTOFF)
    near = list(dict.fromkeys((*containing, *similar)))[:NEAR_MAX]
    hint = (
        f"Did you mean {' or '.join(near)}?"
        if near
        else "`plimsoll instances` and `plimsoll tree` list what there is."
    )
    raise errors.UnknownConsumer(
        f"Nothing on this host is called {wanted!r}: no consumer, provider, class, device, unit or receipt. "
        f"{hint}",
        asked=wanted,
        near=near,
    )


# Search


def _matching_consumers(overview: Overview, wanted: str) -> list[str]:
    """Consumers by uuid, or by the name of the guest or the claim."""
    consumers = _consumers(overview)
    if wanted.lower() in consumers:
        return [wanted.lower()]
    migrations = {move.migration for move in overview.moves}
    named = sorted(uuid for uuid in consumers - migrations if overview.name_of(uuid) == wanted)
    if named or len(wanted) < PREFIX_MIN:
        return named
    return sorted(uuid for uuid in consumers if uuid.startswith(wanted.lower()))


def _begins(identifier: str, lower: str) -> bool:
    return identifier == lower or (len(lower) >= PREFIX_MIN and identifier.startswith(lower))


def _consumers(overview: Overview) -> set[str]:
    moving = {uuid for move in overview.moves for uuid in (move.instance, move.migration)}
    return {*(guest.uuid for guest in overview.guests), *overview.claims, *overview.others, *moving}


def _provider_names(known: ExplainSources, provider: Provider) -> tuple[str, ...]:
    device = known.devices.get(provider.uuid, "")
    address = device.partition(":")[2]
    return tuple(name.lower() for name in (provider.uuid, provider.name, device, address) if name)


def _units(overview: Overview) -> list[tuple[str, str, str]]:
    """(provider uuid, class, unit) of the units that the driver offers, and of claimed units it does not."""
    sources: Iterable[Units] = (overview.offered, *(claim.units for claim in overview.claims.values()))
    return sorted(
        {
            (uuid, name, unit)
            for units in sources
            for uuid, by in units.items()
            for name in by
            for unit in by[name]
        }
    )


# Sentences


def _consumer_lines(known: ExplainSources, uuid: str) -> Iterator[str]:
    overview = known.overview
    claim = overview.claims.get(uuid)
    moves = [move for move in overview.moves if uuid in (move.instance, move.migration)]
    if any(move.migration == uuid for move in moves):
        yield "It is a migration: during a move, it holds the instance's allocation on one of the hosts."
    else:
        guest = overview.guest_by_uuid.get(uuid)
        yield f"Its guest is here, {guest.state}." if guest else "No guest of it is on this host."
        if guest and guest.problem:
            yield guest.problem
        if guest and uuid in overview.seen.moved_away:
            yield moved_away_advice(guest.name, uuid)
    if claim is not None and not any(move.migration == uuid for move in moves):
        how = {
            ClaimState.CLAIMING: "A claim for it is under way",
            ClaimState.CLAIMED: "It has a claim",
            ClaimState.RELEASING: "Its claim is released as soon as Placement answers",
        }[claim.state]
        by = "adopted from an allocation that another client wrote" if claim.adopted else "made by this agent"
        requested = _request_text(claim.request)
        yield f"{how}, {by}, since {_when(claim.since)}. It requested {requested}, and holds:"
        yield from _holding_lines(overview, claim.allocations, claim.units)
        yield from _cell_lines(claim.cells)
    elif uuid in overview.others:
        yield "It has no claim of this agent. Another client wrote its allocation in Placement:"
        yield from _holding_lines(overview, overview.others[uuid], {})
    elif claim is None and not moves and uuid not in overview.seen.moved_away:
        yield "It has no claim: `plimsoll audit` says what to do."
    for move in moves:
        yield _move_line(overview, move, uuid)
    for receipt in known.receipts:
        for relocation in receipt.relocations:
            if relocation.consumer == uuid:
                source, target = (
                    name_of(provider, overview.tree) for provider in (relocation.source, relocation.target)
                )
                amount = f"{relocation.amount} {relocation.resource_class}"
                moved = f"moved its {amount} from {source} to {target}"
                yield f"Reshape {receipt.id} of {_when(receipt.at)} {moved}."
    yield from _findings(overview, lambda finding: finding.concerns(uuid))


def _cell_lines(cells: Iterable[PlacedCell]) -> Iterator[str]:
    for cell in cells:
        pinned = ", ".join(f"{cpu} on {pin}" for cpu, pin in sorted(cell.pinning.items()))
        parts = [f"CPU {pinned}"] if pinned else []
        if cell.floating:
            parts.append(f"{counted(len(cell.floating), 'CPU')} on its shared ones")
        parts.append(f"{cell.memory_mb} MiB in pages of {cell.page_kib} KiB")
        if cell.emulator:
            parts.append(f"CPU {format_cpu_set(cell.emulator)} for the emulator's threads")
        if cell.withheld:
            parts.append(f"CPU {format_cpu_set(cell.withheld)} not given to any guest")
        yield f"  guest cell {cell.guest_cell} on host cell {cell.host_cell}: {'; '.join(parts)}"


def _holding_lines(overview: Overview, allocations: Allocations, units: Units) -> Iterator[str]:
    for uuid, amounts in sorted(allocations.items(), key=lambda item: name_of(item[0], overview.tree)):
        for name, amount in sorted(amounts.items()):
            exact = units.get(uuid, {}).get(name, ())
            which = f": {', '.join(exact)}" if exact else ""
            yield f"  {amount} {name} on {name_of(uuid, overview.tree)}{which}"


def _request_text(request: ClaimRequest) -> str:
    parts = []
    for group in request.groups:
        amounts = _listed(group.resources)
        required = [" or ".join(sorted(any_of)) for any_of in group.required]
        traits = [*required, *(f"not {trait}" for trait in sorted(group.forbidden))]
        parts.append((amounts or "a provider") + (f" with {', '.join(traits)}" if traits else ""))
    return (f"alternative {request.alternative}, " if request.alternative else "") + "; ".join(parts)


def _move_line(overview: Overview, move: Move, uuid: str) -> str:
    what = (
        f"{'Its move' if uuid == move.instance else f'The move of {_called(overview, move.instance)}'} "
        f"({move.kind}, migration {move.migration}, this host is {move.role}) is {move.state}, "
        f"since {_when(move.since)}"
    )
    if move.ended:
        return f"{what}."
    holding = (*_holding_lines(overview, move.handed, move.old.units), *_cell_lines(move.old.cells))
    held = "; ".join(line.strip() for line in holding)
    return f"{what}. The migration holds {held or 'nothing on this host'}."


def _provider_lines(known: ExplainSources, provider: Provider) -> Iterator[str]:
    overview = known.overview
    device = known.devices.get(provider.uuid)
    parent = (
        f"is a child of {name_of(provider.parent, overview.tree)}"
        if provider.parent
        else "is the root of the tree"
    )
    origin = f"; its device is {device}" if device else "; this agent did not create it"
    yield f"It {parent}{origin}."
    used = overview.used.get(provider.uuid, {})
    for name, inventory in sorted(provider.inventories.items()):
        yield (
            f"{used.get(name, 0)} of {inventory.capacity} {name} in use (total {inventory.total}, reserved "
            f"{inventory.reserved}, ratio {inventory.allocation_ratio:g})."
        )
    if provider.traits:
        yield f"Traits: {', '.join(sorted(provider.traits))}."
    holders = []
    for called, amounts, units, how in _holders(overview, provider.uuid):
        exact = ", ".join(unit for by_class in units.values() for unit in by_class)
        holders.append(f"{called} holds {_listed(amounts)}{f' ({exact})' if exact else ''}{how}.")
    yield from holders[:HOLDERS_SHOWN_MAX]
    if len(holders) > HOLDERS_SHOWN_MAX:
        yield f"{_more(holders, 'allocations of it')}."
    for receipt in known.receipts:
        if any(provider.uuid == slot.provider for slot in (*receipt.before, *receipt.after)):
            yield f"Reshape {receipt.id} of {_when(receipt.at)} moved inventory to or from it."
    yield from _findings(overview, lambda finding: finding.subject == provider.uuid)


def _holders(
    overview: Overview, provider: str
) -> Iterator[tuple[str, Amounts, Mapping[str, tuple[str, ...]], str]]:
    """(who holds some of the provider, the amounts and exact units by class, since when or by what)."""
    for consumer, claim in sorted(overview.claims.items()):
        if provider in claim.allocations:
            since = f" since {_when(claim.since)}"
            units = claim.units.get(provider, {})
            yield _called(overview, consumer), claim.allocations[provider], units, since
    for consumer, allocations in sorted(overview.others.items()):
        if provider in allocations:
            by = ", by an allocation that another client wrote"
            yield _called(overview, consumer), allocations[provider], {}, by


def _more(holders: list[str], what: str) -> str:
    number = len(holders) - HOLDERS_SHOWN_MAX
    return counted(number, f"more consumer has {what}", f"more consumers have {what}")


def _class_lines(known: ExplainSources, name: str) -> Iterator[str]:
    """Each provider that has the class, and who holds how much of it there."""
    overview = known.overview
    for provider in overview.tree:
        inventory = provider.inventories.get(name)
        if inventory is None:
            continue
        in_use = overview.used.get(provider.uuid, {}).get(name, 0)
        yield f"{provider.name}: {in_use} of {inventory.capacity} in use."
        holders = []
        for called, amounts, units, how in _holders(overview, provider.uuid):
            if amounts.get(name):
                exact = ", ".join(units.get(name, ()))
                holders.append(f"  {called} holds {amounts[name]}{how}{f': {exact}' if exact else ''}")
        yield from holders[:HOLDERS_SHOWN_MAX]
        if len(holders) > HOLDERS_SHOWN_MAX:
            yield f"  {_more(holders, 'some of it')}."


def _unit_lines(known: ExplainSources, uuid: str, name: str, unit: str) -> Iterator[str]:
    overview = known.overview
    device = known.devices.get(uuid)
    of_device = f" ({device})" if device else ""
    yield f"It is one exact {name} of provider {name_of(uuid, overview.tree)}{of_device}."
    if unit not in overview.offered.get(uuid, {}).get(name, ()):
        yield "The driver no longer offers it."
    owners = [claim for claim in overview.claims.values() if unit in claim.units.get(uuid, {}).get(name, ())]
    users = [
        guest
        for guest in overview.guests
        if any((used.resource_class, used.unit) == (name, unit) for used in guest.units)
    ]
    for claim in owners:
        called = _called(overview, claim.consumer)
        how = "adopted" if claim.adopted else claim.state
        owner = f"{called} owns it since {_when(claim.since)} ({how})."
        for move in overview.under_way:
            if claim.consumer == move.migration:
                owner = (
                    f"The migration {move.migration} ({move.kind}, {move.state}) owns it since "
                    f"{_when(move.since)}, so that {_called(overview, move.instance)} gets it back if the "
                    "move is reverted."
                )
        yield owner
        if name == "PCPU" and any(unit in map(str, cell.withheld) for cell in claim.cells):
            yield "No guest gets it: the claim isolates its sibling."
    for guest in users:
        yield f"The guest {guest.name} ({guest.uuid}), {guest.state}, uses it."
    if users and not owners:
        yield "No claim owns it, and no other guest gets it. `plimsoll audit` says what to do."
    withheld = known.withheld.get(unit)
    if not users and not owners:
        free = "no claim has it, and no guest uses it."
        yield f"It is free: {free}" if withheld is None else f"It is withheld: {free}"
    if withheld is not None:
        yield withheld


def _explain_reshape(known: ExplainSources, receipt: Receipt) -> ExplainedItem:
    lines = [
        f"The reshape took place at {_when(receipt.at)}"
        + (f" and undid {receipt.undoes}." if receipt.undoes else ".")
    ]
    for move in receipt.moves:
        moved = _listed(move.moved_resources)
        lines.append(f"{moved} moved from {move.from_resource_provider} to {move.to_resource_provider}.")
    consumers = sorted({relocation.consumer for relocation in receipt.relocations})
    names = ", ".join(_called(known.overview, uuid) for uuid in consumers[:HOLDERS_SHOWN_MAX])
    lines.append(
        f"The allocations of {counted(len(consumers), 'consumer')} moved as "
        f"well{f': {names}' if names else ''}."
    )
    return ExplainedItem("reshape", receipt.id, receipt.id, tuple(lines))


def _findings(overview: Overview, is_shown: Callable[[Finding], bool]) -> Iterator[str]:
    for finding in overview.findings:
        if is_shown(finding):
            yield f"Finding of the audit: {finding.kind}: {finding.reason}"


def _listed(amounts: Amounts) -> str:
    return ", ".join(f"{amount} {name}" for name, amount in sorted(amounts.items()))


def _called(overview: Overview, uuid: str) -> str:
    name = overview.name_of(uuid)
    return f"{name} ({uuid})" if name else uuid


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(sep=" ", timespec="seconds")
