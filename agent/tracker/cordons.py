"""The devices of this host, who has them, and which are withheld: cordoned by an operator, or unhealthy."""

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from agent.codec import encode
from agent.device_names import address_of
from agent.driver import DeviceSigns
from agent.errors import UsageError
from agent.providers import device_health
from agent.providers.device_health import Cordoned, DeviceHealth
from agent.shapes import Units, Usages
from agent.state.journal import Journal
from agent.state.operators import Cordon
from agent.tracker.register import Register

CPUS = "PCPU"


class DeviceWatch:
    """The health of the host's devices, as the looks at them say; it judges each look. Any thread may call.

    What a restart must not forget is journaled.
    """

    def __init__(self, journal: Journal) -> None:
        """Raises StateError where the journal cannot be read."""
        self._journal = journal
        self._lock = threading.Lock()
        self._known = dict(journal.device_health())
        self._seen: Mapping[str, DeviceSigns] = {}

    def unhealthy(self) -> Mapping[str, DeviceHealth]:
        """{address: health} of the devices that are given to no guest, by address."""
        known = self._known
        return {address: known[address] for address in sorted(known) if known[address].is_withheld}

    def look(self, signs: Iterable[DeviceSigns], at: float) -> bool:
        """Judge the signs of all devices at this time; True where other devices are withheld than before.

        A device that is not among them is forgotten: one that comes back is a new one. Raises StateError,
        and changes nothing.
        """
        with self._lock:
            seen = {each.address: each for each in signs}
            known = {
                address: device_health.look(
                    self._known.get(address, DeviceHealth(address)), self._seen.get(address), each, at
                )
                for address, each in seen.items()
            }
            changed = _withheld(self._known) != _withheld(known)
            self._replace(known)
            self._seen = seen
            return changed

    def clear(self, addresses: Collection[str]) -> bool:
        """Offer the devices in spite of their symptoms; False where none is unhealthy. Raises StateError."""
        with self._lock:
            offered = {
                address: device_health.cleared(known)
                for address, known in self._known.items()
                if address in addresses and known.is_withheld
            }
            if offered:
                self._replace({**self._known, **offered})
            return bool(offered)

    def _replace(self, known: Mapping[str, DeviceHealth]) -> None:
        before, after = self._known, dict(known)
        lasting = _lasting(after)
        if encode(tuple[DeviceHealth, ...], lasting) != encode(tuple[DeviceHealth, ...], _lasting(before)):
            # A clause on each device that is withheld now and was not, or the other way round.
            was, now = _withheld(before), _withheld(after)
            unhealthy = (f"{address} unhealthy: {after[address].reason}" for address in sorted(now - was))
            offered = (f"{address} offered again" for address in sorted(was - now))
            self._journal.remember_device_health(lasting, "; ".join((*unhealthy, *offered)))
        self._known = after


def _lasting(known: Mapping[str, DeviceHealth]) -> tuple[DeviceHealth, ...]:
    """What a restart must not forget, by address."""
    return tuple(
        known[address] for address in sorted(known) if known[address].is_withheld or known[address].excused
    )


def _withheld(known: Mapping[str, DeviceHealth]) -> frozenset[str]:
    return frozenset(address for address, health in known.items() if health.is_withheld)


@dataclass(frozen=True, slots=True)
class OfferedDevice:
    """An exact unit that the host offers.

    `holder` is the consumer that has it. `cordon` and `health` are why no other consumer may have it.
    """

    unit: str
    resource_class: str
    provider: str
    holder: str | None = None
    cordon: Cordon | None = None
    health: DeviceHealth | None = None


class Cordons:
    """The devices that are withheld, kept in the journal. The book gives such a unit only to who has it.

    Any thread may call; one change of the cordons at a time is written.
    """

    def __init__(self, journal: Journal, register: Register) -> None:
        """Raises StateError where the journal cannot be read."""
        self._journal = journal
        self._register = register
        self._writing = threading.Lock()
        self._cordons = journal.cordons()
        self._watch = DeviceWatch(journal)

    def unhealthy(self) -> Mapping[str, DeviceHealth]:
        """{address: health} of the devices that are withheld because they are not well, by address."""
        return self._watch.unhealthy()

    @property
    def addresses(self) -> frozenset[str]:
        """The addresses of all that is withheld."""
        return frozenset({*self._cordons, *self.unhealthy()})

    @property
    def sentences(self) -> tuple[str, ...]:
        """A sentence on each device or card that is withheld, and how that ends."""
        cordoned = (cordon.sentence for cordon in self._cordons.values())
        unhealthy = self.unhealthy()
        if not unhealthy:
            return tuple(cordoned)
        # {exact unit, or its function: who has it, as people know it}
        holders = self._register.under_lock(
            lambda book: {
                address_of(unit): book.label(owner) for (_, unit), owner in book.units.owners().items()
            }
        )
        return (*cordoned, *device_health.unhealthy_sentences(unhealthy, self._cards(), holders))

    def withheld(self) -> dict[str, str]:
        """{exact unit: a sentence on why it is withheld, and how that ends}"""
        causes = {device.unit: device.cordon or device.health for device in self.devices()}
        return {unit: cause.sentence for unit, cause in causes.items() if cause is not None}

    def look(self, signs: Iterable[DeviceSigns], at: float) -> bool:
        """Judge the health of the devices by their signs at this time (seconds since the epoch, UTC).

        True where other devices are withheld than before. Raises StateError.
        """
        changed = self._watch.look(signs, at)
        if changed:
            self.withhold()
        return changed

    def read_back(self) -> None:
        """Continue with what is on disk. Raises StateError where the journal cannot be read."""
        with self._writing:
            self._cordons = self._journal.cordons()
            self.withhold()

    def put(self, cordon: Cordon) -> None:
        """Cordon a device. Raises UsageError where the host has no such device, StateError."""
        if not self._units([cordon.address]):
            host = self._register.under_lock(lambda book: book.host)
            for uuid, device in self._journal.devices().items():
                provider = host.tree.get(uuid)
                if device == f"pci:{cordon.address}" and provider is not None and provider.inventories:
                    # A card of this host, without exact units.
                    classes = sorted(provider.inventories)
                    caps = " or ".join(f"[DEFAULT] cap = {name}=N" for name in classes)
                    raise UsageError(
                        f"{cordon.address} is the card of {provider.name}, but the driver names no exact "
                        f"units of its {' and '.join(classes)}, and only such units can be cordoned. To give "
                        f"less of it to new guests of this host, set {caps}."
                    )
            raise UsageError(
                f"{cordon.address} is no device that this host offers; `plimsoll devices list` shows them. A "
                "card is named by its PCI address, a mediated device by its uuid."
            )
        detail = f"{cordon.address}: {cordon.reason}" if cordon.reason else cordon.address
        with self._writing:
            self._replace({**self._cordons, cordon.address: cordon}, "cordon", detail)

    def clear(self, address: str) -> None:
        """End the cordon, and offer the device in spite of the symptoms that it shows.

        The address of a card stands for its functions, too.
        Raises UsageError where the device is neither cordoned nor unhealthy, StateError.
        """
        functions = [unit for unit, card in self._cards().items() if card == address]
        with self._writing:
            is_unhealthy = self._watch.clear({address, *functions})
            if address in self._cordons:
                rest = {other: cordon for other, cordon in self._cordons.items() if other != address}
                self._replace(rest, "clear", address)
            elif is_unhealthy:
                self.withhold()
            else:
                raise UsageError(
                    f"{address} is neither cordoned nor unhealthy; `plimsoll devices list` shows what is."
                )

    def withhold(self) -> None:
        """Tell the book which of the units that it offers now are withheld."""
        cordoned = self._units(self.addresses)
        self._register.under_lock(lambda book: book.units.cordon(cordoned))

    def idle(self, units: Units, cordoned: Cordoned) -> Usages:
        """{provider uuid: {class: number}} of the cordoned units among `units` that no consumer has."""
        return self._register.under_lock(lambda book: book.units.idle_cordoned(units, cordoned))

    def devices(self) -> tuple[OfferedDevice, ...]:
        """All devices, by provider and class, in the order in which they are given.

        Of a virtual function that can be a vGPU of several sizes in several places, the vGPU that a consumer
        has is shown, or the function alone.
        """
        host, offered, owners = self._register.under_lock(
            lambda book: (book.host, book.offered, book.units.owners())
        )
        cards, unhealthy = self._journal.devices(), self.unhealthy()
        found = []
        for provider in sorted(host.tree, key=lambda provider: provider.name):
            classes, card = offered.get(provider.uuid, {}), cards.get(provider.uuid, "").removeprefix("pci:")
            shown = {name: units for name, units in sorted(classes.items()) if name != CPUS}
            for unit, name in _without_places(shown, card, owners):
                address = address_of(unit)
                found.append(
                    OfferedDevice(
                        unit,
                        name,
                        provider.name,
                        owners.get((name, unit)),
                        self._cordons.get(unit) or self._cordons.get(address) or self._cordons.get(card),
                        unhealthy.get(address) or unhealthy.get(card),
                    )
                )
        return tuple(found)

    def _cards(self) -> dict[str, str]:
        """{exact unit, or its function: PCI address of its card} of what is offered or claimed."""
        offered, claimed = self._register.under_lock(
            lambda book: (book.offered, [claim.units for claim in book.claims.values()])
        )
        cards = self._journal.devices()
        return {
            address_of(unit): cards[uuid].removeprefix("pci:")
            for units in (offered, *claimed)
            for uuid, classes in units.items()
            if cards.get(uuid, "").startswith("pci:")
            for exact in classes.values()
            for unit in exact
        }

    def _replace(self, cordons: Mapping[str, Cordon], event: str, detail: str) -> None:
        """The caller has the lock `_writing`."""
        self._journal.remember_cordons(cordons, event, detail)
        self._cordons = cordons
        self.withhold()

    def _units(self, addresses: Collection[str]) -> Cordoned:
        offered = self._register.under_lock(lambda book: book.offered)
        return device_health.cordoned_units(offered, self._journal.devices(), addresses)


def _without_places(
    classes: Mapping[str, tuple[str, ...]], card: str, owners: Mapping[tuple[str, str], str]
) -> Iterator[tuple[str, str]]:
    """(unit, class) of all units; of a function's places only the one in use, or the function once."""
    places = {
        (unit, name): address_of(unit)
        for name, units in classes.items()
        for unit in units
        if address_of(unit) not in (unit, card)
    }
    in_use = {place: function for place, function in places.items() if place[::-1] in owners}
    yield from in_use
    sizes = ", ".join(dict.fromkeys(name for _, name in places))
    yield from ((function, sizes) for function in sorted({*places.values()} - {*in_use.values()}))
    for name, units in classes.items():
        yield from ((unit, name) for unit in units if (unit, name) not in places)
