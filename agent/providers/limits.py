"""Limits of what is offered on the whole host: the operator's caps, and the disk space that is there. Pure.

A cap is the most of a resource class that is offered to guests. Of disk space, more can be offered than the
file system has free: other files are there, too.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from agent.driver import DescribedInventory, Guest
from agent.errors import SettingsError
from agent.shapes import Held
from agent.tree import MAX_UNIT, Inventory, ProviderTree

# Caps

Caps = Mapping[str, int]
"""{resource class: the most that all guests of the host may have of it}"""

_CAP = re.compile(r"\s*([A-Z0-9_]{1,255})\s*=\s*([0-9]{1,10})\s*", re.ASCII)


def parse_caps(texts: Iterable[str]) -> dict[str, int]:
    """The caps in the texts `CLASS=N` of the option; an empty one is no cap. Raises SettingsError."""
    caps: dict[str, int] = {}
    for text in filter(str.strip, texts):
        match = _CAP.fullmatch(text)
        if match is None or int(match[2]) > MAX_UNIT:
            raise SettingsError(
                f"[DEFAULT] cap = {text} is not CLASS=N, such as VGPU=4, with N from 0 to {MAX_UNIT}.",
                group="DEFAULT",
                option="cap",
            )
        if match[1] in caps:
            raise SettingsError(
                f"[DEFAULT] cap names {match[1]} twice; keep one of the two.", group="DEFAULT", option="cap"
            )
        caps[match[1]] = int(match[2])
    return caps


def odd_caps(caps: Caps, offered: Iterable[tuple[str, float]]) -> Iterator[str]:
    """A sentence on each cap that has no effect, or that leaves nothing of its class without being 0.

    `offered` are all inventories of the host, as (resource class, allocation ratio).
    """
    ratios: dict[str, float] = {}
    for name, ratio in offered:
        ratios[name] = min(ratio, ratios.get(name, ratio))
    for name, amount in caps.items():
        if name not in ratios:
            yield f"[DEFAULT] cap = {name}={amount} has no effect: no provider of this host has {name}."
        elif 0 < amount < ratios[name]:
            yield (
                f"[DEFAULT] cap = {name}={amount} leaves no {name}: whole units of the host are offered, and "
                f"with an allocation ratio of {ratios[name]:g} one unit is {ratios[name]:g} {name}."
            )


def beyond_caps(caps: Caps, held: Held) -> dict[str, int]:
    """The caps of which the consumers hold more; `held` {provider uuid: {consumer: {class: amount}}}."""
    used: Counter[str] = Counter()
    for holders in held.values():
        for amounts in holders.values():
            used.update(amounts)
    return {name: most for name, most in caps.items() if used[name] > most}


def with_caps(tree: ProviderTree, caps: Caps) -> ProviderTree:
    """The tree, with so much more reserved that all providers together offer no more than the caps.

    What is offered stays on the first providers, parents before children. Where a class is overcommitted, the
    cap is rounded down to whole units of the host. A cap below what is in use takes nothing from guests.
    """
    left = dict(caps)
    for provider in tuple(tree):
        inventories = dict(provider.inventories)
        for name, inventory in provider.inventories.items():
            if name in left:
                if inventory.capacity > left[name]:
                    offered = int(left[name] / inventory.allocation_ratio)
                    inventories[name] = replace(inventory, reserved=inventory.total - offered)
                left[name] -= inventories[name].capacity
        if inventories != provider.inventories:
            tree = tree.with_provider(replace(provider, inventories=inventories))
    return tree


# Disk space

DISK = "DISK_GB"
MIB_PER_GIB = 1024


def disk_in_use(guests: Collection[Guest]) -> int:
    """The DISK_GB of these guests' disks."""
    return sum(guest.resources.get(DISK, 0) for guest in guests)


def disk_warning(
    inventory: Inventory | DescribedInventory | None, used_gb: int, free_gb: int | None
) -> str | None:
    """A sentence where more DISK_GB can still be claimed, without overcommit, than is free; else None."""
    if inventory is None or free_gb is None:
        return None
    left = inventory.total - inventory.reserved - used_gb
    if left <= free_gb:
        return None
    reserved_mb = (inventory.reserved + left - max(free_gb, 0)) * MIB_PER_GIB
    return (
        f"{left} {DISK} can still be claimed, but the file system of the guests' disks has only {free_gb} "
        f"GiB free: other files are there, too. Set [DEFAULT] reserved_host_disk_mb = {reserved_mb}."
    )
