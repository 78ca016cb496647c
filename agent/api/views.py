"""The agent's values in the shapes of the local API, in Placement's terms; all of them from the agent's
memory. Pure.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import cast

from agent import __version__
from agent.api.operations import WrittenDomain
from agent.api.shapes.claims import (
    CapacityShape,
    ClaimByGroupsShape,
    ClaimShape,
    DefragShape,
    DomainShape,
    ExplanationShape,
    GuestCellShape,
    HoldingShape,
    MakingShape,
    ProviderAllocationShape,
    ShortfallShape,
)
from agent.api.shapes.host import (
    AuditShape,
    EventShape,
    ExplainedShape,
    FindingShape,
    FoundShape,
    HealthShape,
    HistoryShape,
    OverviewShape,
    PauseShape,
    StatusShape,
)
from agent.api.shapes.instances import (
    ClaimedRunningShape,
    GuestShape,
    GuestVerdictShape,
    InstanceShape,
    MoveShape,
    UsedUnitShape,
    VerdictShape,
)
from agent.api.shapes.providers import (
    CordonShape,
    DeviceHealthShape,
    DevicesShape,
    InventoryShape,
    PreviewShape,
    ReceiptShape,
    ReshapedShape,
    ResourceProviderShape,
    TreeShape,
)
from agent.audit.auditor import AuditReport
from agent.audit.finding import Finding
from agent.claims.capacity import Capacity, Defrag
from agent.claims.claim import Claim, Fit, Shortfall
from agent.claims.guest_cells import PlacedCell
from agent.claims.parse_request import request_to_json
from agent.claims.request import ClaimRequest
from agent.codec import encode
from agent.driver import Guest, UsedUnit
from agent.errors import Refused
from agent.gate.decision import GateVerdict
from agent.moves.circumstances import moved_away_advice, next_actor
from agent.moves.states import Move, MoveKind
from agent.providers.device_health import DeviceHealth, HealthState, Symptom
from agent.providers.reservations import with_reserved
from agent.reconcile.pass_report import Preview
from agent.reshape.laws import name_of
from agent.reshape.receipt import Receipt
from agent.shapes import Allocations, Makings, Units, Usages, beyond
from agent.state.journal import Event
from agent.state.operators import Cordon, Pause
from agent.status.host_status import Explanation
from agent.status.overview import PLACEMENT, Overview, Status, exact_moment
from agent.status.web import health_view
from agent.tracker.cordons import OfferedDevice
from agent.tree import ProviderTree


def moment(seconds: float) -> str:
    """Seconds since 1970 as RFC 3339, UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def tree_view(
    tree: ProviderTree,
    usages: Usages,
    unclaimed: Usages = MappingProxyType({}),
    warnings: Iterable[str] = (),
) -> TreeShape:
    """The providers depth first: each parent before its children, siblings by name.

    `unclaimed` is what guests use beyond what is held and claimed for them.
    """
    roots: dict[str, str] = {}
    providers: list[ResourceProviderShape] = []
    for provider in tree:
        roots[provider.uuid] = provider.uuid if provider.parent is None else roots[provider.parent]
        used = usages.get(provider.uuid, {})
        providers.append(
            {
                "uuid": provider.uuid,
                "name": provider.name,
                "parent_provider_uuid": provider.parent,
                "root_provider_uuid": roots[provider.uuid],
                "generation": provider.generation,
                "inventories": {
                    name: cast(InventoryShape, {**inventory.to_json(), "capacity": inventory.capacity})
                    for name, inventory in sorted(provider.inventories.items())
                },
                "usages": {name: used.get(name, 0) for name in sorted({*provider.inventories, *used})},
                "unclaimed": dict(sorted(unclaimed.get(provider.uuid, {}).items())),
                "traits": sorted(provider.traits),
                "aggregates": sorted(provider.aggregates),
            }
        )
    return {"resource_providers": providers, "warnings": list(warnings)}


def instances_view(overview: Overview) -> list[InstanceShape]:
    """Guests and claims side by side; one of the two may be missing."""
    migrations = {move.migration: move.instance for move in overview.under_way}
    moving = {instance: migration for migration, instance in migrations.items()}
    instances: list[InstanceShape] = []
    for guest, claim in overview.instances:
        uuid = guest.uuid if guest else claim.consumer if claim else ""
        name = guest.name if guest else (claim.request.name if claim else "") or overview.name_of(uuid)
        shown: GuestShape | None = None
        if guest:
            units = cast(list[UsedUnitShape], encode(tuple[UsedUnit, ...], guest.units))
            resources = dict(sorted(guest.resources.items()))
            shown = {"state": guest.state.value, "resources": resources, "units": units}
        moved_away = guest is not None and uuid in overview.seen.moved_away
        instances.append(
            {
                "uuid": uuid,
                "name": name,
                "guest": shown,
                "moved_away": moved_away,
                "advice": moved_away_advice(name, uuid) if moved_away else None,
                "migration_of": migrations.get(uuid),
                "migration": moving.get(uuid),
                "claim": claim_view(claim, overview.tree) if claim else None,
            }
        )
    return instances


def claim_view(claim: Claim, tree: ProviderTree) -> ClaimShape:
    """A claim with its request in the form by groups; `tree` are the host's providers."""
    return {
        "consumer": claim.consumer,
        "name": claim.request.name,
        "state": claim.state.value,
        "adopted": claim.adopted,
        "since": moment(claim.since),
        "allocations": _allocations(claim.allocations),
        "units": _units(claim.units),
        "cells": _cells(claim.cells),
        "to_make": _makings(claim.makings),
        "mappings": [
            {
                "suffix": mapping.suffix,
                "label": mapping.label,
                "allocations": _allocations(mapping.allocations),
                "units": _units(mapping.units),
            }
            for mapping in claim.mappings(tree)
        ],
        "request": cast(ClaimByGroupsShape, request_to_json(claim.request)),
    }


def explanation_view(request: ClaimRequest, fit: Fit, closed: str | None) -> ExplanationShape:
    """Whether the claim would fit; `asked` sums up the groups, `closed` is why claims are closed."""
    return {
        "consumer": request.consumer,
        "asked": dict(sorted(request.resources.items())),
        "fits": fit.fits,
        "closed": closed,
        "allocations": _allocations(fit.allocations),
        "units": _units(fit.units),
        "cells": _cells(fit.cells),
        "to_make": _makings(fit.makings),
        "shortfalls": _shortfalls(fit.shortfalls),
    }


def domain_view(written: WrittenDomain, tree: ProviderTree) -> DomainShape:
    """A complete domain, and its claim; `tree` are the host's providers."""
    return {
        "consumer": written.claim.consumer,
        "made": written.made,
        "claim": claim_view(written.claim, tree),
        "xml": written.xml,
    }


def _allocations(allocations: Allocations) -> dict[str, ProviderAllocationShape]:
    return {
        provider: {"resources": dict(sorted(resources.items()))}
        for provider, resources in sorted(allocations.items())
    }


def _units(units: Units) -> dict[str, dict[str, list[str]]]:
    return {
        provider: {resource_class: list(exact) for resource_class, exact in sorted(classes.items())}
        for provider, classes in sorted(units.items())
    }


def _makings(makings: Makings) -> dict[str, MakingShape]:
    return {unit: cast(MakingShape, dict(making)) for unit, making in sorted(makings.items())}


def _cells(cells: Iterable[PlacedCell]) -> list[GuestCellShape]:
    return cast(list[GuestCellShape], encode(tuple[PlacedCell, ...], cells))


def _place(fit: Fit) -> HoldingShape:
    return {
        "allocations": _allocations(fit.allocations),
        "units": _units(fit.units),
        "cells": _cells(fit.cells),
    }


def _shortfalls(shortfalls: Iterable[Shortfall]) -> list[ShortfallShape]:
    return [cast(ShortfallShape, shortfall.to_json()) for shortfall in shortfalls]


def preview_view(preview: Preview) -> PreviewShape:
    """What a reshape would do: `moves` by consumer, `receipts` the newest first."""
    trees = (preview.before, preview.after)
    return {
        "due": bool(preview.moves),
        "refused": preview.refused,
        "before": tree_view(preview.before, preview.used_before),
        "after": tree_view(preview.after, preview.used_after),
        "moves": [
            {
                "consumer": relocation.consumer,
                "name": preview.names.get(relocation.consumer, ""),
                "resource_class": relocation.resource_class,
                "amount": relocation.amount,
                "from": name_of(relocation.source, *trees),
                "from_uuid": relocation.source,
                "to": name_of(relocation.target, *trees),
                "to_uuid": relocation.target,
                "becomes": relocation.target_class,
            }
            for relocation in sorted(preview.relocations)
        ],
        "parked": list(preview.parked),
        "receipts": [_receipt(receipt, preview.undone) for receipt in reversed(preview.receipts)],
    }


def reshaped_view(receipts: Iterable[Receipt]) -> ReshapedShape:
    """What a reshape did: its receipts."""
    return {"receipts": [_receipt(receipt, ()) for receipt in receipts]}


def _receipt(receipt: Receipt, undone: Collection[str]) -> ReceiptShape:
    return {
        "id": receipt.id,
        "at": moment(receipt.at),
        "undone": receipt.id in undone,
        "undoes": receipt.undoes,
        "allocations": len(receipt.relocations),
        "moves": [
            {
                "from_resource_provider": move.from_resource_provider,
                "moved_resources": dict(move.moved_resources),
                "to_resource_provider": move.to_resource_provider,
            }
            for move in receipt.moves
        ],
    }


def audit_view(report: AuditReport) -> AuditShape:
    """The findings, each with the outcome of its repair."""
    failed = report.failed or {}
    return {
        "findings": [
            finding_view(finding, healed=index in report.healed, failed=failed.get(index))
            for index, finding in enumerate(report.findings)
        ]
    }


def finding_view(finding: Finding, *, healed: bool = False, failed: str | None = None) -> FindingShape:
    """A finding; `failed` is the reason why its repair was not done."""
    return {
        "kind": finding.kind,
        "subject": finding.subject,
        "reason": finding.reason,
        "evidence": dict(finding.evidence),
        "own": finding.own,
        "repair": [str(step) for step in finding.repair],
        "healed": healed,
        "failed": failed,
    }


def capacity_view(request: ClaimRequest, capacity: Capacity, claims: Mapping[str, Claim]) -> CapacityShape:
    """How many guests fit; `claims` {consumer: claim} have the names of those that strand something."""
    return {
        "asked": dict(sorted(request.resources.items())),
        "guests": capacity.guests,
        "more": capacity.more,
        "shortfalls": _shortfalls(capacity.shortfalls),
        "stranded": [
            {
                "provider": stranded.provider,
                "provider_uuid": stranded.provider_uuid,
                "resource_class": stranded.resource_class,
                "free": stranded.free,
                "holders": [
                    {"consumer": holder, "name": claims[holder].request.name if holder in claims else ""}
                    for holder in stranded.holders
                ],
            }
            for stranded in capacity.stranded
        ],
    }


def defrag_view(request: ClaimRequest, found: Defrag) -> DefragShape:
    """The moves that make room."""
    return {
        "asked": dict(sorted(request.resources.items())),
        "possible": found.fit is not None,
        "place": _place(found.fit) if found.fit is not None else None,
        "moves": [
            {
                "consumer": move.claim.consumer,
                "name": move.claim.request.name,
                "here": _place(move.here) if move.here is not None else None,
                "kind": (MoveKind.LIVE_MIGRATE if move.is_live else MoveKind.COLD_MIGRATE).value,
                "request": cast(ClaimByGroupsShape, request_to_json(move.claim.request)),
            }
            for move in found.moves
        ],
        "fewest": found.fewest,
        "shortfalls": _shortfalls(found.shortfalls),
    }


def cordon_view(cordon: Cordon) -> CordonShape:
    """A cordon."""
    return {
        "address": cordon.address,
        "reason": cordon.reason,
        "uid": cordon.uid,
        "since": moment(cordon.at),
    }


def _device_health(health: DeviceHealth) -> DeviceHealthShape:
    return {
        "address": health.address,
        "symptoms": [symptom.value for symptom in Symptom if symptom in health.causes],
        "reason": health.reason,
        "since": moment(health.since),
        "recovering": health.state is HealthState.RECOVERING,
    }


def devices_view(devices: Iterable[OfferedDevice], name_of: Callable[[str], str]) -> DevicesShape:
    """All devices; `name_of` returns a consumer's name, "" where it has none."""
    return {
        "devices": [
            {
                "unit": device.unit,
                "resource_class": device.resource_class,
                "provider": device.provider,
                "holder": device.holder,
                "holder_name": name_of(device.holder) if device.holder else "",
                "cordon": cordon_view(device.cordon) if device.cordon else None,
                "health": _device_health(device.health) if device.health else None,
            }
            for device in devices
        ]
    }


def verdict_view(verdict: GateVerdict) -> VerdictShape:
    """The verdict on the guest that the hook asked about."""
    return cast(VerdictShape, encode(GateVerdict, verdict))


def running_view(verdicts: tuple[tuple[Guest, GateVerdict | Refused], ...]) -> ClaimedRunningShape:
    """The verdicts on the guests that run without a claim."""
    claimed: list[GuestVerdictShape] = []
    refused: list[GuestVerdictShape] = []
    for guest, verdict in verdicts:
        if isinstance(verdict, GateVerdict):
            claimed.append({"consumer": guest.uuid, "name": guest.name, "sentence": verdict.sentence})
        else:
            refused.append({"consumer": guest.uuid, "name": guest.name, "sentence": verdict.message})
    return {"claimed": claimed, "refused": refused}


def moves_view(moves: Iterable[Move], overview: Overview) -> list[MoveShape]:
    """Moves of this host, with the names of its own providers."""
    names = {provider.uuid: provider.name for provider in overview.tree}
    return [move_view(move, overview, names) for move in moves]


def move_view(move: Move, overview: Overview, providers: Mapping[str, str]) -> MoveShape:
    """A move, with the claims before and after it, and who acts next in what this host sees.

    `providers` is {uuid: name} of the providers of any host whose names are known.
    """
    old = claim_view(move.old, overview.tree)
    name = overview.name_of(move.instance) or (move.new or move.old).request.name or move.old.request.name
    return {
        "migration": move.migration,
        "instance": move.instance,
        "name": name,
        "kind": move.kind.value,
        "role": move.role.value,
        "state": move.state.value,
        "next": next_actor(move, overview.seen),
        "ended": move.ended,
        "adopted": move.adopted,
        "since": moment(move.since),
        "handed": {  # the migration's part of the old claim
            "allocations": _allocations(move.handed),
            "units": {provider: exact for provider, exact in old["units"].items() if provider in move.handed},
            "cells": old["cells"],
        },
        "old": old,
        "new": claim_view(move.new, overview.tree) if move.new else None,
        "providers": {uuid: providers[uuid] for uuid in sorted(providers_of(move)) if uuid in providers},
    }


def providers_of(move: Move) -> set[str]:
    """The uuids of the providers of both places."""
    return {*move.old.allocations, *move.handed, *(move.new.allocations if move.new else ())}


def status_view(status: Status) -> StatusShape:
    """How the agent is."""
    driver, placement, last = status.error("driver"), status.error(PLACEMENT), status.last_pass
    return {
        "host": status.host,
        "uuid": status.uuid,
        "version": __version__,
        "state": status.state.value,
        "reasons": list(status.reasons),
        "since": exact_moment(status.since),
        "driver": {"name": status.driver, "ok": driver is None, "error": driver},
        "placement": {"kind": status.placement, "ok": placement is None, "error": placement},
        "claims": {
            "open": status.closed is None,
            "reason": status.closed,
            "count": status.claims,
            "schedulers": status.schedulers,
        },
        "gate": {
            "hook": "unknown" if status.gate.state is None else status.gate.state.value,
            "in_effect": status.gate.in_effect,
            "unanswered": status.gate.unanswered,
        },
        "pause": pause_view(status.pause) if status.pause else None,
        "last_pass": {
            "at": exact_moment(last.at),
            "sentence": last.sentence,
            "duration_ms": last.duration_ms,
        }
        if last
        else None,
        "next_try": None if status.next_try is None else exact_moment(status.next_try),
        "findings": status.findings,
        "audited": None if status.audited is None else exact_moment(status.audited),
        "pid": status.pid,
    }


def pause_view(pause: Pause) -> PauseShape:
    """A pause."""
    return {
        "reason": pause.reason,
        "uid": pause.uid,
        "since": exact_moment(pause.at),
        "schedulers": pause.schedulers,
        "drains": pause.drains,
    }


def overview_view(overview: Overview) -> OverviewShape:
    """The whole host, with the moves under way and the findings of the last audit that were not healed."""
    health = overview.health
    tree = with_reserved(overview.tree, overview.unclaimed)  # as Placement has it
    usages = beyond(overview.used, overview.unclaimed)
    return {
        "at": moment(overview.at),
        "status": status_view(overview.status),
        "health": cast(HealthShape, health_view(health, (*health.live, *health.ready))),
        "resource_providers": tree_view(tree, usages, overview.unclaimed)["resource_providers"],
        "instances": instances_view(overview),
        "moves": moves_view(overview.under_way, overview),
        "findings": [finding_view(finding) for finding in overview.findings],
        "pending": overview.pending,
        "reshape_pending": overview.reshape_pending,
    }


def history_view(events: tuple[Event, ...], overview: Overview) -> HistoryShape:
    """Events with the names that consumers have, or had last; `consumer` is null for an event of the host."""
    migrations = {move.migration for move in overview.moves}
    shown: list[EventShape] = []
    for event in events:
        name = overview.name_of(event.consumer) or event.name
        if event.consumer in migrations:  # it must not be taken for its instance
            name = f"{name}, migration" if name else "migration"
        shown.append(_event(event, name))
    return {"events": shown}


def explained_view(explained: Explanation) -> ExplainedShape:
    """Everything that the question names, each with its lines and its events."""
    found: list[FoundShape] = [
        {
            "kind": subject.kind,
            "id": subject.id,
            "name": subject.name,
            "lines": list(subject.lines),
            "events": [_event(event, subject.name) for event in explained.events.get(subject.id, ())],
        }
        for subject in explained.items
    ]
    return {"asked": explained.word, "found": found}


def _event(event: Event, name: str) -> EventShape:
    return {
        "at": moment(event.at),
        "consumer": event.consumer or None,
        "name": name,
        "event": event.event,
        "detail": event.detail,
        "uid": event.uid,
        "pid": event.pid,
    }
