"""Where a claim goes if several places fit: the guest that comes next must find what the host has."""

from __future__ import annotations

from itertools import permutations
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.fit import HOST, ask, fitted, group, provider
from kits.host_cells import asks, book_of_cells, put

from agent.claims.book import Book
from agent.claims.choice import Choice, Order, Strategy


@pytest.mark.parametrize(
    ("words", "strategy"),
    [
        ([], Strategy(Order.PACK)),
        (["spread"], Strategy(Order.SPREAD)),
        (["pack", "VGPU:spread"], Strategy(Order.PACK, {"VGPU": Order.SPREAD})),
        (["VGPU:pack", "spread"], Strategy(Order.SPREAD, {"VGPU": Order.PACK})),
    ],
)
def test_a_strategy_is_read(words: list[str], strategy: Strategy) -> None:
    assert Strategy.parse(words) == strategy


@pytest.mark.parametrize(
    ("words", "clause"),
    [
        (["packed"], "'packed' is neither pack nor spread, nor CLASS:pack nor CLASS:spread"),
        (["VGPU:"], "'VGPU:' is neither pack nor spread, nor CLASS:pack nor CLASS:spread"),
        (["pack", "spread"], "the default is given twice"),
        (["VGPU:pack", "VGPU:pack"], "VGPU is given twice"),
    ],
)
def test_a_strategy_that_says_nothing_clear_is_an_error(words: list[str], clause: str) -> None:
    with pytest.raises(ValueError, match=clause.replace("(", r"\(")):
        Strategy.parse(words)


@given(st.lists(st.integers(-9, 9)), st.sampled_from(Order))
def test_pack_takes_the_least_that_is_left_and_what_devices_need_only_after_all_else(
    left: list[int], order: Order
) -> None:
    strategy = Strategy(Order.PACK, {"VGPU": order})
    ranked = sorted(left, key=lambda free: strategy.rank("VGPU", free))
    enough, too_little = [free for free in left if free >= 0], [free for free in left if free < 0]
    packed = [*sorted(enough), *sorted(too_little, reverse=True)]
    assert ranked == (packed if order is Order.PACK else sorted(left, reverse=True))


def test_the_only_gpu_counts_as_much_as_all_virtual_functions() -> None:
    free = {("gpu", "VGPU"): 1, ("nic0", "VF"): 3, ("nic1", "VF"): 1}
    choice = Choice(devices={0: [("gpu", "VGPU"), ("nic0", "VF")], 1: [("nic1", "VF")], 2: []})

    def costs(**asked: int) -> dict[int, tuple[bool, float]]:
        found = choice.costs(asked, {}, lambda uuid, name: free[uuid, name])
        return {cell: (cost.has_idle, cost.lost) for cell, cost in found.items()}

    assert costs(PCPU=1) == {0: (True, 1.75), 1: (True, 0.25)}
    assert costs(PCPU=1, VGPU=1) == {0: (True, 0.75), 1: (True, 0.25)}
    assert costs(PCPU=1, VGPU=1, VF=1) == {0: (False, 0.0), 1: (False, 0.0)}
    assert choice.costs({}, {}, lambda uuid, name: 0) == {}


def test_a_card_that_can_be_given_whole_or_in_parts_counts_once() -> None:
    choice = Choice(
        devices={0: [("nic", "PF"), ("nic", "VF")], 1: [("gpu", "VGPU")]},
        beside={"PF": {"PCPU": 4.0}, "VF": {"PCPU": 1.0}},
    )
    room = {0: {"PCPU": 4}, 1: {"PCPU": 4}}
    costs = choice.costs({"PCPU": 4}, room, lambda uuid, name: 1)
    assert {cell: cost.lost for cell, cost in costs.items()} == {0: 1.0, 1: 1.0}
    assert costs[0].needed == {"PCPU": 4.0}


def test_a_device_is_lost_where_the_cpus_that_guests_have_beside_one_are_taken() -> None:
    choice = Choice(
        devices={0: [("gpu0", "VGPU")], 1: [("gpu1", "VGPU")]},
        beside={"VGPU": {"PCPU": 4.0, "MEMORY_MB": 2.0}},
    )
    room = {0: {"PCPU": 12, "MEMORY_MB": 100}, 1: {"PCPU": 8, "MEMORY_MB": 3}}

    def costs(**asked: int) -> dict[int, tuple[float, float]]:
        found = choice.costs(asked, room, lambda uuid, name: 2)
        return {cell: (round(cost.lost, 2), cost.needed["PCPU"]) for cell, cost in found.items()}

    # 2 GPUs are usable on cell 0, and 1 on cell 1, whose memory is short.
    assert costs(PCPU=4) == {0: (0.0, 8.0), 1: (0.0, 8.0)}
    assert costs(PCPU=5) == {0: (0.33, 8.0), 1: (0.33, 8.0)}
    assert costs(PCPU=1, MEMORY_MB=97)[0] == (0.33, 8.0)
    assert costs(PCPU=4, VGPU=1) == {0: (0.0, 4.0), 1: (0.0, 4.0)}
    assert costs(PCPU=99) == {0: (0.67, 8.0), 1: (0.33, 8.0)}, "on no cell, and it is asked all the same"


def book(strategy: Strategy, *, gpus: int) -> Book:
    made = book_of_cells({0: gpus} if gpus else {})
    made.choose_by(strategy)
    return made


def claim(made: Book, number: int, cpus: int, *, gpu: bool = False) -> bool:
    return put(made, asks(number, cpus, gpu=gpu)) is not None


@pytest.mark.parametrize("order", list(Order))
def test_a_guest_without_devices_leaves_the_cell_of_the_gpu_to_the_guest_that_needs_it(order: Order) -> None:
    made = book(Strategy(order), gpus=1)
    assert claim(made, 1, cpus=6)
    assert claim(made, 2, cpus=6, gpu=True)


@pytest.mark.parametrize("order", list(Order))
def test_whatever_order_they_come_in_all_guests_find_their_place(order: Order) -> None:
    """A guest of 6 CPUs and two of 4 with a GPU fill two cells of 8 CPUs in every order."""
    for arrivals in permutations([(6, False), (4, True), (4, True)]):
        made = book(Strategy(order), gpus=2)
        assert all(claim(made, n, cpus, gpu=gpu) for n, (cpus, gpu) in enumerate(arrivals, start=1)), arrivals


def test_the_cell_of_a_gpu_that_is_in_use_is_like_any_other() -> None:
    made = book(Strategy(Order.PACK), gpus=1)
    assert claim(made, 1, cpus=2, gpu=True)
    assert claim(made, 2, cpus=4)
    cells = made.claims[str(UUID(int=2))].cells
    assert [placed.host_cell for placed in cells] == [0]


def test_small_guests_are_packed_so_that_a_large_one_finds_a_whole_cell() -> None:
    packed, spread = book(Strategy(Order.PACK), gpus=0), book(Strategy(Order.SPREAD), gpus=0)
    for made in (packed, spread):
        assert claim(made, 1, cpus=2)
        assert claim(made, 2, cpus=2)
    assert claim(packed, 3, cpus=8)
    assert not claim(spread, 3, cpus=8)


CARDS = (
    provider("host", VCPU=8),
    provider("card0", "host", VF=8),
    provider("card1", "host", VF=8),
)


def test_virtual_functions_come_from_the_card_that_is_in_use_already() -> None:
    result = fitted(ask(group("nic", VF=1)), *CARDS, used={"card1": {"VF": 3}})
    assert result.allocations == {"card1": {"VF": 1}}


def test_own_providers_come_before_sharing_ones_whatever_they_have_left() -> None:
    host = provider("host", VCPU=8, DISK_GB=100, aggregates=("pool",))
    pool = provider("pool", DISK_GB=10, aggregates=("pool",), traits=("MISC_SHARES_VIA_AGGREGATE",))
    result = fitted(ask(group(VCPU=1, DISK_GB=10)), host, pool)
    assert result.allocations == {"host": {"VCPU": 1, "DISK_GB": 10}}


def test_places_that_are_alike_are_taken_by_name() -> None:
    result = fitted(ask(group("nic", VF=1)), *reversed(CARDS[1:]), HOST)
    assert result.allocations == {"card0": {"VF": 1}}


def test_a_guest_takes_the_cpus_that_are_left_over_beside_the_devices() -> None:
    """Guests with a GPU have 2 CPUs: of 8 CPUs, cell 0 with 4 GPUs has none to spare, cell 1 with 2 has 4."""
    made = book_of_cells({0: 4, 1: 2})
    assert claim(made, 1, cpus=2, gpu=True) and host_cell(made, 1) == 0
    assert claim(made, 2, cpus=4) and host_cell(made, 2) == 1
    assert all(claim(made, number, cpus=2, gpu=True) for number in range(3, 8))


def host_cell(made: Book, number: int) -> int:
    (placed,) = made.claims[str(UUID(int=number))].cells
    return placed.host_cell
