"""What `plimsoll move` does: ask the agent, show who holds what on behalf of which migration."""

import argparse
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from agent.cli import render
from agent.cli.claim_body import claim_body
from agent.cli.client import Client
from agent.cli.output import Output
from agent.cli.terminal import plain
from agent.errors import DaemonUnreachable, ExitCode, PlimsollError

Json = dict[str, Any]

PATH = "/v1/moves"


def begin(args: Namespace) -> ExitCode:
    from uuid import uuid4

    body = {
        "migration": args.migration or str(uuid4()),
        "kind": args.kind.replace("-", "_"),
        "request": claim_body(args),
    }
    client = _client(args)
    try:
        answer = client.request("POST", PATH, body)
    except DaemonUnreachable as error:
        if error.details.get("asked") and not args.migration:
            # Nobody else knows this uuid, and what was asked may have been done.
            error.message += f"; the uuid made for the migration is {body['migration']}"
        raise
    Output(args.output).show(answer, lambda _: _lines(answer, _names(client)))
    return ExitCode.DONE


def confirm(args: Namespace) -> ExitCode:
    return _end(args, "confirm")


def revert(args: Namespace) -> ExitCode:
    return _end(args, "revert")


def _end(args: Namespace, how: str) -> ExitCode:
    query = f"?{urlencode({'instance': args.instance})}" if args.instance else ""
    client = _client(args)
    answer = client.request("POST", f"{_path(args.migration)}/{how}{query}")
    Output(args.output).show(answer, lambda _: [_sentence(answer)])
    return ExitCode.DONE


def show(args: Namespace) -> ExitCode:
    client = _client(args)
    answer = client.get(_path(args.migration))
    Output(args.output).show(answer, lambda _: _lines(answer, _names(client)))
    return ExitCode.DONE


def listed(args: Namespace) -> ExitCode:
    answer = _client(args).get(PATH)
    told = [each for each in answer["moves"] if args.all or not each["ended"]]
    shown = {"moves": told}
    Output(args.output).show(shown, lambda _: _table(told))
    return ExitCode.DONE


def _table(moves: Sequence[Json]) -> Iterator[str]:
    if not moves:
        yield "no moves"
        return
    rows = [
        (
            each["migration"],
            each["instance"],
            each["name"] or "-",
            each["kind"],
            each["role"],
            each["state"],
            "-" if each["ended"] else render.resources_text(render.summed(each["handed"]["allocations"])),
            each["next"],
        )
        for each in moves
    ]
    yield from render.table(
        ("MIGRATION", "INSTANCE", "NAME", "KIND", "ROLE", "STATE", "IT HOLDS", "WHOSE TURN"), rows
    )


def _lines(move: Json, names: Mapping[str, str]) -> Iterator[str]:
    yield _sentence(move)
    instance, new = plain(move["instance"]), move["new"]
    in_place = move["kind"] == "rebuild" and not move["ended"]
    if not move["ended"] and not in_place:
        yield f"the migration {plain(move['migration'])} holds, of the instance's old place,"
        yield from render.holdings_lines(move["handed"], names)
        yield f"the instance {instance} holds, as its new place,"
        if new is None:
            yield "  what the destination gave it: `plimsoll move show` there tells"
        else:
            yield from render.holdings_lines(new, names)
    elif new is not None and (in_place or move["state"] == "confirmed"):
        yield f"the instance {instance} holds"
        yield from render.holdings_lines(new, names)
    yield f"next: {plain(move['next'])}"


def _sentence(move: Json) -> str:
    name = f" ({plain(move['name'])})" if move["name"] else ""
    waits = "" if move["ended"] or move["state"] == "begun" else f"; next is {plain(move['next'])}"
    return (
        f"{move['kind']} of {plain(move['instance'])}{name}: {move['state']}, "
        f"migration {move['migration']}{waits}"
    )


def _names(client: Client) -> dict[str, str]:
    try:
        return {each["uuid"]: each["name"] for each in client.get("/v1/tree")["resource_providers"]}
    except PlimsollError:
        return {}


def _path(migration: str) -> str:
    return f"{PATH}/{quote(migration, safe='')}"


def _client(args: Namespace) -> Client:
    return Client(args.socket, args.timeout)


Adder = Callable[..., argparse.ArgumentParser]
"""Takes name, function, short help, text and examples."""


KINDS = ("cold-migrate", "resize", "same-host-resize", "live-migrate", "rebuild", "evacuate")


_INSTANCE = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"


_MIGRATION = "0d1c7a52-8f0e-4f2b-9d4b-3a5f0a7c6e21"


def add_move_commands(
    add: Adder,
    verbs_of: Callable[[argparse.ArgumentParser], Adder],
    claim_options: Callable[[argparse.ArgumentParser], None],
) -> None:
    """Add `move` and its verbs; `claim_options` adds the options that say what is wanted."""
    group = add(
        "move",
        None,
        "move an instance: begin on the destination, confirm or revert, see who holds what",
        "While a move is under way the instance holds its new place, and the migration, a consumer with a\n"
        "uuid of its own, holds the old one. The two agents learn from placement what the other one did.",
        f"  plimsoll move begin {_INSTANCE} --kind cold-migrate --resources VCPU=2,MEMORY_MB=2048\n"
        f"  plimsoll move confirm {_MIGRATION}\n  plimsoll move list",
    )
    verbs = verbs_of(group)
    _begin(verbs, claim_options)
    _ends(verbs)
    _looks(verbs)


def _begin(verbs: Adder, claim_options: Callable[[argparse.ArgumentParser], None]) -> None:
    parser = verbs(
        "begin",
        begin,
        "begin a move, on its destination",
        "Claims the new place on this host and hands the old one to the migration, in one atomic request.\n"
        "A resize of an instance that is on this host already, and a rebuild, stay on it. Say what is\n"
        "wanted as for `plimsoll claim`. A refusal (exit code 5) changes nothing.",
        f"  plimsoll move begin {_INSTANCE} --kind live-migrate --resources VCPU=2,MEMORY_MB=2048\n"
        f"  plimsoll move begin {_INSTANCE} --kind resize --flavor vcpus=4,memory_mb=8192",
    )
    parser.add_argument("consumer", metavar="INSTANCE", help="the instance's uuid")
    parser.add_argument("--kind", choices=KINDS, required=True, help="what kind of move")
    parser.add_argument(
        "--migration", metavar="UUID", help="the migration's uuid; without it a new one is made and printed"
    )
    claim_options(parser)


def _ends(verbs: Adder) -> None:
    for name, run, short, text in (
        (
            "confirm",
            confirm,
            "the instance stays at the destination; the source is free",
            "May be asked on either side. At the source it waits until the guest is gone.",
        ),
        (
            "revert",
            revert,
            "the instance has its old place again, with the same devices; the destination is free",
            "May be asked on either side. At the destination it waits until the guest is gone, so that\n"
            "nobody gets its place before it is clean.",
        ),
    ):
        end = verbs(
            name,
            run,
            short,
            f"{text} While placement is away it is journaled, and done later. The same again is no error.",
            f"  plimsoll move {name} {_MIGRATION}\n"
            f"  plimsoll move {name} {_MIGRATION} --instance {_INSTANCE}",
        )
        end.add_argument("migration", metavar="MIGRATION", help="the migration's uuid")
        end.add_argument(
            "--instance",
            metavar="UUID",
            help="whose migration it is, where the source cannot tell: two moves look the same",
        )


def _looks(verbs: Adder) -> None:
    showing = verbs(
        "show",
        show,
        "one move: who holds what, device by device",
        "What the migration holds on behalf of the move, and what the instance holds at the destination.",
        f"  plimsoll move show {_MIGRATION}\n  plimsoll move show {_MIGRATION} -o json | jq .old.units",
    )
    showing.add_argument("migration", metavar="MIGRATION", help="the migration's uuid")
    listing = verbs(
        "list",
        listed,
        "the moves under way that this host is part of",
        "What each migration holds is in the last column.",
        "  plimsoll move list\n  plimsoll move list --all -o json | jq '.moves[].state'",
    )
    listing.add_argument("--all", action="store_true", help="those too that ended lately")
