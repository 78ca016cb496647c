"""The handlers of the routes: parse the request, call the operation, show its result."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from importlib import resources
from typing import Any, NoReturn, cast
from uuid import UUID

from agent import log
from agent.api.operations import Operations
from agent.api.shapes.claims import ReleasedShape
from agent.api.shapes.host import LookShape, StatusShape
from agent.api.shapes.instances import MoveShape
from agent.api.views import (
    audit_view,
    capacity_view,
    claim_view,
    cordon_view,
    defrag_view,
    devices_view,
    domain_view,
    explained_view,
    explanation_view,
    history_view,
    instances_view,
    move_view,
    moves_view,
    overview_view,
    plan_view,
    preview_view,
    providers_of,
    reshaped_view,
    running_view,
    tree_view,
    verdict_view,
)
from agent.claims.claim import Claim
from agent.claims.device_profiles import DeviceProfiles
from agent.claims.parse_request import notes_of, parse_addition, parse_claim, read_domain
from agent.claims.request import ClaimRequest
from agent.errors import UnknownConsumer, UsageError
from agent.gate.decision import GateVerdict, HookCall
from agent.http.peer import PeerCredentials
from agent.json_checks import read_choice, read_object, read_text, read_truth, read_uuid
from agent.moves.states import Move, MoveKind
from agent.state.cordon import ADDRESS_CHARS_MAX, Cordon
from agent.state.pause import REASON_CHARS_MAX, PauseRequest
from agent.status.host_status import HostStatus, pause_view
from agent.status.web import WebResponse

LOG = log.get("agent.api")


@dataclass(frozen=True, slots=True)
class Call:
    """A permitted request: `path` and `query` are parameters by name, `body` is parsed JSON."""

    operations: Operations
    caller: PeerCredentials
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """The response: `body` is JSON-ready, or bytes of the media type `kind`."""

    status: int
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)
    kind: str = "application/json"


def status(call: Call) -> ApiResponse:
    """The state of the agent."""
    return ApiResponse(200, call.operations.status())


def tree(call: Call) -> ApiResponse:
    """The provider tree, with usages."""
    tree, usages = call.operations.tree()
    unclaimed = call.operations.host_status.overview().unclaimed
    return ApiResponse(200, tree_view(tree, usages, unclaimed, call.operations.tree_warnings(tree, usages)))


def instances(call: Call) -> ApiResponse:
    """Guests and claims side by side."""
    operations = call.operations
    view = instances_view(
        operations.instances(),
        operations.circumstances(),
        operations.moves(),
        operations.host_status.overview().name_of,
        operations.providers(),
    )
    return ApiResponse(200, view)


def plan(call: Call) -> ApiResponse:
    """What the next pass would change in Placement."""
    return ApiResponse(200, plan_view(call.operations.next_plan()))


def preview_reshape(call: Call) -> ApiResponse:
    """What a reshape would do."""
    return ApiResponse(200, preview_view(call.operations.preview_reshape(call.query.get("undo"))))


def reshape(call: Call) -> ApiResponse:
    """Do the reshape that is due, or undo one."""
    undo = read_object(call.body, "", ("undo",)).get("undo")
    receipts = call.operations.reshape(None if undo is None else read_text(undo, "undo"))
    for receipt in receipts:
        LOG.info(
            "reshape %s done, asked for by uid %d (pid %d)",
            receipt.id,
            call.caller.uid,
            call.caller.pid,
            fields={
                "event": "reshape",
                "receipt": receipt.id,
                "undoes": receipt.undoes,
                "uid": call.caller.uid,
                "pid": call.caller.pid,
            },
        )
    return ApiResponse(200, reshaped_view(receipts))


def overview(call: Call) -> ApiResponse:
    """The whole host, from memory."""
    return ApiResponse(200, overview_view(call.operations.host_status.overview()))


def history(call: Call) -> ApiResponse:
    """Events of the history."""
    since, limit = parse_history(call.query)
    consumer = call.query.get("consumer")
    host_status = call.operations.host_status
    subject = None if consumer is None else host_status.find_event_subject(consumer)
    events = host_status.history(subject, since, limit)
    return ApiResponse(200, history_view(events, host_status.overview()))


def explain(call: Call) -> ApiResponse:
    """Everything with a given name. Raises UsageError without a name."""
    if "what" not in call.query:
        raise UsageError("The query parameter what is missing: it names what to explain", parameter="what")
    return ApiResponse(200, explained_view(call.operations.host_status.explain(call.query["what"])))


def config(call: Call) -> ApiResponse:
    """The settings in force."""
    return ApiResponse(200, call.operations.configuration())


def openapi(call: Call) -> ApiResponse:
    """The OpenAPI document."""
    return ApiResponse(200, document())


def make_claim(call: Call) -> ApiResponse:
    """Claim, or explain whether the claim would fit."""
    asked = parse_claim(call.body, call.operations.device_profiles(), by_name=True)
    with call.operations.identified(asked) as request:
        if _flag(call.query, "dry_run"):
            fit = call.operations.explain(request)
            view = explanation_view(request, fit, call.operations.closed_reason())
            return ApiResponse(200, _noted(view, call.body))
        claim = call.operations.claim(request)
    _record("claim", claim.consumer, call.caller, "granted")
    made = _noted(claim_view(claim, call.operations.providers()), call.body)
    return ApiResponse(201, made, {"Location": f"/v1/claims/{claim.consumer}"})


def _noted(view: Mapping[str, Any], asked: object) -> Mapping[str, Any]:
    """The answer, with sentences on what of the request has no effect, if there are any."""
    notes = list(notes_of(asked))
    return {**view, "notes": notes} if notes else view


def capacity(call: Call) -> ApiResponse:
    """How many guests that ask for this fit, and what is stranded."""
    request = parse_claim(call.body, call.operations.device_profiles())
    found = call.operations.capacity(request)
    claims = {claim.consumer: claim for _, claim in call.operations.instances() if claim is not None}
    return ApiResponse(200, _noted(capacity_view(request, found, claims), call.body))


def defrag(call: Call) -> ApiResponse:
    """The moves that make room for a guest."""
    request = parse_claim(call.body, call.operations.device_profiles())
    return ApiResponse(200, _noted(defrag_view(request, call.operations.defrag(request)), call.body))


def show_claim(call: Call) -> ApiResponse:
    """One claim. Raises UnknownConsumer."""
    claim = _find(call.operations, _uuid(call.path["consumer"]))
    return ApiResponse(200, claim_view(claim, call.operations.providers()))


def pause(call: Call) -> ApiResponse:
    """Pause or drain the host, or say more of the pause that is."""
    body = read_object(call.body, "", ("reason", "schedulers", "drain"))
    schedulers, drains = (
        read_truth(body[name], name) if name in body else None for name in ("schedulers", "drain")
    )
    reason = read_text(body["reason"], "reason", longest=REASON_CHARS_MAX) if "reason" in body else None
    pause = call.operations.pause(PauseRequest(call.caller.uid, time.time(), reason, schedulers, drains))
    return ApiResponse(200, pause_view(pause))


def resume(call: Call) -> ApiResponse:
    """End the pause."""
    read_object(call.body, "", ())
    call.operations.resume()
    return ApiResponse(200, {})


def devices(call: Call) -> ApiResponse:
    """The devices of this host."""
    names = call.operations.host_status.overview().name_of
    return ApiResponse(200, devices_view(call.operations.devices(), names))


def cordon(call: Call) -> ApiResponse:
    """Give a device to no guest."""
    asked = read_cordon_body(call.body, call.caller.uid)
    call.operations.cordon(asked)
    return ApiResponse(200, cordon_view(asked))


def clear_cordon(call: Call) -> ApiResponse:
    """Give a device to guests again."""
    call.operations.clear_cordon(read_clear_body(call.body))
    return ApiResponse(200, {})


def write_domain(call: Call) -> ApiResponse:
    """The domain of a claim."""
    consumer = _uuid(call.path["consumer"])
    body = read_object(call.body, "", ("xml", "replace"))
    xml = read_domain(body.get("xml"), "xml")
    replace = read_truth(body.get("replace", False), "replace")
    written = call.operations.write_domain(consumer, xml, replace=replace)
    return ApiResponse(200, domain_view(written, call.operations.providers()))


def claim_domain(call: Call) -> ApiResponse:
    """Claim for a domain and complete it, or explain whether the claim would fit."""
    body = read_object(call.body, "", ("xml", "consumer", "request"))
    xml = read_domain(body.get("xml"), "xml")
    consumer = None if body.get("consumer") is None else read_uuid(body["consumer"], "consumer")
    asked = parse_addition(body.get("request", {}), consumer or "", call.operations.device_profiles())
    if _flag(call.query, "dry_run"):
        request, fit = call.operations.explain_domain(xml, asked)
        view = explanation_view(request, fit, call.operations.closed_reason())
        return ApiResponse(200, _noted(view, body.get("request")))
    written = call.operations.claim_domain(xml, asked)
    _record("claim", written.claim.consumer, call.caller, "granted")
    made = _noted(domain_view(written, call.operations.providers()), body.get("request"))
    return ApiResponse(201, made, {"Location": f"/v1/claims/{written.claim.consumer}"})


def release(call: Call) -> ApiResponse:
    """Release a claim; that of a guest that runs only by force."""
    consumer = _uuid(call.path["consumer"])
    if not _flag(call.query, "force"):
        call.operations.check_release(consumer)
    released = call.operations.release(consumer)
    _record("release", consumer, call.caller, "done" if released else "journaled")
    body: ReleasedShape = {"consumer": consumer, "released": released}
    return ApiResponse(200 if released else 202, body)


def moves(call: Call) -> ApiResponse:
    """The moves that this host takes part in; with `look`, after reading what other hosts did."""
    if _flag(call.query, "look"):
        call.operations.look_for_moves()
    overview = call.operations.host_status.overview()
    names = {provider.uuid: provider.name for provider in overview.tree}
    view = moves_view(
        call.operations.moves(), call.operations.circumstances(), overview.name_of, overview.tree, names
    )
    return ApiResponse(200, view)


def show_move(call: Call) -> ApiResponse:
    """One move. Raises UnknownConsumer."""
    migration = _uuid(call.path["migration"])
    if all(move.migration != migration for move in call.operations.moves()):
        call.operations.look_for_moves()
    return ApiResponse(200, _move_view(call, find_move(call.operations.moves(), migration)))


def _move_view(call: Call, move: Move) -> MoveShape:
    return move_view(
        move,
        call.operations.circumstances(),
        call.operations.host_status.overview().name_of,
        call.operations.providers(),
        call.operations.provider_names(providers_of(move)),
    )


def begin_move(call: Call) -> ApiResponse:
    """Begin a move to this host."""
    kind, migration, request, xml = parse_move(call.body, call.operations.device_profiles())
    if xml is not None:
        request = call.operations.move_request(xml, request)
    move = call.operations.begin_move(kind, migration, request)
    _record(f"{kind} (migration {migration})", move.instance, call.caller, move.state, "move")
    begun = _noted(_move_view(call, move), call.body.get("request"))
    return ApiResponse(201, begun, {"Location": f"/v1/moves/{move.migration}"})


def confirm_move(call: Call) -> ApiResponse:
    """Confirm a move."""
    return _end_move(call, "confirm", call.operations.confirm_move)


def revert_move(call: Call) -> ApiResponse:
    """Revert a move."""
    return _end_move(call, "revert", call.operations.revert_move)


def _end_move(call: Call, verb: str, end: Callable[[str, str | None], Move]) -> ApiResponse:
    instance = call.query.get("instance")
    move = end(_uuid(call.path["migration"]), None if instance is None else _uuid(instance))
    _record(f"{verb} of migration {move.migration}", move.instance, call.caller, move.state, "move")
    return ApiResponse(200 if move.ended else 202, _move_view(call, move))


def ask_gate(call: Call) -> ApiResponse:
    """Answer the question of libvirt's hook."""
    verdict = call.operations.gate(parse_hook_call(call.body))
    if verdict.consumer is not None:
        _record("gate", verdict.consumer, call.caller, verdict.outcome)
    return ApiResponse(200, verdict_view(verdict))


def claim_running(call: Call) -> ApiResponse:
    """Claim for the guests that run without a claim."""
    read_object(call.body, "", ())
    verdicts = call.operations.claim_running()
    for guest, verdict in verdicts:
        if isinstance(verdict, GateVerdict):
            _record("gate", guest.uuid, call.caller, verdict.outcome)
    return ApiResponse(200, running_view(verdicts))


def audit(call: Call) -> ApiResponse:
    """The findings of an audit."""
    return ApiResponse(200, audit_view(call.operations.audit(heal=False)))


def heal(call: Call) -> ApiResponse:
    """The findings of an audit, after their repair where it was asked for."""
    dry_run = _flag(call.query, "dry_run")
    report = call.operations.audit(heal=_flag(call.query, "heal") and not dry_run)
    for index in sorted(report.healed):
        finding = report.findings[index]
        _record("healing", finding.subject, call.caller, finding.kind, "healed")
    return ApiResponse(200, audit_view(report))


def look(call: Call) -> ApiResponse:
    """A pass and an audit now."""
    read_object(call.body, "", ())
    report = call.operations.look()
    body: LookShape = {
        "status": cast(StatusShape, call.operations.status()),
        "audit": audit_view(report),
    }
    return ApiResponse(200, body)


@cache
def document() -> dict[str, Any]:
    """The OpenAPI document of this API."""
    text = resources.files("agent.api").joinpath("openapi.json").read_text(encoding="utf-8")
    parsed: dict[str, Any] = json.loads(text)
    return parsed


def show(page: Callable[[HostStatus], WebResponse]) -> Callable[[Call], ApiResponse]:
    """A handler that shows a page of the status listener, such as the metrics."""

    def handle(call: Call) -> ApiResponse:
        shown = page(call.operations.host_status)
        return ApiResponse(shown.status, shown.text, kind=shown.kind)

    return handle


def _find(operations: Operations, consumer: str) -> Claim:
    for _, claim in operations.instances():
        if claim is not None and claim.consumer == consumer:
            return claim
    _unknown(consumer)


def find_move(moves: tuple[Move, ...], migration: str) -> Move:
    """The move of a migration. Raises UnknownConsumer where this host takes no part in it."""
    for move in moves:
        if move.migration == migration:
            return move
    raise UnknownConsumer(
        f"No migration {migration} is known on this host; `plimsoll move list --all` lists those that are.",
        migration=migration,
    )


KINDS = sorted(set(MoveKind) - {MoveKind.UNKNOWN})


def parse_move(
    body: object, profiles: DeviceProfiles | None = None
) -> tuple[MoveKind, str, ClaimRequest, str | None]:
    """(kind, migration, request, domain) from the body of POST /v1/moves.

    The domain is its XML, to which the request then adds, or None. `profiles` as for `parse_claim`.
    Raises UsageError where the body is wrong.
    """
    given = read_object(body, "move", {"migration", "kind", "request", "domain", "consumer"})
    kind = MoveKind(read_choice(given.get("kind"), "kind", KINDS))
    migration = read_uuid(given.get("migration"), "migration")
    if given.get("domain") is None:
        return kind, migration, parse_claim(given.get("request"), profiles), None
    asked = parse_addition(given.get("request", {}), read_uuid(given.get("consumer"), "consumer"), profiles)
    return kind, migration, asked, read_domain(given["domain"], "domain")


WORD_MAX = 64


XML_MAX = 2**20


KEYS = ("operation", "sub_operation", "extra", "xml")


def parse_hook_call(body: object) -> HookCall:
    """The question of the hook, in libvirt's words. Raises UsageError where a key is missing or wrong."""
    given = read_object(body, "", KEYS)
    for key in ("operation", "sub_operation", "xml"):
        if key not in given:
            raise UsageError(f"{key}: missing; the gate needs it.", path=key)
    read_text(given.get("extra", "-"), "extra", None, "a word", WORD_MAX)
    return HookCall(
        read_text(given["operation"], "operation", None, "a word", WORD_MAX),
        read_text(given["sub_operation"], "sub_operation", None, "a word", WORD_MAX),
        read_text(given["xml"], "xml", None, "the domain's XML", XML_MAX),
    )


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


LIMIT_DEFAULT = 100


LIMIT_MAX = 10_000


def parse_history(query: Mapping[str, str]) -> tuple[float, int]:
    """(seconds since 1970, limit) of a query. Raises UsageError where one of them is malformed."""
    return _since(query.get("since")), _limit(query.get("limit"))


def _since(word: str | None) -> float:
    if word is None:
        return 0.0
    try:
        since = datetime.fromisoformat(word)
        if since.tzinfo is None:
            raise ValueError("no offset")
        return since.timestamp()
    except (ValueError, OverflowError):
        raise UsageError(
            f"The query parameter since is a moment with its offset, such as "
            f"2026-11-21T10:00:00Z, not {word!r}",
            parameter="since",
        ) from None


def _limit(word: str | None) -> int:
    if word is None:
        return LIMIT_DEFAULT
    if word.isascii() and word.isdigit() and len(word) < 9 and 1 <= int(word) <= LIMIT_MAX:
        return int(word)
    raise UsageError(
        f"The query parameter limit is a whole number from 1 to {LIMIT_MAX}, not {word!r}", parameter="limit"
    )


def _unknown(consumer: str) -> NoReturn:
    raise UnknownConsumer(
        f"No claim of {consumer} is known on this host; `plimsoll instances` lists the known ones",
        consumer=consumer,
    )


def _uuid(text: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        raise UsageError(f"A consumer is named by its uuid; {text!r} is not a uuid", consumer=text) from None


def _flag(query: Mapping[str, str], name: str) -> bool:
    value = query.get(name, "false")
    if value not in ("true", "false"):
        raise UsageError(f"The query parameter {name} is true or false, not {value!r}", parameter=name)
    return value == "true"


def _record(action: str, consumer: str, caller: PeerCredentials, outcome: str, event: str = "") -> None:
    fields = {"event": event or action, "consumer": consumer, "outcome": outcome}
    LOG.info(
        "%s of %s %s, asked for by uid %d (pid %d)",
        action,
        consumer,
        outcome,
        caller.uid,
        caller.pid,
        fields={**fields, "uid": caller.uid, "pid": caller.pid},
    )
