"""What the kernel shows of the PCI functions and mediated devices that a carving is about. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Mdev:
    """A mediated device: the function on which it is, and the id of its type."""

    parent: str
    type_id: str


@dataclass(frozen=True, slots=True)
class SeenFunction:
    """A PCI function. `driver` and `override` are empty without one; `card` is that of a virtual function.

    `vfs_max` is None where its driver makes no virtual functions, or is not bound yet. `vfs_number` is how
    many it was told to make, `vfs` those that are there, `vf_addresses` the addresses that the first
    `vfs_max` ones have, as far as they can be told. `autoprobe`: the kernel binds drivers to new ones; None
    where it does not tell.
    `vgpu_type` is the number of its vGPU type under a vendor's own VFIO driver, None under any other, and
    `vgpu_place` the slot of the card in which that vGPU starts, None where it has no place.
    `mdev_types` are the ids of the types of mediated devices that it offers. `type_sizes` {number of a vGPU
    type, or id of a type of mediated devices: its frame buffer in MiB} where the vendor's driver tells it.
    `uses` are clauses on what has it: "its interface enp65s0v0 is up".
    """

    address: str
    driver: str = ""
    override: str = ""
    card: str | None = None
    vfs_max: int | None = None
    vfs_number: int = 0
    vfs: tuple[str, ...] = ()
    vf_addresses: tuple[str, ...] = ()
    autoprobe: bool | None = None
    vgpu_type: str | None = None
    mdev_types: frozenset[str] = frozenset()
    uses: tuple[str, ...] = ()
    type_sizes: Mapping[str, int] = field(default_factory=dict)
    vgpu_place: int | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """{address: function} of the functions that exist, and {uuid: mediated device}."""

    functions: Mapping[str, SeenFunction] = field(default_factory=dict)
    mdevs: Mapping[str, Mdev] = field(default_factory=dict)

    def card_of(self, address: str) -> str:
        """The card of a virtual function, also of one that is still to be made; else the address itself."""
        function = self.functions.get(address)
        if function is not None:
            return function.card or address
        for card in self.functions.values():
            if address in card.vf_addresses:
                return card.address
        return address

    def size_of(self, card: str, type_id: str) -> int:
        """The frame buffer of a type in MiB, as any function of the card tells it; 0 where none does."""
        functions = (each for each in self.functions.values() if card in (each.card, each.address))
        return max((each.type_sizes.get(type_id, 0) for each in functions), default=0)

    def has_use(self, address: str) -> bool:
        """Whether something has the function, or a mediated device is on it."""
        function = self.functions.get(address)
        return bool(function and function.uses) or any(mdev.parent == address for mdev in self.mdevs.values())
