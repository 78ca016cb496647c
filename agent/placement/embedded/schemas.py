"""The bodies and query parameters of each operation, by microversion.

Each table lists (first microversion, check), newest first; `validate` picks the entry. The limits are the
Placement API's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent.placement.embedded import microversions as mv
from agent.placement.embedded.problems import BAD_REQUEST, RequestRefused
from agent.placement.embedded.validation import (
    MAX_INT,
    Invalid,
    SchemaCheck,
    array,
    dashed_uuid,
    integer,
    loose_uuid,
    mapping,
    nullable,
    number,
    record,
    string,
)

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
        if _has_suffix(key):
            _mapping_items(providers, f"{where}.{key}")
    return value


_mapping_items = array(loose_uuid, minimum=1)


def _has_suffix(key: Any) -> bool:
    return isinstance(key, str) and any(c.isascii() and (c.isalnum() or c in "_-") for c in key)


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
