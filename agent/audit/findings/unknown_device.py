"""A guest uses a device that this host does not offer."""

from collections.abc import Iterator

from agent.audit.finding import Finding, FindingKind, TableRow
from agent.audit.observation import Observation
from agent.claims.used import IDLE


class UnknownDevice(FindingKind):
    """A unit that is in use and in no inventory, of a class whose units the driver names."""

    name = "unknown device"
    rows = (
        TableRow(
            "A guest uses a unit that this host does not offer.",
            "None: take the device from the guest, or let the host offer it.",
            "no",
        ),
    )

    def judge_host(self, observation: Observation) -> Iterator[Finding]:
        """A finding for each such unit of each guest that could be read and is not shut off."""
        offered: dict[str, set[str]] = {}
        for classes in observation.offered.values():
            for name, units in classes.items():
                offered.setdefault(name, set()).update(units)
        for guest in observation.guests.values():
            if guest.problem is not None or guest.state in IDLE:
                continue
            for used in guest.units:
                if used.resource_class in offered and used.unit not in offered[used.resource_class]:
                    yield Finding(
                        self.name,
                        used.unit,
                        f"The guest {guest.uuid} uses the {used.resource_class} {used.unit}, which this host "
                        "does not offer.",
                        {"guest": guest.uuid, "class": used.resource_class, "device": used.device},
                    )
