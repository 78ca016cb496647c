"""`plimsoll terraform`: claims for Terraform and OpenTofu, by the protocol of their `external` data source.

A query is a JSON object of strings, and so is the answer. A provisioner has no standard input: its query is
in the environment.

Source: https://registry.terraform.io/providers/hashicorp/external/latest/docs/data-sources/external.
"""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agent.cli import claim_request
from agent.cli.client import Client, claim_path, client_of, find_instance
from agent.cli.grammar import CommandAdder, add_verbs
from agent.errors import ExitCode, UnknownConsumer, UsageError
from agent.status.consumers import is_uuid

if TYPE_CHECKING:
    from agent.api.shapes.fleet import WhereShape
    from agent.api.shapes.instance import ClaimShape

QUERY = "PLIMSOLL_QUERY"
_LISTS = ("group", "required", "same_subtree", "spec", "image")
_ASKED = ("request", *(name for name in claim_request.ASKING_NAMES if name != "file"))
_INSTANCE = ("consumer", "name")
_OF_WHERE = ("strategy", "count", "host")


def add_terraform_command(add: CommandAdder) -> None:
    """Add `plimsoll terraform`."""
    command = add(
        "terraform",
        None,
        "answer Terraform's `external` data source, and its provisioners",
        f"Reads a query, a JSON object of strings, from standard input, or from {QUERY} where that is set,\n"
        "as a provisioner has no standard input; writes such an object. What is asked for has the keys\n"
        "resources, group, required, group_policy, same_subtree, flavor, spec and image, as the options of\n"
        "`plimsoll claim`, with blanks between several; or request, the JSON of a claim's body.",
        '  echo \'{"resources": "VCPU=2"}\' | plimsoll terraform where\n'
        '  PLIMSOLL_QUERY=\'{"name": "ai1", "group": "gpu:PGPU=1"}\' plimsoll terraform claim',
    )
    verbs = add_verbs(command)
    verbs(
        "where",
        where,
        "whether and where a request fits",
        "The answer has verdict (fits, not_now, never), fits (true, false), host, uuid, hosts and reason.\n"
        "More keys of the query: host, count, strategy.",
        "",
    )
    verbs(
        "claim",
        claim,
        "claim for the instance `consumer`, or of the `name`; the same claim again is no error",
        "The answer is that of `plimsoll terraform show`.",
        "",
    )
    verbs(
        "show",
        show_claim,
        "what the claim of `consumer`, or of the `name`, gives",
        "The answer has consumer, name, state, cpus, mdev_uuids, pci_addresses, units_GROUP, and pci: the\n"
        "JSON of a list of {domain, bus, slot, function}, as numbers, for a provider of libvirt.",
        "",
    )
    verbs(
        "release",
        release,
        "release the claim of `consumer`, or of the `name`; without one, there is nothing to do",
        "Other keys of the query are ignored: a destroy-time provisioner has the query of the claim.",
        "",
    )


def where(args: Namespace) -> ExitCode:
    """Ask in the fleet."""
    query = _read_query((*_ASKED, *_OF_WHERE))
    body: dict[str, Any] = {"requests": [_request_of(query)]}
    body |= {name: query[name] for name in ("strategy", "host") if name in query}
    if "count" in query:
        if not (query["count"].isascii() and query["count"].isdigit()):
            raise UsageError(f"count: {query['count']!r} is not a whole number")
        body["count"] = int(query["count"][:9])
    answer: WhereShape = client_of(args).request("POST", "/v1/where", body)
    places = answer["places"]
    return _tell(
        {
            "verdict": answer["verdict"],
            "fits": "true" if places else "false",
            "host": places[0]["host"] if places else "",
            "uuid": places[0]["uuid"] if places else "",
            "hosts": ",".join(place["host"] for place in places),
            "reason": answer["sentence"],
        }
    )


def claim(args: Namespace) -> ExitCode:
    """Claim."""
    query = _read_query((*_ASKED, *_INSTANCE))
    if not any(query.get(name) for name in _INSTANCE):
        raise UsageError(
            "the query has neither consumer nor name: with one of them, a claim that is asked for again "
            "after an interrupted run is the same claim"
        )
    body = _request_of(query) | {name: query[name] for name in _INSTANCE if query.get(name)}
    answer: ClaimShape = client_of(args, made_by="Terraform").request("POST", "/v1/claims", body)
    claim_request.show_notes(answer)
    return _tell(_values_of(answer))


def show_claim(args: Namespace) -> ExitCode:
    """Show what a claim gives."""
    client = client_of(args)
    consumer = _consumer(client, _read_query(_INSTANCE))
    answer: ClaimShape = client.get(claim_path(consumer))
    return _tell(_values_of(answer))


def release(args: Namespace) -> ExitCode:
    """Release a claim."""
    client = client_of(args)
    try:
        consumer = _consumer(client, _read_query(_INSTANCE, others_too=True))
        client.request("DELETE", claim_path(consumer))
    except UnknownConsumer:
        return _tell({"released": "false"})
    return _tell({"released": "true"})


def _consumer(client: Client, query: Mapping[str, str]) -> str:
    """The uuid of the instance. Raises UnknownConsumer; UsageError where the query names none."""
    if query.get("consumer"):
        if not is_uuid(query["consumer"]):
            raise UsageError(f"consumer: {query['consumer']!r} is no uuid")
        return query["consumer"]
    if not query.get("name"):
        raise UsageError("the query has neither consumer nor name: it names no claim")
    return find_instance(client, query["name"])


def _read_query(known: tuple[str, ...], *, others_too: bool = False) -> dict[str, str]:
    """The query; with `others_too` its known keys alone, among others of any kind.

    Raises UsageError where it is no JSON object of strings, or has an unknown key.
    """
    place, text = QUERY, os.environ.get(QUERY)
    if text is None:
        place, text = "standard input", sys.stdin.read(claim_request.CHARS_MAX)
    try:
        query = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{place} has no query, a JSON object of strings: {error}") from error
    if not isinstance(query, dict):
        raise UsageError(f"{place} has no query, a JSON object of strings: it has another kind of JSON")
    if others_too:
        query = {name: query[name] for name in known if name in query}
    wrong = next((name for name, value in query.items() if not isinstance(value, str)), None)
    if wrong is not None:
        raise UsageError(
            f"the query's {wrong!r} must be a string; jsonencode(...) makes one of another value"
        )
    unknown = sorted(query.keys() - set(known))
    if unknown:
        raise UsageError(f"the query has the unknown key {unknown[0]!r}; known are {', '.join(known)}")
    return query


def _request_of(query: Mapping[str, str]) -> dict[str, Any]:
    """What the query asks for, as the body of a claim. Raises UsageError."""
    if "request" not in query:
        asked: dict[str, Any] = dict.fromkeys(claim_request.ASKING_NAMES)
        asked |= {name: query[name] for name in asked.keys() & query.keys()}
        asked |= {name: query[name].split() for name in _LISTS if name in query}
        return claim_request.alternative_bodies(Namespace(**asked, alternatives=None))[0]
    beside = [name for name in claim_request.ASKING_NAMES if name in query]
    if beside:
        raise UsageError(f"the query has both request and {beside[0]}: give what is asked for in one way")
    try:
        body = json.loads(query["request"])
    except (ValueError, RecursionError) as error:
        raise UsageError(f"request: {error}; jsonencode({{...}}) writes it") from error
    if not isinstance(body, dict):
        raise UsageError("request: it must be the JSON of an object, the body of a claim")
    return body


def _values_of(claim: ClaimShape) -> dict[str, str]:
    from agent.cli.program import given_devices

    devices = given_devices(claim)
    pci = [
        dict(zip(("domain", "bus", "slot", "function"), (int(part, 16) for part in parts), strict=True))
        for parts in (address.replace(".", ":").split(":") for address in devices.pci)
    ]
    return {
        "consumer": claim["consumer"],
        "name": claim["name"],
        "state": claim["state"],
        "cpus": devices.cpus,
        "mdev_uuids": ",".join(devices.mdevs),
        "pci_addresses": ",".join(devices.pci),
        "pci": json.dumps(pci),
        **{f"units_{name.lower()}": ",".join(units) for name, units in devices.groups.items()},
    }


def _tell(values: Mapping[str, str]) -> ExitCode:
    print(json.dumps(values))
    return ExitCode.DONE
