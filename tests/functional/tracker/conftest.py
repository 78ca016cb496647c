"""What several test files of the tracker begin with: one host, or two; one that differs has its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.moves import DISK, INSTANCE, ON_A, SMALL, World, asks
from kits.placements import Placement
from kits.tracker import Kit, checked_kit


@pytest.fixture
def kit(tmp_path: Path, placement: Placement) -> Iterator[Kit]:
    with checked_kit(tmp_path, placement) as kit:
        yield kit


@pytest.fixture
def world(placement: Placement, tmp_path: Path) -> Iterator[World]:
    with World(tmp_path, placement) as world:
        yield world


@pytest.fixture
def claimed(world: World) -> World:
    """The instance is on a, its disk in the pool."""
    world.a.tracker.claim(asks(**SMALL))
    assert world.placed(INSTANCE) == {**ON_A, **DISK}
    return world
