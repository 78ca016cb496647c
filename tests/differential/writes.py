"""Strategies for requests that write: providers and what hangs on them, names, allocations, reshapes."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from .exchange import Request
from .vocabulary import (
    CONSUMERS,
    CUSTOM_CLASSES,
    CUSTOM_TRAITS,
    LATEST,
    PROVIDERS,
    aggregate_sets,
    consumers,
    inventories,
    inventory_sets,
    minors,
    names,
    perhaps_broken,
    providers,
    rarely,
    resources,
    trait_sets,
    traits,
)
from .world import World, some_class, some_provider

_CREATABLE_CLASSES = st.sampled_from((*CUSTOM_CLASSES, "VCPU", "CUSTOM_lower", "CUSTOM_", "X"))
_CREATABLE_TRAITS = st.sampled_from((*CUSTOM_TRAITS, "HW_NUMA_ROOT", "CUSTOM_lower", "CUSTOM_", "X"))


@st.composite
def a_request(
    draw: st.DrawFn, method: str, path: str, body: Any = None, low: int = 0, newest: bool = False
) -> Request:
    """A request at a random microversion, rarely below the one the route was born at."""
    minor = LATEST if newest else draw(minors)
    if minor < low and not draw(rarely(8)):
        minor = low
    if body is not None:
        body = draw(perhaps_broken(body))
    return Request(method, path, body, f"1.{minor}")


@st.composite
def provider_writes(draw: st.DrawFn, world: World) -> Request:
    """Create, rename, re-parent or delete a provider."""
    method = draw(st.sampled_from(("POST", "PUT", "PUT", "DELETE")))
    uuid = draw(providers if method == "POST" else some_provider(world))
    body: dict[str, Any] = {"name": draw(names)}
    if draw(st.booleans()):
        body["parent_provider_uuid"] = draw(st.one_of(st.none(), some_provider(world)))
    if method == "POST":
        body["uuid"] = draw(st.sampled_from((uuid, uuid, uuid.replace("-", ""), uuid.upper())))
        request = draw(a_request(method, "/resource_providers", body, low=14 if len(body) > 2 else 0))
        if isinstance(request.body, dict):
            # Without one, each side would choose its own.
            request.body.setdefault("uuid", uuid)
        return request
    if method == "DELETE":
        return draw(a_request(method, f"/resource_providers/{uuid}"))
    return draw(a_request(method, f"/resource_providers/{uuid}", body, low=14 if len(body) > 1 else 0))


@st.composite
def generations(draw: st.DrawFn, world: World, provider: str) -> int:
    """The provider's generation, rarely another."""
    return world.generation(provider) + (draw(st.sampled_from((-1, 1))) if draw(rarely(15)) else 0)


@st.composite
def inventory_writes(draw: st.DrawFn, world: World) -> Request:
    """Every write below `/resource_providers/{uuid}/inventories`."""
    uuid = draw(some_provider(world))
    name = draw(some_class(world, uuid))
    base = f"/resource_providers/{uuid}/inventories"
    record: dict[str, Any] = draw(inventories())
    generation = draw(generations(world, uuid))
    kind = draw(st.sampled_from(("replace", "replace", "add", "set", "drop", "clear")))
    if kind == "replace":
        body = {"resource_provider_generation": generation, "inventories": draw(inventory_sets)}
        return draw(a_request("PUT", base, body))
    if kind == "add":
        return draw(a_request("POST", base, {"resource_class": name} | record))
    if kind == "set":
        return draw(a_request("PUT", f"{base}/{name}", {"resource_provider_generation": generation} | record))
    return draw(
        a_request("DELETE", base if kind == "clear" else f"{base}/{name}", low=5 if kind == "clear" else 0)
    )


@st.composite
def label_writes(draw: st.DrawFn, world: World) -> Request:
    """Traits and aggregates of a provider."""
    uuid = draw(some_provider(world))
    generation = draw(generations(world, uuid))
    kind = draw(st.sampled_from(("traits", "traits", "aggregates", "aggregates", "clear")))
    if kind == "clear":
        return draw(a_request("DELETE", f"/resource_providers/{uuid}/traits", low=6))
    if kind == "traits":
        held = draw(st.one_of(trait_sets, st.lists(traits, max_size=2)))
        body: Any = {"resource_provider_generation": generation, "traits": held}
        return draw(a_request("PUT", f"/resource_providers/{uuid}/traits", body, low=6))
    request = draw(a_request("PUT", f"/resource_providers/{uuid}/aggregates", low=1))
    body = draw(aggregate_sets)
    if int(str(request.microversion).split(".")[1]) >= 19:
        body = {"resource_provider_generation": generation, "aggregates": body}
    return Request("PUT", request.path, draw(perhaps_broken(body)), request.microversion)


@st.composite
def name_writes(draw: st.DrawFn, world: World) -> Request:
    """Custom resource classes and traits."""
    if draw(st.booleans()):
        path = f"/traits/{draw(_CREATABLE_TRAITS)}"
        return draw(a_request(draw(st.sampled_from(("PUT", "PUT", "DELETE"))), path, low=6))
    name = draw(_CREATABLE_CLASSES)
    method = draw(st.sampled_from(("POST", "PUT", "PUT", "DELETE")))
    if method == "POST":
        return draw(a_request(method, "/resource_classes", {"name": name}, low=2))
    body = {"name": draw(_CREATABLE_CLASSES)} if method == "PUT" and draw(rarely(3)) else None
    return draw(a_request(method, f"/resource_classes/{name}", body, low=2))


@st.composite
def allotments(draw: st.DrawFn, world: World) -> dict[str, dict[str, int]]:
    """`{provider: {class: amount}}`, mostly of inventory that is there."""
    chosen = {}
    for uuid in draw(st.lists(some_provider(world), min_size=1, max_size=3, unique=True)):
        held = sorted(world.inventories(uuid))
        if held and not draw(rarely(10)):
            names_ = draw(st.lists(st.sampled_from(held), min_size=1, max_size=2, unique=True))
            chosen[uuid] = {name: draw(st.sampled_from((1, 1, 2, 3, 4, 6))) for name in names_}
        elif draw(rarely(3)):
            chosen[uuid] = draw(resources)
    return chosen


@st.composite
def claims(draw: st.DrawFn, world: World, consumer: str, minor: int) -> dict[str, Any]:
    """The body of an allocation write of one consumer as the microversion wants it."""
    chosen = draw(allotments(world)) if not draw(rarely(8)) else {}
    body: dict[str, Any] = {}
    if minor >= 12:
        body["allocations"] = {uuid: {"resources": amounts} for uuid, amounts in chosen.items()}
    else:
        body["allocations"] = [
            {"resource_provider": {"uuid": uuid}, "resources": amounts} for uuid, amounts in chosen.items()
        ]
    return body | draw(ownership(world, consumer, minor))


@st.composite
def ownership(draw: st.DrawFn, world: World, consumer: str, minor: int) -> dict[str, Any]:
    """Project, user, type and generation of a consumer, as far as the microversion knows them."""
    owner: dict[str, Any] = {}
    if minor >= 8:
        owner = {
            "project_id": draw(st.sampled_from(("p1", "p2"))),
            "user_id": draw(st.sampled_from(("u1", "u2"))),
        }
    if minor >= 28:
        owner["consumer_generation"] = world.consumer(consumer).get("consumer_generation")
        if draw(rarely(15)):
            owner["consumer_generation"] = draw(st.sampled_from((None, 0, 1, 2)))
    if minor >= 34 and draw(rarely(6)):
        owner["mappings"] = {"": [PROVIDERS[0]]}
    if minor >= 38:
        owner["consumer_type"] = draw(st.sampled_from(("INSTANCE", "MIGRATION")))
    return owner


@st.composite
def allocation_writes(draw: st.DrawFn, world: World) -> Request:
    """PUT and DELETE of one consumer, POST of several (claims, swaps, releases)."""
    uuid = draw(consumers)
    minor = draw(minors)
    kind = draw(st.sampled_from(("put", "put", "put", "post", "swap", "delete")))
    if kind == "delete":
        return Request("DELETE", f"/allocations/{uuid}", None, f"1.{minor}")
    if kind == "put":
        body = draw(perhaps_broken(draw(claims(world, uuid, minor))))
        return Request("PUT", f"/allocations/{uuid}", body, f"1.{minor}")
    minor = max(minor, 13)
    body = draw(swaps(world, minor)) if kind == "swap" else draw(several_claims(world, minor))
    return Request("POST", "/allocations", draw(perhaps_broken(body)), f"1.{minor}")


@st.composite
def several_claims(draw: st.DrawFn, world: World, minor: int) -> dict[str, Any]:
    """`{consumer: claim}` for one to three consumers."""
    chosen = draw(st.lists(consumers, min_size=1, max_size=3, unique=True))
    return {uuid: draw(claims(world, uuid, minor)) for uuid in chosen}


@st.composite
def swaps(draw: st.DrawFn, world: World, minor: int) -> dict[str, Any]:
    """What one consumer holds goes to another, in one request."""
    giver, taker = draw(st.lists(consumers, min_size=2, max_size=2, unique=True))
    held = {
        uuid: {"resources": entry["resources"]}
        for uuid, entry in world.consumer(giver).get("allocations", {}).items()
    }
    return {
        taker: {"allocations": held} | draw(ownership(world, taker, minor)),
        giver: {"allocations": {}} | draw(ownership(world, giver, minor)),
    }


@st.composite
def reshapes(draw: st.DrawFn, world: World) -> Request:
    """Move what consumers hold on one provider to another, with the inventory; sometimes carelessly."""
    source, target = draw(some_provider(world)), draw(some_provider(world))
    minor = max(30, draw(minors))
    moved = sorted(world.inventories(source))
    moved = draw(st.lists(st.sampled_from(moved), max_size=2, unique=True)) if moved else []
    after: dict[str, dict[str, Any]] = {source: world.inventories(source), target: world.inventories(target)}
    for name in moved:
        after[target][name] = after[source].pop(name)
    allocations = {}
    for uuid in CONSUMERS:
        allocations.update(_reshaped(world, uuid, source, target, moved))
    body = {
        "inventories": {
            uuid: {"resource_provider_generation": draw(generations(world, uuid)), "inventories": records}
            for uuid, records in after.items()
        },
        "allocations": {
            uuid: held | draw(ownership(world, uuid, minor)) for uuid, held in allocations.items()
        },
    }
    if draw(rarely(8)):
        body["allocations"] |= draw(several_claims(world, minor))
    return Request("POST", "/reshaper", draw(perhaps_broken(body)), f"1.{minor}")


def _reshaped(world: World, consumer: str, source: str, target: str, moved: list[str]) -> dict[str, Any]:
    held = {
        uuid: dict(entry["resources"])
        for uuid, entry in world.consumer(consumer).get("allocations", {}).items()
    }
    going = {name: held[source].pop(name) for name in moved if name in held.get(source, {})}
    if not going:
        return {}
    into = held.setdefault(target, {})
    for name, amount in going.items():
        into[name] = into.get(name, 0) + amount
    return {consumer: {"allocations": {uuid: {"resources": left} for uuid, left in held.items() if left}}}
