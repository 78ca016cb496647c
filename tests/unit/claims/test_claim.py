"""The table of a claim's transitions, and the exact units of a claim."""

from agent.claims.claim import CLAIM_TRANSITIONS, Claim, ClaimState, ClaimStep, fit_of_claim
from agent.claims.request import ClaimRequest, RequestGroup

CLAIM = Claim(
    "consumer",
    ClaimState.CLAIMED,
    ClaimRequest("consumer", (RequestGroup("", {"PCPU": 2, "VF": 1}),)),
    {"host": {"PCPU": 2}, "nic": {"VF": 1}},
    {"host": {"PCPU": ("3", "5")}, "nic": {"VF": ("0000:41:02.1",)}},
    makings={"0000:41:02.1": {"parent": "0000:41:00.0", "type": "a"}},
)


def test_every_state_can_be_reached_and_can_end() -> None:
    """A walk over the table: from no claim to each state, and from each state back to no claim."""

    def reachable(start: ClaimState | None) -> set[ClaimState | None]:
        reached, waiting = {start}, [start]
        while waiting:
            state = waiting.pop()
            after = {to for (before, _), to in CLAIM_TRANSITIONS.items() if before == state} - reached
            reached |= after
            waiting += after
        return reached

    assert reachable(None) == {None, *ClaimState}
    for state in ClaimState:
        assert None in reachable(state)
    assert {step for _, step in CLAIM_TRANSITIONS} == set(ClaimStep)


def test_only_a_claim_that_placement_is_known_to_have_is_claimed() -> None:
    """A write to Placement lies between BEGIN and CLAIMED, and between CLAIMED and no claim."""
    assert CLAIM_TRANSITIONS[None, ClaimStep.BEGIN] is ClaimState.CLAIMING
    ends = {step for (state, step), after in CLAIM_TRANSITIONS.items() if state and after is None}
    assert ends == {ClaimStep.REFUSE, ClaimStep.GONE, ClaimStep.LEFT}
    claimed = {step for (_, step), after in CLAIM_TRANSITIONS.items() if after is ClaimState.CLAIMED}
    assert ClaimStep.BEGIN not in claimed and ClaimStep.RELEASE not in claimed


def test_a_claim_lists_each_exact_unit_and_is_its_own_fit() -> None:
    assert set(CLAIM.exact) == {("host", "PCPU", "3"), ("host", "PCPU", "5"), ("nic", "VF", "0000:41:02.1")}
    fit = fit_of_claim(CLAIM)
    assert fit.fits and not fit.shortfalls
    assert (fit.allocations, fit.units, fit.makings) == (CLAIM.allocations, CLAIM.units, CLAIM.makings)
