"""The agent's values as the JSON of the local API, in Placement's terms. Pure."""

from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import Any

from agent.claims.claim import Claim, Fit, Shortfall
from agent.claims.claim_json import cells_to_json
from agent.claims.parse_request import ClaimRequest, request_to_json
from agent.driver import Guest
from agent.providers.plan import Plan
from agent.reconcile.reshape_request import Preview
from agent.reshape.receipt import Receipt
from agent.reshape.types import Relocation, name_of
from agent.shapes import Allocations, Amounts, Units, Usages
from agent.tree import Inventory, Provider, ProviderTree

Json = dict[str, Any]


def tree_view(tree: ProviderTree, usages: Usages) -> Json:
    """Depth first, each parent before its children, siblings by name."""
    roots: dict[str, str] = {}
    shown = []
    for provider in tree:
        root = provider.uuid if provider.parent is None else roots[provider.parent]
        roots[provider.uuid] = root
        shown.append(_provider(provider, root, usages.get(provider.uuid, {})))
    return {"resource_providers": shown}


def _provider(provider: Provider, root: str, used: Amounts) -> Json:
    return {
        "uuid": provider.uuid,
        "name": provider.name,
        "parent_provider_uuid": provider.parent,
        "root_provider_uuid": root,
        "generation": provider.generation,
        "inventories": {name: _inventory(each) for name, each in sorted(provider.inventories.items())},
        "usages": {name: used.get(name, 0) for name in sorted({*provider.inventories, *used})},
        "traits": sorted(provider.traits),
        "aggregates": sorted(provider.aggregates),
    }


def _inventory(inventory: Inventory) -> Json:
    return {**inventory.to_json(), "capacity": inventory.capacity}


def instances_view(pairs: Iterable[tuple[Guest | None, Claim | None]]) -> Json:
    return {"instances": [_instance(guest, claim) for guest, claim in pairs]}


def _instance(guest: Guest | None, claim: Claim | None) -> Json:
    uuid = guest.uuid if guest else claim.consumer if claim else ""
    name = guest.name if guest else claim.request.name if claim else ""
    return {
        "uuid": uuid,
        "name": name,
        "guest": _guest(guest) if guest else None,
        "claim": claim_view(claim) if claim else None,
    }


def _guest(guest: Guest) -> Json:
    return {
        "state": guest.state.value,
        "resources": dict(sorted(guest.resources.items())),
        "units": [
            {"resource_class": used.resource_class, "unit": used.unit, "device": used.device}
            for used in guest.units
        ],
    }


def claim_view(claim: Claim) -> Json:
    """`since` is RFC 3339, UTC."""
    return {
        "consumer": claim.consumer,
        "name": claim.request.name,
        "state": claim.state.value,
        "adopted": claim.adopted,
        "since": moment(claim.since),
        "allocations": _allocations(claim.allocations),
        "units": _units(claim.units),
        "cells": cells_to_json(claim.cells),
        "to_make": {unit: dict(making) for unit, making in sorted(claim.makings.items())},
        "request": request_to_json(claim.request),
    }


def moment(seconds: float) -> str:
    """RFC 3339, UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def explanation_view(request: ClaimRequest, explanation: Fit) -> Json:
    """`asked` sums the groups up."""
    return {
        "consumer": request.consumer,
        "asked": dict(sorted(request.resources.items())),
        "fits": explanation.fits,
        "allocations": _allocations(explanation.allocations),
        "units": _units(explanation.units),
        "cells": cells_to_json(explanation.cells),
        "to_make": {unit: dict(making) for unit, making in sorted(explanation.makings.items())},
        "shortfalls": [_shortfall(shortfall) for shortfall in explanation.shortfalls],
    }


def plan_view(plan: Plan) -> Json:
    """`lines` is for people; there are as many as operations."""
    return {"operations": plan.to_json(), "lines": list(plan.lines())}


def preview_view(preview: Preview) -> Json:
    """`moves` are in the order of their consumers; `receipts` the newest first."""
    trees = (preview.before, preview.after)
    return {
        "due": bool(preview.moves),
        "refused": preview.refused,
        "before": tree_view(preview.before, _plain(preview.used_before)),
        "after": tree_view(preview.after, _plain(preview.used_after)),
        "moves": [_relocation(each, *trees) for each in sorted(preview.relocations)],
        "parked": list(preview.parked),
        "receipts": [_receipt(each, preview.undone) for each in reversed(preview.receipts)],
    }


def reshaped_view(receipts: Iterable[Receipt]) -> Json:
    """What was done, the receipts of it."""
    return {"receipts": [_receipt(each, ()) for each in receipts]}


def _plain(used: Usages) -> Usages:
    return {uuid: dict(amounts) for uuid, amounts in used.items()}


def _relocation(each: Relocation, *trees: ProviderTree) -> Json:
    return {
        "consumer": each.consumer,
        "resource_class": each.resource_class,
        "amount": each.amount,
        "from": name_of(each.source, *trees),
        "from_uuid": each.source,
        "to": name_of(each.target, *trees),
        "to_uuid": each.target,
        "becomes": each.target_class,
    }


def _receipt(receipt: Receipt, undone: Collection[str]) -> Json:
    """`moves` as the driver gave them; `allocations` is how many were moved."""
    return {
        "id": receipt.id,
        "at": datetime.fromtimestamp(receipt.at, UTC).isoformat(timespec="seconds"),
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


def _allocations(allocations: Allocations) -> Json:
    return {
        provider: {"resources": dict(sorted(resources.items()))}
        for provider, resources in sorted(allocations.items())
    }


def _units(units: Units) -> Json:
    return {
        provider: {name: list(exact) for name, exact in sorted(classes.items())}
        for provider, classes in sorted(units.items())
    }


def _shortfall(shortfall: Shortfall) -> Json:
    return {
        "resource_class": shortfall.resource_class,
        "asked": shortfall.asked,
        "free": shortfall.free,
        "provider": shortfall.provider,
        "provider_uuid": shortfall.provider_uuid,
        "reason": shortfall.reason,
    }
