"""The status page, the health checks and the metrics: a WSGI application, and the listener that serves it.

The page is one HTML document, rendered from the overview. It loads nothing. The template escapes every name
of a guest, a claim or a provider, and spells characters that a browser would not show or that turn the
order of the others (U+202E). Links and a form choose the guests, no script. The widths of the bars are SVG
attributes, because the content security policy allows no inline style except the one sheet, by its hash.

The listener answers GET and HEAD of a few paths, over TCP, for every client that can connect. An address
off loopback has no status page: the page names guests, and TCP does not tell who reads it. At a loopback
address a request must name a loopback host, so that no web page can have a browser read the status under a
name of its own (DNS rebinding).
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from werkzeug.wrappers import Request

from agent import __version__, log
from agent.config.access import Address
from agent.errors import MORE_DESCRIPTORS, PlimsollError, UsageError, first_few, plain
from agent.http.errors import ListenError, OutOfDescriptors
from agent.http.page import HTML_TYPE, Page, is_loopback
from agent.http.process import long_computation
from agent.http.server import BoundedServer, Limits, Listener, stop_all
from agent.reshape.laws import name_of
from agent.reshape.receipt import Receipt
from agent.shapes import Allocations, Units
from agent.state.journal import Event
from agent.status.host_status import HostStatus
from agent.status.overview import Health, HealthCheck, Overview
from agent.tree import Provider

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

ROWS_MAX = 500
GUESTS_A_PAGE = 25
UNFOLDED_MAX = 10
HOLDS_UNFOLDED_MAX = 6
NEARLY_FULL = 0.75
UNITS_SHOWN = 8
DEPTH_MAX = 5


PAGE = Page("agent.status", "page")


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
    # Guests and claims by name; the moves show the migrations.
    migrations = {move.migration for move in overview.moves}
    uuids = {*(guest.uuid for guest in overview.guests), *overview.claims} - migrations
    by_name = sorted(uuids, key=lambda uuid: (overview.name_of(uuid), uuid))
    every = [_row(overview, uuid) for uuid in by_name]
    states = Counter(row.claim for row in every)
    # A whole state finds only that state, because `unclaimed` contains `claimed`.
    found = [row for row in every if (row.claim == view.find if view.find in states else row.has(view.find))]
    pages = max(1, -(-len(found) // GUESTS_A_PAGE))
    view = replace(view, page=min(view.page, pages))
    first = (view.page - 1) * GUESTS_A_PAGE
    status = overview.status
    failed = [check for check in (*overview.health.live, *overview.health.ready) if not check.ok]
    said = {check.reason for check in failed}
    return PAGE.render(
        overview=overview,
        status=status,
        version=__version__,
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
        moves=[
            {
                "move": move,
                "name": overview.name_of(move.instance) or move.instance,
                "since": utc_time(move.since),
                "old": tuple(_holds(overview, move.handed, move.old.units)),
                "new": tuple(_holds(overview, move.new.allocations, move.new.units)) if move.new else (),
            }
            for move in overview.under_way[:ROWS_MAX]
        ],
        findings=overview.findings[:ROWS_MAX],
        reshape=_reshape(overview, receipt) if receipt else None,
        events=[
            (utc_time(event.at), event.event, _consumer_name(overview, event.consumer), event.detail)
            for event in events
        ],
        at=utc_time(overview.at),
        since=utc_time(status.since),
        passed=utc_time(status.last_pass.at) if status.last_pass else None,
        next_try=utc_time(status.next_try) if status.next_try else None,
        audited=utc_time(status.audited) if status.audited else None,
        failed=failed,
        reasons=[reason for reason in status.reasons if reason not in said],
        running=sum(guest.state == "running" for guest in overview.guests),
    )


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
        bars = []
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
                ratio = inventory.allocation_ratio
                notes.append(f"total {inventory.total}")
                notes.extend([f"reserved {inventory.reserved}"] if inventory.reserved else [])
                notes.extend([f"ratio {ratio:g}"] if ratio != 1 else [])
            if used > capacity:
                notes.append("over-used")
            bars.append(
                Bar(
                    name,
                    used,
                    capacity,
                    round(100 * (used - unclaimed) / whole, 1),
                    round(100 * unclaimed / whole, 1),
                    "full" if share >= 1 else "high" if share > NEARLY_FULL else "some",
                    ", ".join(notes),
                )
            )
        yield Branch(provider, min(depth, DEPTH_MAX), tuple(bars))


# Guests and claims


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
            which = f": {first_few(exact, UNITS_SHOWN)}" if exact else ""
            yield f"{amount} {name}{place}{which}"


# Reshapes


def _reshape(overview: Overview, receipt: Receipt) -> dict[str, object]:
    """Each provider's totals before and after the reshape, and the allocations that moved."""
    names = {source.uuid: source.name for source in receipt.sources} | {
        provider.uuid: provider.name for provider in overview.tree
    }
    by_provider: dict[str, list[tuple[str, int, int]]] = {}
    for slot, before in sorted(receipt.before.items()):
        was, now = (each.total if each else 0 for each in (before, receipt.after.get(slot)))
        row = (slot.resource_class, was, now)
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


def _consumer_name(overview: Overview, uuid: str) -> str:
    return overview.name_of(uuid) or uuid if uuid else ""


LOG = log.get(__name__)

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
JSON_TYPE = "application/json"
REFRESH_MIN_S, REFRESH_MAX_S = 5, 3600
EVENTS_SHOWN = 12
FIND_CHARS_MAX, PAGE_MAX = 200, 999_999


class WebResponse(NamedTuple):
    """A response, here and of the local API: `body` is JSON-ready, or bytes of the media type `kind`."""

    status: int
    body: Any
    headers: Mapping[str, str] = MappingProxyType({})
    kind: str = JSON_TYPE

    @property
    def content(self) -> bytes:
        """The body as it is sent."""
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode() + b"\n"

    def send(self, start_response: "StartResponse", headers: Mapping[str, str]) -> Iterable[bytes]:
        """Send it as PEP 3333 says, with these headers beside its own; the server adds its length."""
        told = {"Content-Type": self.kind, **self.headers, **headers}
        start_response(f"{self.status} {HTTPStatus(self.status).phrase}", list(told.items()))
        return (self.content,)


def healthz(host_status: HostStatus) -> WebResponse:
    """200 as long as the agent answers; `state` is its state."""
    return WebResponse(200, health_view(host_status.health(), ()))


def livez(host_status: HostStatus) -> WebResponse:
    """200 if the agent is alive, else 503: a restart helps."""
    health = host_status.health()
    return _probe(health, health.live)


def readyz(host_status: HostStatus) -> WebResponse:
    """200 if the agent can take claims, else 503."""
    health = host_status.health()
    return _probe(health, health.ready)


def metrics(host_status: HostStatus) -> WebResponse:
    """The metrics in Prometheus's text format."""
    return WebResponse(200, host_status.metrics(), kind=METRICS_TYPE)


def status_page(host_status: HostStatus, asked: Mapping[str, str]) -> WebResponse:
    """The status page; `asked` has the query parameters. Raises UsageError, StateError."""
    find = asked.get("find", "").strip()
    if len(find) > FIND_CHARS_MAX:
        raise UsageError(
            f"The query parameter find has {len(find)} characters; it may have {FIND_CHARS_MAX}",
            parameter="find",
        )
    refresh_s = (
        _number("refresh", asked["refresh"], REFRESH_MIN_S, REFRESH_MAX_S, " seconds")
        if "refresh" in asked
        else None
    )
    view = View(find, _number("page", asked.get("page", "1"), 1, PAGE_MAX), refresh_s)
    receipts = host_status.receipts()
    text = render_page(
        host_status.overview(),
        receipts[-1] if receipts else None,
        host_status.history(limit=EVENTS_SHOWN),
        view,
    )
    return WebResponse(200, text.encode(), kind=HTML_TYPE)


def health_view(health: Health, checks: Iterable[HealthCheck]) -> dict[str, object]:
    """JSON-ready {ok, state, failed: [name], checks: {name: {ok, reason}}}."""
    checks = tuple(checks)
    return {
        "ok": all(check.ok for check in checks),
        "state": health.state,
        "failed": [check.name for check in checks if not check.ok],
        "checks": {check.name: {"ok": check.ok, "reason": check.reason or None} for check in checks},
    }


def _probe(health: Health, checks: tuple[HealthCheck, ...]) -> WebResponse:
    view = health_view(health, checks)
    return WebResponse(200 if view["ok"] else 503, view)


def _number(name: str, word: str, least: int, most: int, unit: str = "") -> int:
    if word.isascii() and word.isdigit() and len(word) <= len(str(most)) and least <= int(word) <= most:
        return int(word)
    raise UsageError(
        f"The query parameter {name} must be {least} to {most}{unit}, not {word[:FIND_CHARS_MAX]!r}",
        parameter=name,
    )


PATHS: Mapping[str, Callable[[HostStatus], WebResponse]] = {
    "/healthz": healthz,
    "/livez": livez,
    "/readyz": readyz,
    "/metrics": metrics,
}


class Web:
    """A WSGI application. With `local`, it is at a loopback address, and serves the page."""

    def __init__(self, host_status: HostStatus, *, local: bool) -> None:
        self._host_status = host_status
        self._local = local

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        request = Request(environ)
        try:
            with long_computation():
                answer = self._answer(request)
        except PlimsollError as error:
            answer = _plain(error.http_status, error.message)
        except Exception:
            # The caller gets no details; the log has them.
            LOG.exception("Unexpected error in %s %s", request.method, request.path)
            answer = _plain(500, "The agent failed unexpectedly; its log has the details.")
        return answer.send(start_response, PAGE.headers)

    def _answer(self, request: Request) -> WebResponse:
        if request.method not in ("GET", "HEAD"):
            only = _plain(405, "This address is read-only: use GET or HEAD.")
            return only._replace(headers={"Allow": "GET, HEAD"})
        if self._local and not is_loopback(request.headers.get("Host", "")):
            return _plain(
                421, "This address answers requests for localhost only, and the request names another host."
            )
        if request.path == "/":
            if not self._local:
                return _plain(
                    403,
                    "The status page names guests, so it is served at loopback addresses only. Set [http] "
                    "listen = 127.0.0.1:9464, and reach it with ssh -L 9464:127.0.0.1:9464 HOST.",
                )
            return status_page(self._host_status, request.args)
        show = PATHS.get(request.path)
        if show is None:
            return _plain(404, f"There is nothing at this path; the paths are / and {', '.join(PATHS)}.")
        return show(self._host_status)


def _plain(status: int, sentence: str) -> WebResponse:
    return WebResponse(status, f"{sentence}\n".encode(), kind="text/plain; charset=utf-8")


LIMITS = Limits(
    threads=4,
    backlog=512,
    connections=640,
    kept_alive=8,
    header_bytes=8 * 1024,
    body_bytes=0,
    reserve=24,  # the local API's 8, and some clients there
    io_timeout_s=5,
    request_timeout_s=5.0,
)


class HttpListener:
    """Serves `host_status` at each of the addresses, of which there may be none."""

    def __init__(self, host_status: HostStatus, addresses: Sequence[Address]) -> None:
        self._listeners = []
        for address in addresses:
            application = Web(host_status, local=address.is_loopback)
            server = BoundedServer((address.host, address.port), application, LIMITS)
            self._listeners.append(Listener(server, f"http {address}"))

    def start(self) -> None:
        """Listen; when this returns, requests are answered.

        The log names an address that cannot be used; that does not keep the agent from starting.
        """
        for listener in self._listeners:
            try:
                listener.start()
            except ListenError as error:
                remedy = "set [http] listen to an address of this machine that is not in use"
                if isinstance(error, OutOfDescriptors):
                    remedy = MORE_DESCRIPTORS
                LOG.error(
                    "Nothing is served at %s: %s; %s, and restart the agent.", listener.address, error, remedy
                )
        if self.addresses:
            LOG.info("The health checks and the metrics are at %s.", ", ".join(self.addresses))

    @property
    def addresses(self) -> list[str]:
        """The addresses in use; a configured port 0 is shown as the real port."""
        return [listener.address for listener in self._listeners if listener.is_running]

    def stop(self) -> None:
        """Finish the requests under way and close; idempotent."""
        stop_all(self._listeners)
