"""What only this agent has written need not be read: each reshape since the claim raised its generation."""

from dataclasses import replace

from agent.claims.claim import Claim, ClaimState
from agent.claims.request import ClaimRequest
from agent.moves.states import Move, MoveKind, MoveRole, MoveState
from agent.reconcile.known_allocations import FIRST_GENERATION, known_allocations
from agent.reshape.receipt import Receipt

CONSUMER, MIGRATION, PROVIDER = (f"00000000-0000-0000-0000-00000000000{number}" for number in (1, 2, 3))
CLAIM = Claim(CONSUMER, ClaimState.CLAIMED, ClaimRequest(CONSUMER, ()), {PROVIDER: {"VGPU": 1}}, since=100.0)


def receipt(at: float, *consumers: str) -> Receipt:
    return Receipt(str(at), at, (), (), (), {}, {}, (), allocations={who: {} for who in consumers})


def test_each_reshape_of_the_claim_since_counts() -> None:
    receipts = [receipt(99.0, CONSUMER), receipt(101.0, CONSUMER), receipt(102.0, MIGRATION)]
    known = known_allocations({CONSUMER: CLAIM}, {}, {each.id: each for each in receipts})
    assert known[CONSUMER].allocations == CLAIM.allocations
    assert known[CONSUMER].generation == FIRST_GENERATION + 1


def test_what_others_may_have_written_is_not_known() -> None:
    adopted = replace(CLAIM, adopted=True)
    claiming = replace(CLAIM, state=ClaimState.CLAIMING)
    for claim in (adopted, claiming):
        assert known_allocations({CONSUMER: claim}, {}, {}) == {}
    move = Move(
        MIGRATION, CONSUMER, MoveKind.RESIZE, MoveRole.BOTH, MoveState.BEGUN, CLAIM, None, CLAIM.allocations
    )
    assert known_allocations({CONSUMER: CLAIM}, {MIGRATION: move}, {}) == {}
