"""The arithmetic of inventories, and which providers share."""

from agent.placement.embedded.records import SHARING_TRAIT, InventoryRecord, ProviderRecord


def test_capacity_and_the_amounts_that_one_allocation_may_have() -> None:
    inventory = InventoryRecord(10, 2, 2, 6, 2, 1.5, 0.0)
    assert inventory.capacity == 12
    assert [amount for amount in range(9) if inventory.admits(amount)] == [2, 4, 6]


def test_a_provider_shares_by_its_trait() -> None:
    provider = ProviderRecord("u", "n", 0, None, "u", {}, frozenset({SHARING_TRAIT}), frozenset(), 0.0)
    assert provider.is_sharing and not provider._replace(traits=frozenset()).is_sharing
