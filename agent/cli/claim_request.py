"""What a guest needs, from the arguments of a command: the options, and the body of POST /v1/claims.

Amounts are taken as people write them: `memory_mb=8GiB`, `DISK_GB=1T`, `NET_BW_EGR_KILOBIT_PER_SEC=5Gbit`.
Texts come from a file or from standard input. The agent checks the meaning of the body.
"""

import argparse
import json
import re
import sys
from argparse import Namespace
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from agent.errors import UsageError, plain

Json = dict[str, Any]
NEW = "new"
STANDARD_INPUT = "-"
CHARS_MAX = 2**20
"""Of a file that a command reads."""
FLAVOR_NAMES = ("vcpus", "memory_mb", "disk_gb", "extra_specs")


def add_claim_options(command: argparse.ArgumentParser) -> None:
    """Add the options that say what the instance needs, of `claim` and of `move begin`."""
    command.add_argument("--resources", metavar="CLASS=N,...", help="resources from any of the providers")
    command.add_argument(
        "--group",
        metavar="SUFFIX:CLASS=N,...",
        action="append",
        help="resources from one provider together; may be repeated",
    )
    command.add_argument(
        "--required",
        metavar="[SUFFIX:]TRAIT",
        action="append",
        help="a trait that the provider must have, !TRAIT must not, in:TRAIT,TRAIT one of; may be repeated",
    )
    command.add_argument(
        "--group-policy",
        choices=("none", "isolate"),
        help="whether the groups may share a provider (none) or not (isolate)",
    )
    command.add_argument(
        "--same-subtree",
        metavar="SUFFIX,...[:TRAIT,...]",
        action="append",
        help="groups whose providers are below the one of them that is on top, or below one with these "
        "traits; may be repeated",
    )
    command.add_argument("--flavor", metavar="vcpus=N,memory_mb=N,disk_gb=N", help="a flavor instead")
    command.add_argument(
        "--spec", metavar="KEY=VALUE", action="append", help="an extra spec of the flavor; may be repeated"
    )
    command.add_argument(
        "--image",
        metavar="KEY=VALUE",
        action="append",
        help="a property of the guest's image, as glance has it; may be repeated",
    )
    command.add_argument("--file", metavar="FILE", help="the whole request as JSON; - is standard input")
    command.add_argument("--name", help="the instance's name, for people")


ASKING_NAMES = (
    *("resources", "group", "required", "group_policy", "same_subtree"),
    *("flavor", "spec", "image", "file"),
)
"""The arguments that each alternative has of its own."""


class _NextAlternative(argparse.Action):
    """--or: the arguments so far are an alternative, and those that follow are the next one."""

    def __call__(self, parser: Any, namespace: Namespace, values: Any, option: str | None = None) -> None:
        before = Namespace(**{name: getattr(namespace, name) for name in ASKING_NAMES})
        namespace.alternatives = [*(namespace.alternatives or ()), before]
        for name in ASKING_NAMES:
            setattr(namespace, name, None)


def add_or_option(command: argparse.ArgumentParser) -> None:
    """Add the option between alternatives."""
    command.add_argument(
        "--or",
        dest="alternatives",
        nargs=0,
        action=_NextAlternative,
        help="before another request, which counts where the ones before it do not fit; may be repeated",
    )


def _alternatives(args: Namespace) -> list[Namespace]:
    """The arguments of each alternative, in their order."""
    before = getattr(args, "alternatives", None) or ()
    return [*(Namespace(**{**vars(args), **vars(one)}) for one in before), args]


def alternative_bodies(args: Namespace, *, required: bool = True) -> list[Json]:
    """What each alternative asks for, without a consumer. Raises UsageError as `claim_body`."""
    bodies = [_resources(each, required=required) for each in _alternatives(args)]
    for body in bodies:
        body.pop("consumer", None)
    return bodies


def _body(args: Namespace, *, required: bool = True) -> Json:
    """What is asked for, with the alternatives, which are for the same instance."""
    body, *others = (_resources(each, required=required) for each in _alternatives(args))
    if others:
        body["alternatives"] = [
            {key: value for key, value in other.items() if key not in ("consumer", "name")}
            for other in (*body.get("alternatives", ()), *others)
        ]
    return body


def claim_body(args: Namespace) -> Json:
    """The body. Raises UsageError where the arguments contradict each other or cannot be read.

    It has no consumer where a name stands for it: the agent finds the instance of that name.
    """
    body = _body(args)
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
    body = _body(args, required=False)
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
    by_groups = args.resources or args.group
    for option, value, companion, present in (
        ("--spec", args.spec, "--flavor", args.flavor),
        ("--image", args.image, "--flavor", args.flavor),
        ("--required", args.required, "--resources or --group", by_groups),
        ("--group-policy", args.group_policy, "--group", args.group),
        ("--same-subtree", args.same_subtree, "--group", args.group),
    ):
        if value and not present:
            raise UsageError(f"{option} needs {companion}")
    if args.file is not None:
        where = "standard input" if args.file == STANDARD_INPUT else args.file
        text = read_text_file("claim", args.file)
        try:
            body = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{where} is not JSON: {error}") from error
        if not isinstance(body, dict):
            raise UsageError(f"{where} must hold a JSON object, the body of POST /v1/claims")
        return body
    if args.flavor is not None:
        # The flavor, and the image's properties if some are given.
        flavor: Json = dict(parse_amounts("--flavor", args.flavor))
        specs, image = _pairs("--spec", args.spec), _pairs("--image", args.image)
        if specs:
            flavor["extra_specs"] = specs
        unknown = next((name for name in flavor if name not in FLAVOR_NAMES), None)
        missing = [name for name in ("vcpus", "memory_mb") if name not in flavor]
        if unknown or missing:
            fault = f": {unknown} is unknown" if unknown else f" lacks {' and '.join(missing)}"
            raise UsageError(
                f"--flavor {args.flavor!r}{fault}; write vcpus=N,memory_mb=N, and disk_gb=N for a disk on "
                "this host"
            )
        return {"flavor": flavor, "image": image} if image else {"flavor": flavor}
    return _groups(args) if given else {}


def _consumer(given: str | None) -> str:
    if given is not None and not given.strip():
        raise UsageError("CONSUMER is an empty text: give a uuid, or `new` for a new one")
    if given and given != NEW:
        return given
    from uuid import uuid4

    return str(uuid4())


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
    subtrees, given = [], frozenset(groups) - {""}
    tops = (name for name in map("_top{}".format, range(1000)) if name not in given)
    for text in args.same_subtree or ():
        named, colon, traits = text.partition(":")
        suffixes = named.split(",")
        unknown = next((suffix for suffix in suffixes if suffix not in given), None)
        if unknown is not None:
            raise UsageError(f"--same-subtree {text!r}: no --group has the suffix {unknown!r}")
        if colon and not args.group_policy:
            raise UsageError(
                f"--same-subtree {text!r} needs --group-policy: isolate puts each group on a provider of its "
                "own, none lets them share"
            )
        if colon:
            suffixes.append(next(tops))
            top = {"suffix": suffixes[-1], "resources": {}, "required": traits.split(",")}
            groups[suffixes[-1]] = top
        subtrees.append(suffixes)
    rules = {"same_subtree": subtrees, "group_policy": args.group_policy}
    return {"groups": list(groups.values()), **{name: rule for name, rule in rules.items() if rule}}


_AMOUNT = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)([A-Za-z]*)", re.ASCII)
_NEGATIVE = re.compile(r"-[0-9].*", re.ASCII)
_HUGE = re.compile(r"[0-9]{19,}.*", re.ASCII)
_BINARY_PREFIXES = "KMGT"
_BYTES = {
    unit: 1024 ** (power + 1)
    for power, prefix in enumerate(_BINARY_PREFIXES)
    for unit in (prefix.lower(), f"{prefix}iB".lower())
}
_BITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_UNCLEAR = {f"{prefix}b".lower(): f"{prefix}iB" for prefix in _BINARY_PREFIXES}

_Scale = tuple[str, int, Mapping[str, int]]
"""What the class is counted in, in bytes or bits, and {unit that people may write: its size}."""

_MIB: _Scale = ("MiB", 1024**2, _BYTES)
_GIB: _Scale = ("GiB", 1024**3, _BYTES)
_KILOBIT: _Scale = ("kbit", 10**3, _BITS)
_SCALES: Mapping[str, _Scale] = {
    "memory_mb": _MIB,
    "MEMORY_MB": _MIB,
    "disk_gb": _GIB,
    "DISK_GB": _GIB,
    "NET_BW_EGR_KILOBIT_PER_SEC": _KILOBIT,
    "NET_BW_IGR_KILOBIT_PER_SEC": _KILOBIT,
}


def parse_amounts(option: str, text: str) -> dict[str, int]:
    """{name: amount} of `NAME=N,NAME=N`, each in the unit of its class; N may have a unit of its own.

    `option` is for errors. Raises UsageError.
    """
    amounts: dict[str, int] = {}
    for part in text.split(","):
        name, _, number = part.strip().partition("=")
        if name in amounts:
            raise UsageError(f"{option} {text!r} names {name} twice")
        amounts[name] = _whole_amount(f"{option} {text!r}", part, name, number.strip())
    return amounts


def _whole_amount(where: str, part: str, name: str, number: str) -> int:
    """The amount in the unit of the class. Raises UsageError with what is wrong about it."""
    match = _AMOUNT.fullmatch(number)
    if name and _NEGATIVE.fullmatch(number):
        raise UsageError(f"{where}: {name} cannot be negative: give 1 or more")
    if name and _HUGE.fullmatch(number):
        from agent.tree import MAX_UNIT

        raise UsageError(f"{where}: {name} has more digits than any amount: at most {MAX_UNIT} is possible")
    if not name or not match:
        raise UsageError(f"{where} is not NAME=N,...: {part!r} has no whole number")
    value, unit = Fraction(match[1]), match[2].lower()
    base, size, units = _SCALES.get(name, ("units", 1, {}))
    if unit and not units:
        raise UsageError(f"{where}: {name} is a count, so {number!r} can have no unit")
    if unit in _UNCLEAR and units is _BYTES:
        raise UsageError(
            f"{where}: {match[2]} may mean powers of 1000 or of 1024; write {_UNCLEAR[unit]} for powers of "
            "1024"
        )
    if unit and unit not in units:
        known = ", ".join(("K, M, G, T", "KiB to TiB") if units is _BYTES else ("kbit", "Mbit", "Gbit"))
        raise UsageError(
            f"{where}: {match[2]!r} is no unit of {name}; it is counted in {base}, or write {known}"
        )
    if unit:
        value *= Fraction(units[unit], size)
    if value.denominator != 1:
        raise UsageError(
            f"{where}: {name} is counted in whole {base}, and {number} is not a whole number of them"
        )
    return int(value)


def read_text_file(command: str, name: str) -> str:
    """The text of a file, or of standard input for `-`; `command` is for errors. Raises UsageError."""
    where = "standard input" if name == STANDARD_INPUT else name
    try:
        if name == STANDARD_INPUT:
            text = sys.stdin.read(CHARS_MAX + 1)
        else:
            with Path(name).open(encoding="utf-8", newline="") as file:
                text = file.read(CHARS_MAX + 1)
    except OSError as error:
        raise UsageError(f"{command}: {where} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{command}: {where} is not UTF-8: {error.reason}") from error
    if len(text) > CHARS_MAX:
        raise UsageError(f"{command}: {where} is longer than the {CHARS_MAX} characters that the agent takes")
    return text


def show_notes(answer: Mapping[str, Any]) -> None:
    """Print on standard error what the agent says of words of the request that have no effect."""
    for sentence in answer.get("notes", ()):
        print(f"plimsoll: note: {plain(sentence)}", file=sys.stderr)
