"""A reshape as a value, and the laws that it must keep, checked from its content alone. Pure.

The values are slots, instructions by uuid, relocations, and the content of the request. Placement checks
none of the laws: it accepts a shrink below what is used, another consumer in the room that one was made to
leave, a consumer that loses some of its allocation, and the same units listed twice.

    units      A target gains at most what the instructions bring. Where a source goes on offering a class,
               the slots that exchange units offer no more together than before. Memory may grow a little,
               since it differs from boot to boot, and so may the cells of a host that are divided anew.
    consumers  Consumers are the ones that there were. Each keeps exactly its allocation of what does not
               move, and the same sum of what does, per class unless an instruction changes the class.
    room       No allocation is left on a slot that is removed. No slot that moves is over capacity, and no
               other slot becomes so. A gain is within min_unit, max_unit and step_size.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from agent.driver import MoveInstruction
from agent.errors import ReshapeRefused, by_force, first_few
from agent.providers.plan import CUSTOM
from agent.shapes import Allocations, Amounts, by_class
from agent.tree import InventoriesByProvider, Inventory, ProviderTree


class Slot(NamedTuple):
    """One resource class of one provider (uuid): where there is inventory, and where units are allocated."""

    provider: str
    resource_class: str


class Relocation(NamedTuple):
    """`amount` units allocated to `consumer` go from provider `source` to provider `target` (uuids).

    They are of `resource_class` on the source and of `target_class` on the target, mostly the same class.
    """

    consumer: str
    resource_class: str
    amount: int
    source: str
    target: str
    target_class: str

    @classmethod
    def between(cls, consumer: str, source: Slot, target: Slot, amount: int) -> "Relocation":
        """The amount goes from one slot to the other."""
        return cls(
            *(consumer, source.resource_class, amount),
            *(source.provider, target.provider, target.resource_class),
        )

    @property
    def slots(self) -> tuple[Slot, Slot]:
        """(source slot, target slot)"""
        return Slot(self.source, self.resource_class), Slot(self.target, self.target_class)


@dataclass(frozen=True, slots=True)
class Instruction:
    """A move instruction with the uuids of its providers; see `agent.driver.MoveInstruction`."""

    move: MoveInstruction
    source: str
    target: str

    def slot_pairs(self) -> Iterator[tuple[Slot, Slot, int]]:
        """(source slot, target slot, amount) for each class."""
        for resource_class, amount in self.move.moved_resources.items():
            target_class = self.move.becomes.get(resource_class, resource_class)
            yield Slot(self.source, resource_class), Slot(self.target, target_class), amount

    def naming(self, consumers: Mapping[str, Amounts] | None) -> "Instruction":
        """The instruction with these consumers and their shares; None where they are not known."""
        return replace(self, move=replace(self.move, consumers=consumers))

    def without_shares(self, shares: Collection[tuple[str, str]]) -> "Instruction":
        """The instruction without these (consumer, class at the source), nor a consumer of nothing else."""
        if not shares or not self.move.consumers:
            return self
        left = {
            consumer: {name: amount for name, amount in amounts.items() if (consumer, name) not in shares}
            for consumer, amounts in self.move.consumers.items()
        }
        return self.naming({consumer: amounts for consumer, amounts in left.items() if amounts})


@dataclass(frozen=True, slots=True)
class Reshape:
    """The content of one `POST /reshaper`, and the relocations that led to it.

    `inventories` {provider uuid: all its inventories afterwards}; `allocations` {consumer uuid: its whole
    allocation afterwards}. `records` are relocations of claims whose consumers hold nothing there, so that
    only the agent's records follow.
    Source: https://docs.openstack.org/api-ref/placement/#reshaper
    """

    inventories: InventoriesByProvider
    allocations: Mapping[str, Allocations]
    relocations: tuple[Relocation, ...]
    records: tuple[Relocation, ...] = ()


def resolve_instructions(
    moves: Iterable[MoveInstruction], current: ProviderTree, desired: ProviderTree
) -> tuple[Instruction, ...]:
    """The moves with uuids: names are looked up in the desired tree, a source's also in the current one.

    Raises ReshapeRefused for a name that is in neither.
    """
    return tuple(
        Instruction(
            move,
            _uuid(move.from_resource_provider, desired, current),
            _uuid(move.to_resource_provider, desired),
        )
        for move in moves
    )


def slots_of(allocations: Allocations) -> dict[Slot, int]:
    """One consumer's allocation as {slot: amount}."""
    return {
        Slot(provider, resource_class): amount
        for provider, resources in allocations.items()
        for resource_class, amount in resources.items()
    }


def allocations_of(slots: Mapping[Slot, int]) -> Allocations:
    """The inverse of `slots_of`."""
    allocations: dict[str, dict[str, int]] = {}
    for slot, amount in slots.items():
        allocations.setdefault(slot.provider, {})[slot.resource_class] = amount
    return allocations


def inventory_at(tree: ProviderTree, slot: Slot) -> Inventory | None:
    """The inventory of the slot, None where the tree has none."""
    provider = tree.get(slot.provider)
    return provider.inventories.get(slot.resource_class) if provider else None


def total_at(tree: ProviderTree, slot: Slot) -> int:
    """The total of the slot's inventory, 0 where the tree has none."""
    inventory = inventory_at(tree, slot)
    return inventory.total if inventory else 0


def new_custom_classes(slots: Iterable[Slot], current: ProviderTree) -> list[str]:
    """The custom resource classes of these slots that Placement may not know yet, sorted."""
    known = {name for provider in current for name in provider.inventories}
    names = {slot.resource_class for slot in slots} - known
    return sorted(name for name in names if name.startswith(CUSTOM))


def name_of(uuid: str, *trees: ProviderTree) -> str:
    """The provider's name in the first of the trees that has it; its uuid where none has."""
    for tree in trees:
        provider = tree.get(uuid)
        if provider is not None:
            return provider.name
    return uuid


def _uuid(name: str, *trees: ProviderTree) -> str:
    for tree in trees:
        provider = tree.by_name(name)
        if provider is not None:
            return provider.uuid
    raise ReshapeRefused(
        f"A move instruction names provider {name}, which does not exist: the driver's description is wrong",
        reasons=[f"unknown provider {name}"],
    )


MEMORY_DRIFT = 32
"""One part in so many of a host's memory may come with a boot, or with another division into cells."""

CONSUMERS_NAMED_MAX = 5

CELL_CLASSES = frozenset({"VCPU", "PCPU", "MEMORY_MB"})
"""The classes that a NUMA cell has of its host."""


def breaches(
    reshape: Reshape,
    current: ProviderTree,
    desired: ProviderTree,
    instructions: Sequence[Instruction],
    held: Mapping[str, Allocations],
    *,
    unheld: Mapping[str, Allocations] | None = None,
    may_grow: bool = False,
) -> Iterator[str]:
    """A sentence for each law that `reshape` would break.

    `held` has the whole allocation of every consumer on a touched provider, `unheld` what it reserves
    afterwards for consumers whose claims have it. `may_grow`: the driver describes all of the instructions
    now, so that its cells may have more together, because more was built in.
    """
    exchanges = exchanges_of(instructions)
    yield from _unit_breaches(current, desired, instructions, exchanges, may_grow=may_grow)
    changing = {
        name for instruction in instructions for pair in instruction.move.becomes.items() for name in pair
    }
    for consumer, allocations in sorted(reshape.allocations.items()):
        if consumer not in held:
            yield f"consumer {consumer} holds nothing here and would get something"
            continue
        before, after = slots_of(held[consumer]), slots_of(allocations)
        if _conserved_sums(before, exchanges, changing) != _conserved_sums(after, exchanges, changing):
            yield f"consumer {consumer} would hold {_class_sums(after)} where it held {_class_sums(before)}"
    yield from _room_breaches(reshape, current, desired, exchanges, held, unheld or {})


def exchanges_of(instructions: Iterable[Instruction]) -> dict[Slot, int]:
    """{slot that units leave or come to: number of the group of slots that exchange units}."""
    group: dict[Slot, int] = {}
    pairs = (pair for instruction in instructions for pair in instruction.slot_pairs())
    for number, (source, target, _) in enumerate(pairs):
        joined = {group[slot] for slot in (source, target) if slot in group}
        for slot, other in group.items():
            if other in joined:
                group[slot] = number
        group[source] = group[target] = number
    return group


def _unit_breaches(
    current: ProviderTree,
    desired: ProviderTree,
    instructions: Sequence[Instruction],
    exchanges: Mapping[Slot, int],
    *,
    may_grow: bool,
) -> Iterator[str]:
    gains: dict[Slot, int] = defaultdict(int)
    still_offering: set[int] = set()
    for source, target, amount in (pair for instruction in instructions for pair in instruction.slot_pairs()):
        gains[target] += amount
        if inventory_at(desired, source) is not None:
            still_offering.add(exchanges[source])
    for slot, gain in gains.items():
        before, after = total_at(current, slot), total_at(desired, slot)
        if after > before + gain:
            yield (
                f"{name_of(slot.provider, desired)} would offer {after} {slot.resource_class}, "
                f"but it had {before} and {gain} moved there"
            )
    for number in sorted(still_offering):
        slots = [slot for slot, group in exchanges.items() if group == number]
        before = sum(total_at(current, slot) for slot in slots)
        after = sum(total_at(desired, slot) for slot in slots)
        classes = {slot.resource_class for slot in slots}
        drift = before // MEMORY_DRIFT if classes == {"MEMORY_MB"} else 0
        if may_grow and _are_sibling_cells(slots, current, desired):
            continue
        if after > before + drift:
            where = ", ".join(
                f"{name_of(slot.provider, desired, current)} {slot.resource_class}" for slot in slots
            )
            yield f"the same units would be offered twice: {after} where there were {before} ({where})"


def _are_sibling_cells(slots: Sequence[Slot], *trees: ProviderTree) -> bool:
    """Whether all slots have one class of CPUs or memory, on sibling providers.

    A parent is not among them: its total would count the units of its children twice.
    """
    providers = [tree[slot.provider] for slot in slots for tree in trees if slot.provider in tree]
    return (
        len({slot.resource_class for slot in slots}) == 1
        and slots[0].resource_class in CELL_CLASSES
        and len({provider.parent for provider in providers}) == 1
        and providers[0].parent is not None
    )


def _conserved_sums(
    slots: Mapping[Slot, int], exchanges: Mapping[Slot, int], changing: set[str]
) -> dict[tuple[object, ...], int]:
    """The sums that a reshape must not change: of each group of slots, of each other slot, of each class."""
    sums: dict[tuple[object, ...], int] = defaultdict(int)
    for slot, amount in slots.items():
        if slot in exchanges:
            sums["group", exchanges[slot]] += amount
        else:
            sums["slot", slot] += amount
        if slot.resource_class not in changing:
            sums["class", slot.resource_class] += amount
    return sums


def _room_breaches(
    reshape: Reshape,
    current: ProviderTree,
    desired: ProviderTree,
    exchanges: Mapping[Slot, int],
    held: Mapping[str, Allocations],
    unheld: Mapping[str, Allocations],
) -> Iterator[str]:
    used_before: dict[Slot, int] = defaultdict(int)
    users: dict[Slot, dict[str, int]] = defaultdict(dict)  # {slot: {consumer: what it holds afterwards}}
    for consumer, allocations in sorted(held.items()):
        before = slots_of(allocations)
        after = slots_of(reshape.allocations.get(consumer, allocations))
        for slot, amount in before.items():
            used_before[slot] += amount
        for slot, amount in after.items():
            if slot.provider not in reshape.inventories:
                continue
            users[slot][consumer] = amount
            inventory = reshape.inventories[slot.provider].get(slot.resource_class)
            where = name_of(slot.provider, desired, current)
            if inventory is None:
                if before.get(slot, 0) != amount or inventory_at(current, slot) is not None:
                    yield (
                        f"consumer {consumer} holds {amount} {slot.resource_class} of {where}, which no "
                        "longer has any"
                    )
            elif amount > before.get(slot, 0) and not (
                inventory.min_unit <= amount <= inventory.max_unit and not amount % inventory.step_size
            ):
                yield (
                    f"consumer {consumer} would hold {amount} {slot.resource_class} of {where}, which gives "
                    f"{inventory.min_unit} to {inventory.max_unit} in steps of {inventory.step_size}"
                )
    for slot, consumers in sorted(users.items()):
        amount = sum(consumers.values())
        inventory = reshape.inventories[slot.provider].get(slot.resource_class)
        if inventory is None or amount <= inventory.capacity:
            continue
        was = inventory_at(current, slot)
        shrinks = was is None or inventory.capacity < was.capacity
        if slot in exchanges or shrinks or amount > used_before[slot]:
            yield (
                f"{name_of(slot.provider, desired, current)} would hold {amount} {slot.resource_class} "
                f"and has room for {inventory.capacity}: {_users_text(slot, consumers, unheld)}. Release one "
                f"of them {by_force('CONSUMER')}, or move it away"
            )


def _users_text(slot: Slot, consumers: Mapping[str, int], unheld: Mapping[str, Allocations]) -> str:
    """The amounts of the slot with their consumers, the largest first."""
    texts = [(amount, f"consumer {consumer}") for consumer, amount in consumers.items()]
    texts += [
        (allocations[slot.provider][slot.resource_class], f"consumer {consumer} that Placement does not hold")
        for consumer, allocations in unheld.items()
        if allocations.get(slot.provider, {}).get(slot.resource_class)
    ]
    texts.sort(key=lambda text: (-text[0], text[1]))
    return first_few([f"{amount} of {consumer}" for amount, consumer in texts], CONSUMERS_NAMED_MAX)


def _class_sums(slots: Mapping[Slot, int]) -> dict[str, int]:
    return dict(sorted(by_class({slot.resource_class: amount} for slot, amount in slots.items()).items()))
