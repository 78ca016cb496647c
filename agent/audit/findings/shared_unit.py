"""An exact unit that two instances have."""

from collections.abc import Iterator

from agent.audit.finding import Finding, FindingKind, TableRow
from agent.audit.observation import Observation
from agent.claims.used import IDLE


class SharedUnit(FindingKind):
    """A device, a virtual function or a dedicated CPU that several rows claim or use."""

    name = "shared unit"
    rows = (
        TableRow(
            "Two instances have the same exact unit: both claim it, both use it, or one claims it and the "
            "definition of the other's guest names it.",
            "None: take the unit from one of the guests, or release one of the claims.",
            "no",
        ),
    )

    def judge_host(self, observation: Observation) -> Iterator[Finding]:
        """A finding for each unit with several owners, of which one claims it or runs with it."""
        claimed: dict[tuple[str, str], set[str]] = {}
        used: dict[tuple[str, str], set[str]] = {}
        named: dict[tuple[str, str], set[str]] = {}
        for instance, row in observation.rows().items():
            for claim in row.claimed.values():
                for _, name, unit in claim.exact:
                    claimed.setdefault((name, unit), set()).add(instance)
            for used_unit in row.guest.units if row.guest else ():
                key = used_unit.resource_class, used_unit.unit
                column = named if row.guest is None or row.guest.state in IDLE else used
                column.setdefault(key, set()).add(instance)
        for key in sorted(claimed.keys() | used.keys()):
            columns = {"claimed": claimed, "used": used, "named": named}
            owners = {title: sorted(column.get(key, ())) for title, column in columns.items()}
            instances = sorted({instance for who in owners.values() for instance in who})
            if len(instances) > 1:
                yield Finding(
                    self.name,
                    key[1],
                    f"{', '.join(instances)} have the same {key[0]} {key[1]}: take it from one of the "
                    "guests, or release one of the claims.",
                    {"class": key[0], **owners},
                )
