"""Compare what a guest uses with what it has: the amounts and units of its claim or allocation. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from agent.claims.claim import Claim, ClaimState
from agent.claims.rows import Row
from agent.claims.used import IDLE, Place, use_of
from agent.device_names import is_page_class
from agent.driver import Guest, GuestState
from agent.shapes import Allocations, Usages, beyond, by_class

NOT_HERE = IDLE | {GuestState.STARTING, GuestState.MIGRATING}
"""Guests in these states do not run on this host, or not yet."""

CPUS = "PCPU"

UNSEEN = frozenset({"DISK_GB"})
"""Classes of which a driver may see less than a guest has: it does not see disks of network storage."""

DEVICES = frozenset({"FPGA", "PCI_DEVICE", "PGPU", "SRIOV_NET_VF", "VGPU"})
"""Standard classes that a driver reports for each guest that has one, also without naming its unit."""

ExactUnits = Mapping[str, tuple[str, ...]]
"""{class: exact units}"""


@dataclass(frozen=True, slots=True)
class UseDifference:
    """How a guest's use differs from `has`, the allocations of its claim (`claim`), or those in Placement.

    `more` {provider uuid: {class: amount}} is used beyond that, `less` {class: amount} is not used. `extra`
    and `missing` are the exact units of such amounts. `swapped` {class: (units it has, units it uses)}.
    """

    has: Allocations
    claim: Claim | None = None
    more: Usages = field(default_factory=dict)
    less: Mapping[str, int] = field(default_factory=dict)
    extra: ExactUnits = field(default_factory=dict)
    missing: ExactUnits = field(default_factory=dict)
    swapped: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """How much differs; 0 where nothing does."""
        return sum(map(len, (*self.more.values(), self.less, self.swapped)))


def use_difference(row: Row, place: Place) -> UseDifference | None:
    """How the row's guest differs from what it has; None where that cannot be told, or nothing is claimed.

    Of several claims (a resize on the same host has an old one and a new one) the nearest one counts, because
    the guest is as one of them says. Without a claim, what Placement holds counts.
    """
    guest = row.guest
    if guest is None or guest.state in NOT_HERE or guest.problem is not None or not guest.resources:
        return None
    if any(claim.state is not ClaimState.CLAIMED for claim in row.claimed.values()):
        return None
    differences = [_difference(row.instance, guest, *pair, place) for pair in _possessions(row)]
    return min(differences, key=lambda difference: difference.size, default=None)


def _possessions(row: Row) -> Iterator[tuple[Allocations, Claim | None]]:
    if not row.claimed:
        yield from ((allocations, None) for allocations in row.held.values())
    for claim in row.claimed.values():
        yield claim.allocations, claim


def _difference(
    instance: str, guest: Guest, has: Allocations, claim: Claim | None, place: Place
) -> UseDifference:
    alone = Row(instance, {instance: has}, {claim.consumer: claim} if claim else {}, guest)
    used = use_of(alone, place)
    exact = {name for classes in place.offered.values() for name in classes}
    totals, in_use = Counter(by_class(has.values())), Counter(guest.resources)
    if claim is not None:
        totals[CPUS] -= len(_withheld(claim))
    for name, count in Counter(unit.resource_class for unit in guest.units).items():
        in_use[name] = max(in_use[name], count)
    seen = {*guest.resources, *exact, *(DEVICES & place.host.by_class.keys())} - UNSEEN
    less = {
        name: amount - in_use[name]
        for name, amount in totals.items()
        if name in seen and in_use[name] < amount
    }
    is_more = {name: _is_more(name, exact, totals, in_use) for name in in_use}
    more = {
        uuid: kept
        for uuid, amounts in beyond(used.amounts, has).items()
        if (kept := {name: amount for name, amount in amounts.items() if is_more.get(name, False)})
    }
    extra, missing, swapped = _units(guest, claim, less) if claim else ({}, {}, {})
    return UseDifference(has, claim, more, less, extra, missing, swapped)


def _is_more(name: str, exact: set[str], totals: Mapping[str, int], in_use: Mapping[str, int]) -> bool:
    """Whether the amount that exceeds a provider's is more in all: an exact unit elsewhere is another unit.

    Pages are counted by the claim's cells, also where no allocation has them.
    """
    if is_page_class(name):
        return False
    return name not in exact or in_use.get(name, 0) > totals.get(name, 0)


def _units(
    guest: Guest, claim: Claim, less: Mapping[str, int]
) -> tuple[ExactUnits, ExactUnits, Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]]:
    """(extra, missing, swapped) units; the driver may report an amount without its units."""
    claimed: dict[str, list[str]] = {}
    withheld = _withheld(claim)
    for _, name, unit in claim.exact:
        if name != CPUS or unit not in withheld:
            claimed.setdefault(name, []).append(unit)
    used: dict[str, list[str]] = {}
    for used_unit in guest.units:
        used.setdefault(used_unit.resource_class, []).append(used_unit.unit)
    extra, missing, swapped = {}, {}, {}
    for name in sorted(claimed.keys() | used.keys()):
        others = [unit for unit in used.get(name, ()) if unit not in claimed.get(name, ())]
        absent = [unit for unit in claimed.get(name, ()) if unit not in used.get(name, ())]
        named = [unit for unit in absent if unit not in claim.replaceable]
        pairs = min(len(others), len(named))
        if pairs:
            swapped[name] = (tuple(named[:pairs]), tuple(others[:pairs]))
        if len(others) > len(absent):
            extra[name] = tuple(others[len(absent) :])
        if less.get(name):
            missing[name] = tuple(absent[pairs:])
    return extra, missing, swapped


def _withheld(claim: Claim) -> frozenset[str]:
    """The dedicated CPUs that the claim keeps from all guests: the siblings of isolated CPUs."""
    return frozenset(str(cpu) for cell in claim.cells for cpu in cell.withheld)
