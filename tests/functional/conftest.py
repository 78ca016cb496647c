"""What the tests of the command line start from: a small host, and the socket that it is served at."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.api_client import serving
from kits.api_host import SmallHost


@pytest.fixture
def host() -> SmallHost:
    return SmallHost()


@pytest.fixture
def path(host: SmallHost, tmp_path: Path) -> Iterator[Path]:
    with serving(host, tmp_path / "s", threads=2):
        yield tmp_path / "s"
