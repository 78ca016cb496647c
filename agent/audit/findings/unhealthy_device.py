"""A device that is not well."""

from collections.abc import Iterator

from agent.audit.finding import Finding, FindingKind, TableRow
from agent.audit.observation import Observation


class UnhealthyDevice(FindingKind):
    """A device that has shown a symptom in several looks, or did a short while ago."""

    name = "unhealthy device"
    rows = (
        TableRow(
            "A device is not well, so the agent offers it to no guest. The finding names who has it.",
            "None: mend the device; who has it may have to move away. It is offered again when it is well, "
            "or by `plimsoll devices clear`.",
            "no",
        ),
    )

    def judge_host(self, observation: Observation) -> Iterator[Finding]:
        """A finding for each device that is withheld because of its health."""
        for address, health in observation.unhealthy.items():
            holders = observation.holders_of(address)
            has = f" {', '.join(holders)} {'have' if len(holders) > 1 else 'has'} it." if holders else ""
            yield Finding(
                self.name,
                address,
                f"{health.sentence}{has}",
                {"symptoms": sorted(health.causes), "since": health.since, "consumers": list(holders)},
            )
