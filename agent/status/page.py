"""The status page: one HTML document, made from the overview; nothing in it is loaded from anywhere.

Whatever a guest, a claim or a provider is called is text: the template escapes everything. Widths of bars are
attributes of SVG, since the policy allows no inline styles but the one sheet, named by its hash.
"""

import base64
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import resources

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from agent.moves.states import Move
from agent.reshape.receipt import Receipt
from agent.reshape.types import name_of
from agent.shapes import Allocations, Units
from agent.state.journal import Event
from agent.status.overview import Overview
from agent.tree import Provider

ROWS_MAX = 500
NEARLY_FULL = 0.75
UNITS_SHOWN = 8
DEPTH_MAX = 5


def _resource(name: str) -> str:
    return resources.files("agent.status").joinpath(name).read_text(encoding="utf-8")


STYLE = _resource("page.css")
_DIGEST = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
CSP = (
    f"default-src 'none'; style-src 'sha256-{_DIGEST}'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


@dataclass(frozen=True, slots=True)
class Bar:
    """One resource class of a provider; `percent` is how much of the bar is filled, `level` a CSS class."""

    name: str
    used: int
    capacity: int
    percent: float
    level: str
    note: str


@dataclass(frozen=True, slots=True)
class Branch:
    """A provider in its place: `depth` is 0 for a root, and counted up to DEPTH_MAX."""

    provider: Provider
    depth: int
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A guest, a claim, or both."""

    name: str
    uuid: str
    guest: str
    claim: str
    level: str
    since: str
    holds: tuple[str, ...]


def page(seen: Overview, receipt: Receipt | None, events: tuple[Event, ...], refresh_s: int | None) -> str:
    """`receipt` is the last reshape's, `events` the newest first; the page reloads every `refresh_s`."""
    uuids = _uuids(seen)
    return _template().render(
        seen=seen,
        status=seen.status,
        style=Markup(STYLE),  # noqa: S704 - our own file
        refresh_s=refresh_s,
        tree=list(_branches(seen)),
        rows=[_row(seen, uuid) for uuid in uuids[:ROWS_MAX]],
        more=max(0, len(uuids) - ROWS_MAX),
        moves=[_move(seen, each) for each in seen.under_way[:ROWS_MAX]],
        findings=seen.findings[:ROWS_MAX],
        reshape=_reshape(seen, receipt) if receipt else None,
        events=[(moment(each.at), each.event, _called(seen, each.consumer), each.detail) for each in events],
        at=moment(seen.at),
        since=moment(seen.since),
        passed=moment(seen.passed_at) if seen.passed_at else None,
        failed=[check for check in (*seen.health.live, *seen.health.ready) if not check.ok],
        running=sum(guest.state == "running" for guest in seen.guests),
    )


@cache
def _template() -> Template:
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_resource("page.html"))


def moment(seconds: float) -> str:
    return (
        datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ", timespec="seconds").replace("+00:00", " UTC")
    )


# The tree


def _branches(seen: Overview) -> Iterator[Branch]:
    depths: dict[str | None, int] = {None: -1}
    for provider in seen.tree:  # parents before their children
        depth = depths[provider.uuid] = depths[provider.parent] + 1
        yield Branch(provider, min(depth, DEPTH_MAX), tuple(_bars(seen, provider)))


def _bars(seen: Overview, provider: Provider) -> Iterator[Bar]:
    held = seen.used.get(provider.uuid, {})
    for name in sorted({*provider.inventories, *(each for each, amount in held.items() if amount)}):
        inventory, used = provider.inventories.get(name), held.get(name, 0)
        capacity = inventory.capacity if inventory else 0
        share = used / capacity if capacity > 0 else float(used > 0)
        note = []
        if inventory is None:
            note.append("no inventory")
        elif capacity != inventory.total:
            note.append(f"total {inventory.total}")
            note.extend([f"reserved {inventory.reserved}"] if inventory.reserved else [])
            note.extend([f"ratio {inventory.allocation_ratio:g}"] if inventory.allocation_ratio != 1 else [])
        if used > capacity:
            note.append("over-used")
        yield Bar(name, used, capacity, round(100 * min(share, 1.0), 1), _level(share), ", ".join(note))


def _level(share: float) -> str:
    return "full" if share >= 1 else "high" if share > NEARLY_FULL else "some"


# Guests and claims


def _uuids(seen: Overview) -> list[str]:
    """Migrations are told among the moves."""
    migrations = {move.migration for move in seen.moves}
    uuids = {*(guest.uuid for guest in seen.guests), *seen.claims} - migrations
    return sorted(uuids, key=lambda uuid: (seen.name_of(uuid), uuid))


def _row(seen: Overview, uuid: str) -> Row:
    guest = seen.guest_by_uuid.get(uuid)
    claim = seen.claims.get(uuid)
    if claim is not None:
        told = f"{claim.state}, adopted" if claim.adopted else str(claim.state)
        holds = tuple(_holds(seen, claim.allocations, claim.units))
    else:
        told = "unclaimed"
        used = dict(guest.resources) if guest else {}
        holds = tuple(f"{amount} {name}" for name, amount in sorted(used.items()))
    level = "bad" if claim is None else "good" if claim.state == "claimed" else "busy"
    since = moment(claim.since) if claim else ""
    return Row(seen.name_of(uuid), uuid, str(guest.state) if guest else "none", told, level, since, holds)


def _holds(seen: Overview, allocations: Allocations, units: Units) -> Iterator[str]:
    for where, amounts in sorted(allocations.items(), key=lambda each: name_of(each[0], seen.tree)):
        provider = seen.tree.get(where)
        place = "" if provider is None or provider.parent is None else f" on {provider.name}"
        for name, amount in sorted(amounts.items()):
            exact = units.get(where, {}).get(name, ())
            more = f" and {len(exact) - UNITS_SHOWN} more" if len(exact) > UNITS_SHOWN else ""
            which = f": {', '.join(exact[:UNITS_SHOWN])}{more}" if exact else ""
            yield f"{amount} {name}{place}{which}"


# Moves and reshapes


def _move(seen: Overview, move: Move) -> dict[str, object]:
    return {
        "move": move,
        "name": seen.name_of(move.instance) or move.instance,
        "since": moment(move.since),
        "old": tuple(_holds(seen, move.handed, move.old.units)),
        "new": tuple(_holds(seen, move.new.allocations, move.new.units)) if move.new else (),
    }


def _reshape(seen: Overview, receipt: Receipt) -> dict[str, object]:
    """What was in each slot before and after; allocations by what they moved."""
    names = {each.uuid: each.name for each in receipt.sources} | {each.uuid: each.name for each in seen.tree}
    by_provider: dict[str, list[tuple[str, int, int]]] = {}
    for slot, before in sorted(receipt.before.items()):
        row = (slot.resource_class, _total(before), _total(receipt.after.get(slot)))
        by_provider.setdefault(names.get(slot.provider, slot.provider), []).append(row)
    moved = [
        (
            _called(seen, each.consumer),
            f"{each.amount} {each.resource_class}",
            names.get(each.source, each.source),
            names.get(each.target, each.target),
        )
        for each in sorted(receipt.relocations)[:ROWS_MAX]
    ]
    return {
        "receipt": receipt,
        "at": moment(receipt.at),
        "providers": sorted(by_provider.items()),
        "moved": moved,
    }


def _total(inventory: object) -> int:
    return int(getattr(inventory, "total", 0))


def _called(seen: Overview, uuid: str) -> str:
    return seen.name_of(uuid) or uuid if uuid else ""
