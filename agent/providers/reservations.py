"""What the agent reserves in the inventories that it writes; each pass reserves it anew. Pure.

1. *Classes of one device that exclude each other.* Examples are a card that is passed through whole or by its
   virtual functions, and a card that offers one vGPU type or another. A provider's *ways* are sets of classes
   (`DescribedProvider.ways`). While a class of one way is in use, no class of another way can be allocated.
   The classes of one way share the largest total among them. An allocation of one class therefore leaves less
   of the others: at once in this agent (`room`), and from the next pass on in Placement, where the agent
   reserves the difference (`reserve_excluded`).
2. *Devices for one-time use.* Such a device is reserved once it was allocated, also after its release, until
   an operator sets `reserved` of its inventory back to 0 in Placement, as with nova.
3. *What is claimed or used although Placement does not hold it* (`UnheldUse`):

       reserved = max(claimed, used) - held, for each row of the book, on every provider

   A guest without a claim, one that grew, a claim whose allocation another client deleted: Placement believes
   that to be free. The agent reserves it, so that no scheduler is offered it. The agent's own book counts
   these rows itself, so it uses the inventories without this reservation (`without_reservations`).

Source: https://docs.openstack.org/nova/latest/admin/pci-passthrough.html (one-time-use devices).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from math import ceil

from agent.device_names import ONE_TIME_USE
from agent.driver import MoveInstruction
from agent.providers.resolve import OwnedProviders, ResolvedDescription
from agent.shapes import Classes, Usages, total
from agent.tree import Inventory, ProviderTree

Ways = tuple[frozenset[str], ...]
"""The ways of one provider: sets of resource classes. A class is in at most one of them."""

WaysOf = Mapping[str, Ways]
"""{provider uuid: its ways}, of the providers that have classes that exclude each other."""


def room(ways: Ways, offered: Mapping[str, int], used: Mapping[str, int]) -> dict[str, int]:
    """{class: amount that can still be allocated}, for each class of the ways.

    `offered` {class: amount for guests} and `used` {class: amount in use} are those of the same provider.
    """
    left_of = {}
    for way in ways:
        taken = sum(used.get(name, 0) for name in way)
        elsewhere = any(used.get(name, 0) for other in ways if other is not way for name in other)
        most = max((offered.get(name, 0) for name in way), default=0)
        for name in way:
            left = min(most - taken, offered.get(name, 0) - used.get(name, 0))
            left_of[name] = 0 if elsewhere else max(0, left)
    return left_of


def excluding_class(ways: Ways, name: str, used: Mapping[str, int]) -> str | None:
    """A class in use that excludes the class `name` on the same provider, or None."""
    if not any(name in way for way in ways):
        return None
    others = (other for way in ways if name not in way for other in sorted(way))
    return next((other for other in others if used.get(other, 0)), None)


def can_give_together(ways: Ways, left: Mapping[str, int], wanted: Mapping[str, int]) -> bool:
    """Whether the amounts `wanted` can be allocated together; `left` is the result of `room`."""
    asked = [way for way in ways if any(wanted.get(name, 0) for name in way)]
    return len(asked) < 2 and all(
        sum(wanted.get(name, 0) for name in way) <= max(left[name] for name in way) for way in asked
    )


def reserve_excluded(tree: ProviderTree, ways: WaysOf, used: Usages) -> ProviderTree:
    """The tree with enough reserved that Placement offers no more of any class than `room` allows."""
    for uuid, excluding in ways.items():
        provider, used_here = tree.get(uuid), used.get(uuid, {})
        if provider is None:
            continue
        inventories = dict(provider.inventories)
        offered = {name: inventory.total - inventory.reserved for name, inventory in inventories.items()}
        for name, left in room(excluding, offered, used_here).items():
            if name in inventories:
                inventory, capacity = inventories[name], max(0, used_here.get(name, 0) + left)
                reserved = max(inventory.reserved, inventory.total - capacity)
                inventories[name] = replace(inventory, reserved=reserved)
        if inventories != provider.inventories:
            tree = tree.with_provider(replace(provider, inventories=inventories))
    return tree


@dataclass(frozen=True, slots=True)
class ReservedUsages:
    """The usages on which the last reservations and totals in Placement are based.

    `classes` are the classes whose usage decides what must be reserved or counted; `amounts` is their usage,
    without zeros.
    """

    classes: Classes = field(default_factory=dict)
    amounts: Usages = field(default_factory=dict)

    @classmethod
    def of(cls, resolved: ResolvedDescription, used: Usages) -> "ReservedUsages":
        """The part of the usages `used` that decides what `resolved` reserves and counts."""
        classes = dict(_one_time_classes(resolved))
        for uuid, ways in resolved.ways.items():
            classes[uuid] = classes.get(uuid, frozenset()).union(*ways)
        for counted in (resolved.gone, resolved.cordoned):
            for uuid, names in counted.items():
                classes[uuid] = classes.get(uuid, frozenset()) | names
        return cls(classes, _amounts_of(used, classes))

    def differs(self, used: Usages) -> bool:
        """Whether the usages `used` call for other reservations."""
        return _amounts_of(used, self.classes) != self.amounts


def reserve_used(
    resolved: ResolvedDescription,
    current: ProviderTree,
    used: Usages,
    moves: Collection[MoveInstruction] = (),
    *,
    exclusive: bool = True,
) -> ResolvedDescription:
    """`resolved` with its tree's inventories reserved as `used` requires; `current` is Placement's tree.

    Unless `exclusive`, nothing is reserved for classes of a device that exclude each other.
    A device may be in use under a class that the driver no longer reports for it. Until that class is free,
    it excludes all other classes of the device, unless one of the driver's `moves` says where it went.
    """
    moving = {(move.from_resource_provider, name) for move in moves for name in move.moved_resources}
    ways = dict(resolved.ways)
    for uuid, units in resolved.units.items():
        here = resolved.tree[uuid]
        if resolved.devices.get(uuid, "").startswith("pci:"):
            gone = frozenset(
                name
                for name, amount in used.get(uuid, {}).items()
                if amount and name not in here.inventories and (here.name, name) not in moving
            )
            if gone:
                ways[uuid] = (gone, frozenset(units))
    tree = reserve_excluded(resolved.tree, ways, used) if exclusive else resolved.tree
    problems = list(resolved.problems)
    for uuid, classes in _one_time_classes(resolved).items():
        provider, now, used_here = tree[uuid], current.get(uuid), used.get(uuid, {})
        # Each of these classes is reserved whole while in use, and as it is in Placement otherwise.
        for name in sorted(classes & provider.inventories.keys()):
            inventory = provider.inventories[name]
            before = now.inventories.get(name) if now is not None else None
            reserved = max(inventory.reserved, before.reserved if before is not None else 0)
            if used_here.get(name, 0):
                reserved = inventory.total
            reserving = replace(inventory, reserved=min(inventory.total, reserved))
            tree = tree.with_provider(tree[uuid].with_inventory(name, reserving))
            if reserving.capacity < inventory.capacity and not used_here.get(name, 0):
                problems.append(
                    f"{name} of {provider.name} is for one-time use and was used: it stays reserved until an "
                    "operator sets `reserved` of its inventory back to 0 in Placement."
                )
    return replace(resolved, tree=tree, ways=ways, problems=tuple(problems))


def _one_time_classes(resolved: ResolvedDescription) -> Classes:
    """The classes of devices for one-time use."""
    return {
        uuid: frozenset(exact)
        for uuid, exact in resolved.units.items()
        if ONE_TIME_USE in resolved.tree[uuid].traits
    }


def _amounts_of(used: Usages, classes: Classes) -> Usages:
    amounts_of = {
        uuid: {name: amount for name, amount in used.get(uuid, {}).items() if amount and name in names}
        for uuid, names in classes.items()
    }
    return {uuid: amounts for uuid, amounts in amounts_of.items() if amounts}


@dataclass(frozen=True, slots=True)
class UnheldUse:
    """{instance: {provider: {class: amount}}} that is claimed or used beyond what Placement holds for it.

    `claimed` and `unclaimed` are the two parts of that: with a claim, and used without one. `names` are the
    instances', for people. `found` are guests that were here before the state directory was, and the
    instances that are `departed` live on other hosts, even if they have claims here. Those in `claiming` have
    claims here. `remedies` {instance: sentence} are those of guests for which no claim would fit.
    """

    by_instance: Mapping[str, Usages] = field(default_factory=dict)
    claimed: Mapping[str, Usages] = field(default_factory=dict)
    unclaimed: Mapping[str, Usages] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    found: frozenset[str] = frozenset()
    departed: frozenset[str] = frozenset()
    claiming: frozenset[str] = frozenset()
    remedies: Mapping[str, str] = field(default_factory=dict)

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
        notices = []
        if found:
            notices.append(
                f"The state directory is new, and {found} of the guests {'was' if found == 1 else 'were'} "
                "here before it, without an allocation in Placement: it was lost, or `state_path` is wrong. "
                "The agent reserves what they need, running or not. If they have no other state directory, "
                "claim for them: `plimsoll gate claim-running`."
            )
        for instance in named:
            name = f"{self.names.get(instance, instance)} ({instance})"
            unclaimed = self.unclaimed.get(instance, {})
            if unclaimed:
                reserves = _reserves(unclaimed, tree, owned, "other guest gets it")
                remedy = (
                    "`plimsoll audit` shows what differs, and whether `plimsoll audit --heal` (or `[claims] "
                    "follow = grow`) adds it to the claim; else take it away from the guest."
                    if instance in self.claiming
                    else self.remedies.get(
                        instance, "Claim it (`plimsoll gate claim-running`), or take it away from the guest."
                    )
                )
                notices.append(
                    f"The guest {name} uses {_text(unclaimed, tree)} beyond what is claimed for it or "
                    f"held for it in Placement: the agent {reserves}. {remedy}"
                )
            claimed = self.claimed.get(instance, {})
            if claimed and instance not in self.departed:
                reserves = _reserves(claimed, tree, owned, "scheduler is offered it")
                notices.append(
                    f"{name} has a claim of {_text(claimed, tree)} that Placement does not hold: another "
                    "client deleted or changed its allocation, or the agent's records or Placement were "
                    f"restored from a copy. The agent {reserves}. `plimsoll audit` shows "
                    "what differs, and what `plimsoll audit --heal` does about it."
                )
        return tuple(notices)


def with_reserved(tree: ProviderTree, amounts: Usages) -> ProviderTree:
    """The tree with these amounts reserved, of what consumers can have."""
    for uuid, amounts_here in amounts.items():
        provider = tree.get(uuid)
        if provider is None or not amounts_here:
            continue
        inventories = {
            name: replace(
                inventory,
                reserved=min(
                    inventory.total,
                    inventory.reserved + _units_for(inventory, amounts_here.get(name, 0)),
                ),
            )
            for name, inventory in provider.inventories.items()
        }
        tree = tree.with_provider(replace(provider, inventories=inventories))
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
        inventories = dict(now.inventories)
        for name, inventory in provider.inventories.items():
            if (
                name in inventories
                and (provider.uuid, name) not in withheld
                and inventory.reserved < inventories[name].reserved
            ):
                inventories[name] = replace(inventories[name], reserved=inventory.reserved)
        if inventories != now.inventories:
            tree = tree.with_provider(replace(now, inventories=inventories))
    return tree


def released(inventory: Inventory, amount: int, least: int) -> Inventory:
    """The inventory with the reservation of that amount taken back, and not less than `least` reserved."""
    lower = inventory.reserved - _units_for(inventory, amount)
    return replace(inventory, reserved=min(inventory.total, max(least, lower)))


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
