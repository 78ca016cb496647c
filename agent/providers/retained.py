"""Keep inventory that the driver no longer reports while consumers have allocations of it. Pure.

After a boot a host has no virtual functions until they are created again, and a mediated device may not exist
yet although a guest was claimed with it. The agent therefore keeps what is allocated and reserves the rest.
If the class appears on a provider above or below instead, and no move instruction says that it moved, the
agent writes nothing: it would offer the same units twice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agent.errors import ApplyError
from agent.providers.plan import DeleteInventories, Plan, PutInventories
from agent.shapes import Holders
from agent.tree import Inventory, Provider, ProviderTree

NAMED_MAX = 3


@dataclass(frozen=True, slots=True)
class RetainedTree:
    """The tree to write instead of the desired one; `sentences` tell an operator what stays in it and why."""

    tree: ProviderTree
    sentences: tuple[str, ...] = ()


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
) -> RetainedTree:
    """The tree `wanted` plus the allocated part of the classes in `gone`, as `current` has them.

    `gone` is the result of `removed_classes`, and `held` has the allocations on its providers. Raises
    ApplyError where a class seems to have moved to another provider.
    """
    tree, sentences = wanted, []
    for uuid, classes in gone.items():
        holders = held.get(uuid, {})
        for resource_class in sorted(classes):
            consumers = sorted(who for who, amounts in holders.items() if amounts.get(resource_class))
            if consumers:
                _check_moved(current, wanted, uuid, resource_class, consumers)
                used = sum(holders[who][resource_class] for who in consumers)
                tree = _with_used(tree, current, uuid, resource_class, used)
                sentences.append(_sentence(current[uuid], resource_class, consumers))
    return RetainedTree(tree, tuple(sentences))


def _with_used(
    tree: ProviderTree, current: ProviderTree, uuid: str, resource_class: str, used: int
) -> ProviderTree:
    for provider in reversed((current[uuid], *current.ancestors(uuid))):
        if provider.uuid not in tree:
            tree = tree.with_provider(replace(provider, inventories={}))
    now, provider = current[uuid].inventories[resource_class], tree[uuid]
    inventories = {**provider.inventories, resource_class: _keep_used(now, used)}
    return tree.with_provider(replace(provider, inventories=inventories))


def _keep_used(now: Inventory, used: int) -> Inventory:
    """Reserve all but the used amount; without a ratio, the capacity is that amount."""
    total = max(now.total, used)
    return replace(now, total=total, reserved=total - used, allocation_ratio=1.0)


def _check_moved(
    current: ProviderTree, wanted: ProviderTree, uuid: str, resource_class: str, consumers: Sequence[str]
) -> None:
    relatives = {provider.uuid for provider in (*current.ancestors(uuid), *current.subtree(uuid)[1:])}
    if uuid in wanted:
        relatives |= {provider.uuid for provider in (*wanted.ancestors(uuid), *wanted.subtree(uuid)[1:])}
    for other in sorted(relatives):
        if _total(wanted, other, resource_class) > _total(current, other, resource_class):
            raise ApplyError(
                f"The host has {resource_class} on provider {wanted[other].name}, no longer on "
                f"{current[uuid].name}, and no move instruction says that it moved there. "
                f"{_still_hold(consumers)}, so nothing was changed. Release these allocations, and the next "
                "pass continues.",
                consumers=list(consumers),
            )


def _total(tree: ProviderTree, uuid: str, resource_class: str) -> int:
    provider = tree.get(uuid)
    inventory = provider.inventories.get(resource_class) if provider else None
    return inventory.total if inventory else 0


def _sentence(provider: Provider, resource_class: str, consumers: Sequence[str]) -> str:
    return (
        f"The host has no {resource_class} on provider {provider.name} any more, but "
        f"{_still_hold(consumers)}: this part stays, the rest is reserved. Bring the devices back (virtual "
        "functions must be created again after each boot), or release these allocations."
    )


def _still_hold(consumers: Sequence[str]) -> str:
    more = len(consumers) - NAMED_MAX
    names = ", ".join(consumers[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
    return f"{names} still {'hold' if len(consumers) > 1 else 'holds'} some of it"
