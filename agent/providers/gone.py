"""Count claimed units that exist no more, so that the units that are there can be given. Pure.

Of four virtual functions, the driver reports two, and the other two are claimed. In Placement the claim would
use up the two that are there: nothing could be given. The agent therefore adds each claimed unit that is gone
to the total, until its holder releases it or it is back.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace

from agent.driver import MoveInstruction
from agent.providers.resolve import ResolvedDescription
from agent.tree import Provider

GoneUnit = tuple[str, str, str, str]
"""(provider uuid, class, unit, consumer that has claimed it)"""


def count_gone(
    resolved: ResolvedDescription, gone: Iterable[GoneUnit], moves: Collection[MoveInstruction] = ()
) -> ResolvedDescription:
    """`resolved` with the units in `gone` in the totals, and a sentence for each of their holders.

    A class of which the driver reports no unit any more is not here: its inventory is retained as a whole
    (`agent.providers.retained`). What one of the driver's `moves` takes elsewhere is not gone.
    """
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
        tree = tree.with_provider(_with_more(provider, name, len(holders)))
        classes[uuid] = classes.get(uuid, frozenset()) | {name}
        problems += (
            _sentence(provider, name, consumer, sorted(unit for unit in holders if holders[unit] == consumer))
            for consumer in sorted({*holders.values()})
        )
    return replace(resolved, tree=tree, problems=tuple(problems), gone=classes)


def _with_more(provider: Provider, name: str, count: int) -> Provider:
    now = provider.inventories[name]
    more = replace(now, total=now.total + count)
    return replace(provider, inventories={**provider.inventories, name: more})


def _sentence(provider: Provider, name: str, consumer: str, units: list[str]) -> str:
    return (
        f"{consumer} has claimed {name} {', '.join(units)} of {provider.name}, which this host does not have "
        "any more: the rest of the inventory can be given. Bring the device back (virtual functions must be "
        "created again after each boot), or release the claim."
    )
