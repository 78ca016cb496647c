"""Options on devices that match nothing on this host: misspelt ones, or those of another host. Pure."""

from collections.abc import Iterator
from dataclasses import fields, replace

from drivers.libvirt.describe.cards import parents_for
from drivers.libvirt.describe.device_spec import DeviceSpec
from drivers.libvirt.describe.devices import DeviceFacts, DeviceSettings
from drivers.libvirt.describe.mixed_sizes import contradictions
from drivers.libvirt.describe.remote_managed import without_serial

_SELECTS = ("vendor_id", "product_id", "address", "interface")


def unmatched_options(facts: DeviceFacts, settings: DeviceSettings) -> Iterator[str]:
    """A sentence for each spec, type, address and interface that matches no device, or not all it names."""
    for number, spec in enumerate(settings.specs, start=1):
        selected = replace(spec, remote_managed=False)  # without_serial says which of those are left out
        if not any(
            selected.matches(function, card) for card in facts.cards for function in (card.device, *card.vfs)
        ):
            yield f"[pci] device_spec number {number} ({_selection(spec)}) matches no device of this host."
    yield from without_serial(facts.cards, settings.specs)
    addresses = {
        function.address for card in facts.cards for function in (card.device, *card.vfs, *card.mdev_parents)
    }
    for mdev in settings.mdevs:
        for address in sorted(mdev.addresses - addresses):
            yield f"[mdev_{mdev.type_id}] device_addresses names {address}, which this host does not have."
        # A vendor's own VFIO driver shows a type only once a function has it.
        if not facts.vgpu_types and not any(
            parents_for(card, mdev.type_id, mdev.addresses) for card in facts.cards
        ):
            yield f"[devices] enabled_mdev_types names {mdev.type_id}, which no card of this host offers."
    yield from contradictions(facts, settings)
    interfaces = {card.interface.interface for card in facts.cards if card.interface is not None}
    for interface in sorted(settings.bandwidth.keys() - interfaces):
        yield (
            f"[sriov_nic] resource_provider_bandwidths names the interface {interface}, which no network "
            "card of this host has."
        )


def _selection(spec: DeviceSpec) -> str:
    chosen = {field.name: getattr(spec, field.name) for field in fields(spec) if field.name in _SELECTS}
    return ", ".join(f"{name} {value}" for name, value in chosen.items() if value is not None) or "any device"
