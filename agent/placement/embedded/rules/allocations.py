"""The rules of writes to allocations, of one or several consumers at once.

A write replaces all allocations of its consumers. The old allocations of all its consumers are removed before
the new ones are checked, so that two consumers can swap on a full host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from agent.placement.embedded.draft import Draft
from agent.placement.embedded.problems import (
    BAD_REQUEST,
    CONCURRENT_UPDATE,
    CONFLICT,
    NOT_FOUND,
    RequestRefused,
)
from agent.placement.embedded.records import ConsumerRecord, ProviderRecord
from agent.placement.embedded.rules import inventories, providers

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


def replace(draft: Draft, writes: Sequence[ConsumerWrite]) -> None:
    """Write all, or raise.

    Raises RequestRefused: 409 "concurrent update" for a consumer's generation, 400 for an unknown provider or
    class, 409 with `reasons` where the allocations do not fit.
    """
    check_consumers(draft, writes)
    # The checks that do not depend on amounts; the same loop reads the usage before the write.
    used_before: dict[tuple[str, str], int] = {}
    touched: dict[str, None] = {}
    for write in writes:
        for provider_uuid, resources in write.allocations.items():
            touched[provider_uuid] = None
            for resource_class in resources:
                used_before[provider_uuid, resource_class] = draft.used(provider_uuid, resource_class)
    inventories.check_known(draft, {resource_class for _, resource_class in used_before})

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
            _forget_barred(draft)
            draft.put_consumer(write.uuid, _consumer(draft, write, None)._replace(generation=0))
    if reasons:
        raise RequestRefused(CONFLICT, _sentence(reasons[0]), reasons=reasons)
    for provider_uuid in touched:
        draft.put_provider(providers.get(draft, provider_uuid).at_next_generation(draft.now))


def _forget_barred(draft: Draft) -> None:
    """Remove the records of consumers that were barred so long ago that no first write can come any more."""
    for consumer in draft.barred():
        if consumer.updated_at < draft.now - BARRED_KEPT_S:
            draft.put_consumer(consumer.uuid, None)


def delete(draft: Draft, consumer_uuid: str) -> None:
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
                raise RequestRefused(
                    CONCURRENT_UPDATE,
                    f"consumer generation conflict for {write.uuid}: "
                    f"expected {_generation_text(expected)} but got {_generation_text(write.generation)}.",
                )
    for write in writes:
        for provider_uuid in write.allocations:
            if draft.provider(provider_uuid) is None:
                raise RequestRefused(
                    BAD_REQUEST, f"Allocation for resource provider '{provider_uuid}', which is not."
                )


def _generation_text(generation: int | None) -> str:
    return "null" if generation is None else str(generation)


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
        provider = providers.get(draft, provider_uuid)
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
