"""Which hosts of the fleet fit a request, and all of them as far as the request is concerned with them.

This is what `plimsoll where` asks of a core: a place on each host in one answer, or what each host has, so
that the asker can say why it has none. It is no part of Placement's API.
"""

from __future__ import annotations

from typing import Any

from agent.placement.embedded.candidates import CandidateQuery, find_candidates
from agent.placement.embedded.fleet import DISABLED, HostNotes, hosts_of
from agent.placement.embedded.model import SHARING_TRAIT, Model, ProviderRecord


def closed_reason(notes: HostNotes, root: ProviderRecord) -> str:
    """Why the host gets no guests, "" where it does."""
    heard = notes.heard(root.uuid)
    if heard.silent:
        since = "" if heard.age_s is None else f" for {heard.age_s / 60:.0f} min"
        return f"silent{since}: its agent leaves no note"
    note = heard.note or {}
    if note.get("closed"):
        return f"{'drained' if note.get('drains') else 'closed'}: {note['closed']}"
    return f"disabled for schedulers by {DISABLED}" if DISABLED in root.traits else ""


def roots_of(model: Model, uuid: str) -> list[ProviderRecord]:
    """The root above the provider; none where it is gone, or the root is a shared pool."""
    with model.lock.reading():
        provider = model.providers.get(uuid)
        root = None if provider is None else model.providers[provider.root_uuid]
    return [] if root is None or root.is_sharing else [root]


def candidate_hosts(model: Model, query: CandidateQuery, notes: HostNotes) -> list[dict[str, Any]]:
    """The open hosts on which the query has a candidate, each with its first one; `limit` counts hosts.

    `left` is {class: [free, capacity]} of the host's own providers together, beside the candidate.
    """
    hosts = []
    for candidate, view in find_candidates(model, query, one_a_tree=True):
        root = view.providers[view.reachable[0].root_uuid]
        if root.is_sharing or closed_reason(notes, root):
            continue
        left: dict[str, list[int]] = {}
        for provider in view.reachable:
            if provider.root_uuid != root.uuid:
                continue
            used, given = view.usage(provider.uuid), candidate.allocations.get(provider.uuid, {})
            for name, inventory in provider.inventories.items():
                capacity = int(inventory.capacity)
                sums = left.setdefault(name, [0, 0])
                sums[0] += capacity - used.get(name, 0) - given.get(name, 0)
                sums[1] += capacity
        allocations = {
            uuid: {"name": view.providers[uuid].name, "resources": amounts}
            for uuid, amounts in candidate.allocations.items()
        }
        hosts.append({"uuid": root.uuid, "name": root.name, "allocations": allocations, "left": left})
        if len(hosts) == query.limit:
            break
    return hosts


def host_trees(
    model: Model, query: CandidateQuery, notes: HostNotes, *, holders: bool
) -> dict[str, list[Any]]:
    """All hosts, or the one of the query's `in_tree`, as far as the query is concerned with them.

    `trees` has [why the host is closed, provider, ...] for each: the root, and the providers that have an
    aggregate or a class or trait of the query, or all where it has a subtree. `sharing` are the sharing
    providers. A provider is [uuid, name, parent's uuid, {class: [total, reserved, min_unit, max_unit,
    step_size, allocation_ratio, amount in use]}, traits, aggregates, {consumer: {class: amount}}], with the
    classes and traits of the query, and with the consumers if `holders` are asked for.
    """
    classes, traits = query.resource_classes(), query.trait_names()
    within = next((group.in_tree for group in query.groups if group.in_tree), None)

    def row(provider: ProviderRecord) -> list[Any]:
        used = model.usages.get(provider.uuid, {})
        inventories = {
            name: [*inventory[:6], used.get(name, 0)]
            for name, inventory in provider.inventories.items()
            if name in classes
        }
        consumers = model.consumers_of(provider.uuid) if holders and inventories else ()
        held = {each.uuid: dict(each.allocations[provider.uuid]) for each in consumers}
        shown = [*traits & provider.traits], [*provider.aggregates]
        return [provider.uuid, provider.name, provider.parent_uuid, inventories, *shown, held]

    found = []
    for root in hosts_of(model) if within is None else roots_of(model, within):
        with model.lock.reading():
            tree = model.tree(root.uuid)
            if not tree:
                continue
            rows = [row(provider) for provider in tree if provider.uuid != root.uuid]
            rows = [each for each in rows if query.same_subtrees or any(each[3:6])]
            found.append([closed_reason(notes, root), row(root), *rows])
    with model.lock.reading():
        return {"trees": found, "sharing": [*map(row, model.providers_with_trait(SHARING_TRAIT))]}
