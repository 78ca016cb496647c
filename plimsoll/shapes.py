"""The values of the agent's API, one a schema of its OpenAPI document, by `./dev generate`.

A field of an answer that these classes do not have is ignored. In what is sent, a field that is None is left
out where it has a default. A text may have values that a newer agent has and this document does not name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from plimsoll.values import Held


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """What is asked for beside a domain's XML: by groups, by a flavor, or nothing."""

    flavor: Flavor | None = None
    image: Mapping[str, str | int | bool] | None = None
    root_required: tuple[str, ...] | None = None
    groups: tuple[Group, ...] | None = None
    group_policy: str | None = None
    same_subtree: tuple[tuple[str, ...], ...] | None = None
    topology: Topology | None = None
    pci: tuple[PciRequest, ...] | None = None
    alternatives: tuple[Alternative, ...] | None = None
    """what is asked for where the body, and the alternatives before, do not fit; in the order of preference
    """
    name: str | None = None
    """for people"""
    project_id: str | None = None
    user_id: str | None = None
    consumer_type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """What is asked for in another way, by groups or by a flavor."""

    flavor: Flavor | None = None
    image: Mapping[str, str | int | bool] | None = None
    root_required: tuple[str, ...] | None = None
    groups: tuple[Group, ...] | None = None
    group_policy: str | None = None
    same_subtree: tuple[tuple[str, ...], ...] | None = None
    topology: Topology | None = None
    pci: tuple[PciRequest, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The findings of an audit."""

    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """How many guests that ask for this the host can still get, one after the other."""

    asked: Resources
    """summed up over the groups"""
    guests: int
    more: bool
    """true: the count ended there, and further guests may fit"""
    shortfalls: tuple[Shortfall, ...]
    """why not one more"""
    stranded: tuple[Stranded, ...]
    notes: tuple[str, ...] | None = None
    """sentences on extra specs and image properties without effect, in the answer to a request with such"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What would make room on a host."""

    kind: str
    """instances leave; a pending reshape is done; a reservation of a whole class is lifted; a closed host is
    opened
    """
    host: str
    providers: tuple[str, ...]
    """of which the reservation is lifted, or the shared ones of which the instances have a part"""
    instances: Mapping[str, str]
    """{consumer: the host with room for what it holds, empty if none was found}"""
    migrations: tuple[str, ...]
    """of the instances, migrations: each gives its place back when its move is confirmed"""
    reverts: tuple[str, ...]
    """of the instances, those that give their place back when their move is reverted"""
    reason: str
    """why the reshape waits"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(Held):
    """A claim of an instance on this host."""

    consumer: str
    name: str
    state: str
    adopted: bool
    """true: the agent did not write the allocation, it found it in Placement"""
    since: datetime
    """when the claim was made or adopted; a move makes a new one; RFC 3339, UTC"""
    allocations: Allocations
    units: Units
    cells: tuple[GuestCell, ...]
    """the guest's NUMA cells, empty for a guest without a NUMA topology"""
    to_make: Mapping[str, Making]
    """{unit that did not exist when the agent chose it: what to make}"""
    mappings: tuple[GroupMapping, ...]
    """which group got what, by suffix"""
    request: ClaimRequest
    made_by: Maker | None
    """null: the agent itself, as for a guest that ran"""
    notes: tuple[str, ...] | None = None
    """sentences on extra specs and image properties without effect, in the answer to a request with such"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimByFlavor:
    """A claim, asked for by a flavor."""

    consumer: str | None = None
    """the instance; only a claim with a name may leave it out: it is the instance of this host that has the
    name, else a new one
    """
    flavor: Flavor
    image: Mapping[str, str | int | bool] | None = None
    """properties of the guest's image, as glance has them: hw_firmware_type, trait:..., and others"""
    alternatives: tuple[Alternative, ...] | None = None
    """what is asked for where the body, and the alternatives before, do not fit; in the order of preference
    """
    process: Process | None = None
    """the agent releases the claim once this process has ended"""
    name: str | None = None
    """for people"""
    project_id: str | None = None
    user_id: str | None = None
    consumer_type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimByGroups:
    """A claim, asked for by request groups."""

    consumer: str | None = None
    """the instance; only a claim with a name may leave it out: it is the instance of this host that has the
    name, else a new one
    """
    groups: tuple[Group, ...]
    group_policy: str | None = None
    same_subtree: tuple[tuple[str, ...], ...] | None = None
    root_required: tuple[str, ...] | None = None
    """traits that the host's root provider must have, or with ! must not"""
    topology: Topology | None = None
    pci: tuple[PciRequest, ...] | None = None
    alternatives: tuple[Alternative, ...] | None = None
    """what is asked for where the body, and the alternatives before, do not fit; in the order of preference
    """
    alternative: int | None = None
    """of a claim's request: the number of the alternative that was taken, from 1"""
    process: Process | None = None
    """the agent releases the claim once this process has ended"""
    name: str | None = None
    """for people"""
    project_id: str | None = None
    user_id: str | None = None
    consumer_type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimDomainBody:
    """A domain to claim for."""

    xml: str
    """the domain's XML, without a document type"""
    consumer: str | None = None
    """for a domain without a <uuid>; without it, the instance of this host that has its name, else a new one
    """
    request: Addition | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedRunning:
    """The guests that ran without a claim: those that have a claim now, and those that do not fit."""

    claimed: tuple[GuestVerdict, ...]
    refused: tuple[GuestVerdict, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimsStatus:
    """Whether the agent takes claims."""

    open: bool
    reason: str | None
    """why claims are closed"""
    count: int
    """the claims on this host"""
    schedulers: bool
    """false: the root provider has COMPUTE_STATUS_DISABLED, set by any client"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearBody:
    """The device whose cordon is to end."""

    address: str
    """a PCI address, of a card or of one of its functions, or the uuid of a mediated device"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedHost:
    """A host that takes no claims, or of which nothing was heard."""

    host: str
    uuid: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cordon:
    """An operator's word that a device is given to no guest."""

    address: str
    """a PCI address, of a card or of one of its functions, or the uuid of a mediated device"""
    reason: str
    uid: int
    """the user who asked for it"""
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CordonBody:
    """The device to cordon."""

    address: str
    """a PCI address, of a card or of one of its functions, or the uuid of a mediated device"""
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuPower:
    """What the hook does with CPUs of the host."""

    cpus: tuple[int, ...]
    state: str
    """online, offline, or a governor of cpufreq"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Defrag:
    """The moves that make room for one guest that asks for this. Nothing is moved."""

    asked: Resources
    """summed up over the groups"""
    possible: bool
    """false: no moves of guests make room; see `shortfalls`"""
    place: Holding | None
    """where it fits then"""
    moves: tuple[DefragMove, ...]
    """in an order in which they can be done; empty: it fits already"""
    fewest: bool
    """true: no smaller number of moves does"""
    shortfalls: tuple[Shortfall, ...]
    notes: tuple[str, ...] | None = None
    """sentences on extra specs and image properties without effect, in the answer to a request with such"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DefragMove:
    """A guest that would have to move."""

    consumer: str
    name: str
    here: Holding | None
    """its new place on this host; null: it has to go to another host"""
    kind: str
    """live_migrate, or cold_migrate where a device or large pages may forbid that; also on this host"""
    request: ClaimRequest
    """what its claim asks for"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """An exact unit that the host offers to guests."""

    unit: str
    """a PCI address, or the uuid of a mediated device"""
    resource_class: str
    provider: str
    """the name of the resource provider that has it"""
    holder: str | None
    """the instance or the migration that has it; null: no consumer has it"""
    holder_name: str
    """the instance's; empty: it has none, or no consumer has the device"""
    cordon: Cordon | None
    """null: not cordoned"""
    health: DeviceHealth | None
    """null: well, or not known to be unhealthy"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHealth:
    """Why a device is unhealthy, and given to no guest."""

    address: str
    """the device, or the card that has it; `plimsoll devices clear` takes this address"""
    symptoms: tuple[str, ...]
    """what made it unhealthy"""
    reason: str
    """the same in words"""
    since: datetime
    recovering: bool
    """it shows none of that now; after some more looks it is offered again"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """All devices of this host."""

    devices: tuple[Device, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain(Held):
    """The domain of an instance."""

    consumer: str
    made: bool
    """true: the claim was made for this domain just now"""
    claim: Claim
    xml: str
    """the domain's XML with everything that the claim gave"""
    notes: tuple[str, ...] | None = None
    """sentences on extra specs and image properties without effect, in the answer to a request with such"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainBody:
    """The domain to complete."""

    xml: str
    """the domain's XML, without a document type"""
    replace: bool | None = None
    """write over what the domain has from a former place"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverStatus:
    """Whether the virt driver answers."""

    name: str
    ok: bool
    error: str | None
    """why the driver does not answer"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """Every error has this shape."""

    error: ErrorDetail


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorDetail:
    """What went wrong."""

    code: str
    """stable: what a program matches"""
    message: str
    """one sentence that an operator can act on"""
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event of the history."""

    id: str
    """what `after` takes"""
    at: datetime
    consumer: str | None
    """a uuid, or the subject of a finding; null: the host"""
    name: str
    event: str
    """a step of a claim or a move, or waited, pass, refused, move_refused, healed, reshape, ready or degraded
    """
    detail: str
    uid: int | None
    """of the process that asked for it over this API; null: the agent acted by itself"""
    pid: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """Everything that the question names."""

    asked: str
    found: tuple[Found, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Whether a claim would fit, and why not."""

    consumer: str
    asked: Resources
    """summed up over the groups"""
    fits: bool
    """also while claims are closed"""
    closed: str | None
    """why the host takes no new claims now; null: it takes them"""
    allocations: Allocations
    units: Units
    cells: tuple[GuestCell, ...]
    """the guest's NUMA cells, empty for a guest without a NUMA topology"""
    to_make: Mapping[str, Making]
    """{unit that did not exist when the agent chose it: what to make}"""
    shortfalls: tuple[Shortfall, ...]
    alternative: int | None = None
    """of several: the number of the first that fits, from 1; if none does, 1"""
    alternatives: int | None = None
    """of several: how many"""
    refused: tuple[RefusedAlternative, ...] | None = None
    """the others that were tried"""
    notes: tuple[str, ...] | None = None
    """sentences on extra specs and image properties without effect, in the answer to a request with such"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendBody:
    """What the claim is to have in all; what it has more of stays."""

    resources: Mapping[str, int]
    """{resource class: amount}, of classes without exact units; for a guest without NUMA cells"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A difference between the host, the claims and Placement."""

    kind: str
    subject: str
    """a consumer, a provider or a device"""
    reason: str
    evidence: Mapping[str, Any]
    """what the host, the agent and Placement each say"""
    own: bool
    """true: provably this agent's to heal"""
    repair: tuple[str, ...]
    """the operations in their order; empty: the agent can only report the finding"""
    healed: bool
    failed: str | None
    """why the repair was not done"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flavor:
    """A flavor, as nova has it."""

    vcpus: int
    memory_mb: int
    disk_gb: int | None = None
    extra_specs: Mapping[str, str | int] | None = None
    """resources:VGPU, trait:..., hw:cpu_policy and others, as in nova"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A consumer, provider, unit or reshape that the question names."""

    kind: str
    id: str
    name: str
    lines: tuple[str, ...]
    """sentences for people"""
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GateBody:
    """The arguments of libvirt's hook after the guest's name, and its standard input."""

    operation: str
    sub_operation: str
    extra: str | None = None
    xml: str
    """the domain's XML, without a document type"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateStatus:
    """Whether guests start only by the gate's word."""

    hook: str
    """enabled, outdated, foreign or disabled; unknown: the agent may not read the folder"""
    in_effect: bool | None
    """null: the gate is disabled, or that cannot be told"""
    unanswered: str
    """while the agent does not decide, guests start (allow) or do not (refuse)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A request group, in Placement's terms."""

    suffix: str | None = None
    """the group without a suffix may come from several providers, each other group comes from one"""
    resources: Mapping[str, int] | None = None
    """{resource class: amount}"""
    required: tuple[str, ...] | None = None
    """traits, all of which must hold: TRAIT, in:TRAIT,TRAIT (one of), !TRAIT (not)"""
    member_of: tuple[str, ...] | None = None
    """aggregates: uuid or in:uuid,uuid (one of)"""
    numa_policy: str | None = None
    """how near the provider must be to the guest's NUMA cells; null: as near as possible"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMapping:
    """What one group of the request got, as Placement's `mappings`."""

    suffix: str
    """empty: the unsuffixed group"""
    label: str
    """the suffix, or the name of the PCI alias that the group comes from"""
    allocations: Allocations
    units: Units


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """A guest, as the virt driver sees it."""

    state: str
    resources: Resources
    units: tuple[UsedUnit, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestCell:
    """A NUMA cell of the guest, as the agent placed it."""

    cell: int
    """the guest's cell"""
    host_cell: int
    """the host's cell that backs it"""
    pinned_cpus: Mapping[str, int]
    """{guest CPU: host CPU}"""
    shared_cpus: tuple[int, ...]
    """guest CPUs that float on the host cell's shared CPUs"""
    withheld_cpus: tuple[int, ...]
    """host CPUs that no other guest gets: siblings of isolated CPUs"""
    emulator_cpus: tuple[int, ...]
    """host CPUs for the emulator's threads alone"""
    memory_mb: int
    page_kib: int
    """size of the pages that back the memory"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestVerdict:
    """The verdict on a running guest."""

    consumer: str
    name: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The results of the health checks."""

    ok: bool
    state: str
    failed: tuple[str, ...]
    """the names of the checks that failed"""
    checks: Mapping[str, HealthCheck]
    """{name of the check: its result}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheck:
    """The result of one health check."""

    ok: bool
    reason: str | None
    """why the check failed"""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Events of the history."""

    events: tuple[Event, ...]
    """the newest first; with `after`, the oldest first"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """An instance with a claim on this host."""

    consumer: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What a consumer has: its allocations, exact units and NUMA cells. Part of a claim, and of a move."""

    allocations: Allocations
    units: Units
    cells: tuple[GuestCell, ...]
    """the guest's NUMA cells, empty for a guest without a NUMA topology"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """An instance: its guest, its claim, or both."""

    uuid: str
    name: str
    guest: Guest | None
    """null: the host has no such guest"""
    moved_away: bool
    """true: the guest is here, and by Placement its instance is on another host"""
    advice: str | None
    """what to do about the guest, in sentences; null: nothing"""
    migration_of: str | None
    """the instance whose old place this migration holds during a move; null: not a migration"""
    migration: str | None
    """the migration of the move that the instance is in; null: it is in none"""
    claim: Claim | None
    """null: the guest has no claim; at the source of a move, its migration has it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instances:
    """All instances of this host."""

    instances: tuple[Instance, ...]
    """by uuid"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """An inventory, in Placement's terms."""

    total: int
    reserved: int
    min_unit: int
    max_unit: int
    step_size: int
    allocation_ratio: float
    capacity: int
    """(total - reserved) * allocation_ratio"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastPass:
    """The last pass: the agent compared the host with Placement and wrote the differences."""

    at: datetime
    sentence: str
    """what the pass did"""
    duration_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What is left of a class."""

    free: int
    capacity: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The agent's state after the pass, and what the audit found."""

    status: Status
    audit: Audit


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """Who asked for a claim."""

    uid: int
    """the user"""
    program: str
    """the name that it gave itself (User-Agent); empty: it gave none"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """A unit to make."""

    parent: str
    """the PCI address of the function that the unit is made on"""
    type: str
    """the id of the mediated type, such as nvidia-11"""
    placement: str | None = None
    """of the vGPU of a function: the slot of the card in which it is to start"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """The first thing that a host lacks."""

    host: str
    uuid: str
    lacks: str
    """an amount of a class, a trait, an aggregate, or what concerns several groups"""
    words: str
    """the words of the request that ask for it"""
    forever: bool
    """true: the host lacks it even with nothing in use"""
    fits_without: bool
    """true: the host lacks nothing else"""
    asked: int | None
    """null: it is no amount"""
    free: int | None
    total: int | None
    provider: str
    """the one that has the most free of it"""
    provider_uuid: str
    holders: Mapping[str, int]
    """{consumer: amount} that use it there"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A move of an instance, seen from this host."""

    migration: str
    instance: str
    name: str
    kind: str
    """unknown: the source knows the move only from Placement"""
    role: str
    """the part of this host in the move"""
    state: str
    next: str
    """who acts next, and what they do; a clause for people"""
    ended: bool
    adopted: bool
    """true: the agent did not begin the move, it found it in Placement"""
    since: datetime
    """RFC 3339, UTC"""
    handed: Holding
    """the allocation of the migration while the move is under way"""
    old: Claim
    """the claim before the move"""
    new: Claim | None
    """the claim at the destination; null: this host is the source"""
    providers: Mapping[str, str]
    """the names of the providers of both places, as far as they are known"""
    notes: tuple[str, ...] | None = None
    """sentences on extra specs and image properties without effect, in the answer to a request with such"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveBody:
    """A move to begin; with a domain, the request may leave out what its XML says."""

    migration: str
    """the uuid of the migration"""
    kind: str
    request: ClaimBody | Addition | None = None
    domain: str | None = None
    """the domain's XML, without a document type"""
    consumer: str | None = None
    """the instance, with a domain"""
    alternative: int | None = None
    """the number of the alternative to take, from 1; 0: the first that fits; without it, the one that the
    instance has
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveInstruction:
    """What the driver asked to move from one provider to another."""

    from_resource_provider: str
    moved_resources: Resources
    to_resource_provider: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """The moves that this host takes part in."""

    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """An empty object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """The value of an option."""

    value: Any
    origin: str
    """the file, the environment variable or the default that the value comes from"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The whole host as the agent knows it; the agent asks neither the hypervisor nor Placement."""

    at: datetime
    status: Status
    health: Health
    resource_providers: tuple[ResourceProvider, ...]
    """depth first, each parent before its children"""
    instances: tuple[Instance, ...]
    moves: tuple[Move, ...]
    """those under way"""
    findings: tuple[Finding, ...]
    """of the last audit, without those that were healed"""
    pending: int
    """releases, intents of unknown outcome and ends of moves that wait"""
    reshape_pending: str | None
    """why a due reshape was not done"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """An operator's word that this host takes no new claims."""

    reason: str
    uid: int
    """the user who asked for it"""
    since: datetime
    schedulers: bool
    """true: the host has the trait COMPUTE_STATUS_DISABLED"""
    drains: bool
    """true: the instances that are here are to leave"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseBody:
    """A pause. On a host that is paused, what is not named stays as it is."""

    reason: str | None = None
    schedulers: bool | None = None
    """tell schedulers, by the trait COMPUTE_STATUS_DISABLED"""
    drain: bool | None = None
    """the instances that are here are to leave"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PciRequest:
    """PCI devices, asked for by an alias."""

    alias: str
    count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place for the guest."""

    host: str
    uuid: str
    allocations: Mapping[str, PlaceAllocation]
    """by the uuid of the provider"""
    left: Mapping[str, Left]
    """{resource class: what the host has left with the guest}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceAllocation:
    """What a guest would get of a provider."""

    name: str
    resources: Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementStatus:
    """Whether Placement answers."""

    kind: str
    """embedded or remote"""
    ok: bool
    error: str | None
    """why Placement does not answer"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The operations of the next pass."""

    operations: tuple[Mapping[str, Any], ...]
    """in their order"""
    lines: tuple[str, ...]
    """the operations for people"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What a reshape would do."""

    due: bool
    refused: str | None
    """why the reshape would not be done"""
    before: Tree
    after: Tree
    moves: tuple[Relocation, ...]
    """by consumer"""
    parked: tuple[str, ...]
    """sentences on units whose device is gone: they stay allocated or reserved"""
    receipts: tuple[Receipt, ...]
    """the newest first"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process of the host, and of the user who asks."""

    pid: int
    """in the pid namespace of the agent"""
    started: int
    """clock ticks since the boot, field 22 of /proc/PID/stat"""
    boot: str
    """/proc/sys/kernel/random/boot_id"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderAllocation:
    """The allocation from one provider."""

    resources: Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """A reshape that was done, kept so that it can be undone."""

    id: str
    at: datetime
    undone: bool
    """true: it was undone, and the agent does not repeat it until asked to"""
    undoes: str | None
    """the receipt that this reshape undid"""
    allocations: int
    """the number of allocations that were moved"""
    moves: tuple[MoveInstruction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedAlternative:
    """An alternative that does not fit."""

    alternative: int
    """its number, from 1"""
    asked: Resources
    """summed up over the groups"""
    shortfalls: tuple[Shortfall, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """The result of a release."""

    consumer: str
    released: bool
    """false: journaled, and delivered when Placement answers again"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relocation:
    """An amount that goes from one provider to another."""

    from_: str
    from_uuid: str
    to: str
    to_uuid: str
    consumer: str
    name: str
    """the consumer's, or that of its migration's instance; empty: it has none"""
    resource_class: str
    amount: int
    becomes: str
    """the resource class at the target, nearly always the same"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshapeBody:
    """A reshape to do or to undo."""

    undo: str | None = None
    """the receipt to undo"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reshaped:
    """What a reshape did."""

    receipts: tuple[Receipt, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceProvider:
    """A resource provider, with its inventories and usages."""

    uuid: str
    name: str
    parent_provider_uuid: str | None
    root_provider_uuid: str
    generation: int | None
    inventories: Mapping[str, Inventory]
    """{resource class: inventory}"""
    usages: Mapping[str, int]
    """{resource class: amount in use}, by any consumer; 0 where nothing is in use"""
    unclaimed: Mapping[str, int]
    """{resource class: amount} that guests use without a claim; the agent reserves it"""
    traits: tuple[str, ...]
    aggregates: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """A provider that cannot give what the claim asks for."""

    resource_class: str
    """empty: the reason concerns no class"""
    asked: int
    free: int
    provider: str
    provider_uuid: str
    reason: str
    """a clause: only 3 of 16 are free"""
    traits: tuple[str, ...] | None = None
    """of a reason that concerns traits: any of them is wanted, or all of them are forbidden"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The state of the agent, with the reasons."""

    host: str
    uuid: str | None
    """the host's root provider; null: the agent has not found or created it yet"""
    version: str
    state: str
    reasons: tuple[str, ...]
    """why the state is not ready, one sentence each"""
    since: datetime
    """when the agent came into this state; RFC 3339, UTC"""
    driver: DriverStatus
    placement: PlacementStatus
    claims: ClaimsStatus
    gate: GateStatus
    pause: Pause | None
    """null: the host is not paused"""
    last_pass: LastPass | None
    next_try: datetime | None
    """when the agent tries again after a fault; null: there is no fault"""
    findings: int
    """the number of findings of the last audit"""
    audited: datetime | None
    """when the last audit ended; null: not audited since the start"""
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranded:
    """What is free and goes to no further guest of the flavor, as something else is not free near it."""

    provider: str
    provider_uuid: str
    resource_class: str
    free: int
    holders: tuple[Holder, ...]
    """those each of which alone strands some of it"""
    divided: bool
    """true: a size of a divided card; `free` is what it can give at least once a holder is gone"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The guest's CPUs, memory and NUMA cells, as a flavor's `hw:` extra specs ask for them."""

    cpu_policy: str | None = None
    cpu_thread_policy: str | None = None
    cells: int | None = None
    cell_cpus: tuple[str, ...] | None = None
    """the guest CPUs of each cell"""
    cell_memory_mb: tuple[int, ...] | None = None
    dedicated_cpus: str | None = None
    mem_page_size: int | str | None = None
    """KiB, or small, large, any"""
    pci_numa_policy: str | None = None
    """takes precedence over the policy of a PCI alias"""
    isolate_emulator: bool | None = None
    """one PCPU of the request is for the emulator's threads alone"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """The provider tree of this host."""

    resource_providers: tuple[ResourceProvider, ...]
    """depth first, each parent before its children"""
    warnings: tuple[str, ...]
    """sentences on what is offered and not there"""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedUnit:
    """An exact unit that a guest uses, such as a virtual function or a mediated device."""

    resource_class: str
    unit: str
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The gate's verdict: the guest may go on."""

    outcome: str
    consumer: str | None
    """the uuid of the guest"""
    sentence: str
    cpu_power: CpuPower | None
    """for libvirt's hook, which may write it below /sys"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Where the request fits, best first, or why it does not."""

    verdict: str
    """never: on no host, even with nothing in use"""
    sentence: str
    """the verdict for people"""
    alternative: int
    """which of the requests it is about, from 0"""
    hosts: WhereHosts
    places: tuple[Place, ...]
    """the best hosts, or a place for each guest that has one"""
    closed: tuple[ClosedHost, ...]
    nearest: tuple[Miss, ...]
    """the hosts that lack the least"""
    summary: tuple[WhereSummary, ...]
    changes: tuple[Change, ...]
    """the smallest of each kind"""
    not_known: tuple[str, ...]
    """what Placement does not tell, so that the answer cannot rest on it"""
    notes: tuple[str, ...] | None = None
    """sentences on extra specs and image properties without effect, in the answer to a request with such"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhereBody:
    """What is to fit, in the order of preference, and how the hosts are ranked."""

    requests: tuple[Addition, ...]
    """as for a claim, without a consumer; the first that fits anywhere counts"""
    xml: str | None = None
    """a domain, beside which the requests are asked for"""
    strategy: str | None = None
    count: int | None = None
    """so many guests are to fit together"""
    host: str | None = None
    """ask of this host alone: its name or its uuid"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhereHosts:
    """How many hosts there are."""

    fit: int
    """that have room, or of several guests together, that got some"""
    complete: bool
    """false: there may be more than were found"""
    looked_at: int | None
    """that were read one by one; null: that was not needed"""
    able: int | None
    """of those, that have room or could make it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhereSummary:
    """The hosts with the same first obstacle; each host is counted once."""

    lacks: str
    words: str
    hosts: int
    forever: int
    """of these, that lack it even with nothing in use"""
    fit_without: int
    """of these, that lack nothing else"""


Allocations = Mapping[str, ProviderAllocation]
"""{provider uuid: {resources}}, as Placement writes allocations"""
ClaimBody = ClaimByGroups | ClaimByFlavor
"""by groups or by a flavor"""
ClaimRequest = ClaimByGroups
"""the request, in its form by groups"""
Configuration = Mapping[str, Mapping[str, Option]]
"""{group: {option: {value, origin}}}, secrets masked"""
Resources = Mapping[str, int]
"""{resource class: amount}"""
Units = Mapping[str, Mapping[str, tuple[str, ...]]]
"""{provider uuid: {resource class: [exact unit]}}"""
