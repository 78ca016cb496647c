"""Two whole agents on one OpenStack Placement: what one does the other learns in its verification."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

from kits.agent import World, request, told, world_of
from kits.placements import OpenStack

from agent.config.settings import load
from agent.moves.states import MoveKind, MoveRole, MoveState


def node(directory: Path, name: str, placement: OpenStack) -> World:
    place = directory / name
    place.mkdir()
    told(place, placement)
    file = place / "plimsoll.conf"
    file.write_text(file.read_text().replace("host = node1", f"host = {name}"))
    world = world_of(load([file]))
    assert world.agent.condition.fault is None
    return world


def test_the_source_learns_in_its_verification(openstack: OpenStack, tmp_path: Path) -> None:
    """Scenarios 43, 44, 52: its claim becomes the migration's, and ends with it; an audit in between sees no
    double."""
    openstack.empty()
    one, two = (node(tmp_path, name, openstack) for name in ("one", "two"))
    asked, migration = request(VCPU=2, MEMORY_MB=512), str(uuid4())
    before = one.operations.claim(asked)
    assert two.operations.begin_move(MoveKind.COLD_MIGRATE, migration, asked).state is MoveState.BEGUN
    assert one.operations.host_status.overview().moves == ()
    one.agent.verify()
    (seen,) = one.operations.host_status.overview().moves
    assert (seen.migration, seen.role, seen.old) == (migration, MoveRole.SOURCE, before)
    assert [claim.consumer for claim in one.operations.tracker.claims().values()] == [migration]
    assert two.operations.confirm_move(migration, None).state is MoveState.CONFIRMED
    for world in (one, two):
        world.agent.verify()
        assert world.agent.condition.fault is None
    assert [each.state for each in one.operations.host_status.overview().moves] == [MoveState.CONFIRMED]
    assert list(one.operations.tracker.claims().values()) == []
    requests = one.wire.requests, two.wire.requests
    for world in (one, two):
        world.agent.reconcile("nothing")
    assert (one.wire.requests, two.wire.requests) == requests
    for world in (one, two):
        world.close()
