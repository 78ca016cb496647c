"""The status page, the health checks and the metrics: a WSGI application, and the listener that serves it.

The listener answers GET and HEAD of a few paths, over TCP, for every client that can connect. An address
off loopback has no status page: the page names guests, and TCP does not tell who reads it. At a loopback
address a request must name a loopback host, so that no web page can have a browser read the status under a
name of its own (DNS rebinding).
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from werkzeug.wrappers import Request, Response

from agent import log
from agent.config.address import Address
from agent.errors import MORE_DESCRIPTORS, PlimsollError, UsageError
from agent.http.errors import ListenError, OutOfDescriptors
from agent.http.listener import Listener, stop_all
from agent.http.server import BoundedServer, Limits
from agent.status.host_status import HostStatus
from agent.status.overview import Health, HealthCheck
from agent.status.page import CSP, View, render_page

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

LOG = log.get(__name__)

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
HTML_TYPE = "text/html; charset=utf-8"
JSON_TYPE = "application/json"
REFRESH_MIN_S, REFRESH_MAX_S = 5, 3600
EVENTS_SHOWN = 12
FIND_CHARS_MAX, PAGE_MAX = 200, 999_999
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": CSP,
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class WebResponse(NamedTuple):
    """A response; `text` has the media type `kind`."""

    status: int
    kind: str
    text: bytes


def healthz(host_status: HostStatus) -> WebResponse:
    """200 as long as the agent answers; `state` is its state."""
    return _json(200, health_view(host_status.health(), ()))


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
    return WebResponse(200, METRICS_TYPE, host_status.metrics())


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
    return WebResponse(200, HTML_TYPE, text.encode())


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
    return _json(200 if view["ok"] else 503, view)


def _json(status: int, body: Mapping[str, object]) -> WebResponse:
    return WebResponse(status, JSON_TYPE, json.dumps(body).encode() + b"\n")


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
            answer = self._answer(request)
        except PlimsollError as error:
            answer = WebResponse(
                error.http_status, "text/plain; charset=utf-8", f"{error.message}\n".encode()
            )
        except Exception:
            # The caller gets no details; the log has them.
            LOG.exception("Unexpected error in %s %s", request.method, request.path)
            answer = _plain(500, "The agent failed unexpectedly; its log has the details.")
        response = Response(answer.text, answer.status, content_type=answer.kind, headers=HEADERS)
        if answer.status == 405:
            response.headers["Allow"] = "GET, HEAD"
        return response(environ, start_response)

    def _answer(self, request: Request) -> WebResponse:
        if request.method not in ("GET", "HEAD"):
            return _plain(405, "This address is read-only: use GET or HEAD.")
        if self._local and not _is_loopback(request.headers.get("Host", "")):
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


def _is_loopback(host: str) -> bool:
    try:
        return urlsplit(f"//{host}").hostname in LOOPBACK_NAMES
    except ValueError:
        return False


def _plain(status: int, sentence: str) -> WebResponse:
    return WebResponse(status, "text/plain; charset=utf-8", f"{sentence}\n".encode())


LIMITS = Limits(
    threads=4,
    backlog=512,
    connections=640,
    kept_alive=8,
    header_bytes=8 * 1024,
    body_bytes=1,  # 0 is no limit
    reserve=24,  # the local API's 8, and some clients there
    io_timeout_s=5,
    request_timeout_s=5.0,
)


class HttpListener:
    """Serves `host_status` at each of the addresses, of which there may be none."""

    def __init__(self, host_status: HostStatus, addresses: Sequence[Address]) -> None:
        self._listeners = [_listener(host_status, address) for address in addresses]

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


def _listener(host_status: HostStatus, address: Address) -> Listener:
    application = Web(host_status, local=address.is_loopback)
    return Listener(BoundedServer((address.host, address.port), application, LIMITS), f"http {address}")
