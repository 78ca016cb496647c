"""The rules of writes: pure functions that change a `Draft` or raise `RequestRefused`.

They do no I/O, and of HTTP they use only the table of problems (problems.py). An inventory may shrink below
its use, but is not removed while in use. A write of allocations replaces all of its consumers: their old
allocations are removed before the new ones are checked, so that two consumers can swap on a full host.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from agent.placement.embedded.model import ConsumerRecord, CoreState, Draft, InventoryRecord, ProviderRecord
from agent.placement.embedded.problems import (
    BAD_REQUEST,
    CONCURRENT_UPDATE,
    CONFLICT,
    DUPLICATE_NAME,
    FORBIDDEN,
    INVENTORY_IN_USE,
    NOT_FOUND,
    PROVIDER_HAS_CHILDREN,
    PROVIDER_IN_USE,
    PROVIDER_NOT_FOUND,
    ProblemType,
    RequestRefused,
)
from agent.placement.embedded.validation import MAX_INT, is_loose_uuid


def get_provider(state: CoreState, uuid: str) -> ProviderRecord:
    """The provider. Raises RequestRefused (404) where it does not exist."""
    provider = state.provider(uuid)
    if provider is None:
        raise RequestRefused(NOT_FOUND, f"No resource provider with uuid {uuid} found.")
    return provider


def get_provider_at(state: CoreState, uuid: str, generation: int | None) -> ProviderRecord:
    """The provider, if it has the generation that the client read; `generation` None is not checked.

    Raises RequestRefused: 404, 409 "concurrent update".
    """
    provider = get_provider(state, uuid)
    if generation is not None and provider.generation != generation:
        raise RequestRefused(
            CONCURRENT_UPDATE,
            f"resource provider generation conflict for {uuid}: it is at {provider.generation}, "
            f"the request at {generation}.",
        )
    return provider


def create_provider(draft: Draft, uuid: str, name: str, parent_uuid: str | None) -> ProviderRecord:
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


def update_provider(
    draft: Draft, uuid: str, name: str, parent_uuid: str | None, *, may_reparent: bool
) -> ProviderRecord:
    """Rename the provider, and move it under `parent_uuid` (None: make it a root). The generation stays.

    Without `may_reparent` (before 1.37) only a root may get a parent.

    Raises RequestRefused: 404, 400 for an invalid parent, 409 where the name exists.
    """
    provider = get_provider(draft, uuid)
    if parent_uuid != provider.parent_uuid and provider.parent_uuid is not None and not may_reparent:
        if parent_uuid is not None:
            _parent(draft, uuid, parent_uuid)
        raise RequestRefused(
            BAD_REQUEST, f"Unable to move resource provider {uuid}: this microversion does not."
        )
    root_uuid = uuid if parent_uuid is None else _parent(draft, uuid, parent_uuid).root_uuid
    subtree = [provider]
    for member in subtree:  # the loop extends the list by the descendants
        subtree.extend(draft.children_of(member.uuid))
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


def delete_provider(draft: Draft, uuid: str) -> None:
    """Delete the provider. Raises RequestRefused: 404, 409 where it has children or allocations."""
    provider = get_provider(draft, uuid)
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
    provider = get_provider_at(draft, uuid, generation)
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
    provider = get_provider_at(draft, uuid, generation)._replace(aggregates=frozenset(aggregates))
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


InventoryRecords = Mapping[str, InventoryRecord]


def inventory_of(body: Mapping[str, Any], now: float) -> InventoryRecord:
    """The inventory in a valid body, with the defaults of the API for missing fields."""
    return InventoryRecord(
        total=body["total"],
        reserved=body.get("reserved", 0),
        min_unit=body.get("min_unit", 1),
        max_unit=body.get("max_unit", MAX_INT),
        step_size=body.get("step_size", 1),
        allocation_ratio=float(body.get("allocation_ratio", 1.0)),
        updated_at=now,
    )


def check_capacity(uuid: str, inventories: InventoryRecords, *, may_be_zero: bool) -> None:
    """Refuse inventories with a negative capacity, or (before 1.26) with none.

    Raises RequestRefused (400).
    """
    for resource_class, inventory in inventories.items():
        exact = inventory.capacity
        capacity = int(exact) if math.isfinite(exact) else exact
        if not math.isfinite(exact) or capacity < 0 or (capacity == 0 and not may_be_zero):
            raise RequestRefused(
                BAD_REQUEST,
                f"Invalid inventory for '{resource_class}' on resource provider '{uuid}': "
                f"total {inventory.total} less reserved {inventory.reserved} leaves {capacity}.",
            )


def put_inventories(
    draft: Draft, uuid: str, generation: int | None, inventories: InventoryRecords
) -> ProviderRecord:
    """Replace all inventories of the provider; `generation` None is not checked.

    Raises RequestRefused: 404, 409 for another generation, 400 for an unknown class, 409 where a removed
    class is in use.
    """
    provider = get_provider_at(draft, uuid, generation)
    check_known(draft, inventories)
    check_unused(draft, provider, provider.inventories.keys() - inventories.keys(), INVENTORY_IN_USE)
    return _put_inventories(draft, provider, inventories)


def add_inventory(draft: Draft, uuid: str, resource_class: str, inventory: InventoryRecord) -> ProviderRecord:
    """Add an inventory.

    Raises RequestRefused: 404, 400 for an unknown class, 409 where the inventory exists.
    """
    provider = get_provider(draft, uuid)
    check_known(draft, (resource_class,))
    if resource_class in provider.inventories:
        raise RequestRefused(
            CONCURRENT_UPDATE, f"Update conflict: {uuid} has an inventory of {resource_class}."
        )
    return _put_inventories(draft, provider, {**provider.inventories, resource_class: inventory})


def update_inventory(
    draft: Draft, uuid: str, generation: int | None, resource_class: str, inventory: InventoryRecord
) -> ProviderRecord:
    """Replace one inventory.

    Raises RequestRefused: 404 (also for an unknown class), 409 for another generation, 400 where there is no
    such inventory.
    """
    provider = get_provider_at(draft, uuid, generation)
    check_known(draft, (resource_class,), NOT_FOUND)
    if resource_class not in provider.inventories:
        raise RequestRefused(BAD_REQUEST, f"Resource provider {uuid} has no inventory of {resource_class}.")
    return _put_inventories(draft, provider, {**provider.inventories, resource_class: inventory})


def delete_inventory(draft: Draft, uuid: str, resource_class: str) -> ProviderRecord:
    """Remove one inventory.

    Raises RequestRefused: 404, 409 where it is in use (as a concurrent update, as the API defines it).
    """
    provider = get_provider(draft, uuid)
    if resource_class not in provider.inventories:
        raise RequestRefused(NOT_FOUND, f"Resource provider {uuid} has no inventory of {resource_class}.")
    check_unused(draft, provider, {resource_class}, CONCURRENT_UPDATE)
    left = {name: record for name, record in provider.inventories.items() if name != resource_class}
    return _put_inventories(draft, provider, left)


def check_known(state: CoreState, resource_classes: Any, problem: ProblemType = BAD_REQUEST) -> None:
    """Check that the classes exist. Raises RequestRefused (`problem`) with the first that does not."""
    for resource_class in resource_classes:
        if not state.has_resource_class(resource_class):
            raise RequestRefused(problem, f"No such resource class {resource_class}.")


def check_unused(state: CoreState, provider: ProviderRecord, removed: set[str], problem: ProblemType) -> None:
    """Check that no class in `removed` is in use. Raises RequestRefused (`problem`) where one is."""
    used = sorted(name for name in removed if state.used(provider.uuid, name))
    if used:
        raise RequestRefused(
            problem, f"Inventory for '{', '.join(used)}' on resource provider '{provider.uuid}' in use."
        )


def _put_inventories(draft: Draft, provider: ProviderRecord, inventories: InventoryRecords) -> ProviderRecord:
    provider = provider.at_next_generation(draft.now)._replace(inventories=inventories)
    draft.put_provider(provider)
    return provider


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


BARRED_TYPE = "BARRED"
"""An empty write of this type for a consumer that does not exist bars it: its first write conflicts then, as
in OpenStack Placement after any empty write. A client that knows that names generation 0."""

BARRED_KEPT_S = 86_400.0
"""How long a consumer stays barred: no server executes a first write that is older."""

Allocations = Mapping[str, Mapping[str, int]]
"""{provider uuid: {resource class: amount}}"""


class ConsumerWrite(NamedTuple):
    """The new allocations of one consumer; empty `allocations` remove the consumer.

    `consumer_type` None keeps the present type. `generation` is compared only if `checks_generation`; None
    then means that the consumer must not exist.
    """

    uuid: str
    project_id: str
    user_id: str
    consumer_type: str | None
    generation: int | None
    checks_generation: bool
    allocations: Allocations


def replace_allocations(draft: Draft, writes: Sequence[ConsumerWrite]) -> None:
    """Write all, or raise.

    Raises RequestRefused: 409 "concurrent update" for a consumer's generation, 400 for an unknown provider or
    class, 409 with `reasons` where the allocations do not fit.
    """
    check_consumers(draft, writes)
    # The usage before the write, and the check that does not depend on amounts.
    touched = dict.fromkeys(provider_uuid for write in writes for provider_uuid in write.allocations)
    used_before = {
        (provider_uuid, resource_class): draft.used(provider_uuid, resource_class)
        for write in writes
        for provider_uuid, resources in write.allocations.items()
        for resource_class in resources
    }
    check_known(draft, {resource_class for _, resource_class in used_before})

    before = {write.uuid: draft.consumer(write.uuid) for write in writes}
    for write in writes:
        old = before[write.uuid]
        if old is not None:
            if not write.allocations:
                touched.update(dict.fromkeys(old.allocations))
            draft.put_consumer(write.uuid, None)

    reasons: list[dict[str, Any]] = []
    for write in writes:
        if write.allocations:
            reasons += _shortfalls(draft, write.allocations, used_before)
            draft.put_consumer(write.uuid, _consumer(draft, write, before[write.uuid]))
        elif before[write.uuid] is None and write.consumer_type == BARRED_TYPE:
            # Those that were barred so long ago that no first write can come any more are forgotten.
            for consumer in draft.barred():
                is_young = draft.now - BARRED_KEPT_S <= consumer.updated_at <= draft.now
                if not is_young and draft.age_s(consumer.updated_at) > BARRED_KEPT_S:
                    draft.put_consumer(consumer.uuid, None)
            draft.put_consumer(write.uuid, _consumer(draft, write, None)._replace(generation=0))
    if reasons:
        raise RequestRefused(CONFLICT, _sentence(reasons[0]), reasons=reasons)
    for provider_uuid in touched:
        draft.put_provider(get_provider(draft, provider_uuid).at_next_generation(draft.now))


def delete_allocations(draft: Draft, consumer_uuid: str) -> None:
    """Remove the consumer with its allocations. The providers' generations stay, as in OpenStack Placement.

    Raises RequestRefused (404) where the consumer has no allocations.
    """
    consumer = draft.consumer(consumer_uuid)
    if consumer is None or not consumer.allocations:
        raise RequestRefused(NOT_FOUND, f"No allocations for consumer '{consumer_uuid}'.")
    draft.put_consumer(consumer_uuid, None)


def check_consumers(draft: Draft, writes: Sequence[ConsumerWrite]) -> None:
    """The checks that precede all others: the consumers' generations, then whether the providers exist.

    Raises RequestRefused: 409 "concurrent update", 400 for an unknown provider.
    """
    for write in writes:
        if write.checks_generation:
            consumer = draft.consumer(write.uuid)
            expected = None if consumer is None else consumer.generation
            if write.generation != expected:
                known, given = ("null" if each is None else each for each in (expected, write.generation))
                raise RequestRefused(
                    CONCURRENT_UPDATE,
                    f"consumer generation conflict for {write.uuid}: expected {known} but got {given}.",
                )
    for write in writes:
        for provider_uuid in write.allocations:
            if draft.provider(provider_uuid) is None:
                raise RequestRefused(
                    BAD_REQUEST, f"Allocation for resource provider '{provider_uuid}', which is not."
                )


def _consumer(draft: Draft, write: ConsumerWrite, old: ConsumerRecord | None) -> ConsumerRecord:
    return ConsumerRecord(
        uuid=write.uuid,
        project_id=write.project_id,
        user_id=write.user_id,
        consumer_type=old.consumer_type if old and write.consumer_type is None else write.consumer_type,
        generation=old.generation + 1 if old else 1,
        allocations=write.allocations,
        updated_at=draft.now,
    )


def _shortfalls(
    draft: Draft, allocations: Allocations, used_before: Mapping[tuple[str, str], int]
) -> list[dict[str, Any]]:
    """Why the allocations do not fit beside those in the draft, one entry for each provider and class."""
    reasons: list[dict[str, Any]] = []
    for provider_uuid, resources in allocations.items():
        provider = get_provider(draft, provider_uuid)
        for resource_class, asked in resources.items():
            used = draft.used(provider_uuid, resource_class)
            inventory = provider.inventories.get(resource_class)
            if inventory is None:
                reasons.append(_reason(provider, resource_class, "inventory", asked, used))
            elif not inventory.admits(asked):
                reasons.append(_reason(provider, resource_class, "units", asked, used))
            elif (
                used + asked > inventory.capacity
                # A write that does not raise the usage is allowed on an over-used provider.
                and used + asked > used_before[provider_uuid, resource_class]
            ):
                reasons.append(_reason(provider, resource_class, "capacity", asked, used))
    return reasons


def _reason(
    provider: ProviderRecord, resource_class: str, kind: str, asked: int, used: int
) -> dict[str, Any]:
    """An entry of `reasons`.

    `kind` is "inventory" (the provider has none of the class), "units" (min_unit, max_unit, step_size) or
    "capacity".
    """
    reason: dict[str, Any] = {
        "reason": kind,
        "resource_provider_uuid": provider.uuid,
        "resource_provider_name": provider.name,
        "resource_class": resource_class,
        "asked": asked,
        "free": 0,
        "capacity": 0,
        "used": used,
    }
    inventory = provider.inventories.get(resource_class)
    if inventory is not None:
        capacity = int(inventory.capacity)
        reason |= {
            "free": max(0, capacity - used),
            "capacity": capacity,
            "min_unit": inventory.min_unit,
            "max_unit": inventory.max_unit,
            "step_size": inventory.step_size,
        }
    return reason


def _sentence(reason: Mapping[str, Any]) -> str:
    start = (
        f"Unable to allocate inventory: {reason['asked']} of {reason['resource_class']} on resource provider "
        f"{reason['resource_provider_uuid']} ({reason['resource_provider_name']})"
    )
    if reason["reason"] == "inventory":
        return f"{start}: it has no inventory of that class."
    if reason["reason"] == "units":
        limits = (
            f"min_unit {reason['min_unit']}, max_unit {reason['max_unit']}, step_size {reason['step_size']}"
        )
        return f"{start}: it violates {limits}."
    return f"{start}: {reason['used']} of {reason['capacity']} are used, {reason['free']} are free."


NewInventories = Mapping[str, tuple[int, InventoryRecords]]
"""{provider uuid: (generation that the client read, all its new inventories)}"""


def reshape(draft: Draft, new: NewInventories, writes: Sequence[ConsumerWrite]) -> None:
    """Replace all inventories of these providers and all allocations of these consumers, or raise.

    Raises RequestRefused: 400 for an unknown provider or class, 409 for another generation, 409 where a
    removed inventory is in use, 409 where the allocations do not fit.
    """
    for uuid, (generation, _) in new.items():
        provider = draft.provider(uuid)
        if provider is None:
            raise RequestRefused(
                PROVIDER_NOT_FOUND, f"Resource provider {uuid} in inventories does not exist."
            )
        if provider.generation != generation:
            raise RequestRefused(
                CONCURRENT_UPDATE,
                f"resource provider generation conflict for provider {uuid}: actual: {provider.generation}, "
                f"given: {generation}.",
            )
    check_consumers(draft, writes)
    # An inventory in use cannot be removed, and an allocation needs an inventory: so each provider has both
    # its old and its new inventories while the allocations are replaced.
    for uuid, (_, wanted) in new.items():
        if wanted:
            old = get_provider(draft, uuid).inventories
            put_inventories(draft, uuid, None, {**old, **wanted})
    replace_allocations(draft, writes)
    for uuid, (_, wanted) in new.items():
        put_inventories(draft, uuid, None, wanted)


MIGRATION_TYPE = "MIGRATION"
"""The type of a migration, which holds the old place of an instance while that moves."""


class Binding(NamedTuple):
    """What the token of that name is bound to: `host` is the uuid or the name of a root provider."""

    token: str
    host: str

    def root_uuid(self, draft: Draft) -> str | None:
        """The root of the host's tree; None where `host` is a name of no provider yet.

        A provider with that uuid or name that is no root is the root of no tree.
        """
        if is_loose_uuid(self.host):
            return self.host
        holder = draft.below.provider_named(self.host)
        if holder is None:
            holder = draft.provider_named(self.host)
            if holder is not None and draft.below.provider(holder.uuid) is not None:
                return None  # another host's provider, which this write gives the name
        return None if holder is None else holder.uuid

    def refusal(self, draft: Draft, what: str) -> RequestRefused:
        """The refusal (403) of a write that does `what`."""
        root = draft.below.provider(self.root_uuid(draft) or "")
        if root is None or root.parent_uuid is not None:
            what += "; no root provider has that name or uuid: create it first, or correct the token file"
        return RequestRefused(
            FORBIDDEN, f"The token {self.token} is bound to the host {self.host} and may not {what}."
        )


def check_note(draft: Draft, binding: Binding | None, uuid: str) -> None:
    """Check that there is a host with that root, and that the token may leave a note for it.

    Raises RequestRefused: 400 for any other provider, 403.
    """
    root = draft.below.provider(uuid)
    if binding is not None and binding.root_uuid(draft) != uuid:
        raise binding.refusal(draft, f"leave a note for {_provider_text(root, uuid)}, which is another's")
    if root is None or root.parent_uuid is not None:
        raise RequestRefused(PROVIDER_NOT_FOUND, f"No root provider has the uuid {uuid}: create it first.")


def check_bound(draft: Draft, binding: Binding) -> None:
    """Check that a bound token may make the changes of the draft.

    These are the providers of the host's tree, with a root that is new; new traits and resource classes; and
    allocations (`_check_bound_consumers`), with the generations of the providers that they name.
    Raises RequestRefused (403).
    """
    below, root_uuid = draft.below, binding.root_uuid(draft)
    changed = [(uuid, below.consumer(uuid), new) for uuid, new in draft.consumers.items()]
    allocated = {name for _, *records in changed for one in records if one for name in one.allocations}
    for uuid, provider in draft.providers.items():
        old = below.provider(uuid)
        if {one.root_uuid for one in (old, provider) if one is not None} == {root_uuid}:
            if old is not None and provider is not None and provider.name != old.name == binding.host:
                raise binding.refusal(draft, f"rename it to {provider.name!r}: bind it by its uuid for that")
        elif not (old and provider and uuid in allocated and provider.shares_contents(old)):
            raise binding.refusal(draft, f"write {_provider_text(old or provider, uuid)}, which is another's")
    for name, created_at in (*draft.traits.items(), *draft.resource_classes.items()):
        if created_at is None:
            raise binding.refusal(draft, f"remove {name}, which all hosts share")
    _check_bound_consumers(draft, binding, root_uuid, changed)


def _check_bound_consumers(
    draft: Draft,
    binding: Binding,
    root_uuid: str | None,
    changed: Sequence[tuple[str, ConsumerRecord | None, ConsumerRecord | None]],
) -> None:
    """Check the changed consumers: (uuid, the old record, the new one).

    A consumer touches the tree if its old or its new allocations name a provider of it. Of the other ones, a
    write may make the migration of an instance that comes to the tree (the begin of a move), remove a
    migration (the end of a move), bar one, and repeat what one has (`_check_places`).
    On other providers, all consumers of the write together get no more than they had, unless the provider is
    a sharing one. They free no more than what its migrations and the consumers of the tree had; where a
    migration of the tree ends, also what a consumer had that comes to the tree (the revert of a move).
    """

    def is_own(provider_uuid: str) -> bool:
        provider = draft.provider(provider_uuid)
        return provider is not None and provider.root_uuid == root_uuid

    touches_tree, reverts, made = False, False, ""
    coming: Counter[tuple[str, str]] = Counter()
    freed: Counter[tuple[str, str]] = Counter()
    named: set[tuple[str, str]] = set()
    for uuid, old, new in changed:
        before, after = _amounts(old), _amounts(new)
        if before == after and not (before and old and new and old[:4] != new[:4]):
            continue  # also the uuid, the owner and the type are the same
        own = {key for key in (*before, *after) if is_own(key[0])}
        ends = _ends_migration(old, new)
        if own:
            touches_tree = True
        elif not before:
            made = uuid
        elif not ends:
            raise binding.refusal(draft, f"write consumer {uuid}, which has nothing on that host")
        if ends or own & before.keys():
            freed.update(before)
            reverts = reverts or (ends and bool(own))
        else:
            coming.update(before)
        named.update(before, after)
    if reverts:
        freed.update(coming)
    if made and not touches_tree:
        raise binding.refusal(draft, f"write consumer {made}, which gets nothing on that host")
    for provider_uuid, resource_class in sorted(named):
        more = draft.used(provider_uuid, resource_class) - draft.below.used(provider_uuid, resource_class)
        provider = get_provider(draft, provider_uuid)
        is_too_much = more > 0 and not provider.is_sharing
        if not is_own(provider_uuid) and (is_too_much or more < -freed[provider_uuid, resource_class]):
            raise _refused_amount(draft, binding, provider, resource_class, more)
    _check_places(draft, binding, is_own, changed)


def _check_places(
    draft: Draft,
    binding: Binding,
    is_own: Callable[[str], bool],
    changed: Sequence[tuple[str, ConsumerRecord | None, ConsumerRecord | None]],
) -> None:
    """Check the places on other hosts: which of the changed consumers takes which.

    A new consumer without anything on the tree is the migration of one instance that comes to the tree, and
    takes its whole place on the other host. A consumer that leaves the tree takes the place of one migration
    that ends. None keeps a sharing provider alone, where its host could not release it.
    """

    def is_elsewhere(key: tuple[str, str]) -> bool:
        return not is_own(key[0]) and not get_provider(draft, key[0]).is_sharing

    arrived = [(old, new) for _, old, new in changed if old and new and any(map(is_own, new.allocations))]
    ended = [_amounts(old) for _, old, new in changed if _ends_migration(old, new)]
    for uuid, old, new in changed:
        before, after = Counter(_amounts(old)), Counter(_amounts(new))
        was_on_tree, is_on_tree = (any(is_own(key[0]) for key in held) for held in (before, after))
        gained = {key: amount for key, amount in (after - before).items() if is_elsewhere(key)}
        if new and after and not before and not is_on_tree:
            moves = [one for one in arrived if _is_migration_of(new, *one, is_elsewhere)]
            if not moves:
                raise binding.refusal(
                    draft,
                    f"make consumer {uuid}, which is no migration of an instance that comes to that host",
                )
            arrived.remove(moves[0])
        elif gained:
            left = [one for one in ended if all(one.get(key, 0) >= gained[key] for key in gained)]
            if not left or not was_on_tree:
                (provider_uuid, resource_class), amount = min(gained.items())
                provider = get_provider(draft, provider_uuid)
                raise _refused_amount(draft, binding, provider, resource_class, amount)
            ended.remove(left[0])
        elif was_on_tree and after and not is_on_tree and not any(map(is_elsewhere, after)):
            raise binding.refusal(
                draft, f"leave consumer {uuid} with nothing but sharing providers: remove all that it has"
            )


def _is_migration_of(
    migration: ConsumerRecord,
    old: ConsumerRecord,
    new: ConsumerRecord,
    is_elsewhere: Callable[[tuple[str, str]], bool],
) -> bool:
    """Whether the new consumer is as the begin of a move of that instance makes it.

    It has the instance's owner, and what the instance had on the other host, which the instance has no more;
    of sharing providers what changes for the instance. Before 1.38 it has no type.
    """
    place, held, kept = _amounts(old), _amounts(migration), _amounts(new)
    return (
        migration.consumer_type in (MIGRATION_TYPE, None)
        and (migration.project_id, migration.user_id) == (old.project_id, old.user_id)
        and all(place.get(key) == amount for key, amount in held.items())
        and any(map(is_elsewhere, held))
        and not any(is_elsewhere(key) and (key not in held or key in kept) for key in place)
    )


def _ends_migration(old: ConsumerRecord | None, new: ConsumerRecord | None) -> bool:
    return old is not None and old.consumer_type == MIGRATION_TYPE and not (new and new.allocations)


def _refused_amount(
    draft: Draft, binding: Binding, provider: ProviderRecord, resource_class: str, more: int
) -> RequestRefused:
    verb = "allocate" if more > 0 else "free"
    where = f"on {_provider_text(provider, provider.uuid)}, which is another's"
    return binding.refusal(draft, f"{verb} {abs(more)} of {resource_class} {where}")


def _amounts(consumer: ConsumerRecord | None) -> dict[tuple[str, str], int]:
    """{(provider uuid, resource class): amount}"""
    allocations = consumer.allocations.items() if consumer is not None else ()
    return {(uuid, name): amount for uuid, part in allocations for name, amount in part.items()}


def _provider_text(provider: ProviderRecord | None, uuid: str) -> str:
    return f"resource provider {uuid}" + (f" ({provider.name})" if provider else "")
