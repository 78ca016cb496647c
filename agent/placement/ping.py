"""Whether a placement is there and will do: where, as whom, which versions, how fast, and what is missing."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from agent.errors import PlacementError
from agent.placement.client import LEAST_MICROVERSION, PlacementClient
from agent.placement.transport import Transport

TIMES = 5
FORBIDDEN = 403
INTERNAL_ERROR = 500
_NICE_TO_HAVE = {
    "1.37": "providers cannot be moved under another parent",
    "1.38": "an instance and a migration cannot be told apart by the consumer's type",
}
_RIGHTS = {
    "/allocations": "claim (POST /allocations): the agent needs the role service or admin there",
    "/reshaper": "reshape (POST /reshaper): the agent needs the role service there",
}
USAGES = (
    "GET /usages of a project breaks there, as OpenStack Placement does on PostgreSQL from microversion 1.38 "
    "on: the agent never asks that, and what counts quotas should ask in 1.37"
)


@runtime_checkable
class LocatedTransport(Protocol):
    """A transport that can say where it leads, and as whom it asks."""

    def where(self) -> str: ...

    def who(self) -> str: ...


@dataclass(frozen=True, slots=True)
class PingReport:
    """`spoken` is the microversion that the agent would use; `lacking`: what it can do without, in sentences.

    Times are milliseconds, of TIMES requests of the versions.
    """

    where: str
    who: str
    lowest: str
    highest: str
    spoken: str
    best_ms: float
    median_ms: float
    lacking: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "where": self.where,
            "who": self.who,
            "microversions": {"lowest": self.lowest, "highest": self.highest, "spoken": self.spoken},
            "round_trip_ms": {"best": self.best_ms, "median": self.median_ms},
            "lacking": list(self.lacking),
        }


def ping(transport: Transport, place: str, *, timer: Callable[[], float] = time.perf_counter) -> PingReport:
    """Ask the placement that the transport leads to; `place` names one that has no address. Writes nothing.

    Raises PlacementUnavailable where nobody answers, PlacementError where the agent is not let in, or the
    service is older than LEAST_MICROVERSION.
    """
    client = PlacementClient(transport)
    where, who = (
        (transport.where(), transport.who()) if isinstance(transport, LocatedTransport) else (place, "itself")
    )
    took = []
    for _ in range(TIMES):
        started = timer()
        lowest, highest = client.versions()
        took.append((timer() - started) * 1000)
    client.find_provider(name="")  # any question settles the microversion, and whether the agent is let in
    lacking = [
        f"microversion {version}: {loss}"
        for version, loss in _NICE_TO_HAVE.items()
        if not client.speaks(version)
    ]
    if _usages_break(transport, client.microversion):
        lacking.append(USAGES)
    lacking += [right for path, right in _RIGHTS.items() if not _may(transport, path)]
    return PingReport(
        where,
        who,
        lowest,
        highest,
        client.microversion,
        round(min(took), 3),
        round(statistics.median(took), 3),
        tuple(lacking),
    )


def _usages_break(transport: Transport, microversion: str) -> bool:
    reply = transport.request("GET", "/usages?project_id=plimsoll", microversion=microversion)
    return reply.status == INTERNAL_ERROR


def _may(transport: Transport, path: str) -> bool:
    """An empty body is refused as well, but only after the right to send one was checked."""
    reply = transport.request("POST", path, {}, microversion=LEAST_MICROVERSION)
    if 200 <= reply.status < 300:
        raise PlacementError(
            f"Placement took an empty body for POST {path}, which none should: check what answers there.",
            status=reply.status,
        )
    return reply.status != FORBIDDEN
