"""The tables against the rules that NVIDIA's driver states, computed here anew."""

import pytest

from agent.providers.cards.tables import MIG, MIXED_SIZES


def starts_by_rule(region: int, size: int, most: int) -> set[int]:
    """The starts of one size, by _kvgpumgrSetHeterogeneousResources: the region is halved again and again."""
    starts = set()
    for halvings in range(5):
        partitions = 1 << halvings
        length = region // partitions
        if region % partitions:
            continue
        for number in range(partitions):
            begin = number * length
            if most == 2 * partitions:
                starts |= {begin, begin + length - size}
            elif most == partitions:
                starts.add(begin)
            elif most & (most - 1) and partitions == 1 << (most.bit_length() - 1):
                starts.add(begin if number % 2 == 0 else begin + length - size)
    return {start for start in starts if start >= 0}


@pytest.mark.parametrize("card", sorted(MIXED_SIZES))
def test_each_start_has_its_slots_on_the_card(card: str) -> None:
    table = MIXED_SIZES[card]
    for size, starts in table.starts.items():
        assert list(starts) == sorted(set(starts))
        assert starts[0] == 0
        assert starts[-1] + size <= table.slots


def test_a_size_that_the_card_does_not_have_is_an_error() -> None:
    with pytest.raises(KeyError):
        MIXED_SIZES["A16"].model({"3Q": 3}, 16)


@pytest.mark.parametrize("card", sorted(MIG))
def test_every_slice_of_mig_fits_an_empty_card(card: str) -> None:
    model = MIG[card]
    assert all(model.divided().left(name) for name in model.shapes)


@pytest.mark.parametrize(
    ("card", "most"),
    [
        ("A100 40 GB", {"1g.5gb": 7, "1g.5gb+me": 1, "1g.10gb": 4, "2g.10gb": 3, "3g.20gb": 2, "4g.20gb": 1}),
        ("H100 80 GB", {"1g.10gb": 7, "1g.20gb": 4, "2g.20gb": 3, "3g.40gb": 2, "4g.40gb": 1, "7g.80gb": 1}),
        ("A30", {"1g.6gb": 4, "1g.6gb+me": 1, "2g.12gb": 2, "2g.12gb+me": 1, "4g.24gb": 1}),
    ],
)
def test_the_numbers_of_mig_are_those_of_the_guide(card: str, most: dict[str, int]) -> None:
    empty = MIG[card].divided()
    assert {name: empty.left(name) for name in most} == most


@pytest.mark.parametrize(
    ("card", "size", "by_rule"),
    [
        (card, size, True)
        for card in ("A100 40 GB", "L4", "A16")
        for size in MIXED_SIZES[card].starts
        if size > 1
    ],
)
def test_the_starts_are_those_of_the_driver(card: str, size: int, by_rule: bool) -> None:
    table = MIXED_SIZES[card]
    assert (set(table.starts[size]) == starts_by_rule(table.slots, size, table.slots // size)) is by_rule
