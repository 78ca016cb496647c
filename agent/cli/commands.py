"""What each command does: ask the agent, show the answer, say how it ended."""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agent.cli import render
from agent.cli.claim_body import claim_body
from agent.cli.client import Client, claim_path
from agent.cli.output import Output
from agent.cli.terminal import plain
from agent.cli.tree import tree_lines
from agent.errors import DaemonUnreachable, ExitCode, PlimsollError

Json = dict[str, Any]


def status(args: Namespace) -> ExitCode:
    answer = _client(args).get("/v1/status")
    Output(args.output).show(answer, lambda style: render.status_lines(answer, style))
    return ExitCode.DONE


def tree(args: Namespace) -> ExitCode:
    answer = _client(args).get("/v1/tree")
    providers = answer["resource_providers"]
    if providers:
        Output(args.output).show(answer, lambda style: tree_lines(providers, style, traits=args.traits))
    else:
        Output(args.output).show(answer, lambda _: ["no resource providers yet; `plimsoll status` says why"])
    return ExitCode.DONE


def instances(args: Namespace) -> ExitCode:
    answer = _client(args).get("/v1/instances")
    Output(args.output).show(answer, lambda _: render.instances_lines(answer["instances"]))
    return ExitCode.DONE


def claim(args: Namespace) -> ExitCode:
    body = claim_body(args)
    client = _client(args)
    if args.dry_run:
        return _explain(args, client, body)
    try:
        answer = client.request("POST", "/v1/claims", body)
    except DaemonUnreachable as error:
        if error.details.get("asked") and body["consumer"] != args.consumer:
            # Nobody else knows this uuid, and what was asked may have been done.
            error.message += f"; the uuid made for it is {body['consumer']}"
        raise
    Output(args.output).show(answer, lambda _: _claimed(answer, _providers(client)))
    return ExitCode.DONE


def _claimed(claim: Json, providers: dict[str, Json]) -> Iterator[str]:
    name = f" ({plain(claim['name'])})" if claim["name"] else ""
    yield f"{plain(claim['state'])} for {plain(claim['consumer'])}{name}"
    yield from render.holdings_lines(claim, {uuid: each["name"] for uuid, each in providers.items()})


def _explain(args: Namespace, client: Client, body: Json) -> ExitCode:
    answer = client.request("POST", "/v1/claims?dry_run=true", body)
    Output(args.output).show(answer, lambda _: render.explanation_lines(answer, _providers(client)))
    return ExitCode.DONE if answer["fits"] else ExitCode.REFUSED


def _providers(client: Client) -> dict[str, Json]:
    """By uuid; they only give names and numbers to what is known already, so doing without is no failure."""
    try:
        return {each["uuid"]: each for each in client.get("/v1/tree")["resource_providers"]}
    except PlimsollError:
        return {}


def release(args: Namespace) -> ExitCode:
    answer = _client(args).request("DELETE", claim_path(args.consumer))
    journaled = "; placement is away, and is told when it is back"
    line = f"released {answer['consumer']}{'' if answer['released'] else journaled}"
    Output(args.output).show(answer, lambda _: [line])
    return ExitCode.DONE


def plan(args: Namespace) -> ExitCode:
    answer = _client(args).get("/v1/plan")
    lines = answer["lines"] or ["nothing to change"]
    Output(args.output).show(answer, lambda _: render.clean(lines))
    return ExitCode.DRIFT_FOUND if answer["operations"] else ExitCode.DONE


def config_show(args: Namespace) -> ExitCode:
    if args.config_file or args.config_dir:
        from agent.config.settings import describe

        answer = describe(_load(args))
    else:
        answer = _client(args).get("/v1/config")
    Output(args.output).show(answer, lambda _: render.settings_lines(answer))
    return ExitCode.DONE


def config_validate(args: Namespace) -> ExitCode:
    from agent.config.settings import check_driver

    settings = _load(args)
    check_driver(settings)
    read = [str(path) for path in settings.files]
    where = ", ".join(read) if read else "no file, so every option has its default"
    Output(args.output).show({"valid": True, "files": read}, lambda _: [f"the settings are good: {where}"])
    return ExitCode.DONE


def config_sample(args: Namespace) -> ExitCode:
    from agent.config.settings import sample

    text = sample()
    Output(args.output).show({"sample": text}, lambda _: text.splitlines())
    return ExitCode.DONE


def adopt(args: Namespace) -> ExitCode:
    from agent.daemon.adopt import adopt as be

    identity = be(_load(args), args.uuid)
    answer = {"uuid": identity.uuid, "name": identity.name}
    line = f"this host, {identity.name}, is {identity.uuid} from now on; start the agent"
    Output(args.output).show(answer, lambda _: [line])
    return ExitCode.DONE


def agent(args: Namespace) -> ExitCode:
    from agent.daemon.service import run

    return ExitCode(run(paths(args.config_file), paths(args.config_dir)))


def _load(args: Namespace) -> Any:
    from agent.config.settings import load

    return load(paths(args.config_file), paths(args.config_dir))


def paths(names: Sequence[str] | None) -> tuple[Path, ...]:
    return tuple(Path(name) for name in names or ())


def _client(args: Namespace) -> Client:
    return Client(args.socket, args.timeout)
