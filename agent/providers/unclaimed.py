"""Reserve what is claimed or used although Placement does not hold it; each pass does it anew. Pure.

    reserved = max(claimed, used) - held, for each row of the book, on every provider

A guest without a claim, one that grew, a claim whose allocation another client deleted: Placement believes
that to be free. The agent reserves it in the inventories that it writes, so that no scheduler is offered it.
The agent's own book counts these rows itself, so it uses the inventories without this reservation.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import ceil

from agent.providers.resolve import OwnedProviders
from agent.shapes import Usages, total
from agent.tree import Inventory, Provider, ProviderTree


@dataclass(frozen=True, slots=True)
class UnheldUse:
    """{instance: {provider: {class: amount}}} that is claimed or used beyond what Placement holds for it.

    `claimed` and `unclaimed` are the two parts of that: with a claim, and used without one. `names` are the
    instances', for people. `found` are guests that were here before the state directory was, and the
    instances that are `departed` live on other hosts, whatever is claimed for them here.
    """

    by_instance: Mapping[str, Usages] = field(default_factory=dict)
    claimed: Mapping[str, Usages] = field(default_factory=dict)
    unclaimed: Mapping[str, Usages] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    found: frozenset[str] = frozenset()
    departed: frozenset[str] = frozenset()

    def reserve(self, tree: ProviderTree, owned: OwnedProviders) -> ProviderTree:
        """The tree with these amounts reserved, as far as the agent writes the inventories itself."""
        return with_reserved(
            tree,
            {
                uuid: {name: amounts[name] for name in owned.get(uuid).classes & amounts.keys()}
                for uuid, amounts in total(self.by_instance.values()).items()
            },
        )

    def part(self, slots: Collection[tuple[str, str]], *, on: bool) -> "UnheldUse":
        """The part that is on these (provider, class), or the part that is not."""
        return UnheldUse(
            {
                instance: {
                    uuid: {name: amount for name, amount in amounts.items() if ((uuid, name) in slots) is on}
                    for uuid, amounts in amounts_of.items()
                }
                for instance, amounts_of in self.by_instance.items()
            }
        )

    def notices(self, tree: ProviderTree, owned: OwnedProviders, unnamed: Collection[str]) -> tuple[str, ...]:
        """A sentence for each instance but those in `unnamed`, of which others tell.

        It names what is in inventories that the agent does not write: that it cannot reserve.
        """
        named = sorted(self.by_instance.keys() - unnamed)
        found = len(self.found.intersection(named))
        lost = (
            f"The state directory is new, and {found} of the guests {'was' if found == 1 else 'were'} here "
            "before it, without an allocation in Placement: it was lost, or `state_path` is wrong. The agent "
            "reserves what they need, running or not. If they have no other state directory, claim for them: "
            "`plimsoll gate claim-running`.",
        )
        notices = (sentence for instance in named for sentence in self._notices_of(instance, tree, owned))
        return (*(lost if found else ()), *notices)

    def _notices_of(self, instance: str, tree: ProviderTree, owned: OwnedProviders) -> Iterator[str]:
        name = f"{self.names.get(instance, instance)} ({instance})"
        unclaimed = self.unclaimed.get(instance, {})
        if unclaimed:
            reserves = _reserves(unclaimed, tree, owned, "other guest gets it")
            yield (
                f"The guest {name} uses {_text(unclaimed, tree)} beyond what is claimed for it or "
                f"held for it in Placement: the agent {reserves}. Claim it "
                "(`plimsoll gate claim-running`; with a claim, `plimsoll audit --heal` or `[claims] follow = "
                "grow`), or take it away from the guest."
            )
        claimed = self.claimed.get(instance, {})
        if claimed and instance not in self.departed:
            reserves = _reserves(claimed, tree, owned, "scheduler is offered it")
            yield (
                f"{name} has a claim of {_text(claimed, tree)} that Placement does not hold: another client "
                "deleted or changed its allocation, or the agent's records or Placement were restored from a "
                f"copy. The agent {reserves}. `plimsoll audit` shows "
                "what differs, and what `plimsoll audit --heal` does about it."
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
    return replace(inventory, reserved=min(inventory.total, max(least, lower)))


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


def _reserves(amounts_of: Usages, tree: ProviderTree, owned: OwnedProviders, what: str) -> str:
    others = {
        uuid: rest
        for uuid, amounts in amounts_of.items()
        if (rest := {name: n for name, n in amounts.items() if name not in owned.get(uuid).classes})
    }
    if not others:
        return f"reserves it, so that no {what}"
    return f"cannot reserve {_text(others, tree)}, as it does not write that inventory"


def _text(amounts_of: Usages, tree: ProviderTree) -> str:
    return "; ".join(
        f"{', '.join(f'{amount} {name}' for name, amount in sorted(amounts.items()))} on "
        f"{provider.name if (provider := tree.get(uuid)) else f'provider {uuid}'}"
        for uuid, amounts in sorted(amounts_of.items())
    )
