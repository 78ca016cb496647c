"""The guarded writer over the embedded core of its own process, of which no request is executed later."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kits.tracker import HOST, uuid_of

from agent.claims.doubt import DoubtfulWrite, DoubtKind
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.placement.connect import open_transport
from agent.placement.transport import WriteDone
from agent.state.journal import Journal
from agent.tracker.guarded_write import Doubts, GuardedWriter

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
