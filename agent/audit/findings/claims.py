"""Findings about one consumer, by its claim and all that Placement has for it. Pure.

In the order in which they judge: an operation that did not end, a claim whose instance was deleted while
the agent was down, a consumer on two hosts (control planes up to OpenStack Pike write that for a move), an
allocation with other amounts or on other providers than the claim, and an allocation that belongs to no
guest, claim or move of this host.

The claim is written to Placement again only where nothing says that Placement is the newer of the two.
"""

from dataclasses import replace

from agent.audit.cases import ConsumerCase, FindingKind, TableRow
from agent.audit.finding import Deliver, DropClaim, Finding, FollowGuests, FollowReshape, WriteAllocations
from agent.claims.claim import ClaimState
from agent.errors import by_force, counted
from agent.moves.ownership import reduce_allocations
from agent.placement.client import ConsumerAllocations


class StuckConsumer(FindingKind):
    """A claim or a release in doubt."""

    name = "stuck consumer"
    rows = (
        TableRow("A claim or a release did not come to its end.", "The agent finishes or undoes it.", "yes"),
    )

    def judge_consumer(self, case: ConsumerCase) -> Finding | None:
        """A claim in a state that is not final."""
        if case.claim is None or case.claim.state is ClaimState.CLAIMED:
            return None
        return Finding(
            self.name,
            case.consumer,
            f"The claim of {case.consumer} is {case.claim.state}, and no operation works on it.",
            case.evidence,
            own=True,
            repair=(Deliver(case.consumer),),
        )


class LeakedClaim(FindingKind):
    """A claim without guest and without allocation."""

    name = "leaked claim"
    rows = (
        TableRow(
            "A claim whose guest and whose allocation are both gone.",
            "The agent releases the claim; or its migration gets it, where one alone holds its place: the "
            "instance was deleted in a move. Where several may, the claim stays until an operator names one.",
            "yes",
        ),
    )

    def judge_consumer(self, case: ConsumerCase) -> Finding | None:
        """A claim of a consumer that neither the driver nor Placement has."""
        if case.claim is None or case.guest is not None or case.placed.allocations:
            return None
        if case.consumer in case.observation.lost:
            return None  # Placement lost it; no client released it
        return Finding(
            self.name,
            case.consumer,
            f"{case.consumer} has a claim, but neither a guest on this host nor an allocation in Placement.",
            case.evidence,
            own=True,
            repair=(DropClaim(case.consumer),),
        )


class Doubled(FindingKind):
    """A consumer that is charged here and on another host."""

    name = "doubled"
    rows = (
        TableRow(
            "One consumer has allocations on this host and on another one.",
            "The allocations are reduced to the host where the guest is.",
            "no",
        ),
    )

    def judge_consumer(self, case: ConsumerCase) -> Finding | None:
        """An allocation here and one elsewhere; shared providers do not count."""
        if not case.parts.doubled:
            return None
        runs_here = case.guest is not None
        resources = case.claim.request.resources if case.claim else None
        write = replace(
            case.placed, allocations=reduce_allocations(case.parts, runs_here=runs_here, resources=resources)
        )
        return Finding(
            self.name,
            case.consumer,
            f"{case.consumer} has allocations on this host and on another one; its guest is "
            f"{'on this host' if runs_here else 'not on this host'}.",
            case.evidence,
            repair=(WriteAllocations(write),),
        )


class AmountsDiffer(FindingKind):
    """The claimed providers, with other amounts; or no allocation while the guest is here."""

    name = "amounts differ"
    judges_moves = True
    rows = (
        TableRow(
            "Placement has other amounts than the claim, on a shared provider for example; or no allocation "
            "while the guest is here, or since Placement's database was restored from a copy or replaced.",
            "The amounts of the claim are written again. If they do not fit any more, the finding lists "
            "the shortfalls and has no repair: move one of the consumers away, or release it. None while a "
            "migration here may hold the place of a guest without an allocation.",
            "no",
        ),
        TableRow(
            "No allocation while the guest is here, and Placement cannot give what is claimed: a reshape "
            "waits, or a device has vanished.",
            "None: end what the reshape waits for, or bring the device back.",
            "no",
        ),
        TableRow(
            "The same, or other providers, and the guest runs with just what Placement has, or is shut off "
            "and its definition names the exact units that Placement has: the claim's record is older, as in "
            "a state directory that was restored from a copy.",
            "The claim gets what the guest uses, together with those whose units it gets. None for a claim "
            "with NUMA cells: release it, by force if its guest runs, and claim again. None while another "
            "claim that does not follow has one of the units: release that one, repair again, and claim for "
            "it after that.",
            "no",
        ),
    )

    def judge_consumer(self, case: ConsumerCase) -> Finding | None:
        """Other amounts on the same providers, or none at all."""
        if case.claim is None:
            return None
        if not case.placed.allocations:
            if case.guest is None and case.consumer not in case.observation.lost:
                return None
            request = case.claim.request
            write = ConsumerAllocations(
                case.consumer,
                case.claim.allocations,
                None,
                request.project_id,
                request.user_id,
                request.consumer_type,
            )
            reason = (
                f"{case.consumer} has {'a guest and ' if case.guest else ''}a claim on this host, but no "
                "allocation in Placement"
                f"{'' if case.guest else ', whose database was restored or replaced'}."
            )
            if case.possible_migrations:
                return Finding(self.name, case.consumer, f"{reason} {case.migration_doubt}", case.evidence)
            lacking = case.observation.without_room(case.claim.allocations)
            if lacking:
                reason += (
                    f" Placement cannot give it {lacking}: where `plimsoll status` shows a reshape that "
                    "waits, end what it waits for; where a device has vanished, bring it back. Else "
                    f"{_end_of(case)}, and claim for the instance again."
                )
                return Finding(self.name, case.consumer, reason, case.evidence)
            return _written_again(self.name, case, reason, write)
        allocations = case.claimed_otherwise
        if allocations is None or case.is_on_other_providers or case.reshaped:
            return None
        reason = f"The allocation of {case.consumer} in Placement has other amounts than its claim."
        write = replace(case.placed, allocations=allocations)
        return _which_is_newer(self.name, case) or _written_again(self.name, case, reason, write)


class WrongProvider(FindingKind):
    """Other providers of this host than those of the claim."""

    name = "wrong provider"
    judges_moves = True
    rows = (
        TableRow(
            "Placement has the allocation on other providers than the claim.",
            "The allocation of the claim is written again. If it does not fit any more, the finding lists "
            "the shortfalls and has no repair.",
            "no",
        ),
        TableRow(
            "The same, and the claim's record is from before a reshape, as in a state directory that was "
            "restored from a copy: Placement has the same amounts where the reshape moved them.",
            "The claim gets the providers that Placement has, and keeps its exact units.",
            "yes",
        ),
        TableRow(
            "The same amounts, and neither the guest, an exact unit nor a move instruction of the driver "
            "says which is newer, the claim or Placement. Also where both name the same providers.",
            "None: write to Placement what the claim has, or release it, by force if its guest runs, and "
            "claim again.",
            "no",
        ),
        TableRow(
            "Other providers or amounts, and guests of other instances use units of the claim: its record is "
            "older.",
            "None: release it, by force if its guest runs, and claim again.",
            "no",
        ),
    )

    def judge_consumer(self, case: ConsumerCase) -> Finding | None:
        """The allocation here against the claim, of a moving instance or its migration as well."""
        allocations = case.claimed_otherwise
        if allocations is None:
            return None
        relocations = case.reshaped
        if relocations:
            return Finding(
                self.name,
                case.consumer,
                f"The claim of {case.consumer} is from before a reshape, which moved its allocation in "
                "Placement.",
                case.evidence,
                own=True,
                repair=(FollowReshape(case.consumer, relocations),),
            )
        if not case.is_on_other_providers:
            return None
        reason = f"The allocation of {case.consumer} in Placement is on other providers than its claim."
        write = replace(case.placed, allocations=allocations)
        return _which_is_newer(self.name, case) or _written_again(self.name, case, reason, write)


def _end_of(case: ConsumerCase) -> str:
    """How to end the claim, as a clause."""
    return "confirm or revert its move" if case.is_moving else f"release the claim {by_force(case.consumer)}"


def _written_again(kind: str, case: ConsumerCase, reason: str, write: ConsumerAllocations) -> Finding:
    """The finding whose repair is that write, or which has none where Placement would refuse it."""
    finding = Finding(kind, case.consumer, reason, case.evidence, repair=(WriteAllocations(write),))
    lacking = case.observation.lacking(case.consumer, write.allocations)
    return finding.refused(lacking) if lacking else finding


def _which_is_newer(kind: str, case: ConsumerCase) -> Finding | None:
    """The finding of this kind where the claim must not be written over what Placement has.

    None: nothing says that Placement may be the newer of the two.
    """
    repair: tuple[FollowGuests, ...] = ()
    if case.is_outdated:
        repair, obstacle = case.follows
        has = "is defined with" if case.guest is not None and case.guest.is_off else "uses"
        reason = (
            f"The guest {case.consumer} {has} what Placement has for it, and its claim has something else: "
            "the claim's record is older, as in a state directory that was restored from a copy."
        )
        if obstacle:
            reason += f" {obstacle}"
        elif not repair:
            reason += f" Release the claim {by_force(case.consumer)}, and claim for the instance again."
    elif case.is_undecided:
        reason = (
            f"Placement has what {case.consumer} claimed on other providers of this host, and neither its "
            "guest, an exact unit nor a move instruction of the driver says which of the two is newer: the "
            "agent moves nothing on a guess. Write to Placement what the claim has, or "
            f"{_end_of(case)}, and claim for the instance again."
        )
    elif case.used_by_others:
        used = ", ".join(f"{unit} by {instance}" for unit, instance in case.used_by_others)
        reason = (
            f"Placement has something else for {case.consumer} than its claim, of which other guests use "
            f"units ({used}): the claim's record is older, as in a state directory that was restored from a "
            f"copy. Release it {by_force(case.consumer)}, and claim for the instance again."
        )
    else:
        return None
    return Finding(kind, case.consumer, reason, case.evidence, repair=repair)


class OrphanedAllocation(FindingKind):
    """A consumer that only Placement knows. An instance that is about to start looks the same."""

    name = "orphaned allocation"
    rows = (
        TableRow(
            "A consumer without guest and claim has an allocation here. An instance that is about to start "
            "looks the same.",
            "Its allocation on this host is deleted.",
            "no",
        ),
        TableRow(
            "The same, where an instance with a claim here is on another host by now: the consumer may be "
            "that instance's migration.",
            "None: find out in the control plane which consumer it is.",
            "no",
        ),
        TableRow(
            "The same, where migrations of the consumer's project and user have resources in Placement: a "
            "control plane may be moving the instance to this host. So it is where Placement cannot tell of "
            "them, as OpenStack's over PostgreSQL.",
            "None until these moves are over: find out in the control plane whether one is the consumer's.",
            "no",
        ),
    )

    def judge_consumer(self, case: ConsumerCase) -> Finding | None:
        """A consumer with an allocation here alone, which is no migration."""
        if case.claim is not None or case.guest is not None or case.is_migration:
            return None
        origins, migrations = case.possible_origins, case.observation.migrations
        if origins:
            doubt = (
                f"It is perhaps a new instance, and perhaps what {', '.join(origins)} left here in a move: "
                "find out in the control plane which consumer it is. The agent repairs nothing on a guess."
            )
        elif migrations is None:
            doubt = (
                "A control plane may be moving the instance to this host: Placement answers with an error "
                "where it is asked for the migrations of its project and user. Find out in the control plane "
                "whether one is its own. The agent repairs nothing on a guess."
            )
        elif migrations:
            doubt = (
                "A control plane may be moving the instance to this host: "
                f"{counted(migrations, 'migration')} of its project and user "
                f"{'has' if migrations == 1 else 'have'} resources in Placement. Find out in the control "
                "plane whether one is its own. The agent repairs nothing on a guess."
            )
        else:
            doubt = "An instance that is about to start looks the same."
        delete = WriteAllocations(replace(case.placed, allocations=case.remainder))
        return Finding(
            self.name,
            case.consumer,
            f"{case.consumer} has an allocation on this host, but neither a guest nor a claim here. {doubt}",
            case.evidence,
            repair=() if origins or migrations != 0 else (delete,),
        )
