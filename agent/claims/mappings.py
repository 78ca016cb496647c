"""Which request group got which provider and which exact units, as the `mappings` of Placement. Pure.

A claim is one allocation, which the groups of its request share out. The assignment follows from the request
and from what was given: each suffixed group is served by one provider that has its traits, and together the
groups use up the allocation. Which exact units each group got is kept with the claim (`GroupUnits`), so that
equal groups keep theirs when a reshape moves them.

Source: https://docs.openstack.org/api-ref/placement/#list-allocation-candidates (mappings).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from agent.claims.request import DEVICE_PREFIX, ClaimRequest, RequestGroup
from agent.shapes import Allocations, Amounts, Units, by_class
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
    unsuffixed = next((group.resources for group in request.groups if not group.suffix), {})
    left = by_class(rest.values())
    if any(left.get(name, 0) < amount for name, amount in unsuffixed.items()):
        return ()
    given = [(group.suffix, {uuid: dict(group.resources)}) for group, uuid in search.assigned()]
    if any(rest.values()):
        given.insert(0, ("", {uuid: amounts for uuid, amounts in rest.items() if amounts}))
    labels = _labels(request)
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


def _labels(request: ClaimRequest) -> Mapping[str, str]:
    """{suffix of a device group: the alias that it comes from}"""
    names = [name for name, count in request.pci for _ in range(count)]
    return {f"{DEVICE_PREFIX}{number}": name for number, name in enumerate(names)}


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
