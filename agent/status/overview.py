"""The host at one moment, from the agent's memory alone. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from agent.audit.finding import Finding
from agent.claims.claim import Claim
from agent.driver import Guest
from agent.moves.circumstances import Circumstances
from agent.moves.consumer_names import consumer_names
from agent.moves.states import Move
from agent.providers.device_health import DeviceHealth
from agent.shapes import Allocations, Units, Usages
from agent.status.condition import Fault
from agent.tree import ProviderTree


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """One check; `reason` is a sentence if it failed."""

    name: str
    ok: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Health:
    """The checks. If one of `live` failed, restart the agent; if one of `ready` failed, claim elsewhere."""

    state: str
    live: tuple[HealthCheck, ...]
    ready: tuple[HealthCheck, ...]


@dataclass(frozen=True)
class Overview:
    """The host as the agent knows it. Times are seconds since 1970; `status` is that of `Operations.status`.

    `used` {provider uuid: {class: amount}} counts all consumers, as of the last pass and the claims since.
    `unclaimed`, of the same form, is what guests use beyond what is held and claimed for them.
    `offered` has the exact units that the driver offers. `others` is {consumer without a claim: its
    allocations}. `moves` has those under way and those that ended recently, oldest first. `pending` counts
    the writes that wait for Placement or for a guest to leave. `reshape_pending` is the reason why a due
    reshape was not done. `next_try_at` is when the agent tries again after a fault. `since` is the time of
    the agent's last change of state. `seen` is what the host sees beside the records of its moves.
    `unhealthy` {address: health} are the devices that are not well.
    """

    at: float
    status: Mapping[str, Any]
    health: Health
    since: float
    fault: Fault | None = None
    passed_at: float | None = None
    audited_at: float | None = None
    next_try_at: float | None = None
    tree: ProviderTree = field(default_factory=ProviderTree)
    used: Usages = field(default_factory=dict)
    offered: Units = field(default_factory=dict)
    guests: tuple[Guest, ...] = ()
    claims: Mapping[str, Claim] = field(default_factory=dict)
    others: Mapping[str, Allocations] = field(default_factory=dict)
    moves: tuple[Move, ...] = ()
    findings: tuple[Finding, ...] = ()
    pending: int = 0
    reshape_pending: str | None = None
    unclaimed: Usages = field(default_factory=dict)
    seen: Circumstances = field(default_factory=Circumstances)
    unhealthy: Mapping[str, DeviceHealth] = field(default_factory=dict)

    @property
    def instances(self) -> tuple[tuple[Guest | None, Claim | None], ...]:
        """Guests and their claims, in the order of uuids; one of the two may be None."""
        guests = {guest.uuid: guest for guest in self.guests}
        return tuple((guests.get(uuid), self.claims.get(uuid)) for uuid in sorted({*guests, *self.claims}))

    @property
    def under_way(self) -> tuple[Move, ...]:
        """The moves that have not ended."""
        return tuple(move for move in self.moves if not move.ended)

    def name_of(self, consumer: str) -> str:
        """The name of the consumer's guest, of its claim, or of its migration's instance; "" if unknown."""
        return self._names.get(consumer, "")

    @cached_property
    def guest_by_uuid(self) -> Mapping[str, Guest]:
        """{uuid: guest}."""
        return {guest.uuid: guest for guest in self.guests}

    @cached_property
    def _names(self) -> Mapping[str, str]:
        return consumer_names(self.guests, self.claims.values(), self.moves)
