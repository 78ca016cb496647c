"""Claim requests from and to JSON, the form of the local API. Pure.

A request has either groups, in Placement's terms:

    {"consumer": uuid, "groups": [{"suffix": "", "resources": {"VCPU": 2},
                                   "required": ["HW_CPU_X86_AVX2", "in:A,B", "!CUSTOM_X"],
                                   "member_of": [uuid, "in:uuid,uuid"]}],
     "group_policy": "none" | "isolate", "same_subtree": [["_A", "_B"]]}

or a flavor (agent.claims.flavor) and, if it is known, an image (agent.claims.image):

    {"consumer": uuid, "flavor": {"vcpus": 2, ...}, "image": {property: value}}

Where a name may stand for the consumer, `consumer` may be missing.
Both forms may have name, project_id, user_id and consumer_type. The first form may also have `topology` and
`pci`, which express a flavor's `hw:` and `pci_passthrough:` specs, `root_required` with traits of the host's
root, and each group a `numa_policy`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from agent.claims.device_profiles import DeviceProfiles
from agent.claims.extra_specs import without_effect
from agent.claims.flavor import claim_for_flavor, parse_flavor
from agent.claims.image import parse_image, properties_without_effect
from agent.claims.near_names import near_class, near_trait, unknown_class, unknown_trait
from agent.claims.request import (
    GROUP_POLICIES,
    NUMA_POLICIES,
    ClaimRequest,
    RequestGroup,
    TopologyRequest,
    check_request,
)
from agent.cpuset import format_cpu_set, parse_cpu_set
from agent.errors import UsageError
from agent.json_checks import (
    below,
    fault,
    read_choice,
    read_list,
    read_object,
    read_text,
    read_truth,
    read_uuid,
    read_whole,
)
from agent.tree import MAX_UNIT

__all__ = [
    "ClaimRequest",
    "RequestGroup",
    "TopologyRequest",
    "notes_of",
    "parse_addition",
    "parse_claim",
    "read_domain",
    "read_request",
    "request_to_json",
]

NAME_MAX = 255
DOMAIN_CHARS_MAX = 2**20
_NO_CONSUMER = "00000000-0000-0000-0000-000000000000"
CPU_POLICIES = ("shared", "dedicated", "mixed")
THREAD_POLICIES = ("prefer", "isolate", "require")
PAGE_WORDS = ("small", "large", "any")

_IDENTITY = ("name", "project_id", "user_id", "consumer_type")
_GROUPS_FORM = (
    *("consumer", "groups", "group_policy", "same_subtree", "root_required", "topology", "pci"),
    *_IDENTITY,
)
_FLAVOR_FORM = ("consumer", "flavor", "image", *_IDENTITY)
_GROUP_KEYS = tuple(field.name for field in fields(RequestGroup) if field.name != "forbidden")
_TOPOLOGY_KEYS = tuple(field.name for field in fields(TopologyRequest))
_NAME = re.compile(r"[A-Z0-9_]{1,255}", re.ASCII)
_SUFFIX = re.compile(r"[A-Za-z0-9_-]{0,64}", re.ASCII)
_CONSUMER_TYPE = re.compile(r"[A-Z0-9_]{1,255}", re.ASCII)
_SOMETHING = re.compile(r".+", re.DOTALL)
_ALIAS = re.compile(r"[^\s:,]{1,255}")
_CLASS_WANTED = "a resource class such as MEMORY_MB or CUSTOM_FPGA"
_ROOT_TRAIT_WANTED = "a trait such as COMPUTE_NODE, or !TRAIT"
_TRAIT_WANTED = "a trait such as HW_CPU_X86_AVX2, in:TRAIT,TRAIT or !TRAIT"


def parse_claim(
    body: object, profiles: DeviceProfiles | None = None, *, by_name: bool = False
) -> ClaimRequest:
    """The request in a body of the local API; `profiles` are the device profiles that a flavor may name.

    `by_name`: a body with a name may have no consumer; that of the request is empty then.
    Raises UsageError, naming the path of the key at fault and what is allowed there.
    """
    if by_name and isinstance(body, dict) and "consumer" not in body and body.get("name"):
        return replace(parse_claim({**body, "consumer": _NO_CONSUMER}, profiles), consumer="")
    if not isinstance(body, dict) or "flavor" not in body:
        return _check_names(read_request(body))
    given = read_object(body, "", _FLAVOR_FORM)
    _check_present(given, "consumer")
    return _read_flavor_form(given, profiles)


def read_request(body: object) -> ClaimRequest:
    """The request in what `request_to_json` made, maybe under another os-traits: its names stay as they are.

    Raises UsageError as `parse_claim`.
    """
    given = read_object(body, "", _GROUPS_FORM)
    _check_present(given, "consumer", "groups")
    return check_request(_read_groups_form(given))


def parse_addition(body: object, consumer: str, profiles: DeviceProfiles | None = None) -> ClaimRequest:
    """The request in a body that adds to what a domain asks for: without a consumer, maybe without groups.

    `consumer` is empty where it is not known yet, `profiles` as for `parse_claim`.
    Raises UsageError as `parse_claim`.
    """
    by_flavor = isinstance(body, dict) and "flavor" in body
    form = _FLAVOR_FORM if by_flavor else _GROUPS_FORM
    read_object(body, "request", [key for key in form if key != "consumer"])
    given = {**read_object(body, "request"), "consumer": consumer or _NO_CONSUMER}
    request = _read_flavor_form(given, profiles) if by_flavor else _read_groups_form(given)
    if request.groups and not by_flavor:
        check_request(request)
    return replace(_check_names(request), consumer=consumer)


def notes_of(body: object) -> tuple[str, ...]:
    """A sentence for each extra spec and image property without effect, in a body that was parsed above."""
    given = body if isinstance(body, dict) else {}
    specs, image = given.get("flavor", {}).get("extra_specs", {}), given.get("image", {})
    return (*without_effect(specs, image), *properties_without_effect(image))


def read_domain(value: object, path: str) -> str:
    """The XML of a domain, which is not parsed. Raises UsageError."""
    return read_text(value, path, wanted="the XML of a domain", longest=DOMAIN_CHARS_MAX)


def _check_present(given: Mapping[str, Any], *keys: str) -> None:
    for key in keys:
        if key not in given:
            choice = " (or flavor)" if key == "groups" else ""
            raise UsageError(f"{key}{choice}: missing; a claim needs it.", path=key)


def _check_names(request: ClaimRequest) -> ClaimRequest:
    """The request, if each class and trait can exist: a forbidden one that is misspelt forbids nothing."""
    for number, group in enumerate(request.groups):
        path = f"groups[{number}]"
        for name in group.resources:
            _refuse_unknown(f"{path}.resources.{name}", unknown_class(name))
        for name in sorted(group.forbidden.union(*group.required)):
            _refuse_unknown(f"{path}.required", unknown_trait(name))
    for name in sorted(request.root_required | request.root_forbidden):
        _refuse_unknown("root_required", unknown_trait(name))
    return request


def _refuse_unknown(path: str, why: str | None) -> None:
    if why:
        raise UsageError(f"{path}: {why}", path=path)


def _read_flavor_form(given: Mapping[str, Any], profiles: DeviceProfiles | None) -> ClaimRequest:
    consumer, identity = read_uuid(given["consumer"], "consumer"), _read_identity(given)
    image = parse_image(given["image"]) if "image" in given else None
    return claim_for_flavor(consumer, parse_flavor(given["flavor"], "flavor"), image, profiles, **identity)


def _read_groups_form(given: Mapping[str, Any]) -> ClaimRequest:
    policy = given.get("group_policy")
    root_required, root_forbidden = _read_root_traits(given.get("root_required", []), "root_required")
    return ClaimRequest(
        read_uuid(given["consumer"], "consumer"),
        tuple(
            _read_group(group, f"groups[{number}]")
            for number, group in enumerate(read_list(given.get("groups", []), "groups"))
        ),
        group_policy=None if policy is None else read_choice(policy, "group_policy", GROUP_POLICIES),
        same_subtree=_read_subtrees(given.get("same_subtree", [])),
        topology=_read_topology(given.get("topology", {}), "topology"),
        pci=_read_aliases(given.get("pci", [])),
        root_required=root_required,
        root_forbidden=root_forbidden,
        **_read_identity(given),
    )


def _read_identity(given: Mapping[str, Any]) -> dict[str, str]:
    identity = {}
    for key in _IDENTITY:
        if key == "consumer_type" and key in given:
            identity[key] = read_text(given[key], key, _CONSUMER_TYPE, "a type such as INSTANCE")
        elif key == "name" and key in given:
            identity[key] = read_text(
                given[key], key, None, f"a name of at most {NAME_MAX} characters", NAME_MAX
            )
        elif key in given:
            identity[key] = read_text(given[key], key, _SOMETHING, "a text of 1 to 255 characters")
    return identity


def _read_group(value: object, path: str) -> RequestGroup:
    given = read_object(value, path, _GROUP_KEYS)
    required: list[frozenset[str]] = []
    forbidden: set[str] = set()
    for number, item in enumerate(read_list(given.get("required", []), f"{path}.required")):
        item_path = f"{path}.required[{number}]"
        text = read_text(item, item_path, _SOMETHING, _TRAIT_WANTED, 16384)
        if text.startswith("!"):
            forbidden.add(_read_trait(text[1:], item_path))
        else:
            required.append(frozenset(_read_trait(name, item_path) for name in _alternatives(text)))
    return RequestGroup(
        read_text(given.get("suffix", ""), f"{path}.suffix", _SUFFIX, "at most 64 of A-Z a-z 0-9 _ -"),
        _read_resources(given.get("resources", {}), f"{path}.resources"),
        tuple(required),
        frozenset(forbidden),
        tuple(
            _read_aggregates(item, f"{path}.member_of[{number}]")
            for number, item in enumerate(read_list(given.get("member_of", []), f"{path}.member_of"))
        ),
        _read_numa_policy(given.get("numa_policy"), f"{path}.numa_policy"),
    )


def _read_root_traits(value: object, path: str) -> tuple[frozenset[str], frozenset[str]]:
    """(required, forbidden) of a list of TRAIT and !TRAIT."""
    required: set[str] = set()
    forbidden: set[str] = set()
    for number, item in enumerate(read_list(value, path)):
        item_path = f"{path}[{number}]"
        text = read_text(item, item_path, _SOMETHING, _ROOT_TRAIT_WANTED)
        name = read_text(text.removeprefix("!"), item_path, _NAME, _ROOT_TRAIT_WANTED)
        (forbidden if text.startswith("!") else required).add(name)
    return frozenset(required), frozenset(forbidden)


def _read_numa_policy(value: object, path: str) -> str | None:
    return None if value is None else read_choice(value, path, NUMA_POLICIES)


def _read_trait(name: str, path: str) -> str:
    return read_text(name, path, _NAME, _wanted(_TRAIT_WANTED, name, near_trait))


def _wanted(wanted: str, name: object, near: Callable[[str, tuple[str, ...]], str | None]) -> str:
    """What is wanted, with the name that was probably meant where `name` is spelt wrongly."""
    wrong = isinstance(name, str) and not _NAME.fullmatch(name)
    meant = near(str(name)[:255], ()) if wrong else None
    return f"{wanted} (did you mean {meant}?)" if meant else wanted


def _alternatives(text: str) -> list[str]:
    return text.removeprefix("in:").split(",") if text.startswith("in:") else [text]


def _read_resources(value: object, path: str) -> dict[str, int]:
    return {
        read_text(name, below(path, str(name)), _NAME, _wanted(_CLASS_WANTED, name, near_class)): read_whole(
            amount, below(path, name), 1, MAX_UNIT
        )
        for name, amount in read_object(value, path).items()
    }


def _read_aggregates(value: object, path: str) -> frozenset[str]:
    text = read_text(value, path, _SOMETHING, "an aggregate's uuid or in:uuid,uuid", 16384)
    if text.startswith("!"):
        raise UsageError(
            f"{path}: forbidden aggregates ({text}) have no meaning for a single host; remove them.",
            path=path,
        )
    return frozenset(read_uuid(uuid, path) for uuid in _alternatives(text))


def _read_subtrees(value: object) -> tuple[frozenset[str], ...]:
    subtrees = []
    for number, suffixes in enumerate(read_list(value, "same_subtree")):
        path = f"same_subtree[{number}]"
        subtrees.append(
            frozenset(
                read_text(suffix, path, _SUFFIX, "suffixes of groups") for suffix in read_list(suffixes, path)
            )
        )
    return tuple(subtrees)


def _read_topology(value: object, path: str) -> TopologyRequest:
    given = read_object(value, path, _TOPOLOGY_KEYS)
    thread_policy = given.get("cpu_thread_policy")
    cpus = read_list(given.get("cell_cpus", []), f"{path}.cell_cpus")
    memory = read_list(given.get("cell_memory_mb", []), f"{path}.cell_memory_mb")
    return TopologyRequest(
        read_choice(given.get("cpu_policy", "shared"), f"{path}.cpu_policy", CPU_POLICIES),
        None
        if thread_policy is None
        else read_choice(thread_policy, f"{path}.cpu_thread_policy", THREAD_POLICIES),
        read_whole(given.get("cells", 0), f"{path}.cells", 0, 1024),
        tuple(_read_cpus(item, f"{path}.cell_cpus[{number}]") for number, item in enumerate(cpus)),
        tuple(
            read_whole(item, f"{path}.cell_memory_mb[{number}]", 1, MAX_UNIT)
            for number, item in enumerate(memory)
        ),
        _read_cpus(given.get("dedicated_cpus", ""), f"{path}.dedicated_cpus"),
        _read_page_size(given.get("mem_page_size"), f"{path}.mem_page_size"),
        _read_numa_policy(given.get("pci_numa_policy"), f"{path}.pci_numa_policy"),
        read_truth(given.get("isolate_emulator", False), f"{path}.isolate_emulator"),
    )


def _read_cpus(value: object, path: str) -> frozenset[int]:
    text = read_text(value, path, None, "a CPU set such as 0-3,6", 16384)
    try:
        return parse_cpu_set(text)
    except ValueError as error:
        raise UsageError(f"{path}: {error}.", path=path) from error


def _read_page_size(value: object, path: str) -> int | str | None:
    if value is None or (isinstance(value, str) and value in PAGE_WORDS):
        return value
    if isinstance(value, str):
        raise fault(path, f"KiB, or one of {', '.join(PAGE_WORDS)}", value)
    return read_whole(value, path, 1, MAX_UNIT)


def _read_aliases(value: object) -> tuple[tuple[str, int], ...]:
    aliases = []
    for number, item in enumerate(read_list(value, "pci")):
        path = f"pci[{number}]"
        given = read_object(item, path, ("alias", "count"))
        alias = read_text(given.get("alias"), f"{path}.alias", _ALIAS, "the name of an alias")
        aliases.append((alias, read_whole(given.get("count", 1), f"{path}.count", 1, MAX_UNIT)))
    return tuple(aliases)


def request_to_json(request: ClaimRequest) -> dict[str, Any]:
    """The body, in the groups form, that `parse_claim` turns into an equal request; without defaults."""
    body: dict[str, Any] = {
        "consumer": request.consumer,
        "name": request.name,
        "groups": [_group_json(group) for group in request.groups],
        "group_policy": request.group_policy,
        "same_subtree": [sorted(suffixes) for suffixes in request.same_subtree],
        "root_required": [
            *sorted(request.root_required),
            *(f"!{name}" for name in sorted(request.root_forbidden)),
        ],
        "topology": _topology_json(request.topology),
        "pci": [{"alias": alias, "count": count} for alias, count in request.pci],
    }
    body = {key: value for key, value in body.items() if value}
    body.setdefault("groups", [])
    for key in ("project_id", "user_id", "consumer_type"):
        body[key] = getattr(request, key)
    return body


def _group_json(group: RequestGroup) -> dict[str, Any]:
    body: dict[str, Any] = {"suffix": group.suffix, "resources": dict(group.resources)}
    required = [_any_of(traits) for traits in group.required] + [
        f"!{name}" for name in sorted(group.forbidden)
    ]
    if required:
        body["required"] = required
    if group.member_of:
        body["member_of"] = [_any_of(aggregates) for aggregates in group.member_of]
    if group.numa_policy:
        body["numa_policy"] = group.numa_policy
    return body


def _any_of(names: frozenset[str]) -> str:
    return next(iter(names)) if len(names) == 1 else "in:" + ",".join(sorted(names))


_NO_TOPOLOGY = TopologyRequest()


def _topology_json(topology: TopologyRequest) -> dict[str, Any]:
    if topology == _NO_TOPOLOGY:
        return {}
    body: dict[str, Any] = {
        "cpu_policy": topology.cpu_policy,
        "cpu_thread_policy": topology.cpu_thread_policy,
        "cells": topology.cells,
        "cell_cpus": [format_cpu_set(cpus) for cpus in topology.cell_cpus],
        "cell_memory_mb": list(topology.cell_memory_mb),
        "dedicated_cpus": format_cpu_set(topology.dedicated_cpus),
        "mem_page_size": topology.mem_page_size,
        "pci_numa_policy": topology.pci_numa_policy,
        "isolate_emulator": topology.isolate_emulator,
    }
    return {key: value for key, value in body.items() if value}
