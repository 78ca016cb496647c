"""What worlds of tests have in common: a process that comes back; what others see and do at Placement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Self

from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.tree import Provider


class Closing:
    """What a block closes at its end."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Restarting(Closing):
    """The parts of a process, which `_open` makes from what is in the files."""

    def _open(self) -> None:
        raise NotImplementedError

    def restart(self) -> None:
        """The process is gone and comes back: only the files are left."""
        self.close()
        self._open()


class Outside:
    """What others than the agents see and do; `raw` is a client of Placement that nothing listens to."""

    raw: PlacementClient
    owner = ("demo", "admin")
    """The project and the user of what `schedule` writes."""

    def seen(self) -> Iterable[Provider]:
        """The providers of the test, whose names it uses."""
        raise NotImplementedError

    def uuid(self, name: str) -> str:
        """That of the provider."""
        return next(each.uuid for each in self.seen() if each.name == name)

    def create(self, wanted: Provider) -> None:
        generation = self.raw.create_provider(wanted)
        if wanted.traits:
            generation = self.raw.put_traits(wanted.uuid, generation, wanted.traits)
        if wanted.aggregates:
            generation = self.raw.put_aggregates(wanted.uuid, generation, wanted.aggregates)
        for name in wanted.inventories:
            if name.startswith("CUSTOM_"):
                self.raw.ensure_resource_class(name)
        self.raw.put_inventories(wanted.uuid, generation, wanted.inventories)

    def schedule(self, consumer: str, kind: str = "INSTANCE", **placed: Mapping[str, int]) -> None:
        """{provider name: {class: amount}}, as another client writes it."""
        allocations = {self.uuid(name): dict(amounts) for name, amounts in placed.items()}
        generation = self.raw.allocations_of(consumer).generation
        self.raw.write_allocations(ConsumerAllocations(consumer, allocations, generation, *self.owner, kind))

    def placed(self, consumer: str) -> dict[str, dict[str, int]]:
        """What placement holds for the consumer, by provider name."""
        names = {each.uuid: each.name for each in self.seen()}
        held = self.raw.allocations_of(consumer).allocations
        return {names.get(uuid, uuid): dict(amounts) for uuid, amounts in held.items()}

    def placed_all(self) -> dict[str, dict[str, dict[str, int]]]:
        """{consumer: {provider name: {class: amount}}}"""
        found: dict[str, dict[str, dict[str, int]]] = {}
        for each in self.seen():
            for consumer, amounts in self.raw.provider_allocations(each.uuid).consumers.items():
                found.setdefault(consumer, {})[each.name] = dict(amounts)
        return found
