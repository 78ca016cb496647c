"""A model of what the kernel makes of the writes of a carving, in memory and as slow as a test wants.

Its answers are those of drivers/pci/iov.c and of the documentation of mediated devices: a number of virtual
functions changes over 0 only, a driver that is named alone binds, and what is on a function goes with it.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field, replace

from agent.carving.carving import Mdev, Seen, SeenFunction, Sight, Step, StepKind


@dataclass
class ModelCard:
    """A card, what its virtual functions are like, and `late`: how many waits its functions need to appear.

    `driver` comes to it after `driver_late` waits.
    """

    address: str
    vf_addresses: tuple[str, ...] = ()
    driver: str = "pf"
    vf_driver: str = "vf"
    vendor_vfio: bool = False
    mdev_types: frozenset[str] = frozenset()
    vf_mdev_types: frozenset[str] = frozenset()
    room: int = 8
    driver_late: int = 0
    late: int = 0


@dataclass
class ModelKernel:
    """The host. `do` takes a step or raises OSError, as a write to sysfs does; `uses` {function: clauses}."""

    cards: dict[str, ModelCard]
    functions: dict[str, SeenFunction] = field(default_factory=dict)
    mdevs: dict[str, Mdev] = field(default_factory=dict)
    uses: dict[str, tuple[str, ...]] = field(default_factory=dict)
    writes: int = 0
    _waits: dict[str, int] = field(default_factory=dict)
    _hidden: dict[str, int] = field(default_factory=dict)

    def boot(self) -> None:
        """What a reboot leaves: the cards alone."""
        self.functions = {card.address: self._new(card, card.address) for card in self.cards.values()}
        self.mdevs, self.uses, self._hidden = {}, {}, {}
        self._waits = {card.address: card.driver_late for card in self.cards.values()}

    def seen(self) -> Seen:
        """What it shows now."""
        return Seen(
            {
                address: replace(self._shown(function), uses=self.uses.get(address, ()))
                for address, function in self.functions.items()
                if function.card is None or not self._hidden.get(function.card)
            },
            dict(self.mdevs),
        )

    def _shown(self, function: SeenFunction) -> SeenFunction:
        if self._waits.get(function.address):
            return replace(function, driver="", vfs_max=None, vf_addresses=(), mdev_types=frozenset())
        return replace(function, vfs=()) if self._hidden.get(function.address) else function

    def do(self, step: Step) -> None:
        """Take the step. Raises OSError, and TimeoutError for a wait that is in vain."""
        if step.kind is StepKind.AWAIT:
            self._await(step)
            return
        self.writes += 1
        function = self.functions.get(step.function)
        if function is None:
            raise OSError(errno.ENOENT, step.text)
        getattr(self, f"_{step.kind.value}")(function, step)

    def _await(self, step: Step) -> None:
        self._waits.pop(step.card, None)
        self._hidden.pop(step.card, None)
        function = self.functions.get(step.function)
        met = (
            function is not None
            and {
                Sight.FUNCTION: True,
                Sight.SRIOV: function.vfs_max is not None,
                Sight.VFS: str(len(function.vfs)) == step.unit,
                Sight.VGPU_TYPE: function.vgpu_type is not None,
                Sight.MDEV_TYPE: step.unit in function.mdev_types,
            }[Sight(step.value)]
        )
        if not met:
            raise TimeoutError(step.text)

    def _new(self, card: ModelCard, address: str) -> SeenFunction:
        if address == card.address:
            return SeenFunction(
                address,
                card.driver,
                vfs_max=len(card.vf_addresses) or None,
                vf_addresses=card.vf_addresses,
                autoprobe=True if card.vf_addresses else None,
                mdev_types=card.mdev_types,
            )
        probe = self.functions[card.address].autoprobe
        return SeenFunction(
            address,
            card.vf_driver if probe else "",
            card=card.address,
            vgpu_type="0" if card.vendor_vfio and probe else None,
            mdev_types=card.vf_mdev_types if probe else frozenset(),
        )

    def _vfs(self, function: SeenFunction, step: Step) -> None:
        number, card = int(step.value), self.cards[step.function]
        if function.vfs_max is None or self._waits.get(card.address):
            raise OSError(errno.ENOENT, step.text)
        if number > function.vfs_max:
            raise OSError(errno.ERANGE, step.text)
        if number == function.vfs_number:
            return
        if function.vfs_number and number:
            raise OSError(errno.EBUSY, step.text)
        assert not any(self.uses.get(vf) for vf in function.vfs), "a function in use was removed"
        for vf in function.vfs:
            del self.functions[vf]
            self.mdevs = {uuid: mdev for uuid, mdev in self.mdevs.items() if mdev.parent != vf}
        vfs = card.vf_addresses[:number]
        self.functions[card.address] = replace(function, vfs_number=number, vfs=vfs)
        for vf in vfs:
            self.functions[vf] = self._new(card, vf)
        if number and card.late:
            self._hidden[card.address] = card.late

    def _autoprobe(self, function: SeenFunction, step: Step) -> None:
        self.functions[step.function] = replace(function, autoprobe=step.value == "1")

    def _driver_override(self, function: SeenFunction, step: Step) -> None:
        self.functions[step.function] = replace(function, override=step.value)

    def _unbind(self, function: SeenFunction, step: Step) -> None:
        if function.driver != step.value:
            raise OSError(errno.ENODEV, step.text)
        assert not self.uses.get(step.function), "a driver was taken from a device in use"
        gone = replace(function, driver="", vfs_max=None, vgpu_type=None, mdev_types=frozenset())
        self.functions[step.function] = gone

    def _bind(self, function: SeenFunction, step: Step) -> None:
        card = self.cards.get(step.function) or self.cards[function.card or ""]
        default = card.driver if card.address == step.function else card.vf_driver
        if not function.driver:
            self.functions[step.function] = replace(function, driver=function.override or default)

    def _vgpu_type(self, function: SeenFunction, step: Step) -> None:
        if function.vgpu_type is None:
            raise OSError(errno.ENOENT, step.text)
        if function.vgpu_type != "0" and step.value != "0":
            raise OSError(errno.EBUSY, step.text)
        self.functions[step.function] = replace(function, vgpu_type=step.value)

    def _create_mdev(self, function: SeenFunction, step: Step) -> None:
        if step.unit in self.mdevs:
            raise OSError(errno.EEXIST, step.text)
        if step.value not in function.mdev_types:
            raise OSError(errno.ENOENT, step.text)
        self.mdevs[step.unit] = Mdev(step.function, step.value)

    def _remove_mdev(self, function: SeenFunction, step: Step) -> None:
        if self.mdevs.pop(step.unit, None) is None:
            raise OSError(errno.ENOENT, step.text)
