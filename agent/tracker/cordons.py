"""The devices of this host, who has them, and which of them an operator has cordoned."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from agent.errors import UsageError
from agent.providers.cordoned import Cordoned, cordoned_units
from agent.shapes import Units, Usages
from agent.state.cordon import Cordon
from agent.state.journal import Journal
from agent.tracker.register import Register
from agent.tree import Provider

CPUS = "PCPU"


@dataclass(frozen=True, slots=True)
class OfferedDevice:
    """An exact unit that the host offers.

    `holder` is the consumer that has it, `cordon` why no other consumer may have it.
    """

    unit: str
    resource_class: str
    provider: str
    holder: str | None = None
    cordon: Cordon | None = None


class Cordons:
    """The cordons, kept in the journal. The book gives a cordoned unit only to who has it."""

    def __init__(self, journal: Journal, register: Register) -> None:
        """Raises StateError where the journal cannot be read."""
        self._journal = journal
        self._register = register
        self._cordons = journal.cordons()

    def all(self) -> Mapping[str, Cordon]:
        """{address: cordon}"""
        return self._cordons

    def put(self, cordon: Cordon) -> None:
        """Cordon a device. Raises UsageError where the host has no such device, StateError."""
        if not self._units([cordon.address]):
            raise UsageError(
                f"{cordon.address} is no device that this host offers; `plimsoll devices` lists them. A card "
                "is named by its PCI address, a mediated device by its uuid."
            )
        detail = f"{cordon.address}: {cordon.reason}" if cordon.reason else cordon.address
        self._replace({**self._cordons, cordon.address: cordon}, "cordon", detail)

    def clear(self, address: str) -> None:
        """End the cordon. Raises UsageError where the device is not cordoned, StateError."""
        if address not in self._cordons:
            raise UsageError(f"{address} is not cordoned; `plimsoll devices` lists what is.")
        rest = {other: cordon for other, cordon in self._cordons.items() if other != address}
        self._replace(rest, "clear", address)

    def withhold(self) -> None:
        """Tell the book which of the units that it offers now are cordoned."""
        cordoned = self._units(self._cordons)
        self._register.under_lock(lambda book: book.cordon(cordoned))

    def idle(self, units: Units, cordoned: Cordoned) -> Usages:
        """{provider uuid: {class: number}} of the cordoned units among `units` that no consumer has."""
        return self._register.under_lock(lambda book: book.idle_cordoned(units, cordoned))

    def devices(self) -> tuple[OfferedDevice, ...]:
        """All devices, by provider and class, in the order in which they are given."""
        host, offered, owners = self._register.under_lock(
            lambda book: (book.host, book.offered, book.owners())
        )
        cards = self._journal.devices()
        return tuple(
            OfferedDevice(
                unit,
                name,
                host.tree[uuid].name,
                owners.get((name, unit)),
                self._cordons.get(unit) or self._cordons.get(cards.get(uuid, "").removeprefix("pci:")),
            )
            for uuid, classes in sorted(offered.items(), key=lambda item: _name_of(host.tree.get(item[0])))
            if uuid in host.tree
            for name, units in sorted(classes.items())
            if name != CPUS
            for unit in units
        )

    def _replace(self, cordons: Mapping[str, Cordon], event: str, detail: str) -> None:
        self._journal.remember_cordons(cordons, event, detail)
        self._cordons = cordons
        self.withhold()

    def _units(self, addresses: Collection[str]) -> Cordoned:
        offered = self._register.under_lock(lambda book: book.offered)
        return cordoned_units(offered, self._journal.devices(), addresses)


def _name_of(provider: Provider | None) -> str:
    return provider.name if provider is not None else ""
