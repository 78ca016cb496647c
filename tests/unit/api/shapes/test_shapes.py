"""Shapes that no table draws: what they name is what the agent answers with, or takes."""

from typing import get_type_hints

from kits.status import fill, sight

from agent.api.shapes.claims import ClaimByGroupsShape, GroupShape
from agent.api.shapes.host import OverviewShape
from agent.api.shapes.schema import ErrorDetailShape, ErrorShape
from agent.api.views import overview_view
from agent.claims.parse_request import parse_claim
from agent.http.errors import error_body

CONSUMER = "6d3a1fb4-5d6c-4a61-b1f5-0f5a5b6a0b01"


def test_every_error_has_the_shape() -> None:
    body = error_body("plimsoll.api.busy", "Try again.", {"retry_after": 1})
    assert body.keys() == get_type_hints(ErrorShape).keys()
    assert body["error"].keys() == get_type_hints(ErrorDetailShape).keys()


def test_the_overview_has_the_shape() -> None:
    with sight() as shown:
        fill(shown)
        overview = overview_view(shown.host_status.overview())
    assert overview.keys() == get_type_hints(OverviewShape).keys()


def test_a_claim_may_have_every_key_of_its_shape_and_no_other() -> None:
    group = {
        "suffix": "1",
        "resources": {"VCPU": 1},
        "required": ["CUSTOM_T"],
        "member_of": [CONSUMER],
        "numa_policy": "legacy",
    }
    assert group.keys() == get_type_hints(GroupShape).keys()
    values = {"consumer": CONSUMER, "groups": [group], "group_policy": "none", "same_subtree": [["1"]]}
    assert values.keys() <= get_type_hints(ClaimByGroupsShape).keys()
    assert parse_claim(values).consumer == CONSUMER
