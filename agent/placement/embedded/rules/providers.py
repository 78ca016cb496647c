"""The rules of resource providers: create, rename, re-parent and delete, and their traits and aggregates."""

from __future__ import annotations

from collections.abc import Iterable

from agent.placement.embedded.draft import CoreState, Draft
from agent.placement.embedded.problems import (
    BAD_REQUEST,
    CONCURRENT_UPDATE,
    DUPLICATE_NAME,
    NOT_FOUND,
    PROVIDER_HAS_CHILDREN,
    PROVIDER_IN_USE,
    RequestRefused,
)
from agent.placement.embedded.records import ProviderRecord


def get(state: CoreState, uuid: str) -> ProviderRecord:
    """The provider. Raises RequestRefused (404) where it does not exist."""
    provider = state.provider(uuid)
    if provider is None:
        raise RequestRefused(NOT_FOUND, f"No resource provider with uuid {uuid} found.")
    return provider


def get_at_generation(state: CoreState, uuid: str, generation: int | None) -> ProviderRecord:
    """The provider, if it has the generation that the client read; `generation` None is not checked.

    Raises RequestRefused: 404, 409 "concurrent update".
    """
    provider = get(state, uuid)
    if generation is not None and provider.generation != generation:
        raise RequestRefused(
            CONCURRENT_UPDATE,
            f"resource provider generation conflict for {uuid}: it is at {provider.generation}, "
            f"the request at {generation}.",
        )
    return provider


def create(draft: Draft, uuid: str, name: str, parent_uuid: str | None) -> ProviderRecord:
    """Create a provider without contents.

    Raises RequestRefused: 400 for an invalid parent or an empty name, 409 where the name or the uuid exists.
    """
    if not name:
        raise RequestRefused(BAD_REQUEST, f"Unable to create resource provider {uuid}: its name is empty.")
    if parent_uuid == uuid:
        raise RequestRefused(BAD_REQUEST, f"Resource provider {uuid} cannot be its own parent.")
    root_uuid = uuid if parent_uuid is None else _parent(draft, uuid, parent_uuid).root_uuid
    if draft.provider(uuid) is not None:
        raise RequestRefused(DUPLICATE_NAME, f"Conflicting resource provider uuid: {uuid} already exists.")
    _check_name_free(draft, uuid, name)
    provider = ProviderRecord(
        uuid=uuid,
        name=name,
        generation=0,
        parent_uuid=parent_uuid,
        root_uuid=root_uuid,
        inventories={},
        traits=frozenset(),
        aggregates=frozenset(),
        updated_at=draft.now,
    )
    draft.put_provider(provider)
    return provider


def update(
    draft: Draft, uuid: str, name: str, parent_uuid: str | None, *, may_reparent: bool
) -> ProviderRecord:
    """Rename the provider, and move it under `parent_uuid` (None: make it a root). The generation stays.

    Without `may_reparent` (before 1.37) only a root may get a parent.

    Raises RequestRefused: 404, 400 for an invalid parent, 409 where the name exists.
    """
    provider = get(draft, uuid)
    if parent_uuid != provider.parent_uuid and provider.parent_uuid is not None and not may_reparent:
        if parent_uuid is not None:
            _parent(draft, uuid, parent_uuid)
        raise RequestRefused(
            BAD_REQUEST, f"Unable to move resource provider {uuid}: this microversion does not."
        )
    root_uuid = uuid if parent_uuid is None else _parent(draft, uuid, parent_uuid).root_uuid
    subtree = _subtree(draft, provider)
    if any(member.uuid == parent_uuid for member in subtree):
        raise RequestRefused(
            BAD_REQUEST, f"Unable to hang {uuid} under {parent_uuid}: creating a loop in the tree."
        )
    _check_name_free(draft, uuid, name)
    if root_uuid != provider.root_uuid:
        for member in subtree:
            draft.put_provider(member._replace(root_uuid=root_uuid, updated_at=draft.now))
    provider = provider._replace(
        name=name, parent_uuid=parent_uuid, root_uuid=root_uuid, updated_at=draft.now
    )
    draft.put_provider(provider)
    return provider


def delete(draft: Draft, uuid: str) -> None:
    """Delete the provider. Raises RequestRefused: 404, 409 where it has children or allocations."""
    provider = get(draft, uuid)
    if draft.children_of(uuid):
        raise RequestRefused(
            PROVIDER_HAS_CHILDREN, f"Resource provider {uuid} has children; delete them first."
        )
    if any(draft.used(uuid, resource_class) for resource_class in provider.inventories):
        raise RequestRefused(
            PROVIDER_IN_USE, f"Unable to delete resource provider {uuid}: it has allocations."
        )
    draft.drop_provider(uuid)


def set_traits(draft: Draft, uuid: str, generation: int | None, traits: Iterable[str]) -> ProviderRecord:
    """Replace the traits; the generation rises only if the set changes.

    Raises RequestRefused: 404, 409 for another generation, 400 for an unknown trait.
    """
    provider = get_at_generation(draft, uuid, generation)
    wanted = frozenset(traits)
    unknown = sorted(name for name in wanted if not draft.has_trait(name))
    if unknown:
        raise RequestRefused(BAD_REQUEST, f"No such trait {', '.join(unknown)}.")
    if wanted != provider.traits:
        provider = provider.at_next_generation(draft.now)._replace(traits=wanted)
        draft.put_provider(provider)
    return provider


def set_aggregates(
    draft: Draft, uuid: str, generation: int | None, aggregates: Iterable[str], *, raises_generation: bool
) -> ProviderRecord:
    """Replace the aggregates; the generation rises if `raises_generation`.

    Raises RequestRefused: 404, 409 for another generation.
    """
    provider = get_at_generation(draft, uuid, generation)._replace(aggregates=frozenset(aggregates))
    if raises_generation:
        provider = provider.at_next_generation(draft.now)
    draft.put_provider(provider)
    return provider


def _parent(draft: Draft, uuid: str, parent_uuid: str) -> ProviderRecord:
    parent = draft.provider(parent_uuid)
    if parent is None:
        raise RequestRefused(
            BAD_REQUEST, f"The parent {parent_uuid} of resource provider {uuid} does not exist."
        )
    return parent


def _check_name_free(draft: Draft, uuid: str, name: str) -> None:
    holder = draft.provider_named(name)
    if holder is not None and holder.uuid != uuid:
        raise RequestRefused(DUPLICATE_NAME, f"Conflicting resource provider name: {name} already exists.")


def _subtree(draft: Draft, provider: ProviderRecord) -> list[ProviderRecord]:
    """The provider and its descendants."""
    members = [provider]
    for member in members:  # the loop extends the list
        members.extend(draft.children_of(member.uuid))
    return members
