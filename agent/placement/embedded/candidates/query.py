"""The query of `GET /allocation_candidates`, parsed into frozen values.

A query has *request groups*: the unsuffixed one (`resources`, `required`, `member_of`, `in_tree`), whose
classes may come from several providers of a tree, and suffixed ones (`resources_NIC`, `required_NIC`, ...),
each of which takes all of its resources from one provider.

The detail of a refusal is for people; clients use the status and the error code.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from agent.placement.embedded import microversions as mv
from agent.placement.embedded.problems import (
    BAD_REQUEST,
    BAD_VALUE,
    DUPLICATE_KEY,
    MISSING_VALUE,
    RequestRefused,
)
from agent.placement.embedded.query_string import (
    AggregateFilter,
    Query,
    TraitFilter,
    parse_member_of,
    parse_required,
    parse_resources,
)
from agent.placement.embedded.validation import is_loose_uuid

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
_STRING_SUFFIX = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_LIMIT = re.compile(r"[1-9][0-9]*")


class CandidateGroup(NamedTuple):
    """One group. `suffix` is "" for the unsuffixed one; `in_tree` is the uuid of any provider of the tree."""

    suffix: str
    resources: Mapping[str, int]
    traits: TraitFilter = TraitFilter()
    aggregates: AggregateFilter = AggregateFilter()
    in_tree: str | None = None


class CandidateQuery(NamedTuple):
    """The whole query; `groups` are in the order of the query string."""

    groups: tuple[CandidateGroup, ...]
    minor: int
    limit: int | None = None
    isolate: bool = False
    root_traits: TraitFilter = TraitFilter()
    same_subtrees: tuple[frozenset[str], ...] = ()

    def trait_names(self) -> set[str]:
        """All traits that the query mentions."""
        return self.root_traits.names.union(*(group.traits.names for group in self.groups))

    def resource_classes(self) -> set[str]:
        """All resource classes that the query requests."""
        return {name for group in self.groups for name in group.resources}


def parse_query(parameters: Query, minor: int) -> CandidateQuery:
    """Parse the query string as microversion 1.`minor` defines it.

    Raises RequestRefused (400) for all errors but unknown traits and classes, which only the model knows.
    """
    _check_keys(parameters, minor)
    whole = _request_wide(parameters, minor)
    groups = tuple(_group(suffix, parameters, minor) for suffix in _suffixes(parameters))
    _check_groups(groups, whole.same_subtrees, minor)
    if len([group for group in groups if group.suffix]) > 1 and "group_policy" not in parameters:
        raise RequestRefused(
            BAD_REQUEST, "More than one suffixed group needs a group_policy: none or isolate."
        )
    return whole._replace(groups=groups)


def _check_keys(parameters: Query, minor: int) -> None:
    """The checks that precede all others. Of a repeated parameter they see only the last value."""
    last = parameters.as_dict()
    for key in last:
        base, suffix = _split_key(key)
        if minor < _FIRST_MICROVERSION.get(base, minor + 1) or not _suffix_allowed(suffix, minor):
            raise RequestRefused(BAD_REQUEST, f"Unknown query parameter {key!r} at microversion 1.{minor}.")
    if minor < mv.GRANULAR_GROUPS and "resources" not in last:
        raise RequestRefused(BAD_REQUEST, "The query parameter 'resources' is required.")
    _limit(last.get("limit", "1"))
    if last.get("group_policy", "none") not in ("none", "isolate"):
        raise RequestRefused(BAD_REQUEST, f"group_policy is none or isolate, not {last['group_policy']!r}.")


def _split_key(key: str) -> tuple[str, str]:
    """`resources_A` -> `("resources", "_A")`; other parameters have no suffix."""
    for base in _GROUP_KEYS:
        if key.startswith(base):
            return base, key[len(base) :]
    return key, ""


def _suffix_allowed(suffix: str, minor: int) -> bool:
    if not suffix:
        return True
    pattern = _STRING_SUFFIX if minor >= mv.STRING_SUFFIXES else _NUMBER_SUFFIX
    return minor >= mv.GRANULAR_GROUPS and pattern.fullmatch(suffix) is not None


def _suffixes(parameters: Query) -> list[str]:
    split = (_split_key(key) for key, _ in parameters.pairs)
    return list(dict.fromkeys(suffix for base, suffix in split if base in _GROUP_KEYS))


def _request_wide(parameters: Query, minor: int) -> CandidateQuery:
    """The parameters of the request as a whole. Of a repeated one the first value counts."""
    limits, policies = parameters.all("limit"), parameters.all("group_policy")
    return CandidateQuery(
        (),
        minor,
        limit=_limit(limits[0]) if limits else None,
        isolate=policies[:1] == ["isolate"],
        root_traits=_root_traits(parameters.all("root_required")),
        same_subtrees=tuple(_subtree(value) for value in parameters.all("same_subtree")),
    )


def _limit(value: str) -> int:
    if not _LIMIT.fullmatch(value):
        raise RequestRefused(BAD_REQUEST, f"limit is a positive number, not {value!r}.")
    # No result is longer than the largest index.
    return min(int(value[:20]), sys.maxsize)


def _root_traits(values: list[str]) -> TraitFilter:
    if len(values) > 1:
        raise RequestRefused(DUPLICATE_KEY, "root_required may be given once only.")
    # The groups alone accept alternatives (in:A,B).
    root = parse_required(values, mv.ANY_TRAITS - 1)
    if both := frozenset().union(*root.required) & root.forbidden:
        raise RequestRefused(BAD_VALUE, f"root_required both demands and forbids {sorted(both)}.")
    return root


def _subtree(value: str) -> frozenset[str]:
    suffixes = frozenset(part.strip() for part in value.split(","))
    if "" in suffixes:
        raise RequestRefused(BAD_VALUE, "same_subtree names suffixed groups only.")
    return suffixes


def _group(suffix: str, parameters: Query, minor: int) -> CandidateGroup:
    # Of a repeated parameter the last value counts, but an invalid value before it is refused too.
    demands = [parse_resources(value) for value in parameters.all("resources" + suffix)]
    trees = [_in_tree(value) for value in parameters.all("in_tree" + suffix)]
    return CandidateGroup(
        suffix,
        demands[-1] if demands else {},
        parse_required(parameters.all("required" + suffix), minor),
        parse_member_of(parameters.all("member_of" + suffix), minor, "member_of" + suffix),
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


def _in_tree(value: str) -> str:
    """The uuid of a provider, unchanged; only its form is checked."""
    value = value.strip()
    if not is_loose_uuid(value):
        raise RequestRefused(BAD_REQUEST, f"in_tree needs a UUID, not {value!r}.")
    return value
