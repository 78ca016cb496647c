"""Claims with NUMA cells, pinned CPUs and pages, on hosts that report their cells to placement and on flat
ones: exact, held once, told with a reason where refused, and kept over a restart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from jsonschema import Draft202012Validator
from kits.numa import CELLS, NICS, NumaHost, ask
from kits.tracker import uuid_of

from agent import api
from agent.api.views import claim_view, explanation_view, move_view
from agent.claims.claim import Claim
from agent.claims.request import RequestGroup
from agent.driver import Guest, GuestState, UsedMemory, UsedUnit
from agent.errors import ClaimConflict, DoesNotFit, UsageError
from agent.moves.states import MoveKind, MoveState
from agent.status.overview import Health, HostState, Overview, Status
from drivers.fake.host import cell

PAGES, GIB_PAGES = "CUSTOM_HUGEPAGES_2048KIB", "CUSTOM_HUGEPAGES_1048576KIB"


@pytest.fixture(params=[False, True], ids=["flat", "nested"])
def nested(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def host(tmp_path: Path, nested: bool) -> Iterator[NumaHost]:
    with NumaHost(tmp_path, report_numa=nested) as made:
        yield made
        made.check()


def on(host: NumaHost, number: int) -> str:
    """The provider that has a cell's CPUs and memory."""
    return f"node1_numa{number}" if host.driver.host.report_numa else "node1"


def pins(claim: Claim) -> list[list[int]]:
    return [list(each.pinning.values()) for each in claim.cells]


# What each extra spec means


def test_each_guest_cell_gets_a_host_cell_of_its_own(host: NumaHost) -> None:
    claim = host.claim(4, 4096, hw_numa_nodes="2")
    assert [(each.host_cell, each.memory_mb, each.floating) for each in claim.cells] == [
        (0, 2048, {0, 1}),
        (1, 2048, {2, 3}),
    ]
    whole = {"VCPU": 4, "MEMORY_MB": 4096}
    half = {"VCPU": 2, "MEMORY_MB": 2048}
    flat = on(host, 0) == on(host, 1)
    assert host.placed(claim.consumer) == ({"node1": whole} if flat else {on(host, n): half for n in (0, 1)})
    with pytest.raises(DoesNotFit, match="wants 3 cells of their own, the host has 2"):
        host.claim(3, 3072, hw_numa_nodes="3")


def test_cells_of_different_sizes_go_where_they_fit(host: NumaHost) -> None:
    uneven = {"hw_numa_nodes": "2", "hw_numa_mem_0": "1024", "hw_numa_mem_1": "6144"}
    cpus = {"hw_numa_cpus_0": "0", "hw_numa_cpus_1": "1-3", "hw_cpu_policy": "dedicated"}
    first, second = host.claim(4, 7168, **uneven, **cpus).cells
    assert (len(first.pinning), first.memory_mb, second.pinning.keys()) == (1, 1024, {1, 2, 3})
    across = host.claim(2, 7168, **uneven)
    assert [each.host_cell for each in across.cells] == [second.host_cell, first.host_cell]
    with pytest.raises(DoesNotFit, match=r"guest cell 1: host cell 0 has 1024 MiB free, 6144 MiB asked"):
        host.claim(2, 7168, **uneven)


def test_dedicated_cpus_make_one_cell_and_are_the_guests_alone(host: NumaHost) -> None:
    one, other = (host.claim(4, 1024, hw_cpu_policy="dedicated") for _ in range(2))
    assert {each.host_cell for claim in (one, other) for each in claim.cells} == {0, 1}
    assert pins(one) == [[2, 6, 3, 7]]
    assert host.placed(one.consumer) == {on(host, 0): {"PCPU": 4, "MEMORY_MB": 1024}}
    with pytest.raises(DoesNotFit, match="has 2 free dedicated CPUs, 4 asked with thread policy prefer"):
        host.claim(4, 1024, hw_cpu_policy="dedicated")


def test_mixed_cpus_are_pinned_and_shared_side_by_side(host: NumaHost) -> None:
    claim = host.claim(3, 1024, hw_cpu_policy="mixed", hw_cpu_dedicated_mask="^0")
    (placed,) = claim.cells
    assert (placed.floating, placed.pinning.keys()) == ({0}, {1, 2})
    assert host.placed(claim.consumer) == {on(host, 0): {"VCPU": 1, "PCPU": 2, "MEMORY_MB": 1024}}


def test_isolated_emulator_threads_have_a_cpu_of_their_own(host: NumaHost) -> None:
    asked = {"hw_cpu_policy": "dedicated", "hw_emulator_threads_policy": "isolate"}
    claim = host.claim(4, 1024, **asked)
    (placed,) = claim.cells
    assert len(placed.emulator) == 1 and not placed.emulator & set(placed.pinning.values())
    assert host.placed(claim.consumer) == {on(host, 0): {"PCPU": 5, "MEMORY_MB": 1024}}
    (units,) = (units["PCPU"] for units in claim.units.values())
    assert set(units) == set(map(str, placed.cpus))
    other = host.claim(4, 1024, **asked)
    assert not set(other.cells[0].cpus) & placed.cpus
    with pytest.raises(DoesNotFit, match="5 asked, one of them for the emulator's threads"):
        host.claim(4, 1024, **asked)


def test_what_the_host_cannot_do_is_a_refusal_that_names_the_trait(host: NumaHost) -> None:
    with pytest.raises(DoesNotFit, match="lacks trait COMPUTE_SECURITY_UEFI_SECURE_BOOT"):
        host.claim(1, 512, os__secure_boot="required")


def test_shared_cpus_are_never_overcommitted_against_themselves(host: NumaHost) -> None:
    """Two shared CPUs a cell, overcommitted twice."""
    with pytest.raises(
        DoesNotFit, match="has 2 shared CPUs, 3 asked: a guest is never overcommitted against"
    ):
        host.claim(3, 1024, hw_numa_nodes="1")
    for _ in range(4):
        host.claim(2, 1024, hw_numa_nodes="1")
    with pytest.raises(DoesNotFit):
        host.claim(2, 1024, hw_numa_nodes="1")


def test_required_siblings_come_in_pairs(host: NumaHost) -> None:
    claim = host.claim(2, 1024, hw_cpu_policy="dedicated", hw_cpu_thread_policy="require")
    assert pins(claim) == [[2, 6]]
    with pytest.raises(DoesNotFit, match="3 asked with thread policy require"):
        host.claim(3, 1024, hw_cpu_policy="dedicated", hw_cpu_thread_policy="require")


def test_silent_siblings_are_withheld_and_charged(host: NumaHost) -> None:
    claim = host.claim(2, 1024, hw_cpu_policy="dedicated", hw_cpu_thread_policy="isolate")
    (placed,) = claim.cells
    assert (list(placed.pinning.values()), placed.withheld) == ([2, 3], {6, 7})
    assert host.placed(claim.consumer) == {on(host, 0): {"PCPU": 4, "MEMORY_MB": 1024}}
    (exact,) = claim.units.values()
    assert sorted(exact["PCPU"]) == ["2", "3", "6", "7"]
    others = [host.claim(2, 1024, hw_cpu_policy="dedicated") for _ in range(4)]
    given = {cpu for other in others for each in other.cells for cpu in each.cpus}
    assert len(given) == 8 and not given & {2, 3, 6, 7}
    with pytest.raises(DoesNotFit):
        host.claim(1, 1024, hw_cpu_policy="dedicated")
    assert host.tracker.release(claim.consumer)
    again = host.claim(4, 1024, hw_cpu_policy="dedicated", hw_cpu_thread_policy="require")
    assert sorted(pins(again)[0]) == [2, 3, 6, 7]


def test_without_siblings_nothing_is_withheld(tmp_path: Path, nested: bool) -> None:
    cells = (cell(0, frozenset(range(4)), 4096),)
    with NumaHost(tmp_path, cells=cells, report_numa=nested, shared=(0,), dedicated=(1, 2, 3)) as host:
        claim = host.claim(2, 1024, hw_cpu_policy="dedicated", hw_cpu_thread_policy="isolate")
        assert host.placed(claim.consumer) == {on(host, 0): {"PCPU": 2, "MEMORY_MB": 1024}}
        with pytest.raises(DoesNotFit, match="thread policy require"):
            host.claim(1, 1024, hw_cpu_policy="dedicated", hw_cpu_thread_policy="require")
        host.check()


@pytest.mark.parametrize(
    ("size", "pages"),
    [("large", 1048576), ("any", 1048576), ("2MB", 2048), ("2048", 2048), ("1GB", 1048576), ("small", 4)],
)
def test_pages_of_each_size(host: NumaHost, size: str, pages: int) -> None:
    claim = host.claim(1, 2048, hw_mem_page_size=size)
    assert [(each.page_kib, each.memory_mb) for each in claim.cells] == [(pages, 2048)]


def test_pages_are_counted_on_each_cell(host: NumaHost) -> None:
    """4 GiB of each size on each cell."""
    for _ in range(2):
        host.claim(1, 4096, hw_mem_page_size="1GB")
    with pytest.raises(DoesNotFit, match="host cell 0 has 0 pages of 1048576 KiB free, 1024 MiB asked"):
        host.claim(1, 1024, hw_mem_page_size="1GB")
    for _ in range(2):
        assert host.claim(1, 4096, hw_mem_page_size="large").cells[0].page_kib == 2048
    with pytest.raises(DoesNotFit, match="0 pages of 1048576 KiB or 0 pages of 2048 KiB free"):
        host.claim(1, 1024, hw_mem_page_size="large")
    assert host.claim(1, 1024, hw_mem_page_size="any").cells[0].page_kib == 4
    with pytest.raises(DoesNotFit, match="has 0 pages of 4096 KiB"):
        host.claim(1, 1024, hw_mem_page_size="4MB")


def test_pages_that_do_not_divide_the_memory_are_no_use(host: NumaHost) -> None:
    with pytest.raises(DoesNotFit, match=r"4 pages of 1048576 KiB \(which do not divide it\) free, 1536 MiB"):
        host.claim(1, 1536, hw_mem_page_size="1GB")
    assert host.claim(1, 1536, hw_mem_page_size="large").cells[0].page_kib == 2048


def test_huge_pages_are_not_small_memory(host: NumaHost) -> None:
    """Of 16 GiB a cell has 8 GiB in large pages."""
    with pytest.raises(DoesNotFit, match="has 8192 MiB free, 9216 MiB asked"):
        host.claim(1, 9216, hw_numa_nodes="1")
    host.claim(1, 8192, hw_numa_nodes="1")


def test_what_is_reserved_for_the_host_is_nobodys(tmp_path: Path, nested: bool) -> None:
    with NumaHost(tmp_path, report_numa=nested, reserved_mb=1024) as host:
        with pytest.raises(DoesNotFit, match="has 7680 MiB free"):
            host.claim(1, 7681, hw_numa_nodes="1")
        host.claim(1, 7680, hw_numa_nodes="1")
        host.check()


def test_a_guest_without_cells_floats_and_is_counted_on_the_host(host: NumaHost) -> None:
    claim = host.claim(1, 1024)
    assert claim.cells == ()
    # In a tree of cells a class comes from one provider, as in placement: such a guest is in one cell.
    assert host.placed(claim.consumer) == {on(host, 0): {"VCPU": 1, "MEMORY_MB": 1024}}


# Refusals


def test_a_refusal_names_each_guest_cell_and_host_cell(host: NumaHost) -> None:
    before = host.tracker.claims()
    asked = ask(12, 1024, hw_numa_nodes="2", hw_cpu_policy="dedicated", hw_cpu_thread_policy="require")
    with pytest.raises(DoesNotFit) as refused:
        host.tracker.claim(asked)
    told = refused.value.details["shortfalls"]
    assert [(each["resource_class"], each["asked"], each["free"], each["provider"]) for each in told] == [
        ("PCPU", 6, 6, on(host, number)) for _ in range(2) for number in range(2)
    ]
    short = "has 6 free dedicated CPUs, 6 asked with thread policy require"
    assert [each["reason"] for each in told] == [
        f"guest cell {guest}: host cell {number} {short}" for guest in range(2) for number in range(2)
    ]
    assert host.tracker.explain(asked).shortfalls
    assert host.tracker.claims() == before


def test_room_that_another_cell_of_the_guest_needs_is_told(host: NumaHost) -> None:
    host.claim(5, 1024, hw_cpu_policy="dedicated")
    with pytest.raises(DoesNotFit) as refused:
        host.claim(4, 1024, hw_numa_nodes="2", hw_cpu_policy="dedicated")
    reasons = [each["reason"] for each in refused.value.details["shortfalls"]]
    assert "guest cell 0: host cell 0 has 1 free dedicated CPU, 2 asked with thread policy prefer" in reasons
    assert "guest cell 1: host cell 1 has room, and is needed for another guest cell" in reasons


def test_what_placement_has_no_room_for_is_refused(host: NumaHost) -> None:
    """A float of everything on the host leaves nothing for a guest with cells."""
    for number in range(2) if host.driver.host.report_numa else (0,):
        share = 16384 if host.driver.host.report_numa else 32768
        host.schedule(str(uuid4()), **{on(host, number): {"MEMORY_MB": share}})
    with pytest.raises(DoesNotFit, match=r"MEMORY_MB asked, 0 free"):
        host.claim(1, 1024, hw_mem_page_size="1GB")


def test_what_the_groups_and_the_topology_say_must_agree(host: NumaHost) -> None:
    asked = ask(2, 1024, hw_numa_nodes="1")
    for resources, what in (
        ({"VCPU": 2, "MEMORY_MB": 512}, None),
        ({"VCPU": 1, "PCPU": 1, "MEMORY_MB": 512}, "use the policy mixed"),
        ({"MEMORY_MB": 512}, "each cell needs one"),
    ):
        odd = replace(asked, groups=(RequestGroup("", resources),), consumer=str(uuid4()))
        if what is None:
            assert host.tracker.claim(odd).claim.cells[0].memory_mb == 512
            continue
        with pytest.raises(UsageError, match=what):
            host.tracker.claim(odd)


# Kept


def test_a_claim_is_the_same_after_a_restart(host: NumaHost) -> None:
    specs = {"hw_cpu_policy": "dedicated", "hw_cpu_thread_policy": "isolate", "hw_mem_page_size": "1GB"}
    claim = host.claim(2, 4096, **specs)
    host.restart()
    assert host.tracker.claim_of(claim.consumer) == claim
    assert host.tracker.claim(claim.request).claim == claim
    other = host.claim(2, 4096, **specs)
    assert other.cells[0].host_cell != claim.cells[0].host_cell
    with pytest.raises(DoesNotFit):
        host.claim(2, 4096, **specs)
    for each in (claim, other):
        assert host.tracker.release(each.consumer)
    assert host.claim(2, 4096, **specs).cells == claim.cells, "all is given back"


def test_a_host_that_changes_is_learnt_and_claims_stay(host: NumaHost) -> None:
    claim = host.claim(1, 4096, hw_mem_page_size="1GB")
    fewer = tuple(replace(each, pages={2048: 4096}) for each in CELLS)
    host.driver.change(cells=fewer)
    host.look()
    assert host.tracker.claim_of(claim.consumer) == claim
    with pytest.raises(DoesNotFit, match="has 0 pages of 1048576 KiB"):
        host.claim(1, 1024, hw_mem_page_size="1GB")
    host.driver.change(cells=CELLS)
    host.look()
    assert host.claim(1, 4096, hw_mem_page_size="1GB").cells[0].host_cell == 1


# Shown


def test_cells_are_shown_as_the_document_of_the_api_says(host: NumaHost) -> None:
    claim = host.claim(2, 1024, hw_cpu_policy="dedicated", hw_cpu_thread_policy="isolate")
    mixed = ask(3, 1024, hw_cpu_policy="mixed", hw_cpu_dedicated_mask="1")
    resized = ask(2, 1024, consumer=claim.consumer, hw_numa_nodes="2")
    status = Status("host1", None, HostState.READY, 0.0, "fake", "embedded", 1)
    shown = {
        "Claim": claim_view(claim, host.tracker.view.host.tree),
        "Explanation": explanation_view([(mixed, host.tracker.explain(mixed))], None),
        "Move": move_view(
            host.tracker.begin_move(resized, MoveKind.RESIZE, MIGRATION).move,
            Overview(0.0, status, Health(HostState.READY, (), ()), tree=host.tracker.view.host.tree),
            {},
        ),
    }
    document = json.loads(Path(api.__file__).with_name("openapi.json").read_text("utf-8"))
    for name, view in shown.items():
        schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        Draft202012Validator(schema).validate(json.loads(json.dumps(view)))
    assert shown["Claim"]["cells"] == [
        {
            "cell": 0,
            "host_cell": 0,
            "pinned_cpus": {"0": 2, "1": 3},
            "shared_cpus": [],
            "withheld_cpus": [6, 7],
            "emulator_cpus": [],
            "memory_mb": 1024,
            "page_kib": 4,
        }
    ]
    assert shown["Move"]["old"]["cells"] == shown["Claim"]["cells"]
    assert [cell["host_cell"] for cell in shown["Move"]["new"]["cells"]] == [0, 1]


# Adopted


def test_an_adopted_claim_gets_its_cells_within_what_the_scheduler_wrote(host: NumaHost) -> None:
    consumer = str(uuid4())
    where = 1 if host.driver.host.report_numa else 0
    host.schedule(consumer, **{on(host, where): {"PCPU": 2, "MEMORY_MB": 1024}})
    claim = host.claim(2, 1024, consumer=consumer, hw_cpu_policy="dedicated", hw_mem_page_size="2MB")
    assert claim.adopted
    assert [each.host_cell for each in claim.cells] == [where]
    assert host.placed(consumer) == {on(host, where): {"PCPU": 2, "MEMORY_MB": 1024}}
    host.restart()
    assert host.tracker.claim_of(consumer) == claim


def test_two_cells_are_adopted_from_what_lies_on_two_providers(tmp_path: Path) -> None:
    with NumaHost(tmp_path, report_numa=True) as host:
        consumer = str(uuid4())
        amounts = {"PCPU": 2, "MEMORY_MB": 1024}
        host.schedule(consumer, node1_numa0=amounts, node1_numa1=amounts)
        claim = host.claim(4, 2048, consumer=consumer, hw_numa_nodes="2", hw_cpu_policy="dedicated")
        assert claim.adopted
        assert {each.host_cell for each in claim.cells} == {0, 1}
        host.check()


def test_an_allocation_without_the_silent_siblings_does_not_cover_isolated_cpus(host: NumaHost) -> None:
    consumer = str(uuid4())
    host.schedule(consumer, **{on(host, 0): {"PCPU": 2, "MEMORY_MB": 1024}})
    with pytest.raises(DoesNotFit, match="4 PCPU asked, 2 free"):
        host.claim(2, 1024, consumer=consumer, hw_cpu_policy="dedicated", hw_cpu_thread_policy="isolate")
    assert host.tracker.claim_of(consumer) is None
    host.schedule(consumer, **{on(host, 0): {"PCPU": 4, "MEMORY_MB": 1024}})
    claim = host.claim(2, 1024, consumer=consumer, hw_cpu_policy="dedicated", hw_cpu_thread_policy="isolate")
    assert (claim.adopted, len(claim.cells[0].withheld)) == (True, 2)


# Guests that are there already


def guest(uuid: str, cpus: tuple[int, ...], *memory: UsedMemory, nested: bool = False) -> Guest:
    units = tuple(UsedUnit("PCPU", str(cpu), f"numa:{cpu // 8}" if nested else "host") for cpu in cpus)
    return Guest(uuid, "guest", GuestState.RUNNING, {"PCPU": len(cpus)}, units, memory=memory)


def test_what_running_guests_use_is_given_to_nobody_else(host: NumaHost, nested: bool) -> None:
    host.driver.add_guest(guest(str(uuid4()), (2, 10), UsedMemory(0, 4096, 1048576), nested=nested))
    host.look()
    claim = host.claim(1, 4096, hw_mem_page_size="1GB")
    assert claim.cells[0].host_cell == 1
    pinned = [host.claim(2, 512, hw_cpu_policy="dedicated") for _ in range(4)]
    assert not {cpu for each in pinned for placed in each.cells for cpu in placed.cpus} & {2, 10}


def test_a_running_guest_is_claimed_for_where_it_is(host: NumaHost, nested: bool) -> None:
    consumer = str(uuid4())
    host.driver.add_guest(guest(consumer, (13, 14), UsedMemory(1, 1024), nested=nested))
    host.look()
    claim = host.claim(2, 1024, consumer=consumer, hw_cpu_policy="dedicated")
    (placed,) = claim.cells
    assert (placed.host_cell, placed.cpus) == (1, {13, 14})
    # It is counted once: by its claim.
    assert host.tracker.explain(ask(1, 7168, hw_numa_nodes="1")).fits
    fillers = [host.claim(1, 7168, hw_numa_nodes="1") for _ in range(2)]
    assert {claim.cells[0].host_cell for claim in fillers} == {0, 1}


def test_each_cell_of_a_running_guest_is_claimed_where_it_is(host: NumaHost, nested: bool) -> None:
    """The cells differ, and lie the other way round than they would have been placed."""
    consumer = str(uuid4())
    memory = (UsedMemory(1, 1024, guest_cell=0), UsedMemory(0, 3072, guest_cell=1))
    host.driver.add_guest(guest(consumer, (11, 4, 5), *memory, nested=nested))
    host.look()
    claim = host.claim(
        3,
        4096,
        consumer=consumer,
        hw_numa_nodes="2",
        hw_cpu_policy="dedicated",
        hw_numa_cpus_0="0",
        hw_numa_cpus_1="1-2",
        hw_numa_mem_0="1024",
        hw_numa_mem_1="3072",
    )
    assert [(each.host_cell, each.cpus) for each in claim.cells] == [(1, {11}), (0, {4, 5})]


# The shape of the tree changes


def test_cells_are_reported_and_not_any_more_and_each_claim_keeps_its_own(tmp_path: Path) -> None:
    with NumaHost(tmp_path) as host:
        claims = [
            host.claim(4, 4096, hw_numa_nodes="2", hw_cpu_policy="dedicated", hw_mem_page_size="1GB"),
            host.claim(1, 1024, hw_cpu_policy="dedicated", hw_cpu_thread_policy="isolate"),
            host.claim(2, 2048, hw_numa_nodes="2"),
            host.claim(1, 512),
        ]
        resized = ask(4, 2048, consumer=claims[0].consumer, hw_numa_nodes="2", hw_cpu_policy="dedicated")
        host.tracker.begin_move(resized, MoveKind.RESIZE, MIGRATION)
        before = {who: each.cells for who, each in host.tracker.claims().items()}
        exact = {who: pinned_units(each) for who, each in host.tracker.claims().items()}
        for nested in (True, False, True):
            host.driver.change(report_numa=nested)
            host.look()
            host.check()
            assert {who: each.cells for who, each in host.tracker.claims().items()} == before
            assert {who: pinned_units(each) for who, each in host.tracker.claims().items()} == exact
        assert host.placed(claims[1].consumer) == {on(host, 0): {"PCPU": 2, "MEMORY_MB": 1024}}
        host.tracker.revert_move(MIGRATION)
        assert host.tracker.claims()[claims[0].consumer].cells == claims[0].cells
        assert host.placed(claims[0].consumer) == {
            **{on(host, number): {"PCPU": 2, "MEMORY_MB": 2048} for number in range(2)},
            **{f"node1_numa{number}_pages_1048576": {GIB_PAGES: 2} for number in range(2)},
        }
        host.check()


def pinned_units(claim: Claim) -> set[str]:
    return {unit for classes in claim.units.values() for unit in classes.get("PCPU", ())}


# Moves


class Pair:
    """Two hosts on one placement."""

    def __init__(self, directory: Path, nested: bool, **there: object) -> None:
        self.a = NumaHost(directory / "a", name="a", report_numa=nested)
        transport = self.a.tap.inner
        self.b = NumaHost(directory / "b", name="b", transport=transport, report_numa=nested, **there)  # type: ignore[arg-type]

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self.b.close()
        self.a.close()

    def learn(self) -> None:
        for each in (self.a, self.b):
            each.look(verify=True)
            each.tracker.follow_moves()


MIGRATION = uuid_of("a migration")
PINNED = {"hw_cpu_policy": "dedicated", "hw_mem_page_size": "1048576"}


@pytest.mark.parametrize(
    "kind", [MoveKind.COLD_MIGRATE, MoveKind.LIVE_MIGRATE, MoveKind.RESIZE, MoveKind.EVACUATE]
)
@pytest.mark.parametrize("end", ["confirm", "revert"])
def test_a_move_holds_both_places_and_gives_one_back(
    tmp_path: Path, nested: bool, kind: MoveKind, end: str
) -> None:
    with Pair(tmp_path, nested) as hosts:
        hosts.b.claim(2, 1024, **PINNED)
        old = hosts.a.claim(2, 4096, **PINNED)
        move = hosts.b.tracker.begin_move(old.request, kind, MIGRATION).move
        assert move.new is not None
        assert move.new.cells[0].host_cell == 1, "there, the first cell has not as many pages"
        hosts.learn()
        assert hosts.b.tracker.claim_of(old.consumer) == move.new
        held = hosts.a.tracker.claim_of(MIGRATION)
        assert held is not None and (held.cells, held.units) == (old.cells, old.units)
        for each, want in ((hosts.a, 0), (hosts.b, 1)):
            found = each.tracker.explain(ask(2, 4096, **PINNED))
            assert found.fits is (want == 0), "both places are held"
        getattr(hosts.b.tracker, f"{end}_move")(MIGRATION)
        hosts.learn()
        if end == "revert":
            assert hosts.a.tracker.claim_of(old.consumer) == old, "the very same cells, CPUs and pages"
            assert hosts.b.tracker.claim_of(old.consumer) is None
        else:
            assert hosts.a.tracker.claim_of(old.consumer) is None
            assert hosts.b.tracker.claim_of(old.consumer) == move.new
        hosts.b.restart()
        for each in (hosts.a, hosts.b):
            each.check()


@pytest.mark.parametrize("end", ["confirm", "revert"])
def test_a_resize_on_the_same_host_keeps_the_old_cells_until_it_is_confirmed(
    host: NumaHost, end: str
) -> None:
    old = host.claim(4, 4096, **PINNED)
    larger = ask(6, 4096, consumer=old.consumer, **PINNED)
    move = host.tracker.begin_move(larger, MoveKind.RESIZE, MIGRATION).move
    assert move.new is not None
    assert not move.new.cells[0].cpus & old.cells[0].cpus
    assert host.tracker.claims()[MIGRATION].cells == old.cells
    host.check()
    host.restart()
    assert host.tracker.moves()[MIGRATION] == move
    with pytest.raises(DoesNotFit):
        host.claim(1, 1024, **PINNED)
    done = getattr(host.tracker, f"{end}_move")(MIGRATION)
    assert done.state in (MoveState.CONFIRMED, MoveState.REVERTED)
    kept = move.new if end == "confirm" else old
    assert host.tracker.claims() == {old.consumer: kept}
    assert host.claim(2, 1024, **PINNED).cells[0].host_cell == 1 - kept.cells[0].host_cell


def test_a_rebuild_keeps_its_cells(host: NumaHost) -> None:
    claim = host.claim(2, 1024, **PINNED)
    other = ask(2, 1024, consumer=claim.consumer, hw_cpu_policy="dedicated", hw_mem_page_size="2MB")
    with pytest.raises(ClaimConflict, match="asks for others: resize it instead"):
        host.tracker.begin_move(other, MoveKind.REBUILD, MIGRATION)
    needs = replace(
        claim.request, groups=(replace(claim.request.groups[0], required=(frozenset({"COMPUTE_NODE"}),)),)
    )
    lacks = replace(
        claim.request, groups=(replace(claim.request.groups[0], required=(frozenset({"CUSTOM_X"}),)),)
    )
    with pytest.raises(DoesNotFit, match="CUSTOM_X"):
        host.tracker.begin_move(lacks, MoveKind.REBUILD, MIGRATION)
    if not host.driver.host.report_numa:  # else the host, which has the trait, gives nothing to the guest
        host.tracker.begin_move(needs, MoveKind.REBUILD, MIGRATION)
        host.tracker.revert_move(MIGRATION)
    host.tracker.begin_move(claim.request, MoveKind.REBUILD, uuid_of("the next migration"))
    host.tracker.confirm_move(uuid_of("the next migration"))
    assert host.tracker.claims()[claim.consumer].cells == claim.cells


def test_other_page_sizes_at_the_destination_refuse_a_live_migration(tmp_path: Path, nested: bool) -> None:
    """Scenario 67: the guest's memory is in pages of 1 GiB, the destination has only those of 2 MiB."""
    cells = tuple(replace(each, pages={2048: 4096}) for each in CELLS)
    with Pair(tmp_path, nested, cells=cells) as hosts:
        old = hosts.a.claim(2, 2048, hw_cpu_policy="dedicated", hw_mem_page_size="large")
        assert old.cells[0].page_kib == 1048576
        with pytest.raises(UsageError, match="a live migration keeps the size of the guest's pages"):
            hosts.b.tracker.begin_move(old.request, MoveKind.LIVE_MIGRATE, MIGRATION)
        exact = ask(2, 2048, consumer=old.consumer, hw_cpu_policy="dedicated", hw_mem_page_size="1GB")
        with pytest.raises(DoesNotFit, match="host cell 0 has 0 pages of 1048576 KiB free"):
            hosts.b.tracker.begin_move(exact, MoveKind.LIVE_MIGRATE, MIGRATION)
        hosts.learn()
        assert hosts.a.tracker.claims() == {old.consumer: old}
        assert hosts.b.tracker.claims() == {}
        cold = hosts.b.tracker.begin_move(old.request, MoveKind.COLD_MIGRATE, MIGRATION).move
        assert cold.new is not None and cold.new.cells[0].page_kib == 2048


def test_a_device_is_chosen_on_the_guests_new_node(tmp_path: Path, nested: bool) -> None:
    """Scenario 68: SR-IOV with NUMA; at the destination only the other cell has room for the CPUs."""
    with Pair(tmp_path, nested, nics=NICS) as hosts:
        hosts.a.driver.change(nics=NICS)
        hosts.a.look()
        specs = {"hw_cpu_policy": "dedicated", "resources_NIC:SRIOV_NET_VF": "1"}
        old = hosts.a.claim(4, 1024, **specs)
        assert [each.host_cell for each in old.cells] == [0]
        assert vf(old) == "0000:01:02.0"
        hosts.b.claim(3, 1024, hw_cpu_policy="dedicated")
        move = hosts.b.tracker.begin_move(old.request, MoveKind.LIVE_MIGRATE, MIGRATION).move
        assert move.new is not None
        assert [each.host_cell for each in move.new.cells] == [1]
        assert vf(move.new) == "0000:11:02.0"
        hosts.b.tracker.revert_move(MIGRATION)
        hosts.learn()
        assert hosts.a.tracker.claim_of(old.consumer) == old
        for each in (hosts.a, hosts.b):
            each.check()


def vf(claim: Claim) -> str:
    (found,) = (unit for classes in claim.units.values() for unit in classes.get("SRIOV_NET_VF", ()))
    return found


def test_cpus_go_to_the_cell_that_has_the_devices(tmp_path: Path, nested: bool) -> None:
    with NumaHost(tmp_path, report_numa=nested, nics=NICS[1:]) as host:
        claim = host.claim(2, 1024, hw_cpu_policy="dedicated", **{"resources_NIC:SRIOV_NET_VF": "1"})
        assert [each.host_cell for each in claim.cells] == [1]
        host.claim(4, 1024, hw_cpu_policy="dedicated", hw_cpu_thread_policy="prefer")
        far = host.claim(4, 1024, hw_cpu_policy="dedicated", **{"resources_NIC:SRIOV_NET_VF": "1"})
        assert [each.host_cell for each in far.cells] == [1], "the device pulls the guest over"
        host.check()


def test_what_was_released_is_free_at_once_whatever_was_read_before(host: NumaHost) -> None:
    """A pass that does not read the tree again does not bring back who held what when it was read."""
    everything = {"hw_numa_nodes": "2", "hw_cpu_policy": "dedicated"}
    claim = host.claim(12, 4096, **everything)
    host.look(verify=True)
    host.tracker.release(claim.consumer)
    host.driver.change(disk_gb=50)
    host.look()
    assert host.tracker.view.in_use() == {}
    assert host.tracker.explain(ask(12, 4096, **everything)).fits


def test_placement_itself_answers_what_is_near_what_by_the_cells_that_are_reported(tmp_path: Path) -> None:
    """A scheduler's same_subtree question, of CPUs and a virtual function of one cell."""
    question = (
        "/allocation_candidates?resources_C=PCPU:2,MEMORY_MB:1024&required_C=HW_NUMA_ROOT"
        "&resources_N=SRIOV_NET_VF:1&group_policy=none&same_subtree=_C,_N"
    )
    with NumaHost(tmp_path, report_numa=True, nics=NICS) as host:
        names = {each.uuid: each.name for each in host.raw.read_tree(uuid_of("node1"))}
        reply = host.tap.request("GET", question, microversion="1.36")
        found = {
            tuple(sorted(names[uuid] for uuid in each["allocations"]))
            for each in reply.body["allocation_requests"]
        }
    assert found == {(f"node1_net_eth{cell}", f"node1_numa{cell}") for cell in range(2)}


def test_a_claim_holds_the_pages_that_it_has(host: NumaHost) -> None:
    claim = host.claim(2, 4096, hw_numa_nodes="2", hw_mem_page_size="2MB")
    assert pages_held(host, claim.consumer) == {f"node1_numa{cell}_pages_2048": 1024 for cell in range(2)}
    told = ask(1, 1024, hw_mem_page_size="2MB", **{f"resources:{PAGES}": "7"})
    host.tracker.claim(told)
    assert [*pages_held(host, told.consumer).values()] == [512], "its memory says how many"
    grouped = ask(1, 1024, hw_mem_page_size="2MB", **{f"resources_P:{PAGES}": "7"})
    host.tracker.claim(grouped)
    assert [*pages_held(host, grouped.consumer).values()] == [512]
    assert pages_held(host, host.claim(1, 1024, hw_mem_page_size="small").consumer) == {}


def test_pages_that_somebody_else_holds_in_placement_are_given_to_nobody(host: NumaHost) -> None:
    """Beside those that guests without a claim use, of which placement knows nothing."""
    running = (UsedMemory(0, 1024, 2048, 0), UsedMemory(1, 1024, 2048, 1))
    host.driver.change(guests=(Guest(uuid_of("guest"), "guest", GuestState.RUNNING, {}, memory=running),))
    for number in range(2):
        stranger = uuid_of(f"stranger {number}")
        host.schedule(stranger, **{f"node1_numa{number}_pages_2048": {PAGES: 1000}})
    host.look(verify=True)
    with pytest.raises(DoesNotFit, match="has 536 pages of 2048 KiB free, 1074 MiB asked"):
        host.claim(1, 1074, hw_mem_page_size="2MB")
    mine = host.claim(1, 1072, hw_mem_page_size="2MB")
    other = host.claim(1, 1072, hw_mem_page_size="2MB")
    assert {each.cells[0].host_cell for each in (mine, other)} == {0, 1}
    with pytest.raises(DoesNotFit, match="has 0 pages of 2048 KiB free"):
        host.claim(1, 2, hw_mem_page_size="2MB")
    assert host.claim(1, 512, hw_mem_page_size="any").cells[0].page_kib == 4


def test_pages_that_a_guest_uses_and_holds_in_placement_count_once(host: NumaHost) -> None:
    """Its scheduler wrote what it holds, and nobody claimed for it yet."""
    consumer, memory = uuid_of("guest"), tuple(UsedMemory(cell, 2048, 2048, cell) for cell in range(2))
    host.schedule(consumer, **{f"node1_numa{cell}_pages_2048": {PAGES: 1024} for cell in range(2)})
    host.driver.change(guests=(Guest(consumer, "guest", GuestState.RUNNING, {}, memory=memory),))
    host.look(verify=True)
    for _ in range(2):
        host.claim(1, 2048, hw_mem_page_size="2MB")
    with pytest.raises(DoesNotFit, match="has 0 pages of 2048 KiB"):
        host.claim(1, 2, hw_mem_page_size="2MB")


def test_pages_claimed_by_name_are_given_to_nobody_beside_what_guests_use(host: NumaHost) -> None:
    memory = tuple(UsedMemory(cell, 1024, 2048, cell) for cell in range(2))
    host.driver.change(guests=(Guest(uuid_of("guest"), "guest", GuestState.RUNNING, {}, memory=memory),))
    host.look()
    named = host.tracker.claim(ask(1, 1024, **{f"resources:{PAGES}": "1024"})).claim
    assert [*pages_held(host, named.consumer).values()] == [1024]
    assert host.claim(1, 3072, hw_mem_page_size="2MB")
    with pytest.raises(DoesNotFit, match="has 512 pages of 2048 KiB free, 1026 MiB asked"):
        host.claim(1, 1026, hw_mem_page_size="2MB")
    host.claim(1, 1024, hw_mem_page_size="2MB")


@pytest.mark.parametrize("told", [True, False])
def test_an_allocation_is_adopted_with_its_pages_or_without(tmp_path: Path, *, told: bool) -> None:
    """A scheduler that knows nothing of pages asks for none; those on the cell are the claim's all the same,
    and whether cells are reported or not, it holds what it held.
    """
    pages = {"node1_numa1_pages_2048": {PAGES: 512}} if told else {}
    with NumaHost(tmp_path) as host:
        request = ask(1, 1024, hw_mem_page_size="large" if told else "2MB")
        host.schedule(request.consumer, node1={"VCPU": 1, "MEMORY_MB": 1024}, **pages)
        claim = host.tracker.claim(request).claim
        cell = 1 if told else 0
        assert (claim.adopted, claim.cells[0].page_kib, claim.cells[0].host_cell) == (True, 2048, cell)
        for nested in (True, False):
            host.driver.change(report_numa=nested)
            host.look()
            expected = {on(host, cell): {"VCPU": 1, "MEMORY_MB": 1024}, **pages}
            assert host.placed(claim.consumer) == expected
        others = [host.claim(1, size, hw_mem_page_size="2MB") for size in (4096, 3072)]
        assert [each.cells[0].host_cell for each in others] == [1 - cell, cell]
        with pytest.raises(DoesNotFit, match="pages of 2048 KiB free"):
            host.claim(1, 1024, hw_mem_page_size="2MB")
        assert host.tracker.release(claim.consumer)
        host.claim(1, 1024, hw_mem_page_size="2MB")


@pytest.mark.parametrize("pages", [511, 1024])
def test_pages_that_are_too_few_or_elsewhere_are_not_adopted(
    host: NumaHost, nested: bool, pages: int
) -> None:
    request = ask(2, 2048, hw_numa_nodes="2", hw_mem_page_size="2MB")
    amounts = {"VCPU": 1, "MEMORY_MB": 1024} if nested else {"VCPU": 2, "MEMORY_MB": 2048}
    own = {on(host, number): amounts for number in range(2)}
    host.schedule(request.consumer, **own, node1_numa1_pages_2048={PAGES: pages})
    with pytest.raises(DoesNotFit, match="has 0 pages of 2048 KiB free"):
        host.tracker.claim(request)


@pytest.mark.parametrize("left", [100, 0])
def test_fewer_pages_than_are_held(host: NumaHost, left: int) -> None:
    """After a boot, or a word to the kernel: who has them keeps them, may move away, and nobody gets more."""
    claim = host.claim(2, 2048, hw_numa_nodes="2", hw_mem_page_size="2MB")
    before = host.placed(claim.consumer)
    fewer = tuple(replace(each, pages={2048: left, 1048576: 4}) for each in CELLS)
    for nested in (True, False):
        host.driver.change(cells=fewer, report_numa=nested)
        host.look()
        assert sum(pages_held(host, claim.consumer).values()) == 1024
        assert host.tracker.claim_of(claim.consumer) is not None
        with pytest.raises(DoesNotFit, match="has 0 pages of 2048 KiB"):
            host.claim(1, 2, hw_mem_page_size="2MB")
    smaller = ask(1, 1024, consumer=claim.consumer, hw_mem_page_size="small")
    host.tracker.begin_move(smaller, MoveKind.RESIZE, MIGRATION)
    host.tracker.revert_move(MIGRATION)
    host.driver.change(cells=CELLS, report_numa=on(host, 0) in before)
    host.look()
    assert pages_held(host, claim.consumer) == {
        name: amounts[PAGES] for name, amounts in before.items() if PAGES in amounts
    }


def pages_held(host: NumaHost, consumer: str) -> dict[str, int]:
    """{provider name: how many pages of 2 MiB}"""
    return {name: each[PAGES] for name, each in host.placed(consumer).items() if PAGES in each}


def test_a_cell_says_of_which_sizes_it_has_pages(tmp_path: Path) -> None:
    """A scheduler then asks no cell that has none."""
    cells = (replace(CELLS[0], pages={2048: 8, 1048576: 0}), CELLS[1])
    question = "/allocation_candidates?resources_C=PCPU:2&required_C=CUSTOM_HUGEPAGES_{}KIB"
    with NumaHost(tmp_path, report_numa=True, cells=cells) as host:
        names = {each.uuid: each.name for each in host.raw.read_tree(uuid_of("node1"))}
        for size, expected in ((2048, ["node1_numa0", "node1_numa1"]), (1048576, ["node1_numa1"])):
            reply = host.tap.request("GET", question.format(size), microversion="1.36")
            found = [
                names[uuid] for each in reply.body["allocation_requests"] for uuid in each["allocations"]
            ]
            assert sorted(found) == expected
