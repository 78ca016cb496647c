"""/usages and /resource_providers/{uuid}/usages."""

from __future__ import annotations

from collections.abc import Iterable

from agent.placement.embedded import microversions as mv
from agent.placement.embedded import schemas
from agent.placement.embedded.handlers.allocations import UNKNOWN_TYPE
from agent.placement.embedded.messages import CoreResponse, Request, json_response
from agent.placement.embedded.records import ConsumerRecord
from agent.placement.embedded.rules import providers

ALL_TYPES = "all"


def get_of_provider(request: Request) -> CoreResponse:
    """GET /resource_providers/{uuid}/usages"""
    with request.store.reading() as model:
        provider = providers.get(model, request.args["uuid"])
        used = {name: model.used(provider.uuid, name) for name in provider.inventories}
    body = {"resource_provider_generation": provider.generation, "usages": used}
    return json_response(request, body, request.store.clock())


def get(request: Request) -> CoreResponse:
    """GET /usages"""
    parameters = request.read_query(schemas.GET_USAGES)
    project_id, user_id = parameters["project_id"], parameters.get("user_id")
    with request.store.reading() as model:
        owned = [
            consumer
            for consumer in model.consumers.values()
            if consumer.allocations
            and consumer.project_id == project_id
            and user_id in (None, consumer.user_id)
        ]
    if request.minor < mv.CONSUMER_TYPES:
        usages: dict[str, int] | dict[str, dict[str, int]] = _sums(owned)
    else:
        usages = _by_type(owned, parameters.get("consumer_type"))
    return json_response(request, {"usages": usages}, request.store.clock())


def _by_type(consumers: list[ConsumerRecord], wanted: str | None) -> dict[str, dict[str, int]]:
    """{type: {class: sum, ..., "consumer_count": n}}; `wanted` "all" puts all consumers under that name."""
    groups: dict[str, list[ConsumerRecord]] = {}
    for consumer in consumers:
        name = ALL_TYPES if wanted == ALL_TYPES else consumer.consumer_type or UNKNOWN_TYPE
        if wanted in (None, name):
            groups.setdefault(name, []).append(consumer)
    return {name: {**_sums(group), "consumer_count": len(group)} for name, group in groups.items()}


def _sums(consumers: Iterable[ConsumerRecord]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for consumer in consumers:
        for resources in consumer.allocations.values():
            for resource_class, amount in resources.items():
                sums[resource_class] = sums.get(resource_class, 0) + amount
    return sums
