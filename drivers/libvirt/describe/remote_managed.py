"""Functions for ports that a network service plugs on the card itself (remote_managed). Pure.

As in nova: the service finds the card by the serial number in its vital product data (VPD), so a function
without one is not of these, and a physical function never is.
Source: nova 34, nova/pci/devspec.py; https://docs.openstack.org/neutron/latest/admin/ovn/smartnic_dpu.html
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from agent.errors import DriverDataError
from drivers.libvirt.describe.cards import Card
from drivers.libvirt.describe.device_spec import DeviceSpec


def has_remote_managed_ports(cards: Iterable[Card], specs: Iterable[DeviceSpec]) -> bool:
    """Whether a virtual function is for ports that a network service manages on the card itself."""
    managed = [spec for spec in specs if spec.remote_managed]
    return any(spec.matches(vf, card) for card in cards for vf in card.vfs for spec in managed)


def check_remote_managed(cards: Iterable[Card], specs: Iterable[DeviceSpec]) -> None:
    """Check that no spec makes a physical function remote_managed. Raises DriverDataError where one does."""
    managed = [spec for spec in specs if spec.remote_managed]
    for card in cards:
        if card.device.vfs_max is None:
            continue
        for spec in managed:
            if spec.names_card(card):
                _check_of_virtual_functions(spec, card)


def _check_of_virtual_functions(spec: DeviceSpec, card: Card) -> None:
    """A spec that names a card means its virtual functions only by their product. Raises DriverDataError."""
    device = card.device
    products = {vf.product_id for vf in card.vfs}
    of_vendor = spec.vendor_id in (None, device.vendor_id)
    of_card = spec.product_id in (None, device.product_id)
    if of_vendor and (spec.product_id in products or not (products or of_card)):
        return
    named = f"[pci] device_spec has remote_managed for {device.address}, a physical function"
    if of_vendor and of_card:
        raise DriverDataError(
            f"{named}: guests cannot reach the far side of its port; give the product_id of its virtual "
            f"functions{_among(products)}"
        )
    raise DriverDataError(
        f"{named}, with vendor_id {spec.vendor_id or 'any'} and product_id {spec.product_id}: its virtual "
        f"functions have vendor_id {device.vendor_id} and another product_id{_among(products)}"
    )


def _among(products: Iterable[str]) -> str:
    listed = ", ".join(sorted(products))
    return f" ({listed})" if listed else ""


def without_serial(cards: Iterable[Card], specs: Iterable[DeviceSpec]) -> Iterator[str]:
    """A sentence for each spec that leaves virtual functions out because their card has no serial number."""
    cards = tuple(cards)
    for number, spec in enumerate(specs, start=1):
        wider = replace(spec, remote_managed=False)
        left_out = [
            vf.address
            for card in cards
            for vf in card.vfs
            if wider.matches(vf, card) and not spec.matches(vf, card)
        ]
        if left_out:
            yield (
                f"[pci] device_spec number {number}: remote_managed needs the serial number in the card's "
                f"vital product data (VPD), and libvirt reports none for {', '.join(left_out)}."
            )
