"""The health of the host's devices as the looks at them say; what a restart must not forget is journaled."""

import threading
from collections.abc import Collection, Iterable, Mapping

from agent.codec import encode
from agent.driver import DeviceSigns
from agent.providers.device_health import DeviceHealth, cleared, look
from agent.state.journal import Journal


class DeviceWatch:
    """Judges each look. Any thread may call."""

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
                address: look(
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
                address: cleared(known)
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
            self._journal.remember_device_health(lasting, _changes(before, after))
        self._known = after


def _lasting(known: Mapping[str, DeviceHealth]) -> tuple[DeviceHealth, ...]:
    """What a restart must not forget, by address."""
    return tuple(
        known[address] for address in sorted(known) if known[address].is_withheld or known[address].excused
    )


def _withheld(known: Mapping[str, DeviceHealth]) -> frozenset[str]:
    return frozenset(address for address, health in known.items() if health.is_withheld)


def _changes(before: Mapping[str, DeviceHealth], after: Mapping[str, DeviceHealth]) -> str:
    """Clauses on each device that is withheld now and was not, or the other way round."""
    was, now = _withheld(before), _withheld(after)
    return "; ".join(
        [
            *(f"{address} unhealthy: {after[address].reason}" for address in sorted(now - was)),
            *(f"{address} offered again" for address in sorted(was - now)),
        ]
    )
