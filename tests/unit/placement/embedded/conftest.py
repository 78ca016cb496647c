"""A core of its own for every test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.embedded_api import Api

from agent.placement.embedded import Core


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    core = Core.open(tmp_path)
    yield Api(core)
    core.close()
