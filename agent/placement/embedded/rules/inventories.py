"""The rules of writes to inventories: one may shrink below its use, but not be removed while in use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from agent.placement.embedded.draft import CoreState, Draft
from agent.placement.embedded.problems import (
    BAD_REQUEST,
    CONCURRENT_UPDATE,
    INVENTORY_IN_USE,
    NOT_FOUND,
    ProblemType,
    RequestRefused,
)
from agent.placement.embedded.records import InventoryRecord, ProviderRecord
from agent.placement.embedded.rules import providers
from agent.placement.embedded.validation import MAX_INT

InventoryRecords = Mapping[str, InventoryRecord]


def from_body(body: Mapping[str, Any], now: float) -> InventoryRecord:
    """The inventory in a valid body, with the defaults of the API for missing fields."""
    return InventoryRecord(
        total=body["total"],
        reserved=body.get("reserved", 0),
        min_unit=body.get("min_unit", 1),
        max_unit=body.get("max_unit", MAX_INT),
        step_size=body.get("step_size", 1),
        allocation_ratio=float(body.get("allocation_ratio", 1.0)),
        updated_at=now,
    )


def check_capacity(uuid: str, inventories: InventoryRecords, *, may_be_zero: bool) -> None:
    """Refuse inventories with a negative capacity, or (before 1.26) with none.

    Raises RequestRefused (400).
    """
    for resource_class, inventory in inventories.items():
        exact = inventory.capacity
        capacity = int(exact) if math.isfinite(exact) else exact
        if not math.isfinite(exact) or capacity < 0 or (capacity == 0 and not may_be_zero):
            raise RequestRefused(
                BAD_REQUEST,
                f"Invalid inventory for '{resource_class}' on resource provider '{uuid}': "
                f"total {inventory.total} less reserved {inventory.reserved} leaves {capacity}.",
            )


def put_all(draft: Draft, uuid: str, generation: int | None, inventories: InventoryRecords) -> ProviderRecord:
    """Replace all inventories of the provider; `generation` None is not checked.

    Raises RequestRefused: 404, 409 for another generation, 400 for an unknown class, 409 where a removed
    class is in use.
    """
    provider = providers.get_at_generation(draft, uuid, generation)
    check_known(draft, inventories)
    check_unused(draft, provider, provider.inventories.keys() - inventories.keys(), INVENTORY_IN_USE)
    return _put(draft, provider, inventories)


def add(draft: Draft, uuid: str, resource_class: str, inventory: InventoryRecord) -> ProviderRecord:
    """Add an inventory.

    Raises RequestRefused: 404, 400 for an unknown class, 409 where the inventory exists.
    """
    provider = providers.get(draft, uuid)
    check_known(draft, (resource_class,))
    if resource_class in provider.inventories:
        raise RequestRefused(
            CONCURRENT_UPDATE, f"Update conflict: {uuid} has an inventory of {resource_class}."
        )
    return _put(draft, provider, {**provider.inventories, resource_class: inventory})


def update(
    draft: Draft, uuid: str, generation: int | None, resource_class: str, inventory: InventoryRecord
) -> ProviderRecord:
    """Replace one inventory.

    Raises RequestRefused: 404 (also for an unknown class), 409 for another generation, 400 where there is no
    such inventory.
    """
    provider = providers.get_at_generation(draft, uuid, generation)
    check_known(draft, (resource_class,), NOT_FOUND)
    if resource_class not in provider.inventories:
        raise RequestRefused(BAD_REQUEST, f"Resource provider {uuid} has no inventory of {resource_class}.")
    return _put(draft, provider, {**provider.inventories, resource_class: inventory})


def delete(draft: Draft, uuid: str, resource_class: str) -> ProviderRecord:
    """Remove one inventory.

    Raises RequestRefused: 404, 409 where it is in use (as a concurrent update, as the API defines it).
    """
    provider = providers.get(draft, uuid)
    if resource_class not in provider.inventories:
        raise RequestRefused(NOT_FOUND, f"Resource provider {uuid} has no inventory of {resource_class}.")
    check_unused(draft, provider, {resource_class}, CONCURRENT_UPDATE)
    left = {name: record for name, record in provider.inventories.items() if name != resource_class}
    return _put(draft, provider, left)


def check_known(state: CoreState, resource_classes: Any, problem: ProblemType = BAD_REQUEST) -> None:
    """Check that the classes exist. Raises RequestRefused (`problem`) with the first that does not."""
    for resource_class in resource_classes:
        if not state.has_resource_class(resource_class):
            raise RequestRefused(problem, f"No such resource class {resource_class}.")


def check_unused(state: CoreState, provider: ProviderRecord, removed: set[str], problem: ProblemType) -> None:
    """Check that no class in `removed` is in use. Raises RequestRefused (`problem`) where one is."""
    used = sorted(name for name in removed if state.used(provider.uuid, name))
    if used:
        raise RequestRefused(
            problem, f"Inventory for '{', '.join(used)}' on resource provider '{provider.uuid}' in use."
        )


def _put(draft: Draft, provider: ProviderRecord, inventories: InventoryRecords) -> ProviderRecord:
    provider = provider.at_next_generation(draft.now)._replace(inventories=inventories)
    draft.put_provider(provider)
    return provider
