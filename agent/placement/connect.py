"""Opens the transport to the configured Placement: the embedded core, or an OpenStack Placement over HTTP.

`ping` checks whether the service behind a transport is usable: its address, the agent's identity there, its
microversions and latency, and what it lacks.

Requests to the embedded core are function calls (`EmbeddedTransport`). The core, and what a remote
Placement needs, are imported only when a transport is opened.
"""

import itertools
import json
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from agent.errors import PlacementError, PlacementUnavailable, SettingsError, StateError
from agent.placement.client import LEAST_MICROVERSION, PlacementClient
from agent.placement.transport import UNKNOWN_OUTCOME, Reply, Transport, standby_sentence

if TYPE_CHECKING:
    from agent.placement.embedded.core import Core
    from agent.placement.embedded.serve import Server


def open_transport(
    kind: str, *, state_dir: Path | None = None, options: Mapping[str, Any] | None = None
) -> Transport:
    """The transport for `kind`: "embedded", over the database in `state_dir`, or "remote".

    `options` are those of the [placement] group. The embedded core is served at the addresses in the option
    `serve` until the transport is closed. A remote transport connects with its first request.
    Raises SettingsError for another kind and for unusable options, StateError where the database of the
    embedded core cannot be used.
    """
    match kind:
        case "embedded":
            if state_dir is None:
                raise SettingsError("The embedded Placement needs a state directory: set state_path.")
            from agent.durable.errors import DatabaseError
            from agent.placement.embedded.core import Core

            try:
                core = Core.open(state_dir)
            except DatabaseError as error:
                raise StateError(str(error), path=str(error.path)) from error
            if not options or not options.get("serve"):
                return EmbeddedTransport(core)
            try:
                with _serve_errors():
                    server = _server(core, options)
                    server.start()
            except BaseException:
                core.close()
                raise
            return EmbeddedTransport(core, server)
        case "remote":
            from agent.placement.transport_http import HttpTransport

            return HttpTransport.from_options(options or {})
        case _:
            raise SettingsError(f"[placement] kind must be 'embedded' or 'remote', not {kind!r}.")


def check_options(kind: str, options: Mapping[str, Any], to_be_made: Path | None = None) -> None:
    """Check the options of the [placement] group as `open_transport` does; connect nowhere, open no database.

    A directory `to_be_made` may be missing: its sockets are made after it. Raises SettingsError.
    """
    if kind == "remote":
        open_transport(kind, options=options).close()
    elif options.get("serve"):
        with _serve_errors():
            _server(None, options).check_places(to_be_made)


def _server(core: Any, options: Mapping[str, Any]) -> "Server":
    """The server, which listens nowhere yet. Raises ServeError."""
    from agent.placement.embedded.serve import Server

    def file(option: str) -> Path | None:
        return Path(options[option]) if options.get(option) else None

    return Server(
        core,
        options["serve"],
        tokens_file=file("serve_tokens"),
        tls_cert=file("serve_tls_cert"),
        tls_key=file("serve_tls_key"),
        tls_client_ca=file("serve_tls_client_ca"),
    )


@contextmanager
def _serve_errors() -> Iterator[None]:
    """Raise SettingsError for a ServeError."""
    from agent.placement.embedded.serve import ServeError

    try:
        yield
    except ServeError as error:
        raise SettingsError(f"[placement] serve: {error}", group="placement", option="serve") from error


class _UnknownWrite(NamedTuple):
    """A write whose outcome is unknown: its key, and what it changes."""

    key: str
    subjects: frozenset[str]


class EmbeddedTransport:
    """A transport over an open core and, if other clients use the core too, the server that they connect to.

    Each write has an idempotency key. A write whose outcome is unknown, because the disk does not answer, is
    answered with what became of it if it is sent again, before any other write of the same consumers.
    Closing the transport stops the server, then closes the core.
    """

    def __init__(self, core: "Core", server: "Server | None" = None) -> None:
        self._core = core
        self._server = server
        self._key_prefix = uuid.uuid4().hex
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._unknown: dict[str, _UnknownWrite] = {}

    @property
    def certain(self) -> bool:
        """Whether each write has ended: none is executed after its answer."""
        return not self._core.in_doubt

    def request(self, method: str, path: str, body: Any = None, *, microversion: str) -> Reply:
        """Send one request.

        Raises PlacementUnavailable (status 504) where the disk does not answer a write in time: then its
        outcome is unknown.
        """
        if method == "GET":
            answer = self._core.request(method, path, body, microversion=microversion)
            return Reply(answer.status, answer.body, answer.headers)
        key = f"{self._key_prefix}-{next(self._numbers)}"
        if self._unknown:
            subjects = _subjects(path, body)
            with self._lock:
                before = self._unknown.get(_content(method, path, body))
                # Once another write of a consumer was sent, the same write again is a new one.
                self._unknown = {
                    other: write for other, write in self._unknown.items() if not write.subjects & subjects
                }
            key = before.key if before is not None else key
        answer = self._core.request(method, path, body, microversion=microversion, key=key)
        if answer.status == UNKNOWN_OUTCOME:
            with self._lock:
                self._unknown[_content(method, path, body)] = _UnknownWrite(key, _subjects(path, body))
            detail = answer.body["errors"][0]["detail"]
            raise PlacementUnavailable(
                f"The embedded Placement did not answer {method} {path}: {detail}",
                status=UNKNOWN_OUTCOME,
                busy=True,
            )
        return Reply(answer.status, answer.body, answer.headers)

    def close(self) -> None:
        """Stop the server and close the core."""
        if self._server is not None:
            self._server.stop()
        self._core.close()


def _content(method: str, path: str, body: Any) -> str:
    return json.dumps([method, path, body], sort_keys=True)


def _subjects(path: str, body: Any) -> frozenset[str]:
    """What a write changes: its path, and the consumers that its body names."""
    parts = body if isinstance(body, dict) else {}
    named = parts.get("allocations") if path == "/reshaper" else parts if path == "/allocations" else None
    consumers = named if isinstance(named, dict) else {}
    return frozenset((path, *(f"/allocations/{consumer}" for consumer in consumers)))


# Whether it is usable

ROUND_TRIPS = 5
FORBIDDEN = 403
INTERNAL_ERROR = 500
_OPTIONAL_MICROVERSIONS = {
    "1.37": "providers cannot be moved under another parent",
    "1.38": "an instance and a migration cannot be told apart by the consumer's type",
}
_RIGHTS = {
    "/allocations": "claim (POST /allocations): the agent needs the role service or admin there",
    "/reshaper": "reshape (POST /reshaper): the agent needs the role service there",
}
USAGES_DEFECT = (
    "GET /usages of a project fails there, as OpenStack Placement does on PostgreSQL from microversion 1.38 "
    "on: the agent never sends it; a program that counts quotas should send it in 1.37"
)


@runtime_checkable
class LocatedTransport(Protocol):
    """A transport that knows the address that it sends to, and the identity that it sends as."""

    def address(self) -> str:
        """The address of Placement."""

    def identity(self) -> str:
        """The identity of the agent at that address, in words."""


@dataclass(frozen=True, slots=True)
class PingReport:
    """The outcome of a ping.

    `used` is the microversion that the agent uses there; `lacking` are the optional features that the service
    or the agent's role there lacks, in sentences. Times are milliseconds, over ROUND_TRIPS requests.
    """

    address: str
    identity: str
    lowest: str
    highest: str
    used: str
    best_ms: float
    median_ms: float
    lacking: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The report as `plimsoll placement ping -o json` prints it."""
        return {
            "where": self.address,
            "who": self.identity,
            "microversions": {"lowest": self.lowest, "highest": self.highest, "spoken": self.used},
            "round_trip_ms": {"best": self.best_ms, "median": self.median_ms},
            "lacking": list(self.lacking),
        }


def ping(transport: Transport, fallback_address: str) -> PingReport:
    """Query the Placement service of the transport without changing it.

    The report shows `fallback_address` where the transport has no address.
    Raises PlacementUnavailable where the service does not answer, PlacementError where it rejects the agent's
    credentials or is older than LEAST_MICROVERSION.
    """
    client = PlacementClient(transport)
    address, identity = fallback_address, "itself"
    if isinstance(transport, LocatedTransport):
        address, identity = transport.address(), transport.identity()
    times_ms = []
    try:
        for _ in range(ROUND_TRIPS):
            started = time.perf_counter()
            lowest, highest = client.versions()
            times_ms.append((time.perf_counter() - started) * 1000)
        client.find_provider(name="")  # any authenticated request negotiates the microversion
    except PlacementError as error:
        if isinstance(transport, LocatedTransport):
            address = transport.address()
        if "://" not in error.message and address not in error.message:
            error.message = f"{address}: {error.message}"
        raise
    lacking = [
        f"microversion {version}: {loss}"
        for version, loss in _OPTIONAL_MICROVERSIONS.items()
        if not client.speaks(version)
    ]
    reply = transport.request("GET", "/usages?project_id=plimsoll", microversion=client.microversion)
    if reply.status == INTERNAL_ERROR:
        lacking.append(USAGES_DEFECT)
    standby = standby_sentence(reply)
    if standby:
        lacking.append(f"writes: {standby}")
    for path, right in () if standby else _RIGHTS.items():
        # The service rejects an empty body in any case, but it checks the role first.
        reply = transport.request("POST", path, {}, microversion=LEAST_MICROVERSION)
        if 200 <= reply.status < 300:
            raise PlacementError(
                f"Placement accepted an empty body for POST {path}, which no Placement does: check what "
                "service answers at its address.",
                status=reply.status,
            )
        if reply.status == FORBIDDEN:
            lacking.append(right)
    if isinstance(transport, LocatedTransport):
        address = transport.address()  # of several ones that which answered
    return PingReport(
        address,
        identity,
        lowest,
        highest,
        client.microversion,
        round(min(times_ms), 3),
        round(sorted(times_ms)[ROUND_TRIPS // 2], 3),
        tuple(lacking),
    )
