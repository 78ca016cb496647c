"""Reserve what guests use although nothing is held or claimed for it; each pass does it anew. Pure.

A guest without a claim, or one that grew, uses what Placement believes to be free. The agent reserves it in
the inventories that it writes, so that no scheduler is offered it. The agent's own book counts these guests
itself, so it uses the inventories without this reservation.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil

from agent.driver import Guest
from agent.providers.resolve import OwnedProviders
from agent.shapes import Usages
from agent.tree import Inventory, Provider, ProviderTree


@dataclass(frozen=True, slots=True)
class UnclaimedUse:
    """{instance: {provider: {class: amount}}} that guests use beyond what is held and claimed for them."""

    by_instance: Mapping[str, Usages] = field(default_factory=dict)

    def reserve(self, tree: ProviderTree, owned: OwnedProviders) -> ProviderTree:
        """The tree with these amounts reserved, as far as the agent writes the inventories itself."""
        total = _total(self.by_instance.values())
        return with_reserved(
            tree,
            {
                uuid: {name: amounts[name] for name in owned.get(uuid).classes & amounts.keys()}
                for uuid, amounts in total.items()
            },
        )

    def part(self, slots: Collection[tuple[str, str]], *, on: bool) -> "UnclaimedUse":
        """The part that is on these (provider, class), or the part that is not."""
        return UnclaimedUse(
            {
                instance: {
                    uuid: {name: amount for name, amount in amounts.items() if ((uuid, name) in slots) is on}
                    for uuid, amounts in amounts_of.items()
                }
                for instance, amounts_of in self.by_instance.items()
            }
        )

    def notices(self, tree: ProviderTree, guests: Collection[Guest]) -> tuple[str, ...]:
        """A sentence for each guest, by name."""
        known = {guest.uuid: guest for guest in guests}
        return tuple(
            _notice(known[instance], amounts_of, tree)
            for instance, amounts_of in sorted(self.by_instance.items())
            if instance in known
        )


def with_reserved(tree: ProviderTree, amounts: Usages) -> ProviderTree:
    """The tree with these amounts reserved, of what consumers can have."""
    for uuid, amounts_here in amounts.items():
        provider = tree.get(uuid)
        if provider is not None and amounts_here:
            tree = tree.with_provider(_reserve(provider, amounts_here))
    return tree


def without_reservations(
    tree: ProviderTree, base: ProviderTree, withheld: Collection[tuple[str, str]] = ()
) -> ProviderTree:
    """The tree with the reserved amounts of `base`, the tree before guests' use was reserved in it.

    The (provider, class) in `withheld` stay as they are: a reshape is to move them.
    """
    for provider in base:
        now = tree.get(provider.uuid)
        if now is None:
            continue
        inventories = {
            name: inventory
            if (provider.uuid, name) in withheld
            else _lowered(inventory, provider.inventories.get(name))
            for name, inventory in now.inventories.items()
        }
        if inventories != now.inventories:
            tree = tree.with_provider(replace(now, inventories=inventories))
    return tree


def released(inventory: Inventory, amount: int, least: int) -> Inventory:
    """The inventory with the reservation of that amount taken back, and not less than `least` reserved."""
    lower = inventory.reserved - _units_for(inventory, amount)
    return replace(inventory, reserved=min(inventory.reserved, max(least, lower)))


def _lowered(inventory: Inventory, base: Inventory | None) -> Inventory:
    if base is None or base.reserved >= inventory.reserved:
        return inventory
    return replace(inventory, reserved=base.reserved)


def _reserve(provider: Provider, amounts: Mapping[str, int]) -> Provider:
    inventories = {
        name: replace(
            inventory,
            reserved=min(inventory.total, inventory.reserved + _units_for(inventory, amounts.get(name, 0))),
        )
        for name, inventory in provider.inventories.items()
    }
    return replace(provider, inventories=inventories)


def _units_for(inventory: Inventory, amount: int) -> int:
    """How much must be reserved so that consumers can have `amount` less."""
    return ceil(amount / inventory.allocation_ratio)


def _total(usages: Iterable[Usages]) -> dict[str, dict[str, int]]:
    total: dict[str, dict[str, int]] = {}
    for amounts_of in usages:
        for uuid, amounts in amounts_of.items():
            there = total.setdefault(uuid, {})
            for name, amount in amounts.items():
                there[name] = there.get(name, 0) + amount
    return total


def _notice(guest: Guest, amounts_of: Usages, tree: ProviderTree) -> str:
    parts = [
        f"{', '.join(f'{amount} {name}' for name, amount in sorted(amounts.items()))} on "
        f"{provider.name if (provider := tree.get(uuid)) else f'provider {uuid}'}"
        for uuid, amounts in sorted(amounts_of.items())
    ]
    return (
        f"The guest {guest.name} ({guest.uuid}) uses {'; '.join(parts)} beyond what is claimed for it or "
        "held for it in Placement: the agent reserves it, so that no other guest gets it. Claim it "
        "(`plimsoll gate claim-running`; with a claim, `plimsoll audit --heal` or `[claims] follow = grow`), "
        "or take it away from the guest."
    )
