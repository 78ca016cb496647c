"""The body of POST /v1/claims from the arguments of `plimsoll claim`. The agent checks its meaning."""

import json
from argparse import Namespace
from typing import Any

from agent.cli.amounts import parse_amounts
from agent.cli.text_file import STANDARD_INPUT, read_text_file
from agent.errors import UsageError

Json = dict[str, Any]
NEW = "new"
FLAVOR_NAMES = ("vcpus", "memory_mb", "disk_gb", "extra_specs")


def claim_body(args: Namespace) -> Json:
    """The body. Raises UsageError where the arguments contradict each other or cannot be read.

    It has no consumer where a name stands for it: the agent finds the instance of that name.
    """
    body = _resources(args)
    if args.name is not None:
        body["name"] = args.name
    if getattr(args, "new", False):
        body["consumer"] = new_consumer(args)
    elif args.consumer is not None:
        body["consumer"] = _consumer(args.consumer)
    elif "consumer" not in body and not (hasattr(args, "new") and body.get("name")):
        body["consumer"] = _consumer(None)
    return body


def new_consumer(args: Namespace) -> str:
    """The uuid for --new. Raises UsageError where CONSUMER names an instance."""
    if args.consumer not in (None, NEW):
        raise UsageError("--new makes a new instance, and CONSUMER names one: give one of the two")
    return _consumer(NEW)


def addition_body(args: Namespace) -> Json:
    """What the arguments ask for beside a domain, without a consumer. Raises UsageError as `claim_body`."""
    body = _resources(args, required=False)
    body.pop("consumer", None)
    if args.name is not None:
        body["name"] = args.name
    return body


def _resources(args: Namespace, *, required: bool = True) -> Json:
    """The part of the body that says what is asked for; empty where nothing is and nothing is `required`."""
    sources = {
        "--file": args.file is not None,
        "--flavor": args.flavor is not None,
        "--resources or --group": bool(args.resources or args.group),
    }
    given = [source for source, used in sources.items() if used]
    if len(given) > 1 or (required and not given):
        fault = f"not {' and '.join(given)} together" if given else "and none is given"
        raise UsageError(f"give the resources by {', by '.join(sources)}, {fault}")
    _check_companions(args)
    if args.file is not None:
        return _from_file(args.file)
    if args.flavor is not None:
        body: Json = {"flavor": _flavor(args)}
        image = _pairs("--image", args.image)
        if image:
            body["image"] = image
        _check_complete(args.flavor, body["flavor"])
        return body
    return _groups(args) if given else {}


def _check_companions(args: Namespace) -> None:
    by_groups = args.resources or args.group
    for option, value, companion, given in (
        ("--spec", args.spec, "--flavor", args.flavor),
        ("--image", args.image, "--flavor", args.flavor),
        ("--required", args.required, "--resources or --group", by_groups),
        ("--group-policy", args.group_policy, "--group", args.group),
    ):
        if value and not given:
            raise UsageError(f"{option} needs {companion}")


def _consumer(given: str | None) -> str:
    if given is not None and not given.strip():
        raise UsageError("CONSUMER is an empty text: give a uuid, or `new` for a new one")
    if given and given != NEW:
        return given
    from uuid import uuid4

    return str(uuid4())


def _from_file(name: str) -> Json:
    where, text = "standard input" if name == STANDARD_INPUT else name, read_text_file("claim", name)
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise UsageError(f"{where} must hold a JSON object, the body of POST /v1/claims")
    return body


def _flavor(args: Namespace) -> Json:
    flavor: Json = dict(parse_amounts("--flavor", args.flavor))
    specs = _pairs("--spec", args.spec)
    if specs:
        flavor["extra_specs"] = specs
    return flavor


def _check_complete(text: str, flavor: Json) -> None:
    unknown = next((name for name in flavor if name not in FLAVOR_NAMES), None)
    if unknown:
        raise UsageError(
            f"--flavor {text!r}: {unknown} is unknown; write vcpus=N,memory_mb=N, and disk_gb=N for a disk "
            "on this host"
        )
    missing = [name for name in ("vcpus", "memory_mb") if name not in flavor]
    if missing:
        raise UsageError(
            f"--flavor {text!r} lacks {' and '.join(missing)}; write vcpus=N,memory_mb=N, and "
            "disk_gb=N for a disk on this host"
        )


def _pairs(option: str, texts: list[str] | None) -> dict[str, str]:
    """{key: value} of the option's texts. Raises UsageError where one is no pair, or given twice."""
    pairs: dict[str, str] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UsageError(f"{option} {text!r} is not KEY=VALUE")
        if key in pairs:
            raise UsageError(f"{option} {key} is given twice")
        pairs[key] = value
    return pairs


def _groups(args: Namespace) -> Json:
    groups: dict[str, Json] = {}
    if args.resources:
        groups[""] = {"resources": parse_amounts("--resources", args.resources)}
    for text in args.group or ():
        suffix, colon, resources = text.partition(":")
        if not suffix or not colon:
            raise UsageError(f"--group {text!r} is not SUFFIX:CLASS=N,...")
        if suffix in groups:
            raise UsageError(f"--group {suffix} is given twice; write its classes after one another")
        groups[suffix] = {"suffix": suffix, "resources": parse_amounts("--group", resources)}
    for text in args.required or ():
        suffix, colon, trait = text.partition(":")
        if not colon or suffix not in groups:
            suffix, trait = "", text
        group = groups.setdefault(suffix, {"resources": {}})
        group.setdefault("required", []).append(trait)
    body: Json = {"groups": list(groups.values())}
    if args.group_policy:
        body["group_policy"] = args.group_policy
    return body
