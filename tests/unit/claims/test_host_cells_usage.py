"""Usage of cells: claims against sums made anew, and guests that a claim counts or does not count."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from kits.host_cells import CORES, host_cells, provider_tree, topology

from agent.claims.claim import Claim, ClaimState
from agent.claims.guest_cells import PlacedCell
from agent.claims.host_cells import CellUsage, cell_use
from agent.claims.request import ClaimRequest, RequestGroup
from agent.driver import Guest, GuestState, UsedMemory, UsedUnit

CONSUMERS = ("a", "b", "c")
LAYOUT = topology(2)
CELLS, STOCK = host_cells(LAYOUT, provider_tree(LAYOUT))


def claim(consumer: str, host_cell: int, cpu: int, memory_mb: int) -> Claim:
    cell = PlacedCell(0, host_cell, {0: cpu}, frozenset(), 4, memory_mb)
    return Claim(consumer, ClaimState.CLAIMED, ClaimRequest(consumer, (RequestGroup(),)), {}, cells=(cell,))


def guest(
    uuid: str, memory_mb: int, *, state: GuestState = GuestState.RUNNING, cpu: int | None = None
) -> Guest:
    units = () if cpu is None else (UsedUnit("PCPU", str(cpu), "host"),)
    return Guest(uuid, uuid, state, {}, units, memory=(UsedMemory(0, memory_mb),))


def memory_left(usage: CellUsage, consumer: str = "other", **moving: str) -> int:
    return usage.stock(consumer, moving, {}).free(STOCK)[0].memory_mb


def opened() -> CellUsage:
    usage = CellUsage()
    usage.refresh(CELLS)
    return usage


steps = st.lists(
    st.tuples(
        st.sampled_from(CONSUMERS),
        st.none() | st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(1, 99)),
    ),
    max_size=12,
)


@given(steps)
def test_the_running_sums_are_those_of_the_claims_that_are_left(
    changes: list[tuple[str, tuple[int, int, int] | None]],
) -> None:
    usage, claims = opened(), dict[str, Claim]()
    for consumer, change in changes:
        if change is None:
            usage.remove(consumer)
            claims.pop(consumer, None)
        else:
            host_cell, thread, memory_mb = change  # no two consumers have a CPU in common
            cpu = 2 * CORES * host_cell + 2 * CONSUMERS.index(consumer) + thread
            claims[consumer] = claim(consumer, host_cell, cpu, memory_mb)
            usage.put(claims[consumer])
    for consumer in ("other", *CONSUMERS):
        others = [each for each in claims.values() if each.consumer != consumer]
        expected = sum((cell_use(each.cells) for each in others), Counter[tuple[int, str]]())
        stock = usage.stock(consumer, {}, {})
        assert +Counter(stock.use) == +expected
        assert stock.busy >= {cpu for each in others for cell in each.cells for cpu in cell.cpus}


def test_a_guest_counts_until_its_claim_counts_it() -> None:
    usage = opened()
    whole = memory_left(usage)
    usage.observe_guests([guest("a", 100)])
    assert memory_left(usage) == whole - 100
    assert memory_left(usage, "a") == whole, "its own memory is not in its way"
    usage.put(claim("a", 0, 0, 300))
    assert memory_left(usage) == whole - 300
    usage.observe_guests([])
    assert memory_left(usage) == whole - 300
    usage.remove("a")
    assert memory_left(usage) == whole


def test_a_moving_guest_is_counted_by_the_claim_of_its_migration() -> None:
    usage = opened()
    whole = memory_left(usage)
    usage.put(claim("migration", 0, 0, 300))
    usage.observe_guests([guest("a", 100)])
    assert memory_left(usage) == whole - 400
    assert memory_left(usage, a="migration") == whole - 300


def test_a_guest_that_is_shut_off_keeps_its_cpus_and_frees_its_memory() -> None:
    usage = opened()
    whole = memory_left(usage)
    usage.observe_guests([guest("a", 100, state=GuestState.SHUTOFF, cpu=3)])
    assert memory_left(usage) == whole
    assert usage.stock("other", {}, {}).busy == {3}
    own = usage.stock("a", {}, {})
    assert own.busy == set() and own.favoured == {3}


def test_a_cpu_that_two_guests_use_is_given_to_neither_and_stays_with_a_claim_of_it() -> None:
    usage = opened()
    shared = {("PCPU", "3"): frozenset("ab")}
    usage.observe_guests([guest("a", 100, cpu=3), guest("b", 100, cpu=3)], shared)
    assert usage.stock("a", {}, {}).busy == usage.stock("b", {}, {}).busy == {3}
    usage.put(claim("a", 0, 3, 100))
    assert usage.stock("a", {}, {}).busy == set() and usage.stock("b", {}, {}).busy == {3}


def test_a_guest_that_will_start_counts_until_it_is_seen_or_given_up() -> None:
    usage = opened()
    whole = memory_left(usage)
    usage.expect_guest("a", guest("a", 100, state=GuestState.STARTING))
    assert memory_left(usage) == whole - 100
    usage.observe_guests([guest("a", 200)])
    assert memory_left(usage) == whole - 200, "counted once"
    usage.observe_guests([])
    assert memory_left(usage) == whole
    usage.expect_guest("b", guest("b", 100))
    usage.expect_guest("b", None)
    assert memory_left(usage) == whole
