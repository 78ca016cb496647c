"""Guests with cells in any order of claims, resizes, releases, restarts and guests of others, on a host that
reports its cells and on a flat one: nothing is given twice, and all of it comes back.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from kits.numa import NICS, NumaHost, ask
from kits.tracker import fast_directory, uuid_of

from agent.claims.request import ClaimRequest
from agent.driver import Guest, GuestState, UsedMemory, UsedUnit
from agent.errors import ClaimConflict, DoesNotFit, UnknownConsumer
from agent.moves.states import MoveKind

CONSUMERS = tuple(uuid_of(f"guest {number}") for number in range(5))
MIGRATIONS = tuple(uuid_of(f"migration {number}") for number in range(2))
STRANGERS = tuple(uuid_of(f"somebody's guest {number}") for number in range(2))
RUNS = 8 * int(os.environ.get("PLIMSOLL_STEPS", "1"))

consumers, migrations = st.sampled_from(CONSUMERS), st.sampled_from(MIGRATIONS)
PINNED = {"hw_cpu_policy": "dedicated"}
wishes = st.sampled_from(
    [
        (2, 1024, {}),
        (2, 2048, PINNED),
        (1, 1024, PINNED | {"hw_cpu_thread_policy": "isolate"}),
        (4, 2048, PINNED | {"hw_cpu_thread_policy": "require", "hw_mem_page_size": "large"}),
        (4, 4096, PINNED | {"hw_numa_nodes": "2", "hw_mem_page_size": "any"}),
        (3, 1024, {"hw_cpu_policy": "mixed", "hw_cpu_dedicated_mask": "1", "hw_mem_page_size": "2MB"}),
        (2, 6144, {"hw_numa_nodes": "2", "resources_NIC:SRIOV_NET_VF": "1"}),
        (2, 4096, PINNED | {"hw_mem_page_size": "1GB", "resources_NIC:SRIOV_NET_VF": "1"}),
    ]
)


class Cells(RuleBasedStateMachine):
    nested: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.directory = fast_directory()
        self.host = NumaHost(Path(self.directory.name), report_numa=self.nested, nics=NICS, reserved_mb=512)
        self.granted: dict[str, ClaimRequest] = {}

    def teardown(self) -> None:
        with self.directory, self.host:
            for migration in [m.migration for m in self.host.tracker.moves().values() if not m.ended]:
                self.host.tracker.revert_move(migration)
            for consumer in list(self.host.tracker.claims()):
                self.host.tracker.release(consumer)
            self.host.driver.change(guests=())
            self.host.look()
            self.host.check()
            for _ in range(2):
                self.host.claim(4, 4096, hw_mem_page_size="1GB", **PINNED)
            self.host.claim(4, 15360, hw_numa_nodes="2")
            self.host.claim(2, 8192, hw_numa_nodes="2", hw_mem_page_size="2MB")

    def asked(self, consumer: str, wish: tuple[int, int, dict[str, str]]) -> ClaimRequest:
        vcpus, memory_mb, specs = wish
        return ask(vcpus, memory_mb, consumer=consumer, **specs)  # type: ignore[arg-type]

    @rule(consumer=consumers, wish=wishes)
    def claim(self, consumer: str, wish: tuple[int, int, dict[str, str]]) -> None:
        request = self.asked(consumer, wish)
        told = self.host.tracker.explain(request)
        before = self.host.tracker.claims()
        try:
            claim = self.host.tracker.claim(request).claim
        except (DoesNotFit, ClaimConflict):
            assert self.host.tracker.claims() == before
        else:
            self.granted[consumer] = request
            if consumer not in before:
                assert (told.allocations, told.units, told.cells) == (
                    claim.allocations,
                    claim.units,
                    claim.cells,
                )

    @rule(consumer=consumers)
    def release(self, consumer: str) -> None:
        with suppress(UnknownConsumer, ClaimConflict):
            self.host.tracker.release(consumer)
            self.granted.pop(consumer, None)

    @precondition(lambda self: self.granted)
    @rule(data=st.data(), migration=migrations, wish=wishes)
    def resize(self, data: st.DataObject, migration: str, wish: tuple[int, int, dict[str, str]]) -> None:
        consumer = data.draw(st.sampled_from(sorted(self.granted)))
        before = self.host.tracker.claims()
        try:
            move = self.host.tracker.begin_move(self.asked(consumer, wish), MoveKind.RESIZE, migration).move
        except (DoesNotFit, ClaimConflict):
            assert self.host.tracker.claims() == before
        else:
            claims = self.host.tracker.claims()
            assert move.new is not None
            assert (claims[migration].cells, claims[consumer].cells) == (move.old.cells, move.new.cells)

    @rule(migration=migrations, back=st.booleans())
    def end(self, migration: str, back: bool) -> None:
        tracker = self.host.tracker
        with suppress(UnknownConsumer, ClaimConflict):
            move = (tracker.revert_move if back else tracker.confirm_move)(migration)
            kept = move.old if move.state == "reverted" else move.new
            assert kept is not None
            if move.instance in self.granted and self.host.tracker.claim_of(move.instance) == kept:
                self.granted[move.instance] = kept.request

    @rule(stranger=st.sampled_from(STRANGERS), cpu=st.sampled_from([2, 5, 10, 13]), here=st.booleans())
    def somebodys_guest(self, stranger: str, cpu: int, here: bool) -> None:
        """It is pinned to a CPU that nobody claimed, or it is gone."""
        others = [each for each in self.host.driver.host.guests if each.uuid != stranger]
        taken = {unit.unit for each in others for unit in each.units}
        for claim in self.host.tracker.claims().values():
            taken |= {unit for classes in claim.units.values() for unit in classes.get("PCPU", ())}
        if here and str(cpu) not in taken:
            where = f"numa:{cpu // 8}" if self.nested else "host"
            units = (UsedUnit("PCPU", str(cpu), where),)
            memory = (UsedMemory(cpu // 8, 1024, 1048576),) if self.room(cpu // 8) else ()
            others.append(Guest(stranger, "guest", GuestState.RUNNING, {"PCPU": 1}, units, memory=memory))
        self.host.driver.change(guests=tuple(others))
        self.host.look()

    def room(self, cell: int) -> bool:
        return not any(
            placed.host_cell == cell and placed.page_kib == 1048576
            for claim in self.host.tracker.claims().values()
            for placed in claim.cells
        )

    @rule()
    def restart(self) -> None:
        before = (self.host.tracker.claims(), self.host.tracker.moves())
        self.host.restart()
        assert (self.host.tracker.claims(), self.host.tracker.moves()) == before

    @rule()
    def look_again(self) -> None:
        self.host.look(verify=True)

    @invariant()
    def everything_adds_up(self) -> None:
        self.host.check()
        claims = self.host.tracker.claims()
        guests = {unit.unit: each.uuid for each in self.host.driver.host.guests for unit in each.units}
        for consumer, claim in claims.items():
            units = {unit for classes in claim.units.values() for unit in classes.get("PCPU", ())}
            assert not units & guests.keys(), (consumer, units, guests)
        pages = {0: 4, 1: 4}
        for guest in self.host.driver.host.guests:
            for memory in guest.memory:
                pages[memory.cell] -= 1
        for claim in claims.values():
            for placed in claim.cells:
                if placed.page_kib == 1048576:
                    pages[placed.host_cell] -= placed.memory_mb // 1024
        assert min(pages.values()) >= 0


class NestedCells(Cells):
    nested = True


def runs(number: int) -> settings:
    return settings(
        max_examples=number,
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


TestCells: Any = Cells.TestCase
TestCells.settings = runs(RUNS)
TestNestedCells: Any = NestedCells.TestCase
TestNestedCells.settings = runs(RUNS)
