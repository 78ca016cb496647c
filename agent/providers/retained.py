"""Inventory that the driver no longer has while somebody holds some of it. Pure.

A host that has booted is without virtual functions until something makes them again, and a guest that was
claimed may not be defined yet. So what is held stays, and all that is free of it is reserved: nobody loses
what is his, and nobody is given what is not there. Where the class turns up above or below instead, and no
instruction says that it moved, nothing is written: the same units would be offered twice.
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
    """The tree to write instead, and sentences on what stays in it, for an operator."""

    tree: ProviderTree
    sentences: tuple[str, ...] = ()


def removed_classes(wanted: Plan) -> dict[str, frozenset[str]]:
    """{provider uuid: classes} that the plan takes away."""
    found: dict[str, frozenset[str]] = {}
    for each in wanted.operations:
        if isinstance(each, PutInventories | DeleteInventories):
            after = each.after if isinstance(each, PutInventories) else {}
            gone = frozenset(each.before).difference(after)
            if gone:
                found[each.provider] = gone
    return found


def retain_held(
    current: ProviderTree,
    wanted: ProviderTree,
    gone: Mapping[str, frozenset[str]],
    held: Mapping[str, Holders],
) -> RetainedTree:
    """`wanted`, with what is held of the classes that are `gone` as in `current`, and the rest reserved.

    `held` {provider uuid: its holders} of the providers in `gone`. Raises ApplyError where the class seems
    to have moved.
    """
    tree, told = wanted, []
    for uuid, classes in gone.items():
        holders = held.get(uuid, {})
        for resource_class in sorted(classes):
            names = sorted(who for who, amounts in holders.items() if amounts.get(resource_class))
            if names:
                _check_moved(current, wanted, uuid, resource_class, names)
                used = sum(holders[who][resource_class] for who in names)
                tree = _with(tree, current, uuid, resource_class, used)
                told.append(_sentence(current[uuid], resource_class, names))
    return RetainedTree(tree, tuple(told))


def _with(
    tree: ProviderTree, current: ProviderTree, uuid: str, resource_class: str, used: int
) -> ProviderTree:
    for provider in reversed((current[uuid], *current.ancestors(uuid))):
        if provider.uuid not in tree:
            tree = tree.with_provider(replace(provider, inventories={}))
    now, provider = current[uuid].inventories[resource_class], tree[uuid]
    inventories = {**provider.inventories, resource_class: _reserved(now, used)}
    return tree.with_provider(replace(provider, inventories=inventories))


def _reserved(now: Inventory, used: int) -> Inventory:
    """Without a ratio, so that what may be used is what is used."""
    total = max(now.total, used)
    return replace(now, total=total, reserved=total - used, allocation_ratio=1.0)


def _check_moved(
    current: ProviderTree, wanted: ProviderTree, uuid: str, resource_class: str, names: Sequence[str]
) -> None:
    near = {each.uuid for each in (*current.ancestors(uuid), *current.subtree(uuid)[1:])}
    if uuid in wanted:
        near |= {each.uuid for each in (*wanted.ancestors(uuid), *wanted.subtree(uuid)[1:])}
    for other in sorted(near):
        if _total(wanted, other, resource_class) > _total(current, other, resource_class):
            raise ApplyError(
                f"The host has {resource_class} on provider {wanted[other].name}, no longer on "
                f"{current[uuid].name}, and nothing says that it moved there; {_listed(names)} "
                f"still {'hold' if len(names) > 1 else 'holds'} some of it, so nothing was changed. Release "
                "what is held and the next pass goes on.",
                consumers=list(names),
            )


def _total(tree: ProviderTree, uuid: str, resource_class: str) -> int:
    provider = tree.get(uuid)
    inventory = provider.inventories.get(resource_class) if provider else None
    return inventory.total if inventory else 0


def _sentence(provider: Provider, resource_class: str, names: Sequence[str]) -> str:
    return (
        f"The host has no {resource_class} on provider {provider.name} any more, but {_listed(names)} still "
        f"{'hold' if len(names) > 1 else 'holds'} some of it: that stays, the rest is reserved. Bring it "
        "back (virtual functions must be made again after each boot), or release what is held."
    )


def _listed(names: Sequence[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
