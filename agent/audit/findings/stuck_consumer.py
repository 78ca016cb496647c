"""An operation that began and did not end, and that no thread of the agent works on."""

from agent.audit.cases import ConsumerCase, MoveCase
from agent.audit.finding import Finding, FindingKind, TableRow
from agent.audit.repair import Deliver
from agent.claims.claim import ClaimState
from agent.moves.states import MoveState


class StuckConsumer(FindingKind):
    """A claim or a release in doubt, or a guest that stayed after its move ended."""

    name = "stuck consumer"
    rows = (
        TableRow("A claim or a release did not come to its end.", "The agent finishes or undoes it.", "yes"),
        TableRow(
            "A move has ended, but its guest is still on this host, where the agent keeps its resources (an "
            "evacuated host that is back).",
            "None: remove the guest.",
            "no",
        ),
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

    def judge_move(self, case: MoveCase) -> Finding | None:
        """A guest that stayed behind."""
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
