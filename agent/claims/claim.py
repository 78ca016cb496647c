"""What a claim is once it was chosen: values that the tracker keeps and the journal writes. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from agent.claims.numa.cell_fit import PlacedCell
from agent.claims.parse_request import ClaimRequest
from agent.shapes import Allocations, Makings, Units


class ClaimState(StrEnum):
    """CLAIMING: chosen and journaled, not known to be in placement. RELEASING: to be taken out of it."""

    CLAIMING = "claiming"
    CLAIMED = "claimed"
    RELEASING = "releasing"


class ClaimStep(StrEnum):
    """What can happen to a claim; also the name of the event in the journal's history."""

    BEGIN = "begin"
    """Chosen and reserved, the intent is journaled; nothing was sent to placement yet."""
    GRANT = "grant"
    """Placement holds exactly what was chosen."""
    ADOPT = "adopt"
    """Placement held an allocation of somebody else's for the consumer, and it covers the request."""
    REFUSE = "refuse"
    """Placement holds nothing of this claim."""
    RELEASE = "release"
    """It is to be taken out of placement, now or when placement answers again."""
    GONE = "gone"
    """Placement holds nothing of it any more."""
    KEEP = "keep"
    """The consumer lives on another host, and its part of this one may be a migration's: nothing is freed."""
    FOUND = "found"
    """Its guest holds what was not known when it was claimed (units, disks): that is the claim's now."""
    LEFT = "left"
    """The consumer lives on another host, and nobody holds its part of this one any more."""


CLAIM_TRANSITIONS: Mapping[tuple[ClaimState | None, ClaimStep], ClaimState | None] = {
    (None, ClaimStep.BEGIN): ClaimState.CLAIMING,
    (None, ClaimStep.ADOPT): ClaimState.CLAIMED,
    (ClaimState.CLAIMING, ClaimStep.BEGIN): ClaimState.CLAIMING,  # chosen anew: somebody else was faster
    (ClaimState.CLAIMING, ClaimStep.GRANT): ClaimState.CLAIMED,
    (ClaimState.CLAIMING, ClaimStep.ADOPT): ClaimState.CLAIMED,
    (ClaimState.CLAIMING, ClaimStep.REFUSE): None,
    (ClaimState.CLAIMING, ClaimStep.KEEP): ClaimState.CLAIMED,
    (ClaimState.CLAIMING, ClaimStep.RELEASE): ClaimState.RELEASING,
    (ClaimState.CLAIMED, ClaimStep.RELEASE): ClaimState.RELEASING,
    (ClaimState.CLAIMED, ClaimStep.FOUND): ClaimState.CLAIMED,
    (ClaimState.CLAIMED, ClaimStep.LEFT): None,
    (ClaimState.RELEASING, ClaimStep.RELEASE): ClaimState.RELEASING,
    (ClaimState.RELEASING, ClaimStep.KEEP): ClaimState.CLAIMED,
    (ClaimState.RELEASING, ClaimStep.GONE): None,
}
"""The whole life of a claim; None is no claim. What is not in it does not happen.

After a crash CLAIMING is finished if its guest is there and refused otherwise, RELEASING is delivered; both
also while the agent runs, when placement did not say what became of a request.
"""


@dataclass(frozen=True, slots=True)
class Claim:
    """One consumer's claim on this host. `since` is seconds since the epoch, UTC.

    `adopted`: somebody else wrote the allocation; the agent gave it its devices. `cells` is the guest's
    topology as it was chosen, empty for a guest that floats; the CPUs in it are among `units`. `makings`
    tells of those units that were not there when they were chosen what is to be made for them.
    """

    consumer: str
    state: ClaimState
    request: ClaimRequest
    allocations: Allocations
    units: Units = field(default_factory=dict)
    since: float = 0.0
    adopted: bool = False
    cells: tuple[PlacedCell, ...] = ()
    makings: Makings = field(default_factory=dict)

    @property
    def exact(self) -> Iterator[tuple[str, str, str]]:
        """(provider uuid, class, unit) of each of its units."""
        for uuid, classes in self.units.items():
            for name, units in classes.items():
                for unit in units:
                    yield uuid, name, unit


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Why a provider cannot give: `free` is what it could still give of `resource_class`.

    `reason` is a clause: "only 3 of 16 are free", "lacks trait HW_CPU_X86_AVX2", "max_unit is 4".
    """

    resource_class: str
    asked: int
    free: int
    provider: str
    provider_uuid: str
    reason: str


@dataclass(frozen=True, slots=True)
class Fit:
    """What a claim would do: `allocations`, `units` and guest's `cells` if it fits, `shortfalls` if not."""

    fits: bool
    allocations: Allocations
    units: Units
    shortfalls: tuple[Shortfall, ...]
    cells: tuple[PlacedCell, ...] = ()
    makings: Makings = field(default_factory=dict)


def fit_of_claim(claim: Claim) -> Fit:
    """What the claim has, as the answer to its request."""
    return Fit(True, claim.allocations, claim.units, (), claim.cells, claim.makings)
