"""What an audit finds, as values: a finding, its evidence, and the steps of its repair. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from agent.claims.request import ClaimRequest
from agent.shapes import Allocations


@dataclass(frozen=True, slots=True)
class Holding:
    """What a consumer holds in placement, or shall hold; `generation` None: placement does not have it."""

    consumer: str
    allocations: Allocations
    generation: int | None = None
    project_id: str = "plimsoll"
    user_id: str = "plimsoll"
    consumer_type: str = "INSTANCE"


OURS = ("plimsoll", "plimsoll")
"""The project and the user under which the agent writes where nobody told it others."""


class FindingKind(StrEnum):
    UNCLAIMED_INSTANCE = "unclaimed instance"
    ORPHANED_ALLOCATION = "orphaned allocation"
    AMOUNTS_DIFFER = "amounts differ"
    WRONG_PROVIDER = "wrong provider"
    DOUBLED = "doubled"
    STALE_MIGRATION = "stale migration"
    LEAKED_CLAIM = "leaked claim"
    STUCK_CONSUMER = "stuck consumer"
    UNKNOWN_DEVICE = "unknown device"
    SHRUNK_INVENTORY = "shrunk inventory"


# What a repair is made of


@dataclass(frozen=True, slots=True)
class WriteAllocations:
    """Make the consumer hold just this; refused by placement if its generation is another by then."""

    write: Holding

    def __str__(self) -> str:
        guard = "while it holds nothing" if self.write.generation is None else f"at {self.write.generation}"
        if not self.write.allocations:
            return f"delete the allocations of {self.write.consumer} ({guard})"
        told = "; ".join(
            f"{uuid}: {', '.join(f'{name}={amount}' for name, amount in sorted(amounts.items()))}"
            for uuid, amounts in sorted(self.write.allocations.items())
        )
        return f"write the allocations of {self.write.consumer} ({guard}): {told}"


@dataclass(frozen=True, slots=True)
class TakeClaim:
    """Claim for the guest what its allocation holds."""

    request: ClaimRequest

    def __str__(self) -> str:
        return f"claim for {self.request.consumer} what its allocation holds"


@dataclass(frozen=True, slots=True)
class DropClaim:
    consumer: str

    def __str__(self) -> str:
        return f"release the claim of {self.consumer}"


@dataclass(frozen=True, slots=True)
class Deliver:
    consumer: str

    def __str__(self) -> str:
        return f"finish or undo what is open for {self.consumer}"


@dataclass(frozen=True, slots=True)
class EndMove:
    migration: str

    def __str__(self) -> str:
        return f"confirm the migration {self.migration}"


Repair = WriteAllocations | TakeClaim | DropClaim | Deliver | EndMove


@dataclass(frozen=True, slots=True)
class Finding:
    """`subject` is a consumer, a provider or a device; `evidence` is JSON-ready; `own`: provably ours.

    Without a repair it can only be reported: `reason` says what to do.
    """

    kind: FindingKind
    subject: str
    reason: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    own: bool = False
    repair: tuple[Repair, ...] = ()
