"""The simulator notices when a law of the agent is turned off."""

from __future__ import annotations

import pytest

from simulation.laws_off import LAWS_OFF, SEEDS, first_that_notices


@pytest.mark.timeout(900)  # only a seed that is out of date makes it search
@pytest.mark.parametrize("name", sorted(LAWS_OFF))
def test_a_law_that_is_off_is_noticed(name: str) -> None:
    assert first_that_notices(name, (LAWS_OFF[name].seed, *range(SEEDS))) is not None
