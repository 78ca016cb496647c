"""The routes of the local API. A route is a function, and `openapi.json` is generated from it.

Its docstring's first sentence is the summary. The annotation of `body` is the shape of the request's body,
which the function checks; that of the result is the shape of the answer. The decorator names the method, the
path and the role that it needs, the answers in words, and the parameters of the query. The operation's id is
the function's name. A function parses the request, asks `Operations`, and shows what it returns by a view.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from importlib import resources
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, cast
from uuid import UUID

from agent import log
from agent.api import views
from agent.api.operations import Operations
from agent.api.shapes import fleet, host, instance
from agent.api.shapes.schema import Moment, NothingShape, Schema, Uuid
from agent.claims.parse_request import notes_of, parse_addition, parse_claim, parse_extension, read_domain
from agent.config.access import ApiRole
from agent.errors import UnknownConsumer, UsageError
from agent.gate.decision import GateVerdict, HookCall
from agent.http.unix_socket import PeerCredentials
from agent.json_checks import read_choice, read_object, read_text, read_truth, read_uuid, read_whole
from agent.moves.states import Move, MoveKind
from agent.state.journal import Event
from agent.state.operators import ADDRESS_CHARS_MAX, REASON_CHARS_MAX, Cordon, PauseRequest
from agent.status import web
from agent.status.web import WebResponse
from agent.tree import MAX_UNIT

LOG = log.get("agent.api")
F = TypeVar("F", bound=Callable[..., Any])
V = TypeVar("V", bound=Mapping[str, Any])
READER, CLAIMER, ADMIN = ApiRole.READER, ApiRole.CLAIMER, ApiRole.ADMIN


@dataclass(frozen=True, slots=True)
class Call:
    """A permitted request; `path` and `query` are parameters by name."""

    operations: Operations
    caller: PeerCredentials
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)

    def uuid(self, name: str) -> str:
        """The uuid that the path or the query names. Raises UsageError."""
        text = self.path.get(name) or self.query[name]
        try:
            return str(UUID(text))
        except ValueError:
            raise UsageError(
                f"A consumer is named by its uuid; {text!r} is not a uuid", consumer=text
            ) from None

    def flag(self, name: str) -> bool:
        """Whether the query says `NAME=true`. Raises UsageError where it is neither true nor false."""
        value = self.query.get(name, "false")
        if value not in ("true", "false"):
            raise UsageError(f"The query parameter {name} is true or false, not {value!r}", parameter=name)
        return value == "true"


class Parameter(NamedTuple):
    """A parameter of the query, or of the path."""

    name: str
    form: Any
    description: str
    required: bool = False
    place: str = "query"


class Result(NamedTuple):
    """An answer that is not an error: the type of its body, and {header: what it says}."""

    description: str
    form: Any
    headers: Mapping[str, str] = {}
    media_type: str = "application/json"


LOCATION = {"Location": "the path of what was made"}
MADE = {"Plimsoll-Made": "true: this request made the claim; false: it was there before"}


@dataclass(frozen=True, slots=True, eq=False)
class ApiRoute:
    """`rule` is written as werkzeug writes it; `results` is {HTTP status: result}; `body` is a shape."""

    method: str
    rule: str
    role: ApiRole
    function: Callable[..., Any]
    results: Mapping[int, Result]
    parameters: tuple[Parameter, ...]
    body: Any

    @property
    def path(self) -> str:
        """The rule as OpenAPI writes it."""
        return self.rule.replace("<", "{").replace(">", "}")

    @property
    def operation(self) -> str:
        """The id of the operation: the function's name, as programs write it."""
        first, *others = self.function.__name__.split("_")
        return first + "".join(map(str.capitalize, others))

    @property
    def summary(self) -> str:
        """What the route does."""
        sentence, _, _ = (self.function.__doc__ or "").partition("\n\n")
        return " ".join(sentence.split()).removesuffix(".")

    @property
    def query(self) -> frozenset[str]:
        """The names of the query's parameters."""
        return frozenset(parameter.name for parameter in self.parameters if parameter.place == "query")

    @property
    def has_body(self) -> bool:
        """Whether a request must have a body."""
        return self.body is not None

    def answer(self, call: Call, body: Any) -> WebResponse:
        """The function's answer; `body` is parsed JSON. Raises PlimsollError."""
        answer = self.function(call, body) if self.has_body else self.function(call)
        return answer if isinstance(answer, WebResponse) else WebResponse(200, answer)


ROUTES: list[ApiRoute] = []
"""Every route, in the order of the OpenAPI document."""

PATH_PARAMETERS = {"consumer": "the uuid of the instance", "migration": "the uuid of the migration"}
"""{what a path names: its description}"""


def route(
    method: str, rule: str, role: ApiRole, results: str | Mapping[int, Result], *query: Parameter
) -> Callable[[F], F]:
    """Make the function a route. `results` is {HTTP status: result}, or the one result in words."""

    def add(function: F) -> F:
        notes = function.__annotations__
        named = (name for name in PATH_PARAMETERS if f"<{name}>" in rule)
        in_path = (
            Parameter(name, Uuid, PATH_PARAMETERS[name], required=True, place="path") for name in named
        )
        told = {200: Result(results, notes["return"])} if isinstance(results, str) else results
        ROUTES.append(ApiRoute(method, rule, role, function, told, (*in_path, *query), notes.get("body")))
        return function

    return add


Flag = Literal["true", "false"]
DRY_RUN = Parameter(
    "dry_run",
    Annotated[bool, Schema(default=False)],
    "explain whether the claim would fit, and change nothing",
)
EXPLAINED = Result("with `dry_run=true`: whether the claim would fit, and why not", instance.ExplanationShape)


# Health


@route("GET", "/healthz", READER, {200: Result("it answers; `state` says how it is", host.HealthShape)})
def healthz(call: Call) -> WebResponse:
    """Whether the agent answers."""
    return web.healthz(call.operations.host_status)


@route(
    "GET",
    "/livez",
    READER,
    {
        200: Result("it runs", host.HealthShape),
        503: Result("it does not run: a restart would help; `failed` names the check", host.HealthShape),
    },
)
def livez(call: Call) -> WebResponse:
    """Whether the agent's loop runs."""
    return web.livez(call.operations.host_status)


@route(
    "GET",
    "/readyz",
    READER,
    {
        200: Result("it would", host.HealthShape),
        503: Result("it would not; `failed` names the checks, and each has its reason", host.HealthShape),
    },
)
def readyz(call: Call) -> WebResponse:
    """Whether the agent would consider a claim."""
    return web.readyz(call.operations.host_status)


@route(
    "GET",
    "/metrics",
    READER,
    {200: Result("Prometheus's text format, version 0.0.4", str, media_type="text/plain")},
)
def metrics(call: Call) -> WebResponse:
    """The metrics, for Prometheus."""
    return web.metrics(call.operations.host_status)


# The host


@route("GET", "/v1/overview", READER, "as of the last pass, and the agent's own claims since")
def overview(call: Call) -> host.OverviewShape:
    """The whole host, from the agent's memory: status, health, tree, instances, moves, findings."""
    return views.overview_view(call.operations.host_status.overview())


LIMIT_DEFAULT = 100
LIMIT_MAX = 10_000
WITHIN_MAX_S = 10**9


@route(
    "GET",
    "/v1/history",
    READER,
    "at most `limit` events",
    Parameter(
        "consumer",
        str,
        "only events of this consumer: its uuid, a unique beginning of it, or its name; also of one "
        "that was released",
    ),
    Parameter("since", Moment, "only events at this moment or later"),
    Parameter(
        "within",
        Annotated[int, Schema(minimum=1, maximum=WITHIN_MAX_S)],
        "only events of the last so many seconds, which the agent counts by its monotonic clock",
    ),
    Parameter(
        "limit",
        Annotated[int, Schema(minimum=1, maximum=LIMIT_MAX, default=LIMIT_DEFAULT)],
        "at most so many events, 100 without it",
    ),
    Parameter(
        "after",
        str,
        "the events after the one with this id, the oldest first, or from the first on with 0; 410 where the "
        "agent no longer has it; with no other parameter than limit",
    ),
)
def history(call: Call) -> host.HistoryShape:
    """What the agent did, the newest first."""
    since, limit, within_s = parse_history(call.query)
    host_status = call.operations.host_status
    if "after" in call.query:
        if set(call.query) - {"after", "limit"}:
            raise UsageError("The query parameter after goes with limit alone", parameter="after")
        found = host_status.history_after(call.query["after"], limit)
        if not found:
            return {"events": []}
    else:
        subject = host_status.find_event_subject(call.query["consumer"]) if "consumer" in call.query else None
        found = host_status.history(subject, since, limit, within_s)
    seen = host_status.overview()
    migrations = {move.migration for move in seen.moves}
    events: list[host.EventShape] = []
    for event in found:  # with the names that consumers have, or had last
        name = seen.name_of(event.consumer) or event.name
        if event.consumer in migrations:  # it must not be taken for its instance
            name = f"{name}, migration" if name else "migration"
        events.append(_event(event, name))
    return {"events": events}


def _event(event: Event, name: str) -> host.EventShape:
    return views.shown(host.EventShape, event, consumer=event.consumer or None, name=name)


def parse_history(query: Mapping[str, str]) -> tuple[float, int, int | None]:
    """(seconds since 1970, limit, within how many seconds) of a query.

    Raises UsageError where one of them is malformed.
    """
    seconds, limit = 0.0, query.get("limit", str(LIMIT_DEFAULT))
    if "since" in query:
        try:
            since = datetime.fromisoformat(query["since"])
            if since.tzinfo is None:
                raise ValueError("no offset")
            seconds = since.timestamp()
        except (ValueError, OverflowError):
            raise UsageError(
                f"The query parameter since is a moment with its offset, such as "
                f"2026-11-21T10:00:00Z, not {query['since']!r}",
                parameter="since",
            ) from None
    within = _whole_number("within", query["within"], WITHIN_MAX_S) if "within" in query else None
    return seconds, _whole_number("limit", limit, LIMIT_MAX), within


def _whole_number(name: str, text: str, most: int) -> int:
    if text.isascii() and text.isdigit() and len(text) <= len(str(most)) and 1 <= int(text) <= most:
        return int(text)
    raise UsageError(
        f"The query parameter {name} is a whole number from 1 to {most}, not {text!r}", parameter=name
    )


@route(
    "GET",
    "/v1/explain",
    READER,
    "everything with that name",
    Parameter(
        "what",
        str,
        "the uuid or name of a consumer or provider, a device, an exact unit, a receipt",
        required=True,
    ),
)
def explain(call: Call) -> host.ExplainedShape:
    """Who owns a device, a unit or an allocation, and why, since when; 404 names similar words.

    Raises UsageError without a name.
    """
    if "what" not in call.query:
        raise UsageError("The query parameter what is missing: it names what to explain", parameter="what")
    explained = call.operations.host_status.explain(call.query["what"])
    found = [
        views.shown(
            host.FoundShape,
            subject,
            events=[_event(event, subject.name) for event in explained.events.get(subject.id, ())],
        )
        for subject in explained.items
    ]
    return {"asked": explained.word, "found": found}


@route("GET", "/v1/status", READER, "the state, and the reasons for it")
def status(call: Call) -> host.StatusShape:
    """The state of the agent: the reasons, the driver, Placement, claims, the last pass."""
    return views.status_view(call.operations.host_status.status())


@route("GET", "/v1/tree", READER, "the provider tree, with inventories and usages")
def tree(call: Call) -> host.TreeShape:
    """The provider tree of this host, as Placement has it."""
    tree, usages = call.operations.tree()
    unclaimed = call.operations.host_status.overview().unclaimed
    return views.tree_view(tree, usages, unclaimed, call.operations.tree_warnings(tree, usages))


@route("GET", "/v1/instances", READER, "by uuid; either the guest or the claim may be missing")
def instances(call: Call) -> instance.InstancesShape:
    """Guests and claims side by side."""
    return {"instances": views.instances_view(call.operations.host_status.overview())}


@route("GET", "/v1/devices", READER, "by provider and class; CPUs are left out")
def devices(call: Call) -> host.DevicesShape:
    """The devices for guests, who has each, and which are withheld."""
    names = call.operations.host_status.overview().name_of
    return {
        "devices": [
            views.shown(host.DeviceShape, device, holder_name=names(device.holder) if device.holder else "")
            for device in call.operations.tracker.cordons.devices()
        ]
    }


@route("GET", "/v1/plan", READER, "the operations, in their order")
def plan(call: Call) -> host.PlanShape:
    """What the next pass would change in Placement: operations, and lines for people."""
    changes = call.operations.reconciler.next_plan()
    return {"operations": changes.to_json(), "lines": list(changes.lines())}


@route("GET", "/v1/config", READER, "each option with its origin")
def config(call: Call) -> host.ConfigurationShape:
    """The settings in force, each with its origin; secrets are masked."""
    return call.operations.configuration()


@route("GET", "/v1/openapi.json", READER, "OpenAPI 3.1")
def openapi(call: Call) -> dict[str, Any]:
    """The OpenAPI document of this API."""
    return document()


@cache
def document() -> dict[str, Any]:
    """The OpenAPI document of this API."""
    text = resources.files("agent.api").joinpath("openapi.json").read_text(encoding="utf-8")
    parsed: dict[str, Any] = json.loads(text)
    return parsed


# What an operator changes


@route("POST", "/v1/pause", ADMIN, "the pause")
def pause(call: Call, body: host.PauseBodyShape) -> host.PauseShape:
    """Take no new claims and moves until the pause ends, also after a restart.

    On a host that is paused, what the body does not name stays as it is.
    """
    given = read_object(body, "", ("reason", "schedulers", "drain"))
    schedulers, drains = (
        read_truth(given[name], name) if name in given else None for name in ("schedulers", "drain")
    )
    reason = read_text(given["reason"], "reason", longest=REASON_CHARS_MAX) if "reason" in given else None
    asked = PauseRequest(call.caller.uid, time.time(), reason, schedulers, drains)
    return views.shown(host.PauseShape, call.operations.pause(asked))


@route("POST", "/v1/resume", ADMIN, "claims are taken again")
def resume(call: Call, body: NothingShape) -> NothingShape:
    """End the pause; no error without one."""
    read_object(body, "", ())
    call.operations.resume()
    return {}


@route("POST", "/v1/devices/cordon", ADMIN, "the cordon")
def cordon_device(call: Call, body: host.CordonBodyShape) -> host.CordonShape:
    """Give the device to no guest; the guest that has it keeps it, also after a restart of the agent."""
    asked = read_cordon_body(body, call.caller.uid)
    call.operations.cordon(asked)
    return views.shown(host.CordonShape, asked)


@route("POST", "/v1/devices/clear", ADMIN, "the cordon has ended, and the symptoms are excused")
def clear_device(call: Call, body: host.ClearBodyShape) -> NothingShape:
    """Give the device to guests again."""
    call.operations.clear_cordon(read_clear_body(body))
    return {}


def read_cordon_body(body: object, uid: int) -> Cordon:
    """The cordon that a user asks for. Raises UsageError."""
    given = read_object(body, "", ("address", "reason"))
    reason = read_text(given.get("reason", ""), "reason", longest=REASON_CHARS_MAX)
    return Cordon(_address(given.get("address")), reason, uid, time.time())


def read_clear_body(body: object) -> str:
    """The address of the device that is to be offered again. Raises UsageError."""
    return _address(read_object(body, "", ("address",)).get("address"))


def _address(value: object) -> str:
    text = read_text(value, "address", None, "the address of a device", ADDRESS_CHARS_MAX)
    address, slash, place = text.partition("/")
    return f"{address.lower()}{slash}{place}"


@route(
    "GET",
    "/v1/reshape",
    READER,
    "the tree before and after, and each move",
    Parameter("undo", str, "the receipt of a reshape: what undoing it would do"),
)
def preview_reshape(call: Call) -> host.PreviewShape:
    """What a reshape would do; nothing is written."""
    return views.preview_view(call.operations.reconciler.preview_reshape(call.query.get("undo")))


@route("POST", "/v1/reshape", ADMIN, "the receipts; none if there was nothing to do")
def reshape(call: Call, body: host.ReshapeBodyShape) -> host.ReshapedShape:
    """Do the reshape that is due, also one that was undone, or undo one; 409 if it is refused as a whole."""
    undo = read_object(body, "", ("undo",)).get("undo")
    receipts = call.operations.reshape(None if undo is None else read_text(undo, "undo"))
    for receipt in receipts:
        fields = {"event": "reshape", "receipt": receipt.id, "undoes": receipt.undoes, **call.caller.fields}
        LOG.info("reshape %s done, asked for by %s", receipt.id, call.caller, fields=fields)
    return views.reshaped_view(receipts)


@route("POST", "/v1/look", CLAIMER, "the state of the agent, and what differs")
def look(call: Call, body: NothingShape) -> host.LookShape:
    """Run a pass and an audit now; the audit repairs nothing."""
    read_object(body, "", ())
    report = call.operations.look()
    return {"status": status(call), "audit": views.audit_view(report)}


AUDITED = "the findings, each with its repair, and what was healed"


@route("GET", "/v1/audit", READER, AUDITED)
def audit(call: Call) -> host.AuditShape:
    """What differs between the host, the claims and Placement; nothing is written."""
    return views.audit_view(call.operations.audit(heal=False))


@route(
    "POST",
    "/v1/audit",
    ADMIN,
    AUDITED,
    Parameter("heal", Flag, "do every repair"),
    Parameter("dry_run", Flag, "only show them"),
)
def heal_audit(call: Call) -> host.AuditShape:
    """The same findings; the agent repairs them if asked to."""
    dry_run = call.flag("dry_run")
    report = call.operations.audit(heal=call.flag("heal") and not dry_run)
    for index in sorted(report.healed):
        finding = report.findings[index]
        _record("healing", finding.subject, call.caller, finding.kind, "healed")
    return views.audit_view(report)


# Claims


@route("POST", "/v1/capacity", READER, "the capacity")
def capacity(call: Call, body: instance.ClaimBodyShape) -> instance.CapacityShape:
    """How many guests that ask for this fit one after the other, and what is stranded by which guests."""
    request = parse_claim(body, call.operations.device_profiles())
    found = call.operations.capacity(request)
    claims = call.operations.host_status.overview().claims
    stranded = [
        views.shown(
            instance.StrandedShape,
            amount,
            holders=[
                {"consumer": holder, "name": claims[holder].request.name if holder in claims else ""}
                for holder in amount.holders
            ],
        )
        for amount in found.stranded
    ]
    return _noted(
        views.shown(instance.CapacityShape, found, asked=request.resources, stranded=stranded), body
    )


@route("POST", "/v1/defrag", READER, "the moves")
def defrag(call: Call, body: instance.ClaimBodyShape) -> instance.DefragShape:
    """The fewest moves of guests that make room for one that asks for this; nothing is moved."""
    request = parse_claim(body, call.operations.device_profiles())
    found = call.operations.defrag(request)
    moves = [
        views.shown(
            instance.DefragMoveShape,
            move,
            kind=MoveKind.LIVE_MIGRATE if move.is_live else MoveKind.COLD_MIGRATE,
        )
        for move in found.moves
    ]
    possible = found.fit is not None
    return _noted(
        views.shown(
            instance.DefragShape,
            found,
            asked=request.resources,
            possible=possible,
            place=found.fit,
            moves=moves,
        ),
        body,
    )


@route("POST", "/v1/where", READER, "where it fits, or why it does not")
def where(call: Call, body: fleet.WhereBodyShape) -> fleet.WhereShape:
    """On which hosts of the fleet a request fits, why not on the others, and what would make room."""
    return cast(fleet.WhereShape, call.operations.where(body))


@route(
    "POST",
    "/v1/claims",
    CLAIMER,
    {
        200: EXPLAINED,
        201: Result(
            "claimed; the same claim again gets the same answer", instance.ClaimShape, LOCATION | MADE
        ),
    },
    DRY_RUN,
)
def claim(call: Call, body: instance.ClaimBodyShape) -> WebResponse:
    """Claim resources, or only ask whether they would fit."""
    asked = parse_claim(body, call.operations.device_profiles(), by_name=True)
    with call.operations.identified(asked) as request:
        if request.process is not None:
            request.process.check_owner(call.caller.uid)
        if call.flag("dry_run"):
            explained = []
            for each in call.operations.options(request):
                explained.append((each, call.operations.explain(each)))
                if explained[-1][1].fits:
                    break
            closed = call.operations.tracker.admission.closed_reason
            view = views.explanation_view(explained, closed, len(request.options))
            return WebResponse(200, _noted(view, body))
        handle = call.operations.grant(request)
    claim = handle.claim
    _record("claim", claim.consumer, call.caller, "granted")
    shown = _noted(views.claim_view(claim, call.operations.providers()), body)
    made = "false" if handle.was_held or claim.adopted else "true"
    return WebResponse(201, shown, {"Location": f"/v1/claims/{claim.consumer}", "Plimsoll-Made": made})


def _noted(view: V, asked: object) -> V:
    """The answer, with sentences on what of the request has no effect, if there are any."""
    notes = list(notes_of(asked))
    return cast(V, {**view, "notes": notes}) if notes else view


@route("GET", "/v1/claims/<consumer>", READER, "the claim")
def show_claim(call: Call) -> instance.ClaimShape:
    """One claim.

    Raises UnknownConsumer.
    """
    consumer = call.uuid("consumer")
    claim = call.operations.tracker.claim_of(consumer)
    if claim is not None:
        return views.claim_view(claim, call.operations.providers())
    raise UnknownConsumer(
        f"No claim of {consumer} is known on this host; `plimsoll instances` lists the known ones",
        consumer=consumer,
    )


@route(
    "DELETE",
    "/v1/claims/<consumer>",
    CLAIMER,
    {
        200: Result("removed from Placement", instance.ReleasedShape),
        202: Result("journaled; delivered when Placement answers again", instance.ReleasedShape),
    },
    Parameter("force", Flag, "also release the claim of a guest that runs"),
)
def release(call: Call) -> WebResponse:
    """Release a claim; 409 if its guest runs on this host, or may run at the source of its move."""
    consumer = call.uuid("consumer")
    if not call.flag("force"):
        call.operations.check_release(consumer)
    released = call.operations.release(consumer)
    _record("release", consumer, call.caller, "done" if released else "journaled")
    return WebResponse(200 if released else 202, {"consumer": consumer, "released": released})


@route(
    "POST", "/v1/claims/<consumer>/extend", CLAIMER, "the claim; the same request again gets the same answer"
)
def extend(call: Call, body: instance.ExtendBodyShape) -> instance.ClaimShape:
    """Extend a claim to these amounts in all; nothing becomes less."""
    claim = call.operations.extend(call.uuid("consumer"), parse_extension(body))
    _record("extension", claim.consumer, call.caller, "done")
    return views.claim_view(claim, call.operations.providers())


@route("POST", "/v1/claims/<consumer>/domain", READER, "the complete domain")
def write_domain(call: Call, body: instance.DomainBodyShape) -> instance.DomainShape:
    """Complete a domain's XML with what the claim gave; nothing is changed on the host."""
    consumer = call.uuid("consumer")
    given = read_object(body, "", ("xml", "replace"))
    xml = read_domain(given.get("xml"), "xml")
    replace = read_truth(given.get("replace", False), "replace")
    written = call.operations.write_domain(consumer, xml, replace=replace)
    return views.domain_view(written, call.operations.providers())


@route(
    "POST",
    "/v1/domains",
    CLAIMER,
    {
        200: EXPLAINED,
        201: Result("claimed; the same domain again gets the same answer", instance.DomainShape, LOCATION),
    },
    DRY_RUN,
)
def claim_domain(call: Call, body: instance.ClaimDomainBodyShape) -> WebResponse:
    """Claim what a domain's XML asks for and complete it, or only ask whether that would fit."""
    given = read_object(body, "", ("xml", "consumer", "request"))
    xml = read_domain(given.get("xml"), "xml")
    consumer = None if given.get("consumer") is None else read_uuid(given["consumer"], "consumer")
    asked = parse_addition(given.get("request", {}), consumer or "", call.operations.device_profiles())
    if call.flag("dry_run"):
        explained = call.operations.explain_domain(xml, asked)
        view = views.explanation_view([explained], call.operations.tracker.admission.closed_reason)
        return WebResponse(200, _noted(view, given.get("request")))
    written = call.operations.claim_domain(xml, asked)
    _record("claim", written.claim.consumer, call.caller, "granted")
    made = _noted(views.domain_view(written, call.operations.providers()), given.get("request"))
    return WebResponse(201, made, {"Location": f"/v1/claims/{written.claim.consumer}"})


# The gate


@route("POST", "/v1/gate", CLAIMER, "the guest may go on")
def ask_gate(call: Call, body: instance.GateBodyShape) -> instance.VerdictShape:
    """Answer libvirt's hook: whether a guest may start or come in; 4xx: it may not, and why."""
    verdict = call.operations.gate(parse_hook_call(body))
    if verdict.consumer is not None:
        _record("gate", verdict.consumer, call.caller, verdict.outcome)
    return views.shown(instance.VerdictShape, verdict)


WORD_MAX = 64
XML_MAX = 2**20


def parse_hook_call(body: object) -> HookCall:
    """The question of the hook, in libvirt's words. Raises UsageError where a key is missing or wrong."""
    given = read_object(body, "", ("operation", "sub_operation", "extra", "xml"))
    for key in ("operation", "sub_operation", "xml"):
        if key not in given:
            raise UsageError(f"{key}: missing; the gate needs it.", path=key)
    read_text(given.get("extra", "-"), "extra", None, "a word", WORD_MAX)
    return HookCall(
        read_text(given["operation"], "operation", None, "a word", WORD_MAX),
        read_text(given["sub_operation"], "sub_operation", None, "a word", WORD_MAX),
        read_text(given["xml"], "xml", None, "the domain's XML", XML_MAX),
    )


@route("POST", "/v1/gate/running", CLAIMER, "what was claimed, and what was not")
def claim_running(call: Call, body: NothingShape) -> instance.ClaimedRunningShape:
    """Claim for the guests that run without a claim, as if each started now."""
    read_object(body, "", ())
    claimed: list[instance.GuestVerdictShape] = []
    refused: list[instance.GuestVerdictShape] = []
    for guest, verdict in call.operations.claim_running():
        if isinstance(verdict, GateVerdict):
            _record("gate", guest.uuid, call.caller, verdict.outcome)
            claimed.append({"consumer": guest.uuid, "name": guest.name, "sentence": verdict.sentence})
        else:
            refused.append({"consumer": guest.uuid, "name": guest.name, "sentence": verdict.message})
    return {"claimed": claimed, "refused": refused}


# Moves


@route(
    "GET",
    "/v1/moves",
    READER,
    "those under way, and those that ended lately",
    Parameter("look", Flag, "read first what the agents of other hosts did"),
)
def moves(call: Call) -> instance.MovesShape:
    """The moves that this host takes part in, and the allocations of each."""
    if call.flag("look"):
        call.operations.supervisor.verify()
    overview = call.operations.host_status.overview()
    return {"moves": views.moves_view(overview.moves, overview)}


@route(
    "POST",
    "/v1/moves",
    CLAIMER,
    {201: Result("begun; the same request again gets the same answer", instance.MoveShape, LOCATION)},
)
def begin_move(call: Call, body: instance.MoveBodyShape) -> WebResponse:
    """Begin a move to this host.

    With a domain, the request adds to what its XML asks for.
    """
    given = read_object(body, "move", ("migration", "kind", "request", "domain", "consumer", "alternative"))
    profiles = call.operations.device_profiles()
    kind = MoveKind(read_choice(given.get("kind"), "kind", sorted(set(MoveKind) - {MoveKind.UNKNOWN})))
    migration = read_uuid(given.get("migration"), "migration")
    if given.get("domain") is None:
        request = parse_claim(given.get("request"), profiles)
    else:
        consumer = read_uuid(given.get("consumer"), "consumer")
        asked = parse_addition(given.get("request", {}), consumer, profiles)
        request = call.operations.move_request(read_domain(given["domain"], "domain"), asked)
    number = given.get("alternative")
    number = None if number is None else read_whole(number, "alternative", 0, MAX_UNIT)
    move = call.operations.begin_move(kind, migration, request, number)
    _record(f"{kind} (migration {migration})", move.instance, call.caller, move.state, "move")
    begun = _noted(_move_view(call, move), given.get("request"))
    return WebResponse(201, begun, {"Location": f"/v1/moves/{move.migration}"})


@route("GET", "/v1/moves/<migration>", READER, "the move")
def show_move(call: Call) -> instance.MoveShape:
    """One move.

    One that is not known yet may have begun on another host. Raises UnknownConsumer.
    """
    migration = call.uuid("migration")
    if migration not in call.operations.tracker.moves():
        call.operations.supervisor.verify()
    move = call.operations.tracker.moves().get(migration)
    if move is not None:
        return _move_view(call, move)
    raise UnknownConsumer(
        f"No migration {migration} is known on this host; `plimsoll move list --all` lists those that are.",
        migration=migration,
    )


def _move_view(call: Call, move: Move) -> instance.MoveShape:
    overview = call.operations.host_status.overview()
    return views.move_view(move, overview, call.operations.provider_names(views.providers_of(move)))


END_RESULTS = {
    200: Result("done; the same request again is no error", instance.MoveShape),
    202: Result("journaled; done when Placement answers, or when the guest is gone", instance.MoveShape),
}
INSTANCE = Parameter(
    "instance", Uuid, "the instance of the migration, where the source cannot tell two moves apart"
)


@route("POST", "/v1/moves/<migration>/confirm", CLAIMER, END_RESULTS, INSTANCE)
def confirm_move(call: Call) -> WebResponse:
    """The instance stays at the destination, and the source is free."""
    return _end_move(call, "confirm", call.operations.confirm_move)


@route("POST", "/v1/moves/<migration>/revert", CLAIMER, END_RESULTS, INSTANCE)
def revert_move(call: Call) -> WebResponse:
    """The instance has its old place again, and the destination is free."""
    return _end_move(call, "revert", call.operations.revert_move)


def _end_move(call: Call, verb: str, end: Callable[[str, str | None], Move]) -> WebResponse:
    move = end(call.uuid("migration"), call.uuid("instance") if "instance" in call.query else None)
    _record(f"{verb} of migration {move.migration}", move.instance, call.caller, move.state, "move")
    return WebResponse(200 if move.ended else 202, _move_view(call, move))


def _record(action: str, consumer: str, caller: PeerCredentials, outcome: str, event: str = "") -> None:
    """Log what a caller did; a failed request is logged by the server."""
    fields = {"event": event or action, "consumer": consumer, "outcome": outcome, **caller.fields}
    LOG.info("%s of %s %s, asked for by %s", action, consumer, outcome, caller, fields=fields)
