"""A fit gives each guest CPU the host CPU that the domain pins it to, where its cell has that one."""

from agent.claims.claim import UNRESTRICTED, Fit, Restriction
from agent.claims.guest_cells import PlacedCell

FIT = Fit(True, {}, {}, (), (PlacedCell(0, 0, {0: 4, 1: 5}, frozenset(), 4, 64),))


def test_the_same_cpus_in_the_order_of_the_domain() -> None:
    assert Restriction(pins={0: 5, 1: 4}).pin(FIT).cells[0].pinning == {0: 5, 1: 4}


def test_other_cpus_stay_as_they_were_chosen() -> None:
    assert Restriction(pins={0: 9}).pin(FIT) == FIT
    assert UNRESTRICTED.pin(FIT) is FIT
