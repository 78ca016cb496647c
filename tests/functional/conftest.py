"""A host without guests, and the socket that it is served at: what tests of the command line start from."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.api_client import serving
from kits.status import Sight, sight


@pytest.fixture
def host() -> Iterator[Sight]:
    with sight() as shown:
        yield shown


@pytest.fixture
def path(host: Sight) -> Iterator[Path]:
    with serving(host.world.operations, host.directory / "s", threads=2):
        yield host.directory / "s"
