"""What a claim is once it was chosen: values that the tracker keeps and the journal writes. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from agent.request import ClaimRequest

Allocations = Mapping[str, Mapping[str, int]]
"""{provider uuid: {resource class: amount}}"""

Units = Mapping[str, Mapping[str, tuple[str, ...]]]
"""{provider uuid: {resource class: (exact unit, ...)}}, only where the host has exact units."""


class ClaimState(StrEnum):
    """CLAIMING: chosen and journaled, not known to be in placement. RELEASING: to be taken out of it."""

    CLAIMING = "claiming"
    CLAIMED = "claimed"
    RELEASING = "releasing"


@dataclass(frozen=True, slots=True)
class Claim:
    """One consumer's claim on this host. `since` is seconds since the epoch, UTC.

    `adopted`: somebody else wrote the allocation; the agent gave it its devices.
    """

    consumer: str
    state: ClaimState
    request: ClaimRequest
    allocations: Allocations
    units: Units = field(default_factory=dict)
    since: float = 0.0
    adopted: bool = False


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
class Explanation:
    """What a claim would do: `allocations` and `units` if it fits, `shortfalls` if not."""

    fits: bool
    allocations: Allocations
    units: Units
    shortfalls: tuple[Shortfall, ...]
