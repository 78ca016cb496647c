"""Build the answers of `Driver` from all that was read of a host. Pure."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agent.driver import Cell, DescribedProvider, Description, DomainNeeds, Guest, HostSettings, Topology
from drivers.host.domain_xml import Domain, DomainXml
from drivers.host.providers import (
    MEMORY_FILES,
    REPORTABLE,
    UnitLocation,
    cell_provider_name,
    host_providers,
    locate_units,
    page_providers,
)
from drivers.host.sysfs import PmemNamespace
from drivers.libvirt.describe.bandwidth import OvsSettings, ovs_providers
from drivers.libvirt.describe.cards import UnitRecord, has_remote_managed_ports
from drivers.libvirt.describe.devices import (
    DeviceFacts,
    DeviceSettings,
    GuestDomain,
    card_contexts,
    describe_cards,
    needed_vdpa,
    vdpa_functions,
    with_vdpa,
)
from drivers.libvirt.describe.host import (
    HostFacts,
    describe_host,
    describe_topology,
    host_cells,
    reportable_traits,
    tpm_secret_traits,
    with_file_backed_cells,
    with_image_cache,
    with_managed_cpus,
    with_reserved_pages,
    with_tpm_secrets,
)
from drivers.libvirt.describe.memory import (
    EPC_CLASS,
    PmemLabels,
    encryption_providers,
    epc_providers,
    needed_contexts,
    needed_namespaces,
    with_context,
    with_epc,
    with_namespaces,
    with_used_namespaces,
)
from drivers.libvirt.describe.mixed_sizes import (
    describe_mixed,
    offers_sizes,
    record_sizes,
    restore_sizes,
    vgpu_units,
    with_vgpus,
)
from drivers.libvirt.describe.moves import (
    DeviceHistory,
    moves_of,
    record_cells,
    record_classes,
    record_interfaces,
    record_slots,
    restore_interfaces,
)
from drivers.libvirt.describe.unit_records import missing_records, unit_locations, update_records

REMOTE_MANAGED_PORTS = "COMPUTE_REMOTE_MANAGED_PORTS"


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """`name` is the host's; with `report_numa` each cell has a provider with its CPUs, memory and devices.

    `tpm_secrets` are the ways of keeping the secrets of emulated TPMs that this host's control plane has,
    `pmem` the classes of configured namespaces of persistent memory. With `file_backed_mb` the memory
    of guests is in files of that size together.
    """

    name: str
    host: HostSettings
    devices: DeviceSettings
    report_numa: bool = False
    tpm_secrets: frozenset[str] = frozenset()
    pmem: PmemLabels = field(default_factory=dict)
    ovs: OvsSettings = field(default_factory=OvsSettings)
    file_backed_mb: int = 0


@dataclass(frozen=True, slots=True)
class HostModel:
    """The answers of `Driver`, and what the driver needs for the next model.

    `units` {unit: record} and `history` are to be remembered. `missing` are the records of units that domains
    name and that do not exist now. `locations` {unit: location} has all described units. `encryption` are the
    providers of contexts for encrypted memory, `pmem` the namespaces of persistent memory.
    """

    description: Description
    topology: Topology
    guests: tuple[Guest, ...]
    units: Mapping[str, UnitRecord]
    missing: tuple[UnitRecord, ...]
    devices: DeviceFacts
    locations: Mapping[str, UnitLocation]
    history: DeviceHistory
    encryption: tuple[DescribedProvider, ...] = ()
    pmem: tuple[PmemNamespace, ...] = ()


def build_model(
    host: HostFacts,
    devices: DeviceFacts,
    domains: Sequence[GuestDomain],
    known: Mapping[str, UnitRecord],
    boot: str,
    settings: ModelSettings,
    history: DeviceHistory | None = None,
) -> HostModel:
    """The model of a host. The guests of `domains` have their devices as the XML names them.

    `known` are the records and `history` the history of the model before; `boot` is the id of the host's
    current boot. Raises DriverDataError where device specs contradict.
    """
    settings = replace(settings, host=with_image_cache(settings.host, host.image_cache_mb))
    host = with_managed_cpus(with_file_backed_cells(host, settings.file_backed_mb), settings.host)
    host = with_reserved_pages(host, settings.host)
    history = record_slots(record_interfaces(history or {}, devices.cards), devices.cards, known)
    devices = replace(devices, cards=restore_interfaces(devices.cards, history))
    history = record_sizes(history, devices, settings.devices)
    devices = restore_sizes(devices, history)
    domains = with_vdpa(domains, devices.cards)
    domains = with_vgpus(domains, vgpu_units(devices, settings.devices, known))
    named = _named_units(domains)
    missing = missing_records(named, devices, settings.devices, known)
    host_and_cells = describe_host(host, settings.host, settings.name, report_numa=settings.report_numa)
    host_and_cells = with_tpm_secrets(host_and_cells, settings.tpm_secrets)
    host_and_cells = with_namespaces(host_and_cells, host.pmem, settings.pmem)
    traits = (
        {REMOTE_MANAGED_PORTS} if has_remote_managed_ports(devices.cards, settings.devices.specs) else set()
    )
    traits |= {MEMORY_FILES} if settings.file_backed_mb else set()
    root, *others = host_and_cells
    host_and_cells = (replace(root, traits=root.traits | traits), *others)
    cells = host_cells(host)
    parent_of = _parent_names(host_and_cells, settings)
    contexts = card_contexts(devices, settings.devices, named, missing)
    cards = (
        *describe_cards((each for each in contexts if not offers_sizes(each)), settings.name, parent_of),
        *describe_mixed(filter(offers_sizes, contexts), settings.name, parent_of),
    )
    pages = page_providers(settings.name, cells, report_numa=settings.report_numa)
    encryption = tuple(encryption_providers(settings.name, host.guests))
    enclaves = epc_providers(settings.name, host.guests, report_numa=settings.report_numa)
    switch = ovs_providers(settings.name, settings.ovs)
    providers = (*host_and_cells, *encryption, *enclaves, *pages, *cards, *switch)
    locations = unit_locations(providers, devices, settings.devices, missing)
    located = [
        GuestDomain(
            with_devices_of_domain(
                locate_units(guest_domain.guest, locations),
                guest_domain.domain,
                encryption,
                host.pmem,
                settings,
            ),
            guest_domain.domain,
        )
        for guest_domain in domains
    ]
    with_mdevs = {card.key for card in devices.cards if card.mdev_parents or card.mdevs}
    history = record_cells(record_classes(history, cards, with_mdevs), host_and_cells)
    moves = moves_of(providers, _cell_totals(cells, settings), located, cells, history)
    all_read = all(guest_domain.domain is not None for guest_domain in domains)
    return HostModel(
        Description(providers, moves, _reportable(host, settings)),
        describe_topology(host, settings.host),
        tuple(guest_domain.guest for guest_domain in located),
        update_records(named, devices, settings.devices, locations, known, boot, forget=all_read),
        tuple(missing),
        devices,
        locations,
        history,
        encryption,
        host.pmem,
    )


def with_devices_of_domain(
    guest: Guest,
    domain: Domain | None,
    encryption: Collection[DescribedProvider],
    pmem: Iterable[PmemNamespace],
    settings: ModelSettings,
) -> Guest:
    """The located guest with what its domain has beside PCI and mediated devices; see `HostModel`."""
    guest = with_epc(with_context(guest, domain, encryption), domain)
    return with_used_namespaces(guest, domain, pmem, settings.pmem)


def with_other_devices(
    needs: DomainNeeds, xml: str, model: HostModel, settings: ModelSettings
) -> DomainNeeds:
    """The needs, with what only this driver knows: functions over vDPA, namespaces of memory, memory that is
    encrypted or for enclaves.

    Raises DriverDataError for malformed XML.
    """
    domain = DomainXml.parse(xml)
    vdpa = needed_vdpa(domain.root, vdpa_functions(model.devices.cards))
    memory = needed_namespaces(domain.memory_files, model.pmem, settings.pmem)
    amounts = needed_contexts(domain.is_encrypted, model.encryption)
    amounts |= {EPC_CLASS: domain.epc_mb} if domain.epc_mb else {}
    return replace(needs, devices=(*needs.devices, *vdpa, *memory), amounts=amounts)


def _reportable(host: HostFacts, settings: ModelSettings) -> frozenset[str]:
    return (
        reportable_traits(host)
        | tpm_secret_traits(settings.tpm_secrets)
        | {REMOTE_MANAGED_PORTS, MEMORY_FILES}
        | REPORTABLE
    )


def _named_units(guest_domains: Sequence[GuestDomain]) -> frozenset[str]:
    """The PCI addresses and the uuids of mediated devices that the domains name."""
    domains = [pair.domain for pair in guest_domains if pair.domain is not None]
    return frozenset(
        unit for domain in domains for unit in (*domain.pci_devices, *domain.interfaces, *domain.mdevs)
    )


def _parent_names(
    host_and_cells: Sequence[DescribedProvider], settings: ModelSettings
) -> Callable[[int | None], str]:
    """A function from a device's cell to its parent: the host, unless the cell has a provider."""
    names = {provider.name for provider in host_and_cells}

    def parent_of(numa: int | None) -> str:
        name = settings.name if numa is None else cell_provider_name(settings.name, numa)
        return name if name in names else settings.name

    return parent_of


def _cell_totals(cells: tuple[Cell, ...], settings: ModelSettings) -> dict[int, dict[str, int]]:
    """{cell id: {resource class: total}} as if each cell had a provider."""
    providers = host_providers(settings.name, cells, 0, frozenset(), settings.host, report_numa=True)
    return {
        cell.id: {name: inventory.total for name, inventory in provider.inventories.items()}
        for cell, provider in zip(cells, providers[1:], strict=True)
    }
