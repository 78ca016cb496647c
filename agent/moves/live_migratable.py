"""Whether a guest may take its PCI devices along while it runs. Pure.

A device that is passed through can be moved only where its driver can save its state, which operators say by
`live_migratable` in [pci] device_spec and alias. Ports of the network are another matter: whoever moves the
guest takes them out first, and puts others in at the destination.
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
    """Raises Refused for a device, asked for by alias or on a provider of `allocations`, that cannot.

    `offered` are the exact units that the host has.
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
        f"{request.name or request.consumer} cannot be migrated while it runs: {device} is not said to be "
        f"live_migratable. Shut it off and migrate it cold, or say so in {option} if its driver can do it.",
        consumer=request.consumer,
    )
