"""The arithmetic with amounts, against a model that looks at one provider and class at a time."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from agent.shapes import Usages, beyond, by_class, largest, shares, total

PROVIDERS, CLASSES = ("host", "cell0", "cell1"), ("VCPU", "MEMORY_MB", "VGPU")
usages = st.dictionaries(
    st.sampled_from(PROVIDERS), st.dictionaries(st.sampled_from(CLASSES), st.integers(0, 4), max_size=3)
)
columns = st.lists(usages, max_size=4)


def at(column: Usages, provider: str, name: str) -> int:
    return column.get(provider, {}).get(name, 0)


@given(columns)
def test_columns_are_summed_and_compared_slot_by_slot(some: Sequence[Usages]) -> None:
    for provider in PROVIDERS:
        for name in CLASSES:
            amounts = [at(column, provider, name) for column in some]
            assert at(total(some), provider, name) == sum(amounts)
            assert at(largest(some), provider, name) == max(amounts, default=0)


@given(columns)
def test_no_column_is_changed(some: Sequence[Usages]) -> None:
    before = repr(some)
    total(some), largest(some), by_class(part for column in some for part in column.values())
    assert repr(some) == before


@given(usages, usages)
def test_what_exceeds_has_no_zeros_and_no_empty_providers(one: Usages, other: Usages) -> None:
    wanted = {
        (provider, name): at(one, provider, name) - at(other, provider, name)
        for provider in PROVIDERS
        for name in CLASSES
        if at(one, provider, name) > at(other, provider, name)
    }
    found = beyond(one, other)
    assert {(provider, name): n for provider, part in found.items() for name, n in part.items()} == wanted
    assert all(found.values())


@given(usages)
def test_the_providers_are_summed_by_class(one: Usages) -> None:
    named = {name for part in one.values() for name in part}
    assert by_class(one.values()) == {
        name: sum(at(one, provider, name) for provider in PROVIDERS) for name in named
    }


@given(st.integers(0, 10**6), st.integers(1, 64))
def test_shares_are_whole_fair_and_lose_nothing(amount: int, parts: int) -> None:
    found = shares(amount, parts)
    assert (sum(found), len(found)) == (amount, parts)
    assert max(found) - min(found) <= 1
