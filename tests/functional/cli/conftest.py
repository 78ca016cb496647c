"""A host that has done much, and one that has just started; each with the socket that it is served at."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.api_client import serving
from kits.served_agent import ServedAgent, served_agent
from kits.status import Sight, fill, sight


@pytest.fixture(scope="module")
def full() -> Iterator[tuple[Sight, Path]]:
    with sight() as shown:
        fill(shown)
        with serving(shown.world.operations, shown.directory / "s"):
            yield shown, shown.directory / "s"


@pytest.fixture
def fresh() -> Iterator[tuple[Sight, Path]]:
    with sight() as shown, serving(shown.world.operations, shown.directory / "s"):
        yield shown, shown.directory / "s"


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[ServedAgent]:
    """A real agent, after its first pass."""
    with served_agent(tmp_path) as served:
        served.world.agent.reconcile("the start")
        yield served
