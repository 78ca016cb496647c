"""A write whose outcome is unknown, as a value: what it gives, what guards it, and its JSON."""

import pytest

from agent.claims.doubt import Doubt, DoubtfulWrite, DoubtKind, DoubtState, doubt_to_json, read_doubt
from agent.errors import UsageError

INSTANCE = "c0ffee00-0000-4000-8000-0000000000c1"
MIGRATION = "c0ffee00-0000-4000-8000-0000000000c2"
HOST = "7e1c1d3c-94d8-4e4b-9a57-4a8d3b1f0c02"
ID = "0b1f0c02-94d8-4e4b-9a57-4a8d3b1f0c02"


def part(consumer: str, generation: int | None, **amounts: int) -> DoubtfulWrite:
    return DoubtfulWrite(
        consumer, generation, {HOST: amounts} if amounts else {}, "demo", "admin", "INSTANCE"
    )


def doubt(*writes: DoubtfulWrite) -> Doubt:
    return Doubt(ID, DoubtKind.BEGIN, writes, 12.5)


def test_a_doubt_tells_what_it_gives_to_whom() -> None:
    begin = doubt(part(MIGRATION, None, VCPU=1), part(INSTANCE, 3, VCPU=2))
    assert begin.consumers == {INSTANCE, MIGRATION}
    assert begin.gives(INSTANCE) == {HOST: {"VCPU": 2}}
    assert begin.gives(HOST) == {}


@pytest.mark.parametrize(
    ("writes", "guard"),
    [
        ((part(INSTANCE, None, VCPU=1),), INSTANCE),
        ((part(MIGRATION, None, VCPU=1), part(INSTANCE, 3, VCPU=1)), INSTANCE),  # a generation only rises
        ((part(MIGRATION, 1), part(INSTANCE, 4, VCPU=1)), INSTANCE),  # the consumer that stays
        ((part(INSTANCE, 4, VCPU=1), part(MIGRATION, 1)), INSTANCE),
        ((part(MIGRATION, 1),), MIGRATION),
    ],
)
def test_the_guard_is_a_consumer_that_stays_and_whose_generation_rises(
    writes: tuple[DoubtfulWrite, ...], guard: str
) -> None:
    assert doubt(*writes).guard.consumer == guard


def test_a_doubt_is_read_as_it_was_written() -> None:
    for generation in (None, 0, 7):
        for state in DoubtState:
            written = Doubt(ID, DoubtKind.RELEASE, (part(INSTANCE, generation),), 12.5, state)
            assert read_doubt(doubt_to_json(written)) == written


@pytest.mark.parametrize("fenced", [False, True])
def test_an_agent_of_another_version_reads_whether_a_doubt_is_fenced(*, fenced: bool) -> None:
    written = doubt_to_json(doubt(part(INSTANCE, 1)))
    assert written["fenced"] is False
    before = {name: value for name, value in written.items() if name != "state"} | {"fenced": fenced}
    assert read_doubt(before).state is (DoubtState.FENCED if fenced else DoubtState.OPEN)


@pytest.mark.parametrize(
    "change", [{"writes": []}, {"kind": "wish"}, {"id": 7}, {"since": "noon"}, {"writes": [{}]}]
)
def test_a_doubt_that_makes_no_sense_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        read_doubt({**doubt_to_json(doubt(part(INSTANCE, 1))), **change})
