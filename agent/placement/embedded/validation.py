"""Checks of what clients send: values, the bodies and parameters of each operation, and the query string.

A `SchemaCheck` takes a value and its place, and returns the value (a float such as 3.0 as an int, as JSON
Schema defines it) or raises `Invalid` with a sentence that names the place. A claim is checked on the hot
path: this takes microseconds, a schema library takes hundreds.

Each table of an operation lists (first microversion, check), newest first; `validate` picks the entry. The
limits are the Placement API's. The provider list and the allocation candidates have the same syntax of
`resources`, `required` and `member_of`, and use the same functions.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from agent.placement.embedded import microversions as mv
from agent.placement.embedded.problems import BAD_REQUEST, RequestRefused

SchemaCheck = Callable[[Any, str], Any]

MAX_INT = 2**31 - 1
_SURROGATE = re.compile("[\ud800-\udfff]")  # valid as escapes in JSON, but not in UTF-8


class Invalid(Exception):
    """A value is invalid; the message has the place and what was expected."""


def integer(minimum: int | None = None, maximum: int | None = None) -> SchemaCheck:
    """A whole number between both limits, inclusive; 3.0 is one, true is not."""

    def check(value: Any, where: str) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise Invalid(f"{where} must be an integer, not {_shown(value)}.")
        if minimum is not None and value < minimum:
            raise Invalid(f"{where} must be at least {minimum}, not {value}.")
        if maximum is not None and value > maximum:
            raise Invalid(f"{where} must be at most {maximum}, not {value}.")
        return value

    return check


def number(maximum: float) -> SchemaCheck:
    """A finite number up to `maximum`, inclusive."""

    def check(value: Any, where: str) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise Invalid(f"{where} must be a number, not {_shown(value)}.")
        if not math.isfinite(value) or value > maximum:
            raise Invalid(f"{where} must be at most {maximum:g}, not {value}.")
        return value

    return check


def string(minimum: int = 0, maximum: int | None = None, pattern: str | None = None) -> SchemaCheck:
    """Text with `minimum` to `maximum` characters that contains a match of `pattern`, without surrogates."""
    match = re.compile(pattern).search if pattern else None

    def check(value: Any, where: str) -> str:
        if not isinstance(value, str):
            raise Invalid(f"{where} must be a string, not {_shown(value)}.")
        if len(value) < minimum or (maximum is not None and len(value) > maximum):
            raise Invalid(f"{where} must have {minimum} to {maximum} characters, not {len(value)}.")
        if match is not None and not match(value):
            raise Invalid(f"{where} must match {pattern}, which {value!r} does not.")
        if not value.isascii() and _SURROGATE.search(value):
            raise Invalid(f"{where} has half a character in it (a lone surrogate): {_shown(value)}.")
        return value

    return check


def truth(value: Any, where: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise Invalid(f"{where} must be true or false, not {_shown(value)}.")
    return value


def nullable(inner: SchemaCheck) -> SchemaCheck:
    """None, or a value that passes `inner`."""
    return lambda value, where: None if value is None else inner(value, where)


def array(items: SchemaCheck, minimum: int = 0, unique: bool = False) -> SchemaCheck:
    """At least `minimum` items that each pass `items`; `unique`: no two of them equal."""

    def check(value: Any, where: str) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise Invalid(f"{where} must be an array, not {_shown(value)}.")
        if len(value) < minimum:
            raise Invalid(f"{where} must have {minimum} or more items.")
        checked = [items(item, f"{where}[{index}]") for index, item in enumerate(value)]
        if unique and len(set(checked)) != len(checked):
            raise Invalid(f"{where} must not name anything twice.")
        return checked

    return check


def record(
    required: Mapping[str, SchemaCheck],
    optional: Mapping[str, SchemaCheck] | None = None,
    *,
    ignores_others: bool = False,
) -> SchemaCheck:
    """An object with all of the `required` keys, and no others but the `optional` ones.

    `ignores_others`: the others are left out.
    """
    known = {**required, **(optional or {})}

    def check(value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise Invalid(f"{where} must be an object, not {_shown(value)}.")
        checked: dict[str, Any] = {}
        for key, item in value.items():
            inner = known.get(key)
            if inner is None and ignores_others:
                continue
            if inner is None:
                raise Invalid(f"{where} has {key!r}, which is not known here.")
            checked[key] = inner(item, f"{where}.{key}")
        for key in required:
            if key not in checked:
                raise Invalid(f"{where} needs {key!r}.")
        return checked

    return check


def mapping(key_pattern: str, items: SchemaCheck, minimum: int = 0) -> SchemaCheck:
    """At least `minimum` keys, all of which match `key_pattern`, with values that pass `items`."""
    match = re.compile(key_pattern).search

    def check(value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise Invalid(f"{where} must be an object, not {_shown(value)}.")
        if len(value) < minimum:
            raise Invalid(f"{where} must not be empty.")
        checked: dict[str, Any] = {}
        for key, item in value.items():
            if not isinstance(key, str) or not match(key):
                raise Invalid(f"{where} has the key {_shown(key)}, which does not match {key_pattern}.")
            checked[key] = items(item, f"{where}.{key}")
        return checked

    return check


def loose_uuid(value: Any, where: str) -> str:
    """A UUID in any form: with or without dashes, braces and urn prefix, in upper or lower case."""
    if not isinstance(value, str) or not is_loose_uuid(value):
        raise Invalid(f"{where} must be a UUID, not {_shown(value)}.")
    return value


def dashed_uuid(value: Any, where: str) -> str:
    """A UUID with dashes, as query parameters require."""
    if is_loose_uuid(value) and all(value[index : index + 1] == "-" for index in (8, 13, 18, 23)):
        return str(value)
    raise Invalid(f"{where} must be a UUID with dashes, not {_shown(value)}.")


def is_loose_uuid(value: Any) -> bool:
    """Whether Placement accepts the value as a UUID: dashes, braces and "urn:uuid:" are optional."""
    if not isinstance(value, str):
        return False
    digits = value.replace("urn:", "").replace("uuid:", "").strip("{}").replace("-", "").lower()
    try:
        return uuid.UUID(value).hex == digits
    except ValueError:
        return False


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."


Versions = tuple[tuple[int, SchemaCheck], ...]

MAX_FLOAT = 3.40282e38

CLASS_NAME = r"^[A-Z0-9_]+\Z"
CUSTOM_NAME = r"^CUSTOM_[A-Z0-9_]+\Z"
UUID_KEY = r"^[0-9a-fA-F-]{36}\Z"

_identity = string(1, 255)
_custom_name = string(1, 255, CUSTOM_NAME)

# -- resource providers --

_provider = {"name": string(0, 200)}
_parent = {"parent_provider_uuid": nullable(loose_uuid)}

POST_PROVIDER: Versions = (
    (mv.NESTED_PROVIDERS, record(_provider, {"uuid": loose_uuid, **_parent})),
    (mv.MIN, record(_provider, {"uuid": loose_uuid})),
)
PUT_PROVIDER: Versions = (
    (mv.NESTED_PROVIDERS, record(_provider, _parent)),
    (mv.MIN, record(_provider)),
)

_list = {"name": string(), "uuid": dashed_uuid}
_list_1_3 = {**_list, "member_of": string()}
_list_1_4 = {**_list_1_3, "resources": string()}
_list_1_14 = {**_list_1_4, "in_tree": dashed_uuid}
LIST_PROVIDERS: Versions = (
    (mv.LIST_REQUIRED, record({}, {**_list_1_14, "required": string()})),
    (mv.NESTED_PROVIDERS, record({}, _list_1_14)),
    (mv.LIST_RESOURCES, record({}, _list_1_4)),
    (mv.LIST_MEMBER_OF, record({}, _list_1_3)),
    (mv.MIN, record({}, _list)),
)

# -- inventories --

_generation = {"resource_provider_generation": integer()}
_total = {"total": integer(1, MAX_INT)}
_limits = {
    "reserved": integer(0, MAX_INT),
    "min_unit": integer(1, MAX_INT),
    "max_unit": integer(1, MAX_INT),
    "step_size": integer(1, MAX_INT),
    "allocation_ratio": number(MAX_FLOAT),
}
_inventory = record(_total, {**_limits, **_generation})

POST_INVENTORY: Versions = (
    (mv.MIN, record({**_total, "resource_class": string(0, None, CLASS_NAME)}, {**_limits, **_generation})),
)
PUT_INVENTORY: Versions = ((mv.MIN, record({**_total, **_generation}, _limits)),)
# A malformed class name is refused with 400, as an unknown one is.
_inventories = record({**_generation, "inventories": mapping(CLASS_NAME, _inventory)})
PUT_INVENTORIES: Versions = ((mv.MIN, _inventories),)

# -- aggregates, traits, resource classes --

_aggregates = array(loose_uuid, unique=True)
PUT_AGGREGATES: Versions = (
    (mv.AGGREGATES_GENERATION, record({"aggregates": _aggregates, **_generation})),
    (mv.MIN, _aggregates),
)
PUT_PROVIDER_TRAITS: Versions = ((mv.MIN, record({"traits": array(string(1, 255)), **_generation})),)
CUSTOM_TRAIT: Versions = ((mv.MIN, _custom_name),)
CUSTOM_CLASS: Versions = ((mv.MIN, record({"name": string(1, 255, CUSTOM_NAME)})),)
LIST_TRAITS: Versions = ((mv.MIN, record({}, {"name": string(), "associated": string()})),)

# -- allocations --

_resources = mapping(CLASS_NAME, integer(1), minimum=1)
_project_and_user = {"project_id": _identity, "user_id": _identity}
_allocation_list = array(
    record({"resource_provider": record({"uuid": loose_uuid}), "resources": _resources}), minimum=1
)
_allocation = record({"resources": _resources}, {"generation": integer()})
_allocations = mapping(UUID_KEY, _allocation)
_with_generation = {
    "allocations": _allocations,
    **_project_and_user,
    "consumer_generation": nullable(integer()),
}


def _mappings_check(value: Any, where: str) -> Any:
    """Check {suffix: [uuid, ...]}; keys that contain no character of a suffix are not checked."""
    if not isinstance(value, Mapping) or not value:
        raise Invalid(f"{where} must be an object that is not empty.")
    for key, providers in value.items():
        # The API's pattern is not anchored: a key with one allowed character counts as a suffix.
        if isinstance(key, str) and any(c.isascii() and (c.isalnum() or c in "_-") for c in key):
            _mapping_items(providers, f"{where}.{key}")
    return value


_mapping_items = array(loose_uuid, minimum=1)


_with_mappings = {"mappings": _mappings_check}
_with_type = {**_with_generation, "consumer_type": string(1, 255, CLASS_NAME)}

_consumer_1_13 = record({"allocations": _allocations, **_project_and_user})
_consumer_1_28 = record(_with_generation)
_consumer_1_34 = record(_with_generation, _with_mappings)
_consumer_1_38 = record(_with_type, _with_mappings)

PUT_ALLOCATIONS: Versions = (
    (mv.CONSUMER_TYPES, _consumer_1_38),
    (mv.MAPPINGS, _consumer_1_34),
    (mv.CONSUMER_GENERATION, _consumer_1_28),
    (
        mv.ALLOCATIONS_BY_PROVIDER,
        record({"allocations": mapping(UUID_KEY, _allocation, minimum=1), **_project_and_user}),
    ),
    (mv.PROJECT_AND_USER, record({"allocations": _allocation_list, **_project_and_user})),
    (mv.MIN, record({"allocations": _allocation_list})),
)
POST_ALLOCATIONS: Versions = (
    (mv.CONSUMER_TYPES, mapping(UUID_KEY, _consumer_1_38, minimum=1)),
    (mv.MAPPINGS, mapping(UUID_KEY, _consumer_1_34, minimum=1)),
    (mv.CONSUMER_GENERATION, mapping(UUID_KEY, _consumer_1_28, minimum=1)),
    (mv.MIN, mapping(UUID_KEY, _consumer_1_13, minimum=1)),
)


def _reshaper(consumer: SchemaCheck) -> SchemaCheck:
    return record(
        {
            "inventories": mapping(UUID_KEY, _inventories, minimum=1),
            "allocations": mapping(UUID_KEY, consumer),
        }
    )


POST_RESHAPER: Versions = (
    (mv.CONSUMER_TYPES, _reshaper(_consumer_1_38)),
    (mv.MAPPINGS, _reshaper(_consumer_1_34)),
    (mv.MIN, _reshaper(_consumer_1_28)),
)

# -- notes of the hosts' agents: other keys are those of a newer agent --

_amounts = mapping(r"^", integer(0, MAX_INT))
_move = record({name: string(0, 255) for name in ("instance", "name", "kind", "role", "state")})
PUT_NOTE: Versions = (
    (
        mv.MIN,
        record(
            {"state": string(1, 32), "version": string(1, 64)},
            {
                "reasons": array(string()),
                "closed": nullable(string()),
                "reshape": nullable(string()),
                "drains": truth,
                "schedulers": truth,
                "findings": _amounts,
                "moves": array(_move),
                "cordons": array(string()),
                "withheld": _amounts,
                "stranded": _amounts,
                "left_out": integer(0, MAX_INT),
            },
            ignores_others=True,
        ),
    ),
)

# -- usages --

_usages = {"user_id": _identity}
# The API's pattern does not anchor the end of "all": longer words are types without consumers.
_type_filter = {"consumer_type": string(1, 255, r"^[A-Z0-9_]+\Z|^all|^unknown\Z")}
GET_USAGES: Versions = (
    (mv.CONSUMER_TYPES, record({"project_id": _identity}, {**_usages, **_type_filter})),
    (mv.MIN, record({"project_id": _identity}, _usages)),
)


def validate(versions: Versions, minor: int, value: Any, where: str) -> Any:
    """`value`, as the newest entry up to microversion `minor` returns it.

    Raises RequestRefused (400) with the place and what was expected.
    """
    for since, check in versions:
        if minor >= since:
            try:
                return check(value, where)
            except Invalid as error:
                raise RequestRefused(BAD_REQUEST, str(error)) from None
    raise AssertionError("every table of versions ends with the oldest one")


class Query:
    """The parameters in their order in the query string; a parameter may occur more than once."""

    def __init__(self, text: str) -> None:
        """Parse `text`. Raises RequestRefused (400) where the decoded text is not UTF-8."""
        try:
            self.pairs = parse_qsl(text, keep_blank_values=True, errors="strict") if text else []
        except ValueError as error:
            raise RequestRefused(BAD_REQUEST, f"The query string cannot be read: {error}.") from None

    def of(self, pairs: list[tuple[str, str]]) -> Query:
        """A query of these of the parameters."""
        query = Query("")
        query.pairs = pairs
        return query

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
            if minor < mv.ANY_TRAITS:
                raise RequestRefused(
                    BAD_REQUEST, f"required takes in:TRAIT,... from 1.{mv.ANY_TRAITS} on: {value!r}."
                )
            names = frozenset(part.strip() for part in value[3:].split(","))
            if any(not name or name.startswith("!") for name in names):
                raise RequestRefused(
                    BAD_REQUEST, f"in:TRAIT,... takes names alone, none empty and none with a !: {value!r}."
                )
            required.append(names)
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
        for given in uuids:
            if not is_loose_uuid(given):
                raise RequestRefused(BAD_REQUEST, f"{parameter} must hold UUIDs; {given!r} is none.")
        if bare is value:
            required.append(frozenset(uuids))
        elif minor < mv.FORBIDDEN_AGGREGATES:
            raise RequestRefused(
                BAD_REQUEST, f"{parameter} takes !UUID from 1.{mv.FORBIDDEN_AGGREGATES} on: {value!r}."
            )
        else:
            forbidden.update(uuids)
    return AggregateFilter(tuple(required), frozenset(forbidden))
