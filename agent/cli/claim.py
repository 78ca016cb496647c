"""`plimsoll claim` and `plimsoll release`, and the tables of what a claim holds and what one lacks.

`plimsoll pause`, `resume` and `drain` say whether the host takes claims, and what has to leave it.
"""

from __future__ import annotations

import time
from argparse import REMAINDER, ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

from agent import errors
from agent.api.shapes.schema import list_text
from agent.cli import claim_request
from agent.cli.client import (
    INSTANCE_HELP,
    Client,
    claim_path,
    client_of,
    find_instance,
    read_names,
    read_providers,
)
from agent.cli.domain import CONNECTION_DEFAULT, Libvirt, add_libvirt_options
from agent.cli.grammar import CommandAdder, complete_instances, seconds_or_zero
from agent.cli.output import NOTHING, Style, show, table_lines, titled_lines
from agent.errors import ExitCode, counted, first_few, plain

if TYPE_CHECKING:
    from agent.api.shapes.fleet import WhereShape
    from agent.api.shapes.host import ClaimsStatusShape, PauseShape, ResourceProviderShape
    from agent.api.shapes.instance import (
        ClaimShape,
        DomainShape,
        ExplanationShape,
        GuestCellShape,
        HoldingShape,
        InstanceShape,
        MakingShape,
        ReleasedShape,
        ShortfallShape,
    )

OF_A_REQUEST = ("groups", "group_policy", "same_subtree", "root_required", "topology", "pci")
"""What of a claim's request says what it needs, and not whose it is."""
OF_CELLS = frozenset({"VCPU", "PCPU", "MEMORY_MB"})
PAUSED = "paused: new claims are refused until `plimsoll resume`"
POLL_S = 2.0
WAIT_MAX_S = 86400 * 100.0
ABSENT = frozenset({"shutoff", "crashed"})
"""The states of a guest that does not run, as GuestState has them."""


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
        "If libvirt refuses the domain, the claim is released again.\n"
        "\n"
        "With --exec the command runs a program with the claim, and releases it when the program ends. The\n"
        "program finds in its environment PLIMSOLL_PCI_ADDRESSES, PLIMSOLL_MDEV_UUIDS, PLIMSOLL_CPUS,\n"
        "PLIMSOLL_UNITS_SUFFIX for each group and PLIMSOLL_CONSUMER; its exit code is the command's.",
        "  plimsoll claim --resources VCPU=2,MEMORY_MB=2048,DISK_GB=20 --name web1\n"
        "  plimsoll claim --resources VCPU=8 --required HW_CPU_X86_AVX2 --dry-run\n"
        "  plimsoll claim --resources VCPU=2 --group 1:VGPU=1\n"
        "  plimsoll claim --flavor vcpus=4,memory_mb=8192,disk_gb=40 --spec hw:cpu_policy=dedicated\n"
        "  plimsoll claim 5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69 --file body.json\n"
        "  plimsoll claim --name ai1 --group 1:CUSTOM_GPU_H100=1 --or --group 1:CUSTOM_GPU_L40S=2\n"
        "  plimsoll claim --domain web.xml --group red:SRIOV_NET_VF=1 --start\n"
        "  plimsoll claim --group gpu:PGPU=1 --exec sh -c 'echo $PLIMSOLL_PCI_ADDRESSES'",
    )
    consumer = command.add_argument(
        "consumer", nargs="?", metavar="CONSUMER", help=f"{INSTANCE_HELP}; or `new`"
    )
    complete_instances(consumer)
    command.add_argument(
        "--domain", metavar="FILE", help="claim what a domain's XML asks for; - is standard input"
    )
    claim_request.add_claim_options(command)
    claim_request.add_or_option(command)
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
    command.add_argument(
        "--exec",
        metavar="COMMAND",
        nargs=REMAINDER,
        help="run this program, with all words that follow as its arguments, as long as the claim lasts",
    )


def claim(args: Namespace) -> int:
    """Claim, or with --dry-run explain whether the claim would fit."""
    if args.exec is not None and not args.exec:
        raise errors.UsageError("claim: --exec needs a program to run")
    if args.exec and (args.dry_run or args.domain is not None):
        raise errors.UsageError("claim: --exec cannot go with --domain or --dry-run: it runs a program")
    if args.domain is not None:
        return _claim_domain(args)
    for option in ("define", "start", "keep"):
        if getattr(args, option):
            raise errors.UsageError(f"claim: --{option} needs --domain")
    if args.connect != CONNECTION_DEFAULT:
        raise errors.UsageError("claim: --connect needs --domain")
    body = claim_request.claim_body(args)
    client = client_of(args, made_by="claim --exec") if args.exec else client_of(args)
    _identify(args, client, body)
    if args.dry_run:
        return _explain(args, client, "/v1/claims", body)
    if args.exec:
        from agent.cli.program import ClaimedProgram

        with ClaimedProgram(args.exec) as program:
            body["process"] = program.process.to_json()
            granted = _claim_one(args, client, body)
            claim_request.show_notes(granted)
            return program.run(client, granted)
    answer = _claim_one(args, client, body)
    show(args, answer, lambda style: _claimed(answer, read_names(client), style))
    claim_request.show_notes(answer)
    return ExitCode.DONE


def _claim_one(args: Namespace, client: Client, body: dict[str, Any]) -> ClaimShape:
    """Claim what the body asks for."""
    try:
        answer: ClaimShape = client.request("POST", "/v1/claims", body)
    except errors.DaemonUnreachable as error:
        if error.details.get("asked"):
            # The agent may have claimed, and only this message has a new uuid.
            if "consumer" not in body:
                _add(error, "the same command again finds its claim by the name")
            elif args.consumer in (None, claim_request.NEW):
                _add(error, f"the uuid made for it is {body['consumer']}")
        raise
    except (errors.ClaimConflict, errors.UsageError) as error:
        if "consumer" not in body and {"consumer", "instances"} & error.details.keys():
            _add(error, f"--new claims for another instance that is called {body['name']}")
        raise
    return answer


def _add(error: errors.PlimsollError, clause: str) -> None:
    """Let the error's sentence go on with the clause."""
    error.message = f"{error.message.rstrip('.')}; {clause}"


def _identify(args: Namespace, client: Client, body: dict[str, Any]) -> None:
    """Write the uuid of the instance that CONSUMER names into the body."""
    if args.consumer in (None, claim_request.NEW):
        return
    try:
        body["consumer"] = find_instance(client, args.consumer)
    except errors.UnknownConsumer as error:
        error.message += f"{'' if error.message.endswith('?') else ';'} --name claims for a new one"
        raise


def _claim_domain(args: Namespace) -> ExitCode:
    """Claim for a domain; print, define or start it."""
    if args.alternatives:
        raise errors.UsageError("claim: --or cannot go with --domain: a domain asks for one thing")
    if args.domain == args.file == claim_request.STANDARD_INPUT:
        raise errors.UsageError("claim: --domain and --file cannot both be standard input")
    body: dict[str, Any] = {
        "xml": claim_request.read_text_file("claim", args.domain),
        "request": claim_request.addition_body(args),
    }
    if args.new:
        body["consumer"] = claim_request.new_consumer(args)
    client = client_of(args)
    _identify(args, client, body)
    if args.dry_run:
        return _explain(args, client, "/v1/domains", body)
    libvirt = Libvirt(args.connect) if args.define or args.start else None
    written: DomainShape = client.request("POST", "/v1/domains", body)
    claim_request.show_notes(written)
    if libvirt is None:
        show(args, written, lambda _: [written["xml"].rstrip("\n")], _claimed_for(written["claim"]))
        return ExitCode.DONE
    try:
        done = libvirt.hand_over(written, start=args.start)
    except errors.PlimsollError as error:
        _add(error, _after_refusal(args, client, written))
        raise
    show(
        args,
        written,
        lambda style: [done, *_claimed(written["claim"], read_names(client), style)],
        f"{_claimed_for(written['claim'])}; {done}",
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
    except errors.PlimsollError as error:
        return f"the claim of {consumer} could not be released again: {error.message}"
    return f"the claim of {consumer} was released again"


def _claimed_for(claim: ClaimShape) -> str:
    name = f" ({plain(claim['name'])})" if claim["name"] else ""
    number = claim["request"].get("alternative")
    which = f", alternative {number}" if number else ""
    return f"{plain(claim['state'])} for {plain(claim['consumer'])}{name}{which}"


def _claimed(claim: ClaimShape, names: Mapping[str, str], style: Style) -> Iterator[str]:
    yield _claimed_for(claim)
    yield from claim_lines(claim, names, style)


def _explain(args: Namespace, client: Client, path: str, body: dict[str, Any]) -> ExitCode:
    """Explain the alternatives up to the first that fits, which is the answer; if none does, the first is."""
    answer: ExplanationShape = client.request("POST", f"{path}?dry_run=true", body)
    claim_request.show_notes(answer)
    nothing: dict[str, Any] = {
        "fits": False,
        "closed": answer["closed"],
        "allocations": {},
        "cells": [],
        "to_make": {},
    }
    refused = [cast("ExplanationShape", {**nothing, **each}) for each in answer.get("refused", ())]
    answers = sorted((answer, *refused), key=lambda each: each.get("alternative", 0))

    def lines(style: Style) -> Iterator[str]:
        providers = read_providers(client)
        for each in answers:
            number = each.get("alternative")
            which = f"alternative {number} of {answer['alternatives']}: " if number else ""
            verdict = f"{which}{'it fits' if each['fits'] else 'it does not fit'}"
            closed = each["closed"]
            yield verdict if closed is None else f"{verdict}, and claims are closed: {plain(closed)}"
            rows: list[ShortfallRow] = []
            for uuid, allocation in each["allocations"].items():
                provider = providers.get(uuid)
                name = provider["name"] if provider else uuid
                for resource_class, amount in allocation["resources"].items():
                    rows.append((resource_class, amount, _free(provider, resource_class), name, "fits"))
            shortfalls = each["shortfalls"]
            if not each["fits"]:
                short = {
                    shortfall["resource_class"] for shortfall in shortfalls if not shortfall.get("traits")
                }
                in_cells = any(" cell" in shortfall["reason"] for shortfall in shortfalls)
                for resource_class, amount in each["asked"].items():
                    if resource_class in short:
                        continue
                    # Nothing else says of it what is free. Shown is the provider with the most.
                    free = {one["name"]: _free(one, resource_class) for one in providers.values()}
                    name, most = max(free.items(), key=itemgetter(1), default=(NOTHING, 0))
                    can_give = amount <= most and all(
                        amount <= one["inventories"][resource_class]["max_unit"]
                        for one in providers.values()
                        if one["name"] == name and resource_class in one["inventories"]
                    )
                    verdict = "would fit" if can_give else "not on one provider alone"
                    if amount > sum(free.values()):
                        verdict = "short: more than is free in all"
                    elif in_cells and resource_class in OF_CELLS:
                        verdict = "enough in all cells together"
                    rows.append((resource_class, amount, most, name, verdict))
            for what, asked, left, where, reason in shortfall_rows(shortfalls):
                rows.append((what, asked, left, where, f"short: {reason}"))
            yield from titled_lines(("RESOURCE CLASS", "ASKED", "FREE", "PROVIDER", "VERDICT"), rows, style)
            yield from cells_lines(each["cells"], style)
            yield from makings_lines(each["to_make"], style)

    show(args, answer, lines)
    return ExitCode.DONE if answer["fits"] and answer["closed"] is None else ExitCode.REFUSED


def _free(provider: ResourceProviderShape | None, resource_class: str) -> int:
    """What the provider can still give of the class; 0 where it has more in use than its capacity."""
    if provider is None or resource_class not in provider["inventories"]:
        return 0
    capacity = int(provider["inventories"][resource_class]["capacity"])
    return max(capacity - int(provider["usages"].get(resource_class, 0)), 0)


def add_release_command(add: CommandAdder) -> None:
    """Add `plimsoll release`."""
    command = add(
        "release",
        release,
        "release the claim of an instance",
        "Refuses to release the claim of a guest that runs here, and says what would be offered to others.\n"
        "If Placement does not answer, the release is journaled, and the agent delivers it later.",
        "  plimsoll release web1\n  plimsoll release 5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69",
    )
    complete_instances(command.add_argument("consumer", metavar="CONSUMER", help=INSTANCE_HELP))
    command.add_argument("--force", action="store_true", help="also release the claim of a guest that runs")


def release(args: Namespace) -> ExitCode:
    """Release a claim."""
    client = client_of(args)
    consumer = find_instance(client, args.consumer)
    answer: ReleasedShape = client.request("DELETE", f"{claim_path(consumer)}{'?force=true' * args.force}")
    journaled = (
        "" if answer["released"] else "; journaled: the agent delivers it when it may write to Placement"
    )
    show(args, answer, lambda _: [f"released {answer['consumer']}{journaled}"])
    return ExitCode.DONE


def claim_lines(claim: ClaimShape, names: Mapping[str, str], style: Style) -> Iterator[str]:
    """What a claim holds, which exact units each suffixed group of its request got, and the units to make.

    `names` as for `holding_lines`.
    """
    yield from holding_lines(claim, names, style)
    rows = [
        (mapping["label"], names.get(uuid, uuid), list_text(unit for exact in by.values() for unit in exact))
        for mapping in claim["mappings"]
        if mapping["suffix"]
        for uuid, by in mapping["units"].items()
    ]
    if rows:
        yield from titled_lines(("GROUP", "PROVIDER", "UNITS"), rows, style)
    yield from makings_lines(claim["to_make"], style)


def holding_lines(
    holding: ClaimShape | HoldingShape, names: Mapping[str, str], style: Style
) -> Iterator[str]:
    """The allocations of a consumer with their exact units, and its NUMA cells.

    `names` is {provider uuid: name}; a provider without a name is shown by its uuid.
    """
    rows = sorted(
        (
            names.get(uuid, uuid),
            resource_class,
            amount,
            list_text(holding["units"].get(uuid, {}).get(resource_class, ())),
        )
        for uuid, allocation in holding["allocations"].items()
        for resource_class, amount in allocation["resources"].items()
    )
    yield from titled_lines(("PROVIDER", "RESOURCE CLASS", "AMOUNT", "UNITS"), rows, style)
    yield from cells_lines(holding["cells"], style)


def cells_lines(cells: Sequence[GuestCellShape], style: Style) -> Iterator[str]:
    """The guest's NUMA cells; nothing for a guest without any."""
    from agent.api.shapes.instance import GUEST_CELL_COLUMNS

    if cells:
        yield from table_lines(GUEST_CELL_COLUMNS, cells, style)


def makings_lines(makings: Mapping[str, MakingShape], style: Style) -> Iterator[str]:
    """The units to make; nothing if all of them exist."""
    rows = [
        (unit, making["type"], making["parent"], making.get("placement", NOTHING))
        for unit, making in makings.items()
    ]
    if rows:
        yield from titled_lines(("TO MAKE", "TYPE", "ON", "AT"), rows, style)


ShortfallRow = tuple[str, "int | str", "int | str", str, str]
"""What is missing (a class, or a trait, of which there is no amount), asked, free, the provider, and why."""


def shortfall_rows(shortfalls: Iterable[ShortfallShape]) -> list[ShortfallRow]:
    """A row for each shortfall of a class, and for each trait that is missing or forbidden."""
    rows: dict[ShortfallRow, None] = {}
    for short in shortfalls:
        what, traits = short["resource_class"] or NOTHING, short.get("traits", [])
        asked: int | str = short["asked"]
        free: int | str = short["free"]
        if traits or what == NOTHING:
            what, asked, free = f"trait {' or '.join(traits)}" if traits else what, NOTHING, NOTHING
        rows[(what, asked, free, short["provider"] or NOTHING, short["reason"])] = None
    return list(rows)  # each once: a trait may be missing for several classes


def shortfall_lines(shortfalls: Sequence[ShortfallShape], style: Style) -> Iterator[str]:
    """A table of what is missing where; nothing where nothing is."""
    if shortfalls:
        titles = ("RESOURCE CLASS", "ASKED", "FREE", "PROVIDER", "WHY")
        yield from titled_lines(titles, shortfall_rows(shortfalls), style)


# Whether claims are taken


def add_pause_command(add: CommandAdder) -> None:
    """Add `plimsoll pause`."""
    command = add(
        "pause",
        pause,
        "take no new claims on this host, until `plimsoll resume`",
        "Refuses new claims and moves to this host, also after a restart of the agent. What is here stays:\n"
        "releases, and moves away from this host, go on. On a host that is paused already, the command\n"
        "changes what it names.",
        '  plimsoll pause --reason "new memory on Tuesday"\n  plimsoll pause --schedulers',
    )
    _add_pause_options(command)


def add_resume_command(add: CommandAdder) -> None:
    """Add `plimsoll resume`."""
    add(
        "resume",
        resume,
        "end a pause or a drain: take claims again",
        "Also removes the trait by which schedulers were told. Without a pause it is no error.",
        "  plimsoll resume",
    )


def add_drain_command(add: CommandAdder) -> None:
    """Add `plimsoll drain`."""
    command = add(
        "drain",
        drain,
        "pause this host and list the instances that must leave it",
        "Pauses the host as `plimsoll pause` does, and lists what holds resources here. Ends with 0 when\n"
        "nothing is left, with 3 while something is. The command moves nothing itself: live migrations go\n"
        "through the gate, or begin with `plimsoll move begin` on the destination. With --follow it says\n"
        "who has left, and ends when nothing is left. The same command again keeps reason and --schedulers.",
        '  plimsoll drain --schedulers --reason "new firmware"\n  plimsoll drain --follow\n'
        "  plimsoll drain --wait 3600\n  plimsoll drain --plan",
    )
    _add_pause_options(command)
    command.add_argument(
        "--plan",
        action="store_true",
        help="change nothing: print where `plimsoll where` would send each instance, and what cannot go (5)",
    )
    command.add_argument(
        "--wait", metavar="SECONDS", default="0", help="follow the instances until all have left, so long"
    )
    command.add_argument("--follow", action="store_true", help="as --wait, until Ctrl-C")


def _add_pause_options(command: ArgumentParser) -> None:
    command.add_argument("--reason", help="why, for `plimsoll status` and for each refusal")
    command.add_argument(
        "--schedulers",
        action="store_const",
        const=True,
        help="also tell schedulers, by the trait COMPUTE_STATUS_DISABLED of the host",
    )


def pause(args: Namespace) -> ExitCode:
    """Pause the host."""
    answer = _pause(client_of(args), args)
    show(args, answer, lambda _: [PAUSED])
    return ExitCode.DONE


def resume(args: Namespace) -> ExitCode:
    """End the pause."""
    client = client_of(args)
    was_paused = client.get("/v1/status").get("pause") is not None
    answer = client.request("POST", "/v1/resume", {})

    def lines(_: Style) -> Iterator[str]:
        """What follows: other reasons may keep claims closed."""
        claims: ClaimsStatusShape = client.get("/v1/status")["claims"]
        done = "resumed" if was_paused else "the host was not paused"
        if claims["open"]:
            yield f"{done}: claims are taken{' again' if was_paused else ''}"
        else:
            yield f"{done}, but claims are closed: {plain(claims['reason'] or '')}"

    show(args, answer, lines)
    return ExitCode.DONE


def drain(args: Namespace) -> ExitCode:
    """Pause the host, and list what is left on it."""
    wait_s = seconds_or_zero(args.wait)
    if not 0 <= wait_s <= WAIT_MAX_S or (wait_s == 0 and args.wait != "0"):
        raise errors.UsageError(f"--wait {args.wait!r} is not a number of seconds, at most {WAIT_MAX_S:g}")
    client = client_of(args)
    if args.plan:
        if args.follow or wait_s or args.reason or args.schedulers:
            raise errors.UsageError("--plan changes nothing: give it without the other options of `drain`")
        return _plan_drain(client, args)
    answer = _pause(client, args, drain=True)
    end = time.monotonic() + wait_s
    left = _left(client)
    while left and (args.follow or time.monotonic() < end):
        time.sleep(POLL_S if args.follow else min(POLL_S, wait_s))
        before, left = left, _left(client, look=True)
        here = {instance["uuid"] for instance in left}
        for instance in before:
            if instance["uuid"] not in here and args.output == "table":
                what = "the migration of " if instance["migration_of"] else ""
                name = f" ({plain(instance['name'])})" if instance["name"] else ""
                print(f"left: {what}{instance['uuid']}{name}; {len(left)} to go", flush=True)

    def lines(style: Style) -> Iterator[str]:
        from agent.api.shapes.instance import INSTANCE_COLUMNS

        if not left:
            yield "drained: nothing is left on this host"
            return
        yield f"{counted(len(left), 'instance is', 'instances are')} still here:"
        yield from table_lines(INSTANCE_COLUMNS, left, style)
        advice: dict[str, str] = {}
        for instance in left:
            advice.setdefault(*_what_to_do(instance))
        yield from (f"{kind}: {text}" for kind, text in advice.items())

    show(args, {"pause": answer, "left": left}, lines, PAUSED)
    return ExitCode.DRIFT_FOUND if left else ExitCode.DONE


def _pause(client: Client, args: Namespace, *, drain: bool | None = None) -> PauseShape:
    asked = {"reason": args.reason, "schedulers": args.schedulers, "drain": drain}
    body = {name: value for name, value in asked.items() if value is not None}
    answer: PauseShape = client.request("POST", "/v1/pause", body)
    return answer


def _plan_drain(client: Client, args: Namespace) -> ExitCode:
    """Print the moves that would empty the host, the largest first, each with its target.

    A target has room for those that the plan has sent there before, by the sums of its amounts. Placement
    judges each move again when it is made.
    """
    own = client.get("/v1/status")["uuid"]
    moves: list[dict[str, str]] = []
    stay: list[dict[str, str]] = []
    planned: Counter[tuple[str, str]] = Counter()

    def memory_mb(instance: InstanceShape) -> int:
        held = instance["claim"]["allocations"].values() if instance["claim"] else ()
        return sum(each["resources"].get("MEMORY_MB", 0) for each in held)

    for instance in sorted(_left(client), key=memory_mb, reverse=True):
        named = {"instance": instance["uuid"], "name": instance["name"]}
        kind, what_to_do = _what_to_do(instance)
        if instance["claim"] is None or kind not in ("running", "shut off"):
            unclaimed = "it has no claim, so nothing says what it needs: `plimsoll audit` has the remedy"
            is_guest = kind in ("running", "shut off")
            stay.append({**named, "reason": unclaimed if is_guest else f"{kind}: {what_to_do}"})
            continue
        asked = {name: part for name, part in instance["claim"]["request"].items() if name in OF_A_REQUEST}
        answer: WhereShape = client.request("POST", "/v1/where", {"requests": [asked], "strategy": "spread"})
        others = [place for place in answer["places"] if place["uuid"] != own]
        target = next(
            (
                place
                for place in others
                if all(left["free"] >= planned[place["uuid"], name] for name, left in place["left"].items())
            ),
            None,
        )
        if target is not None:
            for held in target["allocations"].values():
                planned.update({(target["uuid"], name): amount for name, amount in held["resources"].items()})
            how = what_to_do.replace("DESTINATION", plain(target["host"]))
            moves.append({**named, "to": target["host"], "to_uuid": target["uuid"], "how": how})
        elif others:
            stay.append({**named, "reason": "no host has room for it beside those that go before it"})
        else:
            stay.append({**named, "reason": _why_no_other(client, own, asked, answer)})

    def lines(style: Style) -> Iterator[str]:
        if not moves and not stay:
            yield "nothing is left on this host"
        if moves:
            yield f"{counted(len(moves), 'instance moves', 'instances move')}, in this order:"
            rows = [(move["name"] or move["instance"], move["to"], move["how"]) for move in moves]
            yield from titled_lines(("INSTANCE", "TO", "HOW"), rows, style)
        if stay:
            yield f"{counted(len(stay), 'instance')} cannot go:"
            yield from (
                f"  {plain(each['name'] or each['instance'])}: {plain(each['reason'])}" for each in stay
            )

    show(args, {"moves": moves, "stay": stay}, lines)
    return ExitCode.REFUSED if stay else ExitCode.DONE


def _why_no_other(client: Client, own: str, asked: Mapping[str, Any], answer: WhereShape) -> str:
    """Why no host but `own` has room for what is asked; `answer` says where it fits."""
    if answer["places"]:  # here alone: an answer for very many guests says why not elsewhere
        answer = client.request("POST", "/v1/where", {"requests": [asked], "count": 1000})
    reason = "no other host has room for it"
    near = next((miss for miss in answer["nearest"] if miss["uuid"] != own), None)
    if near is not None:
        has = "" if near["free"] is None else f", of which {near['free']} of {near['total']} are free"
        reason += f"; {near['host']}, the nearest, lacks {near['lacks']}{has}"
    closed = [f"{each['host']} ({each['reason']})" for each in answer["closed"] if each["uuid"] != own]
    return f"{reason}; closed: {first_few(closed, 3)}" if closed else reason


def _left(client: Client, *, look: bool = False) -> list[InstanceShape]:
    """The instances that hold resources here, or whose guest is here; `look`: ask Placement about moves."""
    if look:
        client.get("/v1/moves?look=true")
    instances: list[InstanceShape] = client.get("/v1/instances")["instances"]
    return instances


def _what_to_do(instance: InstanceShape) -> tuple[str, str]:
    """What keeps the instance here, and what ends that, with the instance as the example."""
    example = plain(instance["name"] or instance["uuid"])
    if instance["moved_away"]:
        return "moved away", f"the instance is on another host; here: virsh undefine {example}"
    if instance["migration_of"]:
        return "a migration", "`plimsoll move list` says whose turn it is"
    if instance.get("migration"):
        return "moving", "`plimsoll move list` says whose turn it is"
    if instance["guest"] is None:
        return "no guest", f"plimsoll release {example}, unless its guest is about to start"
    to = f"--persistent --undefinesource {example} qemu+ssh://DESTINATION/system"
    if instance["guest"]["state"] in ABSENT:
        return "shut off", f"virsh undefine {example}, or virsh migrate --offline {to}"
    return "running", f"virsh migrate --live {to}"
