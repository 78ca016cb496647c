"""Checks whether a Placement service is usable: address, identity, microversions, latency, what it lacks."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from agent.errors import PlacementError
from agent.placement.client import LEAST_MICROVERSION, PlacementClient
from agent.placement.transport import Transport

ROUND_TRIPS = 5
FORBIDDEN = 403
INTERNAL_ERROR = 500
_OPTIONAL_MICROVERSIONS = {
    "1.37": "providers cannot be moved under another parent",
    "1.38": "an instance and a migration cannot be told apart by the consumer's type",
}
_RIGHTS = {
    "/allocations": "claim (POST /allocations): the agent needs the role service or admin there",
    "/reshaper": "reshape (POST /reshaper): the agent needs the role service there",
}
USAGES_DEFECT = (
    "GET /usages of a project fails there, as OpenStack Placement does on PostgreSQL from microversion 1.38 "
    "on: the agent never sends it; a program that counts quotas should send it in 1.37"
)


@runtime_checkable
class LocatedTransport(Protocol):
    """A transport that knows the address that it sends to, and the identity that it sends as."""

    def address(self) -> str:
        """The address of Placement."""
        ...

    def identity(self) -> str:
        """The identity of the agent at that address, in words."""
        ...


@dataclass(frozen=True, slots=True)
class PingReport:
    """The outcome of a ping.

    `used` is the microversion that the agent uses there; `lacking` are the optional features that the service
    or the agent's role there lacks, in sentences. Times are milliseconds, over ROUND_TRIPS requests.
    """

    address: str
    identity: str
    lowest: str
    highest: str
    used: str
    best_ms: float
    median_ms: float
    lacking: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The report as `plimsoll placement ping -o json` prints it."""
        return {
            "where": self.address,
            "who": self.identity,
            "microversions": {"lowest": self.lowest, "highest": self.highest, "spoken": self.used},
            "round_trip_ms": {"best": self.best_ms, "median": self.median_ms},
            "lacking": list(self.lacking),
        }


def ping(
    transport: Transport, fallback_address: str, *, timer: Callable[[], float] = time.perf_counter
) -> PingReport:
    """Query the Placement service of the transport without changing it.

    The report shows `fallback_address` where the transport has no address. `timer` is in seconds.
    Raises PlacementUnavailable where the service does not answer, PlacementError where it rejects the agent's
    credentials or is older than LEAST_MICROVERSION.
    """
    client = PlacementClient(transport)
    address, identity = fallback_address, "itself"
    if isinstance(transport, LocatedTransport):
        address, identity = transport.address(), transport.identity()
    times_ms = []
    for _ in range(ROUND_TRIPS):
        started = timer()
        try:
            lowest, highest = client.versions()
        except PlacementError as error:
            if address not in error.message:
                error.message = f"{address}: {error.message}"
            raise
        times_ms.append((timer() - started) * 1000)
    client.find_provider(name="")  # any authenticated request negotiates the microversion
    lacking = [
        f"microversion {version}: {loss}"
        for version, loss in _OPTIONAL_MICROVERSIONS.items()
        if not client.speaks(version)
    ]
    reply = transport.request("GET", "/usages?project_id=plimsoll", microversion=client.microversion)
    if reply.status == INTERNAL_ERROR:
        lacking.append(USAGES_DEFECT)
    lacking += [right for path, right in _RIGHTS.items() if not _may_post(transport, path)]
    return PingReport(
        address,
        identity,
        lowest,
        highest,
        client.microversion,
        round(min(times_ms), 3),
        round(statistics.median(times_ms), 3),
        tuple(lacking),
    )


def _may_post(transport: Transport, path: str) -> bool:
    """Whether the agent's role may POST to `path`.

    The service rejects an empty body in any case, but it checks the role first.
    """
    reply = transport.request("POST", path, {}, microversion=LEAST_MICROVERSION)
    if 200 <= reply.status < 300:
        raise PlacementError(
            f"Placement accepted an empty body for POST {path}, which no Placement does: check what service "
            "answers at its address.",
            status=reply.status,
        )
    return reply.status != FORBIDDEN
