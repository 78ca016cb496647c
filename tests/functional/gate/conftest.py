"""Hypervisors with a gate."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.gate import DEVICES_HOST, GatedHost, gated


@pytest.fixture
def host(tmp_path: Path) -> Iterator[GatedHost]:
    with gated(tmp_path / "a") as found:
        found.driver.change(cells=DEVICES_HOST.cells, gpus=DEVICES_HOST.gpus, nics=DEVICES_HOST.nics)
        found.world.agent.reconcile("other devices")
        yield found


@pytest.fixture
def other(host: GatedHost, tmp_path: Path) -> Iterator[GatedHost]:
    """A second hypervisor on the same placement."""
    with gated(tmp_path / "b", "node2", host.world.wire) as found:
        yield found
