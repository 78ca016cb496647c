"""A claim, its states and steps, and the result of a fit, as values; and their JSON, checked when it is
read. Pure.

A claim is one allocation, which the groups of its request share out. The assignment follows from the
request and from what was given: each suffixed group is served by one provider that has its traits, and
together the groups use up the allocation. Which exact units each group got is kept with the claim
(`GroupUnits`), so that equal groups keep theirs when a reshape moves them. `map_groups` tells it as the
`mappings` of Placement.

A `Restriction` is what a consumer must get in a fit, because the domain of its guest names it.

While a step is on its way to the disk, the disk may refuse it, or not answer. So the book counts all that is
there before or after it (`claims_until_durable`): it gives a unit that the step frees to no other consumer
before the step is on disk, and one that the step takes to no other consumer from the start.

Source: https://docs.openstack.org/api-ref/placement/#list-allocation-candidates (mappings).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Annotated, Any

from agent.claims.guest_cells import PlacedCell
from agent.claims.parse_request import read_request, request_to_json
from agent.claims.request import DEVICE_PREFIX, ClaimRequest, RequestGroup
from agent.codec import Form
from agent.driver import UsedMemory
from agent.json_checks import read_uid
from agent.shapes import Allocations, Amounts, Makings, Units, Uuid, add_units, beyond, by_class, total
from agent.tree import Provider, ProviderTree

STEPS_MAX = 10_000

GroupUnits = Mapping[str, Mapping[str, tuple[str, ...]]]
"""{suffix: {resource class: exact units}}: what each group got when the claim was made"""


@dataclass(frozen=True, slots=True)
class GroupMapping:
    """What one request group got.

    `label` is what people call the group: its suffix, or the name of the PCI alias that it comes from.
    `allocations` are {provider uuid: {class: amount}}, `units` the exact units of those.
    """

    suffix: str
    label: str
    allocations: Allocations
    units: Units = field(default_factory=dict)


def map_groups(
    request: ClaimRequest,
    allocations: Allocations,
    units: Units,
    tree: ProviderTree,
    dealt: GroupUnits | None = None,
) -> tuple[GroupMapping, ...]:
    """The mapping of each group, in the order of the suffixes; the unsuffixed group has the rest.

    The rest includes what the request does not name, such as huge pages and withheld CPUs. `dealt` are the
    units that the groups got before, and keep, also where their provider has lost a trait since. A provider
    that the tree does not have may serve any group. Empty where the allocation is less than the request, or
    where no assignment was found within STEPS_MAX steps.
    """
    suffixed = sorted((group for group in request.groups if group.suffix), key=lambda group: group.suffix)
    keeps = {suffix: _names(by) for suffix, by in (dealt or {}).items()}
    search = _Search(suffixed, allocations, tree, units, keeps)
    if not search.run(0):
        return ()
    rest = {uuid: {name: n for name, n in left.items() if n} for uuid, left in search.left.items()}
    left = by_class(rest.values())
    if any(left.get(name, 0) < amount for name, amount in request.unsuffixed.resources.items()):
        return ()
    given = [(group.suffix, {uuid: dict(group.resources)}) for group, uuid in search.assigned()]
    if any(rest.values()):
        given.insert(0, ("", {uuid: amounts for uuid, amounts in rest.items() if amounts}))
    # {suffix of a device group: the alias that it comes from}
    aliases = [name for name, count in request.pci for _ in range(count)]
    labels = {f"{DEVICE_PREFIX}{number}": name for number, name in enumerate(aliases)}
    dealer = _Dealer(units, keeps)
    # The unsuffixed group takes what the others leave, so its units are dealt last.
    shares = {
        suffix: dealer.deal(suffix, part) for suffix, part in sorted(given, key=lambda item: item[0] == "")
    }
    return tuple(
        GroupMapping(suffix, labels.get(suffix, suffix), part, shares[suffix]) for suffix, part in given
    )


def units_of_groups(mappings: Iterable[GroupMapping]) -> GroupUnits:
    """The exact units of each suffixed group that has some, to be kept with the claim."""
    kept: dict[str, dict[str, tuple[str, ...]]] = {}
    for mapping in mappings:
        for classes in mapping.units.values() if mapping.suffix else ():
            for name, exact in classes.items():
                kept.setdefault(mapping.suffix, {})[name] = exact
    return kept


def _names(by_class: Mapping[str, tuple[str, ...]]) -> frozenset[str]:
    """The units without their classes, which a reshape may rename."""
    return frozenset(unit for exact in by_class.values() for unit in exact)


class _Search:
    """Assigns each group to a provider, depth first."""

    def __init__(
        self,
        groups: Sequence[RequestGroup],
        allocations: Allocations,
        tree: ProviderTree,
        units: Units,
        keeps: Mapping[str, frozenset[str]],
    ) -> None:
        self._groups = groups
        self._tree = tree
        self._units_on = {uuid: _names(by) for uuid, by in units.items()}
        self._keeps = keeps
        self._chosen: list[str] = []
        self._steps = 0
        self.left = {uuid: dict(amounts) for uuid, amounts in allocations.items()}

    def run(self, depth: int) -> bool:
        """Whether the groups from `depth` on can be assigned; then `left` is what no group uses."""
        if depth == len(self._groups):
            return True
        group = self._groups[depth]
        for uuid in self._options(group):
            self._steps += 1
            if self._steps > STEPS_MAX:
                return False
            self._take(uuid, group.resources, -1)
            self._chosen.append(uuid)
            if self.run(depth + 1):
                return True
            self._chosen.pop()
            self._take(uuid, group.resources, 1)
        return False

    def assigned(self) -> Iterator[tuple[RequestGroup, str]]:
        """(group, provider uuid) after a successful `run`; without the groups that ask for no resources."""
        for group, uuid in zip(self._groups, self._chosen, strict=True):
            if group.resources:
                yield group, uuid

    def _options(self, group: RequestGroup) -> list[str]:
        if not group.resources:
            return [""]
        kept = self._keeps.get(group.suffix, frozenset()) & frozenset().union(*self._units_on.values())
        return [
            uuid
            for uuid, left in self.left.items()
            if kept <= self._units_on.get(uuid, frozenset())
            and all(left.get(name, 0) >= amount for name, amount in group.resources.items())
            and (kept or _serves(self._tree.get(uuid), group))
        ]

    def _take(self, uuid: str, resources: Amounts, sign: int) -> None:
        for name, amount in resources.items():
            self.left[uuid][name] += sign * amount


def _serves(provider: Provider | None, group: RequestGroup) -> bool:
    if provider is None:
        return True
    return (
        all(any_of & provider.traits for any_of in group.required)
        and not group.forbidden & provider.traits
        and all(any_of & provider.aggregates for any_of in group.member_of)
    )


class _Dealer:
    """Deals the exact units of a claim out to its groups: first those that a group keeps."""

    def __init__(self, units: Units, keeps: Mapping[str, frozenset[str]]) -> None:
        self._keeps = keeps
        self._left = {uuid: {name: list(exact) for name, exact in by.items()} for uuid, by in units.items()}

    def deal(self, suffix: str, allocations: Allocations) -> Units:
        """The units of the group for these amounts."""
        kept = self._keeps.get(suffix, frozenset())
        others = frozenset().union(*(units for other, units in self._keeps.items() if other != suffix))
        dealt: dict[str, dict[str, tuple[str, ...]]] = {}
        for uuid, amounts in allocations.items():
            for name, amount in amounts.items():
                left = self._left.get(uuid, {}).get(name)
                if left:
                    left.sort(key=lambda unit: (unit not in kept, unit in others))
                    dealt.setdefault(uuid, {})[name] = tuple(left[:amount])
                    del left[:amount]
        return dealt


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
    Or it had no name, and has one now.
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

After a crash the agent finishes a CLAIMING claim if its guest exists and Placement takes the claim, and
refuses it otherwise; it delivers a RELEASING claim. It does the same while it runs, after Placement did not
answer a request.
"""


@dataclass(frozen=True, slots=True)
class Maker:
    """Who asked for a claim: the user, and the program by the name that it gave itself, "" without one."""

    uid: Annotated[int, read_uid]
    program: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """One consumer's claim on this host. `since`: when it was made or adopted, in seconds since 1970 (UTC); a
    move makes a new claim.

    `adopted`: another service wrote the allocation, and the agent chose the exact units. `cells` is the
    guest's chosen NUMA topology, empty for a guest without cells; its CPUs are among `units`. `makings` says
    how to make those of the `units` that did not exist when they were chosen, `group_units` which of them
    each suffixed group of the request got. `maker` is None where the agent claimed by itself.
    """

    consumer: Uuid
    state: ClaimState
    request: Annotated[ClaimRequest, Form(request_to_json, lambda value, _: read_request(value))]
    allocations: Allocations
    units: Units = field(default_factory=dict)
    since: float = 0.0
    adopted: bool = False
    cells: tuple[PlacedCell, ...] = ()
    makings: Makings = field(default_factory=dict)
    group_units: GroupUnits = field(default_factory=dict)
    maker: Maker | None = None

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
    """Why a provider cannot serve a request; `agent.claims.refusal` says who makes them.

    `asked` and `free` are amounts of `resource_class`; it is empty where the reason concerns no class.
    `reason` is a clause: "only 3 of 16 are free", "lacks trait HW_CPU_X86_AVX2", "max_unit is 4". `traits`
    are the ones that it is about, any of which is wanted, or all of which are forbidden. `is_scarce`: other
    consumers have what is missing.
    """

    resource_class: str
    asked: int
    free: int
    provider: str
    provider_uuid: str
    reason: str
    traits: tuple[str, ...] = ()
    is_scarce: bool = field(default=False, compare=False)

    @classmethod
    def at(
        cls,
        provider: Provider | None,
        resource_class: str,
        asked: int,
        free: int,
        reason: str,
        traits: Iterable[str] = (),
        *,
        is_scarce: bool = False,
    ) -> "Shortfall":
        """A shortfall at the provider; None: at no provider."""
        name, uuid = (provider.name, provider.uuid) if provider else ("", "")
        return cls(resource_class, asked, free, name, uuid, reason, tuple(sorted(traits)), is_scarce)

    def to_json(self) -> dict[str, Any]:
        """As the local API has it: without `traits` where the reason concerns none."""
        body = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "is_scarce"}
        traits = body.pop("traits")
        return {**body, "traits": list(traits)} if traits else body


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


def claim_of_fit(
    request: ClaimRequest,
    fit: Fit,
    state: ClaimState = ClaimState.CLAIMING,
    since: float = 0.0,
    *,
    adopted: bool = False,
) -> Claim:
    """The claim that the request becomes by the fit; it is in no journal."""
    return Claim(
        request.consumer,
        state,
        request,
        fit.allocations,
        fit.units,
        since,
        adopted,
        fit.cells,
        fit.makings,
        fit.group_units,
    )


def fit_of_claim(claim: Claim) -> Fit:
    """The claim's resources as the result of its fit."""
    return Fit(True, claim.allocations, claim.units, (), claim.cells, claim.makings, claim.group_units)


@dataclass(frozen=True, slots=True)
class Restriction:
    """What the consumer's later fits must give it.

    `units` are exact units that it must get; of their classes it gets no others, but of those in `others`.
    `bound` {group suffix, or ":CLASS" of the unsuffixed group: provider uuids} restricts its groups to these
    providers, and `dealt` says which of the `units` each suffixed group gets. `pins` {guest CPU: host CPU},
    `emulator` (a host CPU) and `cells` {guest cell: host cell} say where its CPUs, its emulator's threads and
    its cells must be. `memory` is what a guest without cells must have in certain cells of the host or in
    large pages.
    """

    units: Units = field(default_factory=dict)
    others: frozenset[str] = frozenset()
    bound: Mapping[str, frozenset[str]] = field(default_factory=dict)
    dealt: GroupUnits = field(default_factory=dict)
    pins: Mapping[int, int] = field(default_factory=dict)
    cells: Mapping[int, int] = field(default_factory=dict)
    emulator: int | None = None
    memory: tuple[UsedMemory, ...] = ()

    def pin(self, fit: Fit) -> Fit:
        """The fit with each guest CPU on its host CPU, where its cell has that one."""
        if not self.pins:
            return fit
        cells = []
        for cell in fit.cells:
            wanted = {cpu: self.pins.get(cpu, pin) for cpu, pin in cell.pinning.items()}
            is_same = set(wanted.values()) == set(cell.pinning.values())
            cells.append(replace(cell, pinning=wanted) if is_same else cell)
        return replace(fit, cells=tuple(cells))


UNRESTRICTED = Restriction()


def claims_until_durable(before: Collection[Claim], after: Collection[Claim]) -> Mapping[str, Claim]:
    """{consumer: the claim to count} for a step that changes the claims `before` into those `after`.

    Together they have all units of either side, and of each class on each provider the larger amount. What
    one consumer hands to another in the step is counted once.
    """
    if not after:
        return {claim.consumer: claim for claim in before}
    counted = {claim.consumer: claim for claim in after}
    if not before:
        return counted
    if len(before) == len(after) == 1:  # most steps change the state alone
        (one,), (other,) = before, after
        if (one.allocations, one.units, one.cells) == (other.allocations, other.units, other.cells):
            return counted
    kept = {key for claim in after for key in claim.exact}
    left = [cell for claim in after for cell in claim.cells]
    cells = []
    for cell in (cell for claim in before for cell in claim.cells):
        if cell in left:
            left.remove(cell)
        else:
            cells.append(cell)
    freed = frozenset(key for claim in before for key in claim.exact if key not in kept)
    amounts = beyond(*(total(claim.allocations for claim in side) for side in (before, after)))
    if amounts or freed or cells:
        known = {claim.consumer for claim in before}
        keeper = next((claim for claim in after if claim.consumer in known), next(iter(after)))
        units = {uuid: dict(classes) for uuid, classes in keeper.units.items()}
        for uuid, name, unit in sorted(freed):
            add_units(units, uuid, name, unit)
        counted[keeper.consumer] = replace(
            keeper,
            allocations=total((keeper.allocations, amounts)),
            units=units,
            cells=(*keeper.cells, *cells),
        )
    return counted
