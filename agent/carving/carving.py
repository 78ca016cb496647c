"""A carving: how cards are to be divided, and the steps to it from what the kernel shows. Pure.

What is to be there comes from what the operator declared and what guests need. Beside it, what the kernel
shows of the functions and mediated devices that a carving is about, the units that claims and domains need
after a boot in their form in the plan file, and what names and numbers of sysfs look like, so that no path
is built from anything else.

A step is one write to sysfs, or a wait for what the kernel does after one. A plan has no memory: after each
step it can be made anew from what is seen then, and its first step is the next one. So a run that ended in
the middle is finished by the next run. Only what is not wanted any more needs the journal to be undone:
without it, what the run did could not be told from what the operator or another program did.

The order on a card is that of https://docs.kernel.org/PCI/pci-iov-howto.html: no driver may take the
virtual functions before theirs is named, and types and mediated devices come when the functions are there.
The largest come first: a small one where the driver puts it may leave no place for a large one, but a large
one leaves the small ones theirs.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeVar

from agent.claims.claim import Claim
from agent.codec import encode
from agent.device_names import (
    DASHED_UUID,
    PCI_ADDRESS,
    PORT,
    VRAM_PREFIX,
    address_of,
    mig_slices,
    vgpu_in_place,
)
from agent.driver import CarvedUnit, DeclaredCarving, Guest
from agent.errors import UsageError, counted
from agent.json_checks import read_choice, read_list, read_object, read_text, read_whole

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", re.ASCII)
"""The name of a driver, or the id of a type of mediated devices."""

NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Mdev:
    """A mediated device: the function on which it is, and the id of its type."""

    parent: str
    type_id: str


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A GPU instance that is there: its number, its memory slices, and whether it has a compute instance."""

    number: str
    slices: range
    computes: bool


@dataclass(frozen=True, slots=True)
class SeenFunction:
    """A PCI function. `driver` and `override` are empty without one; `card` is that of a virtual function.

    `vfs_max` is None where its driver makes no virtual functions, or is not bound yet. `vfs_number` is how
    many it was told to make, `vfs` those that are there, `vf_addresses` the addresses that the first
    `vfs_max` ones have, as far as they can be told. `autoprobe`: the kernel binds drivers to new ones; None
    where it does not tell.
    `vgpu_type` is the number of its vGPU type under a vendor's own VFIO driver, None under any other, and
    `vgpu_place` the slot of the card in which that vGPU starts, None where it has no place.
    `mdev_types` are the ids of the types of mediated devices that it offers. `type_sizes` {number of a vGPU
    type, or id of a type of mediated devices: its frame buffer in MiB} where the vendor's driver tells it.
    `uses` are clauses on what has it: "its interface enp65s0v0 is up".
    With `vram` it has a quota of VRAM: then `vgpu_type` is its MiB, None where they cannot be changed. `port`
    is what its network card has for it, as of `agent.device_names.PORT`; empty where that is not told. `mig`
    {MIG instance, as of `DeclaredCarving`: it}, None where the card is not in that mode; `mig_problem` says
    why that cannot be asked. `quotas` {option of `QUOTAS`: the pair that a virtual function has, or all pairs
    where they are not the same for each GT of its card} where its driver tells it.
    """

    address: str
    driver: str = ""
    override: str = ""
    card: str | None = None
    vfs_max: int | None = None
    vfs_number: int = 0
    vfs: tuple[str, ...] = ()
    vf_addresses: tuple[str, ...] = ()
    autoprobe: bool | None = None
    vgpu_type: str | None = None
    mdev_types: frozenset[str] = frozenset()
    uses: tuple[str, ...] = ()
    type_sizes: Mapping[str, int] = field(default_factory=dict)
    vgpu_place: int | None = None
    vram: bool = False
    port: str = ""
    mig: Mapping[str, MigInstance] | None = None
    mig_problem: str = ""
    quotas: Mapping[str, str] = field(default_factory=dict)

    @property
    def told_type(self) -> str:
        """Its vGPU type or its VRAM, as a sentence names it."""
        return f"{self.vgpu_type} MiB of VRAM" if self.vram else f"the vGPU type {self.vgpu_type}"


@dataclass(frozen=True, slots=True)
class Seen:
    """{address: function} of the functions that exist, and {uuid: mediated device}.

    `debugfs_problem`: why nothing can be written to debugfs, and what to do; empty where it can.
    """

    functions: Mapping[str, SeenFunction] = field(default_factory=dict)
    mdevs: Mapping[str, Mdev] = field(default_factory=dict)
    debugfs_problem: str = ""

    def card_of(self, address: str) -> str:
        """The card of a virtual function, also of one that is still to be made; else the address itself."""
        function = self.functions.get(address)
        if function is not None:
            return function.card or address
        for card in self.functions.values():
            if address in card.vf_addresses:
                return card.address
        return address

    def size_of(self, card: str, type_id: str) -> int:
        """The frame buffer of a type in MiB, as any function of the card tells it; 0 where none does."""
        functions = (each for each in self.functions.values() if card in (each.card, each.address))
        return max((each.type_sizes.get(type_id, 0) for each in functions), default=0)

    def has_use(self, address: str) -> bool:
        """Whether something has the function, or a mediated device is on it."""
        function = self.functions.get(address)
        return bool(function and function.uses) or any(mdev.parent == address for mdev in self.mdevs.values())


GIM = "gim"
"""AMD's driver of MxGPU cards: it makes virtual functions by its own tool, and not by `sriov_numvfs`."""

NO_TYPE = "0"
"""The number of the vGPU type of a function that has none."""


@dataclass(frozen=True, slots=True)
class NeededUnit:
    """A unit that a claim or a domain has, and `holder`: who that is, as a sentence names it."""

    unit: CarvedUnit
    holder: str


@dataclass(frozen=True, slots=True)
class VgpuType:
    """The vGPU type of a function under a vendor's own VFIO driver: its number, and the place on the card.

    `placement` None leaves the place to the vendor's driver. With `vram` it is an amount of VRAM in MiB.
    """

    number: str
    placement: int | None = None
    vram: bool = False

    def is_on(self, function: SeenFunction) -> bool:
        """Whether the function has this type, and in this place."""
        return function.vgpu_type == self.number and self.placement in (None, function.vgpu_place)


@dataclass(frozen=True, slots=True)
class Carving:
    """What is to be there. Keys are PCI addresses, but for `mdevs` {uuid: mediated device}.

    `vfs` {card: number of virtual functions}, `drivers` {function: the only driver it may have}, `vf_drivers`
    {card: the same for all of its virtual functions}, `types` {function: vGPU type}. `holders` {address of a
    function, or uuid: who has it}. `mixed` are the cards whose functions have no other types than these.
    `ports` {virtual function: what its network card is to have for it}, `mig` and `quotas` as of
    `DeclaredCarving`.
    """

    vfs: Mapping[str, int] = field(default_factory=dict)
    drivers: Mapping[str, str] = field(default_factory=dict)
    vf_drivers: Mapping[str, str] = field(default_factory=dict)
    types: Mapping[str, VgpuType] = field(default_factory=dict)
    mdevs: Mapping[str, Mdev] = field(default_factory=dict)
    holders: Mapping[str, str] = field(default_factory=dict)
    mixed: frozenset[str] = frozenset()
    ports: Mapping[str, str] = field(default_factory=dict)
    mig: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    quotas: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def held_on(self, function: str) -> Iterator[str]:
        """Clauses on who has the function itself, or a mediated device on it."""
        if function in self.holders:
            yield f"{self.holders[function]} has {function}"
        for uuid, mdev in self.mdevs.items():
            if mdev.parent == function and uuid in self.holders:
                yield f"{self.holders[uuid]} has {uuid} on {function}"


def on_mixed_cards(
    declared: DeclaredCarving, needed: Iterable[NeededUnit], seen: Seen
) -> tuple[DeclaredCarving, tuple[NeededUnit, ...]]:
    """What is declared and needed on cards in mixed-size mode, and nothing of other cards."""
    quotas = {
        option: {card: pair for card, pair in pairs.items() if card in declared.mixed}
        for option, pairs in declared.quotas.items()
    }
    return (
        DeclaredCarving(mdev_types=declared.mdev_types, mixed=declared.mixed, quotas=quotas),
        tuple(need for need in needed if seen.card_of(need.unit.parent) in declared.mixed),
    )


def join(
    declared: DeclaredCarving, needed: Iterable[NeededUnit], seen: Seen
) -> tuple[Carving, tuple[str, ...]]:
    """(the carving, sentences on units that the operator's options do not allow).

    The needed units come from a file of the agent, which is not root; so a unit counts only on a function,
    and with a type, that the operator named. To which card a function belongs is told by `seen` alone.
    """
    types: dict[str, VgpuType] = {}
    mdevs: dict[str, Mdev] = {}
    holders: dict[str, str] = {}
    problems = []
    for function, type_id in declared.vgpu_types.items():
        if seen.card_of(function) in declared.mixed:
            problems.append(
                f"[devices] vgpu_types gives {function} a type, and mixed_size_cards has its card, whose "
                "types are those that claims need; remove one of the two."
            )
        else:
            types[function] = VgpuType(_number(type_id))
    for need in needed:
        unit = need.unit
        holders[unit.unit] = need.holder
        is_vram = unit.type_id.startswith(VRAM_PREFIX)
        if unit.type_id and not declared.allows(unit.type_id, unit.parent, seen.card_of(unit.parent)):
            options = "enabled_mdev_types and the device_addresses of the type do"
            problems.append(
                f"{need.holder} has {unit.unit} of type {unit.type_id} on {unit.parent}, which [devices] "
                f"{'vram_cards does' if is_vram else options} not allow; it is not made."
            )
        elif not unit.type_id and unit.unit not in seen.functions and unit.card not in declared.vfs:
            problems.append(
                f"{need.holder} has {unit.unit}, which is not there, and [devices] sriov_vfs does not say "
                f"how many virtual functions {unit.card} is to have."
            )
        elif unit.type_id and unit.parent != unit.unit:
            mdevs[unit.unit] = Mdev(unit.parent, unit.type_id)
        elif unit.type_id:
            types[unit.unit] = VgpuType(_number(unit.type_id), unit.placement, is_vram)
    named = [need.unit for need in needed if declared.ports and need.unit.card in declared.vfs]
    ports = {unit.unit: unit.port for unit in named if unit.port and unit.unit == unit.parent}
    carving = Carving(
        vfs=declared.vfs,
        drivers=declared.drivers,
        vf_drivers=declared.vf_drivers,
        types=types,
        mdevs=mdevs,
        holders=holders,
        mixed=declared.mixed,
        ports=ports,
        mig=declared.mig,
        quotas=declared.quotas,
    )
    return carving, tuple(problems)


def _number(type_id: str) -> str:
    """The number of a type: nvidia-471 is 471."""
    return type_id.rpartition("-")[2]


VERSION = 1
UNITS_MAX = 4096
PLACEMENT_MAX = 2**16
NAME_MAX = 64
_TEXTS: Mapping[str, tuple[re.Pattern[str], str]] = {
    "unit": (re.compile(f"{PCI_ADDRESS.pattern}|{DASHED_UUID.pattern}", re.ASCII), "a PCI address or a uuid"),
    "card": (PCI_ADDRESS, "a PCI address"),
    "parent": (PCI_ADDRESS, "a PCI address"),
    "type_id": (re.compile(f"(?:{NAME.pattern})?", re.ASCII), "the id of a type"),
    "port": (re.compile(f"(?:{PORT.pattern})?", re.ASCII), "a MAC address with a VLAN"),
}
_KEYS = (*_TEXTS, "placement", "holder")


def needed_units(
    claims: Iterable[Claim],
    guests: Iterable[Guest],
    carved: Iterable[CarvedUnit],
    former: Iterable[NeededUnit],
) -> tuple[NeededUnit, ...]:
    """The units of cards that claims and guests have, by their names.

    How a unit was made is told by the driver (`carved`) where it knows that, else by the name of a vGPU in
    its place on a card, else by the claim for which it is made, else by `former`, what was needed before:
    after a boot the unit itself may be gone, and between two readings of the driver as well. So it is with
    the MAC address and VLAN of a function, while the same guest has it. A function
    whose vGPU a claim has in one place is not needed in the other place in which its guest may have it.
    """
    known = {name: need.unit for need in former for name in need.unit.names}
    holders: dict[str, str] = {}
    for claim in claims:
        holder = _holder(claim.request.name, claim.consumer)
        for unit, making in claim.makings.items():
            parent = making["parent"]
            known[unit] = CarvedUnit(unit, parent, parent, making["type"])
        for _, _, unit in claim.exact:
            holders.setdefault(unit, holder)
            vgpu = vgpu_in_place(unit)
            if vgpu is not None:
                function, type_id, place = vgpu
                known[unit] = CarvedUnit(function, function, function, type_id, place)
    in_place = {address_of(unit) for unit in holders if address_of(unit) != unit}
    for guest in guests:
        for used in guest.units:
            if address_of(used.unit) in in_place:
                continue
            holders.setdefault(used.unit, _holder(guest.name, guest.uuid))
    known |= {name: unit for unit in carved for name in unit.names}
    ports = {(need.unit.unit, need.holder): need.unit.port for need in former}
    needs = [(known[unit], holders[unit]) for unit in sorted(holders) if unit in known]
    return tuple(
        NeededUnit(replace(unit, port=unit.port or ports.get((unit.unit, holder), "")), holder)
        for unit, holder in needs
    )


def _holder(name: str, uuid: str) -> str:
    shown = "".join(character for character in name if character.isprintable())[:NAME_MAX]
    return f"instance {shown} ({uuid})" if shown else f"instance {uuid}"


def needs_to_json(needs: Iterable[NeededUnit]) -> dict[str, Any]:
    """The content of the plan file, as `read_needs` reads it."""
    return {
        "version": VERSION,
        "units": [
            {
                **{key: getattr(need.unit, key) for key in _TEXTS},
                "placement": need.unit.placement,
                "holder": need.holder,
            }
            for need in needs
        ],
    }


def read_needs(data: object) -> tuple[NeededUnit, ...]:
    """The units in the content of a plan file. Raises UsageError for anything else."""
    content: Mapping[str, Any] = read_object(data, "", ("version", "units"))
    if content.get("version") != VERSION:
        raise UsageError(f"version: this Plimsoll knows version {VERSION} of the file.")
    units = read_list(content.get("units"), "units")
    if len(units) > UNITS_MAX:
        raise UsageError(f"units: there are {len(units)}, and {UNITS_MAX} are allowed.")
    needs = []
    for number, value in enumerate(units):
        path = f"units[{number}]"
        record: Mapping[str, Any] = read_object(value, path, _KEYS)
        texts = {
            key: read_text(record.get(key, "" if key == "port" else None), f"{path}.{key}", pattern, wanted)
            for key, (pattern, wanted) in _TEXTS.items()
        }
        placement = record.get("placement")
        if placement is not None:
            placement = read_whole(placement, f"{path}.placement", 0, PLACEMENT_MAX)
        holder = read_text(record.get("holder"), f"{path}.holder")
        if not holder.isprintable():
            raise UsageError(f"{path}.holder: it has characters that cannot be shown.")
        needs.append(NeededUnit(CarvedUnit(placement=placement, **texts), holder))
    return tuple(needs)


class StepKind(StrEnum):
    """What a step does."""

    AWAIT = "wait"
    AUTOPROBE = "autoprobe"
    VFS = "vfs"
    OVERRIDE = "driver_override"
    UNBIND = "unbind"
    BIND = "bind"
    VGPU_TYPE = "vgpu_type"
    VRAM = "vram_quota"
    PORT = "port"
    MIG = "mig"
    MIG_COMPUTE = "mig_compute"
    QUANTA = "quanta"
    CONTEXTS = "contexts"
    NUM_VF = "num_vf"
    CREATE_MDEV = "create_mdev"
    REMOVE_MDEV = "remove_mdev"


QUOTAS: Mapping[StepKind, tuple[str, tuple[str, str]]] = {
    StepKind.QUANTA: ("execution_quanta", ("exec_quantum_ms", "preempt_timeout_us")),
    StepKind.CONTEXTS: ("context_quotas", ("contexts_quota", "doorbells_quota")),
}
"""{step: (option of [devices], the two files of Intel's xe)}: what each virtual function of a card gets."""


class Sight(StrEnum):
    """What a wait is for."""

    FUNCTION = "the device"
    SRIOV = "its driver"
    VFS = "its virtual functions"
    VGPU_TYPE = "its vGPU types"
    VRAM = "its quota of VRAM"
    MIG = "its MIG mode"
    MDEV_TYPE = "its types of mediated devices"


_STEP_TEXTS: Mapping[StepKind, str] = {
    StepKind.AWAIT: "wait for {value} of {function}",
    StepKind.AUTOPROBE: "write {value} to sriov_drivers_autoprobe of {function}",
    StepKind.VFS: "write {value} to sriov_numvfs of {function}",
    StepKind.OVERRIDE: "write {value!r} to driver_override of {function}",
    StepKind.UNBIND: "unbind {function} from {value}",
    StepKind.BIND: "bind {function} to {value}",
    StepKind.VGPU_TYPE: "write {value} to current_vgpu_type of {function}",
    StepKind.MIG: "create the MIG instance {value} on {function}",
    StepKind.MIG_COMPUTE: "create the compute instance of the MIG instance {value} on {function}",
    StepKind.PORT: "give {function} the MAC address {value} on its card",
    StepKind.VRAM: "write {value} MiB to vram_quota of {function}",
    **{
        kind: f"write {{value}} to {' and '.join(pair)} of {{function}}" for kind, (_, pair) in QUOTAS.items()
    },
    StepKind.NUM_VF: "let amd-smi give {function} {value} virtual functions",
    StepKind.CREATE_MDEV: "create mediated device {unit} of type {value} on {function}",
    StepKind.REMOVE_MDEV: "remove mediated device {unit} of type {value} on {function}",
}


@dataclass(frozen=True, slots=True)
class Step:
    """One step on a function of a card; both are PCI addresses.

    `value` is what is written, the driver to unbind from, or what is waited for (a `Sight`). `unit` is the
    uuid of a mediated device, the place of a vGPU type (empty: any), the number of a GPU instance, or how
    much is waited for.
    """

    kind: StepKind
    card: str
    function: str
    value: str
    unit: str = ""

    @property
    def text(self) -> str:
        """What it does, in words."""
        if self.kind is StepKind.AWAIT and self.value == Sight.FUNCTION:
            return f"wait for the device {self.function}"
        if self.kind is StepKind.BIND and not self.value:
            return f"bind {self.function} to the driver that the kernel has for it"
        if self.kind is StepKind.VGPU_TYPE and self.unit:
            return f"write {self.value} to current_vgpu_type of {self.function}, at placement_id {self.unit}"
        return _STEP_TEXTS[self.kind].format(value=self.value, function=self.function, unit=self.unit)

    @property
    def subject(self) -> str:
        """What gets no more steps once this one fails: a mediated device, a MIG instance, a function."""
        if self.kind in (StepKind.MIG, StepKind.MIG_COMPUTE):
            return f"{self.function} {self.value}"
        if self.kind in QUOTAS:  # without one pair of them, a function gets the other one all the same
            return f"{self.function} {self.kind}"
        return self.unit if self.kind is StepKind.CREATE_MDEV else self.function

    def to_json(self) -> dict[str, str]:
        """The form that `read_step` reads."""
        form: dict[str, str] = encode(Step, self)
        return form


def read_step(value: object) -> Step:
    """The inverse of `Step.to_json`. Raises UsageError for anything else."""
    record: Mapping[str, Any] = read_object(value, "step", ("kind", "card", "function", "value", "unit"))
    texts = {key: read_text(record.get(key), f"step.{key}") for key in ("card", "function", "value", "unit")}
    return Step(StepKind(read_choice(record.get("kind"), "step.kind", list(StepKind))), **texts)


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps in their order, and sentences on what is not done, with who stands in the way."""

    steps: tuple[Step, ...] = ()
    refusals: tuple[str, ...] = ()


def plan(carving: Carving, seen: Seen) -> Plan:
    """What is to be done. Where nothing differs the plan is empty."""
    planner = _Planner(carving, seen)
    for card in planner.cards():
        planner.plan_card(card)
    return Plan(tuple(planner.steps), tuple(planner.refusals))


class _Planner:
    """Collects steps. `functions` are those seen, and those that the steps so far make."""

    def __init__(self, carving: Carving, seen: Seen) -> None:
        self.steps: list[Step] = []
        self.refusals: list[str] = []
        self._carving = carving
        self._seen = seen
        self._functions = dict(seen.functions)
        self._complete: set[str] = set()
        """Cards that get no other virtual functions than those they have."""

    def cards(self) -> list[str]:
        """The cards that the carving is about, in the order of their addresses."""
        wanted = self._carving
        named = {*wanted.drivers, *wanted.types, *(mdev.parent for mdev in wanted.mdevs.values())}
        there = wanted.mixed & self._functions.keys()
        quotas = (card for cards in wanted.quotas.values() for card in cards)
        cards = {*wanted.vfs, *wanted.vf_drivers, *wanted.mig, *quotas, *there}
        return sorted(cards | {*map(self._seen.card_of, named)})

    def plan_card(self, card: str) -> None:
        """Plan the steps of a card: its functions, then their drivers, types and mediated devices."""
        wanted = self._carving
        if card in wanted.drivers:
            self._plan_driver(card, card, wanted.drivers[card])
        if card in wanted.vfs:
            self._plan_vfs(card, wanted.vfs[card])
        # Before the function's own driver asks its card for them. libvirt sets those of guests that run.
        for address, port in sorted(self._on(card, wanted.ports).items()):
            vf = self._function(card, address)
            if vf is not None and vf.port != port and not vf.uses:
                self._add(StepKind.PORT, card, address, port)
        general = self._carving.vf_drivers.get(card)
        vfs = [function.address for function in self._functions.values() if function.card == card]
        drivers = dict.fromkeys(vfs, general) if general is not None else {}
        own = self._on(card, self._carving.drivers)
        own.pop(card, None)
        for function, driver in sorted((drivers | own).items()):
            self._plan_driver(card, function, driver)
        if card in wanted.mig and not self._plan_mig(card, wanted.mig[card]):
            return
        addresses = [each for each in sorted(self._functions) if self._functions[each].card == card]
        self._plan_quotas(card, addresses)
        # A type that is not wanted, or not in that place, stands in the way of others: it is taken away.
        for address in addresses if card in wanted.mixed else ():
            there, vgpu = self._functions[address], wanted.types.get(address)
            if there.vgpu_type in (None, NO_TYPE) or (vgpu is not None and vgpu.is_on(there)):
                continue
            held = () if vgpu is not None else tuple(wanted.held_on(address))
            if held or there.uses:
                self.refusals.append(
                    f"{address} has {there.told_type}, which no claim has there; it "
                    f"stays while it is in use: {'; '.join((*held, *there.uses))}."
                )
                continue
            self._add(StepKind.VRAM if there.vram else StepKind.VGPU_TYPE, card, address, NO_TYPE)
            self._functions[address] = replace(there, vgpu_type=NO_TYPE, vgpu_place=None)
        types = sorted(self._on(card, wanted.types).items())
        for function, vgpu_type in sorted(types, key=lambda item: -self._seen.size_of(card, item[1].number)):
            self._plan_type(card, function, vgpu_type)
        mdevs = sorted(item for item in wanted.mdevs.items() if self._seen.card_of(item[1].parent) == card)
        for uuid, mdev in sorted(mdevs, key=lambda item: -self._seen.size_of(card, item[1].type_id)):
            self._plan_mdev(card, uuid, mdev)

    def _plan_mig(self, card: str, instances: Iterable[str]) -> bool:
        """Whether types and mediated devices may follow: they are made of the instances that are there."""
        function = self._function(card, card) or SeenFunction(card)
        if function.mig_problem:
            self.refusals.append(
                f"{card}: its MIG instances are not known: {function.mig_problem}. Mend that, or take the "
                "card out of [devices] mig_instances."
            )
            return False
        if function.mig is None:
            self._add(StepKind.AWAIT, card, card, Sight.MIG)
        there = function.mig or {}
        for instance in instances:
            place, made = mig_slices(instance), there.get(instance)
            others = [
                f"{name} (GPU instance {other.number})"
                for name, other in sorted(there.items())
                if made is None and other.slices.start < place.stop and place.start < other.slices.stop
            ]
            if others:
                self.refusals.append(
                    f"{card} has the MIG instance {' and '.join(others)}, where [devices] mig_instances "
                    f"wants {instance}. When no guest and no process has it, remove it: `nvidia-smi mig -i "
                    f"{card} -gi NUMBER -dci`, then the same with -dgi."
                )
            elif made is None:
                self._add(StepKind.MIG, card, card, instance)
            elif not made.computes and any(map(self._seen.has_use, function.vfs)):
                # The guest that has it may have taken its compute instance away, to make other ones.
                self.refusals.append(
                    f"{card} has the MIG instance {instance} without a compute instance, and guests can "
                    f"use the card. If none uses this instance: `nvidia-smi mig -i {card} -gi "
                    f"{made.number} -cci`."
                )
            elif not made.computes:
                self._add(StepKind.MIG_COMPUTE, card, card, instance, made.number)
        return True

    def _plan_quotas(self, card: str, addresses: Collection[str]) -> None:
        """The quotas of these functions of the card; execution quanta also while guests run on them.

        xe, as the driver of a virtual function, asks for contexts and doorbells once.

        Source: drivers/gpu/drm/xe/xe_gt_sriov_vf.c of Linux (`vf_get_submission_cfg`)
        """
        for kind, (option, _) in QUOTAS.items():
            pair = self._carving.quotas.get(option, {}).get(card)
            problem = self._seen.debugfs_problem if kind is StepKind.CONTEXTS else ""
            if pair is None:
                continue
            if not addresses and card not in self._carving.vfs:
                self.refusals.append(f"{card} has no virtual functions, and [devices] {option} names it.")
            elif problem:
                self.refusals.append(f"{card}: [devices] {option} cannot be written: {problem}.")
            for address in addresses if not problem else ():
                function = self._functions[address]
                uses = [*function.uses] if kind is StepKind.CONTEXTS else []
                if kind is StepKind.CONTEXTS and function.driver == "xe":
                    uses.append("its driver xe has read them; name another in [devices] driver_overrides")
                told = function.quotas.get(option, "none")
                if told != pair and uses:
                    self.refusals.append(
                        f"{address} has {told}, and [devices] {option} wants {pair}; they cannot change "
                        f"while the device is in use: {'; '.join(uses)}."
                    )
                elif told != pair:
                    self._add(kind, card, address, pair)

    def _on(self, card: str, wanted: Mapping[str, _T]) -> dict[str, _T]:
        return {function: value for function, value in wanted.items() if self._seen.card_of(function) == card}

    def _add(self, kind: StepKind, card: str, function: str, value: str, unit: str = "") -> None:
        self.steps.append(Step(kind, card, function, value, unit))

    # Virtual functions

    def _plan_vfs(self, card: str, number: int) -> None:
        function = self._functions.get(card)
        if function is None or function.vfs_max is None:
            if number == 0 and function is not None:
                return
            self._add(StepKind.AWAIT, card, card, Sight.SRIOV)
            function = replace(function or SeenFunction(card), vfs_max=number)
        if function.vfs_max is not None and number > function.vfs_max:
            self.refusals.append(
                f"{card} can have {counted(function.vfs_max, 'virtual function')}, and [devices] sriov_vfs "
                f"wants {number}."
            )
            self._complete.add(card)
            return
        changes = function.vfs_number != number
        if changes and function.vfs_number and not self._may_remove_vfs(function, number):
            self._complete.add(card)
            return
        # GIM changes the number itself, where none of the functions is in use, and not over 0.
        kind = StepKind.NUM_VF if function.driver == GIM else StepKind.VFS
        if changes and function.vfs_number:
            if kind is StepKind.VFS:
                self._add(kind, card, card, "0")
            there = self._functions.values()
            self._functions = {each.address: each for each in there if each.card != card}
        names_driver = card in self._carving.vf_drivers
        if names_driver and function.autoprobe is not False:
            self._add(StepKind.AUTOPROBE, card, card, "0")
        if not names_driver and changes and number and function.autoprobe is False:
            # An earlier carving named a driver; without one the functions are to be as after a boot.
            self._add(StepKind.AUTOPROBE, card, card, "1")
        if changes and number:
            self._add(kind, card, card, str(number))
        if number and (changes or len(function.vfs) < number):
            self._add(StepKind.AWAIT, card, card, Sight.VFS, str(number))
            for address in function.vf_addresses[:number]:
                self._functions.setdefault(address, SeenFunction(address, card=card))
        else:
            self._complete.add(card)

    def _may_remove_vfs(self, card: SeenFunction, number: int) -> bool:
        """Whether nothing has any of the card's virtual functions; if something has, a refusal says what."""
        held: list[str] = []
        for vf in card.vfs:
            function = self._functions.get(vf)
            held += self._carving.held_on(vf)
            held += [f"{vf}: {use}" for use in function.uses] if function is not None else []
            held += [
                f"{vf} has the mediated device {uuid}"
                for uuid, mdev in sorted(self._seen.mdevs.items())
                if mdev.parent == vf and uuid not in self._carving.holders
            ]
        if held:
            self.refusals.append(
                f"{card.address} has {counted(card.vfs_number or 0, 'virtual function')}, and [devices] "
                f"sriov_vfs wants {number}; the number cannot change while one is in use: {'; '.join(held)}."
            )
        return not held

    # Functions

    def _function(self, card: str, address: str) -> SeenFunction | None:
        """The function, after a wait where it is not there yet; None where it will not come."""
        function = self._functions.get(address)
        if function is not None:
            return function
        if card != address and card in self._complete:
            self.refusals.append(f"{address} is none of the virtual functions of {card}.")
            return None
        self._add(StepKind.AWAIT, card, address, Sight.FUNCTION)
        return SeenFunction(address)

    def _plan_driver(self, card: str, address: str, driver: str) -> None:
        function = self._function(card, address)
        if function is None:
            return
        if function.driver not in ("", driver) and function.uses:
            self.refusals.append(
                f"{address} has the driver {function.driver}, and [devices] driver_overrides wants {driver}; "
                f"it cannot change while the device is in use: {'; '.join(function.uses)}."
            )
            return
        if function.override != driver:
            self._add(StepKind.OVERRIDE, card, address, driver)
        if function.driver not in ("", driver):
            self._add(StepKind.UNBIND, card, address, function.driver)
        if function.driver != driver:
            self._add(StepKind.BIND, card, address, driver)
        self._functions[address] = replace(function, driver=driver, override=driver)

    def _plan_type(self, card: str, address: str, wanted: VgpuType) -> None:
        function = self._function(card, address)
        if function is None or function.vgpu_type == wanted.number:
            return
        if function.vgpu_type not in (None, NO_TYPE):
            if card in self._carving.mixed:  # refused already
                return
            held = [*self._carving.held_on(address), *function.uses]
            self.refusals.append(
                f"{address} has the vGPU type {function.vgpu_type}, and {wanted.number} is wanted"
                f"{': ' + '; '.join(held) if held else ''}; write 0 to its current_vgpu_type when no guest "
                "has it."
            )
            return
        if function.vgpu_type is None:
            self._add(StepKind.AWAIT, card, address, Sight.VRAM if wanted.vram else Sight.VGPU_TYPE)
        elif wanted.vram and function.uses:  # a guest can open a function without VRAM, too
            self.refusals.append(
                f"{address} has {function.told_type}, and {wanted.number} MiB are wanted; they cannot change "
                f"while the device is in use: {'; '.join(function.uses)}."
            )
            return
        if wanted.vram:
            self._add(StepKind.VRAM, card, address, wanted.number)
            return
        place = "" if wanted.placement is None else str(wanted.placement)
        self._add(StepKind.VGPU_TYPE, card, address, wanted.number, place)

    def _plan_mdev(self, card: str, uuid: str, wanted: Mdev) -> None:
        there = self._seen.mdevs.get(uuid)
        if there == wanted:
            return
        if there is not None:
            self.refusals.append(
                f"The mediated device {uuid} is of type {there.type_id} on {there.parent}, and type "
                f"{wanted.type_id} on {wanted.parent} is needed; remove it when no guest has it."
            )
            return
        function = self._function(card, wanted.parent)
        if function is None:
            return
        if wanted.type_id not in function.mdev_types:
            self._add(StepKind.AWAIT, card, wanted.parent, Sight.MDEV_TYPE, wanted.type_id)
        self._add(StepKind.CREATE_MDEV, card, wanted.parent, wanted.type_id, uuid)


def undo(unfinished: Iterable[Step], carving: Carving, seen: Seen) -> tuple[Step, ...]:
    """The steps back, the last first.

    There is none for a device that a claim or a domain has, or that is not there.
    """
    back: dict[Step, None] = {}
    for step in reversed(tuple(unfinished)):
        function = seen.functions.get(step.function)
        if function is None or step.function in carving.holders:
            continue
        names_driver = step.function in carving.drivers or step.card in carving.vf_drivers
        # A step is taken back where its effect is there, and is not wanted now.
        match step.kind:
            case StepKind.CREATE_MDEV:
                made = seen.mdevs.get(step.unit) == Mdev(function.address, step.value)
                is_due = made and step.unit not in carving.mdevs and step.unit not in carving.holders
                undone = replace(step, kind=StepKind.REMOVE_MDEV)
            case StepKind.VGPU_TYPE | StepKind.VRAM:
                is_due = function.vgpu_type == step.value != NO_TYPE and step.function not in carving.types
                undone = replace(step, value=NO_TYPE, unit="")
            case StepKind.OVERRIDE:
                is_due = function.override == step.value != "" and not names_driver
                undone = replace(step, value="")
            case StepKind.UNBIND:
                is_due = not function.driver and not names_driver
                undone = replace(step, kind=StepKind.BIND, value="")
            case StepKind.AUTOPROBE:
                is_due = function.autoprobe is False and step.function not in carving.vf_drivers
                undone = replace(step, value="1")
            case StepKind.VFS:
                unused = not any(seen.has_use(vf) or any(carving.held_on(vf)) for vf in function.vfs)
                is_due = function.vfs_number > 0 and step.function not in carving.vfs and unused
                undone = replace(step, value="0")
            case _:
                continue
        if is_due:
            back[undone] = None
    return tuple(back)
