"""What inventories of bandwidth and packet rates have beside their total, by Neutron's options. Pure.

Source: https://docs.openstack.org/neutron/latest/admin/config-qos-min-bw.html and
https://docs.openstack.org/api-ref/placement/#update-resource-provider-inventories
"""

from collections.abc import Iterable
from dataclasses import dataclass

from agent.driver import DescribedInventory
from agent.errors import SettingsError
from agent.tree import MAX_UNIT

RATIO_MAX = 10_000.0
_LEAST = {"min_unit": 1, "max_unit": 1, "step_size": 1, "reserved": 0}


@dataclass(frozen=True, slots=True)
class InventoryDefaults:
    """The fields of each inventory; Neutron has the same defaults. `max_unit` None means the total."""

    allocation_ratio: float = 1.0
    min_unit: int = 1
    max_unit: int | None = None
    step_size: int = 1
    reserved: int = 0

    def inventory(self, total: int) -> DescribedInventory:
        """An inventory of this total; no more than that is reserved."""
        return DescribedInventory(
            total,
            reserved=min(self.reserved, total),
            min_unit=self.min_unit,
            max_unit=self.max_unit,
            step_size=self.step_size,
            allocation_ratio=self.allocation_ratio,
        )


def parse_inventory_defaults(option: str, texts: Iterable[str]) -> InventoryDefaults:
    """The defaults in texts such as "step_size:1000"; messages name the `option`. Raises SettingsError."""
    ratio = 1.0
    found: dict[str, int] = {}
    seen: set[str] = set()
    for text in texts:
        key, _, value = (part.strip() for part in text.partition(":"))
        if key in seen:
            raise SettingsError(f"{option} has {key} twice; remove one of them.")
        seen.add(key)
        if key == "allocation_ratio":
            ratio = _ratio(option, value)
        elif key in _LEAST and value.isdecimal() and _LEAST[key] <= int(value) <= MAX_UNIT:
            found[key] = int(value)
        else:
            raise SettingsError(
                f"{option}: {text[:80]!r} is not allocation_ratio:NUMBER, or one of min_unit, max_unit, "
                "step_size, reserved with a whole number."
            )
    return InventoryDefaults(ratio, **found)


def _ratio(option: str, value: str) -> float:
    try:
        ratio = float(value)
    except ValueError:
        ratio = 0.0
    if not 0.0 < ratio <= RATIO_MAX:
        raise SettingsError(f"{option}: allocation_ratio {value[:80]!r} is not a number above 0.")
    return ratio
