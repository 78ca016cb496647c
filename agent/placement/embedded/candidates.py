"""Allocation candidates: the ways in which the request groups of a query fit into the trees, found lazily.

A query has *request groups*: the unsuffixed one (`resources`, `required`, `member_of`, `in_tree`), whose
classes may come from several providers of a tree, and suffixed ones (`resources_NIC`, `required_NIC`, ...),
each of which takes all of its resources from one provider. So a query consists of *slots*, each filled by one
provider: a slot for each class of the unsuffixed group, and one for each suffixed group.

The *anchor* of a tree is its root. The providers in reach of a tree are its own and the sharing ones that
have an aggregate in common with one of its own. `SlotDemands` finds all ways to fill the slots of one tree by
the search of agent.placement.slot_search, lazily.

No search holds `model.lock`: it is taken for the time of one tree's view, so that a long question holds no
write up. Trees that are searched one after the other may be of different moments; a candidate is of one.
tests/differential compares the candidates with OpenStack Placement 16. The detail of a refusal is for people;
clients use the status and the error code.

Source: https://docs.openstack.org/api-ref/placement/#allocation-candidates.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from agent.placement.embedded import microversions as mv
from agent.placement.embedded import validation
from agent.placement.embedded.model import SHARING_TRAIT, Model, ProviderRecord
from agent.placement.embedded.problems import (
    BAD_REQUEST,
    BAD_VALUE,
    DUPLICATE_KEY,
    MISSING_VALUE,
    RequestRefused,
)
from agent.placement.slot_search import SlotRules, SlotSearch

_GROUP_KEYS = ("resources", "required", "member_of", "in_tree")

_FIRST_MICROVERSION = {
    "resources": mv.CANDIDATES,
    "limit": mv.CANDIDATES_LIMIT,
    "required": mv.CANDIDATES_REQUIRED,
    "member_of": mv.CANDIDATES_MEMBER_OF,
    "group_policy": mv.GRANULAR_GROUPS,
    "in_tree": mv.CANDIDATES_IN_TREE,
    "root_required": mv.ROOT_REQUIRED,
    "same_subtree": mv.SAME_SUBTREE,
}
_NUMBER_SUFFIX = re.compile(r"[1-9][0-9]*")
_CELL_SUFFIX = re.compile(r"_CELL[0-9]+")
_STRING_SUFFIX = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_LIMIT = re.compile(r"[1-9][0-9]*")


class CandidateGroup(NamedTuple):
    """One group. `suffix` is "" for the unsuffixed one; `in_tree` is the uuid of any provider of the tree."""

    suffix: str
    resources: Mapping[str, int]
    traits: validation.TraitFilter = validation.TraitFilter()
    aggregates: validation.AggregateFilter = validation.AggregateFilter()
    in_tree: str | None = None


class CandidateQuery(NamedTuple):
    """The whole query; `groups` are in the order of the query string.

    `apart` are suffixes of groups that stand for the NUMA cells of a guest: no provider but the root serves
    two of them. Placement's API has no such groups.
    """

    groups: tuple[CandidateGroup, ...]
    minor: int
    limit: int | None = None
    isolate: bool = False
    root_traits: validation.TraitFilter = validation.TraitFilter()
    same_subtrees: tuple[frozenset[str], ...] = ()
    apart: frozenset[str] = frozenset()

    def with_cells_apart(self) -> CandidateQuery:
        """The query whose groups with a suffix as agent.fleet.answer gives cells are cells of a guest."""
        cells = frozenset(group.suffix for group in self.groups if _CELL_SUFFIX.fullmatch(group.suffix))
        return self._replace(apart=cells)

    def trait_names(self) -> set[str]:
        """All traits that the query mentions."""
        return self.root_traits.names.union(*(group.traits.names for group in self.groups))

    @property
    def is_plain(self) -> bool:
        """Whether nothing is asked of several groups, or of all classes of the unsuffixed one, at once."""
        asked = [name for group in self.groups for name in group.resources]
        together = self.isolate or self.same_subtrees or self.apart or self.minor < mv.CANDIDATES_TREES
        of_unsuffixed = any(group.traits.required for group in self.groups if not group.suffix)
        return not together and not of_unsuffixed and len(set(asked)) == len(asked)

    def resource_classes(self) -> set[str]:
        """All resource classes that the query requests."""
        return {name for group in self.groups for name in group.resources}


def parse_query(parameters: validation.Query, minor: int) -> CandidateQuery:
    """Parse the query string as microversion 1.`minor` defines it.

    Raises RequestRefused (400) for all errors but unknown traits and classes, which only the model knows.
    """
    # The checks that precede all others. Of a repeated parameter they see only the last value.
    last = parameters.as_dict()
    for key in last:
        base, suffix = _split_key(key)
        pattern = _STRING_SUFFIX if minor >= mv.STRING_SUFFIXES else _NUMBER_SUFFIX
        may_have_suffix = minor >= mv.GRANULAR_GROUPS and pattern.fullmatch(suffix) is not None
        if minor < _FIRST_MICROVERSION.get(base, minor + 1) or (suffix and not may_have_suffix):
            raise RequestRefused(BAD_REQUEST, f"Unknown query parameter {key!r} at microversion 1.{minor}.")
    if minor < mv.GRANULAR_GROUPS and "resources" not in last:
        raise RequestRefused(BAD_REQUEST, "The query parameter 'resources' is required.")
    _limit(last.get("limit", "1"))
    if last.get("group_policy", "none") not in ("none", "isolate"):
        raise RequestRefused(BAD_REQUEST, f"group_policy is none or isolate, not {last['group_policy']!r}.")
    # Of a repeated parameter of the request as a whole the first value counts.
    limits, policies = parameters.all("limit"), parameters.all("group_policy")
    limit = _limit(limits[0]) if limits else None
    roots = parameters.all("root_required")
    if len(roots) > 1:
        raise RequestRefused(DUPLICATE_KEY, "root_required may be given once only.")
    root = validation.parse_required(
        roots, mv.ANY_TRAITS - 1
    )  # the groups alone accept alternatives (in:A,B)
    if both := frozenset().union(*root.required) & root.forbidden:
        raise RequestRefused(BAD_VALUE, f"root_required both demands and forbids {sorted(both)}.")
    subtrees = tuple(
        frozenset(part.strip() for part in value.split(",")) for value in parameters.all("same_subtree")
    )
    if any("" in suffixes for suffixes in subtrees):
        raise RequestRefused(BAD_VALUE, "same_subtree names suffixed groups only.")
    split = (_split_key(key) for key, _ in parameters.pairs)
    suffixes = dict.fromkeys(suffix for base, suffix in split if base in _GROUP_KEYS)
    groups = tuple(_group(suffix, parameters, minor) for suffix in suffixes)
    _check_groups(groups, subtrees, minor)
    if len([group for group in groups if group.suffix]) > 1 and not policies:
        raise RequestRefused(
            BAD_REQUEST, "More than one suffixed group needs a group_policy: none or isolate."
        )
    return CandidateQuery(groups, minor, limit, policies[:1] == ["isolate"], root, subtrees)


def _split_key(key: str) -> tuple[str, str]:
    """`resources_A` -> `("resources", "_A")`; other parameters have no suffix."""
    for base in _GROUP_KEYS:
        if key.startswith(base):
            return base, key[len(base) :]
    return key, ""


def _limit(value: str) -> int:
    if not _LIMIT.fullmatch(value):
        raise RequestRefused(BAD_REQUEST, f"limit is a positive number, not {value!r}.")
    # No result is longer than the largest index.
    return min(int(value[:20]), sys.maxsize)


def _group(suffix: str, parameters: validation.Query, minor: int) -> CandidateGroup:
    # Of a repeated parameter the last value counts, but an invalid value before it is refused too.
    demands = [validation.parse_resources(value) for value in parameters.all("resources" + suffix)]
    trees = [value.strip() for value in parameters.all("in_tree" + suffix)]  # unchanged but for blanks
    for tree in trees:
        if not validation.is_loose_uuid(tree):
            raise RequestRefused(BAD_REQUEST, f"in_tree needs a UUID, not {tree!r}.")
    return CandidateGroup(
        suffix,
        demands[-1] if demands else {},
        validation.parse_required(parameters.all("required" + suffix), minor),
        validation.parse_member_of(parameters.all("member_of" + suffix), minor, "member_of" + suffix),
        trees[-1] if trees else None,
    )


def _check_groups(groups: Sequence[CandidateGroup], subtrees: Sequence[frozenset[str]], minor: int) -> None:
    resourceless = {group.suffix for group in groups if not group.resources}
    if minor < mv.SAME_SUBTREE:
        if resourceless or not groups:
            raise RequestRefused(BAD_REQUEST, "Every request group needs resources.")
    else:
        if len(resourceless) == len(groups):
            raise RequestRefused(MISSING_VALUE, "At least one group has to ask for resources.")
        named: set[str] = set().union(*subtrees)
        if missing := resourceless - named:
            raise RequestRefused(
                BAD_VALUE, f"same_subtree must name groups without resources: {sorted(missing)}"
            )
        if unknown := named - {group.suffix for group in groups}:
            raise RequestRefused(
                BAD_VALUE, f"same_subtree names groups that are not there: {sorted(unknown)}."
            )
    for group in groups:
        if any(any_of <= group.traits.forbidden for any_of in group.traits.required):
            raise RequestRefused(BAD_REQUEST, f"required{group.suffix} both demands and forbids a trait.")


class TreeView:
    """The providers in reach of a tree (`reachable`), and the records that a question about them needs.

    `providers` has these, the ancestors of the sharing ones, and the providers that the query names.
    """

    def __init__(
        self,
        reachable: list[ProviderRecord],
        providers: Mapping[str, ProviderRecord],
        usages: Mapping[str, Mapping[str, int]],
    ) -> None:
        self.reachable = reachable
        self.providers = providers
        self._usages = usages

    def used(self, uuid: str, resource_class: str) -> int:
        """The sum of the allocations of the resource class on the provider."""
        usage = self._usages.get(uuid)
        return 0 if usage is None else usage.get(resource_class, 0)

    def free(self, provider: ProviderRecord, resource_class: str) -> float:
        """What the provider can still give of the resource class; below 0 where more is used than it has."""
        return provider.inventories[resource_class].capacity - self.used(provider.uuid, resource_class)

    def parent_of(self, uuid: str) -> str | None:
        """The uuid of the provider above this one, None for a root."""
        return self.providers[uuid].parent_uuid

    def usage(self, uuid: str) -> Mapping[str, int]:
        """{resource class: sum of the allocations} of the provider, without zeros."""
        return self._usages.get(uuid, {})


class ProviderReach:
    """The providers that serve each tree: its own, and sharing ones."""

    def __init__(self, model: Model, named: Iterable[str] = ()) -> None:
        """The caller holds `model.lock`; `named` are providers that the query names."""
        self._model = model
        self._named = tuple(named)
        self._sharing: dict[str, list[str]] = {}
        for uuid in model.providers_by_trait.get(SHARING_TRAIT, ()):
            for aggregate in model.providers[uuid].aggregates:
                self._sharing.setdefault(aggregate, []).append(uuid)

    def view(self, root: str) -> TreeView | None:
        """The tree's view; None if there is no such root any more. Takes `model.lock` for that."""
        model = self._model
        with model.lock.reading():
            if root not in model.trees:
                return None
            reachable = model.tree(root)
            providers = {provider.uuid: provider for provider in reachable}
            own = {name for provider in reachable for name in provider.aggregates} if self._sharing else ()
            for aggregate in sorted(self._sharing.keys() & own):
                for uuid in self._sharing[aggregate]:
                    sharing = model.providers.get(uuid)
                    if sharing is None or not sharing.is_sharing or aggregate not in sharing.aggregates:
                        continue
                    if uuid in providers:
                        continue
                    reachable.append(sharing)
                    above: ProviderRecord | None = sharing
                    while above is not None:
                        providers.setdefault(above.uuid, above)
                        above = None if above.parent_uuid is None else model.providers[above.parent_uuid]
            for uuid in self._named:
                if uuid in model.providers:
                    providers.setdefault(uuid, model.providers[uuid])
            usages = {uuid: usage for uuid in providers if (usage := model.usages.get(uuid)) is not None}
        return TreeView(reachable, providers, usages)

    def roots(self, uuid: str) -> list[str]:
        """The roots of the trees that the provider can serve; none if it is gone. Takes `model.lock`."""
        model = self._model
        provider = model.providers.get(uuid)
        if provider is None:
            return []
        roots = [provider.root_uuid]
        if provider.is_sharing:
            with model.lock.reading():
                for aggregate in provider.aggregates:
                    members = model.providers_by_aggregate.get(aggregate, ())
                    roots += [model.providers[member].root_uuid for member in members]
        return roots


class CandidateSlot(NamedTuple):
    """A suffixed group, or one class of the unsuffixed group, and the providers that could fill it alone."""

    group: CandidateGroup
    resources: Mapping[str, int]
    options: list[ProviderRecord]


class SlotDemands:
    """The resources of the query's slots; those of the unsuffixed group come first."""

    def __init__(self, query: CandidateQuery) -> None:
        self._demands: list[tuple[CandidateGroup, Mapping[str, int]]] = []
        for group in sorted(query.groups, key=lambda group: group.suffix != ""):
            single = [{name: amount} for name, amount in group.resources.items()]
            self._demands += [
                (group, resources) for resources in ([group.resources] if group.suffix else single)
            ]
        self._order = list(range(len(self._demands)))
        self._rules = SlotRules(
            [(group.suffix, resources) for group, resources in self._demands],
            required=next((group.traits.required for group, _ in self._demands if not group.suffix), ()),
            isolate=query.isolate,
            cells=query.apart,
            subtrees=query.same_subtrees,
        )
        self._search = SlotSearch if query.minor >= mv.CANDIDATES_TREES else _OneATree

    def slots(self, view: TreeView, most: int | None = None) -> list[CandidateSlot] | None:
        """The slots with their options among the view's providers, None if the tree has no candidate.

        `most`: so many options of each slot are enough.
        What one tree lacks, most others lack too: a slot without options is checked first in the next trees.
        """
        options: list[list[ProviderRecord]] = [[] for _ in self._demands]
        for place, number in enumerate(self._order):
            group, resources = self._demands[number]
            first = next(iter(resources), None)  # most providers of a tree do not have the class
            serving = (
                provider
                for provider in view.reachable
                if (first is None or first in provider.inventories)
                and _serves(view, group, resources, provider)
            )
            options[number] = list(itertools.islice(serving, most))
            if not options[number]:
                self._order.insert(0, self._order.pop(place))
                return None
        if not self._rules.may_be_filled(options, view.free):
            return None
        return [
            CandidateSlot(*demand, serving) for demand, serving in zip(self._demands, options, strict=True)
        ]

    def fill(self, view: TreeView, slots: Iterable[CandidateSlot]) -> Iterator[tuple[ProviderRecord, ...]]:
        """Every way to fill all slots of the view's tree: a provider for each, in their order."""
        options, root = [slot.options for slot in slots], view.reachable[0].root_uuid
        return self._search(self._rules, options, root, view.free, view.parent_of).fill()


def _serves(
    view: TreeView, group: CandidateGroup, resources: Mapping[str, int], provider: ProviderRecord
) -> bool:
    """Whether the provider alone can serve these resources of the group."""
    used = view.usage(provider.uuid)
    for name, amount in resources.items():
        inventory = provider.inventories.get(name)
        if inventory is None or not inventory.admits(amount):
            return False
        if used.get(name, 0) + amount > inventory.capacity:
            return False
    if group.in_tree is not None:
        known = view.providers.get(group.in_tree)
        if known is None or known.root_uuid != provider.root_uuid:
            return False
    if not resources and not group.traits.required and not group.aggregates.required:
        # A group without resources selects providers by trait or aggregate; an exclusion alone selects none.
        return False
    if group.suffix:
        return group.traits.admits(provider.traits) and group.aggregates.admits(provider.aggregates)
    if group.traits.forbidden & provider.traits:
        return False
    # The unsuffixed group's `member_of` is met by the provider's own aggregates or its root's: the aggregates
    # of a root count for all providers of its tree.
    required, forbidden = group.aggregates
    if not required and not forbidden:
        return True
    memberships = (provider.aggregates, view.providers[provider.root_uuid].aggregates)
    return not any(forbidden & aggregates for aggregates in memberships) and any(
        all(any_of & aggregates for any_of in required) for aggregates in memberships
    )


class _OneATree(SlotSearch[ProviderRecord]):
    """As before microversion 1.29: the providers of a candidate that are of one tree are one provider."""

    def admits(self, depth: int, provider: ProviderRecord) -> bool:
        return super().admits(depth, provider) and not any(
            chosen.root_uuid == provider.root_uuid and chosen.uuid != provider.uuid for chosen in self.chosen
        )


class Candidate(NamedTuple):
    """{provider uuid: {class: amount}}, and {suffix of a group: [provider uuid, ...]}."""

    allocations: Mapping[str, Mapping[str, int]]
    mappings: Mapping[str, list[str]]


class FoundCandidate(NamedTuple):
    """A candidate and the view of the tree that it is from."""

    candidate: Candidate
    view: TreeView


def find_candidates(
    model: Model, query: CandidateQuery, *, one_a_tree: bool = False
) -> Iterator[FoundCandidate]:
    """Each candidate once, tree by tree, in the order in which the trees were created.

    `one_a_tree`: of each tree the first alone, also where it is of sharing providers and another tree has it.
    The caller has checked that the classes and traits of the query exist, and does not hold `model.lock`.
    """
    seen: set[tuple[str, ...]] = set()
    with model.lock.reading():
        reach = ProviderReach(model, (group.in_tree for group in query.groups if group.in_tree is not None))
        demands = SlotDemands(query)
        # Sets of providers; each candidate contains at least one provider of each set.
        needs: list[Mapping[str, None]] = []
        for group in query.groups:
            needs += (model.providers_by_class.get(name, {}) for name in group.resources)
            needs += (_union(model.providers_by_trait, any_of) for any_of in group.traits.required)
            if group.suffix:
                needs += (
                    _union(model.providers_by_aggregate, any_of) for any_of in group.aggregates.required
                )
            if group.in_tree is not None:
                known = model.providers.get(group.in_tree)
                needs.append({} if known is None else model.trees[known.root_uuid])
        rarest: Mapping[str, None] = min(needs, key=len)
        starts = tuple(rarest)
    values, is_plain = _SharedValues(), one_a_tree and query.is_plain
    for root in anchors(starts, reach):
        view = reach.view(root)
        if view is None or not query.root_traits.admits(view.providers[root].traits):
            continue
        slots = demands.slots(view, 1 if is_plain else None)
        if slots is None:
            continue
        # Where the slots do not concern each other, the first option of each is the first candidate.
        first = [tuple(slot.options[0] for slot in slots)] if is_plain else None
        for chosen in first or demands.fill(view, slots):
            if not one_a_tree and all(provider.is_sharing for provider in chosen):
                # No provider of the tree itself is used: other trees in reach give the same candidate.
                key = tuple(provider.uuid for provider in chosen)
                if key in seen:
                    continue
                seen.add(key)
            yield FoundCandidate(values.candidate(slots, chosen), view)
            if one_a_tree:
                break


class _SharedValues:
    """Makes candidates. Equal parts of them are one object: there may be very many candidates."""

    def __init__(self) -> None:
        self._amounts: dict[tuple[tuple[str, int], ...], Mapping[str, int]] = {}
        self._uuids: dict[tuple[str, ...], list[str]] = {}

    def candidate(self, slots: Iterable[CandidateSlot], chosen: Iterable[ProviderRecord]) -> Candidate:
        """The candidate in which the chosen providers fill the slots."""
        allocations: dict[str, dict[str, int]] = {}
        mappings: dict[str, tuple[str, ...]] = {}
        for slot, provider in zip(slots, chosen, strict=True):
            uuids = mappings.get(slot.group.suffix, ())
            if provider.uuid not in uuids:
                mappings[slot.group.suffix] = (*uuids, provider.uuid)
            for name, amount in slot.resources.items():
                amounts = allocations.setdefault(provider.uuid, {})
                amounts[name] = amounts.get(name, 0) + amount
        return Candidate(
            {
                uuid: self._amounts.setdefault(tuple(amounts.items()), amounts)
                for uuid, amounts in allocations.items()
            },
            {suffix: self._uuids.setdefault(uuids, list(uuids)) for suffix, uuids in mappings.items()},
        )


def anchors(starts: Iterable[str], reach: ProviderReach) -> Iterator[str]:
    """The roots of the trees that may have a candidate, lazily, each once.

    `starts` are the providers that meet the rarest requirement of the query, so that most trees without a
    candidate are never read.
    """
    seen = set()
    for uuid in starts:
        for root in reach.roots(uuid):
            if root not in seen:
                seen.add(root)
                yield root


def _union(index: Mapping[str, Mapping[str, None]], keys: frozenset[str]) -> Mapping[str, None]:
    entries = [index.get(key, {}) for key in sorted(keys)]
    return entries[0] if len(entries) == 1 else dict.fromkeys(itertools.chain(*entries))
