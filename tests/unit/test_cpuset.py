import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cpuset import format_cpu_set, parse_cpu_set


@given(st.frozensets(st.integers(0, 300)))
def test_what_is_written_is_read_back(cpus: frozenset[int]) -> None:
    assert parse_cpu_set(format_cpu_set(cpus)) == cpus


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("", set()), ("3", {3}), (" 0-2, 8 ", {0, 1, 2, 8}), ("0-3,^2", {0, 1, 3}), ("^2,0-3", {0, 1, 3})],
)
def test_the_syntax_of_linux_libvirt_and_nova(text: str, cpus: set[int]) -> None:
    assert parse_cpu_set(text) == cpus


@pytest.mark.parametrize("text", ["a", "1-", "-1", "3-1", "0-99999", "1;2", "٣", "0x1", "^"])
def test_anything_else_is_refused_with_the_item(text: str) -> None:
    with pytest.raises(ValueError, match=r"is neither a CPU id|is not a range"):
        parse_cpu_set(text)


@given(st.text(max_size=30))
def test_no_text_does_worse_than_valueerror(text: str) -> None:
    with contextlib.suppress(ValueError):
        parse_cpu_set(text)
