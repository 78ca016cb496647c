"""The handlers: a function for each route and method, in the order of the table in core.py.

Each receives a request, runs a rule or reads the model, and builds the response, most with the same headers.
"""

from __future__ import annotations

import json
import uuid as uuids
from collections.abc import Callable, Iterable, Mapping
from email.utils import formatdate
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from agent.http.process import consume, without_collection
from agent.placement.embedded import fleet, rules, validation
from agent.placement.embedded import microversions as mv
from agent.placement.embedded.candidates import (
    Candidate,
    CandidateQuery,
    ProviderReach,
    TreeView,
    find_candidates,
    parse_query,
)
from agent.placement.embedded.fleet import NOTE_BYTES_MAX, HostNotes, Wanted
from agent.placement.embedded.model import ConsumerRecord, Draft, InventoryRecord, Model, ProviderRecord
from agent.placement.embedded.problems import BAD_REQUEST, NOT_FOUND, TOO_LARGE, RequestRefused
from agent.placement.embedded.rules import ConsumerWrite
from agent.placement.embedded.store import KEY_CHARACTERS_MAX, Store
from agent.placement.embedded.validation import Query, Versions, is_loose_uuid, validate

T = TypeVar("T")
REQUEST_ID = "x-openstack-request-id"


class Request(NamedTuple):
    """One request.

    `minor` is the minor number of the microversion, `args` are the variable parts of the path, `body` is the
    Python object of the JSON, `key` the idempotency key. `failure`: its write failed before; `binding` limits
    its writes to a host. `notes` are those of the hosts' agents.
    """

    store: Store
    notes: HostNotes
    minor: int
    method: str
    args: Mapping[str, str]
    query: Query
    body: Any
    key: str | None = None
    failure: Exception | None = None
    binding: rules.Binding | None = None

    def read_body(self, versions: Versions) -> Any:
        """The body, valid for the microversion. Raises RequestRefused (400) where it is not."""
        return validate(versions, self.minor, self.body, "body")

    def write(self, rule: Callable[[Draft], T], *, releases: bool = False) -> T:
        """See `Store.write`; a repeated request with the same key is the same write.

        Raises RequestRefused (400) for a long key, and (403) where the rule changed what the binding does not
        allow.
        """
        if self.key is not None and len(self.key) > KEY_CHARACTERS_MAX:
            raise RequestRefused(
                BAD_REQUEST, f"An Idempotency-Key has at most {KEY_CHARACTERS_MAX} characters."
            )
        if self.failure is not None:
            raise self.failure
        what = (self.method, self.args, self.body, self.minor, self.binding)
        binding = self.binding

        def bound(draft: Draft) -> T:
            answer = rule(draft)
            if binding is not None:
                rules.check_bound(draft, binding)
            return answer

        return self.store.write(bound, releases=releases, key=self.key, what=what)

    def read_query(self, versions: Versions) -> dict[str, str]:
        """Each query parameter with its last value. Raises RequestRefused (400) for invalid parameters."""
        parameters: dict[str, str] = validate(versions, self.minor, self.query.as_dict(), "query")
        return parameters


class CoreResponse(NamedTuple):
    """One response.

    `headers` have lower-case names; `body` is a Python object that the caller owns, None for an empty one.
    """

    status: int
    headers: dict[str, str]
    body: Any


def new_request_id() -> str:
    """The id of one request, which its response has in the header REQUEST_ID."""
    return f"req-{uuids.uuid4()}"


def json_response(request: Request, body: Any, modified_at: float | None, status: int = 200) -> CoreResponse:
    """A response with a body. `modified_at` (seconds since 1970) becomes last-modified, unless it is None."""
    return CoreResponse(status, cache_headers(request, modified_at), body)


def cache_headers(request: Request, modified_at: float | None) -> dict[str, str]:
    """The caching headers, from microversion 1.15 on."""
    if request.minor < mv.LAST_MODIFIED:
        return {}
    headers = {"cache-control": "no-cache"}
    if modified_at is not None:
        headers["last-modified"] = formatdate(modified_at, usegmt=True)
    return headers


def empty_response(status: int = 204, headers: dict[str, str] | None = None) -> CoreResponse:
    """A response without a body."""
    return CoreResponse(status, headers or {}, None)


# The versions, and providers


def get_root(request: Request) -> CoreResponse:
    """GET /"""
    version = {
        "id": f"v{mv.text(mv.MIN)}",
        "max_version": mv.text(mv.MAX),
        "min_version": mv.text(mv.MIN),
        "status": "CURRENT",
        "links": [{"rel": "self", "href": ""}],
    }
    return json_response(request, {"versions": [version]}, request.store.clock())


_LINKS = (
    ("inventories", mv.MIN),
    ("usages", mv.MIN),
    ("aggregates", mv.AGGREGATES),
    ("traits", mv.TRAITS),
    ("allocations", mv.ALLOCATIONS_LINK),
)


def url_of(provider_uuid: str) -> str:
    """The provider's path in the API."""
    return f"/resource_providers/{provider_uuid}"


def show_provider(provider: ProviderRecord, minor: int) -> dict[str, Any]:
    """The provider's record in a response."""
    url = url_of(provider.uuid)
    links = [{"rel": "self", "href": url}]
    links += [{"rel": rel, "href": f"{url}/{rel}"} for rel, since in _LINKS if minor >= since]
    shown = {
        "uuid": provider.uuid,
        "name": provider.name,
        "generation": provider.generation,
        "links": links,
    }
    if minor >= mv.NESTED_PROVIDERS:
        shown["parent_provider_uuid"] = provider.parent_uuid
        shown["root_provider_uuid"] = provider.root_uuid
    return shown


def create_provider(request: Request) -> CoreResponse:
    """POST /resource_providers"""
    body = request.read_body(validation.POST_PROVIDER)
    given = body.get("uuid")
    uuid = str(uuids.UUID(given)) if given else str(uuids.uuid4())
    provider = request.write(
        lambda draft: rules.create_provider(draft, uuid, body["name"], body.get("parent_provider_uuid"))
    )
    if provider.parent_uuid is None:
        request.notes.appear(uuid)
    location = {"location": url_of(provider.uuid)}
    if request.minor < mv.CREATED_PROVIDER_BODY:
        return empty_response(201, location)
    headers = cache_headers(request, provider.updated_at) | location
    return CoreResponse(200, headers, show_provider(provider, request.minor))


def get_provider(request: Request) -> CoreResponse:
    """GET /resource_providers/{uuid}"""
    provider = rules.get_provider(request.store.model, request.args["uuid"])
    return json_response(request, show_provider(provider, request.minor), provider.updated_at)


def update_provider(request: Request) -> CoreResponse:
    """PUT /resource_providers/{uuid}"""
    uuid, minor = request.args["uuid"], request.minor
    rules.get_provider(request.store.model, uuid)
    body = request.read_body(validation.PUT_PROVIDER)

    def rule(draft: Draft) -> ProviderRecord:
        parent = body.get("parent_provider_uuid", rules.get_provider(draft, uuid).parent_uuid)
        return rules.update_provider(draft, uuid, body["name"], parent, may_reparent=minor >= mv.REPARENTING)

    provider = request.write(rule)
    return json_response(request, show_provider(provider, minor), provider.updated_at)


def delete_provider(request: Request) -> CoreResponse:
    """DELETE /resource_providers/{uuid}"""
    uuid = request.args["uuid"]
    request.write(lambda draft: rules.delete_provider(draft, uuid), releases=True)
    return empty_response()


def list_providers(request: Request) -> CoreResponse:
    """GET /resource_providers"""
    parameters = request.read_query(validation.LIST_PROVIDERS)
    aggregates = validation.parse_member_of(request.query.all("member_of"), request.minor)
    traits = validation.parse_required(request.query.all("required"), request.minor)
    amounts = validation.parse_resources(parameters["resources"]) if "resources" in parameters else {}
    with request.store.reading() as model:
        candidates: Iterable[ProviderRecord] = model.providers.values()
        if parameters.get("in_tree"):
            member = model.provider(parameters["in_tree"])
            if member is None:
                return json_response(request, {"resource_providers": []}, request.store.clock())
            candidates = model.tree(member.root_uuid)
        if parameters.get("uuid"):
            candidates = [provider for provider in candidates if provider.uuid == parameters["uuid"]]
        if parameters.get("name"):
            candidates = [provider for provider in candidates if provider.name == parameters["name"]]
        unknown = sorted(name for name in traits.names if not model.has_trait(name))
        if unknown:
            raise RequestRefused(BAD_REQUEST, f"No such trait(s): {', '.join(unknown)}.")
        rules.check_known(model, amounts)
        matching = [
            provider
            for provider in candidates
            if traits.admits(provider.traits)
            and aggregates.admits(provider.aggregates)
            and all(
                (inventory := provider.inventories.get(name)) is not None
                and inventory.admits(amount)
                and model.used(provider.uuid, name) + amount <= inventory.capacity
                for name, amount in amounts.items()
            )
        ]
    modified = max((provider.updated_at for provider in matching), default=request.store.clock())
    return json_response(
        request,
        {"resource_providers": [show_provider(provider, request.minor) for provider in matching]},
        modified,
    )


# Inventories

_INVENTORY_FIELDS = ("total", "reserved", "min_unit", "max_unit", "step_size", "allocation_ratio")


def get_inventories(request: Request) -> CoreResponse:
    """GET /resource_providers/{uuid}/inventories"""
    return _show_inventories(request, rules.get_provider(request.store.model, request.args["uuid"]))


def get_inventory(request: Request) -> CoreResponse:
    """GET /resource_providers/{uuid}/inventories/{resource_class}"""
    provider = rules.get_provider(request.store.model, request.args["uuid"])
    resource_class = request.args["resource_class"]
    if resource_class not in provider.inventories:
        raise RequestRefused(NOT_FOUND, f"No inventory of class {resource_class} for {provider.uuid}.")
    return _answer_inventory(request, provider, resource_class)


def put_inventories(request: Request) -> CoreResponse:
    """PUT /resource_providers/{uuid}/inventories"""
    uuid = request.args["uuid"]
    rules.get_provider(request.store.model, uuid)
    body = request.read_body(validation.PUT_INVENTORIES)
    wanted = inventories_of(body["inventories"], request.store.clock())
    generation = body["resource_provider_generation"]

    def rule(draft: Draft) -> ProviderRecord:
        rules.get_provider_at(draft, uuid, generation)
        _check_capacity(request, wanted)
        return rules.put_inventories(draft, uuid, generation, wanted)

    return _show_inventories(request, request.write(rule))


def delete_inventories(request: Request) -> CoreResponse:
    """DELETE /resource_providers/{uuid}/inventories"""
    uuid = request.args["uuid"]
    request.write(lambda draft: rules.put_inventories(draft, uuid, None, {}), releases=True)
    return empty_response()


def add_inventory(request: Request) -> CoreResponse:
    """POST /resource_providers/{uuid}/inventories"""
    uuid = request.args["uuid"]
    rules.get_provider(request.store.model, uuid)
    body = request.read_body(validation.POST_INVENTORY)
    resource_class = body["resource_class"]
    inventory = rules.inventory_of(body, request.store.clock())
    _check_capacity(request, {resource_class: inventory})
    provider = request.write(lambda draft: rules.add_inventory(draft, uuid, resource_class, inventory))
    answer = _answer_inventory(request, provider, resource_class, 201)
    answer.headers["location"] = f"{url_of(uuid)}/inventories/{resource_class}"
    return answer


def put_inventory(request: Request) -> CoreResponse:
    """PUT /resource_providers/{uuid}/inventories/{resource_class}"""
    uuid, resource_class = request.args["uuid"], request.args["resource_class"]
    rules.get_provider(request.store.model, uuid)
    body = request.read_body(validation.PUT_INVENTORY)
    inventory = rules.inventory_of(body, request.store.clock())
    generation = body["resource_provider_generation"]

    def rule(draft: Draft) -> ProviderRecord:
        rules.get_provider_at(draft, uuid, generation)
        _check_capacity(request, {resource_class: inventory})
        return rules.update_inventory(draft, uuid, generation, resource_class, inventory)

    return _answer_inventory(request, request.write(rule), resource_class)


def delete_inventory(request: Request) -> CoreResponse:
    """DELETE /resource_providers/{uuid}/inventories/{resource_class}"""
    uuid, resource_class = request.args["uuid"], request.args["resource_class"]
    request.write(lambda draft: rules.delete_inventory(draft, uuid, resource_class), releases=True)
    return empty_response()


def inventories_of(bodies: Mapping[str, Mapping[str, Any]], now: float) -> dict[str, InventoryRecord]:
    """{resource class: inventory} of valid bodies."""
    return {resource_class: rules.inventory_of(body, now) for resource_class, body in bodies.items()}


def _check_capacity(request: Request, wanted: rules.InventoryRecords) -> None:
    may_be_zero = request.minor >= mv.RESERVED_MAY_BE_TOTAL
    rules.check_capacity(request.args["uuid"], wanted, may_be_zero=may_be_zero)


def _show_inventories(request: Request, provider: ProviderRecord) -> CoreResponse:
    shown = {name: _show_inventory(inventory) for name, inventory in provider.inventories.items()}
    modified = max((inventory.updated_at for inventory in provider.inventories.values()), default=None)
    body = {"resource_provider_generation": provider.generation, "inventories": shown}
    return json_response(request, body, modified)


def _answer_inventory(
    request: Request, provider: ProviderRecord, resource_class: str, status: int = 200
) -> CoreResponse:
    inventory = provider.inventories[resource_class]
    body = _show_inventory(inventory) | {"resource_provider_generation": provider.generation}
    return json_response(request, body, inventory.updated_at, status)


def _show_inventory(inventory: InventoryRecord) -> dict[str, Any]:
    return {field: getattr(inventory, field) for field in _INVENTORY_FIELDS}


# Traits and aggregates


def list_traits(request: Request) -> CoreResponse:
    """GET /traits"""
    parameters = request.read_query(validation.LIST_TRAITS)
    with request.store.reading() as model:
        known = dict(model.traits)
        if "name" in parameters:
            kind, colon, value = parameters["name"].partition(":")
            if not colon:
                raise RequestRefused(BAD_REQUEST, "name must be in:NAME,NAME or startswith:PREFIX.")
            if kind == "in":
                wanted = set(value.split(","))
                known = {name: created_at for name, created_at in known.items() if name in wanted}
            elif kind == "startswith":
                known = {name: created_at for name, created_at in known.items() if name.startswith(value)}
        if "associated" in parameters:
            associated = {"true": True, "false": False}.get(parameters["associated"].lower())
            if associated is None:
                raise RequestRefused(BAD_REQUEST, 'associated must be "true" or "false".')
            known = {
                name: created_at
                for name, created_at in known.items()
                if (name in model.providers_by_trait) is associated
            }
    return json_response(request, {"traits": list(known)}, _newest(request, known.values()))


def get_trait(request: Request) -> CoreResponse:
    """GET /traits/{name}"""
    name = request.args["name"]
    created_at = request.store.model.traits.get(name)
    if created_at is None:
        raise RequestRefused(NOT_FOUND, f"No such trait(s): {name}.")
    return empty_response(204, cache_headers(request, created_at))


def put_trait(request: Request) -> CoreResponse:
    """PUT /traits/{name}"""
    name = validation.validate(
        validation.CUSTOM_TRAIT, request.minor, request.args["name"], "the trait's name"
    )
    created = request.write(lambda draft: rules.ensure_trait(draft, name))
    created_at = request.store.model.traits.get(name, request.store.clock())  # it need not be on disk yet
    headers = cache_headers(request, created_at) | {"location": f"/traits/{name}"}
    return empty_response(201 if created else 204, headers)


def delete_trait(request: Request) -> CoreResponse:
    """DELETE /traits/{name}"""
    name = request.args["name"]
    request.write(lambda draft: rules.delete_trait(draft, name), releases=True)
    return empty_response()


def get_provider_traits(request: Request) -> CoreResponse:
    """GET /resource_providers/{uuid}/traits"""
    return _show_traits(request, rules.get_provider(request.store.model, request.args["uuid"]))


def put_provider_traits(request: Request) -> CoreResponse:
    """PUT /resource_providers/{uuid}/traits"""
    uuid = request.args["uuid"]
    body = request.read_body(validation.PUT_PROVIDER_TRAITS)
    provider = request.write(
        lambda draft: rules.set_traits(draft, uuid, body["resource_provider_generation"], body["traits"])
    )
    return _show_traits(request, provider)


def delete_provider_traits(request: Request) -> CoreResponse:
    """DELETE /resource_providers/{uuid}/traits"""
    uuid = request.args["uuid"]
    request.write(lambda draft: rules.set_traits(draft, uuid, None, ()), releases=True)
    return empty_response()


def get_aggregates(request: Request) -> CoreResponse:
    """GET /resource_providers/{uuid}/aggregates"""
    provider = rules.get_provider(request.store.model, request.args["uuid"])
    return _show_aggregates(request, provider, sorted(provider.aggregates))


def put_aggregates(request: Request) -> CoreResponse:
    """PUT /resource_providers/{uuid}/aggregates"""
    uuid = request.args["uuid"]
    rules.get_provider(request.store.model, uuid)
    body = request.read_body(validation.PUT_AGGREGATES)
    guarded = request.minor >= mv.AGGREGATES_GENERATION
    aggregates = body["aggregates"] if guarded else body
    generation = body["resource_provider_generation"] if guarded else None
    provider = request.write(
        lambda draft: rules.set_aggregates(draft, uuid, generation, aggregates, raises_generation=guarded)
    )
    return _show_aggregates(request, provider, aggregates)


def _show_traits(request: Request, provider: ProviderRecord) -> CoreResponse:
    known, now = request.store.model.traits, request.store.clock()
    body = {"traits": sorted(provider.traits), "resource_provider_generation": provider.generation}
    return json_response(request, body, _newest(request, (known.get(name, now) for name in provider.traits)))


def _show_aggregates(request: Request, provider: ProviderRecord, aggregates: list[str]) -> CoreResponse:
    body: dict[str, Any] = {"aggregates": aggregates}
    if request.minor >= mv.AGGREGATES_GENERATION:
        body["resource_provider_generation"] = provider.generation
    return json_response(request, body, request.store.clock())


def _newest(request: Request, times: Iterable[float]) -> float:
    return max(times, default=request.store.clock())


# Resource classes


def _url_of(name: str) -> str:
    return f"/resource_classes/{name}"


def _show_class(name: str) -> dict[str, Any]:
    return {"name": name, "links": [{"rel": "self", "href": _url_of(name)}]}


def list_classes(request: Request) -> CoreResponse:
    """GET /resource_classes"""
    with request.store.reading() as model:
        known = dict(model.resource_classes)
    return json_response(
        request, {"resource_classes": [_show_class(name) for name in known]}, max(known.values())
    )


def get_class(request: Request) -> CoreResponse:
    """GET /resource_classes/{name}"""
    name = request.args["name"]
    created_at = request.store.model.resource_classes.get(name)
    if created_at is None:
        raise RequestRefused(NOT_FOUND, f"No such resource class {name}.")
    return json_response(request, _show_class(name), created_at)


def create_class(request: Request) -> CoreResponse:
    """POST /resource_classes"""
    name: str = request.read_body(validation.CUSTOM_CLASS)["name"]
    request.write(lambda draft: rules.create_class(draft, name))
    return empty_response(201, {"location": _url_of(name)})


def ensure_class(request: Request) -> CoreResponse:
    """PUT /resource_classes/{name}, from microversion 1.7 on"""
    body = {"name": request.args["name"]}
    name: str = validation.validate(validation.CUSTOM_CLASS, request.minor, body, "the resource class")[
        "name"
    ]
    created = request.write(lambda draft: rules.ensure_class(draft, name))
    return empty_response(201 if created else 204, {"location": _url_of(name)})


def rename_class(request: Request) -> CoreResponse:
    """PUT /resource_classes/{name}, up to microversion 1.6"""
    name = request.args["name"]
    new_name: str = request.read_body(validation.CUSTOM_CLASS)["name"]
    request.write(lambda draft: rules.rename_class(draft, name, new_name))
    return json_response(request, _show_class(new_name), None)


def delete_class(request: Request) -> CoreResponse:
    """DELETE /resource_classes/{name}"""
    name = request.args["name"]
    request.write(lambda draft: rules.delete_class(draft, name), releases=True)
    return empty_response()


# Allocations

UNKNOWN_TYPE = "unknown"
"""The shown type of a consumer without a type."""

INCOMPLETE_OWNER = "00000000-0000-0000-0000-000000000000"
"""Project and user of a write below microversion 1.8, which does not name them."""


def get_allocations(request: Request) -> CoreResponse:
    """GET /allocations/{consumer_uuid}"""
    with request.store.reading() as model:
        consumer = model.consumer(request.args["consumer_uuid"])
        if consumer is None or not consumer.allocations:
            return json_response(request, {"allocations": {}}, request.store.clock())
        shown: dict[str, Any] = {
            "allocations": {
                uuid: {"resources": dict(resources), "generation": model.providers[uuid].generation}
                for uuid, resources in consumer.allocations.items()
            }
        }
    if request.minor >= mv.ALLOCATIONS_BY_PROVIDER:
        shown["project_id"] = consumer.project_id
        shown["user_id"] = consumer.user_id
    if request.minor >= mv.CONSUMER_GENERATION:
        shown["consumer_generation"] = consumer.generation
    if request.minor >= mv.CONSUMER_TYPES:
        shown["consumer_type"] = consumer.consumer_type or UNKNOWN_TYPE
    return json_response(request, shown, consumer.updated_at)


def get_provider_allocations(request: Request) -> CoreResponse:
    """GET /resource_providers/{uuid}/allocations"""
    with request.store.reading() as model:
        provider = rules.get_provider(model, request.args["uuid"])
        holders = model.consumers_of(provider.uuid)
    shown: dict[str, dict[str, Any]] = {}
    for consumer in holders:
        shown[consumer.uuid] = {"resources": dict(consumer.allocations[provider.uuid])}
        if request.minor >= mv.CONSUMER_GENERATION:
            shown[consumer.uuid]["consumer_generation"] = consumer.generation
    modified = max((consumer.updated_at for consumer in holders), default=request.store.clock())
    body = {"allocations": shown, "resource_provider_generation": provider.generation}
    return json_response(request, body, modified)


def put_allocations(request: Request) -> CoreResponse:
    """PUT /allocations/{consumer_uuid}"""
    given = request.args["consumer_uuid"]
    if not is_loose_uuid(given):
        raise RequestRefused(BAD_REQUEST, f"Malformed consumer_uuid: {given}")
    body = request.read_body(validation.PUT_ALLOCATIONS)
    if request.minor < mv.ALLOCATIONS_BY_PROVIDER:
        body["allocations"] = {
            part["resource_provider"]["uuid"]: {"resources": part["resources"]}
            for part in body["allocations"]
        }
    write = _write_of(str(uuids.UUID(given)), body, request.minor)
    request.write(lambda draft: rules.replace_allocations(draft, (write,)), releases=not write.allocations)
    return empty_response()


def post_allocations(request: Request) -> CoreResponse:
    """POST /allocations"""
    writes = _writes_of(request.read_body(validation.POST_ALLOCATIONS), request.minor)
    # A body with empty allocations ends or reverts a move: it frees at least as much as it takes.
    releases = any(not write.allocations for write in writes)
    request.write(lambda draft: rules.replace_allocations(draft, writes), releases=releases)
    return empty_response()


def delete_allocations(request: Request) -> CoreResponse:
    """DELETE /allocations/{consumer_uuid}"""
    uuid = request.args["consumer_uuid"]
    request.write(lambda draft: rules.delete_allocations(draft, uuid), releases=True)
    return empty_response()


def reshape(request: Request) -> CoreResponse:
    """POST /reshaper"""
    body = request.read_body(validation.POST_RESHAPER)
    now = request.store.clock()
    wanted = {
        uuid: (part["resource_provider_generation"], inventories_of(part["inventories"], now))
        for uuid, part in body["inventories"].items()
    }
    writes = _writes_of(body["allocations"], request.minor)
    request.write(lambda draft: rules.reshape(draft, wanted, writes))
    return empty_response()


def _writes_of(bodies: Mapping[str, Mapping[str, Any]], minor: int) -> list[ConsumerWrite]:
    return [_write_of(uuid, body, minor) for uuid, body in bodies.items()]


def _write_of(uuid: str, body: Mapping[str, Any], minor: int) -> ConsumerWrite:
    return ConsumerWrite(
        uuid=uuid,
        project_id=body.get("project_id", INCOMPLETE_OWNER),
        user_id=body.get("user_id", INCOMPLETE_OWNER),
        consumer_type=body.get("consumer_type"),
        generation=body.get("consumer_generation"),
        checks_generation=minor >= mv.CONSUMER_GENERATION,
        allocations={rp: allocation["resources"] for rp, allocation in body["allocations"].items()},
    )


# The hosts, and the notes that their agents leave: no part of Placement's API


def put_note(request: Request) -> CoreResponse:
    """PUT /hosts/{uuid}/note

    A server that takes no writes refuses it. It changes nothing in the journal, so it waits for no disk:
    notes of many hosts would hold all threads where the disk hangs.
    """
    if isinstance(request.body, dict):
        length = len(json.dumps(request.body))
        if length > NOTE_BYTES_MAX:
            raise RequestRefused(
                TOO_LARGE, f"The note has {length} bytes; a host's note may have at most {NOTE_BYTES_MAX}."
            )
    note = request.read_body(validation.PUT_NOTE)
    uuid, model = request.args["uuid"], request.store.model
    rules.check_note(Draft(model, request.store.clock()), request.binding, uuid)
    request.notes.put(uuid, note, model)
    return empty_response()


def list_hosts(request: Request) -> CoreResponse:
    """GET /hosts"""
    hosts = [
        {"uuid": root.uuid, "name": root.name, **request.notes.heard(root.uuid)._asdict()}
        for root in fleet.hosts_of(request.store.model)
    ]
    return json_response(request, {"hosts": hosts}, request.store.clock())


def show_fleet(request: Request) -> CoreResponse:
    """GET /fleet"""
    asked = request.query.as_dict()
    wanted = Wanted.of(asked)
    query = fleet.room_query(wanted.room, request.notes.flavors) if wanted.room else None
    with without_collection():
        table = fleet.read_table(request.store.model, request.notes, query, wanted.of_class)
        shown = fleet.show_table(table, wanted, every="every" in asked)
    return json_response(request, {**shown, "flavors": list(request.notes.flavors)}, request.store.clock())


def show_metrics(request: Request) -> CoreResponse:
    """GET /metrics: the text, which a server sends as such."""
    with without_collection():
        text = fleet.metrics(request.store.model, request.notes, active=request.store.home.is_active)
    return json_response(request, {"text": text}, request.store.clock())


def show_host(request: Request) -> CoreResponse:
    """GET /fleet/{uuid}"""
    uuid = request.args["uuid"]
    shown = fleet.show_host(request.store.model, request.notes, uuid, Wanted.of(request.query.as_dict()))
    if shown is None:
        raise RequestRefused(NOT_FOUND, f"No host has the root provider {uuid}.")
    return json_response(request, shown, request.store.clock())


HOSTS_PARAMETERS = ("trees", "holders")


def list_host_candidates(request: Request) -> CoreResponse:
    """GET /hosts/candidates

    The query is that of GET /allocation_candidates; `limit` counts hosts, an unknown class or trait is one
    that no host has, and groups with the suffixes _CELL0, _CELL1 and so on come from different providers.
    `trees` and `holders` are true or false.
    """
    pairs = request.query.pairs
    flags = {key: value == "true" for key, value in pairs if key in HOSTS_PARAMETERS}
    query = parse_query(
        request.query.of([pair for pair in pairs if pair[0] not in HOSTS_PARAMETERS]), request.minor
    ).with_cells_apart()
    with without_collection():
        model, notes = request.store.model, request.notes
        hosts = [] if flags.get("trees") else fleet.candidate_hosts(model, query, notes)
        body: dict[str, Any] = {"hosts": hosts}
        if not hosts:
            body |= fleet.host_trees(model, query, notes, holders=flags.get("holders", False))
    return json_response(request, body, request.store.clock())


# Usages

ALL_TYPES = "all"


def get_provider_usages(request: Request) -> CoreResponse:
    """GET /resource_providers/{uuid}/usages"""
    with request.store.reading() as model:
        provider = rules.get_provider(model, request.args["uuid"])
        used = {name: model.used(provider.uuid, name) for name in provider.inventories}
    body = {"resource_provider_generation": provider.generation, "usages": used}
    return json_response(request, body, request.store.clock())


def get_usages(request: Request) -> CoreResponse:
    """GET /usages"""
    parameters = request.read_query(validation.GET_USAGES)
    project_id, user_id = parameters["project_id"], parameters.get("user_id")
    with request.store.reading() as model:
        owned = [
            consumer
            for consumer in model.consumers.values()
            if consumer.allocations
            and consumer.project_id == project_id
            and user_id in (None, consumer.user_id)
        ]
    if request.minor < mv.CONSUMER_TYPES:
        return json_response(request, {"usages": _sums(owned)}, request.store.clock())
    # {type: {class: sum, ..., "consumer_count": n}}; "all" puts all consumers under that name
    wanted = parameters.get("consumer_type")
    groups: dict[str, list[ConsumerRecord]] = {}
    for consumer in owned:
        name = ALL_TYPES if wanted == ALL_TYPES else consumer.consumer_type or UNKNOWN_TYPE
        if wanted in (None, name):
            groups.setdefault(name, []).append(consumer)
    usages = {name: {**_sums(group), "consumer_count": len(group)} for name, group in groups.items()}
    return json_response(request, {"usages": usages}, request.store.clock())


def _sums(consumers: Iterable[ConsumerRecord]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for consumer in consumers:
        for resources in consumer.allocations.values():
            for resource_class, amount in resources.items():
                sums[resource_class] = sums.get(resource_class, 0) + amount
    return sums


# Allocation candidates


class FoundCandidates(NamedTuple):
    """The candidates of a query, and the providers of its summaries with their usage by class."""

    candidates: list[Candidate]
    providers: list[tuple[ProviderRecord, Mapping[str, int]]]


def get_candidates(request: Request) -> CoreResponse:
    """GET /allocation_candidates"""
    query = parse_query(request.query, request.minor)
    with without_collection():
        body = candidates_body(query, find_with_summaries(request.store.model, query))
    return json_response(request, body, request.store.clock())


def find_with_summaries(model: Model, query: CandidateQuery) -> FoundCandidates:
    """All that the response needs from the model, whose lock is taken for short times only.

    Raises RequestRefused (400) for unknown classes and traits.
    """
    with model.lock.reading():
        unknown_classes = query.resource_classes() - model.resource_classes.keys()
        unknown_traits = query.trait_names() - model.traits.keys()
    if unknown_classes:
        raise RequestRefused(BAD_REQUEST, f"No such resource class: {', '.join(sorted(unknown_classes))}.")
    if unknown_traits:
        raise RequestRefused(BAD_REQUEST, f"No such trait: {', '.join(sorted(unknown_traits))}.")
    candidates = []
    views: dict[str, TreeView] = {}
    for candidate, view in islice(find_candidates(model, query), query.limit):
        candidates.append(candidate)
        for uuid in candidate.allocations:
            views.setdefault(uuid, view)
    # The providers of the candidates, each once, and from 1.29 on the rest of their trees.
    used = [(view.providers[uuid], view) for uuid, view in views.items()]
    if query.minor < mv.CANDIDATES_TREES:
        return FoundCandidates(candidates, [(provider, view.usage(provider.uuid)) for provider, view in used])
    summarised: list[tuple[ProviderRecord, Mapping[str, int]]] = []
    shown = set()
    for provider, view in used:
        root = provider.root_uuid
        if root in shown:
            continue
        shown.add(root)
        # The own tree of a sharing provider may not be in the candidate's view: it is read now.
        own = root == view.reachable[0].root_uuid
        whole = view if own else ProviderReach(model).view(root)
        if whole is not None:
            in_tree = (each for each in whole.reachable if each.root_uuid == root)
            summarised += [(each, whole.usage(each.uuid)) for each in in_tree]
    return FoundCandidates(candidates, summarised)


def candidates_body(query: CandidateQuery, results: FoundCandidates) -> dict[str, Any]:
    """`{"allocation_requests": [...], "provider_summaries": {uuid: {...}}}` in the query's microversion.

    The lists of the results are empty then.
    """
    requests: list[dict[str, Any]] = []
    # Candidates share their amounts: {"resources": amounts} by the id of these amounts.
    resources: dict[int, dict[str, Any]] = {}
    for candidate in consume(results.candidates):
        # In the form in which the same microversion accepts it as allocations.
        if query.minor < mv.ALLOCATIONS_BY_PROVIDER:
            listed = [
                {"resource_provider": {"uuid": uuid}, "resources": amounts}
                for uuid, amounts in candidate.allocations.items()
            ]
            requests.append({"allocations": listed})
            continue
        by_provider = {
            uuid: resources.get(id(amounts)) or resources.setdefault(id(amounts), {"resources": amounts})
            for uuid, amounts in candidate.allocations.items()
        }
        mappings = {"mappings": candidate.mappings} if query.minor >= mv.MAPPINGS else {}
        requests.append({"allocations": by_provider, **mappings})
    wanted = None if query.minor >= mv.SUMMARIES_ALL_CLASSES else query.resource_classes()
    summaries: dict[str, dict[str, Any]] = {}
    for provider, usage in consume(results.providers):
        summary = summaries[provider.uuid] = {
            "resources": {
                name: {"capacity": int(inventory.capacity), "used": usage.get(name, 0)}
                for name, inventory in provider.inventories.items()
                if wanted is None or name in wanted
            }
        }
        if query.minor >= mv.CANDIDATES_REQUIRED:
            summary["traits"] = sorted(provider.traits)
        if query.minor >= mv.CANDIDATES_TREES:
            summary["parent_provider_uuid"] = provider.parent_uuid
            summary["root_provider_uuid"] = provider.root_uuid
    return {"allocation_requests": requests, "provider_summaries": summaries}
