"""Instances and migrations as people name them: by uuid, by a unique beginning of it, or by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from agent.errors import UnknownConsumer
from agent.status.consumers import NamedConsumer, find_consumer, is_uuid

if TYPE_CHECKING:
    from agent.cli.client import Client

INSTANCE_HELP = "the instance: its name, its uuid, or the beginning of its uuid"
MIGRATION_HELP = "the migration: its uuid, the beginning of it, or the name of its instance"


def find_instance(client: Client, text: str) -> str:
    """The uuid of the instance that `text` names: a uuid, a unique beginning of one, or a unique name.

    A whole uuid is returned as it is, without a request. Raises UsageError where several instances match,
    UnknownConsumer where none does.
    """
    if is_uuid(text):
        return text
    return find_consumer(text, "instance", list(instances_of(client)), "plimsoll instances")


def find_migration(client: Client, text: str) -> str:
    """As `find_instance`, for the migration of a move; the name is that of its instance.

    Where the agent knows no such migration, it looks in Placement what other hosts began, before it says no.
    """
    if is_uuid(text):
        return text
    listing = "plimsoll move list --all"
    try:
        return find_consumer(text, "migration", list(migrations_of(client)), listing)
    except UnknownConsumer:
        return find_consumer(text, "migration", list(migrations_of(client, look=True)), listing)


def find_audit_subject(client: Client, text: str) -> str:
    """As `find_instance`, for an instance or a migration; a uuid in the form that findings have."""
    if is_uuid(text):
        from uuid import UUID

        return str(UUID(text))
    known = [*instances_of(client), *(migration._replace(name="") for migration in migrations_of(client))]
    return find_consumer(text, "instance or migration", known, "plimsoll instances")


def check_is_known(client: Client, consumer: str) -> None:
    """Raises UnknownConsumer where the host has neither guest, claim, move nor allocation of the consumer."""
    items = client.get(f"/v1/explain?what={consumer}")["found"]  # an unknown word is an error
    if all(item["kind"] != "consumer" for item in items):
        raise UnknownConsumer(
            f"{consumer} is a {items[0]['kind']} of this host, and neither an instance nor a migration: "
            f"`plimsoll explain {consumer}` says more.",
            asked=consumer,
        )


def instances_of(client: Client) -> Iterable[NamedConsumer]:
    """The instances that the agent knows, also those of which only the migration is left here."""
    instances = client.get("/v1/instances")["instances"]
    listed = {instance["uuid"] for instance in instances}
    for instance in instances:
        moving = instance.get("migration_of")
        if moving is not None:
            if moving not in listed:
                yield NamedConsumer(moving, instance["name"], f"moving, migration {instance['uuid']}")
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
