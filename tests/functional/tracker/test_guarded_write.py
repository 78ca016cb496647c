"""The guarded writer over the embedded core of its own process, and over one that executes writes late."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kits.tracker import HOST, uuid_of
from kits.wire import Wire

from agent.claims.doubt import Doubt, DoubtfulWrite, DoubtKind
from agent.errors import PlacementConflict, PlacementError, PlacementUnavailable
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.placement.connect import open_transport
from agent.placement.transport import WriteDone, WriteRefused, WriteUnknown
from agent.state.journal import Journal, PendingWrite
from agent.tracker.guarded_write import HALF_DONE_S, RAISES_MAX, STALLED_S, Doubts, GuardedWriter

CONSUMER = uuid_of("the consumer")
FIRST = ConsumerAllocations(CONSUMER, {HOST[0].uuid: {"VCPU": 2}})


@pytest.fixture
def client(tmp_path: Path) -> Iterator[PlacementClient]:
    client = PlacementClient(open_transport("embedded", state_dir=tmp_path))
    client.put_inventories(HOST[0].uuid, client.create_provider(HOST[0]), HOST[0].inventories)
    assert client.certain
    yield client
    client.close()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal.open(tmp_path)
    yield journal
    journal.close()


def test_no_doubt_is_written_where_no_write_comes_late(
    client: PlacementClient, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put_doubt(*_: object) -> None:
        raise AssertionError("a write of the journal for each write of Placement")

    monkeypatch.setattr(journal, "put_doubt", put_doubt)
    writer = GuardedWriter(client, Doubts(journal, time.time))
    assert writer.send(DoubtKind.CLAIM, FIRST) == WriteDone()
    held = client.allocations_of(CONSUMER)
    assert held.allocations == FIRST.allocations
    assert writer.send(DoubtKind.RELEASE, replace(held, allocations={})) == WriteDone()
    assert client.allocations_of(CONSUMER).generation is None


def test_a_doubt_of_an_earlier_process_leaves_no_bar_in_placement(
    client: PlacementClient, journal: Journal
) -> None:
    doubts = Doubts(journal, time.time)
    part = DoubtfulWrite(CONSUMER, None, FIRST.allocations, "plimsoll", "plimsoll", "INSTANCE")
    doubts.keep(doubts.begin(DoubtKind.CLAIM, (part,), durable=True)[0])
    writer = GuardedWriter(client, Doubts(journal, time.time))
    assert writer.in_doubt(CONSUMER)
    held = writer.secure(CONSUMER)
    assert held is not None and held.generation is None and not writer.in_doubt(CONSUMER)
    client.write_allocations(FIRST)  # Placement refuses a first write of a consumer that is barred


# Over a Placement that may execute a request later


class Later:
    """A writer whose requests may be executed later, over the same Placement; `now` is its clock."""

    def __init__(self, client: PlacementClient, journal: Journal) -> None:
        self.wire = Wire(client._transport, shared=True)
        self.now = 1000.0
        self.doubts = Doubts(journal, lambda: self.now)
        self.writer = GuardedWriter(PlacementClient(self.wire), self.doubts)

    def lose(self, kind: DoubtKind, *writes: ConsumerAllocations) -> None:
        """Send a write that Placement does not answer, and has not executed."""
        with self.wire.away(only="P", sent=True):
            assert isinstance(self.writer.send(kind, *writes), WriteUnknown)


@pytest.fixture
def later(client: PlacementClient, journal: Journal) -> Later:
    return Later(client, journal)


def test_a_write_that_the_disk_held_up_says_nothing_of_the_same_write_that_was_sent_before(
    client: PlacementClient, journal: Journal, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.write_allocations(FIRST)
    fence = client.allocations_of(CONSUMER)
    put_doubt = journal.put_doubt

    def stalls(doubt: Doubt) -> PendingWrite:
        later.now += STALLED_S + 1
        return put_doubt(doubt)

    for was_sent in (False, True):
        if was_sent:
            later.lose(DoubtKind.FENCE, fence)
        later.wire.calls.clear()
        with monkeypatch.context() as patch:
            patch.setattr(journal, "put_doubt", stalls)
            outcome = later.writer.send(DoubtKind.FENCE, fence)
        assert isinstance(outcome, WriteRefused) and isinstance(outcome.error, PlacementConflict)
        assert "nothing was written. The agent reads it again" in outcome.error.message
        assert (later.wire.calls, later.writer.in_doubt(CONSUMER)) == ([], was_sent)
        assert bool(later.doubts.open()) is was_sent, "what is open is ended by the next delivery"


def test_a_generation_that_is_far_behind_is_raised_in_several_attempts(
    client: PlacementClient, later: Later
) -> None:
    client.write_allocations(FIRST)
    held = client.allocations_of(CONSUMER)
    later.lose(DoubtKind.RELEASE, replace(held, generation=RAISES_MAX + 5, allocations={}))
    with pytest.raises(PlacementError, match=f"at most {RAISES_MAX + 5}, and it is {RAISES_MAX + 1}. "):
        later.writer.secure(CONSUMER)
    assert later.writer.in_doubt(CONSUMER)
    secured = later.writer.secure(CONSUMER)
    assert secured == client.allocations_of(CONSUMER) == replace(held, generation=RAISES_MAX + 6)
    assert not later.writer.in_doubt(CONSUMER)


def test_a_consumer_that_another_client_makes_just_before_its_bar_is_read_again(
    client: PlacementClient, later: Later
) -> None:
    later.lose(DoubtKind.CLAIM, FIRST)
    theirs = replace(FIRST, allocations={HOST[0].uuid: {"VCPU": 1}})
    later.wire.once("PUT", lambda: client.write_allocations(theirs))
    assert later.writer.secure(CONSUMER) == client.allocations_of(CONSUMER)
    assert client.allocations_of(CONSUMER).allocations == theirs.allocations
    assert not later.writer.in_doubt(CONSUMER)


def test_a_begin_in_the_midst_of_its_first_write_is_waited_for_where_the_instance_cannot_be_fenced(
    client: PlacementClient, later: Later
) -> None:
    """Placement has the migration's record, and takes what the instance holds no more: the host shrank."""
    client.write_allocations(FIRST)
    held = client.allocations_of(CONSUMER)
    migration = replace(FIRST, consumer=uuid_of("the migration"), consumer_type="MIGRATION")
    later.lose(DoubtKind.BEGIN, migration, replace(held, allocations={HOST[0].uuid: {"VCPU": 1}}))
    generation, inventories = client.provider_inventories(HOST[0].uuid)
    shrunk = {**inventories, "VCPU": replace(inventories["VCPU"], max_unit=1)}
    client.put_inventories(HOST[0].uuid, generation, shrunk)
    client.bar_first_write(migration.consumer).check()
    with pytest.raises(PlacementUnavailable, match=f"first write for {migration.consumer}"):
        later.writer.secure(CONSUMER, migration.consumer)
    assert later.writer.in_doubt(CONSUMER)
    later.now += HALF_DONE_S
    assert later.writer.secure(CONSUMER, migration.consumer) == held
    assert not later.writer.in_doubt(CONSUMER)


def test_the_age_of_a_doubt_counts_from_when_its_write_was_sent(later: Later) -> None:
    def says_nothing_for_long(_: object) -> None:
        later.now += 30.0
        raise PlacementUnavailable("Placement did not answer in time.", busy=True)

    later.wire.answer = says_nothing_for_long
    assert isinstance(later.writer.send(DoubtKind.CLAIM, FIRST), WriteUnknown)
    (doubt,) = later.doubts.open()
    assert later.doubts.age_s(doubt) == 30.0
