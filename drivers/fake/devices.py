"""The kinds of devices that a fake host can have.

A kind is one class here: its fields are the keys of the host file, and its methods give the inventory. From
them come the file's schema, the provider, the moves and the table in docs/drivers.md.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from agent.device_names import physical_network_trait
from agent.driver import CardLayout, DescribedInventory, DescribedProvider
from agent.errors import DriverDataError
from agent.providers.cards.division import CardModel
from agent.providers.cards.stock import layout_of
from agent.providers.cards.tables import MIG, MIXED_SIZES
from drivers.fake.schema import (
    ADDRESS,
    ADDRESSES,
    AMOUNT,
    AMOUNTS,
    CLASS,
    INTERFACE,
    TEXT,
    TEXTS,
    TRAITS,
    file_key,
)

VFS_OF_A_CARD = 32
"""So many virtual functions each card of the fake host has; a part of a mixed size takes one."""

CARD_TABLES: Mapping[str, CardModel] = {
    **{
        f"mixed {card}": sizes.model({str(gib): gib for gib in sizes.starts}, VFS_OF_A_CARD)
        for card, sizes in MIXED_SIZES.items()
    },
    **{f"MIG {card}": model for card, model in MIG.items()},
}
"""{`table` of a divided card: its model}"""

_NUMA = file_key(AMOUNT, "the id of the cell that it is on; none if it has no affinity")
_TRAITS = file_key(TRAITS, "more traits of its provider")


class Device(ABC):
    """A device with a provider of its own; `numa` is the id of its cell, None without affinity."""

    __slots__ = ()

    address: str
    traits: frozenset[str]
    numa: int | None

    @abstractmethod
    def name_suffix(self) -> str:
        """The end of the provider's name, after the name of the host and "_"."""

    @abstractmethod
    def totals(self) -> Mapping[str, int]:
        """{resource class: total}; a class with a total of 0 is not reported."""

    def exact_units(self) -> Mapping[str, tuple[str, ...]]:
        """See `DescribedProvider`."""
        return {}

    def ways(self) -> tuple[frozenset[str], ...]:
        """See `DescribedProvider`."""
        return ()

    def own_traits(self) -> frozenset[str]:
        """The traits that follow from the other fields."""
        return frozenset()

    def addresses(self) -> tuple[str, ...]:
        """All its PCI addresses; each may be on the host only once."""
        return (self.address,)

    def describe(self, host_name: str, parent: str) -> DescribedProvider:
        """The provider of the device, below the provider called `parent`. Devices are never overcommitted."""
        return DescribedProvider(
            name=f"{host_name}_{self.name_suffix()}",
            parent=parent,
            inventories={
                resource_class: DescribedInventory(total, allocation_ratio=1.0)
                for resource_class, total in self.totals().items()
                if total
            },
            traits=self.traits | self.own_traits(),
            device=f"pci:{self.address}",
            units=self.exact_units(),
            cell=self.numa,
            ways=self.ways(),
        )


@dataclass(frozen=True, slots=True)
class Gpu(Device):
    """A graphics card that offers `total` of `resource_class` (VGPU, PGPU or a CUSTOM_ class).

    `units` are its exact units where they exist (for VGPU the uuids of existing mediated devices). `types`
    {resource class: total} are alternatives to all that: classes with the same total share the card, others
    exclude each other.
    """

    address: str = field(metadata=file_key(ADDRESS, "the PCI address of the card"))
    resource_class: str = field(
        default="VGPU", metadata=file_key(CLASS, "`VGPU` (default), `PGPU` or a `CUSTOM_` class")
    )
    total: int = field(default=1, metadata=file_key(AMOUNT, "how many of the class the card has; default 1"))
    units: tuple[str, ...] = field(default=(), metadata=file_key(TEXTS, "its exact units, if they exist"))
    traits: frozenset[str] = field(default=frozenset(), metadata=_TRAITS)
    numa: int | None = field(default=None, metadata=_NUMA)
    types: Mapping[str, int] = field(
        default_factory=dict,
        metadata=file_key(
            AMOUNTS,
            "in place of `resource_class` and `total`: the total of each class into which the card can be "
            "divided; classes of one total share the card, others exclude each other",
        ),
    )

    def name_suffix(self) -> str:
        """See `Device`."""
        return f"pci_{self.address}"

    def totals(self) -> Mapping[str, int]:
        """See `Device`."""
        return self.types or {self.resource_class: self.total}

    def exact_units(self) -> Mapping[str, tuple[str, ...]]:
        """See `Device`."""
        if self.types:
            return {
                resource_class: tuple(f"{self.address}/{number}" for number in range(total))
                for resource_class, total in self.types.items()
            }
        return {self.resource_class: self.units} if self.units else {}

    def ways(self) -> tuple[frozenset[str], ...]:
        """See `Device`."""
        classes_by_total: dict[int, set[str]] = {}
        for resource_class, total in self.types.items():
            classes_by_total.setdefault(total, set()).add(resource_class)
        return tuple(map(frozenset, classes_by_total.values()))


@dataclass(frozen=True, slots=True)
class DividedGpu(Device):
    """A graphics card that is divided into several sizes at once, each in certain places only.

    `shapes` {resource class: GiB of a vGPU, or a slice of MIG} are of the card's table.
    """

    address: str = field(metadata=file_key(ADDRESS, "the PCI address of the card"))
    table: str = field(
        metadata=file_key(
            {"enum": sorted(CARD_TABLES)}, "the card, and how it is divided: in mixed sizes, or by MIG"
        )
    )
    shapes: Mapping[str, str] = field(
        metadata=file_key(
            {"type": "object", "propertyNames": CLASS, "additionalProperties": TEXT, "minProperties": 1},
            "the size of each class: the GiB of a vGPU (`8`), or a slice of MIG (`1g.5gb`)",
        )
    )
    traits: frozenset[str] = field(default=frozenset(), metadata=_TRAITS)
    numa: int | None = field(default=None, metadata=_NUMA)

    def name_suffix(self) -> str:
        """See `Device`."""
        return f"pci_{self.address}"

    def totals(self) -> Mapping[str, int]:
        """See `Device`. Raises DriverDataError for a shape that the card does not have."""
        return self._layout()[1]

    def exact_units(self) -> Mapping[str, tuple[str, ...]]:
        """See `Device`."""
        return {name: tuple(shape.units) for name, shape in self._layout()[0].shapes.items()}

    def describe(self, host_name: str, parent: str) -> DescribedProvider:
        """See `Device`."""
        described = Device.describe(self, host_name, parent)
        return replace(described, card=self._layout()[0])

    def _layout(self) -> tuple[CardLayout, Mapping[str, int]]:
        try:
            return layout_of(
                CARD_TABLES[self.table], self.shapes, lambda name, start: f"{self.address}/{name}@{start}"
            )
        except KeyError as error:
            raise DriverDataError(f"{self.address}: {self.table} has no shape {error}") from error


@dataclass(frozen=True, slots=True)
class Nic(Device):
    """The physical function of a network card, with its virtual functions and its bandwidth."""

    ifname: str = field(metadata=file_key(INTERFACE, "the name of its network interface", unique=True))
    address: str = field(metadata=file_key(ADDRESS, "the PCI address of its physical function"))
    vfs: tuple[str, ...] = field(
        default=(),
        metadata=file_key(ADDRESSES, "the PCI addresses of its virtual functions (`SRIOV_NET_VF`)"),
    )
    physical_network: str | None = field(
        default=None, metadata=file_key(TEXT, "the network that it is on (trait `CUSTOM_PHYSNET_<NAME>`)")
    )
    egress_kbps: int = field(default=0, metadata=file_key(AMOUNT, "`NET_BW_EGR_KILOBIT_PER_SEC`, in kbit/s"))
    ingress_kbps: int = field(default=0, metadata=file_key(AMOUNT, "`NET_BW_IGR_KILOBIT_PER_SEC`, in kbit/s"))
    traits: frozenset[str] = field(default=frozenset(), metadata=_TRAITS)
    numa: int | None = field(default=None, metadata=_NUMA)
    whole: str | None = field(
        default=None,
        metadata=file_key(CLASS, "the class of the physical function, where a guest may have the whole card"),
    )

    def name_suffix(self) -> str:
        """See `Device`."""
        return f"net_{self.ifname}"

    def totals(self) -> Mapping[str, int]:
        """See `Device`."""
        return {
            **{resource_class: len(addresses) for resource_class, addresses in self.exact_units().items()},
            "NET_BW_EGR_KILOBIT_PER_SEC": self.egress_kbps,
            "NET_BW_IGR_KILOBIT_PER_SEC": self.ingress_kbps,
        }

    def exact_units(self) -> Mapping[str, tuple[str, ...]]:
        """See `Device`."""
        units = {"SRIOV_NET_VF": self.vfs} if self.vfs else {}
        return {**units, self.whole: (self.address,)} if self.whole else units

    def ways(self) -> tuple[frozenset[str], ...]:
        """See `Device`."""
        classes = self.exact_units()
        return tuple(frozenset({resource_class}) for resource_class in classes) if len(classes) > 1 else ()

    def own_traits(self) -> frozenset[str]:
        """See `Device`."""
        return physical_network_trait(self.physical_network)

    def addresses(self) -> tuple[str, ...]:
        """See `Device`."""
        return (self.address, *self.vfs)
