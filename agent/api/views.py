"""The agent's values in the shapes of the local API, in Placement's terms. Pure."""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import cast

from agent.api.operations import WrittenDomain
from agent.api.shapes.claims import (
    ClaimShape,
    DomainShape,
    ExplanationShape,
    GuestCellShape,
    HoldingShape,
    MakingShape,
    ProviderAllocationShape,
    ShortfallShape,
)
from agent.api.shapes.instances import GuestShape, InstanceShape, InstancesShape
from agent.api.shapes.plan import PlanShape
from agent.api.shapes.requests import ClaimByGroupsShape
from agent.api.shapes.reshape import PreviewShape, ReceiptShape, RelocationShape, ReshapedShape
from agent.api.shapes.tree import InventoryShape, ResourceProviderShape, TreeShape
from agent.claims.claim import Claim, Fit, Shortfall, cells_to_json
from agent.claims.guest_cells import PlacedCell
from agent.claims.parse_request import request_to_json
from agent.claims.request import ClaimRequest
from agent.driver import Guest
from agent.moves.circumstances import Circumstances, moved_away_advice
from agent.moves.states import Move
from agent.providers.plan import Plan
from agent.reconcile.reshape_preview import Preview
from agent.reshape.laws import Relocation, name_of
from agent.reshape.receipt import Receipt
from agent.shapes import Allocations, Makings, Units, Usages
from agent.tree import Inventory, Provider, ProviderTree


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
    providers = []
    for provider in tree:
        root = provider.uuid if provider.parent is None else roots[provider.parent]
        roots[provider.uuid] = root
        providers.append(_provider(provider, root, usages, unclaimed))
    return {"resource_providers": providers, "warnings": list(warnings)}


def _provider(provider: Provider, root: str, usages: Usages, unclaimed: Usages) -> ResourceProviderShape:
    used, missing = usages.get(provider.uuid, {}), unclaimed.get(provider.uuid, {})
    return {
        "uuid": provider.uuid,
        "name": provider.name,
        "parent_provider_uuid": provider.parent,
        "root_provider_uuid": root,
        "generation": provider.generation,
        "inventories": {
            resource_class: _inventory(inventory)
            for resource_class, inventory in sorted(provider.inventories.items())
        },
        "usages": {
            resource_class: used.get(resource_class, 0)
            for resource_class in sorted({*provider.inventories, *used})
        },
        "unclaimed": dict(sorted(missing.items())),
        "traits": sorted(provider.traits),
        "aggregates": sorted(provider.aggregates),
    }


def _inventory(inventory: Inventory) -> InventoryShape:
    return cast(InventoryShape, {**inventory.to_json(), "capacity": inventory.capacity})


def instances_view(
    pairs: Iterable[tuple[Guest | None, Claim | None]],
    seen: Circumstances,
    moves: Iterable[Move],
    name_of: Callable[[str], str],
    tree: ProviderTree,
) -> InstancesShape:
    """Guests and claims side by side; one of a pair may be None.

    `moves` and the providers in `tree` are the host's, `name_of` returns a consumer's name, "" where it has
    none.
    """
    migrations = {move.migration: move.instance for move in moves if not move.ended}
    moving = {instance: migration for migration, instance in migrations.items()}
    return {"instances": [_instance(*pair, seen, migrations, moving, name_of, tree) for pair in pairs]}


def _instance(
    guest: Guest | None,
    claim: Claim | None,
    seen: Circumstances,
    migrations: Mapping[str, str],
    moving: Mapping[str, str],
    name_of: Callable[[str], str],
    tree: ProviderTree,
) -> InstanceShape:
    uuid = guest.uuid if guest else claim.consumer if claim else ""
    moved_away = guest is not None and guest.uuid in seen.moved_away
    return {
        "uuid": uuid,
        "name": guest.name if guest else (claim.request.name if claim else "") or name_of(uuid),
        "guest": _guest(guest) if guest else None,
        "moved_away": moved_away,
        "advice": moved_away_advice(guest.name, uuid) if guest and moved_away else None,
        "migration_of": migrations.get(uuid),
        "migration": moving.get(uuid),
        "claim": claim_view(claim, tree) if claim else None,
    }


def _guest(guest: Guest) -> GuestShape:
    return {
        "state": guest.state.value,
        "resources": dict(sorted(guest.resources.items())),
        "units": [
            {"resource_class": used.resource_class, "unit": used.unit, "device": used.device}
            for used in guest.units
        ],
    }


def claim_view(claim: Claim, tree: ProviderTree) -> ClaimShape:
    """A claim with its request in the form by groups; `tree` are the host's providers."""
    return {
        "consumer": claim.consumer,
        "name": claim.request.name,
        "state": claim.state.value,
        "adopted": claim.adopted,
        "since": moment(claim.since),
        "allocations": allocations_view(claim.allocations),
        "units": _units(claim.units),
        "cells": _cells(claim.cells),
        "to_make": _makings(claim.makings),
        "mappings": [
            {
                "suffix": mapping.suffix,
                "label": mapping.label,
                "allocations": allocations_view(mapping.allocations),
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
        "allocations": allocations_view(fit.allocations),
        "units": _units(fit.units),
        "cells": _cells(fit.cells),
        "to_make": _makings(fit.makings),
        "shortfalls": [shortfall_view(shortfall) for shortfall in fit.shortfalls],
    }


def domain_view(written: WrittenDomain, tree: ProviderTree) -> DomainShape:
    """A complete domain, and its claim; `tree` are the host's providers."""
    return {
        "consumer": written.claim.consumer,
        "made": written.made,
        "claim": claim_view(written.claim, tree),
        "xml": written.xml,
    }


def allocations_view(allocations: Allocations) -> dict[str, ProviderAllocationShape]:
    """As Placement writes allocations, by provider uuid."""
    return {
        provider: {"resources": dict(sorted(resources.items()))}
        for provider, resources in sorted(allocations.items())
    }


def _units(units: Units) -> dict[str, dict[str, list[str]]]:
    return {
        provider: {resource_class: list(exact) for resource_class, exact in sorted(classes.items())}
        for provider, classes in sorted(units.items())
    }


def _cells(cells: Iterable[PlacedCell]) -> list[GuestCellShape]:
    return cast(list[GuestCellShape], cells_to_json(cells))


def _makings(makings: Makings) -> dict[str, MakingShape]:
    return {unit: cast(MakingShape, dict(making)) for unit, making in sorted(makings.items())}


def holding_of_fit(fit: Fit) -> HoldingShape:
    """The place that a fit found."""
    return {
        "allocations": allocations_view(fit.allocations),
        "units": _units(fit.units),
        "cells": _cells(fit.cells),
    }


def shortfall_view(shortfall: Shortfall) -> ShortfallShape:
    """A provider that cannot give what is asked for."""
    return cast(ShortfallShape, shortfall.to_json())


def plan_view(plan: Plan) -> PlanShape:
    """The operations of a plan, each with a line for people."""
    return {"operations": plan.to_json(), "lines": list(plan.lines())}


def preview_view(preview: Preview) -> PreviewShape:
    """What a reshape would do: `moves` by consumer, `receipts` the newest first."""
    trees = (preview.before, preview.after)
    return {
        "due": bool(preview.moves),
        "refused": preview.refused,
        "before": tree_view(preview.before, _usages(preview.used_before)),
        "after": tree_view(preview.after, _usages(preview.used_after)),
        "moves": [
            _relocation(relocation, preview.names.get(relocation.consumer, ""), *trees)
            for relocation in sorted(preview.relocations)
        ],
        "parked": list(preview.parked),
        "receipts": [_receipt(receipt, preview.undone) for receipt in reversed(preview.receipts)],
    }


def reshaped_view(receipts: Iterable[Receipt]) -> ReshapedShape:
    """What a reshape did: its receipts."""
    return {"receipts": [_receipt(receipt, ()) for receipt in receipts]}


def _usages(used: Usages) -> Usages:
    return {uuid: dict(amounts) for uuid, amounts in used.items()}


def _relocation(relocation: Relocation, name: str, *trees: ProviderTree) -> RelocationShape:
    return {
        "consumer": relocation.consumer,
        "name": name,
        "resource_class": relocation.resource_class,
        "amount": relocation.amount,
        "from": name_of(relocation.source, *trees),
        "from_uuid": relocation.source,
        "to": name_of(relocation.target, *trees),
        "to_uuid": relocation.target,
        "becomes": relocation.target_class,
    }


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
