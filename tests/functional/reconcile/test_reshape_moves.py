"""A reshape while an instance moves: what both consumers hold goes along, and so do the agent's records."""

from pathlib import Path

from kits.reshape import HOST, World, host, provider, uuid_of
from kits.tracker import request

from agent.driver import MoveInstruction
from agent.moves.states import MoveKind

FLAT = (host(VGPU=8),)
NESTED = (host(), provider("gpu0", VGPU=4), provider("gpu1", VGPU=4))
MOVES = tuple(MoveInstruction(HOST, {"VGPU": 4}, gpu, {}) for gpu in ("gpu0", "gpu1"))


def test_a_move_under_way_is_reverted_to_where_its_old_place_is_now(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        world.see(*FLAT)
        instance, migration = uuid_of("a"), uuid_of("a's migration")
        world.tracker.claim(request(instance, VCPU=2, VGPU=1))
        world.tracker.begin_move(request(instance, VCPU=4, VGPU=3), MoveKind.SAME_HOST_RESIZE, migration)
        assert world.placed(migration) == {HOST: {"VCPU": 2, "VGPU": 1}}
        report = world.see(*NESTED, moves=MOVES)
        assert (report.error, report.pending) == (None, None)
        world.check()
        assert world.placed(instance) == {HOST: {"VCPU": 4}, "gpu0": {"VGPU": 3}}
        old = world.placed(migration)
        assert sum(amounts.get("VGPU", 0) for amounts in old.values()) == 1 and "VGPU" not in old[HOST]
        world.restart()
        world.again()
        world.tracker.recover([])
        world.tracker.revert_move(migration)
        assert world.placed(instance) == old
        assert world.placed(migration) == {}
        world.check()
