"""What a host can still give, what is stranded, and which moves free it, against trying everything."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import combinations
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.examples import examples
from kits.host_cells import asks, book_of_cells, put, uuid_of

from agent.claims import capacity as capacity_module
from agent.claims.book import Book
from agent.claims.capacity import GUESTS_MAX, Stranded, capacity, defrag, stranded_for_all
from agent.claims.claim import Claim, ClaimState, Restriction
from agent.claims.request import ClaimRequest
from agent.driver import Guest, GuestState, UsedUnit
from agent.tree import Inventory, Provider, ProviderTree

GPU, CELL = uuid_of("gpu0"), {number: uuid_of(f"cell{number}") for number in range(2)}


def empty_host(gpus: int = 1, large_pages: int = 0) -> Book:
    return book_of_cells({0: gpus}, large_pages=large_pages)


def on_cell(book: Book, cell: int, request: ClaimRequest) -> Claim:
    """Claim on that cell."""
    book.restrict(request.consumer, Restriction(cells={0: cell}))
    claim = put(book, request)
    book.restrict(request.consumer, None)
    assert claim is not None and CELL[cell] in claim.allocations
    return claim


def test_a_gpu_beside_a_plain_guest_is_stranded_by_it_and_one_move_on_the_host_frees_it() -> None:
    book = empty_host()
    plain = on_cell(book, 0, asks(1, 6))
    found = capacity(book, asks(2, 4, gpu=True))
    assert (found.guests, found.more) == (0, False)
    assert Stranded("gpu0", GPU, "VGPU", 1, (plain.consumer,)) in found.stranded
    assert found.shortfalls
    moves = defrag(book, asks(2, 4, gpu=True))
    (move,) = moves.moves
    assert move.claim == plain and move.here is not None and moves.fewest
    assert move.here.allocations == {CELL[1]: {"PCPU": 6, "MEMORY_MB": 1024}}
    assert moves.fit is not None and GPU in moves.fit.allocations and CELL[0] in moves.fit.allocations
    assert book.claims[plain.consumer] == plain, "nothing is moved"


def test_a_guest_that_has_no_other_place_here_goes_to_another_host() -> None:
    book = empty_host()
    first, other = on_cell(book, 0, asks(1, 6)), on_cell(book, 1, asks(3, 5))
    moves = defrag(book, asks(2, 4, gpu=True))
    ((claim, here),) = ((move.claim, move.here) for move in moves.moves)
    assert claim == first != other and here is None and moves.fewest


@pytest.mark.parametrize("page_size", ["2MB", "large"])
def test_a_guest_that_can_move_while_it_runs_is_moved_rather_than_one_with_large_pages(
    page_size: str,
) -> None:
    """Large pages stay on their cell while their guest runs; either guest's CPUs would do."""
    for with_pages, plain in ((1, 3), (3, 1)):
        book = empty_host(large_pages=1024)
        on_cell(book, 0, asks(with_pages, 4, page_size=page_size))
        expected = on_cell(book, 0, asks(plain, 4))
        (move,) = defrag(book, asks(2, 4, gpu=True)).moves
        assert move.claim == expected and move.here is not None and move.is_live
        book.remove(expected.consumer)
        on_cell(book, 0, asks(plain, 4, page_size=page_size))
        (move,) = defrag(book, asks(2, 4, gpu=True)).moves
        assert move.here is not None and not move.is_live


def test_the_capacity_is_how_often_the_guest_can_be_claimed() -> None:
    book = empty_host(gpus=3)
    assert capacity(book, asks(2, 4, gpu=True)).guests == 2
    found = capacity(book, asks(2, 2, gpu=True))
    assert found.guests == 3
    assert {(each.provider, each.resource_class) for each in found.stranded} == {
        ("cell0", "PCPU"),
        ("cell1", "PCPU"),
        ("cell0", "MEMORY_MB"),
        ("cell1", "MEMORY_MB"),
    }, "CPUs without a GPU"
    assert not any(each.holders for each in found.stranded)


def test_a_count_without_end_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity_module, "GUESTS_MAX", 5)
    found = capacity(empty_host(), asks(1, 1, 1))
    assert GUESTS_MAX > 5 and (found.guests, found.more) == (5, True)


def test_where_it_fits_no_move_is_told_and_where_none_helps_why() -> None:
    book = empty_host()
    put(book, asks(1, 4))
    assert defrag(book, asks(2, 4, gpu=True)).moves == ()
    never = defrag(book, asks(2, 16, gpu=True))
    assert never.fit is None and never.moves == () and never.shortfalls


def test_a_guest_that_nobody_claimed_for_is_not_moved() -> None:
    book = empty_host()
    units = tuple(UsedUnit("PCPU", str(cpu), "numa:0") for cpu in range(6))
    book.observe_guests([Guest(str(UUID(int=5)), "by hand", GuestState.RUNNING, {"PCPU": 6}, units)])
    found = defrag(book, asks(2, 4, gpu=True))
    assert found.fit is None and found.moves == ()


def test_a_long_search_ends_with_a_small_set(monkeypatch: pytest.MonkeyPatch) -> None:
    book = empty_host()
    for number in range(4):
        on_cell(book, 0, asks(10 + number, 2))
    put(book, asks(20, 8))
    monkeypatch.setattr(capacity_module, "FITS_MAX", 1)
    found = defrag(book, asks(2, 4, gpu=True))
    assert not found.fewest and len(found.moves) == 2 and all(move.here is None for move in found.moves)


@pytest.mark.parametrize(("bound", "fewest_is_known"), [(0, False), (1, True), (2, True)])
def test_a_set_of_one_guest_more_than_all_that_were_tried_is_known_to_be_the_smallest(
    bound: int, fewest_is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = empty_host()
    for number in range(4):
        on_cell(book, 0, asks(10 + number, 2))
    put(book, asks(20, 8))
    monkeypatch.setattr(capacity_module, "MOVES_MAX", bound)
    found = defrag(book, asks(2, 4, gpu=True))
    assert (found.fewest, len(found.moves)) == (fewest_is_known, 2)


@pytest.mark.parametrize(("bound", "fewest_is_known"), [(3, False), (4, True)])
def test_a_search_may_take_as_many_fits_as_its_bound_says(
    bound: int, fewest_is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The request alone, with no guest left, with the one guest let in again, and without that guest: four.
    book = empty_host()
    on_cell(book, 0, asks(1, 6))
    monkeypatch.setattr(capacity_module, "FITS_MAX", bound)
    found = defrag(book, asks(2, 4, gpu=True))
    assert (found.fewest, len(found.moves)) == (fewest_is_known, 1)


def rebuilt(book: Book, gone: Collection[str]) -> Book:
    """The host with these claims left out, built from nothing."""
    made = empty_host(len(book.offered[GPU]["VGPU"]))
    for claim in book.claims.values():
        if claim.consumer not in gone:
            made.put(claim)
    return made


def fewest(book: Book, request: ClaimRequest) -> int | None:
    """The size of the smallest set of guests without which the request fits, by trying all of them."""
    names: Iterable[str] = sorted(book.claims)
    for size in range(len(book.claims) + 1):
        for gone in combinations(names, size):
            if rebuilt(book, gone).fit(request).fits:
                return size
    return None


GUESTS = st.lists(
    st.tuples(st.integers(1, 6), st.sampled_from([512, 2048, 6144]), st.booleans(), st.booleans()),
    min_size=1,
    max_size=6,
)


@settings(max_examples=examples(60))
@given(
    GUESTS, st.tuples(st.integers(1, 8), st.sampled_from([512, 4096, 8192]), st.booleans()), st.integers(1, 2)
)
def test_the_moves_are_the_fewest_and_make_room(
    guests: list[tuple[int, int, bool, bool]], wanted: tuple[int, int, bool], gpus: int
) -> None:
    book = empty_host(gpus)
    for number, (cpus, memory_mb, gpu, leaves) in enumerate(guests, start=1):
        claim = put(book, asks(number, cpus, memory_mb, gpu=gpu))
        if claim is not None and leaves:
            book.remove(claim.consumer)
    cpus, memory_mb, gpu = wanted
    request = asks(99, cpus, memory_mb, gpu=gpu)
    before = dict(book.claims)
    for gone in [*combinations(sorted(book.claims), 1), *combinations(sorted(book.claims), 2)]:
        assert book.without(gone).fit(request) == rebuilt(book, gone).fit(request)
    found, least = defrag(book, request), fewest(book, request)
    assert book.claims == before
    if least is None:
        assert found.fit is None and found.shortfalls
        return
    assert found.fit is not None and found.fewest
    assert len(found.moves) == least
    after = rebuilt(book, [move.claim.consumer for move in found.moves])
    assert put(after, request) is not None
    for move in found.moves:
        if move.here is not None:
            exact = {
                (name, unit)
                for classes in move.here.units.values()
                for name in classes
                for unit in classes[name]
            }
            taken = {(name, unit) for claim in after.claims.values() for _, name, unit in claim.exact}
            assert exact.isdisjoint(taken)
            after.put(
                Claim(
                    move.claim.consumer,
                    ClaimState.CLAIMED,
                    move.claim.request,
                    move.here.allocations,
                    move.here.units,
                    cells=move.here.cells,
                )
            )
    assert all(
        after.used.get(uuid, {}).get(name, 0) <= inventory.capacity
        for uuid in (*CELL.values(), GPU)
        for name, inventory in after.host.tree[uuid].inventories.items()
    )


@settings(max_examples=examples(40))
@given(GUESTS, st.integers(1, 8), st.booleans())
def test_the_capacity_is_what_claims_one_after_the_other_get(
    guests: list[tuple[int, int, bool, bool]], cpus: int, gpu: bool
) -> None:
    book = empty_host(2)
    for number, (taken, memory_mb, with_gpu, _) in enumerate(guests, start=1):
        put(book, asks(number, taken, memory_mb, gpu=with_gpu))
    found = capacity(book, asks(99, cpus, 1024, gpu=gpu))
    claimed = 0
    while put(book, asks(1000 + claimed, cpus, 1024, gpu=gpu)) is not None:
        claimed += 1
    assert (found.guests, found.more) == (claimed, False)


def test_devices_beside_which_no_cpu_or_no_memory_is_free_are_stranded_for_all() -> None:
    cells = [Provider(f"cell{n}", f"cell{n}", "root") for n in range(2)]
    basic = {"PCPU": Inventory(4), "VCPU": Inventory(4), "MEMORY_MB": Inventory(64, reserved=4)}
    tree = ProviderTree(
        [
            Provider("root", "root", None, {"DISK_GB": Inventory(100)}),
            *(replace(cell, inventories=basic) for cell in cells),
            Provider("gpu0", "gpu0", "cell0", {"VGPU": Inventory(4)}),
            Provider("nic1", "nic1", "cell1", {"SRIOV_NET_VF": Inventory(8)}),
        ]
    )
    used: dict[str, dict[str, int]] = {"cell0": {"PCPU": 4}, "gpu0": {"VGPU": 1}}
    assert stranded_for_all(tree, used) == {}
    used["cell0"]["VCPU"] = 4
    assert stranded_for_all(tree, used) == {"VGPU": 3}
    used["cell1"] = {"MEMORY_MB": 60}
    assert stranded_for_all(tree, used) == {"VGPU": 3, "SRIOV_NET_VF": 8}
    bare = ProviderTree(next((cell for cell in cells if cell.uuid == each.uuid), each) for each in tree)
    assert stranded_for_all(bare, {}) == {}, "a host that offers neither has other means for them"
