"""Every problem has a title; a refusal carries its detail, reasons and headers."""

from agent.placement.embedded import problems
from agent.placement.embedded.problems import CONFLICT, TITLES, ProblemType, RequestRefused


def test_every_problem_has_a_title() -> None:
    known = [value for value in vars(problems).values() if isinstance(value, ProblemType)]
    assert len(known) > 15 and all(problem.status in TITLES for problem in known)


def test_a_refusal_carries_what_the_response_needs() -> None:
    refused = RequestRefused(CONFLICT, "full", reasons=({"reason": "capacity"},), headers={"allow": "GET"})
    assert (refused.problem, refused.detail, str(refused)) == (CONFLICT, "full", "full")
    assert refused.reasons == ({"reason": "capacity"},) and refused.headers == {"allow": "GET"}
    assert RequestRefused(CONFLICT, "full").headers == {}
