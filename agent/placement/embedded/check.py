"""What must hold of a placement.db besides what SQLite itself checks, looked for row by row."""

from __future__ import annotations

from collections.abc import Iterator

from agent.placement.embedded.model import Consumer, Model, Provider


def broken(model: Model) -> list[str]:
    """A sentence for every invariant that does not hold; the caller holds the model's lock.

    A provider with more in use than its capacity is none: an inventory may shrink below its use.
    """
    names: dict[str, str] = {}
    found: list[str] = []
    for provider in model.providers.values():
        found += _provider(model, provider)
        if names.setdefault(provider.name, provider.uuid) != provider.uuid:
            found.append(f"{provider.name} is the name of {names[provider.name]} and of {provider.uuid}.")
    for consumer in model.consumers.values():
        found += _consumer(model, consumer)
    return found


def _provider(model: Model, provider: Provider) -> Iterator[str]:
    who = f"Resource provider {provider.uuid} ({provider.name})"
    chain = {provider.uuid}
    end = provider
    while end.parent_uuid is not None:
        parent = model.provider(end.parent_uuid)
        if parent is None:
            yield f"{who} hangs under {end.parent_uuid}, which does not exist."
            break
        if parent.uuid in chain:
            yield f"{who} is its own ancestor."
            break
        chain.add(parent.uuid)
        end = parent
    else:
        if provider.root_uuid != end.uuid:
            yield f"{who} names {provider.root_uuid} as its root, but its tree's root is {end.uuid}."
    for trait in sorted(provider.traits):
        if not model.has_trait(trait):
            yield f"{who} has the trait {trait}, which does not exist."
    for resource_class in provider.inventories:
        if not model.has_resource_class(resource_class):
            yield f"{who} has an inventory of {resource_class}, which does not exist."


def _consumer(model: Model, consumer: Consumer) -> Iterator[str]:
    who = f"Consumer {consumer.uuid}"
    if consumer.generation < 1:
        yield f"{who} is at generation {consumer.generation}."
    if not consumer.allocations:
        yield f"{who} holds nothing and should not be there."
    for uuid, resources in consumer.allocations.items():
        provider = model.provider(uuid)
        if provider is None:
            yield f"{who} holds something on {uuid}, which does not exist."
            continue
        for resource_class, amount in resources.items():
            if amount < 1:
                yield f"{who} holds {amount} of {resource_class} on {uuid}."
            if resource_class not in provider.inventories:
                yield f"{who} holds {resource_class} on {uuid}, which has no inventory of it."
