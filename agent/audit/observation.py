"""What one audit pass reads: the guests, the claims and moves, and Placement's allocations. Pure.

The audit compares these three sources. A difference between them is a finding (`agent.audit.findings`).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from agent.claims.claim import Claim
from agent.claims.fit import ProviderIndex
from agent.driver import Guest
from agent.moves.states import Move
from agent.shapes import Allocations, Held, Units, Usages


@dataclass(frozen=True, slots=True)
class Observation:
    """The state of one host, as the driver, the agent and Placement show it at about the same time.

    `guests`: {consumer uuid: guest}, from the driver. `claims`: {consumer uuid: claim} and `moves`, from the
    agent. `holders`: {provider uuid: {consumer uuid: {class: amount}}}, from Placement, for the providers of
    this host's own tree. `devices`: {device: provider uuid}. `offered`: the exact units of the driver.
    """

    host: ProviderIndex
    guests: Mapping[str, Guest]
    claims: Mapping[str, Claim]
    moves: Collection[Move]
    holders: Held
    devices: Mapping[str, str] = field(default_factory=dict)
    offered: Units = field(default_factory=dict)

    def allocations_here(self, consumer: str) -> Allocations:
        """The consumer's allocations on this host's own providers, as Placement lists them by provider."""
        return {uuid: on_it[consumer] for uuid, on_it in self.holders.items() if consumer in on_it}

    def own_part(self, allocations: Allocations) -> Allocations:
        """The part of these allocations that is on this host's own providers."""
        return {uuid: amounts for uuid, amounts in allocations.items() if amounts and self.host.is_own(uuid)}

    @property
    def consumers(self) -> frozenset[str]:
        """The consumers with an allocation on this host's own providers."""
        return frozenset(consumer for on_it in self.holders.values() for consumer in on_it)

    @property
    def consumers_in_moves(self) -> frozenset[str]:
        """The instances and migrations of moves that have not ended."""
        return frozenset(
            consumer for move in self.moves if not move.ended for consumer in (move.instance, move.migration)
        )

    @property
    def used(self) -> Usages:
        """{provider uuid: {class: amount}}: each consumer's allocations here, else those of its claim."""
        used: dict[str, dict[str, int]] = {}
        for consumer in self.consumers | self.claims.keys():
            claim = self.claims.get(consumer)
            allocations = self.allocations_here(consumer) or (claim.allocations if claim else {})
            for uuid, amounts in allocations.items():
                total = used.setdefault(uuid, {})
                for name, amount in amounts.items():
                    total[name] = total.get(name, 0) + amount
        return used
