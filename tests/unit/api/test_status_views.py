"""The parameters of the history."""

import pytest

from agent.api.status_views import LIMIT_DEFAULT, parse_history
from agent.errors import UsageError


def test_a_query_without_parameters_asks_for_the_newest_events() -> None:
    assert parse_history({}) == (0.0, LIMIT_DEFAULT)


def test_a_moment_needs_its_offset() -> None:
    assert parse_history({"since": "1970-01-01T01:00:00+01:00", "limit": "7"}) == (0.0, 7)
    with pytest.raises(UsageError, match="a moment with its offset"):
        parse_history({"since": "1970-01-01T01:00:00"})


@pytest.mark.parametrize("limit", ["0", "10001", "-1", "x", "", "1" * 20])
def test_a_limit_is_a_whole_number_in_its_range(limit: str) -> None:
    with pytest.raises(UsageError, match="from 1 to 10000"):
        parse_history({"limit": limit})
