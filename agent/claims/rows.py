"""A row of the book: what Placement, the journal and the driver say of one instance, as columns. Pure.

An instance and the migration of its move under way are one row: before, during and after the move they need
no more than the larger of what either column says of both together.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.claims.claim import Claim, ClaimState
from agent.driver import Guest, UsedUnit
from agent.shapes import Allocations, Units, Usages, beyond, largest, total

Doubted = Mapping[str, Allocations]
"""{consumer: allocations} that a write to Placement gives them if it is executed; its outcome is unknown."""


@dataclass(frozen=True, slots=True)
class Use:
    """What a guest uses on this host's providers.

    `amounts` are empty for a guest that does not run, and `units` are all that its definition names. `stray`
    are those of its units that no provider of this host offers.
    """

    amounts: Allocations = field(default_factory=dict)
    units: Units = field(default_factory=dict)
    stray: tuple[UsedUnit, ...] = ()


NOT_USED = Use()


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the book.

    `held` {consumer: allocations} is what Placement holds on the providers that serve this host, as it was
    last read or as the agent last wrote it. `claimed` {consumer: claim} is what the journal says. The
    consumers of both are the instance and the migration. `guest` is the instance's guest as the driver
    reports it, and `used` what it uses. `doubted` are the writes whose outcome is unknown.
    """

    instance: str
    held: Mapping[str, Allocations] = field(default_factory=dict)
    claimed: Mapping[str, Claim] = field(default_factory=dict)
    guest: Guest | None = None
    used: Use = NOT_USED
    doubted: tuple[Doubted, ...] = ()

    @property
    def consumers(self) -> frozenset[str]:
        """The consumers that Placement, the journal or a write in doubt names."""
        return frozenset((*self.held, *self.claimed, *(who for write in self.doubted for who in write)))

    @property
    def is_empty(self) -> bool:
        """Whether no column says anything."""
        return not (self.held or self.claimed or self.guest or self.doubted)

    @property
    def has(self) -> Usages:
        """{provider: {class: amount}}: the larger of what is held and what is claimed."""
        return largest((self.held_amounts, self.claimed_amounts))

    @property
    def held_amounts(self) -> Usages:
        """What Placement holds for all consumers of the row together."""
        return total(self.held.values())

    @property
    def claimed_amounts(self) -> Usages:
        """The allocations of all claims of the row together."""
        return total(claim.allocations for claim in self.claimed.values())

    @property
    def needed(self) -> Usages:
        """The larger of what is claimed and what the guest uses, whether Placement holds it or not."""
        return largest((self.claimed_amounts, self.used.amounts))

    @property
    def need(self) -> Usages:
        """{provider: {class: amount}} that must be given to no other row: the largest of all columns."""
        columns = [self.held_amounts, self.claimed_amounts, self.used.amounts]
        if self.doubted:
            consumers = {*self.held, *(who for write in self.doubted for who in write)}
            columns.append(
                total(
                    largest((self.held.get(who, {}), *(write[who] for write in self.doubted if who in write)))
                    for who in consumers
                )
            )
        return largest(columns)

    @property
    def unclaimed(self) -> Usages:
        """What the guest uses beyond what is held, and beyond what is claimed and is not being released.

        A guest that stays after its instance left has a claim until it is gone; Placement holds nothing then.
        """
        if not self.used.amounts:
            return {}
        staying = (
            claim.allocations for claim in self.claimed.values() if claim.state is not ClaimState.RELEASING
        )
        return beyond(self.used.amounts, largest((self.held_amounts, total(staying))))

    @property
    def unheld(self) -> Usages:
        """What no scheduler may be offered although Placement does not hold it: max(claimed, used) - held.

        A claim counts from its grant on, as its own write must fit beside the reservation. One that is being
        released counts as long as its guest is here, running or not.
        """
        standing = total(
            claim.allocations
            for claim in self.claimed.values()
            if claim.state is ClaimState.CLAIMED
            or (claim.state is ClaimState.RELEASING and self.guest is not None)
        )
        if not (standing or self.used.amounts):
            return {}
        return beyond(largest((standing, self.used.amounts)), self.held_amounts)

    # `dataclasses.replace` takes several times as long, and each claim changes its row three times.

    def with_held(self, held: Mapping[str, Allocations]) -> "Row":
        """The row with this held column."""
        return Row(self.instance, held, self.claimed, self.guest, self.used, self.doubted)

    def with_claimed(self, claimed: Mapping[str, Claim]) -> "Row":
        """The row with this claimed column."""
        return Row(self.instance, self.held, claimed, self.guest, self.used, self.doubted)

    def without(self, consumer: str) -> "Row":
        """The row without what one of its consumers has; the guest belongs to the instance."""
        of_guest = (None, NOT_USED) if consumer == self.instance else (self.guest, self.used)
        return Row(
            self.instance,
            {who: allocations for who, allocations in self.held.items() if who != consumer},
            {who: claim for who, claim in self.claimed.items() if who != consumer},
            *of_guest,
            tuple({who: what for who, what in write.items() if who != consumer} for write in self.doubted),
        )
