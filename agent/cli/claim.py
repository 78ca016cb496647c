"""`plimsoll claim`."""

from __future__ import annotations

import argparse
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from agent.cli.claim_body import NEW, addition_body, claim_body, new_consumer
from agent.cli.client import Client, claim_path, client_of, read_names, read_providers
from agent.cli.consumers import INSTANCE_HELP, find_instance
from agent.cli.grammar import complete_instances
from agent.cli.libvirt_domain import CONNECTION_DEFAULT, Libvirt, add_libvirt_options
from agent.cli.output import Output
from agent.cli.tables import cells_lines, claim_lines, makings_lines, shortfall_rows, table_lines
from agent.cli.terminal import Style, plain
from agent.cli.text_file import STANDARD_INPUT, read_text_file
from agent.errors import (
    ClaimConflict,
    DaemonUnreachable,
    ExitCode,
    PlimsollError,
    UnknownConsumer,
    UsageError,
)

if TYPE_CHECKING:
    from agent.api.shapes.claims import (
        ClaimShape,
        DomainShape,
        ExplanationShape,
    )
    from agent.api.shapes.providers import ResourceProviderShape
    from agent.cli.grammar import CommandAdder


def add_claim_command(add: CommandAdder) -> None:
    """Add `plimsoll claim`."""
    command = add(
        "claim",
        claim,
        "claim resources for an instance, or ask whether they would fit",
        "Without CONSUMER the claim is for the instance of the name, if this host has it, else for a new\n"
        "one, whose uuid the command prints; --new, or `new` as CONSUMER, always makes a new one. The same\n"
        "claim again is no error and claims nothing more. A refusal (exit code 5) says for each resource\n"
        "what was asked, what is free and on which provider. Give resources and groups, or a flavor with\n"
        "extra specs, or a file; or a domain's XML, which may have some of them beside it.\n"
        "\n"
        "With --domain the command prints the complete domain, or defines or starts it. Its devices need\n"
        "no addresses: an <interface type='hostdev'> or a <hostdev> with the alias `ua-NAME` gets the\n"
        "device of the group or PCI alias NAME, of the physical network NAME, or of the vGPU type NAME.\n"
        "If libvirt refuses the domain, the claim is released again.",
        "  plimsoll claim --resources VCPU=2,MEMORY_MB=2048,DISK_GB=20 --name web1\n"
        "  plimsoll claim --resources VCPU=8 --required HW_CPU_X86_AVX2 --dry-run\n"
        "  plimsoll claim --resources VCPU=2 --group 1:VGPU=1\n"
        "  plimsoll claim --flavor vcpus=4,memory_mb=8192,disk_gb=40 --spec hw:cpu_policy=dedicated\n"
        "  plimsoll claim 5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69 --file body.json\n"
        "  plimsoll claim --domain web.xml --group red:SRIOV_NET_VF=1 --start",
    )
    consumer = command.add_argument(
        "consumer", nargs="?", metavar="CONSUMER", help=f"{INSTANCE_HELP}; or `new`"
    )
    complete_instances(consumer)
    command.add_argument(
        "--domain", metavar="FILE", help="claim what a domain's XML asks for; - is standard input"
    )
    add_claim_options(command)
    command.add_argument(
        "--new", action="store_true", help="claim for a new instance, even if another one has its name"
    )
    command.add_argument(
        "--dry-run", action="store_true", help="explain, resource by resource; claim nothing"
    )
    add_libvirt_options(command)
    command.add_argument(
        "--keep", action="store_true", help="keep the claim if libvirt does not define or start the domain"
    )


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


def claim(args: Namespace) -> ExitCode:
    """Claim, or with --dry-run explain whether the claim would fit."""
    if args.domain is not None:
        return _claim_domain(args)
    for option in ("define", "start", "keep"):
        if getattr(args, option):
            raise UsageError(f"claim: --{option} needs --domain")
    if args.connect != CONNECTION_DEFAULT:
        raise UsageError("claim: --connect needs --domain")
    body = claim_body(args)
    client = client_of(args)
    _identify(args, client, body)
    if args.dry_run:
        return _explain(args, client, "/v1/claims", body)
    try:
        answer: ClaimShape = client.request("POST", "/v1/claims", body)
    except DaemonUnreachable as error:
        if error.details.get("asked"):
            # The agent may have claimed, and only this message has a new uuid.
            if "consumer" not in body:
                error.message += "; the same command again finds its claim by the name"
            elif args.consumer in (None, NEW):
                error.message += f"; the uuid made for it is {body['consumer']}"
        raise
    except (ClaimConflict, UsageError) as error:
        if "consumer" not in body and {"consumer", "instances"} & error.details.keys():
            error.message += f"; --new claims for another instance that is called {body['name']}"
        raise
    Output(args.output).show(answer, lambda style: _claimed(answer, read_names(client), style))
    show_notes(answer)
    return ExitCode.DONE


def _identify(args: Namespace, client: Client, body: dict[str, Any]) -> None:
    """Write the uuid of the instance that CONSUMER names into the body."""
    if args.consumer in (None, NEW):
        return
    try:
        body["consumer"] = find_instance(client, args.consumer)
    except UnknownConsumer as error:
        error.message += f"{'' if error.message.endswith('?') else ';'} --name claims for a new one"
        raise


def show_notes(answer: Mapping[str, Any]) -> None:
    """Print on standard error what the agent says of words of the request that have no effect."""
    for sentence in answer.get("notes", ()):
        print(f"plimsoll: note: {plain(sentence)}", file=sys.stderr)


def _claim_domain(args: Namespace) -> ExitCode:
    """Claim for a domain; print, define or start it."""
    if args.domain == args.file == STANDARD_INPUT:
        raise UsageError("claim: --domain and --file cannot both be standard input")
    body: dict[str, Any] = {
        "xml": read_text_file("claim", args.domain),
        "request": addition_body(args),
    }
    if args.new:
        body["consumer"] = new_consumer(args)
    client = client_of(args)
    _identify(args, client, body)
    if args.dry_run:
        return _explain(args, client, "/v1/domains", body)
    libvirt = Libvirt(args.connect) if args.define or args.start else None
    written: DomainShape = client.request("POST", "/v1/domains", body)
    show_notes(written)
    if libvirt is None:
        Output(args.output).show(written, lambda _: [written["xml"].rstrip("\n")])
        return ExitCode.DONE
    try:
        done = libvirt.hand_over(written, start=args.start)
    except PlimsollError as error:
        error.message += f"; {_after_refusal(args, client, written)}"
        raise
    Output(args.output).show(
        written, lambda style: [done, *_claimed(written["claim"], read_names(client), style)]
    )
    return ExitCode.DONE


def _after_refusal(args: Namespace, client: Client, written: DomainShape) -> str:
    """What became of the claim of a domain that libvirt refused."""
    consumer = written["consumer"]
    if args.keep:
        return f"the claim of {consumer} is kept"
    if not written["made"]:
        return f"the claim of {consumer} is kept: it was there before"
    try:
        client.request("DELETE", claim_path(consumer))
    except PlimsollError as error:
        return f"the claim of {consumer} could not be released again: {error.message}"
    return f"the claim of {consumer} was released again"


def _claimed(claim: ClaimShape, names: Mapping[str, str], style: Style) -> Iterator[str]:
    name = f" ({plain(claim['name'])})" if claim["name"] else ""
    yield f"{plain(claim['state'])} for {plain(claim['consumer'])}{name}"
    yield from claim_lines(claim, names, style)


def _explain(args: Namespace, client: Client, path: str, body: dict[str, Any]) -> ExitCode:
    answer: ExplanationShape = client.request("POST", f"{path}?dry_run=true", body)
    show_notes(answer)
    Output(args.output).show(answer, lambda style: _explained(answer, read_providers(client), style))
    return ExitCode.DONE if answer["fits"] and answer["closed"] is None else ExitCode.REFUSED


class _Verdict(NamedTuple):
    """A class, or a trait, of a claim: what was asked, what is free on which provider, and the verdict."""

    resource_class: str
    asked: int | str
    free: int | str
    provider: str
    verdict: str


def _explained(
    explanation: ExplanationShape, providers: Mapping[str, ResourceProviderShape], style: Style
) -> Iterator[str]:
    from agent.api.shapes.schema import Column

    columns: tuple[Column[_Verdict], ...] = (
        Column("RESOURCE CLASS", lambda row: row.resource_class),
        Column("ASKED", lambda row: row.asked),
        Column("FREE", lambda row: row.free),
        Column("PROVIDER", lambda row: row.provider),
        Column("VERDICT", lambda row: row.verdict),
    )
    verdict = "it fits" if explanation["fits"] else "it does not fit"
    closed = explanation["closed"]
    yield verdict if closed is None else f"{verdict}, and claims are closed: {plain(closed)}"
    yield from table_lines(columns, list(_verdicts(explanation, providers)), style)
    yield from cells_lines(explanation["cells"], style)
    yield from makings_lines(explanation["to_make"], style)


def _verdicts(
    explanation: ExplanationShape, providers: Mapping[str, ResourceProviderShape]
) -> Iterator[_Verdict]:
    for uuid, allocation in explanation["allocations"].items():
        provider = providers.get(uuid)
        for resource_class, amount in allocation["resources"].items():
            name = provider["name"] if provider else uuid
            yield _Verdict(resource_class, amount, _free(provider, resource_class), name, "fits")
    shortfalls = explanation["shortfalls"]
    if not explanation["fits"]:
        short = {shortfall["resource_class"] for shortfall in shortfalls if not shortfall.get("traits")}
        for resource_class, amount in explanation["asked"].items():
            if resource_class not in short:
                yield _would_fit(resource_class, amount, providers)
    for row in shortfall_rows(shortfalls):
        yield _Verdict(row.what, row.asked, row.free, row.provider, f"short: {row.reason}")


def _would_fit(resource_class: str, amount: int, providers: Mapping[str, ResourceProviderShape]) -> _Verdict:
    """The verdict on the provider with the most free of the class."""
    best = max(providers.values(), key=lambda provider: _free(provider, resource_class), default=None)
    name = best["name"] if best else "-"
    return _Verdict(resource_class, amount, _free(best, resource_class), name, "would fit")


def _free(provider: ResourceProviderShape | None, resource_class: str) -> int:
    """What the provider can still give of the class; 0 where it has more in use than its capacity."""
    if provider is None or resource_class not in provider["inventories"]:
        return 0
    capacity = int(provider["inventories"][resource_class]["capacity"])
    return max(capacity - int(provider["usages"].get(resource_class, 0)), 0)
