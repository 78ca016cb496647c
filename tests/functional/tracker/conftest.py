"""What several test files of the tracker begin with. Each has a `world` of its own."""

import pytest
from kits.moves import DISK, INSTANCE, ON_A, SMALL, World, asks


@pytest.fixture
def claimed(world: World) -> World:
    """The instance is on a, its disk in the pool."""
    world.a.tracker.claim(asks(**SMALL))
    assert world.placed(INSTANCE) == {**ON_A, **DISK}
    return world
