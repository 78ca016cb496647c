"""A migration that holds resources here although its move is over, or does not go on."""

from dataclasses import replace

from agent.audit.cases import ConsumerCase, MoveCase
from agent.audit.finding import Finding, FindingKind, TableRow
from agent.audit.repair import EndMove, WriteAllocations
from agent.moves.ownership import undecided_reason
from agent.moves.states import Move, MoveState


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
        if case.possible_origins and not is_what_it_was_given:
            return Finding(
                self.name,
                case.consumer,
                f"Migration {case.consumer}, {_history(ended)}, has an allocation on this host. It may be "
                f"what {', '.join(case.possible_origins)} left here in a move: the agent repairs nothing "
                "on a guess.",
                case.evidence,
            )
        return Finding(
            self.name,
            case.consumer,
            f"Migration {case.consumer}, {_history(ended)}, has an allocation on this host.",
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


def _history(ended: Move | None) -> str:
    return f"which is {ended.state} here" if ended else "which this host does not know"
