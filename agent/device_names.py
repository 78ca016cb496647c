"""The names that devices have in placement, for drivers that report them and claims that ask for them. Pure.

Normalised as nova does it. Source:
https://docs.openstack.org/nova/latest/configuration/config.html#pci.device_spec
"""

import re
from collections.abc import Callable, Iterable
from functools import cache

NAME_MAX = 255
LIVE_MIGRATABLE = "HW_PCI_LIVE_MIGRATABLE"
ONE_TIME_USE = "HW_PCI_ONE_TIME_USE"
TYPES = {"type-PCI": "CUSTOM_PCI_TYPE_PCI", "type-PF": "CUSTOM_PCI_TYPE_PF", "type-VF": "CUSTOM_PCI_TYPE_VF"}
"""{nova's device_type: the trait of providers that have such}; type-PF is one that can have virtual ones."""

_PAGES = re.compile(r"CUSTOM_HUGEPAGES_[0-9]+KIB", re.ASCII)
_ID = re.compile(r"(?:0x)?[0-9a-f]{1,4}", re.ASCII | re.IGNORECASE)


def custom(name: str, standard: Callable[[str], bool]) -> str:
    """A standard name as it is; any other as CUSTOM_<NAME>, with "_" for what such a name cannot hold.

    Raises ValueError where nothing is left.
    """
    name = name.strip().upper()
    if standard(name):
        return name
    cleaned = re.sub(r"[^A-Z0-9_]+", "_", name.removeprefix("CUSTOM_"))
    if not cleaned.strip("_"):
        raise ValueError(f"{name!r} cannot be made a name")
    return f"CUSTOM_{cleaned}"[:NAME_MAX]


def custom_class(name: str) -> str:
    """The resource class that an operator means, see `custom`. Raises ValueError."""
    return custom(name, _standard_classes())


def custom_traits(names: Iterable[str]) -> frozenset[str]:
    """The traits that an operator means, see `custom`. Raises ValueError."""
    return frozenset(custom(name, _standard_traits()) for name in names if name.strip())


def hexadecimal_id(text: str) -> str:
    """A vendor's or product's id as four lower-case digits. Raises ValueError."""
    digits = text.strip()
    if not _ID.fullmatch(digits):
        raise ValueError(f"{text!r} is no id of four hexadecimal digits")
    return f"{int(digits, 16):04x}"


def pci_class(vendor_id: str, product_id: str) -> str:
    """The class of a PCI device for which nobody configured another."""
    return f"CUSTOM_PCI_{vendor_id}_{product_id}".upper()


def page_class(size_kib: int) -> str:
    """The resource class of large pages of that size, and the trait of a NUMA cell that has some."""
    return f"CUSTOM_HUGEPAGES_{size_kib}KIB"


def is_page_class(name: str) -> bool:
    """Whether it is the resource class of large pages of some size."""
    return _PAGES.fullmatch(name) is not None


def vendor_trait(vendor_id: str) -> str:
    return f"CUSTOM_PCI_VENDOR_{vendor_id}".upper()


def product_trait(product_id: str) -> str:
    return f"CUSTOM_PCI_PRODUCT_{product_id}".upper()


def mdev_type_trait(type_id: str) -> str:
    """The trait of a card that is divided into mediated devices of that type, such as nvidia-11."""
    return custom(f"MDEV_TYPE_{type_id}", lambda _: False)


@cache
def _standard_classes() -> Callable[[str], bool]:
    import os_resource_classes  # late: only who names devices needs it

    return frozenset(os_resource_classes.STANDARDS).__contains__


@cache
def _standard_traits() -> Callable[[str], bool]:
    import os_traits  # late: it is slow to import

    return frozenset(os_traits.get_traits()).__contains__
