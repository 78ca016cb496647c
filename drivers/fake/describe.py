"""From a described host to the contract's values. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from agent.driver import DescribedInventory, DescribedProvider, Description, HostSettings, Topology
from drivers.fake.host import FakeHost, Gpu, Nic
from drivers.fake.moves import derived_moves
from drivers.host.inventory import physical_network_trait, split_cpus
from drivers.host.providers import cell_provider_name, host_providers, page_providers


def describe_host(host: FakeHost, settings: HostSettings, name: str) -> Description:
    """The provider tree of `host`, whose root is called `name`. Raises DriverDataError (CPU sets)."""
    traits = host.traits | {"COMPUTE_NODE"}
    own = host_providers(name, host.cells, host.disk_gb, traits, settings, report_numa=host.report_numa)
    pages = page_providers(name, host.cells, report_numa=host.report_numa)
    cards = tuple(_devices(host, name))
    cpus = split_cpus(frozenset().union(*(cell.cpus for cell in host.cells)), settings)
    moves = host.moves or tuple(derived_moves(host, name, cpus, cards))
    if host.flat_devices:
        return Description((_with_cards(own[0], cards), *own[1:], *pages), moves)
    return Description((*own, *pages, *cards), moves)


def describe_topology(host: FakeHost, settings: HostSettings) -> Topology:
    """The cells as described and the CPU sets in force. Raises DriverDataError (CPU sets)."""
    cpus = frozenset().union(*(cell.cpus for cell in host.cells))
    return Topology(host.cells, *split_cpus(cpus, settings))


def _devices(host: FakeHost, name: str) -> Iterator[DescribedProvider]:
    for gpu in host.gpus:
        yield _gpu(gpu, name, _parent(host, gpu.numa, name))
    for nic in host.nics:
        yield _nic(nic, name, _parent(host, nic.numa, name))


def _parent(host: FakeHost, numa: int | None, name: str) -> str:
    return cell_provider_name(name, numa) if host.report_numa and numa is not None else name


def _gpu(gpu: Gpu, name: str, parent: str) -> DescribedProvider:
    sizes: dict[int, set[str]] = {}
    for resource_class, total in gpu.types.items():
        sizes.setdefault(total, set()).add(resource_class)
    exact = {name: tuple(f"{gpu.address}/{n}" for n in range(total)) for name, total in gpu.types.items()}
    return DescribedProvider(
        name=f"{name}_pci_{gpu.address}",
        parent=parent,
        inventories=_device_inventories(gpu.types or {gpu.resource_class: gpu.total}),
        traits=gpu.traits,
        device=f"pci:{gpu.address}",
        units=exact or ({gpu.resource_class: gpu.units} if gpu.units else {}),
        cell=gpu.numa,
        ways=tuple(map(frozenset, sizes.values())),
    )


def _nic(nic: Nic, name: str, parent: str) -> DescribedProvider:
    units = {
        name: exact
        for name, exact in (("SRIOV_NET_VF", nic.vfs), (nic.whole, (nic.address,)))
        if name and exact
    }
    amounts = {
        **{name: len(exact) for name, exact in units.items()},
        "NET_BW_EGR_KILOBIT_PER_SEC": nic.egress_kbps,
        "NET_BW_IGR_KILOBIT_PER_SEC": nic.ingress_kbps,
    }
    return DescribedProvider(
        name=f"{name}_net_{nic.ifname}",
        parent=parent,
        inventories=_device_inventories(amounts),
        traits=nic.traits | physical_network_trait(nic.physical_network),
        device=f"pci:{nic.address}",
        units=units,
        cell=nic.numa,
        ways=tuple(frozenset({name}) for name in units) if len(units) > 1 else (),
    )


def _with_cards(root: DescribedProvider, cards: Iterable[DescribedProvider]) -> DescribedProvider:
    """The root with all that the cards have."""
    inventories, units = dict(root.inventories), dict(root.units)
    traits = root.traits
    for card in cards:
        for resource_class, inventory in card.inventories.items():
            total = inventories.get(resource_class, DescribedInventory(0)).total + inventory.total
            inventories[resource_class] = DescribedInventory(total, allocation_ratio=1.0)
        for resource_class, exact in card.units.items():
            units[resource_class] = (*units.get(resource_class, ()), *exact)
        traits |= card.traits
    return replace(root, inventories=inventories, units=units, traits=traits)


def _device_inventories(amounts: Mapping[str, int]) -> dict[str, DescribedInventory]:
    """Devices are never overcommitted; a class of which there is nothing is left out."""
    return {
        resource_class: DescribedInventory(total, allocation_ratio=1.0)
        for resource_class, total in amounts.items()
        if total
    }
