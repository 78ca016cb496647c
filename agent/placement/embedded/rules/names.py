"""The rules of traits and resource classes: custom ones are created and deleted, standard ones stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from agent.placement.embedded.draft import Draft
from agent.placement.embedded.problems import BAD_REQUEST, CONFLICT, NOT_FOUND, RequestRefused

V = TypeVar("V")

CUSTOM = "CUSTOM_"


def ensure_trait(draft: Draft, name: str) -> bool:
    """Create the custom trait if it does not exist; whether it was created."""
    if draft.has_trait(name):
        return False
    draft.put_trait(name)
    return True


def delete_trait(draft: Draft, name: str) -> None:
    """Delete the trait.

    Raises RequestRefused: 404, 400 for a standard one, 409 where it is in use.
    """
    if not draft.has_trait(name):
        raise RequestRefused(NOT_FOUND, f"No such trait(s): {name}.")
    if not name.startswith(CUSTOM):
        raise RequestRefused(BAD_REQUEST, f"{name} is a standard trait and cannot be deleted.")
    if draft.providers_with_trait(name):
        raise RequestRefused(CONFLICT, f"The trait {name} is in use by a resource provider.")
    draft.drop_trait(name)


def create_class(draft: Draft, name: str) -> None:
    """Create the custom resource class. Raises RequestRefused (409) where it exists."""
    if draft.has_resource_class(name):
        raise RequestRefused(CONFLICT, f"Conflicting resource class already exists: {name}.")
    draft.put_resource_class(name)


def ensure_class(draft: Draft, name: str) -> bool:
    """Create the custom resource class if it does not exist; whether it was created."""
    if draft.has_resource_class(name):
        return False
    draft.put_resource_class(name)
    return True


def delete_class(draft: Draft, name: str) -> None:
    """Delete the resource class.

    Raises RequestRefused: 404, 400 for a standard one, 409 where it is in use.
    """
    _check_custom(draft, name)
    if draft.providers_with_class(name):
        raise RequestRefused(CONFLICT, f"The resource class {name} is in use in an inventory.")
    draft.drop_resource_class(name)


def rename_class(draft: Draft, name: str, new_name: str) -> None:
    """Rename the custom resource class, also in all inventories and allocations (up to microversion 1.6).

    Raises RequestRefused: 404, 400 for a standard one, 409 where the new name exists.
    """
    _check_custom(draft, name)
    if new_name == name:
        return
    if draft.has_resource_class(new_name):
        raise RequestRefused(CONFLICT, f"Resource class already exists: {new_name}.")
    for provider in draft.providers_with_class(name):
        for consumer in draft.consumers_of(provider.uuid):
            allocations = {
                uuid: _renamed(amounts, name, new_name) for uuid, amounts in consumer.allocations.items()
            }
            draft.put_consumer(consumer.uuid, consumer._replace(allocations=allocations))
        inventories = _renamed(provider.inventories, name, new_name)
        draft.put_provider(provider._replace(inventories=inventories))
    draft.drop_resource_class(name)
    draft.put_resource_class(new_name)


def _check_custom(draft: Draft, name: str) -> None:
    if not draft.has_resource_class(name):
        raise RequestRefused(NOT_FOUND, f"No such resource class {name}.")
    if not name.startswith(CUSTOM):
        raise RequestRefused(BAD_REQUEST, f"{name} is a standard resource class and stays as it is.")


def _renamed(values: Mapping[str, V], name: str, new_name: str) -> dict[str, V]:
    return {new_name if key == name else key: value for key, value in values.items()}
