"""Instances and migrations as people name them: by uuid, by a unique beginning of it, or by name. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from agent.errors import UnknownConsumer, UsageError

if TYPE_CHECKING:
    from agent.status.overview import Overview

PREFIX_MIN = 4
"""A shorter beginning of a uuid is too easily that of another instance tomorrow."""
NEAR_MAX = 3

_UUID = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
_PREFIX = re.compile(r"[0-9a-f-]+", re.ASCII | re.IGNORECASE)


class NamedConsumer(NamedTuple):
    """An instance or a migration. `about` tells it apart from others of its name."""

    uuid: str
    name: str
    about: str


def is_uuid(text: str) -> bool:
    """Whether the text is a whole uuid, with or without hyphens."""
    return _UUID.fullmatch(text) is not None


def matching(text: str, known: Iterable[NamedConsumer]) -> list[NamedConsumer]:
    """The consumers of that name; where there is none, those whose uuid begins with the text."""
    wanted, known = text.strip(), list(known)
    if not wanted:
        return []
    named = [consumer for consumer in known if consumer.name == wanted]
    if named or len(wanted) < PREFIX_MIN or not _PREFIX.fullmatch(wanted):
        return named
    return [consumer for consumer in known if consumer.uuid.startswith(wanted.lower())]


def find_consumer(text: str, kind: str, known: Sequence[NamedConsumer], listing: str) -> str:
    """The uuid of the one consumer that `text` names.

    `kind` is what to call it, `listing` the command that lists such. Raises UsageError for an empty text, and
    where several match; UnknownConsumer, with similar names in `near`, where none does.
    """
    wanted = text.strip()
    if not wanted:
        raise UsageError(
            f"the {kind} is an empty text: give its uuid, the beginning of its uuid, or its name"
        )
    found = matching(wanted, known)
    if len(found) == 1:
        return found[0].uuid
    if found:
        listed = "; ".join(f"{consumer.uuid} ({consumer.about})" for consumer in found)
        kinds = " or ".join(f"{each}s" for each in kind.split(" or "))
        raise UsageError(f"{wanted!r} names {len(found)} {kinds}, give the uuid of one: {listed}")
    from difflib import get_close_matches

    names = dict.fromkeys(consumer.name for consumer in known if consumer.name)  # several may have one name
    near = get_close_matches(wanted, names, n=NEAR_MAX)
    hint = f"did you mean {' or '.join(near)}?" if near else f"`{listing}` lists those that there are"
    if len(wanted) < PREFIX_MIN and any(each.uuid.startswith(wanted.lower()) for each in known):
        hint += f"; of a uuid, give {PREFIX_MIN} characters or more"
    raise UnknownConsumer(f"this host has no {kind} {wanted!r}: {hint}", asked=wanted, near=near)


def consumers_of(overview: Overview) -> Iterator[NamedConsumer]:
    """The instances and migrations that the agent knows; a migration has no name, but its instance has."""
    migrations = {move.migration: move for move in overview.moves}
    for move in migrations.values():
        yield NamedConsumer(move.migration, "", f"{move.kind} of {move.instance}, {move.state}")
    claims, guests = overview.claims, overview.guest_by_uuid
    moving = {move.instance for move in overview.moves}
    for uuid in sorted({*claims, *guests, *overview.others, *moving} - migrations.keys()):
        guest, claim = guests.get(uuid), claims.get(uuid)
        about = f"{f'guest {guest.state}' if guest else 'no guest'}, {claim.state if claim else 'no claim'}"
        yield NamedConsumer(uuid, overview.name_of(uuid), about)
