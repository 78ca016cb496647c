"""What many test files of the reconciler begin with: a host whose driver says what it is told to."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.placements import Placement
from kits.reshape import World


@pytest.fixture
def world(placement: Placement, tmp_path: Path) -> Iterator[World]:
    with World(tmp_path, placement) as world:
        yield world
