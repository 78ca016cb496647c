"""Whoever refused, the error says why."""

from typing import Any

import pytest
from kits.wire import Wire

from agent.errors import PlacementConflict, PlacementError, PlacementFull, PlacementUnavailable
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.placement.transport import (
    Reply,
    WriteDone,
    WriteOutcome,
    WriteRefused,
    WriteUnknown,
    error_of_reply,
    reply_of_answer,
)

PLACEMENT = {"errors": [{"status": 400, "detail": "It is malformed.", "code": "placement.undefined_code"}]}
KEYSTONE = {"error": {"code": 401, "title": "Unauthorized", "message": "Say who you are."}}
NOAUTH = {"message": "Say who you are.", "code": "401 Unauthorized", "title": "Unauthorized"}


@pytest.mark.parametrize(
    ("body", "said", "code"),
    [
        (PLACEMENT, "(It is malformed)", "placement.undefined_code"),
        (KEYSTONE, "(Say who you are)", ""),
        (NOAUTH, "(Say who you are)", ""),
        ({"errors": []}, "no reason", ""),
        ({"errors": ["x"]}, "no reason", ""),
        ({"error": "x"}, "no reason", ""),
        ([], "no reason", ""),
        (None, "no reason", ""),
    ],
)
def test_the_reason_is_found_wherever_it_stands(body: Any, said: str, code: str) -> None:
    error = error_of_reply(Reply(401, body), "list its providers", full=False)
    assert said in error.message
    assert (error.status, error.placement_code) == (401, code)


WRITE = ConsumerAllocations("c0ffee00-0000-4000-8000-0000000000c1", {"host": {"VCPU": 2}})


def outcomes(answer: Reply | PlacementError) -> list[WriteOutcome]:
    """Of each kind of write of allocations."""

    def answers(_: object) -> Reply:
        if isinstance(answer, PlacementError):
            raise answer
        return answer

    client = PlacementClient(Wire(answer=answers))
    return [
        client.send_allocations(WRITE),
        client.send_allocations(WRITE, WRITE),
        client.bar_first_write(WRITE.consumer),
        client.send_reshape({}, WRITE),
    ]


def error(status: int, code: str) -> Reply:
    return Reply(status, {"errors": [{"status": status, "detail": "No.", "code": code}]})


def test_what_placement_itself_says_is_done_is_done() -> None:
    for outcome in outcomes(Reply(204)):
        assert outcome == WriteDone()
        outcome.check()


@pytest.mark.parametrize("status", [200, 204, 400, 401, 404, 406, 409, 500, 502, 503, 504])
def test_a_write_that_somebody_else_answered_is_unknown_whatever_the_status(status: int) -> None:
    with pytest.raises(PlacementUnavailable) as raised:
        reply_of_answer("PUT", "/allocations", status, None, {"server": "balancer"})
    for outcome in outcomes(raised.value):
        assert isinstance(outcome, WriteUnknown) and outcome.late
        assert "x-openstack-request-id" in outcome.error.message
        with pytest.raises(PlacementUnavailable):
            outcome.check()


def test_a_served_core_that_was_not_told_what_became_of_a_write_says_so_itself() -> None:
    detail = "the database did not say whether the write is committed; the outcome is unknown."
    with pytest.raises(PlacementUnavailable) as raised:
        reply_of_answer("PUT", "/allocations", 504, {"errors": [{"status": 504, "detail": detail}]}, {})
    assert raised.value.message == f"Placement did not answer PUT /allocations: {detail}"
    assert all(isinstance(outcome, WriteUnknown) and outcome.late for outcome in outcomes(raised.value))


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (409, "placement.concurrent_update", PlacementConflict),
        (409, "placement.undefined_code", PlacementFull),
        (400, "placement.undefined_code", PlacementError),
        (429, "", PlacementUnavailable),
        (503, "", PlacementUnavailable),
    ],
)
def test_what_placement_itself_rejects_is_refused(status: int, code: str, kind: type[PlacementError]) -> None:
    for outcome in outcomes(error(status, code)):
        assert isinstance(outcome, WriteRefused) and type(outcome.error) is kind


@pytest.mark.parametrize("status", [500, 502, 504])
def test_where_placement_itself_failed_a_read_shows_the_result(status: int) -> None:
    """Its database may have committed before it failed; it will not do the write later."""
    for outcome in outcomes(error(status, "")):
        assert isinstance(outcome, WriteUnknown) and not outcome.late


def test_what_was_not_sent_is_refused_and_what_may_have_been_sent_is_unknown() -> None:
    for outcome in outcomes(PlacementUnavailable("Nobody listens there.", sent=False)):
        assert isinstance(outcome, WriteRefused)
    for outcome in outcomes(PlacementUnavailable("The connection was reset.")):
        assert isinstance(outcome, WriteUnknown) and outcome.late
