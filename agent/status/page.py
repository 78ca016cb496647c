"""The status page: one HTML document, rendered from the overview. It loads nothing.

The template escapes every name of a guest, a claim or a provider, and spells characters that a browser would
not show or that turn the order of the others (U+202E). Links and a form choose the guests, no script.
The widths of the bars are SVG attributes, because the content security policy allows no inline style except
the one sheet, by its hash.
"""

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from urllib.parse import urlencode

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup, escape

from agent.errors import plain
from agent.moves.states import Move
from agent.reshape.laws import name_of
from agent.reshape.receipt import Receipt
from agent.shapes import Allocations, Units
from agent.state.journal import Event
from agent.status.overview import Overview
from agent.tree import Provider

ROWS_MAX = 500
GUESTS_A_PAGE = 25
UNFOLDED_MAX = 10
HOLDS_UNFOLDED_MAX = 6
NEARLY_FULL = 0.75
UNITS_SHOWN = 8
DEPTH_MAX = 5
_QUOTED = re.compile("`([^`]+)`")


def _resource(name: str) -> str:
    return resources.files("agent.status").joinpath(name).read_text(encoding="utf-8")


STYLE = _resource("page.css")
_DIGEST = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
CSP = (
    f"default-src 'none'; style-src 'sha256-{_DIGEST}'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)


@dataclass(frozen=True, slots=True)
class View:
    """What a reader asked for: the guests with the text `find`, the page of them (from 1), a reload."""

    find: str = ""
    page: int = 1
    refresh_s: int | None = None

    def link(self, **changes: object) -> str:
        """The address of the page with these fields changed."""
        asked = {"find": self.find, "page": self.page, "refresh": self.refresh_s} | changes
        words = urlencode(
            {name: value for name, value in asked.items() if value and (name, value) != ("page", 1)}
        )
        return f"/?{words}" if words else "/"


@dataclass(frozen=True, slots=True)
class Bar:
    """One resource class of a provider. `percent` of the bar are filled; `level` is a CSS class.

    `unclaimed` percent follow, for what guests use beyond what is held and claimed for them.
    """

    name: str
    used: int
    capacity: int
    percent: float
    unclaimed: float
    level: str
    note: str


@dataclass(frozen=True, slots=True)
class Branch:
    """A provider of the tree. `depth` is 0 for the root, and at most DEPTH_MAX."""

    provider: Provider
    depth: int
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A guest and its claim; one of the two may be missing. `level` is a CSS class."""

    name: str
    uuid: str
    guest: str
    claim: str
    level: str
    since: str
    holds: tuple[str, ...]

    def has(self, text: str) -> bool:
        """Whether one of the words that the row shows contains the text, in any case."""
        words = (self.name, self.uuid, self.guest, self.claim, *self.holds)
        return any(plain(text).casefold() in plain(word).casefold() for word in words)


def render_page(
    overview: Overview, receipt: Receipt | None, events: tuple[Event, ...], view: View = View()
) -> str:
    """The page's HTML. `receipt` is the last reshape's; `events` come newest first.

    A page beyond the last one shows the last one: guests may have left since the link was drawn.
    """
    every = [_row(overview, uuid) for uuid in _uuids(overview)]
    states = Counter(row.claim for row in every)
    # A whole state finds only that state, because `unclaimed` contains `claimed`.
    found = [row for row in every if (row.claim == view.find if view.find in states else row.has(view.find))]
    pages = max(1, -(-len(found) // GUESTS_A_PAGE))
    view = replace(view, page=min(view.page, pages))
    first = (view.page - 1) * GUESTS_A_PAGE
    failed = [check for check in (*overview.health.live, *overview.health.ready) if not check.ok]
    said = {check.reason for check in failed}
    return _template().render(
        overview=overview,
        status=overview.status,
        style=Markup(STYLE),  # noqa: S704 - our own file
        view=view,
        unfolded=UNFOLDED_MAX,
        tree=list(_branches(overview)),
        rows=found[first : first + GUESTS_A_PAGE],
        first=first,
        found=len(found),
        every=len(every),
        pages=pages,
        claim_states=sorted(states.items()),
        holds_unfolded=HOLDS_UNFOLDED_MAX,
        moves=[_move(overview, move) for move in overview.under_way[:ROWS_MAX]],
        findings=overview.findings[:ROWS_MAX],
        reshape=_reshape(overview, receipt) if receipt else None,
        events=[
            (utc_time(event.at), event.event, _consumer_name(overview, event.consumer), event.detail)
            for event in events
        ],
        at=utc_time(overview.at),
        since=utc_time(overview.since),
        passed=utc_time(overview.passed_at) if overview.passed_at else None,
        next_try=utc_time(overview.next_try_at) if overview.next_try_at else None,
        audited=utc_time(overview.audited_at) if overview.audited_at else None,
        failed=failed,
        reasons=[reason for reason in overview.status["reasons"] if reason not in said],
        running=sum(guest.state == "running" for guest in overview.guests),
    )


@cache
def _template() -> Template:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_spelt
    )
    environment.filters |= {"commands": _commands, "breakable": _breakable}
    return environment.from_string(_resource("page.html"))


def _spelt(value: object) -> object:
    """What an expression of the template shows; the template escapes it afterwards."""
    return value if isinstance(value, Markup) else plain(value)


def _commands(sentence: str) -> Markup:
    """The sentence with what stands between backticks as code."""
    return Markup(_QUOTED.sub(r"<code>\1</code>", str(escape(plain(sentence)))))  # noqa: S704 - escaped


def _breakable(name: str) -> Markup:
    """A resource class, whose name a narrow screen may break after each underscore."""
    return Markup("_<wbr>").join(plain(name).split("_"))


def utc_time(seconds: float) -> str:
    """Seconds since 1970 as `2026-09-21 14:13:20 UTC`."""
    return (
        datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ", timespec="seconds").replace("+00:00", " UTC")
    )


# The tree


def _branches(overview: Overview) -> Iterator[Branch]:
    depths: dict[str | None, int] = {None: -1}
    for provider in overview.tree:  # parents before their children
        depth = depths[provider.uuid] = depths[provider.parent] + 1
        yield Branch(provider, min(depth, DEPTH_MAX), tuple(_bars(overview, provider)))


def _bars(overview: Overview, provider: Provider) -> Iterator[Bar]:
    in_use = overview.used.get(provider.uuid, {})
    for name in sorted({*provider.inventories, *(name for name, amount in in_use.items() if amount)}):
        inventory, used = provider.inventories.get(name), in_use.get(name, 0)
        capacity = inventory.capacity if inventory else 0
        share = used / capacity if capacity > 0 else float(used > 0)
        unclaimed = overview.unclaimed.get(provider.uuid, {}).get(name, 0)
        whole = max(capacity, used, 1)
        notes = [f"{unclaimed} unclaimed"] if unclaimed else []
        if inventory is None:
            notes.append("no inventory")
        elif capacity != inventory.total:
            notes.append(f"total {inventory.total}")
            notes.extend([f"reserved {inventory.reserved}"] if inventory.reserved else [])
            notes.extend([f"ratio {inventory.allocation_ratio:g}"] if inventory.allocation_ratio != 1 else [])
        if used > capacity:
            notes.append("over-used")
        yield Bar(
            name,
            used,
            capacity,
            round(100 * (used - unclaimed) / whole, 1),
            round(100 * unclaimed / whole, 1),
            _level(share),
            ", ".join(notes),
        )


def _level(share: float) -> str:
    return "full" if share >= 1 else "high" if share > NEARLY_FULL else "some"


# Guests and claims


def _uuids(overview: Overview) -> list[str]:
    """Guests and claims by name; the moves show the migrations."""
    migrations = {move.migration for move in overview.moves}
    uuids = {*(guest.uuid for guest in overview.guests), *overview.claims} - migrations
    return sorted(uuids, key=lambda uuid: (overview.name_of(uuid), uuid))


def _row(overview: Overview, uuid: str) -> Row:
    guest = overview.guest_by_uuid.get(uuid)
    claim = overview.claims.get(uuid)
    if claim is not None:
        claim_text = f"{claim.state}, adopted" if claim.adopted else str(claim.state)
        holds = tuple(_holds(overview, claim.allocations, claim.units))
    else:
        claim_text = "moving" if uuid in overview.moving else "unclaimed"
        used = dict(guest.resources) if guest else {}
        holds = tuple(f"{amount} {name}" for name, amount in sorted(used.items()))
    if uuid in overview.seen.moved_away:
        claim_text = "MOVED AWAY"
    is_bad = claim_text in ("unclaimed", "MOVED AWAY")
    level = "bad" if is_bad else "good" if claim and claim.state == "claimed" else "busy"
    since = utc_time(claim.since) if claim else ""
    return Row(
        overview.name_of(uuid), uuid, str(guest.state) if guest else "none", claim_text, level, since, holds
    )


def _holds(overview: Overview, allocations: Allocations, units: Units) -> Iterator[str]:
    for uuid, amounts in sorted(allocations.items(), key=lambda item: name_of(item[0], overview.tree)):
        provider = overview.tree.get(uuid)
        place = "" if provider is None or provider.parent is None else f" on {provider.name}"
        for name, amount in sorted(amounts.items()):
            exact = units.get(uuid, {}).get(name, ())
            more = f" and {len(exact) - UNITS_SHOWN} more" if len(exact) > UNITS_SHOWN else ""
            which = f": {', '.join(exact[:UNITS_SHOWN])}{more}" if exact else ""
            yield f"{amount} {name}{place}{which}"


# Moves and reshapes


def _move(overview: Overview, move: Move) -> dict[str, object]:
    return {
        "move": move,
        "name": overview.name_of(move.instance) or move.instance,
        "since": utc_time(move.since),
        "old": tuple(_holds(overview, move.handed, move.old.units)),
        "new": tuple(_holds(overview, move.new.allocations, move.new.units)) if move.new else (),
    }


def _reshape(overview: Overview, receipt: Receipt) -> dict[str, object]:
    """Each provider's totals before and after the reshape, and the allocations that moved."""
    names = {source.uuid: source.name for source in receipt.sources} | {
        provider.uuid: provider.name for provider in overview.tree
    }
    by_provider: dict[str, list[tuple[str, int, int]]] = {}
    for slot, before in sorted(receipt.before.items()):
        row = (slot.resource_class, _total(before), _total(receipt.after.get(slot)))
        by_provider.setdefault(names.get(slot.provider, slot.provider), []).append(row)
    moved = [
        (
            _consumer_name(overview, relocation.consumer),
            f"{relocation.amount} {relocation.resource_class}",
            names.get(relocation.source, relocation.source),
            names.get(relocation.target, relocation.target),
        )
        for relocation in sorted(receipt.relocations)[:ROWS_MAX]
    ]
    return {
        "receipt": receipt,
        "at": utc_time(receipt.at),
        "providers": sorted(by_provider.items()),
        "moved": moved,
    }


def _total(inventory: object) -> int:
    return int(getattr(inventory, "total", 0))


def _consumer_name(overview: Overview, uuid: str) -> str:
    return overview.name_of(uuid) or uuid if uuid else ""
