"""`plimsoll placement`, with a module for each verb."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.cli.grammar import add_verbs
from agent.cli.placement.check import add_check
from agent.cli.placement.export import add_export
from agent.cli.placement.import_ import add_import
from agent.cli.placement.ping import add_ping
from agent.cli.placement.remove import add_remove
from agent.cli.placement.serve import add_serve

if TYPE_CHECKING:
    from agent.cli.grammar import CommandAdder


def add_placement_command(add: CommandAdder) -> None:
    """Add `plimsoll placement`."""
    command = add(
        "placement",
        None,
        "serve, export, import, remove, check or ping a Placement",
        "An embedded Placement can be served to any Placement client, and its content carried to another\n"
        "embedded one or to an OpenStack Placement.",
        "  plimsoll placement serve --bind 127.0.0.1:8778 --state-dir /var/lib/plimsoll\n"
        "  plimsoll placement export --state-dir /var/lib/plimsoll host1.json\n"
        "  plimsoll placement import host1.json --url http://placement.example/placement\n"
        "  plimsoll placement check --state-dir /var/lib/plimsoll",
    )
    add_verb = add_verbs(command)
    for add_one in (add_serve, add_export, add_import, add_remove, add_check, add_ping):
        add_one(add_verb)
