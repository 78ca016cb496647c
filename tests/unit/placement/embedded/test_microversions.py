"""Microversions as clients write them."""

import pytest

from agent.placement.embedded import microversions as mv
from agent.placement.embedded.problems import RequestRefused


def test_a_microversion_is_its_minor_number() -> None:
    assert [mv.parse(text) for text in (None, "1.0", "1.39", "latest")] == [0, 0, 39, 39]
    assert mv.text(30) == "1.30"


@pytest.mark.parametrize(("text", "status"), [("x", 400), ("1", 400), ("1.40", 406), ("2.0", 406)])
def test_others_are_refused(text: str, status: int) -> None:
    with pytest.raises(RequestRefused) as refused:
        mv.parse(text)
    assert refused.value.problem.status == status


def test_the_last_version_for_this_service_in_the_header_wins() -> None:
    assert mv.from_header("compute 2.1, placement 1.10, Placement 1.12") == "1.12"
    assert mv.from_header("compute 2.1") is None and mv.from_header(None) is None
