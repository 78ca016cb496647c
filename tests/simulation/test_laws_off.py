"""The simulator notices when a law of the agent is turned off."""

from __future__ import annotations

import pytest

from simulation.laws_off import LAWS_OFF, SEEDS, first_that_notices

NOT_DRAWN = {"release"}
"""Off, it shows only after a write to a shared pool whose outcome is unknown, and histories have no pools;
tests/functional/tracker/test_late_writes.py has such a release."""


@pytest.mark.parametrize("name", sorted(LAWS_OFF.keys() - NOT_DRAWN))
def test_a_law_that_is_off_is_noticed(name: str) -> None:
    assert first_that_notices(name, (LAWS_OFF[name].seed, *range(SEEDS))) is not None
