"""The client of the local API for commands: the package `plimsoll`, with the agent's own errors.

It also finds instances and migrations as people name them: by uuid, by a unique beginning of it, or by
name.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import plimsoll
from agent import errors
from agent.cli.output import waiting
from agent.errors import DaemonUnreachable, PlimsollError, UnknownConsumer, UsageError
from agent.status.consumers import NamedConsumer, find_consumer, is_uuid
from plimsoll.wire import Words

if TYPE_CHECKING:
    from agent.api.shapes.host import ResourceProviderShape

INSTANCE_HELP = "the instance: its name, its uuid, or the beginning of its uuid"
MIGRATION_HELP = "the migration: its uuid, the beginning of it, or the name of its instance"
_ASKING = ("/v1/capacity", "/v1/defrag", "/v1/where", "/domain", "dry_run=true")
"""How requests end that change nothing, although they have a body."""

written: list[str] = []
"""The requests by which the agent has done something; it stays done if that cannot be shown."""


class CommandAgent(plimsoll.Agent):
    """The agent, as the sentences of the command line name what leads to it."""

    words = Words("--socket or PLIMSOLL_SOCKET", "--timeout")


class Client:
    """The agent at `socket_path`. Each request ends within `timeout_s` seconds, with or without a reply.

    While a request takes long, a terminal shows what the command waits for, unless the client is `quiet`.
    """

    def __init__(
        self, socket_path: str, timeout_s: float, *, quiet: bool = False, made_by: str = "command line"
    ) -> None:
        """`made_by` is kept with claims. Raises UsageError for a path that is longer than a socket's."""
        try:
            self._agent = CommandAgent(socket_path, timeout=timeout_s, made_by=made_by, retries=0)
        except plimsoll.InvalidRequest as error:
            raise UsageError(error.message) from error
        self._path = socket_path
        self._quiet = quiet

    def get(self, path: str) -> Any:
        """The parsed reply to GET; raises as `request` does."""
        return self.request("GET", path)

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """The parsed reply. Raises the agent's own error, or DaemonUnreachable without a usable reply.

        The detail `asked` of DaemonUnreachable is true if the agent may have executed the request.
        """
        activity = f"waiting for the agent: {method} {path.partition('?')[0]}"
        with nullcontext() if self._quiet else waiting(activity):
            try:
                answer = self._agent.request(method, path, body)
            except plimsoll.PlimsollError as error:
                if error.status:
                    raise error_of(error) from error
                details = {"asked": True, **error.details, "socket": self._path}
                raise DaemonUnreachable(error.message, **details) from error.__cause__
            if method != "GET" and not path.endswith(_ASKING):
                written.append(f"{method} {path}")
            return answer


def client_of(args: Namespace, *, quiet: bool = False, made_by: str = "command line") -> Client:
    """The client of the agent that the common options name; `made_by` as for `Client`."""
    return Client(args.socket, args.timeout, quiet=quiet, made_by=made_by)


def is_denied(error: PlimsollError) -> bool:
    """Whether this user may not open the socket: an agent may be there and answer others."""
    return isinstance(error.__cause__, PermissionError)


def claim_path(consumer: str) -> str:
    """The path of a consumer's claim."""
    return f"/v1/claims/{quote(consumer, safe='')}"


def read_providers(client: Client) -> dict[str, ResourceProviderShape]:
    """{uuid: provider}; empty where the tree cannot be read: an answer without it is better than none."""
    try:
        return {provider["uuid"]: provider for provider in client.get("/v1/tree")["resource_providers"]}
    except PlimsollError:
        return {}


def read_names(client: Client) -> dict[str, str]:
    """{uuid: name} of the providers; empty where the tree cannot be read."""
    return {uuid: provider["name"] for uuid, provider in read_providers(client).items()}


def error_of(answered: plimsoll.PlimsollError) -> PlimsollError:
    """The error that the agent answered, as the class that it raised if this program has it."""
    code = answered.code or PlimsollError.code
    kind = _KINDS.get(code) or type("AnsweredError", (PlimsollError,), {"code": code})
    error: PlimsollError = kind(answered.message)
    error.details = answered.details
    return error


_KINDS = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, PlimsollError)
}


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


def migrations_under_way(client: Client, instance: str) -> list[str]:
    """The migrations of the instance whose moves have not ended, as far as the agent knows."""
    moves = client.get("/v1/moves")["moves"]
    return [move["migration"] for move in moves if move["instance"] == instance and not move["ended"]]


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
        here = f"guest {guest['state']}" if guest else "no guest"
        claimed = f"{claim['state']} since {claim['since']}" if claim else "no claim"
        yield NamedConsumer(instance["uuid"], instance["name"], f"{here}, {claimed}")


def migrations_of(client: Client, *, look: bool = False) -> Iterable[NamedConsumer]:
    """The migrations that the agent knows: those of moves under way, then those of ended ones.

    `look`: the agent first reads what other hosts did.
    """
    path = "/v1/moves?look=true" if look else "/v1/moves"
    for move in sorted(client.get(path)["moves"], key=lambda move: bool(move["ended"])):
        yield NamedConsumer(
            move["migration"], move["name"], f"{move['kind']} of {move['instance']}, {move['state']}"
        )
