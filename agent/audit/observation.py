"""What one audit pass reads: the guests, the claims and moves, and Placement's allocations. Pure.

The audit compares these three sources, as the columns of the book's rows: used, claimed and held. A
difference between them is a finding (`agent.audit.findings`).

The suspects are the consumers and the moves that the audit reads in full, because one observation makes
them suspicious. To read everything that a consumer holds costs a request for each consumer. A healthy host
has no suspects.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agent.claims.attribution import Place, use_of
from agent.claims.claim import Claim, ClaimState, Shortfall
from agent.claims.fit import ProviderIndex
from agent.claims.host_cells import HostCells
from agent.claims.rows import Row
from agent.driver import Guest
from agent.moves.ownership import may_be_migration
from agent.moves.states import MIGRATION_TYPE, Move, MoveRole, MoveState
from agent.placement.client import ConsumerAllocations
from agent.providers.device_health import CELL, DeviceHealth
from agent.providers.reservations import with_reserved
from agent.reshape.claimed_units import ExactUnits
from agent.reshape.laws import Instruction
from agent.shapes import Allocations, Held, Units, Usages, by_class, total


@dataclass(frozen=True, slots=True)
class Observation:
    """The state of one host, as the driver, the agent and Placement show it at about the same time.

    `guests`: {consumer uuid: guest}, from the driver. `claims`: {consumer uuid: claim} and `moves`, from the
    agent. `holders`: {provider uuid: {consumer uuid: {class: amount}}}, from Placement, for the providers of
    this host's own tree. `devices`: {device: provider uuid}. `offered`: the exact units of the driver.

    `shared`: {consumer without a claim: its allocations on providers shared with this host}. `elsewhere`:
    {instance: all its allocations} of the claims that have none here any more, and `types`: {consumer that
    may hold the place of such a claim, or of a guest without an allocation: its type}. `departed`: {guest
    without an allocation here: all that its instance has}, where the consumer to be judged may hold its
    place. `moved_away`: the guests that the agent knows to have moved away. `unreserved`: the host without
    what the agent reserves, None: nothing is reserved; and `unheld` {instance: {provider uuid: {class:
    amount}}} what it reserves, as it is claimed or used and not held. `ages`: {consumer: how many seconds ago
    its claim was made}.
    `unhealthy`: {address: health} of the devices that are not well.
    `whereabouts`: {consumer of a claim whose place a reshape may have moved under another consumer: the
    allocations that the place may be by now}; the agent follows that at its next verification.
    `leads` are the driver's move instructions: to where a reshape may have moved what a claim has, of which
    the agent's restored journal does not know.
    `vanished`: the (provider uuid, class) of which the host has no more, and of which something is allocated.
    `lost`: the consumers whose claims a restored database of Placement does not have.
    `emptied`: the claims of which a pass saw that Placement holds nothing for them or in their place.
    `left` {instance on another host: the consumers that may hold its place here}, as of the last pass.
    `migrations`: how many the owner of the consumer to be judged has in Placement, where it may be an
    instance that a control plane moves to this host; None where Placement cannot tell.
    `found`: the guests that were here before the state directory, see `Place`. `settling`: the consumers of
    which the agent itself is finding out what became of a write.
    """

    host: ProviderIndex
    guests: Mapping[str, Guest]
    claims: Mapping[str, Claim]
    moves: Collection[Move]
    holders: Held
    devices: Mapping[str, str] = field(default_factory=dict)
    offered: Units = field(default_factory=dict)
    cells: HostCells = field(default_factory=HostCells)
    shared: Mapping[str, Allocations] = field(default_factory=dict)
    unreserved: ProviderIndex | None = None
    unheld: Mapping[str, Usages] = field(default_factory=dict)
    elsewhere: Mapping[str, Allocations] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    departed: Mapping[str, ConsumerAllocations] = field(default_factory=dict)
    moved_away: frozenset[str] = frozenset()
    ages: Mapping[str, float] = field(default_factory=dict)
    unhealthy: Mapping[str, DeviceHealth] = field(default_factory=dict)
    whereabouts: Mapping[str, Collection[Allocations]] = field(default_factory=dict)
    leads: Sequence[Instruction] = ()
    vanished: frozenset[tuple[str, str]] = frozenset()
    found: frozenset[str] = frozenset()
    left: Mapping[str, Collection[str]] = field(default_factory=dict)
    migrations: int | None = 0
    settling: frozenset[str] = frozenset()
    lost: frozenset[str] = frozenset()
    emptied: frozenset[str] = frozenset()

    def allocations_here(self, consumer: str) -> Allocations:
        """The consumer's allocations on this host's own providers, as Placement lists them by provider."""
        return {uuid: on_it[consumer] for uuid, on_it in self.holders.items() if consumer in on_it}

    def without(self, consumers: Collection[str]) -> "Observation":
        """The observation as if these consumers held nothing on this host: their claims have ended since."""
        if not consumers:
            return self
        holders = {
            uuid: {consumer: amounts for consumer, amounts in on_it.items() if consumer not in consumers}
            for uuid, on_it in self.holders.items()
        }
        return replace(self, holders=holders)

    def without_room(self, allocations: Allocations) -> str:
        """What of these allocations no provider of this host can give now, to any consumer: "3 VCPU on a".

        A reshape moved it, or waits and has its inventory reserved; or the device has vanished.
        """
        tree = (self.unreserved or self.host).tree
        lacking = []
        for uuid, amounts in sorted(allocations.items()):
            provider = tree.get(uuid)
            for name, amount in sorted(amounts.items()) if self.host.is_own(uuid) or not provider else ():
                inventory = provider.inventories.get(name) if provider else None
                if inventory is None or inventory.capacity < amount:
                    lacking.append(f"{amount} {name} on {provider.name if provider else uuid}")
        return ", ".join(lacking)

    def own_part(self, allocations: Allocations) -> Allocations:
        """The part of these allocations that is on this host's own providers."""
        return {uuid: amounts for uuid, amounts in allocations.items() if amounts and self.host.is_own(uuid)}

    def holders_of(self, address: str) -> tuple[str, ...]:
        """The consumers whose claim or guest has the device, or a part of it where it is a card.

        Of a cell's memory: those that Placement has on its large pages.
        """
        if address.startswith(CELL):
            kind = f"pages:{address.removeprefix(CELL)}:"
            pages = (
                self.holders.get(uuid, {}) for device, uuid in self.devices.items() if device.startswith(kind)
            )
            return tuple(sorted({consumer for on_it in pages for consumer in on_it}))
        card = self.devices.get(f"pci:{address}")
        units = {unit for exact in self.offered.get(card or "", {}).values() for unit in exact} | {address}
        claimed = (
            consumer
            for consumer, claim in self.claims.items()
            for classes in claim.units.values()
            if any(units.intersection(exact) for exact in classes.values())
        )
        used = (
            guest.uuid for guest in self.guests.values() if any(each.unit in units for each in guest.units)
        )
        return tuple(sorted({*claimed, *used}))

    @property
    def consumers(self) -> frozenset[str]:
        """The consumers with an allocation on this host's own providers."""
        return frozenset(consumer for on_it in self.holders.values() for consumer in on_it)

    @property
    def consumers_in_moves(self) -> frozenset[str]:
        """The instances and migrations of moves that have not ended."""
        return frozenset(
            consumer for move in self.moves if not move.ended for consumer in (move.instance, move.migration)
        )

    @property
    def exact_units(self) -> ExactUnits:
        """The exact units that the driver offers, and the guests that use some of them."""
        return ExactUnits(self.offered, tuple(self.guests.values()))

    @property
    def place(self) -> Place:
        """The host as the book sees it."""
        return Place(self.host, self.offered, self.cells, self.found)

    @property
    def instances(self) -> Mapping[str, str]:
        """{migration: instance} of the moves that have not ended."""
        return {move.migration: move.instance for move in self.moves if not move.ended}

    def rows(self) -> Mapping[str, Row]:
        """{instance: row}, by what was read here; the migration of a move under way is in its instance's."""
        place, instances = self.place, self.instances
        consumers = self.consumers | self.claims.keys() | self.guests.keys()
        return {
            instance: self.row(instance, place)
            for instance in {instances.get(consumer, consumer) for consumer in consumers}
        }

    def row(self, instance: str, place: Place) -> Row:
        """The row of one instance."""
        migrations = (migration for migration, moving in self.instances.items() if moving == instance)
        members = (instance, *migrations)
        held = {who: {**self.allocations_here(who), **self.shared.get(who, {})} for who in members}
        row = Row(
            instance,
            {who: allocations for who, allocations in held.items() if allocations},
            {who: self.claims[who] for who in members if who in self.claims},
            self.guests.get(instance),
        )
        return replace(row, used=use_of(row, place))

    def lost_claims(self) -> Collection[Claim]:
        """The claims whose consumers have no allocation on this host's own providers."""
        present = self.consumers
        return tuple(claim for consumer, claim in self.claims.items() if consumer not in present)

    def may_have_place_of(self, guest: Guest, here: Allocations, consumer_type: str) -> bool:
        """Whether a consumer with these allocations and that type may be the migration of that guest.

        Of a guest of which Placement has nothing any more. Nothing says whose a migration is then, and what
        the guest uses may have changed since. A consumer without a type counts only with just what the guest
        uses; so does a migration, where the guest is a definition that does not run and has no claim.
        """
        if not may_be_migration(consumer_type):
            return False
        is_instance = not guest.is_off or guest.uuid in self.claims
        is_migration = consumer_type == MIGRATION_TYPE
        return (is_migration and is_instance) or Counter(by_class(here.values())) == Counter(guest.resources)

    def lacking(self, consumer: str, allocations: Allocations) -> tuple[Shortfall, ...]:
        """Why Placement would refuse these allocations for the consumer: others have the place, or a limit.

        On this host's own providers. What is reserved for the consumer's own row is free for it; what other
        rows need, and Placement does not hold, is not.
        """
        instances = self.instances
        row = instances.get(consumer, consumer)
        others = total(amounts for each, amounts in self.unheld.items() if instances.get(each, each) != row)
        offered = (self.unreserved or self.host).tree
        tree = with_reserved(offered, others)
        shortfalls = []
        for uuid, amounts in allocations.items():
            if not self.host.is_own(uuid):
                continue
            provider, on_it = tree.get(uuid), self.holders.get(uuid, {})
            for name, amount in amounts.items():
                inventory = provider.inventories.get(name) if provider else None
                if inventory is None:
                    shortfalls.append(Shortfall.at(provider, name, amount, 0, "there is none of it any more"))
                    continue
                held = sum(each.get(name, 0) for who, each in on_it.items() if who != consumer)
                free = max(0, int(inventory.capacity) - held)
                if amount > free:
                    whole = int(offered[uuid].inventories[name].capacity)
                    reason = f"only {free} of {whole} are free"
                    shortfalls.append(Shortfall.at(provider, name, amount, free, reason))
                elif amount > inventory.max_unit:
                    reason = f"max_unit is {inventory.max_unit}"
                    shortfalls.append(Shortfall.at(provider, name, amount, free, reason))
        return tuple(shortfalls)


def suspects(observation: Observation) -> frozenset[str]:
    """The consumers whose guest, claim and allocation here do not agree.

    Of those in moves: the ones that have an allocation here, and another one than their claim.
    """
    moving = observation.consumers_in_moves
    found = set()
    for consumer in observation.consumers | observation.claims.keys() | observation.guests.keys():
        claim, here = observation.claims.get(consumer), observation.allocations_here(consumer)
        differs = claim is not None and observation.own_part(claim.allocations) != here
        if consumer in moving:
            is_suspect = differs and bool(here)
        elif claim is None:
            is_suspect = consumer not in observation.guests or not here
        else:
            is_suspect = differs or claim.state is not ClaimState.CLAIMED
        if is_suspect:
            found.add(consumer)
    return frozenset(found)


def suspect_moves(observation: Observation) -> Iterator[Move]:
    """The moves that may not end by themselves: another program may have ended or abandoned them."""
    for move in observation.moves:
        if move.state is MoveState.LEAVING:
            is_suspect = move.instance in observation.guests
        elif move.state is not MoveState.BEGUN:
            is_suspect = False
        elif move.role is MoveRole.BOTH:
            is_suspect = bool(move.handed) and not observation.allocations_here(move.migration)
        else:
            left = move.adopted and not observation.allocations_here(move.instance)
            is_suspect = move.role is MoveRole.SOURCE or left
        if is_suspect:
            yield move
