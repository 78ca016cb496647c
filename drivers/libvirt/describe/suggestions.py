"""Options that fit a host's hardware, for `plimsoll init`. Pure."""

import json
from collections.abc import Iterable, Iterator

from agent.driver import Suggestion, Topology
from agent.errors import counted
from drivers.libvirt.describe.cards import Card, mdev_types

DISPLAY = 0x03
SHOWN_MAX = 3


def suggestions(topology: Topology, cards: Iterable[Card]) -> tuple[Suggestion, ...]:
    """The options to suggest. Those on devices are not certain: only the operator knows their purpose."""
    cards = tuple(cards)
    return (*_cells(topology), *_mdevs(cards), *_functions(cards), *_networks(cards), *_passthrough(cards))


def _cells(topology: Topology) -> Iterator[Suggestion]:
    cells = [cell for cell in topology.cells if cell.cpus]
    if len(cells) > 1:
        yield Suggestion(
            "libvirt",
            "report_numa",
            "true",
            f"The host has {counted(len(cells), 'NUMA cell')}; with a provider for each, a claim can ask "
            "for CPUs, memory and devices of one cell.",
        )


def _mdevs(cards: tuple[Card, ...]) -> Iterator[Suggestion]:
    types: dict[str, list[str]] = {}
    names: dict[str, str] = {}
    for card in cards:
        for type_id in mdev_types(card):
            types.setdefault(type_id, []).append(card.device.address)
        for parent in card.mdev_parents:
            names |= {mdev_type.id: mdev_type.name for mdev_type in parent.mdev_types.values()}
    if types:
        offers = "; ".join(
            f"{type_id} ({names[type_id]}) on {_few(addresses)}"
            for type_id, addresses in sorted(types.items())
        )
        yield Suggestion(
            "devices",
            "enabled_mdev_types",
            sorted(types)[0],
            f"Cards here can be divided into vGPUs; choose one type for each card: {offers}.",
            certain=False,
        )


def _functions(cards: tuple[Card, ...]) -> Iterator[Suggestion]:
    divided = [card for card in cards if card.vfs]
    if divided:
        yield Suggestion(
            "devices",
            "sriov_vfs",
            ", ".join(f"{card.device.address}={len(card.vfs)}" for card in divided),
            "The virtual functions that the cards have now; plimsoll-devices.service makes them again after "
            "a reboot.",
            certain=False,
        )


def _networks(cards: tuple[Card, ...]) -> Iterator[Suggestion]:
    for card in cards:
        if card.is_network and card.device.vfs_max:
            where = card.interface.interface if card.interface else card.device.address
            yield Suggestion(
                "pci",
                "device_spec",
                json.dumps({"address": card.device.address, "physical_network": "physnet1"}),
                f"{where} can have {counted(card.device.vfs_max, 'virtual function')}, and has "
                f"{len(card.vfs)}; say which physical network it is on.",
                certain=False,
            )


def _passthrough(cards: tuple[Card, ...]) -> Iterator[Suggestion]:
    kinds: dict[tuple[str, str], list[str]] = {}
    for card in cards:
        device = card.device
        if device.class_id >> 16 == DISPLAY and not device.mdev_types and not card.vfs and not device.vfs_max:
            kinds.setdefault((device.vendor_id, device.product_id), []).append(device.address)
    for (vendor, product), addresses in sorted(kinds.items()):
        yield Suggestion(
            "pci",
            "device_spec",
            json.dumps({"vendor_id": vendor, "product_id": product}),
            f"Graphics cards that could be given to guests whole: {_few(addresses)}. Leave the host's own "
            "console out.",
            certain=False,
        )


def _few(addresses: list[str]) -> str:
    more = f" and {len(addresses) - SHOWN_MAX} more" if len(addresses) > SHOWN_MAX else ""
    return ", ".join(addresses[:SHOWN_MAX]) + more
