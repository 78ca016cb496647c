"""A text names one consumer, or the error says why it does not: `agent.status.consumers`."""

import pytest
from kits.status import guest, uuid_of

from agent.driver import Guest, GuestState
from agent.errors import UnknownConsumer, UsageError
from agent.status.consumers import NamedConsumer, consumers_of, find_consumer, is_uuid, matching
from agent.status.overview import Health, HostState, Overview, Status

WEB, DB, TWIN = (f"{digit * 8}-0000-4000-8000-000000000000" for digit in "abc")
KNOWN = [NamedConsumer(WEB, "web", "guest running"), *(NamedConsumer(uuid, "db", "") for uuid in (DB, TWIN))]


def find(text: str) -> str:
    return find_consumer(text, "instance", KNOWN, "plimsoll instances")


def test_a_name_comes_before_the_beginning_of_a_uuid() -> None:
    named_like_a_uuid = NamedConsumer(DB, WEB[:8], "")
    assert matching(WEB[:8], [*KNOWN, named_like_a_uuid]) == [named_like_a_uuid]
    assert find("web") == find(" web ") == find("AAAA") == WEB


@pytest.mark.parametrize("text", ["aaa", "zzzz", "ab*", "w", "_aaa"])
def test_what_names_no_consumer_is_not_guessed(text: str) -> None:
    assert matching(text, KNOWN) == []
    with pytest.raises(UnknownConsumer, match="`plimsoll instances` lists"):
        find(text)


def test_the_errors_say_what_to_give_instead() -> None:
    with pytest.raises(UsageError, match=f"names 2 instances, give the uuid of one: {DB}"):
        find("db")
    with pytest.raises(UnknownConsumer, match="did you mean web"):
        find("webb")
    with pytest.raises(UnknownConsumer, match=r"did you mean db\?$"):  # two have that name
        find("dbb")
    with pytest.raises(UsageError, match="empty text"):
        find(" ")


def test_a_whole_uuid_is_one_with_and_without_hyphens() -> None:
    assert is_uuid(WEB) and is_uuid(WEB.replace("-", "").upper())
    assert not is_uuid(WEB[:-1]) and not is_uuid(f"{WEB}0")


def test_consumers_of_a_host_are_its_guests_claims_and_foreign_allocations() -> None:
    off = Guest(uuid_of("off"), "off", GuestState.SHUTOFF, {})
    overview = Overview(
        0.0,
        Status("host1", None, HostState.READY, 0.0, "fake", "embedded", 1),
        Health("ready", (), ()),
        guests=(guest("web1"), off),
        others={uuid_of("foreign"): {}},
    )
    assert {(consumer.uuid, consumer.name, consumer.about) for consumer in consumers_of(overview)} == {
        (uuid_of("web1"), "web1", "guest running, no claim"),
        (uuid_of("off"), "off", "guest shutoff, no claim"),
        (uuid_of("foreign"), "", "no guest, no claim"),
    }
