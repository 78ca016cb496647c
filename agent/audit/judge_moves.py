"""The audit's judgement of moves that do not go on by themselves. Pure.

A move under way is nobody's finding: whoever began it ends it. These are left over because what they wait for
does not come, or because somebody else wrote what they cannot tell from the rest.
"""

from collections.abc import Iterator

from agent.audit.finding import EndMove, Finding, FindingKind, Holding
from agent.audit.judge import Truths
from agent.moves.ownership import undecided_reason
from agent.moves.states import Move, MoveRole, MoveState


def suspect_moves(truths: Truths) -> Iterator[Move]:
    """The moves worth a closer look: those that others may have ended or left, and those that wait."""
    return (move for move in truths.moves if _is_suspect(truths, move))


def _is_suspect(truths: Truths, move: Move) -> bool:
    if move.state is MoveState.LEAVING:
        return move.instance in truths.guests
    if move.state is not MoveState.BEGUN:
        return False
    if move.role is MoveRole.BOTH:
        return bool(move.handed) and not truths.holds_here(move.migration)
    return move.role is MoveRole.SOURCE or (move.adopted and not truths.holds_here(move.instance))


def judge_move(truths: Truths, move: Move, instance: Holding, migration: Holding) -> Finding | None:
    """`instance` and `migration` are all that placement holds for the two; None: nothing is wrong."""
    evidence = {
        "move": f"{move.kind}, {move.role}, {move.state}",
        "instance": move.instance,
        "placement": {
            holding.consumer: {uuid: dict(each) for uuid, each in holding.allocations.items()}
            for holding in (instance, migration)
        },
        "generation": migration.generation,
    }
    if move.state is MoveState.LEAVING:
        if move.instance not in truths.guests:
            return None
        reason = (
            f"Migration {move.migration} of {move.instance} has ended, and its guest is still on this host, "
            "where its place is kept for it: remove the guest."
        )
        return Finding(FindingKind.STUCK_CONSUMER, move.instance, reason, evidence)
    why = undecided_reason(move, instance.allocations, migration.allocations, truths.host.is_own)
    if move.state is not MoveState.BEGUN or why is None:
        return None
    reason = (
        f"Migration {move.migration} of {move.instance} has begun and does not go on: {why}. To confirm it "
        "frees what the migration holds."
    )
    repair = (EndMove(move.migration),)
    return Finding(FindingKind.STALE_MIGRATION, move.migration, reason, evidence, repair=repair)
