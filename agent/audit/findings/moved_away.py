"""A guest that stayed behind on this host, while its instance is on another one by Placement."""

from agent.audit.cases import ConsumerCase, MoveCase
from agent.audit.finding import Finding, FindingKind, TableRow
from agent.claims.use_difference import NOT_HERE
from agent.moves.states import MoveState


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
        if case.claim is None and case.guest.state in NOT_HERE:
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
        return Finding(
            self.name,
            move.instance,
            f"Migration {move.migration} of {move.instance} has ended, but its guest is still on this host, "
            "where the agent keeps its resources: remove the guest.",
            case.evidence,
        )
