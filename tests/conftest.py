"""What many tests start from: the placements that they run on."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from placements import Embedded, OpenStack, Placement


@pytest.fixture(scope="session")
def openstack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenStack]:
    """A real OpenStack Placement for the whole session; whoever pulls it down puts it up again."""
    pytest.importorskip("placement", reason="the real Placement is installed with the test extra")
    running = OpenStack.configured(tmp_path_factory.mktemp("openstack"))
    yield running
    running.down()


@pytest.fixture(params=["embedded", "openstack"])
def placement(request: pytest.FixtureRequest, tmp_path: Path) -> Placement:
    """An empty placement, once each kind: the same test must pass on both."""
    if request.param == "embedded":
        return Embedded(tmp_path)
    running: OpenStack = request.getfixturevalue("openstack")
    running.empty()
    return running
