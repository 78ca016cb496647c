"""The rule of POST /reshaper: inventories and allocations move between providers in one write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent.placement.embedded.draft import Draft
from agent.placement.embedded.problems import CONCURRENT_UPDATE, PROVIDER_NOT_FOUND, RequestRefused
from agent.placement.embedded.rules import allocations, inventories, providers

NewInventories = Mapping[str, tuple[int, inventories.InventoryRecords]]
"""{provider uuid: (generation that the client read, all its new inventories)}"""


def reshape(draft: Draft, new: NewInventories, writes: Sequence[allocations.ConsumerWrite]) -> None:
    """Replace all inventories of these providers and all allocations of these consumers, or raise.

    Raises RequestRefused: 400 for an unknown provider or class, 409 for another generation, 409 where a
    removed inventory is in use, 409 where the allocations do not fit.
    """
    for uuid, (generation, _) in new.items():
        provider = draft.provider(uuid)
        if provider is None:
            raise RequestRefused(
                PROVIDER_NOT_FOUND, f"Resource provider {uuid} in inventories does not exist."
            )
        if provider.generation != generation:
            raise RequestRefused(
                CONCURRENT_UPDATE,
                f"resource provider generation conflict for provider {uuid}: actual: {provider.generation}, "
                f"given: {generation}.",
            )
    allocations.check_consumers(draft, writes)
    # An inventory in use cannot be removed, and an allocation needs an inventory: so each provider has both
    # its old and its new inventories while the allocations are replaced.
    for uuid, (_, wanted) in new.items():
        if wanted:
            old = providers.get(draft, uuid).inventories
            inventories.put_all(draft, uuid, None, {**old, **wanted})
    allocations.replace(draft, writes)
    for uuid, (_, wanted) in new.items():
        inventories.put_all(draft, uuid, None, wanted)
