"""A finding of the audit, and the steps that its repair is made of. Pure.

Each step is a value; `str` describes it to the operator.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agent.claims.claim import Claim, Restriction, Shortfall
from agent.claims.refusal import amounts_text
from agent.claims.request import ClaimRequest
from agent.placement.client import ConsumerAllocations
from agent.reshape.laws import Relocation
from agent.shapes import Allocations


@dataclass(frozen=True, slots=True)
class WriteAllocations:
    """Replace the consumer's allocations in Placement, which refuses if the generation has changed."""

    write: ConsumerAllocations

    def __str__(self) -> str:
        generation = self.write.generation
        guard = "if it has none" if generation is None else f"if its generation is still {generation}"
        if not self.write.allocations:
            return f"delete the allocations of {self.write.consumer} ({guard})"
        return f"write the allocations of {self.write.consumer} ({guard}): {_text(self.write.allocations)}"


@dataclass(frozen=True, slots=True)
class TakeClaim:
    """Record a claim for the guest, of what its allocation holds, with the units that the guest uses."""

    request: ClaimRequest
    restriction: Restriction

    def __str__(self) -> str:
        return f"record a claim for the allocation of {self.request.consumer}"


@dataclass(frozen=True, slots=True)
class ClaimUse:
    """Claim what a guest without a claim uses, with the units that it has."""

    request: ClaimRequest
    restriction: Restriction

    def __str__(self) -> str:
        return f"claim what the guest {self.request.consumer} uses: {amounts_text(self.request.resources)}"


@dataclass(frozen=True, slots=True)
class RecordUse:
    """Give the claim `before` what its guest uses beyond it, and write that to Placement."""

    before: Claim
    after: Claim

    def __str__(self) -> str:
        return f"claim what the guest {self.after.consumer} uses: {_text(self.after.allocations)}"


@dataclass(frozen=True, slots=True)
class FollowGuests:
    """Give each claim, the first of a pair, what Placement has for it and its guest uses, the second.

    All at once, because they may exchange units; Placement is not written.
    """

    records: tuple[tuple[Claim, Claim], ...]

    def __str__(self) -> str:
        return ", and ".join(
            f"claim what the guest {after.consumer} uses: {_text(after.allocations)}"
            + "".join(f", the {name} {unit}" for _, name, unit in after.exact)
            for _, after in self.records
        )


@dataclass(frozen=True, slots=True)
class DropClaim:
    """Release the consumer's claim."""

    consumer: str

    def __str__(self) -> str:
        return f"release the claim of {self.consumer}"


@dataclass(frozen=True, slots=True)
class Deliver:
    """Finish or undo the consumer's pending operation, as the agent does by itself."""

    consumer: str

    def __str__(self) -> str:
        return f"finish or undo the pending operation of {self.consumer}"


@dataclass(frozen=True, slots=True)
class FollowReshape:
    """Have the consumer's claim follow these relocations of a reshape; Placement is not written."""

    consumer: str
    relocations: tuple[Relocation, ...]

    def __str__(self) -> str:
        return f"record the providers to which a reshape moved the claim of {self.consumer}"


@dataclass(frozen=True, slots=True)
class EndMove:
    """Confirm the move."""

    migration: str

    def __str__(self) -> str:
        return f"confirm the migration {self.migration}"


Repair = (
    DropClaim
    | Deliver
    | EndMove
    | FollowReshape
    | FollowGuests
    | WriteAllocations
    | RecordUse
    | TakeClaim
    | ClaimUse
)


def _text(allocations: Allocations) -> str:
    return "; ".join(
        f"{uuid}: {', '.join(f'{name}={amount}' for name, amount in sorted(amounts.items()))}"
        for uuid, amounts in sorted(allocations.items())
    )


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference between the guests, the claims and Placement.

    `kind` is the stable name of its kind, `subject` the uuid of a consumer or a provider, or a device's unit.
    `evidence` is JSON-ready. `own`: the agent provably caused it, so it may repair it by itself. A finding
    without `repair` is only reported; its `reason` says what the operator can do.
    """

    kind: str
    subject: str
    reason: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    own: bool = False
    repair: tuple[Repair, ...] = ()

    def refused(self, shortfalls: Iterable[Shortfall]) -> "Finding":
        """The finding where its repair would be refused for these reasons: it is only reported."""
        why = "; ".join(dict.fromkeys(f"{each.resource_class}: {each.reason}" for each in shortfalls))
        reason = f"{self.reason.removesuffix('.')}; it does not fit{f' ({why})' if why else ''}."
        return replace(self, reason=reason, own=False, repair=())

    def concerns(self, consumer: str) -> bool:
        """Whether it names the consumer: as its subject, in its reason or evidence, or in its repair.

        A finding about a unit or a provider concerns each instance that has some of it.
        """
        return any(consumer in text for text in (self.subject, self.reason, *map(str, self.repair))) or (
            consumer in str(self.evidence)
        )
