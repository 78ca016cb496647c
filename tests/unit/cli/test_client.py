"""Instances and migrations are found by uuid, by a unique beginning of it, or by name; never by a guess."""

from typing import Any

import pytest

from agent.cli.client import find_audit_subject, find_instance, find_migration
from agent.errors import UnknownConsumer, UsageError

WEB, DB, TWIN = (f"{digit * 8}-0000-4000-8000-000000000000" for digit in "abc")
MIGRATION, ENDED = (f"{digit * 8}-1111-4000-8000-000000000000" for digit in "de")


CLAIM = {"state": "claimed", "since": "today"}
INSTANCES = ((WEB, "web", "running", None), (DB, "db", None, CLAIM), (TWIN, "db", "shutoff", None))
MOVES = ((ENDED, "old", DB, "confirmed"), (MIGRATION, "web", WEB, "begun"))


class Agent:
    """Answers like a host with three instances and two moves, and counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def get(self, path: str) -> Any:
        self.asked += 1
        if path == "/v1/instances":
            return {
                "instances": [
                    {"uuid": uuid, "name": name, "guest": {"state": state} if state else None, "claim": claim}
                    for uuid, name, state, claim in INSTANCES
                ]
            }
        assert path == "/v1/moves"
        resize = {"kind": "resize"}
        return {
            "moves": [
                {**resize, "migration": uuid, "name": name, "instance": instance, "state": state}
                | {"ended": state == "confirmed"}
                for uuid, name, instance, state in MOVES
            ]
        }


def test_a_whole_uuid_costs_no_request() -> None:
    agent = Agent()
    unknown = "12345678-0000-4000-8000-00000000000F"
    assert find_instance(agent, unknown) == find_migration(agent, unknown) == unknown  # type: ignore[arg-type]
    assert agent.asked == 0


@pytest.mark.parametrize("text", ["web", "aaaa", "AAAAAAAA-0000"])
def test_an_instance_by_its_name_or_the_beginning_of_its_uuid(text: str) -> None:
    assert find_instance(Agent(), text) == WEB  # type: ignore[arg-type]


def test_two_of_one_name_are_told_apart() -> None:
    with pytest.raises(UsageError) as refused:
        find_instance(Agent(), "db")  # type: ignore[arg-type]
    assert f"{DB} (no guest, claimed since today)" in refused.value.message
    assert f"{TWIN} (guest shutoff, no claim)" in refused.value.message


def test_a_migration_by_its_uuid_or_by_the_name_of_its_instance() -> None:
    assert find_migration(Agent(), "dddd") == find_migration(Agent(), "web") == MIGRATION  # type: ignore[arg-type]
    assert find_migration(Agent(), "eeee") == ENDED  # type: ignore[arg-type]


def test_an_audit_is_of_an_instance_or_of_a_migration() -> None:
    assert find_audit_subject(Agent(), "web") == WEB  # type: ignore[arg-type]
    assert find_audit_subject(Agent(), "dddd") == MIGRATION  # type: ignore[arg-type]


def test_a_beginning_that_is_too_short_is_told() -> None:
    with pytest.raises(UnknownConsumer, match=r"'bbb': .*; of a uuid, give 4 characters or more"):
        find_instance(Agent(), "bbb")  # type: ignore[arg-type]


def test_the_plural_of_both_kinds() -> None:
    with pytest.raises(UsageError, match="'db' names 2 instances or migrations"):
        find_audit_subject(Agent(), "db")  # type: ignore[arg-type]
