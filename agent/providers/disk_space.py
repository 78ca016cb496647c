"""Whether the host offers more disk space than its file system has. Pure."""

from collections.abc import Collection

from agent.driver import DescribedInventory, Guest
from agent.tree import Inventory

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
