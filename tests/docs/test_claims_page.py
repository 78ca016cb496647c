"""docs/claims.md says what the code does."""

from __future__ import annotations

import re

from kits.paths import CHECKOUT

from agent.claims.claim import CLAIM_TRANSITIONS
from agent.claims.parse_request import parse_claim, request_to_json
from agent.claims.request import ClaimRequest, RequestGroup

TEXT = (CHECKOUT / "docs" / "claims.md").read_text(encoding="utf-8")


def test_the_table_of_a_claims_life_is_the_codes() -> None:
    life = TEXT.split("## The life of a claim")[1]
    rows = re.findall(r"^\| (-|\w+) \| (\w+) \| (-|\w+) \|", life, re.MULTILINE)[1:]
    assert [(state, step, after) for state, step, after in rows] == [
        (str(state or "-"), str(step), str(after or "-"))
        for (state, step), after in CLAIM_TRANSITIONS.items()
    ]


def test_every_key_of_a_body_is_told() -> None:
    consumer = "6d3a1fb4-5d6c-4a61-b1f5-0f5a5b6a0b01"
    group = RequestGroup("1", {"VCPU": 1}, (frozenset({"CUSTOM_T"}),), member_of=(frozenset({consumer}),))
    body = request_to_json(ClaimRequest(consumer, (group,), "none", (frozenset({"1"}),), name="web1"))
    assert parse_claim(body)
    for key in body:
        assert f"`{key}`" in TEXT
    for key in body["groups"][0]:
        assert f"`groups[].{key}`" in TEXT
