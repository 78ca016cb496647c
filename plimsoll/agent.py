"""The agent of a host, for programs that wait; made from `async_agent.py` by `./dev generate`.

Each method is one operation of the agent's local API, and has its name. `timeout` is in seconds, over all
tries; None: the agent's own; infinite: no limit.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from plimsoll.errors import (
    AgentFailed,
    BadAnswer,
    Incompatible,
    NotFound,
    OutcomeUnknown,
    PlimsollError,
    Unavailable,
    error_of,
)
from plimsoll.values import Gap, claim_body, decode, domain_key, encode, held, new_key, url
from plimsoll.wire import (
    SOCKET_DEFAULT,
    SOCKET_VARIABLE,
    Broken,
    Door,
    Reply,
    Words,
    checked_limit,
    checked_maker,
    exchange,
    failure,
    parsed,
    request_text,
    sleep,
    told_done,
)

if TYPE_CHECKING:
    from plimsoll.shapes import (
        Addition,
        Capacity,
        Claim,
        ClaimByFlavor,
        ClaimByGroups,
        ClaimedRunning,
        Configuration,
        Cordon,
        Defrag,
        Device,
        Domain,
        Event,
        Explained,
        Explanation,
        Finding,
        Health,
        Instance,
        Look,
        Move,
        Overview,
        Pause,
        Plan,
        Preview,
        Receipt,
        Released,
        Status,
        Tree,
        Verdict,
        Where,
    )

    Asked: TypeAlias = ClaimByGroups | ClaimByFlavor | Mapping[str, Any] | None
    Added: TypeAlias = Addition | Mapping[str, Any] | None

TIMEOUT_S = 30.0
RETRIES = 8
PAUSE_S = 0.1
PAUSE_MAX_S = 1.0
UNDO_S = 5.0
WATCHED_MAX = 1000


class Agent:
    """The agent at `address`: the path of a socket, or `ssh://[USER@]HOST[:PORT][/PATH/OF/SOCKET]`.

    Without an address it is that of PLIMSOLL_SOCKET, else /run/plimsoll/plimsoll.sock. `made_by` is the name
    of the program, which the agent keeps with the claims that it makes. A request whose answer is lost is
    sent again, at most `retries` times: a write then has the same key, and is executed once.

    Any thread may call; each request has a connection of its own.
    """

    words = Words()

    def __init__(
        self,
        address: str | None = None,
        *,
        timeout: float = TIMEOUT_S,
        made_by: str = "",
        retries: int = RETRIES,
    ) -> None:
        """Raises InvalidRequest for an address or a timeout that can be none. Connects to nothing."""
        self._door = Door(address or os.environ.get(SOCKET_VARIABLE) or SOCKET_DEFAULT, self.words)
        self._timeout = checked_limit(timeout)
        self._made_by = checked_maker(made_by)
        self._retries = retries

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End what leads to the host; the next request opens it again."""
        self._door.close()

    # Requests

    def request(
        self, method: str, path: str, body: Any = None, *, timeout: float | None = None, key: str = ""
    ) -> Any:
        """The parsed answer to any request of the API; a write has a `key`. Raises PlimsollError."""
        _, answer = self._request(method, path, body, timeout, key)
        return answer

    def _request(
        self, method: str, path: str, body: Any, timeout: float | None, key: str
    ) -> tuple[Reply, Any]:
        """(the answer, its JSON)"""
        reply, unknown = self._exchange(method, path, body, timeout, key)
        answer = parsed(reply, self._door.place, self.words, key)
        if reply.status < 400:
            return reply, answer
        error = error_of(reply.status, answer)
        if key and error.code == "plimsoll.internal":
            error = OutcomeUnknown(error.message, code=error.code, status=error.status, details=error.details)
        error.key, error.repeated = key, unknown is not None
        if unknown is not None and isinstance(error, (Unavailable, AgentFailed)):
            raise unknown from error
        raise error

    def _exchange(
        self, method: str, path: str, body: Any, timeout: float | None, key: str
    ) -> tuple[Reply, PlimsollError | None]:
        """(the answer, the failure of an earlier try that may have been executed)

        A try is repeated where the agent closed the connection without an answer, as it does when it ends, or
        had too many requests. Where no agent is at the first try, there is no second one.
        """
        limit = self._timeout if timeout is None else checked_limit(timeout)
        deadline = time.monotonic() + limit
        text = request_text(method, path, body, self._made_by, self._door.until(deadline))
        unknown: PlimsollError | None = None
        for attempt in range(self._retries + 1):
            try:
                reply = exchange(self._open(deadline, limit), text, deadline)
                if reply.status != 503 or b'"plimsoll.api.busy"' not in reply.body:
                    return reply, unknown
                error = error_of(reply.status, parsed(reply, self._door.place, self.words))
            except Broken as broken:
                error = failure(broken, self._door, limit, self.words, key)
                if broken.asked:
                    unknown = error
                elif unknown is None:
                    raise error from broken.cause
            except Unavailable as closed:
                error = closed
                if unknown is None:
                    raise
            pause = min(PAUSE_S * 2**attempt, PAUSE_MAX_S)
            if attempt == self._retries or time.monotonic() + pause >= deadline:
                break
            sleep(pause)
        raise unknown or error

    def _open(self, deadline: float, limit: float) -> str:
        """The path of the socket to connect to. Raises Unavailable where ssh does not make it."""
        while (path := self._door.open()) is None:
            if time.monotonic() >= deadline:
                raise Unavailable(f"ssh to {self._door.place} did not connect within {limit:g} s")
            sleep(0.02)
        return path

    def _ask(
        self,
        shape: str,
        method: str,
        path: str,
        body: Any = None,
        timeout: float | None = None,
        key: str = "",
    ) -> Any:
        """The answer as a value of the shape."""
        return (self._read(shape, method, path, body, timeout, key))[1]

    def _read(
        self, shape: str, method: str, path: str, body: Any, timeout: float | None, key: str
    ) -> tuple[Reply, Any]:
        """(the answer, the value of the shape in it)"""
        from plimsoll import shapes

        reply, answer = self._request(method, path, body, timeout, key)
        try:
            return reply, decode(getattr(shapes, shape), answer, reply.agent_version)
        except BadAnswer as error:
            told_done(error, reply, key)
            raise

    def _make(
        self,
        shape: str,
        path: str,
        body: Any,
        timeout: float | None,
        key: str,
        undo: Callable[..., Any] | None,
    ) -> tuple[Any, bool]:
        """(the value of the shape, whether this call made what it shows)

        `undo` is given where the call chose the key. Where the call is then interrupted, or its answer cannot
        be read, the caller does not know what to undo: the call does, as far as that succeeds in UNDO_S.
        """
        try:
            reply, value = self._read(shape, "POST", path, body, timeout, key)
        except BaseException as error:
            is_told = isinstance(error, PlimsollError) and not isinstance(error, BadAnswer)
            if undo is None or is_told or isinstance(error, GeneratorExit):
                raise
            outcome = "It is undone again."
            try:
                self._undo(undo, key)
            except NotFound:
                outcome = "Nothing was made."
            except PlimsollError as failure:
                outcome = f"It could not be undone: {failure.message}"
            if isinstance(error, BadAnswer):
                error.message += f" {outcome}"
            else:
                error.add_note(f"The write with the key {key} was interrupted. {outcome}")
            raise
        return value, undo is not None or reply.headers.get("plimsoll-made") == "true"

    def _undo(self, undo: Callable[..., Any], key: str) -> None:
        """Undo what this client made, also where the agent is just being restarted. Raises as `undo` does."""
        deadline = time.monotonic() + UNDO_S
        while True:
            try:
                undo(key, timeout=UNDO_S)
                return
            except Unavailable:
                if time.monotonic() > deadline:
                    raise
            sleep(PAUSE_S)

    def _health(self, path: str, timeout: float | None) -> Health:
        """The checks, also where the agent answers 503 because one of them failed."""
        from plimsoll import shapes

        reply, _ = self._exchange("GET", path, None, timeout, "")
        answer = parsed(reply, self._door.place, self.words)
        if reply.status >= 400 and not (isinstance(answer, dict) and "checks" in answer):
            raise error_of(reply.status, answer)
        return decode(shapes.Health, answer, reply.agent_version)

    # How the agent and its host are

    def healthz(self, *, timeout: float | None = None) -> Health:
        """Whether the agent answers."""
        return self._health("/healthz", timeout)

    def livez(self, *, timeout: float | None = None) -> Health:
        """Whether the agent's loop runs; `ok` is false where it does not."""
        return self._health("/livez", timeout)

    def readyz(self, *, timeout: float | None = None) -> Health:
        """Whether the agent would consider a claim; `ok` is false where it would not."""
        return self._health("/readyz", timeout)

    def metrics(self, *, timeout: float | None = None) -> str:
        """The metrics, in Prometheus's text format."""
        reply, _ = self._exchange("GET", "/metrics", None, timeout, "")
        if reply.status >= 400:
            raise error_of(reply.status, parsed(reply, self._door.place, self.words))
        return reply.body.decode("utf-8", "replace")

    def openapi(self, *, timeout: float | None = None) -> dict[str, Any]:
        """The OpenAPI document of the agent's API."""
        return self.request("GET", "/v1/openapi.json", timeout=timeout)

    def status(self, *, timeout: float | None = None) -> Status:
        """The state of the agent, and the reasons for it."""
        return self._ask("Status", "GET", "/v1/status", None, timeout)

    def overview(self, *, timeout: float | None = None) -> Overview:
        """The whole host, from the agent's memory: status, health, tree, instances, moves, findings."""
        return self._ask("Overview", "GET", "/v1/overview", None, timeout)

    def config(self, *, timeout: float | None = None) -> Configuration:
        """The settings in force, {group: {option: setting}}; secrets are masked."""
        return self._ask("Configuration", "GET", "/v1/config", None, timeout)

    def tree(self, *, timeout: float | None = None) -> Tree:
        """The provider tree of this host, as Placement has it."""
        return self._ask("Tree", "GET", "/v1/tree", None, timeout)

    def instances(self, *, timeout: float | None = None) -> tuple[Instance, ...]:
        """Guests and claims side by side, by uuid; either of the two may be missing."""
        return (self._ask("Instances", "GET", "/v1/instances", None, timeout)).instances

    def history(
        self,
        consumer: str | None = None,
        *,
        since: datetime | None = None,
        within: int | None = None,
        limit: int | None = None,
        timeout: float | None = None,
    ) -> tuple[Event, ...]:
        """What the agent did, the newest first; `since` is a moment with its time zone, `within` seconds."""
        moment = None if since is None else since.isoformat()
        path = url("/v1/history", consumer=consumer, since=moment, within=within, limit=limit)
        return (self._ask("History", "GET", path, None, timeout)).events

    def watch(
        self, after: str | None = None, *, every: float = 0.5, patience: float = 60.0
    ) -> Iterator[Event | Gap]:
        """The events after the one with this id, once each and in order; None: those from its first step on.

        A Gap stands where some may be missing: the agent's history is bounded, and a new state directory has
        none of it. The agent is asked `every` so many seconds, also over its restarts. Raises Unavailable or
        BadAnswer where it has not answered for `patience` seconds, and at once where it never has.
        """
        answered, is_gap = -math.inf, False
        while True:
            events: tuple[Event, ...] = ()
            try:
                if after is None:
                    newest = self.history(limit=1)
                    after = newest[0].id if newest else "0"
                    if is_gap:
                        is_gap = False
                        yield Gap(after)
                path = url("/v1/history", after=after, limit=WATCHED_MAX)
                events = (self._ask("History", "GET", path)).events
                answered = time.monotonic()
            except NotFound:
                after, is_gap = None, True
            except (Unavailable, BadAnswer, AgentFailed) as error:
                if isinstance(error, Incompatible) or time.monotonic() - answered > patience:
                    raise
            for event in events:
                yield event
                after = event.id
            if len(events) < WATCHED_MAX and not is_gap:
                sleep(every)

    def explain(self, what: str, *, timeout: float | None = None) -> Explained:
        """Who owns a device, a unit or an allocation, and why, since when. Raises NotFound."""
        return self._ask("Explained", "GET", url("/v1/explain", what=what), None, timeout)

    # Claims

    def claim(
        self,
        asked: Asked = None,
        *,
        resources: Mapping[str, int] | None = None,
        consumer: str = "",
        name: str = "",
        timeout: float | None = None,
    ) -> Claim:
        """Claim what is `asked`, or these `resources` of any provider: {resource class: amount}.

        The key of the claim is the consumer; without one it is the name, which is that of an instance of this
        host or of a new one; without either a new uuid. The same claim again gets the same answer.

        The claim's context releases it where its block raises and this call made it; not one that was there
        before, nor one with a given key where the first answer was lost, as either may be another call's. A
        call that is interrupted, or gets an answer that it cannot read, releases a claim whose key is a new
        uuid. Raises Refused, Conflict, OutcomeUnknown.
        """
        body = claim_body(asked, resources, consumer, name)
        given = body.get("consumer") or body.get("name")
        key = given or new_key()
        body |= {} if given else {"consumer": key}
        undo = None if given else self.release
        claim, is_made = self._make("Claim", "/v1/claims", body, timeout, key, undo)
        return held(claim, partial(self._undo, self.release, claim.consumer) if is_made else None)

    def explain_claim(
        self,
        asked: Asked = None,
        *,
        resources: Mapping[str, int] | None = None,
        consumer: str = "",
        name: str = "",
        timeout: float | None = None,
    ) -> Explanation:
        """What `claim` would do, without doing it; also while claims are closed."""
        body = claim_body(asked, resources, consumer or new_key(), name)
        return self._ask("Explanation", "POST", "/v1/claims?dry_run=true", body, timeout)

    def show_claim(self, consumer: str, *, timeout: float | None = None) -> Claim:
        """One claim. Raises NotFound."""
        return self._ask("Claim", "GET", url("/v1/claims/{}", consumer), None, timeout)

    def extend(self, consumer: str, resources: Mapping[str, int], *, timeout: float | None = None) -> Claim:
        """Extend a claim to these amounts in all; what it has more of stays. Doing it again changes nothing.

        Raises NotFound; InvalidRequest for classes with exact units; Refused where it does not fit.
        """
        body = {"resources": dict(resources)}
        path = url("/v1/claims/{}/extend", consumer)
        return self._ask("Claim", "POST", path, body, timeout, consumer)

    def release(self, consumer: str, *, force: bool = False, timeout: float | None = None) -> Released:
        """Release a claim; `released` is false while it waits for Placement.

        `force`: also that of a guest that runs. Raises NotFound, Refused (the guest runs), Conflict.
        """
        path = url("/v1/claims/{}", consumer, force=force)
        try:
            return self._ask("Released", "DELETE", path, None, timeout, consumer)
        except NotFound as error:
            if not error.repeated:
                raise
        from plimsoll.shapes import Released

        return Released(consumer=consumer, released=True)

    def capacity(
        self, asked: Asked = None, *, resources: Mapping[str, int] | None = None, timeout: float | None = None
    ) -> Capacity:
        """How many guests that ask for this fit one after the other, and what is stranded by which guests."""
        body = claim_body(asked, resources, new_key())
        return self._ask("Capacity", "POST", "/v1/capacity", body, timeout)

    def defrag(
        self, asked: Asked = None, *, resources: Mapping[str, int] | None = None, timeout: float | None = None
    ) -> Defrag:
        """The fewest moves of guests that make room for one that asks for this; nothing is moved."""
        body = claim_body(asked, resources, new_key())
        return self._ask("Defrag", "POST", "/v1/defrag", body, timeout)

    def where(
        self,
        *asked: Added,
        resources: Mapping[str, int] | None = None,
        xml: str | None = None,
        strategy: str | None = None,
        count: int | None = None,
        host: str | None = None,
        timeout: float | None = None,
    ) -> Where:
        """On which hosts of the fleet a request fits, why not on the others, and what would make room.

        The first of the requests that fits anywhere counts. `strategy` is pack or spread.
        """
        requests = [claim_body(each) for each in asked]
        if resources is not None or not requests:
            requests.insert(0, claim_body(None, resources))
        given = {"xml": xml, "strategy": strategy, "count": count, "host": host}
        body = {"requests": requests} | {name: value for name, value in given.items() if value is not None}
        return self._ask("Where", "POST", "/v1/where", body, timeout)

    # Domains and the gate

    def claim_domain(
        self, xml: str, asked: Added = None, *, consumer: str | None = None, timeout: float | None = None
    ) -> Domain:
        """Claim what a domain's XML asks for, and what is `asked` beside it, and complete the domain.

        The key is the consumer, without one the domain's uuid, else its name, else a new uuid. Releases and
        raises as `claim` does.
        """
        given = consumer or domain_key(xml)
        key, undo = given or new_key(), None if given else self.release
        body = {"xml": xml} | _beside(asked, consumer if given else key)
        domain, is_made = self._make("Domain", "/v1/domains", body, timeout, key, undo)
        is_made = is_made or domain.made
        return held(domain, partial(self._undo, self.release, domain.consumer) if is_made else None)

    def explain_domain(
        self, xml: str, asked: Added = None, *, consumer: str | None = None, timeout: float | None = None
    ) -> Explanation:
        """What `claim_domain` would do, without doing it."""
        body = {"xml": xml} | _beside(asked, consumer)
        return self._ask("Explanation", "POST", "/v1/domains?dry_run=true", body, timeout)

    def write_domain(
        self, consumer: str, xml: str, *, replace: bool = False, timeout: float | None = None
    ) -> Domain:
        """Complete a domain's XML with what the claim gave; `replace`: over what it has of a former place."""
        body = {"xml": xml, "replace": replace}
        return self._ask("Domain", "POST", url("/v1/claims/{}/domain", consumer), body, timeout)

    def ask_gate(
        self, operation: str, sub_operation: str, xml: str, *, extra: str = "-", timeout: float | None = None
    ) -> Verdict:
        """Answer libvirt's hook: whether a guest may start or come in. Raises Refused where it may not."""
        body = {"operation": operation, "sub_operation": sub_operation, "extra": extra, "xml": xml}
        return self._ask("Verdict", "POST", "/v1/gate", body, timeout, "gate")

    def claim_running(self, *, timeout: float | None = None) -> ClaimedRunning:
        """Claim for the guests that run without a claim, as if each started now."""
        return self._ask("ClaimedRunning", "POST", "/v1/gate/running", {}, timeout, "gate")

    # Moves

    def moves(self, *, look: bool = False, timeout: float | None = None) -> tuple[Move, ...]:
        """The moves that this host takes part in; `look`: read first what the agents of other hosts did."""
        return (self._ask("Moves", "GET", url("/v1/moves", look=look), None, timeout)).moves

    def show_move(self, migration: str, *, timeout: float | None = None) -> Move:
        """One move. Raises NotFound."""
        return self._ask("Move", "GET", url("/v1/moves/{}", migration), None, timeout)

    def begin_move(
        self,
        kind: str,
        asked: Asked | Added = None,
        *,
        resources: Mapping[str, int] | None = None,
        consumer: str = "",
        domain: str | None = None,
        migration: str = "",
        alternative: int | None = None,
        timeout: float | None = None,
    ) -> Move:
        """Begin a move of an instance to this host; with a domain, the request adds to what its XML asks for.

        `kind`: cold_migrate, resize, live_migrate, rebuild or evacuate. `alternative`: the number of the one
        to take, from 1; 0: the first that fits; None: the one that the instance has. The key is the
        migration, without one a new uuid. The same move again gets the same answer; a call that is
        interrupted reverts a move whose key is a new uuid. Raises Refused, Conflict, OutcomeUnknown.
        """
        migration, undo = migration or new_key(), None if migration else self.revert_move
        body: dict[str, Any] = {"migration": migration, "kind": kind}
        body |= {} if alternative is None else {"alternative": alternative}
        if domain is None:
            body["request"] = claim_body(asked, resources, consumer)
        else:
            body |= {"domain": domain, "consumer": consumer, "request": claim_body(asked, resources)}
        return (self._make("Move", "/v1/moves", body, timeout, migration, undo))[0]

    def confirm_move(
        self, migration: str, *, instance: str | None = None, timeout: float | None = None
    ) -> Move:
        """The instance stays at the destination, and the source is free; `ended` is false while that waits.

        `instance` is that of the migration, where the source cannot tell two moves apart.
        """
        path = url("/v1/moves/{}/confirm", migration, instance=instance)
        return self._ask("Move", "POST", path, None, timeout, migration)

    def revert_move(
        self, migration: str, *, instance: str | None = None, timeout: float | None = None
    ) -> Move:
        """The instance has its old place again, and the destination is free; otherwise as `confirm_move`."""
        path = url("/v1/moves/{}/revert", migration, instance=instance)
        return self._ask("Move", "POST", path, None, timeout, migration)

    # What an operator does

    def pause(
        self,
        reason: str | None = None,
        *,
        schedulers: bool | None = None,
        drain: bool | None = None,
        timeout: float | None = None,
    ) -> Pause:
        """Take no new claims and moves until `resume`; what is None stays as it is on a paused host."""
        given = {"reason": reason, "schedulers": schedulers, "drain": drain}
        body = {name: value for name, value in given.items() if value is not None}
        return self._ask("Pause", "POST", "/v1/pause", body, timeout, "pause")

    def resume(self, *, timeout: float | None = None) -> None:
        """End the pause; no error without one."""
        self.request("POST", "/v1/resume", {}, timeout=timeout, key="pause")

    def devices(self, *, timeout: float | None = None) -> tuple[Device, ...]:
        """The devices for guests, who has each, and which are withheld."""
        return (self._ask("Devices", "GET", "/v1/devices", None, timeout)).devices

    def cordon_device(self, address: str, reason: str = "", *, timeout: float | None = None) -> Cordon:
        """Give the device to no guest; the guest that has it keeps it."""
        body = {"address": address, "reason": reason}
        return self._ask("Cordon", "POST", "/v1/devices/cordon", body, timeout, address)

    def clear_device(self, address: str, *, timeout: float | None = None) -> None:
        """Give the device to guests again. Raises InvalidRequest where it is not withheld."""
        body = {"address": address}
        self.request("POST", "/v1/devices/clear", body, timeout=timeout, key=address)

    def plan(self, *, timeout: float | None = None) -> Plan:
        """What the next pass would change in Placement."""
        return self._ask("Plan", "GET", "/v1/plan", None, timeout)

    def look(self, *, timeout: float | None = None) -> Look:
        """Run a pass and an audit now; the audit repairs nothing."""
        return self._ask("Look", "POST", "/v1/look", {}, timeout, "look")

    def audit(self, *, timeout: float | None = None) -> tuple[Finding, ...]:
        """What differs between the host, the claims and Placement; nothing is written."""
        return (self._ask("Audit", "GET", "/v1/audit", None, timeout)).findings

    def heal_audit(
        self, *, heal: bool = True, dry_run: bool = False, timeout: float | None = None
    ) -> tuple[Finding, ...]:
        """The same findings, which the agent repairs unless it is a dry run."""
        path = url("/v1/audit", heal=heal, dry_run=dry_run)
        return (self._ask("Audit", "POST", path, None, timeout, "audit")).findings

    def preview_reshape(self, *, undo: str | None = None, timeout: float | None = None) -> Preview:
        """What a reshape would do, or the undoing of one with this receipt; nothing is written."""
        return self._ask("Preview", "GET", url("/v1/reshape", undo=undo), None, timeout)

    def reshape(self, *, undo: str | None = None, timeout: float | None = None) -> tuple[Receipt, ...]:
        """Do the reshape that is due, or undo the one with this receipt. Raises Refused."""
        body = {} if undo is None else {"undo": undo}
        return (self._ask("Reshaped", "POST", "/v1/reshape", body, timeout, undo or "reshape")).receipts


def _beside(asked: Added, consumer: str | None) -> dict[str, Any]:
    """What the body of a request for a domain has beside its XML."""
    body = {} if asked is None else {"request": encode(asked)}
    return body if consumer is None else {**body, "consumer": consumer}
