"""`plimsoll placement ping`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from agent.cli.output import Output
from agent.cli.placement.source import SOURCES_HELP, add_source_options, opened
from agent.errors import ExitCode

if TYPE_CHECKING:
    from agent.cli.grammar import CommandAdder


def add_ping(add: CommandAdder) -> None:
    """Add `plimsoll placement ping`."""
    parser = add(
        "ping",
        ping,
        "test whether a Placement answers, and whether the agent can use it",
        f"{SOURCES_HELP}Shows its address, the identity of the caller, its microversions, how long an\n"
        "answer takes, and what the agent may not do there. Writes nothing. Ends with 3 if something is\n"
        "missing that the agent can do without, with 1 if it cannot.",
        "  plimsoll placement ping --config-file /etc/plimsoll/plimsoll.conf\n"
        "  plimsoll placement ping --url http://placement.example/placement -o json | jq .round_trip_ms",
    )
    add_source_options(parser)


def ping(args: Namespace) -> ExitCode:
    """Ask a Placement who and what it is."""
    from agent.placement.ping import ping as ask

    with opened(args) as transport:
        result = ask(transport, f"embedded in {args.state_dir or 'the state directory'}")
    Output(args.output).show(result.to_json(), lambda _: _lines(result.to_json()))
    return ExitCode.DRIFT_FOUND if result.lacking else ExitCode.DONE


def _lines(answer: dict[str, Any]) -> Iterator[str]:
    versions, times = answer["microversions"], answer["round_trip_ms"]
    yield f"placement   {answer['where']}"
    yield f"asked as    {answer['who']}"
    yield f"speaks      {versions['lowest']} to {versions['highest']}, spoken to in {versions['spoken']}"
    yield f"round trip  {times['best']:.1f} ms at best, {times['median']:.1f} ms in the middle"
    for sentence in answer["lacking"]:
        yield f"lacking     {sentence}"
