"""The whole content of a Placement as one JSON document: read out of one, written into another, and compared.

Both ends are reached over the Placement API alone, by a function that asks (`Ask`), so an end may be an
embedded core or an OpenStack Placement far away. The document:

    {"format": "plimsoll-placement", "version": 1,
     "resource_classes": ["CUSTOM_...", ...], "traits": ["CUSTOM_...", ...],
     "resource_providers": [{"uuid", "name", "parent_provider_uuid", "inventories": {class: {"total", ...}},
                             "traits": [...], "aggregates": [...]}, ...],        parents before their children
     "consumers": [{"uuid", "project_id", "user_id", "consumer_type", "allocations": {provider: {class: n}}}]}

Generations are not part of it: they guard the writes of one end, and begin anew at another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from agent.placement.embedded.validation import (
    MAX_INT,
    Check,
    Invalid,
    array,
    integer,
    loose_uuid,
    mapping,
    nullable,
    number,
    record,
    string,
)

Document = dict[str, Any]

FORMAT = "plimsoll-placement"
VERSION = 1
LATEST = "1.39"
UNTYPED = "1.37"
"""The last microversion that writes consumers without a type."""
UNKNOWN_TYPE = "unknown"
CUSTOM = "CUSTOM_"


class Answer(Protocol):
    @property
    def status(self) -> int: ...
    @property
    def body(self) -> Any: ...


class Ask(Protocol):
    """`Core.request`, or anything that sends a request to a Placement in its way."""

    def __call__(self, method: str, path: str, body: Any = None, *, microversion: str) -> Answer: ...


class TransferError(Exception):
    """The document is malformed, or an end refused; the message says which request and why."""


_name = string(1, 255)
_inventory = record(
    {
        "total": integer(1, MAX_INT),
        "reserved": integer(0, MAX_INT),
        "min_unit": integer(1, MAX_INT),
        "max_unit": integer(1, MAX_INT),
        "step_size": integer(1, MAX_INT),
        "allocation_ratio": number(3.40282e38),
    }
)
_provider = record(
    {
        "uuid": loose_uuid,
        "name": string(0, 200),
        "parent_provider_uuid": nullable(loose_uuid),
        "inventories": mapping("", _inventory),
        "traits": array(_name),
        "aggregates": array(loose_uuid),
    }
)
_consumer = record(
    {
        "uuid": string(36, 36),
        "project_id": _name,
        "user_id": _name,
        "consumer_type": _name,
        "allocations": mapping("", mapping("", integer(1), minimum=1), minimum=1),
    }
)


def _is(wanted: Any) -> Check:
    def check(value: Any, where: str) -> Any:
        if value != wanted:
            raise Invalid(f"{where} must be {wanted!r}, not {value!r}: made by another version?")
        return value

    return check


_document = record(
    {
        "format": _is(FORMAT),
        "version": _is(VERSION),
        "resource_classes": array(_name),
        "traits": array(_name),
        "resource_providers": array(_provider),
        "consumers": array(_consumer),
    }
)


def export(ask: Ask) -> Document:
    """Everything that the Placement behind `ask` holds, in an order that depends on nothing but the content.

    :raises TransferError: a request was refused
    """
    shown = _get(ask, "/resource_classes")["resource_classes"]
    listed = _get(ask, "/resource_providers")["resource_providers"]
    providers = [_export_provider(ask, provider) for provider in listed]
    holders = {
        consumer
        for provider in providers
        for consumer in _get(ask, f"/resource_providers/{provider['uuid']}/allocations")["allocations"]
    }
    return {
        "format": FORMAT,
        "version": VERSION,
        "resource_classes": sorted(entry["name"] for entry in shown if entry["name"].startswith(CUSTOM)),
        "traits": sorted(name for name in _get(ask, "/traits")["traits"] if name.startswith(CUSTOM)),
        "resource_providers": list(_parents_first(providers)),
        "consumers": [_export_consumer(ask, uuid) for uuid in sorted(holders)],
    }


def load(ask: Ask, document: Any) -> None:
    """Write the document into the Placement behind `ask`, and make sure that it says the same afterwards.

    What the Placement holds besides is left alone. A run that was cut off can be repeated.

    :raises TransferError: the document is malformed (nothing was written), or a request was refused
    """
    try:
        content: Document = _document(document, "document")
    except Invalid as error:
        raise TransferError(str(error)) from None
    for name in content["resource_classes"]:
        _done(ask, "PUT", f"/resource_classes/{name}")
    for name in content["traits"]:
        _done(ask, "PUT", f"/traits/{name}")
    used = _used(content["consumers"])
    for provider in content["resource_providers"]:
        _load_provider(ask, provider, used.get(provider["uuid"], {}))
    for consumer in content["consumers"]:
        _load_consumer(ask, consumer)
    for provider in content["resource_providers"]:
        _put_inventories(ask, provider["uuid"], provider["inventories"])
    left = differences(content, export(ask))
    if left:
        raise TransferError("After the import the two do not say the same: " + "; ".join(left[:5]))


def differences(wanted: Document, found: Document) -> list[str]:
    """What `found` lacks or says otherwise than `wanted`, a sentence each; what it has besides does not
    count.
    """
    sentences = []
    for kind in ("resource_classes", "traits"):
        sentences += [f"{name} is missing" for name in wanted[kind] if name not in set(found[kind])]
    for kind in ("resource_providers", "consumers"):
        by_uuid = {entry["uuid"]: entry for entry in found[kind]}
        for entry in wanted[kind]:
            other = by_uuid.get(entry["uuid"])
            if other is None:
                sentences.append(f"{entry['uuid']} is missing in {kind}")
            else:
                sentences += [
                    f"{key} of {entry['uuid']} is {other[key]!r}, not {value!r}"
                    for key, value in entry.items()
                    if _unordered(value) != _unordered(other[key])
                ]
    return sentences


def _unordered(value: Any) -> Any:
    return sorted(value) if isinstance(value, list) else value


def _export_provider(ask: Ask, provider: Mapping[str, Any]) -> Document:
    url = f"/resource_providers/{provider['uuid']}"
    return {
        "uuid": provider["uuid"],
        "name": provider["name"],
        "parent_provider_uuid": provider["parent_provider_uuid"],
        "inventories": _get(ask, f"{url}/inventories")["inventories"],
        "traits": sorted(_get(ask, f"{url}/traits")["traits"]),
        "aggregates": sorted(_get(ask, f"{url}/aggregates")["aggregates"]),
    }


def _export_consumer(ask: Ask, uuid: str) -> Document:
    shown = _get(ask, f"/allocations/{uuid}")
    return {
        "uuid": uuid,
        "project_id": shown["project_id"],
        "user_id": shown["user_id"],
        "consumer_type": shown["consumer_type"],
        "allocations": {rp: part["resources"] for rp, part in sorted(shown["allocations"].items())},
    }


def _parents_first(providers: list[Document]) -> Iterator[Document]:
    children: dict[str | None, list[Document]] = {}
    for provider in sorted(providers, key=lambda provider: str(provider["uuid"])):
        children.setdefault(provider["parent_provider_uuid"], []).append(provider)
    level = children.get(None, [])
    while level:
        yield from level
        level = [child for provider in level for child in children.get(provider["uuid"], [])]


def _used(consumers: list[Document]) -> dict[str, dict[str, int]]:
    used: dict[str, dict[str, int]] = {}
    for consumer in consumers:
        for provider, resources in consumer["allocations"].items():
            sums = used.setdefault(provider, {})
            for resource_class, amount in resources.items():
                sums[resource_class] = sums.get(resource_class, 0) + amount
    return used


def _load_provider(ask: Ask, provider: Document, used: Mapping[str, int]) -> None:
    """Make the provider, right in everything but its inventories, which at first just hold what is used.

    An inventory may have shrunk below its use, or changed its units, since the allocations were made.
    """
    uuid = provider["uuid"]
    url = f"/resource_providers/{uuid}"
    body = {"name": provider["name"], "parent_provider_uuid": provider["parent_provider_uuid"]}
    if ask("GET", url, microversion=LATEST).status == 404:
        _done(ask, "POST", "/resource_providers", body | {"uuid": uuid})
    else:
        _done(ask, "PUT", url, body)
    for what in ("traits", "aggregates"):
        generation = _get(ask, url)["generation"]
        _done(ask, "PUT", f"{url}/{what}", {what: provider[what], "resource_provider_generation": generation})
    held = _get(ask, f"{url}/usages")["usages"]
    wide = {name: {"total": min(MAX_INT, max(n, held.get(name, 0)))} for name, n in used.items()}
    if wide:
        kept = {name: {"total": MAX_INT} for name, amount in held.items() if amount and name not in wide}
        _put_inventories(ask, uuid, wide | kept)


def _load_consumer(ask: Ask, consumer: Document) -> None:
    url = f"/allocations/{consumer['uuid']}"
    typed = consumer["consumer_type"] != UNKNOWN_TYPE
    body = {
        "allocations": {rp: {"resources": part} for rp, part in consumer["allocations"].items()},
        "project_id": consumer["project_id"],
        "user_id": consumer["user_id"],
        "consumer_generation": _get(ask, url).get("consumer_generation"),
    }
    if typed:
        body["consumer_type"] = consumer["consumer_type"]
    _done(ask, "PUT", url, body, LATEST if typed else UNTYPED)


def _put_inventories(ask: Ask, uuid: str, inventories: Mapping[str, Any]) -> None:
    url = f"/resource_providers/{uuid}"
    generation = _get(ask, url)["generation"]
    body = {"resource_provider_generation": generation, "inventories": inventories}
    _done(ask, "PUT", f"{url}/inventories", body)


def _get(ask: Ask, path: str) -> Any:
    return _done(ask, "GET", path)


def _done(ask: Ask, method: str, path: str, body: Any = None, microversion: str = LATEST) -> Any:
    answer = ask(method, path, body, microversion=microversion)
    if answer.status >= 300:
        told = answer.body if isinstance(answer.body, dict) else {}
        detail = told["errors"][0].get("detail", "") if told.get("errors") else ""
        raise TransferError(f"{method} {path} was refused: {answer.status} {detail}".rstrip())
    return answer.body
