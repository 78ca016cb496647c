"""The hosts of the fleet: the notes that their agents leave, the table of all, and which fit a request.

Notes are in memory alone. A server that starts, or takes over, has none until each agent has sent its own
again, within a minute.

The table has a row for each host. What is free on a host that is silent, closed or disabled is in no sum,
since no guest gets it now. The room for a flavor is how many guests of it fit; stranded are those
for which there is enough on the host, but not together.

`plimsoll where` asks which hosts fit a request: for a place on each, or if none has any, for what all of them
have of it, so that the asker can say why. That is no part of Placement's API.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

import os_traits

from agent.errors import counted
from agent.placement.embedded import microversions as mv
from agent.placement.embedded.candidates import (
    CandidateQuery,
    CandidateSlot,
    ProviderReach,
    SlotDemands,
    TreeView,
    find_candidates,
    parse_query,
)
from agent.placement.embedded.model import SHARING_TRAIT, Model, ProviderRecord
from agent.placement.embedded.problems import BAD_REQUEST, TOO_LARGE, RequestRefused
from agent.placement.embedded.validation import Query
from agent.placement.knapsack import pack

if TYPE_CHECKING:
    from agent.http.page import Page

NOTE_BYTES_MAX = 32 * 1024
HOSTS_MAX = 10_000
SILENT_AFTER_S = 300.0
"""A host is silent when its agent has left no note for so long; it leaves one a minute."""


class Heard(NamedTuple):
    """The newest note of a host, None where there is none, and how many seconds ago it came."""

    note: Mapping[str, Any] | None
    age_s: float | None
    silent: bool


class HostNotes:
    """The newest note of each host. Any thread may call; `clock` gives seconds of a steady clock.

    `flavors` {name: query for candidates} are those of which the room can be asked by their name.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._notes: dict[str, tuple[float, Mapping[str, Any]]] = {}
        self._appeared: dict[str, float] = {}
        self._since = clock()
        self.flavors: Mapping[str, str] = {}

    def put(self, root_uuid: str, note: Mapping[str, Any], model: Model) -> None:
        """Keep the note in place of the host's last one. Raises RequestRefused where there are too many."""
        with self._lock:
            if root_uuid not in self._notes and len(self._notes) >= HOSTS_MAX:
                self._notes = {uuid: kept for uuid, kept in self._notes.items() if model.provider(uuid)}
                if len(self._notes) >= HOSTS_MAX:
                    raise RequestRefused(TOO_LARGE, f"This server keeps the notes of {HOSTS_MAX} hosts.")
            self._notes[root_uuid] = (self._clock(), note)

    def appear(self, root_uuid: str) -> None:
        """A host is there from now on, and has the time to leave a note."""
        now = self._clock()
        with self._lock:
            while self._appeared and now - next(iter(self._appeared.values())) >= SILENT_AFTER_S:
                del self._appeared[next(iter(self._appeared))]
            self._appeared.pop(root_uuid, None)  # the youngest is the last
            self._appeared[root_uuid] = now

    def forget(self) -> None:
        """Forget all, as a server does that takes no writes: the notes go to another one."""
        with self._lock:
            self._notes, self._since = {}, self._clock()

    def heard(self, root_uuid: str) -> Heard:
        """What was heard of a host. One without a note is silent once it has had the time to leave one."""
        now = self._clock()
        since = self._appeared.get(root_uuid, self._since)
        at, note = self._notes.get(root_uuid, (max(since, self._since), None))
        return Heard(note, None if note is None else now - at, now - at >= SILENT_AFTER_S)


def hosts_of(model: Model) -> list[ProviderRecord]:
    """The root providers that are hosts, by name: those that are no shared pools."""
    with model.lock.reading():
        providers = list(model.providers.values())
    roots = (one for one in providers if one.parent_uuid is None and not one.is_sharing)
    return sorted(roots, key=lambda root: root.name)


# The table

DISABLED: str = os_traits.COMPUTE_STATUS_DISABLED
STATES = ("silent", "degraded", "starting", "stopping", "drained", "closed", "disabled", "no note", "ready")
"""What a row may say of its host, what needs attention first."""
GROUPINGS = ("state", "aggregate", "trait")
NO_GROUP = "none"
ROOM_MAX = 4096
ROOM_WAYS_MAX, ROOM_STEPS_MAX = 200, 1000
"""So many ways of a guest are compared on a host, in so many steps."""
LIMIT_DEFAULT, NUMBER_MAX = 100, 100_000
WORDS_MAX = 2048
COLUMNS = (
    "name",
    "state",
    "age",
    "version",
    "instances",
    "moves",
    "findings",
    "withheld",
    "room",
    "stranded",
)
"""What the table is sorted by, beside resource classes."""


class Wanted(NamedTuple):
    """What a reader asks for.

    `room` is the name of a flavor, amounts (VCPU:4,MEMORY_MB:8192), or a query for candidates, for which
    people know the name `label`. `search` is a text of a host's row. `sort` is a column or a class; with a -
    in front the largest comes first. `group` is one of GROUPINGS, and `within` one of its groups. `of_class`
    is that whose free share is shown.
    """

    room: str = ""
    search: str = ""
    sort: str = ""
    group: str = ""
    within: str = ""
    of_class: str = "VCPU"
    page: int = 1
    limit: int = LIMIT_DEFAULT
    label: str = ""

    @classmethod
    def of(cls, asked: Mapping[str, str]) -> Wanted:
        """From the parameters of a request. Raises RequestRefused (400)."""

        def number(name: str, default: int) -> int:
            text = asked.get(name) or str(default)
            if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= NUMBER_MAX):
                raise RequestRefused(
                    BAD_REQUEST, f"{name} must be a number from 1 to {NUMBER_MAX}, not {text!r}."
                )
            return int(text)

        room, search, sort, group, within, label = (
            asked.get(name, "").strip()[:WORDS_MAX]
            for name in ("room", "search", "sort", "group", "within", "label")
        )
        of_class = asked.get("class") or "VCPU"
        page, limit = number("page", 1), number("limit", LIMIT_DEFAULT)
        wanted = cls(room, search, sort, group, within, of_class, page, limit, label or room)
        if wanted.group not in ("", *GROUPINGS):
            raise RequestRefused(BAD_REQUEST, f"group must be one of {', '.join(GROUPINGS)}.")
        return wanted


class Row(NamedTuple):
    """A host. `counts`: what is free on it is in the sums; otherwise it has no room.

    `resources` is {class: (free, capacity)} of its tree. `share` is the free share of the class that the
    reader chose.
    """

    uuid: str
    name: str
    state: str
    counts: bool
    age_s: float | None
    version: str
    reason: str
    instances: int
    moves: int
    findings: int
    withheld: int
    resources: Mapping[str, tuple[int, int]]
    share: float | None
    room: int | None
    stranded: int | None
    aggregates: Sequence[str]
    traits: Sequence[str]

    @property
    def severity(self) -> tuple[int, int, str]:
        """What needs attention first."""
        return STATES.index(self.state), -self.findings, self.name

    def key(self, column: str) -> Any:
        """What the row is sorted by in that column; None comes last."""
        if column == "state":
            return self.severity
        if column in COLUMNS:
            return getattr(self, "age_s" if column == "age" else column)
        return self.resources[column][0] if column in self.resources else None

    def has(self, text: str) -> bool:
        """Whether the row has the text, in any case."""
        words = (self.name, self.uuid, self.state, self.reason, self.version, *self.aggregates, *self.traits)
        return any(text.casefold() in word.casefold() for word in words)


_Places = Sequence[tuple[Mapping[str, Mapping[str, int]], int]]
"""(the amounts of one guest by provider, how many guests have this place)"""


class _Room(NamedTuple):
    guests: int
    stranded: int
    places: _Places


def room_query(text: str, flavors: Mapping[str, str]) -> CandidateQuery:
    """The query that the name of a flavor stands for, or the text itself. Raises RequestRefused (400)."""
    query = flavors.get(text, text if "=" in text else f"resources={text}")
    try:
        return parse_query(Query(query), mv.MAX).with_cells_apart()
    except RequestRefused as refusal:
        known = f" The flavors here are {', '.join(flavors)}." if flavors else ""
        raise RequestRefused(
            BAD_REQUEST, f"Cannot tell the room for {text!r}: {refusal.detail}{known}"
        ) from None


def _room(view: TreeView, root: ProviderRecord, query: CandidateQuery) -> _Room:
    """The room on one host."""
    if not query.root_traits.admits(root.traits):
        return _Room(0, 0, ())
    asked = Counter[str]()
    for group in query.groups:
        asked.update(group.resources)
    enough = min(
        (
            sum(
                max(0, int(one.inventories[name].capacity) - view.used(one.uuid, name))
                for one in view.reachable
                if name in one.inventories and (admit is None or admit(one))
            )
            // amount
            for name, amount in asked.items()
            for _, admit in (_takers(query, name),)
        ),
        default=0,
    )
    demands, most = SlotDemands(query), min(enough, ROOM_MAX)
    places = None if query.is_plain else _packed(view, query, demands, most)
    if places is None:
        places = _filled_in_turn(view, query, demands, most)
    guests = sum(times for _, times in places)
    return _Room(guests, max(0, enough - guests), places)


def _takers(query: CandidateQuery, name: str) -> tuple[int, Callable[[ProviderRecord], bool] | None]:
    """What the parts of a guest have in common of the class, and which providers some group takes, if empty.

    None: any.
    """
    groups = [group for group in query.groups if name in group.resources]
    part = gcd(*(group.resources[name] for group in groups))
    if not any(group.traits.forbidden or (group.suffix and group.traits.required) for group in groups):
        return part, None
    return part, lambda provider: any(
        (not group.suffix or group.traits.admits(provider.traits))
        and not group.traits.forbidden & provider.traits
        for group in groups
    )


def _filled_in_turn(view: TreeView, query: CandidateQuery, demands: SlotDemands, most: int) -> _Places:
    """A place is given as often as it can be before the next one is looked for."""
    usages = {uuid: dict(view.usage(uuid)) for uuid in view.providers}
    trial = TreeView(view.reachable, view.providers, usages)
    guests, places = 0, []
    while guests < most:
        slots = demands.slots(trial)
        chosen = next(demands.fill(trial, slots), None) if slots else None
        if not slots or chosen is None:
            break
        place = _place_of(slots, chosen)
        times = min(
            (int(view.providers[uuid].inventories[name].capacity) - usages[uuid].get(name, 0)) // amount
            for uuid, amounts in place.items()
            for name, amount in amounts.items()
        )
        for uuid, amounts in place.items():
            for name, amount in amounts.items():
                usages[uuid][name] = usages[uuid].get(name, 0) + times * amount
        places.append((place, times))
        guests += times
    return places


def _packed(view: TreeView, query: CandidateQuery, demands: SlotDemands, most: int) -> _Places | None:
    """The most guests whose parts concern each other; None where there are too many ways to compare."""
    slots = demands.slots(view) if most else None
    if not slots:
        return ()
    ways: dict[frozenset[tuple[str, str, int]], Mapping[str, Mapping[str, int]]] = {}
    for number, chosen in enumerate(demands.fill(view, slots)):
        if number == ROOM_WAYS_MAX:
            return None
        way = _place_of(slots, chosen)
        ways[frozenset((uuid, *each) for uuid, amounts in way.items() for each in amounts.items())] = way
    free = {
        uuid: {
            name: int(inventory.capacity) - view.used(uuid, name)
            for name, inventory in view.providers[uuid].inventories.items()
        }
        for uuid in {uuid for way in ways.values() for uuid in way}
    }
    packed = pack(list(ways.values()), free, most, ROOM_STEPS_MAX)
    return list(zip(ways.values(), packed.times, strict=True))


def _place_of(slots: Iterable[CandidateSlot], chosen: Iterable[ProviderRecord]) -> dict[str, Counter[str]]:
    place: dict[str, Counter[str]] = {}
    for slot, provider in zip(slots, chosen, strict=True):
        place.setdefault(provider.uuid, Counter()).update(slot.resources)
    return place


def _row(
    model: Model, view: TreeView, root: ProviderRecord, heard: Heard, room: _Room | None, of_class: str
) -> Row:
    note = heard.note or {}
    closed = note.get("closed")
    state = (
        "no note"
        if heard.note is None
        else "closed"
        if closed and note["state"] == "ready"
        else note["state"]
    )
    if DISABLED in root.traits and state in ("no note", "ready"):
        state = "disabled"
    if note.get("drains"):
        state = "drained"
    if heard.silent:
        state = "silent"
    counts = not heard.silent and not closed and DISABLED not in root.traits
    amounts: dict[str, tuple[int, int]] = {}
    instances: set[str] = set()
    for provider in view.reachable:
        if provider.root_uuid != root.uuid:
            continue
        instances.update(model.consumers_by_provider.get(provider.uuid, ()))
        for name, inventory in provider.inventories.items():
            capacity = int(inventory.capacity)
            free = max(0, capacity - view.used(provider.uuid, name))
            before = amounts.get(name, (0, 0))
            amounts[name] = (before[0] + free, before[1] + capacity)
    free, capacity = amounts.get(of_class, (0, 0))
    return Row(
        root.uuid,
        root.name,
        state if state in STATES else "degraded",
        counts,
        heard.age_s,
        note.get("version", ""),
        closed or next(iter(note.get("reasons", ())), ""),
        len(instances),
        len(note.get("moves", ())),
        sum(note.get("findings", {}).values()),
        sum(note.get("withheld", {}).values()),
        dict(sorted(amounts.items())),
        round(free / capacity, 3) if capacity else None,
        room.guests if room and counts else None,
        room.stranded if room and counts else None,
        sorted(root.aggregates),
        sorted(name for name in root.traits if name.startswith("CUSTOM_")),
    )


class Table(NamedTuple):
    """All hosts; `rooms` has the places of each that counts, by the uuid of its root."""

    rows: Sequence[Row]
    rooms: Mapping[str, _Room]
    model: Model


def read_table(model: Model, notes: HostNotes | None, query: CandidateQuery | None, of_class: str) -> Table:
    """The rows of all hosts, each as it is at one moment; `notes` None: there are none to be had.

    Raises RequestRefused (400) where the query has a class or a trait that does not exist.
    """
    if query is not None:
        unknown = sorted(
            (query.resource_classes() - model.resource_classes.keys())
            | (query.trait_names() - model.traits.keys())
        )
        if unknown:
            raise RequestRefused(BAD_REQUEST, f"No such resource class or trait: {', '.join(unknown)}.")
    with model.lock.reading():
        reach = ProviderReach(model)
    rows, rooms = [], {}
    for root in hosts_of(model):
        view = reach.view(root.uuid)
        if view is None:
            continue
        heard = Heard(None, None, silent=False) if notes is None else notes.heard(root.uuid)
        room = None if query is None else _room(view, root, query)
        with model.lock.reading():
            row = _row(model, view, view.providers[root.uuid], heard, room, of_class)
        rows.append(row)
        if room is not None and row.counts:
            rooms[root.uuid] = room
    return Table(rows, rooms, model)


def sums(table: Table, rows: Iterable[Row]) -> dict[str, Any]:
    """The sums over these rows; of hosts that count, where it is about what is free.

    Hosts that share a pool do not each have all of it: guests are counted until the pool is empty.
    """
    rows = list(rows)
    free: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    taken: Counter[tuple[str, str]] = Counter()
    room = 0
    for row in rows:
        if not row.counts:
            continue
        for name, (amount, capacity) in row.resources.items():
            free[name] += amount
            whole[name] += capacity
        for place, times in table.rooms[row.uuid].places if row.uuid in table.rooms else ():
            shared, fitting = [], times
            for uuid, amounts in place.items():
                pool = table.model.provider(uuid)
                if pool is not None and pool.is_sharing:
                    shared += [(pool, name, amount) for name, amount in amounts.items()]
            for pool, name, amount in shared:
                left = int(pool.inventories[name].capacity) - table.model.used(pool.uuid, name)
                fitting = max(0, min(fitting, (left - taken[pool.uuid, name]) // amount))
            taken.update({(pool.uuid, name): amount * fitting for pool, name, amount in shared})
            room += fitting
    states = Counter(row.state for row in rows)
    return {
        "hosts": len(rows),
        "states": {state: states[state] for state in STATES if states[state]},
        "not_counted": sum(not row.counts for row in rows),
        "with_findings": sum(row.findings > 0 for row in rows),
        "instances": sum(row.instances for row in rows),
        "moves": sum(row.moves for row in rows),
        "resources": {name: (free[name], whole[name]) for name in sorted(whole)},
        "room": room if table.rooms else None,
        "stranded": sum(row.stranded or 0 for row in rows) if table.rooms else None,
    }


def sentence(total: Mapping[str, Any], room_for: str) -> str:
    """What an operator reads first."""
    states = total["states"]
    parts = [
        f"{states[state]} {words}"
        for state, words in (
            ("silent", "silent for 5 min"),
            ("degraded", "degraded"),
            ("starting", "starting"),
            ("stopping", "stopping"),
            ("drained", "drained"),
            ("closed", "closed"),
            ("disabled", "disabled"),
            ("no note", "without a note"),
        )
        if state in states
    ]
    if total["with_findings"]:
        parts.append(f"{total['with_findings']} with findings")
    said = f"{counted(total['hosts'], 'host')}: {', '.join(parts) or 'all ready'}"
    if room_for:
        said += f"; room for {total['room'] or 0} {room_for}, {total['stranded'] or 0} stranded"
    return said


def groups_of(row: Row, group: str) -> Sequence[str]:
    """The groups that the host is in; NO_GROUP alone where it is in none."""
    if group == "state":
        return (row.state,)
    return (row.aggregates if group == "aggregate" else row.traits) or (NO_GROUP,)


def show_table(table: Table, wanted: Wanted, *, every: bool = False) -> dict[str, Any]:
    """The answer: the sentence, the sums, the groups, and one page of the rows that were asked for.

    `every`: also all hosts in short, for an overview. Raises RequestRefused (400) for an unknown column.
    """
    total = sums(table, table.rows)
    column = wanted.sort.removeprefix("-") or "state"
    if (
        column not in COLUMNS
        and column not in total["resources"]
        and column not in table.model.resource_classes
    ):
        raise RequestRefused(
            BAD_REQUEST,
            f"There is no column {column!r} to sort by; there are {', '.join(COLUMNS)} and resource classes.",
        )
    found = [row for row in table.rows if row.has(wanted.search)]
    groups: dict[str, list[Row]] = {}
    if wanted.group:
        for row in found:
            for name in groups_of(row, wanted.group):
                groups.setdefault(name, []).append(row)
        if wanted.within:
            found = groups.get(wanted.within, [])
    known = [row for row in found if row.key(column) is not None]
    known.sort(key=lambda row: row.name)
    known.sort(key=lambda row: row.key(column), reverse=wanted.sort.startswith("-"))
    found = known + [row for row in found if row.key(column) is None]
    pages = max(1, -(-len(found) // wanted.limit))
    page = min(wanted.page, pages)
    first = (page - 1) * wanted.limit
    shown: dict[str, Any] = {
        "sentence": sentence(total, wanted.label),
        **total,
        "groups": {name: sums(table, rows) for name, rows in sorted(groups.items())},
        "found": len(found),
        "page": page,
        "pages": pages,
        "rows": [row._asdict() for row in found[first : first + wanted.limit]],
    }
    if every:
        shown["every"] = [(row.uuid, row.name, row.state, row.counts, row.share) for row in table.rows]
    return shown


def show_host(model: Model, notes: HostNotes | None, uuid: str, wanted: Wanted) -> dict[str, Any] | None:
    """One host: its row and note, its providers with what is used, and who has it. None: there is none."""
    with model.lock.reading():
        reach = ProviderReach(model)
        root = model.provider(uuid)
    view = None if root is None or root.parent_uuid is not None else reach.view(uuid)
    if root is None or view is None:
        return None
    heard = Heard(None, None, silent=False) if notes is None else notes.heard(uuid)
    with model.lock.reading():
        row = _row(model, view, root, heard, None, wanted.of_class)
        tree = [one for one in view.reachable if one.root_uuid == uuid]
        consumers = {each.uuid: each for one in tree for each in model.consumers_of(one.uuid)}
    names = {one.uuid: one.name for one in view.reachable}
    depths: dict[str | None, int] = {None: -1}
    children: dict[str | None, list[ProviderRecord]] = {}
    for one in tree:
        children.setdefault(one.parent_uuid, []).append(one)
    ordered, left = [], children.get(None, [])[:1]
    while left:
        one = left.pop(0)
        depths[one.uuid] = depths[one.parent_uuid] + 1
        ordered.append(one)
        left[:0] = children.get(one.uuid, [])
    return {
        "host": row._asdict(),
        "note": heard.note,
        "providers": [
            {
                "uuid": one.uuid,
                "name": one.name,
                "depth": depths[one.uuid],
                "traits": sorted(one.traits),
                "resources": {
                    name: {
                        "used": view.used(one.uuid, name),
                        "capacity": int(inventory.capacity),
                        "total": inventory.total,
                        "reserved": inventory.reserved,
                    }
                    for name, inventory in sorted(one.inventories.items())
                },
            }
            for one in ordered
        ],
        "consumers": [
            {
                "uuid": each.uuid,
                "type": each.consumer_type,
                "project_id": each.project_id,
                "allocations": {names.get(uuid, uuid): dict(part) for uuid, part in each.allocations.items()},
            }
            for each in sorted(consumers.values(), key=lambda each: each.uuid)
        ],
    }


# The page

COLUMNS_OF_CLASSES = ("VCPU", "PCPU", "MEMORY_MB", "DISK_GB")
REFRESH_S = range(5, 3601)


@cache
def page() -> Page:
    """The page of the fleet and of a host; what it is made of is imported when it is shown first."""
    from agent.http.page import Page

    return Page("agent.placement.embedded", "fleet")


def render(shown: Mapping[str, Any], query: str, standby_of: str | None) -> str:
    """The HTML of an answer to GET /fleet or /fleet/{uuid} with that query string.

    `standby_of` is the address of the active server, "" for an unknown one; None: this one is active.
    """
    asked = {name: value for name, value in Query(query).as_dict().items() if value}
    refresh = asked.get("refresh", "")
    refresh_s = int(refresh[:9]) if refresh.isascii() and refresh.isdigit() else 0
    is_host, resources = "host" in shown, shown.get("resources", {})

    def link(**changes: object) -> str:
        words = {name: str(value) for name, value in {**asked, **changes}.items() if value is not None}
        return f"?{urlencode({name: value for name, value in words.items() if name != 'every'})}"

    columns = [
        name for name in dict.fromkeys((*COLUMNS_OF_CLASSES, asked.get("class", "VCPU"))) if name in resources
    ]
    return page().render(
        shown=shown,
        host=is_host,
        note=defaultdict(str, shown.get("note") or {}),
        asked=defaultdict(str, asked),
        link=link,
        refresh_s=refresh_s if refresh_s in REFRESH_S else 0,
        stale=standby_of is not None,
        active=standby_of,
        classes=sorted({"VCPU", *resources}),
        columns=columns,
        orders=[
            "",
            *(f"{sign}{name}" for name in (*COLUMNS, *columns) if name != "state" for sign in ("", "-")),
        ],
    )


# The metrics

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def metrics(model: Model, notes: HostNotes, *, active: bool) -> str:
    """The fleet and each column of its table, in Prometheus's text format.

    A server that is not active has no notes, and tells nothing but that.
    """
    told = "# HELP plimsoll_fleet_active 1 if this server takes writes.\n# TYPE plimsoll_fleet_active gauge\n"
    told += f"plimsoll_fleet_active {active:d}\n"
    if not active:
        return told
    tables = {
        name: read_table(model, notes, room_query(name, notes.flavors), "VCPU") for name in notes.flavors
    }
    rows = read_table(model, notes, None, "VCPU").rows
    total = sums(Table(rows, {}, model), rows)
    rooms = {name: sums(table, table.rows) for name, table in tables.items()}
    classes = [(row, name, amounts) for row in rows for name, amounts in row.resources.items()]
    by_flavor = [(row, name) for name, table in tables.items() for row in table.rows if row.counts]
    lines: list[str] = []

    def tell(name: str, text: str, samples: Iterable[tuple[Mapping[str, str], float]]) -> None:
        lines.extend((f"# HELP plimsoll_fleet_{name} {text}", f"# TYPE plimsoll_fleet_{name} gauge"))
        for labels, value in samples:
            named = ",".join(f'{label}="{word.translate(_ESCAPES)}"' for label, word in labels.items())
            lines.append(f"plimsoll_fleet_{name}{{{named}}} {value:.10g}")

    tell(
        "hosts",
        "Hosts by state.",
        (({"state": state}, total["states"].get(state, 0)) for state in STATES),
    )
    for place, (name, what) in enumerate((("free", "What is free"), ("capacity", "The capacity"))):
        amounts = total["resources"].items()
        tell(
            name,
            f"{what} on the hosts that are neither silent nor closed nor disabled.",
            (({"resource_class": each}, amount[place]) for each, amount in amounts),
        )
        tell(
            f"host_{name}",
            f"{what} on the host, in any state.",
            (({"host": row.name, "resource_class": each}, amount[place]) for row, each, amount in classes),
        )
    for name, what in (("room", "Guests of the flavor that fit"), ("stranded", "Guests that lack a place")):
        tell(
            name,
            f"{what}, on the hosts that are neither silent nor closed nor disabled.",
            (({"flavor": flavor}, each[name]) for flavor, each in rooms.items()),
        )
        tell(
            f"host_{name}",
            f"{what}, on the host.",
            (({"host": row.name, "flavor": flavor}, getattr(row, name)) for row, flavor in by_flavor),
        )
    tell(
        "host_state",
        "1 for the state of the host.",
        (({"host": row.name, "state": row.state}, 1) for row in rows),
    )
    tell(
        "host_info",
        "The version of the host's agent, as far as it is known.",
        (({"host": row.name, "version": row.version}, 1) for row in rows),
    )
    tell(
        "host_note_age_seconds",
        "How long ago the host's agent left its last note.",
        (({"host": row.name}, row.age_s) for row in rows if row.age_s is not None),
    )
    for name, what in (
        ("instances", "Consumers that have something on the host."),
        ("moves", "Moves under way in which the host takes part."),
        ("findings", "Findings of the last audit of the host."),
        ("withheld", "Units that cordoned and unhealthy devices of the host keep from guests."),
    ):
        tell(f"host_{name}", what, (({"host": row.name}, getattr(row, name)) for row in rows))
    return told + "\n".join(lines) + "\n"


# Which hosts fit a request

NOTHING: Mapping[str, int] = {}
REVERTIBLE = ("beginning", "begun", "reverting")
"""States in which a revert of the move gives the instance's place back."""


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

    `left` is {class: [free, capacity, usable]} of the host's own providers together, beside the candidate: of
    a class that is asked, that is usable which is free in whole parts of a guest, where a group may take it.
    """
    hosts = []
    takers = {name: _takers(query, name) for name in query.resource_classes()}
    for candidate, view in find_candidates(model, query, one_a_tree=True):
        root = view.providers[view.reachable[0].root_uuid]
        if root.is_sharing or closed_reason(notes, root):
            continue
        left: dict[str, list[int]] = {}
        for provider in view.reachable:
            if provider.root_uuid != root.uuid:
                continue
            used, given = view.usage(provider.uuid), candidate.allocations.get(provider.uuid, NOTHING)
            for name, inventory in provider.inventories.items():
                capacity = int(inventory.capacity)
                free = capacity - used.get(name, 0) - given.get(name, 0)
                usable = 0
                if (taker := takers.get(name)) is not None and free > 0:
                    part, admit = taker
                    if part <= inventory.max_unit and (admit is None or admit(provider)):
                        usable = free - free % part
                sums = left.get(name)
                if sums is None:
                    left[name] = [free, capacity, usable]
                else:
                    sums[0] += free
                    sums[1] += capacity
                    sums[2] += usable
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

    `trees` has [why the host is closed, why its reshape waits, provider, ...] for each: the root, and the
    providers that have an aggregate or a class or trait of the query, or all where it has a subtree.
    `sharing` are the sharing providers, and `moving` the instances whose moves, by the hosts' notes, can be
    reverted. A provider is [uuid, name, parent's uuid, {class: [total, reserved, min_unit, max_unit,
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

    found, moving = [], []
    for root in hosts_of(model) if within is None else roots_of(model, within):
        with model.lock.reading():
            tree = model.tree(root.uuid)
            if not tree:
                continue
            rows = [row(provider) for provider in tree if provider.uuid != root.uuid]
            rows = [each for each in rows if query.same_subtrees or any(each[3:6])]
            note = notes.heard(root.uuid).note or {}
            found.append([closed_reason(notes, root), note.get("reshape") or "", row(root), *rows])
            moves = note.get("moves", ())
            moving += [move["instance"] for move in moves if move["state"] in REVERTIBLE]
    with model.lock.reading():
        sharing = [*map(row, model.providers_with_trait(SHARING_TRAIT))]
    return {"trees": found, "sharing": sharing, "moving": moving}
