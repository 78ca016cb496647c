"""The records of the model: providers, their inventories, and consumers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

SHARING_TRAIT = "MISC_SHARES_VIA_AGGREGATE"


class InventoryRecord(NamedTuple):
    """A provider's inventory of one resource class."""

    total: int
    reserved: int
    min_unit: int
    max_unit: int
    step_size: int
    allocation_ratio: float
    updated_at: float

    @property
    def capacity(self) -> float:
        """The amount that all allocations together may have; provider summaries truncate it to an integer."""
        return (self.total - self.reserved) * self.allocation_ratio

    def admits(self, amount: int) -> bool:
        """Whether one allocation of `amount` respects min_unit, max_unit and step_size."""
        return self.min_unit <= amount <= self.max_unit and amount % self.step_size == 0


class ProviderRecord(NamedTuple):
    """A resource provider with inventories, traits and aggregates, without usage."""

    uuid: str
    name: str
    generation: int
    parent_uuid: str | None
    root_uuid: str
    inventories: Mapping[str, InventoryRecord]
    traits: frozenset[str]
    aggregates: frozenset[str]
    updated_at: float

    def at_next_generation(self, now: float) -> ProviderRecord:
        """The provider after a write at `now`, with the contents of this record itself."""
        return self._replace(generation=self.generation + 1, updated_at=now)

    def shares_contents(self, other: ProviderRecord) -> bool:
        """Whether one record was made of the other, and only generation and time differ."""
        return (
            self.inventories is other.inventories
            and self.traits is other.traits
            and self.aggregates is other.aggregates
            and self.name is other.name
            and self.parent_uuid is other.parent_uuid
            and self.root_uuid is other.root_uuid
        )

    @property
    def is_sharing(self) -> bool:
        """Whether the provider shares its inventory through its aggregates."""
        return SHARING_TRAIT in self.traits


class ConsumerRecord(NamedTuple):
    """A consumer with its allocations, {provider uuid: {resource class: amount}}.

    They are empty only at generation 0: the consumer is barred, so that a first write that comes late is
    rejected, and no request shows it. `consumer_type` is None for a consumer that was last written before
    microversion 1.38 ("unknown").
    """

    uuid: str
    project_id: str
    user_id: str
    consumer_type: str | None
    generation: int
    allocations: Mapping[str, Mapping[str, int]]
    updated_at: float

    @property
    def is_barred(self) -> bool:
        """Whether it holds nothing, so that only a write that names generation 0 is accepted."""
        return not self.allocations
