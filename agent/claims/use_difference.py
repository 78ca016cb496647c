"""A guest's use beside its claim: how they differ, and the claim that follows a guest which changed. Pure.

The difference compares the amounts and units that a guest uses with those of its claim, or of its
allocation.

A claim that follows has what came, and is without what went. What came is what the guest uses beyond its
claim. What went is what the guest had and does not have any more: what is claimed and was never given to
the guest stays claimed. Disk space never goes, because drivers do not see all of it. A claim with NUMA
cells follows devices only: its CPUs and its memory were placed together.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from agent.claims.attribution import Place, use_of
from agent.claims.claim import Claim, ClaimState
from agent.claims.guest_cells import wants_cells
from agent.claims.request import (
    DEVICE_PREFIX,
    GROUPS_MAX,
    ClaimRequest,
    RequestGroup,
    check_request,
    is_device_group,
)
from agent.claims.rows import Row
from agent.device_names import is_page_class
from agent.driver import Guest
from agent.errors import UsageError
from agent.shapes import Allocations, Usages, add_units, beyond, by_class

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
    if guest is None or not guest.is_here or guest.problem is not None or not guest.resources:
        return None
    if any(claim.state is not ClaimState.CLAIMED for claim in row.claimed.values()):
        return None
    has: list[tuple[Allocations, Claim | None]] = [
        (claim.allocations, claim) for claim in row.claimed.values()
    ]
    has = has or [(allocations, None) for allocations in row.held.values()]
    differences = [_difference(row.instance, guest, *pair, place) for pair in has]
    return min(differences, key=lambda difference: difference.size, default=None)


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
    # An amount that exceeds a provider's is not always more in all: an exact unit elsewhere is another unit,
    # and pages are counted by the claim's cells, also where no allocation has them.
    is_more = {
        name: not is_page_class(name) and (name not in exact or amount > totals.get(name, 0))
        for name, amount in in_use.items()
    }
    more = {
        uuid: kept
        for uuid, amounts in beyond(used.amounts, has).items()
        if (kept := {name: amount for name, amount in amounts.items() if is_more.get(name, False)})
    }
    extra, missing, swapped = _units(guest, claim, less) if claim else ({}, {}, {})
    return UseDifference(has, claim, more, less, extra, missing, swapped)


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


PLUGGED_PREFIX = "plugged_"
"""Prefix of the suffixes of the groups for units that were plugged into a running guest, one a provider."""

_OF_CELLS = frozenset({"VCPU", "PCPU", "MEMORY_MB"})


@dataclass(frozen=True, slots=True)
class Had:
    """What a guest used at one moment, or the most that it used at several: amounts, and (class, unit)."""

    amounts: Mapping[str, int] = field(default_factory=dict)
    units: frozenset[tuple[str, str]] = frozenset()

    @classmethod
    def of(cls, guest: Guest) -> "Had":
        """What the guest uses now."""
        return cls(dict(guest.resources), frozenset((unit.resource_class, unit.unit) for unit in guest.units))

    def and_now(self, guest: Guest) -> "Had":
        """The most of both."""
        now = Had.of(guest)
        return Had(dict(Counter(self.amounts) | Counter(now.amounts)), self.units | now.units)


def followed(row: Row, place: Place, had: Had) -> Claim | None:
    """The claim with what the guest uses now, the same one if nothing changed. `had`: what the guest had.

    None where no claim may follow: the row is in a move, the claim is in doubt, or the guest does not run or
    could not be read.
    """
    claim = row.claimed.get(row.instance)
    guest = row.guest
    if claim is None or len(row.claimed) > 1 or claim.state is not ClaimState.CLAIMED:
        return None
    if guest is None or not guest.is_here or guest.problem is not None or not guest.resources:
        return None
    change = _Change(claim, guest, place, had)
    change.follow_units()
    change.follow_amounts()
    return change.result()


class _Change:
    """The changes to one claim; use it once."""

    def __init__(self, claim: Claim, guest: Guest, place: Place, had: Had) -> None:
        self._claim = claim
        self._guest = guest
        self._had = had
        alone = Row(guest.uuid, {guest.uuid: claim.allocations}, {claim.consumer: claim}, guest)
        self._use = use_of(alone, place)
        self._exact = {
            name for by_class in (*place.offered.values(), *claim.units.values()) for name in by_class
        }
        self._fixed = _OF_CELLS if claim.cells or wants_cells(claim.request.topology) else frozenset[str]()
        self._allocations = {uuid: Counter(amounts) for uuid, amounts in claim.allocations.items()}
        self._units = {uuid: {n: list(u) for n, u in by.items()} for uuid, by in claim.units.items()}
        self._request = _RequestChange(claim)

    def follow_units(self) -> None:
        """Take away the units that went, and add those that came."""
        used = {
            (name, unit): uuid
            for uuid, by_class in self._use.units.items()
            for name, exact in by_class.items()
            for unit in exact
        }
        claimed = {(name, unit) for _, name, unit in self._claim.exact}
        to_be_made = {name for _, name, unit in self._claim.exact if unit in self._claim.makings}
        went = [
            (uuid, name, unit)
            for uuid, name, unit in self._claim.exact
            if (name, unit) not in used and (name, unit) in self._had.units and name not in self._fixed
        ]
        came = [
            (uuid, name, unit)
            for (name, unit), uuid in sorted(used.items())
            if (name, unit) not in claimed and name not in self._fixed | to_be_made
        ]
        for uuid, name, unit in went:
            self._units[uuid][name].remove(unit)
            self._add(uuid, name, -1)
            for other, amount in self._request.remove_unit(name, unit).items():
                self._add(uuid, other, -min(amount, self._allocations[uuid][other]))
        for uuid, name, unit in came:
            self._units.setdefault(uuid, {}).setdefault(name, []).append(unit)
            self._add(uuid, name, 1)
            self._request.add_unit(uuid, name, unit)

    def follow_amounts(self) -> None:
        """Follow the classes without exact units, such as VCPU and MEMORY_MB."""
        claimed: Counter[str] = Counter()
        for amounts in self._claim.allocations.values():
            claimed.update(amounts)
        for name in sorted({*self._guest.resources, *self._had.amounts} - self._exact - self._fixed):
            if is_page_class(name):
                continue
            now, had = self._guest.resources.get(name, 0), self._had.amounts.get(name, 0)
            if now > claimed[name]:
                self._request.add(name, sum(self._deal(name, now - claimed[name])))
            elif now < min(had, claimed[name]) and name not in UNSEEN:
                self._request.remove(name, sum(self._take_back(name, min(had, claimed[name]) - now)))

    def _deal(self, name: str, left: int) -> Iterator[int]:
        """Add that amount where the guest uses more than is claimed there."""
        for uuid, amounts in sorted(self._use.amounts.items()):
            part = min(left, amounts.get(name, 0) - self._allocations.get(uuid, Counter())[name])
            if part > 0:
                self._add(uuid, name, part)
                left -= part
                yield part

    def _take_back(self, name: str, left: int) -> Iterator[int]:
        """Take away that amount where more is claimed than the guest uses there."""
        for uuid, amounts in sorted(self._allocations.items(), reverse=True):
            part = min(left, amounts[name] - self._use.amounts.get(uuid, {}).get(name, 0))
            if part > 0:
                self._add(uuid, name, -part)
                left -= part
                yield part

    def _add(self, uuid: str, name: str, amount: int) -> None:
        self._allocations.setdefault(uuid, Counter())[name] += amount

    def result(self) -> Claim | None:
        """The claim; None where no request could say what it has."""
        allocations = {uuid: dict(+amounts) for uuid, amounts in self._allocations.items() if +amounts}
        units = {uuid: {n: tuple(u) for n, u in by.items() if u} for uuid, by in self._units.items()}
        units = {uuid: by_class for uuid, by_class in units.items() if by_class}
        if (allocations, units) == (self._claim.allocations, self._claim.units):
            return self._claim
        request = self._request.result()
        if request is None:
            return None
        kept = {unit for by_class in units.values() for exact in by_class.values() for unit in exact}
        return replace(
            self._claim,
            request=request,
            allocations=allocations,
            units=units,
            makings={unit: making for unit, making in self._claim.makings.items() if unit in kept},
            group_units=self._request.group_units,
        )


class _RequestChange:
    """The changes to the request of a claim, and to which group has which units."""

    def __init__(self, claim: Claim) -> None:
        self._request = claim.request
        self._groups = {group.suffix: group for group in claim.request.groups}
        self._plugged = {
            uuid: suffix
            for suffix, by_class in claim.group_units.items()
            if suffix.startswith(PLUGGED_PREFIX)
            for uuid, name, unit in claim.exact
            if unit in by_class.get(name, ())
        }
        self.group_units = {s: dict(by_class) for s, by_class in claim.group_units.items()}

    def add(self, name: str, amount: int, suffix: str = "") -> None:
        """Let the group, a new one if necessary, ask for more of the class."""
        group = self._groups.get(suffix) or RequestGroup(suffix)
        resources = {**group.resources, name: group.resources.get(name, 0) + amount}
        if amount:
            self._groups[suffix] = replace(group, resources=resources)

    def add_unit(self, uuid: str, name: str, unit: str) -> None:
        """Let the group of the units that were plugged on this provider ask for this unit."""
        suffix = self._plugged.get(uuid)
        if suffix is None:
            numbers = (f"{PLUGGED_PREFIX}{number}" for number in range(len(self._groups) + 1))
            suffix = self._plugged[uuid] = next(one for one in numbers if one not in self._groups)
        self.add(name, 1, suffix)
        add_units(self.group_units, suffix, name, unit)

    def remove(self, name: str, amount: int) -> None:
        """Let the groups ask for less of the class, the unsuffixed one first."""
        for suffix in sorted(self._groups):
            part = min(amount, self._groups[suffix].resources.get(name, 0))
            if part:
                self.add(name, -part, suffix)
                amount -= part

    def remove_unit(self, name: str, unit: str) -> Mapping[str, int]:
        """Let the group that has the unit ask for one less.

        A suffixed group that has no unit left is removed: returns what else it asked for, such as bandwidth.
        """
        suffix = next((s for s, by in self.group_units.items() if unit in by.get(name, ())), None)
        if suffix is None or suffix not in self._groups:
            self.remove(name, 1)
            return {}
        self.add(name, -1, suffix)
        by_class = self.group_units[suffix]
        by_class[name] = tuple(other for other in by_class[name] if other != unit)
        if any(by_class.values()):
            return {}
        del self.group_units[suffix]
        self._plugged = {uuid: other for uuid, other in self._plugged.items() if other != suffix}
        return {name: amount for name, amount in self._groups.pop(suffix).resources.items() if amount > 0}

    def result(self) -> ClaimRequest | None:
        """The request; None where `check_request` would refuse it."""
        groups = [
            replace(group, resources={name: n for name, n in group.resources.items() if n > 0})
            for group in self._groups.values()
        ]
        named = frozenset().union(*self._request.same_subtree)
        groups = [group for group in groups if group.resources or group.suffix in named]
        suffixes = {group.suffix for group in groups}
        subtrees = (subtree & suffixes for subtree in self._request.same_subtree)
        # A request without two groups of its own, beside those of aliases, needs no policy.
        policy = self._request.group_policy
        if sum(1 for group in groups if group.suffix and not is_device_group(group)) > 1:
            policy = policy or "none"
        elif policy == "none":
            policy = None
        request = replace(
            self._request,
            groups=tuple(groups),
            group_policy=policy,
            same_subtree=tuple(subtree for subtree in subtrees if subtree),
        )
        try:
            return check_request(self._with_aliases(request)) if len(groups) <= GROUPS_MAX else None
        except UsageError:
            return None

    def _with_aliases(self, request: ClaimRequest) -> ClaimRequest:
        """The request with the aliases of the device groups that are left, numbered anew."""
        names = [name for name, count in self._request.pci for _ in range(count)]
        left = [group for group in request.groups if is_device_group(group)]
        if not names or len(left) == len(names):
            return request
        renamed = {group.suffix: f"{DEVICE_PREFIX}{number}" for number, group in enumerate(left)}
        numbers = (group.suffix.removeprefix(DEVICE_PREFIX) for group in left)
        kept = [names[int(text)] for text in numbers if text.isdecimal() and int(text) < len(names)]
        self.group_units = {renamed.get(s, s): by_class for s, by_class in self.group_units.items()}
        return replace(
            request,
            pci=tuple((name, 1) for name in kept),
            groups=tuple(replace(g, suffix=renamed.get(g.suffix, g.suffix)) for g in request.groups),
            same_subtree=tuple(
                frozenset(renamed.get(suffix, suffix) for suffix in subtree)
                for subtree in request.same_subtree
            ),
        )
