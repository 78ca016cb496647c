"""Keep what consumers have where the driver reports less, and tell of what is used beyond its capacity.
Pure.

After a boot a host has no virtual functions until they are created again, and a mediated device may not
exist yet although a guest was claimed with it. The agent therefore keeps what is allocated and reserves the
rest. If the class appears on a provider above or below instead, and no move instruction says that it moved,
the agent writes nothing: it would offer the same units twice.

Of four virtual functions, the driver reports two, and the other two are claimed. In Placement the claim
would use up the two that are there: nothing could be given. The agent therefore adds each claimed unit that
is gone to the total, until its holder releases it or it is back. A `max_unit` that is the total rises with
it: Placement checks it whenever an allocation is written, also where a move or a reshape leaves the amount.

Usage can exceed capacity in two ways: OpenStack Placement may grant concurrent requests that together
exceed the capacity, and both OpenStack Placement and the embedded one accept an inventory that is smaller
than its usage. The agent cannot correct either, but it reports both.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from agent.device_names import CPULESS_MEMORY
from agent.driver import MoveInstruction
from agent.errors import ApplyError, by_force, first_few
from agent.providers.limits import Caps, beyond_caps
from agent.providers.plan import DeleteInventories, Plan, PutInventories
from agent.providers.resolve import ResolvedDescription
from agent.shapes import Held, Holders
from agent.tree import Provider, ProviderTree

CONSUMERS_NAMED_MAX = 3


@dataclass(frozen=True, slots=True)
class RetainedTree:
    """The tree to write instead of the desired one; `sentences` tell an operator what stays in it and why.

    What stays are the (provider uuid, class) in `vanished`: the host has no more of them.
    """

    tree: ProviderTree
    sentences: tuple[str, ...] = ()
    vanished: frozenset[tuple[str, str]] = frozenset()


def removed_classes(wanted: Plan) -> dict[str, frozenset[str]]:
    """{provider uuid: classes} whose inventories the plan removes."""
    removed: dict[str, frozenset[str]] = {}
    for operation in wanted.operations:
        if isinstance(operation, PutInventories | DeleteInventories):
            after = operation.after if isinstance(operation, PutInventories) else {}
            gone = frozenset(operation.before).difference(after)
            if gone:
                removed[operation.provider] = gone
    return removed


def retain_held(
    current: ProviderTree,
    wanted: ProviderTree,
    gone: Mapping[str, frozenset[str]],
    held: Mapping[str, Holders],
    names: Mapping[str, str] | None = None,
) -> RetainedTree:
    """The tree `wanted` plus the allocated part of the classes in `gone`, as `current` has them.

    `gone` is the result of `removed_classes`, and `held` has the allocations on its providers. `names`
    {consumer: name} are for the sentences. Raises ApplyError where a class seems to have moved to another
    provider.
    """
    tree, sentences, names = wanted, [], names or {}
    vanished: set[tuple[str, str]] = set()
    for uuid, classes in gone.items():
        holders = held.get(uuid, {})
        for resource_class in sorted(classes):
            consumers = sorted(who for who, amounts in holders.items() if amounts.get(resource_class))
            if consumers:
                _check_moved(current, wanted, uuid, resource_class, consumers, names)
                used = sum(holders[who][resource_class] for who in consumers)
                # The class as it was on that provider, all but the used amount reserved.
                for provider in reversed((current[uuid], *current.ancestors(uuid))):
                    if provider.uuid not in tree:
                        tree = tree.with_provider(replace(provider, inventories={}))
                now, provider = current[uuid].inventories[resource_class], tree[uuid]
                total = max(now.total, used)
                # Without a ratio, the capacity is what is used.
                kept = replace(now, total=total, reserved=total - used, allocation_ratio=1.0)
                tree = tree.with_provider(provider.with_inventory(resource_class, kept))
                vanished.add((uuid, resource_class))
                sentences.append(
                    f"The host has no {resource_class} on provider {current[uuid].name} any more, but "
                    f"{_still_hold(consumers, names)}: this part stays, the rest is reserved. "
                    f"{way_back(current[uuid], resource_class)}, or release these allocations "
                    f"{_by_force(consumers)}."
                )
    return RetainedTree(tree, tuple(sentences), frozenset(vanished))


def _check_moved(
    current: ProviderTree,
    wanted: ProviderTree,
    uuid: str,
    resource_class: str,
    consumers: Sequence[str],
    names: Mapping[str, str],
) -> None:
    relatives = {provider.uuid for provider in (*current.ancestors(uuid), *current.subtree(uuid)[1:])}
    if uuid in wanted:
        relatives |= {provider.uuid for provider in (*wanted.ancestors(uuid), *wanted.subtree(uuid)[1:])}
    for other in sorted(relatives):
        if _total(wanted, other, resource_class) > _total(current, other, resource_class):
            raise ApplyError(
                f"The host has {resource_class} on provider {wanted[other].name}, no longer on "
                f"{current[uuid].name}, and no move instruction says that it moved there. "
                f"{_still_hold(consumers, names)}, so nothing was changed. Release these allocations "
                f"{_by_force(consumers)}, and the next pass continues.",
                consumers=list(consumers),
            )


def _total(tree: ProviderTree, uuid: str, resource_class: str) -> int:
    provider = tree.get(uuid)
    inventory = provider.inventories.get(resource_class) if provider else None
    return inventory.total if inventory else 0


_CPU_SETS = {"PCPU": "cpu_dedicated_set", "VCPU": "cpu_shared_set"}
_OF_THE_HOST = frozenset({"MEMORY_MB", "DISK_GB", CPULESS_MEMORY})


def way_back(provider: Provider | None, resource_class: str) -> str:
    """How what a host has no more of the class comes back on the provider: a clause for an operator."""
    if resource_class in _CPU_SETS:
        return f"Bring the CPUs online, or put them back into [compute] {_CPU_SETS[resource_class]}"
    if provider is not None and provider.parent is None and resource_class.startswith("CUSTOM_"):
        return f"Put {resource_class} back into its provider config file"
    if resource_class in _OF_THE_HOST:
        return "Bring it back"
    if resource_class == "SRIOV_NET_VF" or resource_class.startswith("CUSTOM_"):
        return "Bring the device back (virtual functions must be created again after each boot)"
    return "Bring the device back"


def with_name(consumer: str, names: Mapping[str, str]) -> str:
    """The consumer in a sentence: "name (uuid)", or its uuid alone."""
    name = names.get(consumer)
    return f"{name} ({consumer})" if name else consumer


def _still_hold(consumers: Sequence[str], names: Mapping[str, str]) -> str:
    named = first_few([with_name(consumer, names) for consumer in consumers], CONSUMERS_NAMED_MAX)
    return f"{named} still {'hold' if len(consumers) > 1 else 'holds'} some of it"


def _by_force(consumers: Sequence[str]) -> str:
    return by_force(consumers[0] if len(consumers) == 1 else "CONSUMER")


GoneUnit = tuple[str, str, str, str]
"""(provider uuid, class, unit, consumer that has claimed it)"""


def count_gone(
    resolved: ResolvedDescription,
    gone: Iterable[GoneUnit],
    moves: Collection[MoveInstruction] = (),
    names: Mapping[str, str] | None = None,
    migrations: Collection[str] = (),
) -> ResolvedDescription:
    """`resolved` with the units in `gone` in the totals, and a sentence for each of their holders.

    A class of which the driver reports no unit any more is not here: its inventory is retained as a whole
    (`retain_held`). What one of the driver's `moves` takes elsewhere is not gone. `names`
    {consumer: name} and `migrations`, those of moves, are for the sentences.
    """
    names = names or {}
    moving = {(move.from_resource_provider, name) for move in moves for name in move.moved_resources}
    units: dict[tuple[str, str], dict[str, str]] = {}
    for uuid, name, unit, consumer in gone:
        provider = resolved.tree.get(uuid)
        if provider is None or (provider.name, name) in moving or name not in provider.inventories:
            continue
        if resolved.units.get(uuid, {}).get(name):
            units.setdefault((uuid, name), {})[unit] = consumer
    tree, problems, classes = resolved.tree, list(resolved.problems), dict(resolved.gone)
    for (uuid, name), holders in sorted(units.items()):
        provider = tree[uuid]
        now = provider.inventories[name]
        total = now.total + len(holders)
        more = replace(now, total=total, max_unit=total if now.max_unit == now.total else now.max_unit)
        tree = tree.with_provider(provider.with_inventory(name, more))
        classes[uuid] = classes.get(uuid, frozenset()) | {name}
        is_card = uuid in resolved.cards
        rest = "the card gives nothing else" if is_card else "the rest of the inventory can be given"
        for consumer in sorted({*holders.values()}):
            lost = sorted(unit for unit in holders if holders[unit] == consumer)
            release = f"release the claim {by_force(consumer)}"
            problems.append(
                f"{with_name(consumer, names)} has claimed {name} {', '.join(lost)} of {provider.name}, "
                f"which this host does not have any more: {rest}. "
                f"{way_back(provider, name)}, or "
                f"{'confirm or revert its move' if consumer in migrations else release}."
            )
    return replace(resolved, tree=tree, problems=tuple(problems), gone=classes)


HOLDERS_NAMED_MAX = 5


def find_overuse(
    tree: ProviderTree,
    held: Held,
    caps: Caps | None = None,
    names: Mapping[str, str] | None = None,
    migrations: Collection[str] = (),
) -> dict[str, tuple[str, ...]]:
    """{provider uuid: (sentence, ...)}, one sentence for each class whose usage exceeds its capacity.

    `names` {consumer: name} and `migrations`, the consumers that are migrations of moves, are for the
    sentences: a migration cannot be released.
    """
    beyond = beyond_caps(caps or {}, held)
    overuse: dict[str, tuple[str, ...]] = {}
    for provider in tree:
        consumers = held.get(provider.uuid, {})
        for name, inventory in provider.inventories.items():
            holders = sorted(consumer for consumer, amounts in consumers.items() if name in amounts)
            used = sum(consumers[consumer][name] for consumer in holders)
            # A completely reserved inventory, as during a reshape, only keeps new consumers out; its
            # reservation does not count against the consumers that it has. It does where a cap is below what
            # is in use.
            withheld = inventory.reserved >= inventory.total and name not in beyond
            limit = int(inventory.total * inventory.allocation_ratio) if withheld else inventory.capacity
            if used <= limit:
                continue
            moving = [consumer for consumer in holders if consumer in migrations]
            ways = [f"confirm or revert migration {moving[0]}"] if moving else []
            if len(moving) < len(holders):
                ways = ["release one of them", *ways, "move it away"]
            if name in beyond:
                ways.append(f"raise [DEFAULT] cap = {name}={beyond[name]}")
            elif provider.parent is None and name.startswith("CUSTOM_"):
                ways.append(f"raise total of {name} in its provider config file")
            labels = [
                f"migration {consumer}{f' of {names[consumer]}' if names and names.get(consumer) else ''}"
                if consumer in moving
                else with_name(consumer, names or {})
                for consumer in holders
            ]
            remedy = ways[0] if len(ways) == 1 else f"{', '.join(ways[:-1])}, or {ways[-1]}"
            sentence = (
                f"Provider {provider.name} is over capacity: {used} {name} {'is' if used == 1 else 'are'} in "
                f"use of {inventory.capacity}, by {first_few(labels, HOLDERS_NAMED_MAX)}; {remedy}."
            )
            overuse[provider.uuid] = (*overuse.get(provider.uuid, ()), sentence)
    return overuse
