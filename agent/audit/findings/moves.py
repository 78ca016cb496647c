"""Findings about moves between hosts: what stays here of an instance that Placement has on another one.
Pure.

A guest that stayed behind; a claim whose instance has moved away, while the agent cannot tell which
migration has its place; and a migration that holds resources here although its move is over, or does not go
on.
"""

from dataclasses import replace

from agent.audit.cases import ConsumerCase, FindingKind, MoveCase, TableRow
from agent.audit.finding import EndMove, Finding, WriteAllocations
from agent.claims.claim import ClaimState
from agent.moves.ownership import undecided_reason
from agent.moves.states import MIGRATION_TYPE, MoveState


class MovedAway(FindingKind):
    """An evacuated host that is back with its guest, or a live migration whose source stayed defined."""

    name = "moved away"
    rows = (
        TableRow(
            "A guest is on this host, but by Placement its instance is on another host, and no migration "
            "holds its place here: a move was confirmed while this host was away, or its source stayed "
            "defined. The agent keeps the resources of the guest.",
            "None: remove the guest. If the guest is the right one, move its allocation.",
            "no",
        ),
        TableRow(
            "A guest runs here without a claim, its allocation is on another host, and no migration holds "
            "its place here.",
            "None: move the guest, or its allocation.",
            "no",
        ),
        TableRow(
            "A guest that moved to another host, and whose claim here has ended, is still defined here.",
            "None: remove the definition.",
            "no",
        ),
    )

    def judge_consumer(self, case: ConsumerCase) -> Finding | None:
        """A guest whose allocations are all on other hosts.

        Without a claim, a guest that runs, or of which the agent knows that it moved away: a definition that
        was never here with a claim is no finding.
        """
        if case.guest is None or case.guest.problem or not case.placed.allocations or case.parts.here:
            return None
        if case.claim is None and not case.guest.is_here:
            if case.consumer not in case.observation.moved_away:
                return None
            reason = (
                f"The guest {case.consumer} is still defined on this host, but by Placement it has moved "
                "away: remove the definition."
            )
        elif case.claim is None and case.observation.left.get(case.consumer):
            return None  # a control plane moves it
        elif case.claim is None:
            reason = (
                f"The guest {case.consumer} is on this host, but its allocation is elsewhere: move the "
                "guest, or its allocation."
            )
        elif case.possible_holders:
            return None
        else:
            reason = (
                f"The guest {case.consumer} is on this host, but by Placement it has moved away to another "
                "one. The agent keeps the guest's resources here: remove the guest. If it is the right one, "
                "move its allocation."
            )
        return Finding(self.name, case.consumer, reason, case.evidence)

    def judge_move(self, case: MoveCase) -> Finding | None:
        """A guest that stayed behind when its move ended."""
        move = case.move
        if move.state is not MoveState.LEAVING or move.instance not in case.observation.guests:
            return None
        if not case.instance.allocations:
            return None  # nor has it moved away: the agent gives it its claim back at its next look
        return Finding(
            self.name,
            move.instance,
            f"Migration {move.migration} of {move.instance} has ended, but its guest is still on this host, "
            "where the agent keeps its resources: remove the guest.",
            case.evidence,
        )


class UnlinkedMove(FindingKind):
    """A move from this host whose migration the agent cannot name, also not at its next look."""

    name = "unlinked move"
    rows = (
        TableRow(
            "A claim's instance is on another host, and several migrations may hold its place here: two "
            "moves look alike. The agent keeps the place.",
            "None: confirm or revert one of the moves with `--instance`, or on its other host.",
            "no",
        ),
        TableRow(
            "A claim's instance is on another host, and a consumer has as much here as the claim, on other "
            "providers, and no reshape of this host explains that. The agent keeps the place.",
            "None: confirm or revert the move on its other host.",
            "no",
        ),
        TableRow(
            "As the two above, and Placement does not say that the consumer is a migration: it has no type.",
            "None, and no advice: the consumer may be an instance of its own.",
            "no",
        ),
    )

    def judge_consumer(self, case: ConsumerCase) -> Finding | None:
        """A claim of an instance that has left, with consumers here that may have its place."""
        claim, holders = case.claim, case.possible_holders
        if claim is None or claim.state is not ClaimState.CLAIMED or not holders:
            return None
        if case.parts.here or not case.parts.elsewhere or case.place_is_evident:
            return None
        untyped = [who for who in holders if case.observation.types.get(who) != MIGRATION_TYPE]
        if untyped:
            remedy = (
                f"{', '.join(untyped)} may be an instance of its own. Wait until it has a claim or a guest "
                "on this host, or holds nothing on it any more."
            )
        elif len(holders) == 1 and case.leaves_alone:
            remedy = "Confirm or revert the move on its other host."
        else:
            command = f"plimsoll move confirm MIGRATION --instance {case.consumer}"
            remedy = f"Name its migration: `{command}`, or `revert`."
        return Finding(
            self.name,
            case.consumer,
            f"By Placement {case.consumer} is on another host, and the agent cannot tell whether "
            f"{', '.join(holders)} has its place on this one. The agent keeps the place. {remedy}",
            case.evidence,
        )


class StaleMigration(FindingKind):
    """A migration without a move under way, or the migration of a move that cannot end by itself."""

    name = "stale migration"
    rows = (
        TableRow(
            "A migration has an allocation here, and its move is not under way. Not where it is the place of "
            "a guest that is still here while its instance is on another host: its control plane ends it.",
            "The allocation is deleted.",
            "if the move was confirmed or deleted here, and the allocation is exactly what the move gave it",
        ),
        TableRow(
            "The same, where an instance with a claim here is on another host by now: the migration may be "
            "that instance's, with other amounts than the claim, or in a move that has the uuid of an ended "
            "one.",
            "None: find out in the control plane whose migration it is.",
            "no",
        ),
        TableRow(
            "The same, where Placement has nothing for a guest that is here: the migration may hold its "
            "place, also with other amounts than the guest uses.",
            "None: find out in the control plane whose migration it is.",
            "no",
        ),
        TableRow(
            "A move has begun and does not go on: its instance was deleted, or is on a third host, while the "
            "migration still has an allocation, and another host began the move; or the agent cannot tell "
            "how the move ended.",
            "The move is confirmed.",
            "no",
        ),
    )

    def judge_consumer(self, case: ConsumerCase) -> Finding | None:
        """A migration with neither a guest nor a claim here."""
        if not case.is_migration:
            return None
        ended = case.move
        is_what_it_was_given = ended is not None and case.placed.allocations == ended.handed
        history = f"which is {ended.state} here" if ended else "which this host does not know"
        if case.possible_origins and not is_what_it_was_given:
            return Finding(
                self.name,
                case.consumer,
                f"Migration {case.consumer}, {history}, has an allocation on this host. It may be "
                f"what {', '.join(case.possible_origins)} left here in a move: the agent repairs nothing "
                "on a guess.",
                case.evidence,
            )
        return Finding(
            self.name,
            case.consumer,
            f"Migration {case.consumer}, {history}, has an allocation on this host.",
            case.evidence,
            # A reverted move may begin again with the same uuid, on another host.
            own=ended is not None
            and ended.state in (MoveState.CONFIRMED, MoveState.DELETED)
            and is_what_it_was_given,
            repair=(WriteAllocations(replace(case.placed, allocations=case.remainder)),),
        )

    def judge_move(self, case: MoveCase) -> Finding | None:
        """A move that has begun and that this host may not end alone."""
        move = case.move
        if move.state is not MoveState.BEGUN:
            return None
        clause = undecided_reason(
            move, case.instance.allocations, case.migration.allocations, case.observation.host.is_own
        )
        if clause is None:
            return None
        return Finding(
            self.name,
            move.migration,
            f"Migration {move.migration} of {move.instance} has begun and does not go on: {clause}. To free "
            "the migration's allocation, confirm it.",
            case.evidence,
            repair=(EndMove(move.migration),),
        )
