"""The classes that a card's units have had: who renames one in the configuration has the allocations follow.
Pure.

The configuration says only how things are called now. So what was described once is remembered, by device.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from agent.driver import DescribedProvider

CLASSES_MAX = 16
USUAL = "VGPU"
"""What nova calls mediated devices unless it is told otherwise."""

Classes = Mapping[str, tuple[str, ...]]
"""{DescribedProvider.device: the classes of its exact units, the one described last at the end}"""


def classes_described(
    known: Classes, providers: Iterable[DescribedProvider], divided: Collection[str]
) -> Classes:
    """`known` with what these providers have, at most CLASSES_MAX a device.

    `divided` are the devices that mediated ones are made on: theirs may have had the usual class.
    """
    found = dict(known)
    for provider in providers:
        if not provider.device.startswith("pci:") or not provider.units:
            continue
        now = tuple(sorted(provider.units))
        usual = (USUAL,) if provider.device in divided else ()
        before = dict.fromkeys(name for name in (*usual, *found.get(provider.device, ())) if name not in now)
        found[provider.device] = (*before, *now)[-CLASSES_MAX:]
    return found


def renamed(provider: DescribedProvider, known: Classes) -> Iterator[tuple[str, str]]:
    """(class before, class now) for each that the device's units may have changed."""
    for before in known.get(provider.device, ()):
        if before not in provider.inventories:
            for now in sorted(provider.units.keys() & provider.inventories.keys()):
                yield before, now
