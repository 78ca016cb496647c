"""Findings about guests on this host: a guest against the claim or the allocation that it has. Pure.

The first is about a guest that has no claim, and is judged as a consumer. The others are judged row by row:
a claim with its allocation and no guest for a long time, a guest that uses more or less than it has, a
guest that uses other exact units than those of its claim, and a claimed unit that this host does not have
any more.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace

from agent.audit.cases import (
    ConsumerCase,
    FindingKind,
    RowCase,
    TableRow,
    follow_together,
    held_of,
    is_older,
    obstacle,
)
from agent.audit.finding import ClaimUse, Finding, FollowGuests, RecordUse, TakeClaim
from agent.audit.observation import Observation
from agent.claims.attribution import gone_units, use_of
from agent.claims.claim import Claim, ClaimState, Restriction
from agent.claims.domain_demand import request_for_domain, why_on_no_provider
from agent.claims.refusal import amounts_text, provider_label
from agent.claims.request import ClaimRequest, RequestGroup, wrong_cards
from agent.claims.rows import Row
from agent.claims.use_difference import UseDifference
from agent.device_names import NO_MAC, address_of
from agent.driver import Guest, GuestState
from agent.errors import by_force
from agent.moves.states import request_for_allocations
from agent.providers.retention import way_back, with_name
from agent.shapes import Allocations, Units, add_units, by_class, total

AGENT = "plimsoll"
AGENT_IDENTITY = (AGENT, AGENT)
"""The project and the user of the agent's claims where the request names no others."""


ABSENT_S = 3600.0
"""A claim is made before its guest; a guest that is not there after so many seconds will not come."""

CPUS = "PCPU"


class UnclaimedInstance(FindingKind):
    """A guest without allocation and claim, or with an allocation whose claim the agent has lost.

    An allocation that another program wrote needs no claim.
    """

    name = "unclaimed instance"
    rows = (
        TableRow(
            "A guest has neither a claim nor an allocation. A guest that is shut off only if it was here "
            "before the state directory: what was claimed for it is not known.",
            "A claim of what the guest uses, with the devices that it has. If that does not fit, the finding "
            "lists the shortfalls and has no repair. None while a migration here may hold its place.",
            "no",
        ),
        TableRow(
            "A guest has an allocation that this agent wrote, but no claim: the agent's record is lost.",
            "A claim is recorded for the allocation. If others have some of it, the finding lists the "
            "shortfalls and has no repair.",
            "yes",
        ),
    )

    def judge_consumer(self, case: ConsumerCase) -> Finding | None:
        """A guest without a claim, with an allocation of the agent's here or with none at all."""
        guest, observation = case.guest, case.observation
        if case.claim is not None or guest is None:
            return None
        if case.placed.allocations:
            if not case.parts.here or (case.placed.project_id, case.placed.user_id) != AGENT_IDENTITY:
                return None
            return Finding(
                self.name,
                case.consumer,
                f"The guest {case.consumer} ({guest.name}) has an allocation that this agent wrote, but no "
                "claim.",
                case.evidence,
                own=True,
                repair=(_claim_for_allocation(case, guest),),
            )
        if guest.is_off and case.consumer not in observation.found:
            return None  # it uses nothing
        reason = f"The guest {guest.uuid} ({guest.name}) is on this host, and has no claim"
        if case.possible_migrations:
            return Finding(self.name, guest.uuid, f"{reason}. {case.migration_doubt}", case.evidence)
        wanted = request_for_domain(guest, observation.place, observation.devices, user_id=AGENT)
        problem = ""  # why what the guest uses cannot be claimed, as a clause
        if wanted.unmanaged:
            used = wanted.unmanaged[0]
            problem = f"its {used.resource_class} {used.unit} {why_on_no_provider(used, observation.place)}"
        elif not guest.units and not any(amount > 0 for amount in guest.resources.values()):
            problem = "the resources that it uses are not known"
        if problem:
            return Finding(self.name, guest.uuid, f"{reason}; {problem}.", case.evidence)
        claim = ClaimUse(wanted.request, Restriction(_offered(observation, wanted.named), bound=wanted.bound))
        return Finding(self.name, guest.uuid, f"{reason}.", case.evidence, repair=(claim,))


def _offered(observation: Observation, units: Units) -> Units:
    """The units of the classes of which the driver offers all of them; it may not name those of a class."""
    return {
        uuid: {
            name: exact
            for name, exact in classes.items()
            if set(exact) <= set(observation.offered.get(uuid, {}).get(name, ()))
        }
        for uuid, classes in units.items()
    }


def _claim_for_allocation(case: ConsumerCase, guest: Guest) -> TakeClaim:
    """The claim that the guest's allocation covers, also where two providers have amounts of one class.

    It has the units that the guest uses, and others only of classes of which it has more.
    """
    held = case.placed.allocations
    groups = tuple(
        RequestGroup(f"_{number}", dict(amounts))
        for number, (_, amounts) in enumerate(sorted(held.items()), start=1)
    )
    request = ClaimRequest(
        case.consumer,
        groups,
        group_policy="none" if len(groups) > 1 else None,
        name=guest.name,
        project_id=AGENT,
        user_id=AGENT,
    )
    row = Row(case.consumer, {case.consumer: held}, {}, guest)
    units = _offered(case.observation, use_of(row, case.observation.place).units)
    used = Counter(name for classes in units.values() for name, exact in classes.items() for _ in exact)
    has = by_class(held.values())
    more = frozenset(name for name in used if used[name] < has.get(name, 0))
    return TakeClaim(request, Restriction(units, more))


class AbsentGuest(FindingKind):
    """A row without a guest: the program that claimed stopped before it started the guest, or forgot it."""

    name = "absent guest"
    rows = (
        TableRow(
            "A claim that is older than an hour has its allocation, but no guest on this host. What was "
            "claimed before the agent started counts from its start: the wall clock may have been set since.",
            "None: release the claim if its instance was deleted or did not start.",
            "no",
        ),
    )

    def judge_row(self, case: RowCase) -> Iterator[Finding]:
        """A claim that no move and no guest explains."""
        claim = case.row.claimed.get(case.instance)
        if claim is None or case.is_moving or case.row.guest is not None:
            return
        if claim.state is not ClaimState.CLAIMED or not case.row.held:
            return
        if case.observation.ages.get(case.instance, 0.0) <= ABSENT_S:
            return
        yield Finding(
            self.name,
            case.instance,
            f"{case.instance} has a claim and an allocation, but no guest on this host. If the instance was "
            "deleted or did not start, release the claim.",
            case.evidence,
        )


class UsesMore(FindingKind):
    """A guest that runs with more than its claim, or, without a claim, its allocation has."""

    name = "uses more"
    rows = (
        TableRow(
            "A guest runs with more than it has: CPUs, memory, a virtual function, a GPU. The agent offers "
            "nothing of that to others.",
            "With a claim, in no move, where no other instance keeps one of the units, and where it fits: "
            "the claim gets what the guest uses, and Placement is written accordingly. Otherwise none: take "
            "it from the guest, or resize the instance.",
            "no",
        ),
    )

    def judge_row(self, case: RowCase) -> Iterator[Finding]:
        """The amounts by provider, and the units where they are known."""
        use = case.use
        if use is None or not use.more:
            return
        clauses = []
        for uuid, amounts in sorted(use.more.items()):
            extra = {
                name: [unit for unit in units if unit in use.extra.get(name, ())]
                for name, units in case.row.used.units.get(uuid, {}).items()
            }
            label = provider_label(uuid, case.observation.host.tree)
            clauses.append(f"{amounts_text(amounts, extra)} on {label}")
        source = "its claim" if use.claim else "its allocation"
        grown = _grown(case, use)
        in_the_way = obstacle(case.observation, [grown]) if grown else ""
        finding = Finding(
            self.name,
            case.instance,
            f"The guest {case.instance} uses more than {source} has: {'; '.join(clauses)}."
            + (f" {in_the_way} Or take from the guest what it has too much." if in_the_way else ""),
            {**case.evidence, "more": {uuid: dict(amounts) for uuid, amounts in use.more.items()}},
            repair=(RecordUse(use.claim, grown),) if use.claim and grown and not in_the_way else (),
        )
        lacking = case.observation.lacking(case.instance, grown.allocations) if grown else ()
        yield finding.refused(lacking) if lacking and finding.repair else finding


def _grown(case: RowCase, use: UseDifference) -> Claim | None:
    """The claim with what the guest uses beyond it; None where it has a place of its own to come from.

    A claim with NUMA cells, and one that is moving, do not grow: their places were chosen together. One whose
    function has another size than it says does not get the same function once more.
    """
    claim = use.claim
    if claim is None or case.is_moving or claim.cells or use.swapped:
        return None
    functions = {address_of(unit) for _, _, unit in claim.exact if address_of(unit) != unit}
    if any(address_of(unit) in functions for units in use.extra.values() for unit in units):
        return None
    allocations: Allocations = total((claim.allocations, use.more))
    units = {uuid: dict(classes) for uuid, classes in claim.units.items()}
    for uuid, classes in case.row.used.units.items():
        for name, names in classes.items():
            more = tuple(unit for unit in names if unit in use.extra.get(name, ()))
            if more:
                add_units(units, uuid, name, *more)
    grown = request_for_allocations(claim.request, allocations)
    return replace(claim, request=grown, allocations=allocations, units=units)


class UsesLess(FindingKind):
    """A guest that runs with less than its claim, or, without a claim, its allocation."""

    name = "uses less"
    rows = (
        TableRow(
            "A guest runs without something that it has: a GPU, a virtual function, CPUs or memory. Disks "
            "do not count, because a driver does not see all of them.",
            "None: give the guest what it has, or resize the instance.",
            "no",
        ),
    )

    def judge_row(self, case: RowCase) -> Iterator[Finding]:
        """The amounts, and the units where they are known."""
        use = case.use
        if use is None or not use.less:
            return
        units = [unit for names in use.missing.values() for unit in names]
        source = "its claim" if use.claim else "its allocation"
        yield Finding(
            self.name,
            case.instance,
            f"The guest {case.instance} uses less than {source} has: {amounts_text(use.less, use.missing)} "
            "are missing. Give the guest what it has, or resize the instance.",
            {**case.evidence, "missing": dict(use.less), "units": units},
        )


class AnotherUnit(FindingKind):
    """As many units as claimed, but others; a claim whose CPUs are not those of its NUMA cells; a virtual
    function whose card has another MAC address or VLAN for it than its guest.
    """

    name = "another unit"
    rows = (
        TableRow(
            "A guest uses another exact unit (a device, a virtual function, a dedicated CPU) than its claim "
            "has, while it runs.",
            "The claim gets the units that the guest uses, together with the claims whose units these are, "
            "if their guests use others as well. Else none: give the guest the units of its claim, or "
            "release the claim that has them.",
            "no",
        ),
        TableRow(
            "The dedicated CPUs of a claim are not those of its NUMA cells.",
            "None: release the claim, by force if its guest runs, and claim for the instance again.",
            "no",
        ),
        TableRow(
            "A guest runs with a virtual function for which its network card has another MAC address or VLAN "
            "than the guest's definition; or with a plain `<hostdev>`, for which the card had both and has "
            "none any more, as after a boot.",
            "None: set it on the card (`ip link set CARD vf NUMBER mac MAC vlan VLAN`), or start a guest "
            "that has it as an `<interface>` anew; `[devices] restore_ports` sets it after a boot.",
            "no",
        ),
    )

    def judge_row(self, case: RowCase) -> Iterator[Finding]:
        """The guest against its claim and its cards, and each claim against itself."""
        guest = case.row.guest
        if (
            guest is not None
            and guest.problem is None
            and guest.state in (GuestState.RUNNING, GuestState.PAUSED)
        ):
            ports = {unit.unit: (unit.asked_port, unit.port) for unit in guest.units}
            differ = {unit: port for unit, port in ports.items() if all(port) and len({*port}) > 1}
            clauses = [f"{unit} has {port}, and the guest {asked}" for unit, (asked, port) in differ.items()]
            if clauses:
                # What a card lost is that of a plain <hostdev> as well, which libvirt sets at no start.
                is_lost = any(port == NO_MAC for _, port in differ.values())
                remedy = (
                    "; [devices] restore_ports does so at boots" if is_lost else ", or start the guest anew"
                )
                yield Finding(
                    self.name,
                    case.instance,
                    f"The network card of the guest {case.instance} has another MAC address or VLAN for its "
                    f"virtual function: {'; '.join(clauses)}. Set it on the card{remedy}.",
                    {**case.evidence, "ports": {unit: list(port) for unit, port in differ.items()}},
                )
        use = case.use
        if use is not None and use.swapped:
            clauses = [
                f"the {name} {', '.join(used)} instead of {', '.join(claimed)}"
                for name, (claimed, used) in sorted(use.swapped.items())
            ]
            repair, in_the_way = _follows(case)
            if repair:
                remedy = "The claim may follow the guest."
            elif in_the_way:
                remedy = f"{in_the_way} Or give the guest {case.instance} the units of its claim."
            else:
                remedy = "Give it those of its claim."
            yield Finding(
                self.name,
                case.instance,
                f"The guest {case.instance} uses other units than its claim has: {'; '.join(clauses)}. "
                + remedy,
                {
                    **case.evidence,
                    "units": {
                        name: {"claimed": list(claimed), "used": list(used)}
                        for name, (claimed, used) in sorted(use.swapped.items())
                    },
                },
                repair=repair,
            )
        for claim in case.row.claimed.values():
            cpus = {int(unit) for _, name, unit in claim.exact if name == CPUS and unit.isdecimal()}
            pinned = {cpu for cell in claim.cells for cpu in cell.pinning.values()}
            if cpus and pinned and not pinned <= cpus:
                yield Finding(
                    self.name,
                    claim.consumer,
                    f"The claim of {claim.consumer} has the CPUs {_text(cpus)}, but its NUMA cells pin the "
                    f"guest to {_text(pinned)}: {_end_of(case, claim.consumer)}, and claim again.",
                    {**case.evidence, "units": sorted(cpus), "cells": sorted(pinned)},
                )


def _follows(case: RowCase) -> tuple[tuple[FollowGuests, ...], str]:
    """The repair, and what stands in its way; see `follow_together`.

    The claim follows its guest where Placement has the same as before, and not while units are made.
    """
    claim, observation = case.row.claimed.get(case.instance), case.observation
    if claim is None or claim.makings or case.is_moving:
        return (), ""
    held = held_of(observation, claim)
    if held != claim.allocations or not is_older(observation, claim, held):
        return (), ""
    return follow_together(observation, claim, held)


def _end_of(case: RowCase, consumer: str) -> str:
    """How to end the claim, as a clause."""
    return "confirm or revert its move" if case.is_moving else f"release the claim {by_force(consumer)}"


def _text(cpus: Collection[int]) -> str:
    return ", ".join(map(str, sorted(cpus)))


class VanishedUnit(FindingKind):
    """A device that was taken out, a virtual function that was not created again, a CPU that went offline."""

    name = "vanished unit"
    rows = (
        TableRow(
            "A claim has an exact unit that is nowhere on this host any more.",
            "None: bring the device back (virtual functions must be created again after each boot, a CPU "
            "must be online), or release the claim, by force if its guest runs.",
            "no",
        ),
    )

    def judge_row(self, case: RowCase) -> Iterator[Finding]:
        """One finding for all such units of a claim."""
        gone: dict[str, list[tuple[str, str, str]]] = {}
        for uuid, name, unit, consumer in gone_units(case.place, [case.row]):
            gone.setdefault(consumer, []).append((uuid, name, unit))
        tree = case.observation.host.tree
        for consumer, units in sorted(gone.items()):
            ways = dict.fromkeys(way_back(tree.get(uuid), name) for uuid, name, _ in units)
            missing = ", ".join(f"{name} {unit}" for _, name, unit in units)
            name = case.row.guest.name if case.row.guest else case.row.claimed[consumer].request.name
            who = with_name(consumer, {consumer: name})
            yield Finding(
                self.name,
                consumer,
                f"{who} has claimed what this host does not have any more: "
                f"{missing}. {'. '.join(ways)}, or {_end_of(case, consumer)}.",
                {**case.evidence, "units": [unit for _, _, unit in units]},
            )


class WrongMode(FindingKind):
    """A card whose mode of confidential computing is not for its guest: another one was stated meanwhile."""

    name = "wrong mode"
    rows = (
        TableRow(
            "A guest with SEV-SNP or TDX has a card that is not confidential, or another guest has one that "
            "is: its `cc_mode` in `[pci] device_spec` changed under the guest, or under its claim. Or the "
            "card is in another mode than `cc_mode`: `plimsoll devices apply` has read it.",
            "None: give the card its former mode, and state it; or release the claim, by force if its guest "
            "runs, and claim again. After a change of the mode, run `plimsoll devices apply`.",
            "no",
        ),
    )

    def judge_row(self, case: RowCase) -> Iterator[Finding]:
        """What the guest uses and what is claimed for it, by the traits of the cards."""
        claim = case.row.claimed.get(case.instance)
        request, needed = claim.request if claim is not None else None, case.row.needed
        for card, clause in wrong_cards(request, case.row.guest, needed, case.observation.host.tree):
            yield Finding(
                self.name,
                case.instance,
                f"{case.instance} has {amounts_text(needed[card.uuid])} of {card.name}, which {clause}. Give "
                "the card its former mode and state that in [pci] device_spec, or "
                f"{_end_of(case, case.instance)}.",
                {**case.evidence, "provider": card.uuid, "traits": sorted(card.traits)},
            )
