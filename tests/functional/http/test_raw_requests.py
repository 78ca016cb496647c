"""A few of the cases of `./dev fuzz door`, and the page that has the reasons."""

from pathlib import Path
from tempfile import TemporaryDirectory

from kits.raw_requests import ALL, Comparison, servers

CASES = 200
PAGE = Path(__file__).parents[3] / "docs/decisions/0018-one-door.md"


def test_the_verdicts_are_those_of_the_server_before_or_have_a_reason() -> None:
    comparison = Comparison()
    with TemporaryDirectory() as directory, servers(Path(directory)) as both:
        comparison.run(both, seed=3, count=CASES)
    assert comparison.problems == []
    assert comparison.same > CASES / 2


def test_each_reason_is_in_the_decision() -> None:
    page = PAGE.read_text()
    assert [reason for reason in dict.fromkeys(ALL) if f"| {reason} |" not in page] == []
