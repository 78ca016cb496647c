"""The bounded run of the differential test; the long one is `python -m tests.differential`."""

from __future__ import annotations

import re

import pytest
from kits.examples import examples
from kits.paths import CHECKOUT

from .__main__ import MACHINES, compare
from .known import NAMES
from .machine import Differential

DIFFERENCES = CHECKOUT / "docs" / "placement-differences.md"

# The reference and what it brings along warn about their own futures.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("machine", MACHINES)
def test_random_programs_get_the_same_answers(machine: type[Differential]) -> None:
    compare(machine, number=1, programs=examples(10))


@pytest.mark.parametrize("name", NAMES)
def test_every_known_difference_is_documented(name: str) -> None:
    headings = re.findall(r"^#+ .*$", DIFFERENCES.read_text(encoding="utf-8"), re.MULTILINE)
    assert any(f"`{name}`" in heading for heading in headings)
