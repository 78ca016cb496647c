"""`plimsoll move`: begin, confirm and revert moves, and show them."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from agent.cli import claim_request, grammar
from agent.cli.claim import claim_lines, holding_lines
from agent.cli.client import INSTANCE_HELP, MIGRATION_HELP, client_of, find_instance, find_migration
from agent.cli.domain import complete_domain
from agent.cli.output import Style, show, show_table
from agent.errors import DaemonUnreachable, ExitCode, UnknownConsumer, UsageError, plain

if TYPE_CHECKING:
    from agent.api.shapes.instance import MoveShape, MovesShape

PATH = "/v1/moves"
KINDS = ("cold-migrate", "resize", "same-host-resize", "live-migrate", "rebuild", "evacuate")

INSTANCE_EXAMPLE = "5b2cd5f6-7f3c-4a0e-9f4e-1f2d3c4b5a69"
MIGRATION_EXAMPLE = "0d1c7a52-8f0e-4f2b-9d4b-3a5f0a7c6e21"


def add_move_command(add: grammar.CommandAdder) -> None:
    """Add `plimsoll move`."""
    command = add(
        "move",
        None,
        "move an instance: begin on the destination, confirm or revert, show the allocations",
        "During a move the instance holds the allocation at its new place. The migration, a consumer with a\n"
        "uuid of its own, holds the old allocation. Each of the two agents learns from Placement what the\n"
        "other one did.",
        f"  plimsoll move begin {INSTANCE_EXAMPLE} --kind cold-migrate --resources VCPU=2,MEMORY_MB=2048\n"
        f"  plimsoll move confirm {MIGRATION_EXAMPLE}\n  plimsoll move list",
    )
    add_verb = grammar.add_verbs(command)
    _add_begin(add_verb)
    for verb, short, text in (
        (
            "confirm",
            "end a move: the instance stays at the destination, and the source is free",
            "Works on either side. The source waits until the guest is gone.\n",
        ),
        (
            "revert",
            "undo a move: the instance has its old place again, with the same devices",
            "Works on either side. The destination waits until the guest is gone, so that no other guest\n"
            "gets its place before it is clean.\n",
        ),
    ):
        ending = add_verb(
            verb,
            end,
            short,
            f"{text}While Placement does not answer, the request is journaled and done later. The same\n"
            "request again is no error.",
            f"  plimsoll move {verb} {MIGRATION_EXAMPLE}\n"
            f"  plimsoll move {verb} {MIGRATION_EXAMPLE} --instance {INSTANCE_EXAMPLE}",
        )
        grammar.complete_migrations(
            ending.add_argument("migration", metavar="MIGRATION", help=MIGRATION_HELP)
        )
        ending.add_argument(
            "--instance",
            metavar="INSTANCE",
            help="the instance of the migration, where the source cannot tell two moves apart",
        )
        ending.set_defaults(verb=verb)
    showing = add_verb(
        "show",
        show_move,
        "show the allocations of one move, device by device",
        "Shows the allocation of the migration, and that of the instance at the destination.",
        f"  plimsoll move show {MIGRATION_EXAMPLE}\n"
        f"  plimsoll move show {MIGRATION_EXAMPLE} -o json | jq .old.units",
    )
    grammar.complete_migrations(showing.add_argument("migration", metavar="MIGRATION", help=MIGRATION_HELP))
    listing = add_verb(
        "list",
        list_moves,
        "list the moves under way that this host takes part in",
        "Reads first, in Placement, what other hosts began or ended. The column IT HOLDS shows the\n"
        "allocation of the migration.",
        "  plimsoll move list\n  plimsoll move list --all -o json | jq '.moves[].state'",
    )
    listing.add_argument("--all", action="store_true", help="also moves that ended lately")
    grammar.add_column_option(listing)


def _add_begin(add_verb: grammar.CommandAdder) -> None:
    parser = add_verb(
        "begin",
        begin,
        "begin a move, on its destination",
        "Claims the new place on this host and hands the old one to the migration, in one atomic request.\n"
        "A resize of an instance that is already on this host, and a rebuild, stay on it. Give the\n"
        "resources as for `plimsoll claim`. A refusal (exit code 5) changes nothing.",
        f"  plimsoll move begin {INSTANCE_EXAMPLE} --kind live-migrate --resources VCPU=2,MEMORY_MB=2048\n"
        f"  plimsoll move begin {INSTANCE_EXAMPLE} --kind resize --flavor vcpus=4,memory_mb=8192\n"
        "  plimsoll move begin web1 --kind live-migrate --domain web1.xml > destination.xml",
    )
    grammar.complete_instances(parser.add_argument("consumer", metavar="INSTANCE", help=INSTANCE_HELP))
    parser.add_argument("--kind", choices=KINDS, required=True, help="what kind of move")
    parser.add_argument(
        "--migration",
        metavar="UUID",
        help="the migration's uuid; without it the command makes a new one and prints it",
    )
    claim_request.add_claim_options(parser)
    claim_request.add_or_option(parser)
    parser.add_argument(
        "--alternative",
        metavar="N|any",
        help="of alternatives, the one to take, from 1, or the first that fits; without it the one that the "
        "instance has",
    )
    parser.add_argument(
        "--domain",
        metavar="FILE",
        help="take what the domain's XML asks for, and print the domain for this host; - is standard input",
    )


def begin(args: Namespace) -> ExitCode:
    """Begin a move to this host."""
    from uuid import uuid4

    client = client_of(args)
    try:
        args.consumer = find_instance(client, args.consumer)
    except UnknownConsumer as error:
        error.message += (
            "; an instance that comes from another host has no name here yet: give its uuid, which "
            "`plimsoll instances` shows there"
        )
        raise
    body: dict[str, Any] = {
        "migration": args.migration or str(uuid4()),
        "kind": args.kind.replace("-", "_"),
        "request": claim_request.claim_body(args)
        if args.domain is None
        else claim_request.addition_body(args),
    }
    if args.alternative is not None:
        if args.alternative != "any" and not re.fullmatch("[1-9][0-9]?", args.alternative):
            raise UsageError(f"--alternative {args.alternative!r} is neither a number from 1 nor `any`")
        body["alternative"] = 0 if args.alternative == "any" else int(args.alternative)
    if args.domain is not None:
        body |= {"domain": claim_request.read_text_file("move begin", args.domain), "consumer": args.consumer}
    try:
        move: MoveShape = client.request("POST", PATH, body)
    except DaemonUnreachable as error:
        if error.details.get("asked") and not args.migration:
            # The agent may have begun the move, and only this message has the new uuid.
            error.message += f"; the uuid made for the migration is {body['migration']}"
        raise
    if args.domain is not None:
        claim_request.show_notes(move)
        # As the domain is to be on this host, the destination.
        xml = complete_domain(client, move["instance"], body["domain"], replace=True)["xml"]
        show(args, {**move, "xml": xml}, lambda _: [xml.rstrip("\n")], _sentence(move))
        return ExitCode.DONE
    show(args, move, lambda style: _lines(move, style))
    claim_request.show_notes(move)
    return ExitCode.DONE


def end(args: Namespace) -> ExitCode:
    """Confirm or revert a move."""
    client = client_of(args)
    query = ""
    if args.instance is not None:
        query = f"?{urlencode({'instance': find_instance(client, args.instance)})}"
    path = _path(find_migration(client, args.migration))
    move: MoveShape = client.request("POST", f"{path}/{args.verb}{query}")
    show(args, move, lambda _: [_sentence(move)])
    return ExitCode.DONE


def show_move(args: Namespace) -> ExitCode:
    """Show a move."""
    client = client_of(args)
    move: MoveShape = client.get(_path(find_migration(client, args.migration)))
    show(args, move, lambda style: _lines(move, style))
    return ExitCode.DONE


def list_moves(args: Namespace) -> ExitCode:
    """List the moves that this host takes part in."""
    from agent.api.shapes.instance import MOVE_COLUMNS

    answer: MovesShape = client_of(args).get(f"{PATH}?look=true")
    moves = [move for move in answer["moves"] if args.all or not move["ended"]]
    show_table(args, {"moves": moves}, MOVE_COLUMNS, moves, "no moves")
    return ExitCode.DONE


def _lines(move: MoveShape, style: Style) -> Iterator[str]:
    yield _sentence(move)
    names, new = move["providers"], move["new"]
    instance = plain(move["instance"])
    in_place = move["kind"] == "rebuild" and not move["ended"]
    if not move["ended"] and not in_place:
        yield f"the migration {plain(move['migration'])} holds, of the instance's old place,"
        yield from holding_lines(move["handed"], names, style)
        yield f"the instance {instance} holds, as its new place,"
        if new is None:
            yield "  the allocation at the destination: `plimsoll move show` there shows it"
        else:
            yield from claim_lines(new, names, style)
    elif new is not None and (in_place or move["state"] == "confirmed"):
        yield f"the instance {instance} holds"
        yield from claim_lines(new, names, style)
    yield f"next: {plain(move['next'])}"


def _sentence(move: MoveShape) -> str:
    name = f" ({plain(move['name'])})" if move["name"] else ""
    next_step = "" if move["ended"] or move["state"] == "begun" else f"; next is {plain(move['next'])}"
    return (
        f"{move['kind']} of {plain(move['instance'])}{name}: {move['state']}, "
        f"migration {move['migration']}{next_step}"
    )


def _path(migration: str) -> str:
    return f"{PATH}/{quote(migration, safe='')}"
