"""Strategies for requests that read: lists, single things, usages, and above all allocation candidates."""

from __future__ import annotations

from urllib.parse import quote

from hypothesis import strategies as st

from .exchange import Request
from .vocabulary import (
    CLASSES,
    LATEST,
    TRAITS,
    aggregates,
    classes,
    consumers,
    minors,
    rarely,
    traits,
)
from .world import World, some_class, some_provider
from .writes import a_request

_BELOW_PROVIDER = ("", "/inventories", "/usages", "/allocations", "/aggregates", "/traits")
_JUNK_TEXT = st.sampled_from(
    ("", "x", "in:", "!", "VCPU", "VCPU:0", "VCPU:1,", "0", "-1", "isolate,none", ",")
)


@st.composite
def single_reads(draw: st.DrawFn, world: World) -> Request:
    """GET of one thing: a provider and what hangs on it, a consumer, a trait, a class."""
    uuid = draw(some_provider(world))
    path = draw(
        st.sampled_from(
            (
                *(f"/resource_providers/{uuid}{below}" for below in _BELOW_PROVIDER),
                f"/resource_providers/{uuid}/inventories/{draw(some_class(world, uuid))}",
                f"/allocations/{draw(consumers)}",
                f"/traits/{draw(traits)}",
                f"/resource_classes/{draw(classes)}",
                "/",
            )
        )
    )
    return draw(a_request("GET", path))


@st.composite
def list_reads(draw: st.DrawFn, world: World) -> Request:
    """GET of lists with their filters."""
    kind = draw(st.sampled_from(("providers", "providers", "traits", "classes", "usages")))
    if kind == "classes":
        return draw(a_request("GET", "/resource_classes", low=2))
    if kind == "traits":
        query = draw(
            st.sampled_from(("", "?name=startswith:CUSTOM_", "?name=in:CUSTOM_T0,HW_NUMA_ROOT", "?name=x"))
        )
        if draw(st.booleans()):
            query += ("&" if query else "?") + "associated=" + draw(st.sampled_from(("true", "false", "x")))
        return draw(a_request("GET", "/traits" + query, low=6))
    if kind == "usages":
        query = "?project_id=" + draw(st.sampled_from(("p1", "p2", "p3")))
        if draw(st.booleans()):
            query += "&user_id=" + draw(st.sampled_from(("u1", "u3")))
        if draw(rarely(3)):
            query += "&consumer_type=" + draw(st.sampled_from(("INSTANCE", "all", "unknown", "x", "NONE")))
        return draw(a_request("GET", "/usages" + query, low=9))
    return draw(provider_lists(world))


@st.composite
def provider_lists(draw: st.DrawFn, world: World) -> Request:
    """GET /resource_providers with any of its filters."""
    filters = {
        "name": st.sampled_from(("host0", "host1", "none")),
        "uuid": some_provider(world),
        "in_tree": some_provider(world),
        "resources": resource_texts(world),
        "required": trait_texts(),
        "member_of": aggregate_texts(),
    }
    chosen = draw(st.lists(st.sampled_from(sorted(filters)), max_size=3))
    pairs = [(key, draw(_JUNK_TEXT if draw(rarely(20)) else filters[key])) for key in chosen]
    low = max(
        [{"in_tree": 14, "resources": 4, "required": 18, "member_of": 3}.get(key, 0) for key in chosen] + [0]
    )
    return draw(a_request("GET", "/resource_providers" + _query(pairs), low=low))


def _query(pairs: list[tuple[str, str]]) -> str:
    return "?" + "&".join(f"{key}={quote(value, safe=',:!')}" for key, value in pairs) if pairs else ""


@st.composite
def resource_texts(draw: st.DrawFn, world: World) -> str:
    """`VCPU:1,DISK_GB:2`, mostly of classes that are there, rarely of an unknown one."""
    there = world.classes()
    some = st.sampled_from(there if there and not draw(rarely(10)) else CLASSES)
    names = draw(st.lists(some, min_size=1, max_size=3 if draw(rarely(4)) else 1, unique=True))
    if draw(rarely(40)):
        names.append("CUSTOM_UNKNOWN")
    return ",".join(f"{name}:{draw(st.sampled_from((1, 1, 1, 1, 2, 3)))}" for name in names)


@st.composite
def trait_texts(draw: st.DrawFn) -> str:
    """`A,!B` or `in:A,B`."""
    names = draw(st.lists(st.sampled_from(TRAITS), min_size=1, max_size=2, unique=True))
    if draw(rarely(40)):
        names.append("CUSTOM_UNKNOWN")
    if draw(rarely(5)):
        return "in:" + ",".join(names)
    return ",".join(("!" if draw(rarely(3)) else "") + name for name in names)


@st.composite
def aggregate_texts(draw: st.DrawFn) -> str:
    """`A`, `in:A,B`, `!A` or `!in:A,B`."""
    prefix = "!" if draw(rarely(4)) else ""
    if draw(rarely(3)):
        return prefix + "in:" + ",".join(draw(st.lists(aggregates, min_size=1, max_size=2)))
    return prefix + draw(aggregates)


@st.composite
def candidate_reads(draw: st.DrawFn, world: World) -> Request:
    """GET /allocation_candidates: groups of every kind, mostly well-formed for the microversion."""
    minor = draw(minors)
    if minor < 10 and not draw(rarely(8)):
        minor = LATEST
    suffixes = draw(_suffixes(minor))
    pairs = []
    for suffix in suffixes:
        pairs += draw(_group(world, suffix, minor))
    granular = [suffix for suffix in suffixes if suffix]
    if minor >= 25 and (len(granular) > 1 or draw(rarely(4))) and not draw(rarely(25)):
        pairs.append(("group_policy", draw(st.sampled_from(("none", "isolate")))))
    if minor >= 16 and draw(rarely(4)):
        pairs.append(("limit", str(draw(st.integers(1, 6)))))
    if minor >= 35 and draw(rarely(6)):
        pairs.append(("root_required", draw(trait_texts())))
    if minor >= 36 and granular and draw(rarely(3)):
        pairs += draw(_subtrees(granular))
    if draw(rarely(25)):
        pairs.append((draw(st.sampled_from(("resources", "limit", "same_subtree", "x"))), draw(_JUNK_TEXT)))
    return Request("GET", "/allocation_candidates" + _query(pairs), None, f"1.{minor}")


@st.composite
def _suffixes(draw: st.DrawFn, minor: int) -> list[str]:
    if minor < 25 and not draw(rarely(20)):
        return [""]
    pool = ("1", "2", "3") if minor < 33 else ("1", "_A", "_B-c")
    return draw(st.lists(st.sampled_from(("", *pool)), min_size=1, max_size=3, unique=True))


@st.composite
def _group(draw: st.DrawFn, world: World, suffix: str, minor: int) -> list[tuple[str, str]]:
    pairs = []
    resourceless = suffix and minor >= 36 and draw(rarely(4))
    if not resourceless and not draw(rarely(40)):
        pairs.append(("resources" + suffix, draw(resource_texts(world))))
    if resourceless or (minor >= 17 and draw(rarely(5))):
        pairs.append(("required" + suffix, draw(trait_texts())))
        if draw(rarely(6)):
            pairs.append(("required" + suffix, draw(trait_texts())))
    if minor >= 21 and draw(rarely(8)):
        pairs.append(("member_of" + suffix, draw(aggregate_texts())))
        if draw(rarely(4)):
            pairs.append(("member_of" + suffix, draw(aggregate_texts())))
    if minor >= 31 and draw(rarely(10)):
        pairs.append(("in_tree" + suffix, draw(some_provider(world))))
    return pairs


@st.composite
def _subtrees(draw: st.DrawFn, granular: list[str]) -> list[tuple[str, str]]:
    some = st.lists(st.sampled_from(granular), min_size=1, max_size=3, unique=True)
    times = 2 if draw(rarely(5)) else 1
    return [("same_subtree", ",".join(granular if draw(st.booleans()) else draw(some))) for _ in range(times)]
