"""The body of an operation depends on the microversion."""

import pytest

from agent.placement.embedded import schemas
from agent.placement.embedded.problems import RequestRefused
from agent.placement.embedded.schemas import validate

UUID = "11111111-1111-1111-1111-111111111111"


def test_the_newest_entry_up_to_the_microversion_is_used() -> None:
    body = {"name": "host", "parent_provider_uuid": UUID}
    assert validate(schemas.POST_PROVIDER, 14, body, "body") == body
    with pytest.raises(RequestRefused, match="parent_provider_uuid"):
        validate(schemas.POST_PROVIDER, 13, body, "body")


def test_mappings_are_checked_by_suffix() -> None:
    body = {
        "allocations": {UUID: {"resources": {"VCPU": 1}}},
        "project_id": "p",
        "user_id": "u",
        "consumer_generation": None,
        "mappings": {"_NIC": [UUID], "$": "not a suffix"},
    }
    assert validate(schemas.PUT_ALLOCATIONS, 34, body, "body") == body
    with pytest.raises(RequestRefused, match=r"body\.mappings\._NIC\[0\]"):
        validate(schemas.PUT_ALLOCATIONS, 34, {**body, "mappings": {"_NIC": ["x"]}}, "body")
