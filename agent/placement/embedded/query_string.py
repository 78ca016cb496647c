"""The query string: its parameters, and the syntax of `resources`, `required` and `member_of`.

The provider list and the allocation candidates have the same syntax and use the same functions.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import parse_qsl

from agent.placement.embedded import microversions as mv
from agent.placement.embedded.problems import BAD_REQUEST, RequestRefused
from agent.placement.embedded.validation import is_loose_uuid


class Query:
    """The parameters in their order in the query string; a parameter may occur more than once."""

    def __init__(self, text: str) -> None:
        """Parse `text`. Raises RequestRefused (400) where the decoded text is not UTF-8."""
        try:
            self.pairs = parse_qsl(text, keep_blank_values=True, errors="strict") if text else []
        except ValueError as error:
            raise RequestRefused(BAD_REQUEST, f"The query string cannot be read: {error}.") from None

    def __contains__(self, name: str) -> bool:
        return any(key == name for key, _ in self.pairs)

    def get(self, name: str) -> str | None:
        """The last value of the parameter `name`."""
        values = self.all(name)
        return values[-1] if values else None

    def all(self, name: str) -> list[str]:
        """All values of the parameter `name`."""
        return [value for key, value in self.pairs if key == name]

    def as_dict(self) -> dict[str, str]:
        """Each parameter with its last value."""
        return dict(self.pairs)


class TraitFilter(NamedTuple):
    """A condition on traits: one trait of each set in `required`, and no trait in `forbidden`."""

    required: tuple[frozenset[str], ...] = ()
    forbidden: frozenset[str] = frozenset()

    @property
    def names(self) -> set[str]:
        """All traits that the filter mentions."""
        return set().union(self.forbidden, *self.required)

    def admits(self, traits: frozenset[str]) -> bool:
        """Whether these traits meet the condition."""
        return not (self.forbidden & traits) and all(any_of & traits for any_of in self.required)


class AggregateFilter(NamedTuple):
    """A condition on aggregates: one of each set in `required`, and none in `forbidden`."""

    required: tuple[frozenset[str], ...] = ()
    forbidden: frozenset[str] = frozenset()

    def admits(self, aggregates: frozenset[str]) -> bool:
        """Whether these aggregates meet the condition."""
        return not (self.forbidden & aggregates) and all(any_of & aggregates for any_of in self.required)


def parse_resources(value: str) -> dict[str, int]:
    """`VCPU:2,MEMORY_MB:1024` as {class: amount}. Raises RequestRefused (400) for other text."""
    amounts: dict[str, int] = {}
    for part in value.split(","):
        name, colon, text = part.partition(":")
        try:
            amount = int(text)
        except ValueError:
            amount = 0
        if not colon or amount < 1:
            raise RequestRefused(
                BAD_REQUEST, f"resources must be CLASS:AMOUNT,..., amounts from 1 on; got {part!r}."
            )
        amounts[name] = amount
    return amounts


def parse_required(values: list[str], minor: int) -> TraitFilter:
    """The filter of all values of one `required` parameter: `A,!B`, or from 1.39 on also `in:A,B`, repeated.

    Raises RequestRefused (400) for other text.
    """
    if minor < mv.ANY_TRAITS:
        values = values[-1:]
    required: list[frozenset[str]] = []
    forbidden: set[str] = set()
    for value in values:
        if value.startswith("in:"):
            required.append(_any_of(value, minor))
            continue
        for name in (part.strip() for part in value.split(",")):
            bare = name.lstrip("!")
            if not bare:
                raise RequestRefused(
                    BAD_REQUEST, f"required must be TRAIT,!TRAIT,...; an empty name in {value!r}."
                )
            if bare != name and minor < mv.FORBIDDEN_TRAITS:
                raise RequestRefused(
                    BAD_REQUEST, f"required takes !TRAIT from 1.{mv.FORBIDDEN_TRAITS} on: {value!r}."
                )
            if bare != name:
                forbidden.add(bare)
            else:
                required.append(frozenset((name,)))
    return TraitFilter(tuple(required), frozenset(forbidden))


def _any_of(value: str, minor: int) -> frozenset[str]:
    if minor < mv.ANY_TRAITS:
        raise RequestRefused(
            BAD_REQUEST, f"required takes in:TRAIT,... from 1.{mv.ANY_TRAITS} on: {value!r}."
        )
    names = frozenset(part.strip() for part in value[3:].split(","))
    if any(not name or name.startswith("!") for name in names):
        raise RequestRefused(
            BAD_REQUEST, f"in:TRAIT,... takes names alone, none empty and none with a !: {value!r}."
        )
    return names


def parse_member_of(values: list[str], minor: int, parameter: str = "member_of") -> AggregateFilter:
    """The filter of all values of one `member_of` parameter: `UUID`, `in:UUID,UUID`, and `!` before them.

    The `!` is allowed from 1.32 on. Raises RequestRefused (400) for other text.
    """
    if len(values) > 1 and minor < mv.REPEATED_MEMBER_OF:
        raise RequestRefused(BAD_REQUEST, f"{parameter} may be given once, before 1.{mv.REPEATED_MEMBER_OF}.")
    required: list[frozenset[str]] = []
    forbidden: set[str] = set()
    for value in values:
        bare = value[1:] if value.startswith("!") else value
        several = bare.startswith("in:")
        if "," in value and not several:
            raise RequestRefused(
                BAD_REQUEST, f"{parameter} takes several UUIDs as in:UUID,UUID; got {value!r}."
            )
        uuids = bare[3:].split(",") if several else [bare]
        for uuid in uuids:
            if not is_loose_uuid(uuid):
                raise RequestRefused(BAD_REQUEST, f"{parameter} must hold UUIDs; {uuid!r} is none.")
        if bare is value:
            required.append(frozenset(uuids))
        elif minor < mv.FORBIDDEN_AGGREGATES:
            raise RequestRefused(
                BAD_REQUEST, f"{parameter} takes !UUID from 1.{mv.FORBIDDEN_AGGREGATES} on: {value!r}."
            )
        else:
            forbidden.update(uuids)
    return AggregateFilter(tuple(required), frozenset(forbidden))
