"""Check whether a guest's PCI devices permit a live migration. Pure.

A passed-through device can be live-migrated only if its driver can save its state. Operators declare this by
`live_migratable` in [pci] device_spec and alias. Network ports are not checked: the mover of the guest
detaches them at the source and attaches others at the destination.

Source: https://docs.openstack.org/nova/latest/admin/pci-passthrough.html (live migration of PCI devices).
"""

from agent.claims.fit_search import ProviderIndex
from agent.claims.request import ClaimRequest, is_device_group
from agent.device_names import LIVE_MIGRATABLE, TYPES
from agent.errors import Refused
from agent.shapes import Allocations, Units

_PORT = "SRIOV_NET_VF"


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
        for name in sorted(amounts.keys() & offered.get(uuid, {}).keys() - {_PORT}):
            raise _refusal(f"{name} on {provider.name}", "[pci] device_spec", request)


def _refusal(device: str, option: str, request: ClaimRequest) -> Refused:
    return Refused(
        f"{request.name or request.consumer} cannot be live-migrated: {device} is not declared "
        f"live_migratable. Shut the guest off and migrate it cold, or set live_migratable in {option} if the "
        "device's driver supports it.",
        consumer=request.consumer,
    )
