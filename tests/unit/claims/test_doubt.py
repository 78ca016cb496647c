"""A write whose outcome is unknown, as a value: what it gives, what guards it, and its JSON."""

import pytest

from agent.claims.doubt import (
    Doubt,
    DoubtfulWrite,
    DoubtKind,
    DoubtState,
    doubt_of_bar,
    doubt_to_json,
    read_doubt,
)
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


@pytest.mark.parametrize(
    ("generation", "state", "meets"),
    [
        (None, DoubtState.OPEN, True),
        (0, DoubtState.FENCED, True),
        (16, DoubtState.OPEN, True),
        (17, DoubtState.OPEN, False),
        (3, DoubtState.ANSWERED, False),
    ],
)
def test_a_write_whose_generation_a_consumer_soon_has_again_may_come_in_its_next_life(
    generation: int | None, state: DoubtState, meets: bool
) -> None:
    """16 is the highest generation that another host's bar may name; an answered write has been executed."""
    written = Doubt(ID, DoubtKind.BEGIN, (part(INSTANCE, generation, VCPU=1),), 12.5, state)
    assert written.meets_next_life is meets


@pytest.mark.parametrize(
    ("kind", "amounts", "is_other"),
    [(DoubtKind.FENCE, {}, True), (DoubtKind.FENCE, {"VCPU": 1}, False), (DoubtKind.BEGIN, {}, False)],
)
def test_a_fence_that_gives_nothing_is_of_another_host(
    kind: DoubtKind, amounts: dict[str, int], is_other: bool
) -> None:
    assert Doubt(ID, kind, (part(INSTANCE, 3, **amounts),), 12.5).is_of_another_host is is_other
    assert doubt_of_bar(ID, part(INSTANCE, None, VCPU=1), 12.5).is_of_another_host


def test_a_write_is_the_same_only_with_the_same_parts() -> None:
    begin = doubt(part(INSTANCE, 3, VCPU=2))
    assert begin.is_same_write(DoubtKind.BEGIN, [part(INSTANCE, 3, VCPU=2)])
    assert not begin.is_same_write(DoubtKind.BEGIN, [part(INSTANCE, 4, VCPU=2)])
    assert not begin.is_same_write(DoubtKind.RELEASE, [part(INSTANCE, 3, VCPU=2)])
