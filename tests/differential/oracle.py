"""How an answer of ours is held against the reference, where comparing two bodies is not enough.

Allocation candidates have no order, so with a limit any of them are right. And the reference is wrong in some
ways that show in the candidates, so that it has to be asked otherwise, or its answer has to be completed or
thinned out (see docs/placement-differences.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, urlencode

from .compare import differences, text
from .exchange import Answer, Request, Side

SUMS, LOST, IN_TREE = "candidate-sums", "lost-anchors", "in-tree-of-resourceless-groups"
_PATH = "/allocation_candidates"
_GROUP_KEYS = ("resources", "required", "member_of", "in_tree")
_NO_LIMIT = 10**9

Pairs = list[tuple[str, str]]


class Verdict:
    """What a comparison came to: what is wrong, by its place, and the known differences met on the way."""

    def __init__(self, wrong: dict[str, str]) -> None:
        self.wrong = wrong
        self.known: set[str] = set()


def compared(request: Request, theirs: Answer, ours: Answer, reference: Side, subject: Side) -> Verdict:
    """Compare two answers to `request`; both sides may be asked again."""
    verdict = Verdict(differences(request, theirs, ours))
    if verdict.wrong and request.path.startswith(_PATH + "?") and theirs.status == ours.status == 200:
        verdict.wrong = differences(request, replace(theirs, body=None), replace(ours, body=None))
        _look_again(verdict, request, ours, reference, subject)
    return verdict


def _look_again(verdict: Verdict, request: Request, ours: Answer, reference: Side, subject: Side) -> None:
    """Compare the candidates of `ours` with all that the reference has, without a limit."""
    pairs = parse_qsl(request.path.partition("?")[2], keep_blank_values=True)
    limit = int(dict(reversed(pairs)).get("limit", _NO_LIMIT))
    pairs = [(key, value) for key, value in pairs if key != "limit"]
    if _sums_are_wrong(pairs):
        verdict.known.add(SUMS)
    every = _every_candidate(request, pairs, reference, SUMS in verdict.known)
    if every is None:
        return
    if barred := _barred_by_in_tree(pairs, every, reference):
        verdict.known.add(IN_TREE)
        kept = [one for one in every.body["allocation_requests"] if text(one) not in barred]
        every = replace(every, body=every.body | {"allocation_requests": kept})
    whole = subject.ask(_asked(request, pairs))
    theirs, all_ours, found = _candidates(every), _candidates(whole), _candidates(ours)
    if missing := theirs - all_ours:
        verdict.wrong["not found"] = str(sorted(missing))
    for extra in all_ours - theirs:
        verdict.known.add(LOST)
        if not _lost_by_reference(all_ours.examples[extra], pairs, whole.body["provider_summaries"]):
            verdict.wrong["no candidate"] = extra
    if found - all_ours or found.total() != min(limit, all_ours.total()):
        verdict.wrong["limit"] = f"{found.total()} of {all_ours.total()} with limit {limit}"
    _compare_summaries(verdict, every, ours)


class _Candidates(Counter[str]):
    """Candidates counted by their canonical text, with one example of each."""

    examples: dict[str, Any]


def _candidates(answer: Answer) -> _Candidates:
    requests = answer.body["allocation_requests"]
    counted = _Candidates(text(one) for one in requests)
    counted.examples = {text(one): one for one in requests}
    return counted


def _compare_summaries(verdict: Verdict, theirs: Answer, ours: Answer) -> None:
    known, told = theirs.body["provider_summaries"], ours.body["provider_summaries"]
    for uuid in known.keys() & told.keys():
        if text(known[uuid]) != text(told[uuid]):
            verdict.wrong["summary"] = f"{uuid}: {known[uuid]} != {told[uuid]}"
    used = {uuid for one in ours.body["allocation_requests"] for uuid in _amounts(one)}
    if missing := used - told.keys():
        verdict.wrong["no summary"] = str(sorted(missing))


def _sums_are_wrong(pairs: Pairs) -> bool:
    """Whether the reference would add amounts of one candidate to another.

    It does where the unsuffixed group and a suffixed one ask for one class, and group_policy is not `none`.
    """
    demands = _demands(pairs)
    shared = any(demands.get("", set()) & names for suffix, names in demands.items() if suffix)
    return shared and dict(reversed(pairs)).get("group_policy") != "none"


def _barred_by_in_tree(pairs: Pairs, every: Answer, reference: Side) -> set[str]:
    """Candidates that have a provider of another tree in a group without resources that names its tree.

    The reference does not look at `in_tree` of such a group.
    """
    trees: dict[str, set[str]] = {}
    for key, value in pairs:
        suffix = key.removeprefix("in_tree")
        if key.startswith("in_tree") and suffix and suffix not in _demands(pairs):
            found = reference.ask(Request("GET", f"/resource_providers?in_tree={value}"))
            trees[suffix] = {provider["uuid"] for provider in found.body["resource_providers"]}
    return {
        text(one)
        for one in every.body["allocation_requests"]
        for suffix, tree in trees.items()
        if not tree.issuperset(one["mappings"][suffix])
    }


def _demands(pairs: Pairs) -> dict[str, set[str]]:
    """The resource classes that each group asks for, by suffix."""
    return {
        key.removeprefix("resources"): {part.partition(":")[0] for part in value.split(",")}
        for key, value in pairs
        if key.startswith("resources")
    }


def _has_suffixes(pairs: Pairs) -> bool:
    """Whether the query names any suffixed group."""
    return any(key.startswith(base) and key != base for key, _ in pairs for base in _GROUP_KEYS)


def _lost_by_reference(candidate: Any, pairs: Pairs, summaries: Mapping[str, Any]) -> bool:
    """Whether sharing providers could serve the whole unsuffixed group of the candidate, beside other groups.

    The reference keeps one tree only of those that come to the same choice for that group.
    """
    demands = _demands(pairs)
    shared = {
        name
        for uuid, amounts in _amounts(candidate).items()
        if "MISC_SHARES_VIA_AGGREGATE" in summaries[uuid]["traits"]
        for name in amounts
    }
    return _has_suffixes(pairs) and bool(demands.get("")) and demands[""] <= shared


def _amounts(candidate: Any) -> dict[str, dict[str, int]]:
    allocations = candidate["allocations"]
    if isinstance(allocations, dict):
        return {uuid: entry["resources"] for uuid, entry in allocations.items()}
    return {entry["resource_provider"]["uuid"]: entry["resources"] for entry in allocations}


def _every_candidate(request: Request, pairs: Pairs, reference: Side, wrong_sums: bool) -> Answer | None:
    """All candidates as the reference gives them, or would with right sums; None where it cannot say."""
    if not wrong_sums:
        return reference.ask(_asked(request, pairs))
    isolate = dict(reversed(pairs)).get("group_policy") == "isolate"
    minor = int(str(request.microversion).partition(".")[2])
    pairs = [(key, value) for key, value in pairs if key != "group_policy"] + [("group_policy", "none")]
    if not isolate:
        return reference.ask(_asked(request, pairs))
    if minor < 29:
        return None
    every = reference.ask(_asked(replace(request, microversion=f"1.{max(minor, 34)}"), pairs))
    isolated = [one for one in every.body["allocation_requests"] if _is_isolated(one["mappings"])]
    if minor < 34:
        isolated = [{"allocations": one["allocations"]} for one in isolated]
    return replace(every, body=every.body | {"allocation_requests": isolated})


def _asked(request: Request, pairs: Pairs) -> Request:
    return replace(request, path=f"{_PATH}?{urlencode(pairs)}")


def _is_isolated(mappings: dict[str, Any]) -> bool:
    used = [uuid for suffix, uuids in mappings.items() if suffix for uuid in uuids]
    return len(used) == len(set(used))
