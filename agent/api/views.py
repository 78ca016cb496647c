"""The agent's values in the shapes of the local API, in Placement's terms; all of them from the agent's
memory. Pure.

A shape says how its value is written: each field is the attribute of its name, or the one that `From` names.
What joins several values is given by a view below.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from operator import attrgetter
from types import MappingProxyType
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin, get_type_hints, is_typeddict

from agent import __version__
from agent.api.operations import WrittenDomain
from agent.api.shapes import host, instance
from agent.api.shapes.schema import DATE_TIME, EXACT, From
from agent.audit.auditor import AuditReport
from agent.audit.finding import Finding
from agent.claims.claim import Claim, Fit
from agent.claims.guest_cells import PlacedCell
from agent.claims.parse_request import request_to_json
from agent.claims.request import ClaimRequest
from agent.clock import exact_moment
from agent.codec import encode
from agent.moves.circumstances import moved_away_advice, next_actor
from agent.moves.states import Move
from agent.providers.device_health import HealthState, Symptom
from agent.providers.reservations import with_reserved
from agent.reconcile.pass_report import Preview
from agent.reshape.laws import name_of
from agent.reshape.receipt import Receipt
from agent.shapes import Usages, beyond
from agent.status.overview import PLACEMENT, Overview, Status
from agent.status.web import health_view
from agent.tree import ProviderTree

S = TypeVar("S")


def shown(shape: type[S], value: object, **instead: object) -> S:
    """The value in that shape; `instead` has the values of the fields that no attribute has.

    Mappings and sets are in order, moments are seconds since 1970 or text, and a mapping in the place of a
    shape is in that shape already. A field that an answer may lack is left to the caller.
    """
    return cast(
        S,
        {
            name: write(instead[name] if name in instead else read(value))
            for name, read, write in _fields(cast(Any, shape))
        },
    )


@cache
def _fields(shape: Any) -> tuple[tuple[str, Callable[[Any], Any], Callable[[Any], Any]], ...]:
    """(name, what reads it of the value, what writes it) of each field that an answer must have."""
    found = []
    for name, kind in get_type_hints(shape, include_extras=True).items():
        notes = getattr(kind, "__metadata__", ())
        attribute = next((note.attribute for note in notes if isinstance(note, From)), name)
        if name in shape.__required_keys__:
            found.append((name, attrgetter(attribute), _writer(kind)))
    return tuple(found)


@cache
def _writer(kind: Any) -> Callable[[Any], Any]:
    """The function that writes a value where a shape has a field of this kind."""
    base, arguments = get_origin(kind), get_args(kind)
    if base is Annotated:
        if DATE_TIME in kind.__metadata__:
            write = exact_moment if EXACT in kind.__metadata__ else moment
            return lambda value: value if isinstance(value, str) else write(value)
        return _writer(arguments[0])
    if type(None) in arguments:
        some = _writer(arguments[0])
        return lambda value: None if value is None else some(value)
    if base is dict:
        item = _writer(arguments[1])
        if item is _same:
            return dict if arguments[1] is Any else lambda value: dict(sorted(value.items()))
        return lambda value: {key: item(value[key]) for key in sorted(value)}
    if base is list:
        item = _writer(arguments[0])
        if item is _same:
            return lambda value: sorted(value) if isinstance(value, frozenset) else list(value)
        return lambda value: [item(one) for one in value]
    if kind in VIEWS:
        return VIEWS[kind]
    if is_typeddict(kind):
        return lambda value: value if isinstance(value, dict) else shown(kind, value)
    return _same


def _same(value: Any) -> Any:
    return value


def moment(seconds: float) -> str:
    """Seconds since 1970 as RFC 3339, UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def tree_view(
    tree: ProviderTree,
    usages: Usages,
    unclaimed: Usages = MappingProxyType({}),
    warnings: Iterable[str] = (),
) -> host.TreeShape:
    """The providers depth first: each parent before its children, siblings by name.

    `unclaimed` is what guests use beyond what is held and claimed for them.
    """
    roots: dict[str, str] = {}
    providers: list[host.ResourceProviderShape] = []
    for provider in tree:
        roots[provider.uuid] = provider.uuid if provider.parent is None else roots[provider.parent]
        used = usages.get(provider.uuid, {})
        providers.append(
            shown(
                host.ResourceProviderShape,
                provider,
                root_provider_uuid=roots[provider.uuid],
                usages={name: used.get(name, 0) for name in {*provider.inventories, *used}},
                unclaimed=unclaimed.get(provider.uuid, {}),
            )
        )
    return {"resource_providers": providers, "warnings": list(warnings)}


def instances_view(overview: Overview) -> list[instance.InstanceShape]:
    """Guests and claims side by side; one of the two may be missing."""
    migrations = {move.migration: move.instance for move in overview.under_way}
    moving = {instance: migration for migration, instance in migrations.items()}
    instances: list[instance.InstanceShape] = []
    for guest, claim in overview.instances:
        uuid = guest.uuid if guest else claim.consumer if claim else ""
        name = guest.name if guest else (claim.request.name if claim else "") or overview.name_of(uuid)
        moved_away = guest is not None and uuid in overview.seen.moved_away
        instances.append(
            shown(
                instance.InstanceShape,
                guest,
                uuid=uuid,
                name=name,
                guest=guest,
                moved_away=moved_away,
                advice=moved_away_advice(name, uuid) if moved_away else None,
                migration_of=migrations.get(uuid),
                migration=moving.get(uuid),
                claim=claim_view(claim, overview.tree) if claim else None,
            )
        )
    return instances


def claim_view(claim: Claim, tree: ProviderTree) -> instance.ClaimShape:
    """A claim with its request in the form by groups; `tree` are the host's providers."""
    return shown(instance.ClaimShape, claim, mappings=claim.mappings(tree))


def explanation_view(
    explained: Sequence[tuple[ClaimRequest, Fit]], closed: str | None, number: int = 1
) -> instance.ExplanationShape:
    """Whether the claim would fit: that of the first of `number` alternatives that fits, else of the first.

    `explained` are those that were tried; `closed` is why claims are closed.
    """
    request, fit = explained[-1] if explained[-1][1].fits else explained[0]
    view = shown(
        instance.ExplanationShape,
        fit,
        consumer=request.consumer,
        asked=request.resources,
        closed=closed,
    )
    if request.alternative:
        refused = [
            shown(instance.RefusedAlternativeShape, no, alternative=each.alternative, asked=each.resources)
            for each, no in explained
            if each is not request
        ]
        view = {**view, "alternative": request.alternative, "alternatives": number, "refused": refused}
    return view


def domain_view(written: WrittenDomain, tree: ProviderTree) -> instance.DomainShape:
    """A complete domain, and its claim; `tree` are the host's providers."""
    return shown(instance.DomainShape, written, claim=claim_view(written.claim, tree))


def preview_view(preview: Preview) -> host.PreviewShape:
    """What a reshape would do: `moves` by consumer, `receipts` the newest first."""
    trees = (preview.before, preview.after)
    moves = [
        shown(
            host.RelocationShape,
            relocation,
            name=preview.names.get(relocation.consumer, ""),
            **{"from": name_of(relocation.source, *trees), "to": name_of(relocation.target, *trees)},
        )
        for relocation in sorted(preview.relocations)
    ]
    return shown(
        host.PreviewShape,
        preview,
        due=bool(preview.moves),
        before=tree_view(preview.before, preview.used_before),
        after=tree_view(preview.after, preview.used_after),
        moves=moves,
        receipts=[_receipt(receipt, preview.undone) for receipt in reversed(preview.receipts)],
    )


def reshaped_view(receipts: Iterable[Receipt]) -> host.ReshapedShape:
    """What a reshape did: its receipts."""
    return {"receipts": [_receipt(receipt, ()) for receipt in receipts]}


def _receipt(receipt: Receipt, undone: Collection[str]) -> host.ReceiptShape:
    moved = len(receipt.relocations)
    return shown(host.ReceiptShape, receipt, undone=receipt.id in undone, allocations=moved)


def audit_view(report: AuditReport) -> host.AuditShape:
    """The findings, each with the outcome of its repair."""
    failed = report.failed or {}
    return {
        "findings": [
            finding_view(finding, healed=index in report.healed, failed=failed.get(index))
            for index, finding in enumerate(report.findings)
        ]
    }


def finding_view(finding: Finding, *, healed: bool = False, failed: str | None = None) -> host.FindingShape:
    """A finding; `failed` is the reason why its repair was not done."""
    repair = [str(step) for step in finding.repair]
    return shown(host.FindingShape, finding, repair=repair, healed=healed, failed=failed)


def moves_view(moves: Iterable[Move], overview: Overview) -> list[instance.MoveShape]:
    """Moves of this host, with the names of its own providers."""
    names = {provider.uuid: provider.name for provider in overview.tree}
    return [move_view(move, overview, names) for move in moves]


def move_view(move: Move, overview: Overview, providers: Mapping[str, str]) -> instance.MoveShape:
    """A move, with the claims before and after it, and who acts next in what this host sees.

    `providers` is {uuid: name} of the providers of any host whose names are known.
    """
    name = overview.name_of(move.instance) or (move.new or move.old).request.name or move.old.request.name
    units = {provider: exact for provider, exact in move.old.units.items() if provider in move.handed}
    return shown(
        instance.MoveShape,
        move,
        name=name,
        next=next_actor(move, overview.seen),
        # The migration's part of the old claim.
        handed=shown(instance.HoldingShape, move.old, allocations=move.handed, units=units),
        old=claim_view(move.old, overview.tree),
        new=claim_view(move.new, overview.tree) if move.new else None,
        providers={uuid: providers[uuid] for uuid in providers_of(move) if uuid in providers},
    )


def providers_of(move: Move) -> set[str]:
    """The uuids of the providers of both places."""
    return {*move.old.allocations, *move.handed, *(move.new.allocations if move.new else ())}


def status_view(status: Status) -> host.StatusShape:
    """How the agent is."""
    driver, placement = status.error("driver"), status.error(PLACEMENT)
    return shown(
        host.StatusShape,
        status,
        version=__version__,
        driver={"name": status.driver, "ok": driver is None, "error": driver},
        placement={"kind": status.placement, "ok": placement is None, "error": placement},
        claims={
            "open": status.closed is None,
            "reason": status.closed,
            "count": status.claims,
            "schedulers": status.schedulers,
        },
        gate={
            "hook": "unknown" if status.gate.state is None else status.gate.state.value,
            "in_effect": status.gate.in_effect,
            "unanswered": status.gate.unanswered,
        },
    )


def overview_view(overview: Overview) -> host.OverviewShape:
    """The whole host, with the moves under way and the findings of the last audit that were not healed."""
    health = overview.health
    tree = with_reserved(overview.tree, overview.unclaimed)  # as Placement has it
    usages = beyond(overview.used, overview.unclaimed)
    return shown(
        host.OverviewShape,
        overview,
        status=status_view(overview.status),
        health=health_view(health, (*health.live, *health.ready)),
        resource_providers=tree_view(tree, usages, overview.unclaimed)["resource_providers"],
        instances=instances_view(overview),
        moves=moves_view(overview.under_way, overview),
        findings=[finding_view(finding) for finding in overview.findings],
    )


VIEWS: Mapping[Any, Callable[[Any], Any]] = {
    instance.ClaimByGroupsShape: request_to_json,
    host.DeviceHealthShape: lambda health: shown(
        host.DeviceHealthShape,
        health,
        symptoms=[symptom for symptom in Symptom if symptom in health.causes],
        recovering=health.state is HealthState.RECOVERING,
    ),
    instance.GuestCellShape: partial(encode, PlacedCell),
    host.MoveInstructionShape: lambda move: {
        "from_resource_provider": move.from_resource_provider,
        "moved_resources": dict(move.moved_resources),
        "to_resource_provider": move.to_resource_provider,
    },
    instance.ProviderAllocationShape: lambda amounts: {"resources": dict(sorted(amounts.items()))},
    instance.ShortfallShape: lambda shortfall: shortfall.to_json(),
}
"""{shape: how its value is written}, of shapes whose values have no attributes of these names"""
