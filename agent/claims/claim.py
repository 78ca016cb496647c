"""A claim, its states and steps, and the result of a fit, as values. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from agent.claims.mappings import GroupMapping, GroupUnits, map_groups
from agent.claims.numa.cell_fit import PlacedCell
from agent.claims.parse_request import ClaimRequest
from agent.shapes import Allocations, Makings, Units
from agent.tree import Provider, ProviderTree


class ClaimState(StrEnum):
    """The state of a claim.

    CLAIMING: chosen and journaled, and not known to be in Placement. CLAIMED: in Placement. RELEASING:
    journaled for removal from Placement.
    """

    CLAIMING = "claiming"
    CLAIMED = "claimed"
    RELEASING = "releasing"


class ClaimStep(StrEnum):
    """A step in the life of a claim; its value is also the name of the event in the journal's history."""

    BEGIN = "begin"
    """The resources are chosen and reserved, the intent is journaled, and nothing was sent to Placement yet.
    """
    GRANT = "grant"
    """Placement has exactly the chosen allocation."""
    ADOPT = "adopt"
    """Placement already has an allocation for the consumer, written by another service, and it covers the
    request.
    """
    REFUSE = "refuse"
    """Placement has no allocation of this claim."""
    RELEASE = "release"
    """The allocation is to be removed from Placement, now or when Placement answers again."""
    GONE = "gone"
    """Placement has no allocation of it any more."""
    KEEP = "keep"
    """The consumer is on another host, and a migration may have its allocation on this one: nothing is freed.
    """
    FOUND = "found"
    """Its guest uses resources that were unknown at the claim (exact units, disks); the claim now has them.
    """
    REPLACE = "replace"
    """The consumer's domain has changed, and Placement has the allocation that the new one needs."""
    RELOCATE = "relocate"
    """A reshape moved its allocation while another consumer held that; the claim is where it is held now."""
    LEFT = "left"
    """The consumer is on another host, and its allocation on this one is gone."""


CLAIM_TRANSITIONS: Mapping[tuple[ClaimState | None, ClaimStep], ClaimState | None] = {
    (None, ClaimStep.BEGIN): ClaimState.CLAIMING,
    (None, ClaimStep.ADOPT): ClaimState.CLAIMED,
    (ClaimState.CLAIMING, ClaimStep.BEGIN): ClaimState.CLAIMING,  # chosen anew after a conflict
    (ClaimState.CLAIMING, ClaimStep.GRANT): ClaimState.CLAIMED,
    (ClaimState.CLAIMING, ClaimStep.ADOPT): ClaimState.CLAIMED,
    (ClaimState.CLAIMING, ClaimStep.REFUSE): None,
    (ClaimState.CLAIMING, ClaimStep.KEEP): ClaimState.CLAIMED,
    (ClaimState.CLAIMING, ClaimStep.RELEASE): ClaimState.RELEASING,
    (ClaimState.CLAIMED, ClaimStep.RELEASE): ClaimState.RELEASING,
    (ClaimState.CLAIMED, ClaimStep.FOUND): ClaimState.CLAIMED,
    (ClaimState.CLAIMED, ClaimStep.REPLACE): ClaimState.CLAIMED,
    (ClaimState.CLAIMED, ClaimStep.RELOCATE): ClaimState.CLAIMED,
    (ClaimState.CLAIMED, ClaimStep.LEFT): None,
    (ClaimState.RELEASING, ClaimStep.RELEASE): ClaimState.RELEASING,
    (ClaimState.RELEASING, ClaimStep.KEEP): ClaimState.CLAIMED,
    (ClaimState.RELEASING, ClaimStep.GONE): None,
}
"""{(state, step): next state}, all transitions there are; None stands for no claim.

After a crash the agent finishes a CLAIMING claim if its guest exists, and refuses it otherwise; it delivers a
RELEASING claim. It does the same while it runs, after Placement did not answer a request.
"""


@dataclass(frozen=True, slots=True)
class Claim:
    """One consumer's claim on this host. `since`: when it was made or adopted, in seconds since 1970 (UTC); a
    move makes a new claim.

    `adopted`: another service wrote the allocation, and the agent chose the exact units. `cells` is the
    guest's chosen NUMA topology, empty for a guest without cells; its CPUs are among `units`. `makings` says
    how to make those of the `units` that did not exist when they were chosen, `group_units` which of them
    each suffixed group of the request got.
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
    group_units: GroupUnits = field(default_factory=dict)

    def in_state(self, state: ClaimState) -> "Claim":
        """The same claim in that state."""
        return self if self.state is state else replace(self, state=state)

    @property
    def exact(self) -> Iterator[tuple[str, str, str]]:
        """(provider uuid, class, unit) of each exact unit of the claim."""
        for uuid, classes in self.units.items():
            for name, units in classes.items():
                for unit in units:
                    yield uuid, name, unit

    @property
    def replaceable(self) -> frozenset[str]:
        """The units that were to be made, and in place of which the guest may have been given another.

        A unit with a place on its card is none of them: in another place it takes the room of others.
        """
        return frozenset(unit for unit, making in self.makings.items() if "placement" not in making)

    def mappings(self, tree: ProviderTree) -> tuple[GroupMapping, ...]:
        """What each request group got, as `map_groups` says; `tree` are the providers of the claim's host."""
        return map_groups(self.request, self.allocations, self.units, tree, self.group_units)


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Why a provider cannot serve a request.

    `asked` and `free` are amounts of `resource_class`; it is empty where the reason concerns no class.
    `reason` is a clause: "only 3 of 16 are free", "lacks trait HW_CPU_X86_AVX2", "max_unit is 4".
    """

    resource_class: str
    asked: int
    free: int
    provider: str
    provider_uuid: str
    reason: str

    @classmethod
    def at(
        cls, provider: Provider | None, resource_class: str, asked: int, free: int, reason: str
    ) -> "Shortfall":
        """A shortfall at the provider; None: at no provider."""
        name, uuid = (provider.name, provider.uuid) if provider else ("", "")
        return cls(resource_class, asked, free, name, uuid, reason)


@dataclass(frozen=True, slots=True)
class Fit:
    """The result of a fit: `allocations`, `units`, `cells` and `makings` if it fits, else `shortfalls`."""

    fits: bool
    allocations: Allocations
    units: Units
    shortfalls: tuple[Shortfall, ...]
    cells: tuple[PlacedCell, ...] = ()
    makings: Makings = field(default_factory=dict)
    group_units: GroupUnits = field(default_factory=dict)


def claim_of_fit(request: ClaimRequest, fit: Fit) -> Claim:
    """The claim that the request would become by the fit; it is in no journal."""
    return Claim(
        request.consumer,
        ClaimState.CLAIMING,
        request,
        fit.allocations,
        fit.units,
        cells=fit.cells,
        makings=fit.makings,
        group_units=fit.group_units,
    )


def fit_of_claim(claim: Claim) -> Fit:
    """The claim's resources as the result of its fit."""
    return Fit(True, claim.allocations, claim.units, (), claim.cells, claim.makings, claim.group_units)
