"""Placement goes away at each request of an import or a removal, and is back later: the next one ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from kits.contents import small
from kits.outage import Outage
from kits.placements import Placement
from kits.tracker import fast_directory
from kits.wire import Wire

from agent.errors import ApplyError, PlacementUnavailable
from agent.placement.snapshot import differences
from agent.placement.transfer import (
    UNTYPED_MICROVERSION,
    SnapshotClient,
    apply_import,
    apply_removal,
    plan_import,
    plan_removal,
    read_service,
)
from agent.placement.transport import Transport

REQUESTS_MAX = 100


def bring(transport: Transport) -> None:
    client = SnapshotClient(transport)
    found, evidence = read_service(client)
    plan = plan_import(small(), found, evidence.names)
    apply_import(client, SnapshotClient(transport, microversion=UNTYPED_MICROVERSION), plan)


def take(transport: Transport) -> None:
    client = SnapshotClient(transport)
    apply_removal(client, plan_removal(small(), read_service(client)[0]))


def brought(transport: Transport) -> bool:
    return differences(small(), read_service(SnapshotClient(transport))[0]) == ()


def taken(transport: Transport) -> bool:
    found = read_service(SnapshotClient(transport))[0]
    return not found.providers and not found.consumers


@contextmanager
def target(placement: Placement, operation: Callable[[Transport], None]) -> Iterator[Transport]:
    with fast_directory() as directory, closing(placement.anew(Path(directory)).transport()) as transport:
        if operation is take:
            bring(transport)
        yield transport


@pytest.mark.parametrize("after", [False, True], ids=["before a request", "after a request"])
@pytest.mark.parametrize(("operation", "done"), [(bring, brought), (take, taken)], ids=["import", "remove"])
def test_pulled_at_each_step(
    any_placement: Placement,
    operation: Callable[[Transport], None],
    done: Callable[[Transport], bool],
    after: bool,
) -> None:
    for number in range(1, REQUESTS_MAX):
        with target(any_placement, operation) as transport:
            outage = Outage(any_placement, number, after=after)
            wire = Wire(transport)
            outage.listen(wire)
            try:
                operation(wire)
            except (ApplyError, PlacementUnavailable):
                assert outage.begun
            finally:
                outage.end()
            operation(transport)
            assert done(transport)
        if not outage.begun:
            assert number > 1
            return
    raise AssertionError(f"it makes more than {REQUESTS_MAX} requests")
