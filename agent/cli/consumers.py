"""Instances and migrations as people name them: by uuid, by a unique beginning of it, or by name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from agent.errors import UnknownConsumer, UsageError

if TYPE_CHECKING:
    from agent.cli.client import Client

PREFIX_MIN = 4
"""A shorter beginning of a uuid is too easily that of another instance tomorrow."""
NEAR_MAX = 3

INSTANCE_HELP = "the instance: its name, its uuid, or the beginning of its uuid"
MIGRATION_HELP = "the migration: its uuid, the beginning of it, or the name of its instance"

_UUID = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
_PREFIX = re.compile(r"[0-9a-f-]+", re.ASCII | re.IGNORECASE)


class NamedConsumer(NamedTuple):
    """An instance or a migration. `about` tells it apart from others of its name."""

    uuid: str
    name: str
    about: str


def find_instance(client: Client, text: str) -> str:
    """The uuid of the instance that `text` names: a uuid, a unique beginning of one, or a unique name.

    A whole uuid is returned as it is, without a request. Raises UsageError where several instances match,
    UnknownConsumer where none does.
    """
    if _UUID.fullmatch(text):
        return text
    return _find(text, "instance", list(instances_of(client)), "plimsoll instances")


def find_migration(client: Client, text: str) -> str:
    """As `find_instance`, for the migration of a move; the name is that of its instance.

    Where the agent knows no such migration, it looks in Placement what other hosts began, before it says no.
    """
    if _UUID.fullmatch(text):
        return text
    listing = "plimsoll move list --all"
    try:
        return _find(text, "migration", list(migrations_of(client)), listing)
    except UnknownConsumer:
        return _find(text, "migration", list(migrations_of(client, look=True)), listing)


def find_event_subject(client: Client, text: str) -> str:
    """As `find_instance`, for an instance or a migration."""
    if _UUID.fullmatch(text):
        return text
    known = [*instances_of(client), *(migration._replace(name="") for migration in migrations_of(client))]
    return _find(text, "instance or migration", known, "plimsoll instances")


def instances_of(client: Client) -> Iterable[NamedConsumer]:
    """The instances that the agent knows, without the migrations that hold an old place."""
    for instance in client.get("/v1/instances")["instances"]:
        if instance.get("migration_of") is not None:
            continue
        guest, claim = instance["guest"], instance["claim"]
        about = ", ".join(
            text
            for text in (
                f"guest {guest['state']}" if guest else "no guest",
                f"{claim['state']} since {claim['since']}" if claim else "no claim",
            )
        )
        yield NamedConsumer(instance["uuid"], instance["name"], about)


def migrations_of(client: Client, *, look: bool = False) -> Iterable[NamedConsumer]:
    """The migrations that the agent knows: those of moves under way, then those of ended ones.

    `look`: the agent first reads what other hosts did.
    """
    path = "/v1/moves?look=true" if look else "/v1/moves"
    for move in sorted(client.get(path)["moves"], key=lambda move: bool(move["ended"])):
        yield NamedConsumer(
            move["migration"], move["name"], f"{move['kind']} of {move['instance']}, {move['state']}"
        )


def _find(text: str, kind: str, known: list[NamedConsumer], listing: str) -> str:
    wanted = text.strip()
    if not wanted:
        raise UsageError(
            f"the {kind} is an empty text: give its uuid, the beginning of its uuid, or its name"
        )
    matching = [consumer for consumer in known if consumer.name == wanted] or [
        consumer
        for consumer in known
        if len(wanted) >= PREFIX_MIN
        and _PREFIX.fullmatch(wanted)
        and consumer.uuid.startswith(wanted.lower())
    ]
    if len(matching) == 1:
        return matching[0].uuid
    if matching:
        listed = "; ".join(f"{consumer.uuid} ({consumer.about})" for consumer in matching)
        raise UsageError(f"{wanted!r} names {len(matching)} {kind}s, give the uuid of one: {listed}")
    from difflib import get_close_matches

    near = get_close_matches(wanted, [consumer.name for consumer in known if consumer.name], n=NEAR_MAX)
    hint = f"did you mean {' or '.join(near)}?" if near else f"`{listing}` lists those that there are"
    raise UnknownConsumer(f"this host has no {kind} {wanted!r}: {hint}", asked=wanted, near=near)
