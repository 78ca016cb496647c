"""Whoever refused, the error says why."""

from typing import Any

import pytest

from agent.placement.replies import error_of_reply
from agent.placement.transport import Reply

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
