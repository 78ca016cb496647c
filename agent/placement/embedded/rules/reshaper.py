"""The reshaper: inventories and allocations moved between providers in one write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent.placement.embedded.draft import Draft
from agent.placement.embedded.problems import CONCURRENT_UPDATE, PROVIDER_NOT_FOUND, RequestRefused
from agent.placement.embedded.rules import allocations, inventories, providers

NewInventories = Mapping[str, tuple[int, inventories.InventoryRecords]]
"""{provider uuid: (generation that the client saw, all its inventories to be)}"""


def reshape(draft: Draft, new: NewInventories, writes: Sequence[allocations.ConsumerWrite]) -> None:
    """Replace the inventories of these providers and the allocations of these consumers, or raise.

    :raises Refused: 400 unknown provider or class, 409 wrong generation, 409 an inventory that goes away is
        still in use, 409 where the allocations do not fit
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
    # An inventory with allocations cannot go, and allocations need an inventory: so between the two states
    # every provider has what it had and what it will have.
    for uuid, (_, wanted) in new.items():
        if wanted:
            held = providers.get(draft, uuid).inventories
            inventories.put_all(draft, uuid, None, {**held, **wanted})
    allocations.replace(draft, writes)
    for uuid, (_, wanted) in new.items():
        inventories.put_all(draft, uuid, None, wanted)
