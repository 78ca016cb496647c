"""What `plimsoll move` does: ask the agent, show who holds what on behalf of which migration."""

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from agent.cli import render
from agent.cli.claimbody import claim_body
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
