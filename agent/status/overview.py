"""What the agent knows at one moment, from memory alone: nobody is asked to put it together. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from agent.audit.finding import Finding
from agent.claims.claim import Claim
from agent.driver import Guest
from agent.moves.states import Move
from agent.shapes import Allocations, Units, Usages
from agent.status.condition import Fault
from agent.tree import ProviderTree


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """One thing that must be in order; `reason` is a sentence where it is not."""

    name: str
    ok: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Health:
    """`live`: else restart the process. `ready`: else claim elsewhere, and see what is wrong."""

    state: str
    live: tuple[HealthCheck, ...]
    ready: tuple[HealthCheck, ...]


@dataclass(frozen=True)
class Overview:
    """The host as the agent sees it. `at` is seconds since the epoch, `status` as `Operations.status`.

    `used` {provider uuid: {class: amount}} is what is in use by whomever, as of the last pass and our own
    claims since; `offered` are the exact units there are; `others` {consumer without a claim: what it holds}.
    `moves` are those under way and those that ended lately, the oldest first. `pending` counts what waits for
    placement or for a guest to go; `reshape_pending` says why a reshape that is due was not done. `since` is
    when the agent got into its state, `passed_at` and `audited_at` when the last pass and audit were.
    """

    at: float
    status: Mapping[str, Any]
    health: Health
    since: float
    fault: Fault | None = None
    passed_at: float | None = None
    audited_at: float | None = None
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

    @property
    def instances(self) -> tuple[tuple[Guest | None, Claim | None], ...]:
        """Guests and claims side by side, by uuid; one of the two may be missing."""
        guests = {guest.uuid: guest for guest in self.guests}
        return tuple((guests.get(uuid), self.claims.get(uuid)) for uuid in sorted({*guests, *self.claims}))

    @property
    def under_way(self) -> tuple[Move, ...]:
        return tuple(move for move in self.moves if not move.ended)

    def name_of(self, consumer: str) -> str:
        """The name of a guest, of who claimed, or of whose migration it is; "" if none is known."""
        return self._names.get(consumer, "")

    @cached_property
    def guest_by_uuid(self) -> Mapping[str, Guest]:
        return {guest.uuid: guest for guest in self.guests}

    @cached_property
    def _names(self) -> Mapping[str, str]:
        names: dict[str, str] = {}
        for move in self.moves:
            names |= dict.fromkeys((move.instance, move.migration), move.old.request.name)
        names |= {claim.consumer: claim.request.name for claim in self.claims.values()}
        return names | {guest.uuid: guest.name for guest in self.guests}
