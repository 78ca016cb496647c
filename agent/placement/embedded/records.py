"""What the model of the embedded core holds: providers, inventories, consumers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

SHARING_TRAIT = "MISC_SHARES_VIA_AGGREGATE"


class InventoryRecord(NamedTuple):
    """What a provider offers of one resource class."""

    total: int
    reserved: int
    min_unit: int
    max_unit: int
    step_size: int
    allocation_ratio: float
    updated_at: float

    @property
    def capacity(self) -> float:
        """How much may be used in sum; summaries truncate it to an int."""
        return (self.total - self.reserved) * self.allocation_ratio

    def admits(self, amount: int) -> bool:
        """Whether one allocation of `amount` respects min_unit, max_unit and step_size."""
        return self.min_unit <= amount <= self.max_unit and amount % self.step_size == 0


class ProviderRecord(NamedTuple):
    """A resource provider with everything that hangs on it, except usage."""

    uuid: str
    name: str
    generation: int
    parent_uuid: str | None
    root_uuid: str
    inventories: Mapping[str, InventoryRecord]
    traits: frozenset[str]
    aggregates: frozenset[str]
    updated_at: float

    @property
    def is_sharing(self) -> bool:
        return SHARING_TRAIT in self.traits


class ConsumerRecord(NamedTuple):
    """A consumer and all its allocations: `{provider uuid: {resource class: amount}}`, never empty.

    `consumer_type` is None where the consumer was last written before microversion 1.38 ("unknown").
    """

    uuid: str
    project_id: str
    user_id: str
    consumer_type: str | None
    generation: int
    allocations: Mapping[str, Mapping[str, int]]
    updated_at: float
