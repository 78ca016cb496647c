"""Asks a Placement where requests fit, and puts the answer in words.

A core of Plimsoll, embedded or served, names the hosts that fit in one request, by a route beside the
Placement API (agent.placement.embedded.fleet); if none fits, it has sent all hosts in the same
answer. For why not, the holders on each host shown are one request more. OpenStack's Placement has candidates
alone: one request says who fits, and one for each host shown says its name; for why not, `_OpenStackFleet`
says what is read. docs/where.md has the bounds, which tests/functional/fleet holds.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urlencode

import os_traits

from agent.claims import extra_specs, parse_request
from agent.claims.choice import Order
from agent.claims.device_profiles import DeviceProfiles
from agent.claims.request import DEVICE_PREFIX, ClaimRequest, by_size, check_request, has_unresolved_devices
from agent.device_names import CC_MODES
from agent.errors import PlacementError, UsageError, counted, first_few
from agent.fleet.where import (
    CLOSED,
    SHOWN_MAX,
    Candidate,
    Change,
    Condition,
    ConditionKind,
    Demand,
    FleetHost,
    HostProvider,
    Miss,
    Obstacle,
    Question,
    SummaryRow,
    candidate_of,
    card_conditions,
    conditions_of,
    miss_of,
    places_together,
    smallest_changes,
    summary_of,
    without_contradictions,
)
from agent.http.process import without_collection
from agent.json_checks import read_choice, read_list, read_object, read_text, read_whole
from agent.placement.client import SHARING_TRAIT, PlacementClient
from agent.shapes import by_class
from agent.tree import MAX_UNIT, Inventory, Provider

CANDIDATES_MAX = 1000
"""So many candidates are asked of OpenStack's Placement, which may be those of a few hosts."""
PLACES_SHOWN_MAX = 10
COUNT_MAX = 1000
MIGRATION = "MIGRATION"
"""The type of the consumer that holds a place for a move."""
DISABLED_TRAIT: str = os_traits.COMPUTE_STATUS_DISABLED
UNITS_NOT_KNOWN = (
    "OpenStack's Placement does not tell max_unit, min_unit and step_size of all hosts: whether a host could "
    "take it once room is made rests on its capacity alone, but for the hosts shown."
)
NEEDS = "1.36"
_ANY_TRAIT = "1.39"
_ANY_TEXT = re.compile(r"(?s).*\S.*")
_UNITS = {"MEMORY_MB": "MiB of ", "DISK_GB": "GiB of "}


class Verdict(StrEnum):
    """What became of the question."""

    FITS = "fits"
    NOT_NOW = "not_now"
    NEVER = "never"


class AskedRequest(NamedTuple):
    """A request, and the body of the API that it was read from, whose words the answer repeats."""

    request: ClaimRequest
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """Where the request fits, best first, or why it does not.

    `alternative` is the number of the request that the answer is about. `fitting` counts the hosts that fit;
    not `complete`: there may be more of them. Of `looked_at` hosts, `able` could take it if room were made.
    `not_known` are sentences on what Placement does not tell.
    """

    verdict: Verdict
    sentence: str
    alternative: int = 0
    fitting: int = 0
    complete: bool = True
    looked_at: int | None = None
    able: int | None = None
    places: tuple[Candidate, ...] = ()
    closed: tuple[FleetHost, ...] = ()
    nearest: tuple[Miss, ...] = ()
    summary: tuple[SummaryRow, ...] = ()
    changes: tuple[Change, ...] = ()
    not_known: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The answer as POST /v1/where gives it, and `plimsoll where -o json` prints it."""
        return {
            "verdict": str(self.verdict),
            "sentence": self.sentence,
            "alternative": self.alternative,
            "hosts": {
                "fit": self.fitting,
                "complete": self.complete,
                "looked_at": self.looked_at,
                "able": self.able,
            },
            "places": [
                {
                    "host": place.host,
                    "uuid": place.root,
                    "allocations": {
                        uuid: {"name": name, "resources": dict(amounts)}
                        for uuid, (name, amounts) in place.allocations.items()
                    },
                    "left": {
                        name: {"free": free, "capacity": capacity}
                        for name, (free, capacity, _) in place.left.items()
                    },
                }
                for place in self.places
            ],
            "closed": [
                {"host": host.root.name, "uuid": host.root.uuid, "reason": host.closed}
                for host in self.closed
            ],
            "nearest": [
                {
                    "host": miss.host.root.name,
                    "uuid": miss.host.root.uuid,
                    "lacks": miss.obstacle.condition.text,
                    "words": miss.obstacle.condition.words,
                    "forever": miss.obstacle.forever,
                    "fits_without": miss.obstacle.alone,
                    "asked": miss.asked,
                    "free": miss.free,
                    "total": miss.total,
                    "provider": miss.provider.name,
                    "provider_uuid": miss.provider.uuid,
                    "holders": dict(miss.holders),
                }
                for miss in self.nearest
            ],
            "summary": [
                {
                    "lacks": row.condition.text,
                    "words": row.condition.words,
                    "hosts": row.hosts,
                    "forever": row.forever,
                    "fit_without": row.fit_without,
                }
                for row in self.summary
            ],
            "changes": [
                {
                    "kind": change.kind,
                    "host": change.host,
                    "providers": list(change.providers),
                    "instances": dict(change.instances),
                    "migrations": list(change.migrations),
                    "reverts": list(change.reverts),
                    "reason": change.reason,
                }
                for change in self.changes
            ],
            "not_known": list(self.not_known),
        }


Completed = Callable[[ClaimRequest, str | None], ClaimRequest]
"""The request with what an alias or the XML of a domain adds to it."""


def answer_body(
    client: PlacementClient,
    body: object,
    complete: Completed | None = None,
    profiles: DeviceProfiles | None = None,
) -> dict[str, Any]:
    """The answer to the body of POST /v1/where.

    `complete` knows the aliases and the domains of a host, `profiles` are the device profiles that a flavor
    may name. Raises UsageError, PlacementError.
    """
    given = read_object(body, "", ("requests", "xml", "strategy", "count", "host"))
    xml = None if given.get("xml") is None else parse_request.read_domain(given["xml"], "xml")
    host = given.get("host")
    order = Order(read_choice(given.get("strategy", "pack"), "strategy", tuple(map(str, Order))))
    count = read_whole(given.get("count", 1), "count", 1, COUNT_MAX)
    alternatives = []
    notes: dict[str, None] = {}
    listed = read_list(given.get("requests"), "requests")
    bodies = [body for item in listed for body in parse_request.alternatives_of(item)]
    if len(bodies) > (most := parse_request.ALTERNATIVES_MAX):
        raise UsageError(f"requests: at most {most} alternatives are asked for.")
    for item in bodies:
        request = parse_request.parse_addition(item, "", profiles)
        request = complete(request, xml) if complete else request
        if has_unresolved_devices(request):
            raise UsageError(
                "pci_passthrough:alias: an alias is in the settings of an agent; ask that agent, without "
                "--placement, or ask for the device's resource class."
            )
        alternatives.append(AskedRequest(check_request(request), item))
        notes |= dict.fromkeys(parse_request.notes_of(item))
    if not alternatives:
        raise UsageError("requests: missing; name at least one request.")
    name = None if host is None else read_text(host, "host", _ANY_TEXT, "the name or uuid of a host")
    answer = where(client, alternatives, order=order, count=count, host=name).to_json()
    return {**answer, "notes": list(notes)} if notes else answer


def where(
    client: PlacementClient,
    alternatives: Sequence[AskedRequest],
    *,
    order: Order = Order.PACK,
    count: int = 1,
    host: str | None = None,
) -> Answer:
    """Where the first of the alternatives that fits anywhere does, or why none does.

    `count` guests are to fit together. `host`: only the host of that name or uuid is asked. Raises UsageError
    for a request that no Placement can be asked, PlacementError.
    """
    root = None if host is None else _find_host(client, host)
    answers: list[Answer] = []
    numbered = [
        (number, AskedRequest(each, asked.body))
        for number, asked in enumerate(alternatives)
        for each in by_size(asked.request, client.resource_classes).options
    ]
    for number, asked in numbered:
        with without_collection():
            answer = replace(_Inquiry(client, asked, order, count, root).answer(), alternative=number)
        if answer.verdict is Verdict.FITS and len(alternatives) > 1:
            which = f"alternative {number + 1} of {len(alternatives)} fits"
            return replace(answer, sentence=answer.sentence.replace("it fits", which, 1))
        if answer.verdict is Verdict.FITS:
            return answer
        answers.append(answer)
    best = next((answer for answer in answers if answer.verdict is Verdict.NOT_NOW), answers[0])
    if len(answers) == 1:
        return best
    others = f"none of {len(answers)} alternatives fits; number {best.alternative + 1} is "
    return replace(best, sentence=others + best.sentence)


def _find_host(client: PlacementClient, name: str) -> Provider:
    """The root provider with that name or uuid. Raises UsageError."""
    key = "uuid" if len(name) == 36 and name.count("-") == 4 else "name"
    found = client.providers(urlencode({key: name}))
    if len(found) > 1:
        many = counted(len(found), "provider is", "providers are")
        raise UsageError(f"{many} called {name!r}: name the host by its uuid.", host=name)
    if not found:
        from difflib import get_close_matches

        near = get_close_matches(name, [each.name for each in client.hosts() or ()], n=1)
        meant = f"did you mean {near[0]}?" if near else "`--host` takes the name of its root provider."
        raise UsageError(f"Placement has no host {name!r}: {meant}", host=name)
    if found[0].parent is not None:
        raise UsageError(f"{name!r} is a provider of a host and no host: name its root provider.", host=name)
    return found[0]


class _Inquiry:
    """One request, asked of one Placement."""

    def __init__(
        self, client: PlacementClient, asked: AskedRequest, order: Order, count: int, host: Provider | None
    ) -> None:
        self._client = client
        self._host = host
        self._in_tree = host.uuid if host else None
        self._order = order
        self._count = count
        conditions = (*conditions_of(asked.request), *card_conditions(asked.request))
        self._conditions = tuple(each._replace(words=words_of(each, asked)) for each in conditions)
        self._demand = Demand(self._conditions)
        self._queried = without_contradictions(self._conditions)
        self._query = query_of(self._queried, self._in_tree)
        # Guests beside guests, what cells have together, and what is not in the query: candidates tell less.
        kinds = (ConditionKind.TRAIT, ConditionKind.AGGREGATE)
        of_cells = any(
            each.kind in kinds and not each.group and not each.forbidden for each in self._conditions
        )
        of_cells &= self._demand.has_cells
        self._needs_trees = (
            count > 1 or self._in_tree is not None or of_cells or self._queried != self._conditions
        )

    def answer(self) -> Answer:
        """The verdict, with what it rests on."""
        holders = "&holders=true" if self._in_tree else ""
        trees = f"&trees=true{holders}" if self._needs_trees else ""
        told = self._client.host_candidates(self._query + trees)
        if told is None:
            openstack = _OpenStackFleet(self._client, self._demand, self._in_tree)
            candidates = openstack.candidates()
            if candidates and (self._count == 1 or not openstack.complete):
                places = self._best(candidates)
                named = tuple(openstack.named(place) for place in places)
                return self._fits(named, len(candidates), complete=openstack.complete)
            return openstack.with_doubts(self._judge(openstack.hosts(), openstack.detailed))
        if told["hosts"]:
            found = [candidate_of_record(record) for record in told["hosts"]]
            return self._fits(self._best(found), len(found))

        def with_holders(host: FleetHost, _: Obstacle) -> FleetHost:
            query = query_of(self._queried, host.root.uuid)
            again = self._client.host_candidates(f"{query}&trees=true&holders=true")
            return next(iter(hosts_of_trees(again or {})), host)

        return self._judge(hosts_of_trees(told), with_holders)

    def _best(self, candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
        ranked = sorted(candidates, key=lambda each: each.rank(self._demand, self._order))
        return tuple(ranked[:PLACES_SHOWN_MAX])

    def _fits(self, places: tuple[Candidate, ...], fitting: int, *, complete: bool = True) -> Answer:
        many = counted(fitting, "host has", "hosts have")
        sentence = f"it fits: {'' if complete else 'at least '}{many} room for it"
        doubts = self._doubts(places)
        return Answer(
            Verdict.FITS, sentence, fitting=fitting, complete=complete, places=places, not_known=doubts
        )

    def _doubts(self, places: Iterable[Candidate], pending: Iterable[FleetHost] = ()) -> tuple[str, ...]:
        """What is not known of the cells of these places, and of the hosts whose reshape waits."""
        hiding = list(dict.fromkeys(place.host for place in places if place.hides_cells(self._demand)))
        waiting = [host.root.name for host in pending]
        cells = (
            f"NUMA cells of {first_few(hiding, SHOWN_MAX)}: none are reported. Such a host decides whether "
            "it has cells for the guest when it is claimed from."
        )
        reshaped = f"What {first_few(waiting, SHOWN_MAX)} can give after the reshape that is pending there."
        return (cells,) * bool(hiding) + (reshaped,) * bool(waiting)

    def _new_place(self, consumer: str, others: frozenset[str]) -> str | None:
        """A host for an instance, by the amounts that it holds alone: Placement knows no more of it."""
        held = self._client.allocations_of(consumer)
        if held.consumer_type == MIGRATION:
            return None
        amounts = by_class(held.allocations.values())
        conditions = [Condition(ConditionKind.RESOURCE, "", *each) for each in amounts.items()]
        query = query_of(conditions)
        told = self._client.host_candidates(f"{query}&limit={len(others) + 1}")
        if told is not None:
            found = [candidate_of_record(record) for record in told["hosts"]]
        else:
            openstack = _OpenStackFleet(self._client, Demand(conditions))
            found = [openstack.named(candidate) for candidate in openstack.candidates()[: len(others) + 1]]
        return next((each.host for each in found if each.host not in others), "")

    def _judge(self, hosts: Sequence[FleetHost], detailed: "Detailed") -> Answer:
        """The answer by all hosts; `detailed` reads more of those that are shown."""
        demand, count = self._demand, self._count
        placed: Sequence[Candidate] = ()
        most = count
        if count > 1:
            placed, hosts, most = places_together(demand, hosts, count, self._order)
            if len(placed) == count:
                on = len({place.root for place in placed})
                return Answer(
                    Verdict.FITS,
                    f"it fits: {count} of them have places on {counted(on, 'host')}",
                    fitting=on,
                    complete=False,
                    looked_at=len(hosts),
                    places=tuple(placed),
                    not_known=self._doubts(placed),
                )
        if not hosts and self._host is not None:
            name = self._host.name
            raise UsageError(f"{name!r} is a provider that hosts share, and no host: name a host.", host=name)
        obstacles = {host.root.uuid: demand.obstacle(host) for host in hosts}
        fitting = [host for host in hosts if obstacles[host.root.uuid] is None]
        if fitting and count == 1:
            candidates = [candidate_of(demand, host, demand.whole.fit(host) or {}) for host in fitting]
            return replace(self._fits(self._best(candidates), len(fitting)), looked_at=len(hosts))
        misses = [
            miss_of(demand, host, obstacle)
            for host in hosts
            if (obstacle := obstacles[host.root.uuid]) is not None
        ]
        near = sorted((miss for miss in misses if miss.obstacle.condition != CLOSED), key=Miss.nearness)
        shown: list[Miss] = []
        for miss in near[:SHOWN_MAX]:
            host = miss.host
            if not miss.obstacle.forever:
                host = detailed(host, miss.obstacle)
                for place in placed:
                    host = host.with_guest(place.amounts)
            obstacle = demand.obstacle(host) or miss.obstacle
            obstacles[host.root.uuid] = obstacle
            shown.append(miss_of(demand, host, obstacle))
        shown.sort(key=Miss.nearness)
        found = [each for each in obstacles.values() if each is not None]
        able = sum(not each.forever for each in found)
        to_open = [miss.host for miss in misses if miss.obstacle.condition == CLOSED]
        verdict = Verdict.NOT_NOW if able else Verdict.NEVER
        hopeless = {miss.host.root.uuid for miss in misses if miss.obstacle.forever}
        pending = [host for host in hosts if host.pending and host.root.uuid not in hopeless]
        if count > 1 and not pending:
            could = places_together(demand, hosts, count, self._order, empty=True).most
            verdict = Verdict.NEVER if could < count else verdict
        unsure = [f"Whether all {count} have places: not all ways to place them were compared."]
        if count == 1 or most < count:
            unsure = []
        changes: tuple[Change, ...] = ()
        if verdict is Verdict.NOT_NOW and len(placed) + 1 == count:
            open_ones = [miss.host for miss in shown if not miss.obstacle.forever]
            changes = smallest_changes(demand, [*open_ones, *to_open], self._new_place)
        summary = summary_of(demand, found)
        return Answer(
            verdict,
            _sentence(verdict, summary, shown, to_open, len(hosts), able, (len(placed), most, count)),
            fitting=len({place.root for place in placed}),
            looked_at=len(hosts),
            able=able,
            places=tuple(placed),
            closed=tuple(host for host in hosts if host.closed),
            nearest=tuple(shown),
            summary=summary,
            changes=changes,
            not_known=(*self._doubts(placed, pending), *unsure),
        )


Detailed = Callable[[FleetHost, Obstacle], FleetHost]
"""The host again, with what is to be shown of it beside its first obstacle."""


def _sentence(
    verdict: Verdict,
    summary: Sequence[SummaryRow],
    nearest: Sequence[Miss],
    to_open: Sequence[FleetHost],
    hosts: int,
    able: int,
    placed: tuple[int, int, int],
) -> str:
    """The verdict in one sentence."""
    some, most, count = placed
    bounds = f"at least {some} and at most {most}" if most > some else f"{some}"
    so_far = f"{bounds} of {count} have a place; " if count > 1 else ""
    if not hosts:
        return "never: Placement has no host"
    if verdict is Verdict.NEVER:
        if able:
            return f"never: {so_far}not all of them fit on {counted(hosts, 'host')}, even with nothing in use"
        lacking = summary[-1].condition.text  # no host meets it beside all conditions before it
        rest = " beside the rest of the request" if len(summary) > 1 else ""
        of_it = (miss for miss in nearest if miss.obstacle.condition == summary[-1].condition)
        limited = next((miss for miss in of_it if miss.max_unit is not None), None)
        if limited is not None:
            lacking += f" at once (max_unit is {limited.max_unit} on {limited.provider.name})"
        if hosts == 1:
            return f"never: {nearest[0].host.root.name} does not have {lacking}, even with nothing in use"
        return f"never: {so_far}none of {hosts} hosts has {lacking}{rest}, even with nothing in use"
    could = f"{so_far}{able} of {hosts} hosts could; " if hosts > 1 else so_far
    near = next((miss for miss in nearest if not miss.obstacle.forever), None)
    if near is None:
        return f"not now: {could}{to_open[0].root.name} is {to_open[0].closed}"
    name = near.host.root.name + (", the nearest," if hosts > 1 else "")
    condition = near.obstacle.condition
    if near.asked is not None and near.free is not None and near.asked > near.free:
        unit = _UNITS.get(condition.name, "")
        return f"not now: {could}{name} is {near.asked - near.free} {unit}{condition.name} short"
    return f"not now: {could}{name} lacks {condition.text}"


# The question, as Placement reads it


def candidates_query(request: ClaimRequest) -> str:
    """The query string of the request, whose devices by alias have groups already; see `query_of`."""
    return query_of(conditions_of(request))


def query_of(conditions: Sequence[Condition], in_tree: str | None = None) -> str:
    """The query string of GET /allocation_candidates for these conditions, in the tree of that provider.

    Each cell of the guest is a group of its own. A core of Plimsoll knows by their suffixes that they lie
    apart; for OpenStack's Placement that is not part of the query.
    """
    kind = ConditionKind
    amounts: dict[str, list[str]] = {}
    for each in conditions:
        if each.kind is kind.RESOURCE:
            amounts.setdefault(each.group, []).append(f"{each.name}:{each.amount}")
    cells = [group for group in amounts if " " in group]
    for each in conditions:
        if each.kind in (kind.TRAIT, kind.AGGREGATE) and (each.group or not cells):
            amounts.setdefault(each.group, [])
    pairs: list[tuple[str, str]] = []
    for group, wanted in amounts.items():
        suffix = f"_CELL{group.split()[1]}" if " " in group else group
        pairs += [(f"resources{suffix}", ",".join(wanted))] if wanted else []
        for each in conditions:
            # The cells are a part of the unsuffixed group, whose providers together have its traits. Where
            # there are no others, the first cell has them in the query: that is less than may fit.
            is_shared = group in cells and not each.group
            is_first = is_shared and group == cells[0] and "" not in amounts
            of_all = is_shared and (each.forbidden or is_first)
            if each.kind is kind.TRAIT and (each.group == group or of_all):
                names = [f"{'!' * each.forbidden}{name}" for name in sorted(each.any_of)]
                text = "in:" * (len(names) > 1 and not each.forbidden) + ",".join(names)
                pairs.append((f"required{suffix}", text))
            elif each.kind is kind.AGGREGATE and (each.group == group or is_shared):
                pairs.append((f"member_of{suffix}", f"in:{','.join(sorted(each.any_of))}"))
        if in_tree is not None:
            pairs.append((f"in_tree{suffix}", in_tree))
    if sum(map(bool, amounts)) > 1:
        isolates = any(each.kind is kind.ISOLATE for each in conditions)
        pairs.append(("group_policy", "isolate" if isolates else "none"))
    pairs += [
        ("same_subtree", ",".join(sorted(each.any_of))) for each in conditions if each.kind is kind.SUBTREE
    ]
    of_root = [each for each in conditions if each.kind is kind.ROOT_TRAIT]
    roots = [f"{'!' * each.forbidden}{name}" for each in of_root for name in each.any_of]
    pairs += [("root_required", ",".join(roots))] if roots else []
    return urlencode(pairs, safe=":,!")


_WORDS = {
    "VCPU": ("vcpus",),
    "PCPU": ("hw:cpu_policy", "vcpus"),
    "MEMORY_MB": ("memory_mb",),
    "DISK_GB": ("disk_gb",),
    "MEM_ENCRYPTION_CONTEXT": ("hw:mem_encryption",),
}


def words_of(condition: Condition, asked: AskedRequest) -> str:
    """The words of the request that ask for the condition, "" where it has none of its own."""
    body = asked.body.get("request", asked.body)
    flavor, image = body.get("flavor", {}), body.get("image", {})
    specs: Mapping[str, Any] = flavor.get("extra_specs", {})
    kind, group, name = condition.kind, condition.group, condition.name
    cell, is_device = " " in group, group.startswith(DEVICE_PREFIX)
    suffix = "" if cell else group

    def said(*keys: str) -> str:
        """The first of these that is an extra spec, a property of the image, or a part of the flavor."""
        for key in keys:
            for given, word in ((specs, key), (image, key.replace(":", "_", 1)), (flavor, key)):
                if word in given:
                    return f"{word}={given[word]}"
        return ""

    match kind:
        case ConditionKind.APART | ConditionKind.ISOLATE | ConditionKind.SUBTREE:
            return said({kind.APART: "hw:numa_nodes", kind.ISOLATE: "group_policy"}.get(kind, "same_subtree"))
        case ConditionKind.RESOURCE if is_device:
            return said("pci_passthrough:alias")
        case ConditionKind.RESOURCE if flavor:
            own = _WORDS.get(name, ("hw:pmem",) if "PMEM" in name else ("accel:device_profile",))
            word = said(f"resources{suffix}:{name}", *own)
            return f"{word} {said('hw:numa_nodes')}".strip() if cell else word
        case ConditionKind.RESOURCE:
            return f"{suffix}{':' * bool(suffix)}{name}={condition.amount}"
        case ConditionKind.TRAIT | ConditionKind.ROOT_TRAIT:
            (trait, *_) = sorted(condition.any_of)
            if trait in CC_MODES["on"]:
                return said(f"trait{group}:{trait}", "hw:mem_encryption_model")
            return said(f"trait{group}:{trait}") or _word_of_trait(trait, [*specs.items(), *image.items()])
    return ""


def _word_of_trait(trait: str, words: Iterable[tuple[str, Any]]) -> str:
    """The extra spec or the property of the image that asks for the trait."""
    for key, value in words:
        word = {key: str(value)}
        with suppress(UsageError):  # of words that have a meaning beside others only
            of_image = extra_specs.image_traits(word) | extra_specs.required_traits(word)
            if trait in {*extra_specs.host_traits(word), extra_specs.encryption_trait(word), *of_image}:
                return f"{key}={value}"
    return ""


# The answers of a core


def candidate_of_record(record: Mapping[str, Any]) -> Candidate:
    """A host that fits, as `candidate_hosts` of the core shows it."""
    return Candidate(
        record["name"],
        record["uuid"],
        {uuid: (part["name"], part["resources"]) for uuid, part in record["allocations"].items()},
        record["left"],
    )


def hosts_of_trees(told: Mapping[str, Any]) -> list[FleetHost]:
    """The hosts, as `host_trees` of the core shows them."""
    known: dict[tuple[Any, ...], Inventory] = {}  # there are few different ones

    def provider(row: Sequence[Any]) -> HostProvider:
        uuid, name, parent, offered, traits, aggregates, holders = row
        inventories, used = {}, {}
        for resource_class, (*fields, in_use) in offered.items():
            key = tuple(fields)
            inventories[resource_class] = known.get(key) or known.setdefault(key, Inventory(*key))
            if in_use:
                used[resource_class] = in_use
        return HostProvider(
            uuid, name, parent, inventories, used, frozenset(traits), frozenset(aggregates), holders
        )

    pools = [provider(row) for row in told.get("sharing", ())]
    moving = frozenset(told.get("moving", ()))
    hosts = []
    for closed, pending, *rows in told.get("trees", ()):
        own = tuple(map(provider, rows))
        hosts.append(FleetHost(own, _pools_of(own, pools), closed, pending, moving))
    return hosts


def _pools_of(own: Sequence[HostProvider], pools: Iterable[HostProvider]) -> tuple[HostProvider, ...]:
    aggregates = frozenset[str]().union(*(provider.aggregates for provider in own))
    return tuple(pool for pool in pools if pool.aggregates & aggregates)


# OpenStack's Placement


class _OpenStackFleet:
    """The fleet as OpenStack's Placement shows it.

    Its candidates tell capacity, usage and traits of whole trees, and nothing of names, aggregates, max_unit
    or holders. For why not, one request for each class asked shows all hosts that have some of it free; one
    more, for memory, shows most others. What is asked of aggregates, and each sharing provider, are one and
    two requests. A host that all this does not explain is read provider by provider, at most SHOWN_MAX hosts.
    """

    def __init__(self, client: PlacementClient, demand: Demand, in_tree: str | None = None) -> None:
        conditions = demand.conditions
        self._client = client
        self._demand = demand
        self._in_tree = in_tree
        # What is not asked of it is looked for in its answers, whose summaries have the traits: its filter by
        # the root's traits drops hosts whose disk is of a shared pool, on PostgreSQL it cannot look for
        # providers without a trait, and the cells of a guest may have the traits of the unsuffixed group.
        kind, has_cells = ConditionKind, demand.has_cells
        rest = [
            each
            for each in conditions
            if each.kind is not kind.ROOT_TRAIT
            and not each.forbidden
            and not (has_cells and each.kind is kind.TRAIT and not each.group)
        ]
        self._seen_in_answers = Question(
            [each for each in conditions if each.kind is not ConditionKind.AGGREGATE]
        )
        # Beside suffixed groups it keeps one of the hosts whose disk, the only class without a suffix, is of
        # the same shared pool: so each class gets a suffix, where that asks for the same.
        own = [each for each in rest if not each.group and each.kind is not ConditionKind.SUBTREE]
        if len(own) < len(rest) and all(each.kind is ConditionKind.RESOURCE for each in own):
            rest = [each._replace(group=f"_{each.name}") if each in own else each for each in rest]
        self._query = query_of(rest, in_tree)
        self.complete = True
        self._unread = 0

    def with_doubts(self, answer: Answer) -> Answer:
        """The answer by `hosts`, with what it could not rest on. *Never* stands where all hosts were read."""
        if answer.verdict is Verdict.FITS:
            return answer
        doubts = [UNITS_NOT_KNOWN]
        if self._unread:
            doubts.insert(0, f"{counted(self._unread, 'host')} with nothing free of what is asked: not read.")
        if answer.verdict is Verdict.NEVER and self._unread:
            read = counted(answer.looked_at or 0, "host")
            sentence = f"not now: none of {read} could ever, and {self._unread} more were not read"
            answer = replace(answer, verdict=Verdict.NOT_NOW, sentence=sentence)
        return replace(answer, not_known=(*doubts, *answer.not_known))

    def candidates(self) -> list[Candidate]:
        """A candidate of each host that has any among the first CANDIDATES_MAX. Raises PlacementError."""
        client = self._client
        any_of = any(
            len(each.any_of) > 1
            for each in self._demand.conditions
            if each.kind is ConditionKind.TRAIT and not each.forbidden
        )
        needed = _ANY_TRAIT if any_of else NEEDS
        try:
            told = client.allocation_candidates(f"{self._query}&limit={CANDIDATES_MAX}")
        except PlacementError as error:
            if client.speaks(needed):
                raise
            raise PlacementError(
                f"Placement speaks microversions up to {client.microversion}, and this question needs "
                f"{needed}: ask a newer Placement.",
                status=error.status,
            ) from error
        self.complete = len(told["allocation_requests"]) < CANDIDATES_MAX
        summaries = told["provider_summaries"]
        hosts = {host.root.uuid: host for host in _summarised(summaries, {})}
        found: dict[str, Candidate] = {}
        for request in told["allocation_requests"]:
            allocations = {uuid: part["resources"] for uuid, part in request["allocations"].items()}
            roots = {summaries[uuid]["root_provider_uuid"] for uuid in allocations}
            root = next((uuid for uuid in roots if SHARING_TRAIT not in summaries[uuid]["traits"]), None)
            if root is None or root in found or hosts[root].closed:
                continue
            pools = (_summarised_provider(uuid, summaries[uuid], "") for uuid in allocations)
            shared = tuple(pool for pool in pools if SHARING_TRAIT in pool.traits)
            host = hosts[root]._replace(shared=shared)
            chosen = frozenset(uuid for uuids in request["mappings"].values() for uuid in uuids)
            if self._seen_in_answers.fit(host.limited_to(chosen)) is not None:
                found[root] = candidate_of(self._demand, host, allocations)
        return list(found.values())

    def named(self, candidate: Candidate) -> Candidate:
        """The candidate with the names of its host and its providers."""
        names = {each.uuid: each.name for each in self._client.providers(f"in_tree={candidate.root}")}
        return candidate._replace(
            host=names.get(candidate.root, candidate.root),
            allocations={
                uuid: (names.get(uuid, uuid), amounts) for uuid, (_, amounts) in candidate.allocations.items()
            },
        )

    def hosts(self) -> list[FleetHost]:
        """All hosts, after no candidate was found; the holders are not read."""
        client, conditions = self._client, self._demand.conditions
        within = f"in_tree={self._in_tree}" if self._in_tree else ""
        listed = {each.uuid: each for each in client.providers(within)}
        summaries: dict[str, Any] = {}
        for name in dict.fromkeys([*self._demand.asked, "MEMORY_MB"]):
            told = client.allocation_candidates("&".join(filter(None, (f"resources={name}:1", within))))
            summaries |= told["provider_summaries"]
        aggregates: dict[str, set[str]] = {}

        def belong(query: Iterable[str], known: Iterable[str]) -> None:
            for each in client.providers(f"member_of=in:{','.join(query)}"):
                aggregates.setdefault(each.uuid, set()).update(known)

        for condition in conditions:
            if condition.kind is ConditionKind.AGGREGATE:
                belong(sorted(condition.any_of), condition.any_of)
        for pool in client.providers(f"required={SHARING_TRAIT}"):
            listed.setdefault(pool.uuid, pool)
            of_pool = client.aggregates_of(pool.uuid)
            if of_pool:
                belong(sorted(of_pool), [pool.uuid])  # stands for the aggregates that they have in common
        hosts = _summarised(summaries, aggregates, listed)
        known = {host.root.uuid for host in hosts}
        unknown = [each.uuid for each in listed.values() if each.parent is None and each.uuid not in known]
        unclear = [host.root.uuid for host in hosts if self._demand.whole.fit(host) is not None]
        pools = {pool.uuid: pool for host in hosts for pool in host.shared}.values()
        whole: dict[str, FleetHost] = {}
        for root in [*unclear, *unknown][:SHOWN_MAX]:
            # By the summaries these hosts fit, or they are in none: they are read provider by provider.
            tree, usages = client.read_tree_with(root, None, client.provider_usages)
            own = [
                HostProvider(
                    each.uuid,
                    each.name,
                    each.parent,
                    each.inventories,
                    usages.get(each.uuid, {}),
                    each.traits,
                    each.aggregates | aggregates.get(each.uuid, set()),
                )
                for each in tree
            ]
            whole[root] = FleetHost(tuple(own), _pools_of(own, pools), _closed_by(own[0].traits))
        self._unread = len(unclear) + len(unknown) - len(whole)
        self.complete = not self._unread
        hosts = [host for host in hosts if host.root.uuid not in unclear]
        return [*hosts, *(host for host in whole.values() if SHARING_TRAIT not in host.root.traits)]

    def detailed(self, host: FleetHost, obstacle: Obstacle) -> FleetHost:
        """The host with the inventories and the holders of the provider that lacks something."""
        uuid = miss_of(self._demand, host, obstacle).provider.uuid
        _, inventories = self._client.provider_inventories(uuid)
        holders = self._client.provider_allocations(uuid).consumers

        def read(provider: HostProvider) -> HostProvider:
            if provider.uuid != uuid:
                return provider
            return provider._replace(inventories=inventories, holders=holders)

        return host._replace(providers=tuple(map(read, host.providers)), shared=tuple(map(read, host.shared)))


def _closed_by(traits: Iterable[str]) -> str:
    return f"disabled for schedulers by {DISABLED_TRAIT}" if DISABLED_TRAIT in traits else ""


def _summarised_provider(
    uuid: str, summary: Mapping[str, Any], name: str, aggregates: Iterable[str] = ()
) -> HostProvider:
    return HostProvider(
        uuid,
        name or uuid,
        summary["parent_provider_uuid"],
        {
            # No capacity is that of a class which is withheld as a whole.
            each: Inventory(part["capacity"]) if part["capacity"] else Inventory(MAX_UNIT, reserved=MAX_UNIT)
            for each, part in summary["resources"].items()
        },
        {each: part["used"] for each, part in summary["resources"].items()},
        frozenset(summary["traits"]),
        frozenset(aggregates),
    )


def _summarised(
    summaries: Mapping[str, Any],
    aggregates: Mapping[str, Iterable[str]],
    listed: Mapping[str, Provider] = MappingProxyType({}),
) -> list[FleetHost]:
    """The hosts of Placement's summaries, whose trees are whole."""
    trees: dict[str, list[HostProvider]] = {}
    for uuid, summary in summaries.items():
        name = listed[uuid].name if uuid in listed else ""
        provider = _summarised_provider(uuid, summary, name, aggregates.get(uuid, ()))
        trees.setdefault(summary["root_provider_uuid"], []).append(provider)
    pools = [each for tree in trees.values() for each in tree if SHARING_TRAIT in each.traits]
    hosts = []
    for root, tree in trees.items():
        own = tuple(sorted(tree, key=lambda each: each.uuid != root))
        if SHARING_TRAIT not in own[0].traits:
            hosts.append(FleetHost(own, _pools_of(own, pools), _closed_by(own[0].traits)))
    return hosts
