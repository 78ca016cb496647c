"""The instructions of a reshape, by source and by the classes that travel together. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from agent.reshape.types import Instruction


@dataclass(frozen=True, slots=True)
class Bundle:
    """The instructions of one source whose classes hang together: `targets` {uuid: {class: class there}}.

    `untold` are the targets of which nobody was told who uses them.
    """

    source: str
    classes: frozenset[str]
    targets: Mapping[str, Mapping[str, str]]
    untold: frozenset[str]

    def alike(self, classes: Iterable[str]) -> frozenset[str]:
        """The targets that have these classes under the same names."""
        return frozenset(
            uuid for uuid, there in self.targets.items() if all(there.get(name) == name for name in classes)
        )


def bundles(told: Sequence[Instruction]) -> Iterator[Bundle]:
    """The instructions by source, and within it by classes that travel together."""
    by_source: dict[str, list[Instruction]] = {}
    for each in told:
        if not each.move.stays:
            by_source.setdefault(each.source, []).append(each)
    for source, group in by_source.items():
        for classes in _components(frozenset(each.move.moved_resources) for each in group):
            together = [each for each in group if each.move.moved_resources.keys() <= classes]
            untold = frozenset(each.target for each in together if each.move.consumers is None)
            yield Bundle(source, classes, _ways(together), untold)


def _ways(together: Iterable[Instruction]) -> dict[str, dict[str, str]]:
    """{target: {class at the source: class at the target}}"""
    ways: dict[str, dict[str, str]] = {}
    for each in together:
        there = ways.setdefault(each.target, {})
        for slot, target, _ in each.pairs():
            if slot.resource_class == target.resource_class:
                there[slot.resource_class] = target.resource_class
            else:  # only who is told changes class, as long as there is another way
                there.setdefault(slot.resource_class, target.resource_class)
    return ways


def _components(sets: Iterable[frozenset[str]]) -> list[frozenset[str]]:
    """The unions of overlapping sets, in the order of their first member set."""
    components: list[frozenset[str]] = []
    for members in sets:
        joined = members
        apart = []
        for component in components:
            if component & joined:
                joined |= component
            else:
                apart.append(component)
        components = [*apart, joined]
    return components
