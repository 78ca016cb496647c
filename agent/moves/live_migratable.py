"""Check whether a guest's devices permit a live migration. Pure.

A passed-through device can be live-migrated only if its driver can save its state. Operators declare this by
`live_migratable` in [pci] device_spec and alias. Network ports are not checked: the mover of the guest
detaches them at the source and attaches others at the destination.

A mediated device can be live-migrated only to one of the same type: the destination reads the types of the
source's cards from their traits in Placement.

Source: https://docs.openstack.org/nova/latest/admin/pci-passthrough.html (live migration of PCI devices),
https://docs.openstack.org/nova/latest/admin/virtual-gpu.html (live migration of mediated devices).
"""

from collections.abc import Mapping
from dataclasses import replace

from agent.claims.fit_search import ProviderIndex
from agent.claims.request import ClaimRequest, is_device_group
from agent.device_names import LIVE_MIGRATABLE, TYPES, VDPA_CLASS, mdev_types
from agent.errors import Refused
from agent.shapes import Allocations, Units

_PORTS = frozenset({"SRIOV_NET_VF", VDPA_CLASS})
"""A port is taken from the guest before it moves, and given to it anew at the destination."""

MdevTypes = Mapping[str, frozenset[str]]
"""{resource class: traits of the mediated device types of which the guest's device at the source may be}"""


def mdev_classes(request: ClaimRequest, host: ProviderIndex) -> frozenset[str]:
    """The classes of the request that this host has as mediated devices of known types."""
    return frozenset(name for name in request.resources if _types_here(name, host))


def check_mdev_types(request: ClaimRequest, at_source: MdevTypes, host: ProviderIndex) -> None:
    """Raises Refused where this host has none of the types that a device of the guest has at the source."""
    for name, types in at_source.items():
        here = _types_here(name, host)
        if types and here and not types & here:
            raise _other_type(request, name, types, f"this host has {_names(here)}")


def with_mdev_types(request: ClaimRequest, at_source: MdevTypes) -> ClaimRequest:
    """The request, with the source's types as required traits of the groups that ask for such devices."""
    groups = tuple(
        replace(
            group,
            required=(
                *group.required,
                *(at_source[name] for name in sorted(group.resources) if at_source.get(name)),
            ),
        )
        for group in request.groups
    )
    return replace(request, groups=groups)


def check_chosen_mdevs(
    request: ClaimRequest, allocations: Allocations, at_source: MdevTypes, host: ProviderIndex
) -> None:
    """Raises Refused where a card was chosen that has none of the types of the source."""
    for uuid, amounts in allocations.items():
        provider = host.tree.get(uuid)
        here = mdev_types(provider.traits) if provider else frozenset[str]()
        for name in sorted(amounts.keys() & at_source.keys()):
            if provider is not None and at_source[name] and here and not at_source[name] & here:
                free = f"what is free here is on {provider.name}, which has {_names(here)}"
                raise _other_type(request, name, at_source[name], free)


def _other_type(request: ClaimRequest, name: str, types: frozenset[str], here: str) -> Refused:
    return Refused(
        f"{request.name or request.consumer} cannot be live-migrated to this host: its {name} is of the type "
        f"{_names(types)} at the source, and {here}. Shut the guest off and migrate it cold, or enable the "
        "type here in [devices] enabled_mdev_types.",
        consumer=request.consumer,
    )


def _types_here(name: str, host: ProviderIndex) -> frozenset[str]:
    return frozenset(
        trait for provider in host.by_class.get(name, ()) for trait in mdev_types(provider.traits)
    )


def _names(types: frozenset[str]) -> str:
    return ", ".join(sorted(types))


def check_live_migratable(
    request: ClaimRequest, allocations: Allocations, host: ProviderIndex, offered: Units
) -> None:
    """Check the devices that the request asks for by alias, and those in the instance's `allocations`.

    `offered` are all exact units of the host. Raises Refused for a device that is not declared
    live-migratable.
    """
    names = [alias for alias, count in request.pci for _ in range(count)]
    groups = [group for group in request.groups if is_device_group(group)]
    for group, alias in zip(groups, names, strict=False):
        if not any(any_of == {LIVE_MIGRATABLE} for any_of in group.required):
            raise _refusal(f"the alias {alias!r}", "[pci] alias", request)
    types = frozenset(TYPES.values())
    for uuid, amounts in allocations.items():
        provider = host.tree.get(uuid)
        if provider is None or not types & provider.traits or LIVE_MIGRATABLE in provider.traits:
            continue
        for name in sorted(amounts.keys() & offered.get(uuid, {}).keys() - _PORTS):
            raise _refusal(f"{name} on {provider.name}", "[pci] device_spec", request)


def _refusal(device: str, option: str, request: ClaimRequest) -> Refused:
    return Refused(
        f"{request.name or request.consumer} cannot be live-migrated: {device} is not declared "
        f"live_migratable. Shut the guest off and migrate it cold, or set live_migratable in {option} if the "
        "device's driver supports it.",
        consumer=request.consumer,
    )
