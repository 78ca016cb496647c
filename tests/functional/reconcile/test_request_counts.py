"""What each thing costs placement, counted at the transport of a whole agent. docs/scale.md has the table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from kits.agent import World, opened, request, told
from kits.placements import Placement
from kits.tracker import fast_directory

from agent.claims.claim import ClaimState
from agent.errors import DoesNotFit, PlacementUnavailable
from agent.moves.states import MoveKind, MoveState
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.status.overview import HostState
from drivers.fake.host import Gpu

MIGRATION = "5a1f0f4c-8f52-4b7e-9a68-0f1f7d3f8c11"


class Counted:
    """A reported host whose agent's requests are counted."""

    def __init__(self, placement: Placement, directory: Path) -> None:
        self.world: World = opened(told(directory, placement))
        self.agent = self.world.agent
        self.operations = self.world.operations
        self.calls = self.world.wire.calls
        self.raw = PlacementClient(self.world.wire.inner)

    def taken(self) -> list[str]:
        """The requests since the last time."""
        calls, self.calls[:] = list(self.calls), []
        return calls

    def lose(self, lost: str) -> None:
        """The answer to the next such request."""

        def gone() -> None:
            raise PlacementUnavailable("Placement's answer was lost.")

        self.world.wire.once(lost, gone, after=True)

    def look(self, why: str = "an event") -> list[str]:
        self.taken()
        self.agent.reconcile(why)
        assert self.agent.condition.state is HostState.READY, self.agent.condition.fault
        return self.taken()


@pytest.fixture
def host(placement: Placement, tmp_path: Path) -> Iterator[Counted]:
    counted = Counted(placement, tmp_path)
    with closing(counted.world):
        counted.look("the start")
        yield counted


def writes(calls: list[str]) -> list[str]:
    return [call for call in calls if not call.startswith("GET")]


NAMES = ("resource_classes/CUSTOM_HUGEPAGES_", "traits/CUSTOM_PHYSNET_")
"""Where the names of the host's own begin."""


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("cards", [0, 30])
def test_the_first_report_is_at_most_three_requests_a_provider_and_two(
    placement: Placement, cards: int, tmp_path: Path, *, first: bool
) -> None:
    """Names that nobody in the fleet had before are made once, by its first host."""
    counted = Counted(placement, tmp_path)
    with closing(counted.world):
        counted.world.driver.change(gpus=tuple(Gpu(f"0000:{n:02x}:00.0", "VGPU", 4) for n in range(cards)))
        if not first:
            for size in (2048, 1048576):
                counted.raw.ensure_resource_class(f"CUSTOM_HUGEPAGES_{size}KIB")
            for number in range(2):
                counted.raw.ensure_trait(f"CUSTOM_PHYSNET_PHYSNET{number}")
            counted.raw.ensure_trait("CUSTOM_OWNER_PLIMSOLL")
        calls = counted.look("the start")
        made = [call for call in calls if call.startswith(tuple(f"PUT /{name}" for name in NAMES))]
        assert len(made) == (4 if first else 0)
        once = len(made) + 1 if made else 0  # and the request that placement refused without them
        assert len(calls) - once <= 3 * len(counted.operations.tree()[0]) + 2
        assert calls.count("POST /reshaper") == 1


def test_a_pass_with_nothing_new_is_none(host: Counted) -> None:
    """Scenario 19: with claims, and after them, too."""
    host.operations.claim(request(VCPU=1))
    assert [host.look("its interval") for _ in range(5)] == [[]] * 5


def test_a_verification_with_nothing_new_is_one_and_one_for_what_is_in_use(host: Counted) -> None:
    """A deleted allocation raises no generation: the usages of the whole tree show it, in one request."""
    host.agent.verify()
    host.taken()
    host.agent.verify()
    assert host.taken() == ["GET /resource_providers"], "nobody is here"
    for _ in range(3):
        host.operations.claim(request(VCPU=1, SRIOV_NET_VF=1))
    host.agent.verify()
    host.taken()
    for _ in range(3):
        host.agent.verify()
        assert host.taken() == ["GET /resource_providers", "GET /allocation_candidates"]


def test_an_audit_on_its_schedule_reads_who_is_on_each_provider_and_four_consumers(host: Counted) -> None:
    """Placement raises no generation for an allocation that is deleted: who is there has to be read."""
    for _ in range(6):
        host.operations.claim(request(VCPU=1))
    host.agent.verify()
    providers = {each.uuid for each in host.operations.tree()[0]}
    host.agent.run_audit()  # the first one reads twice
    seen = []
    for _ in range(3):
        host.taken()
        host.agent.run_audit()
        first, *calls = host.taken()
        assert first == "GET /resource_providers"
        on = {f"GET /resource_providers/{uuid}/allocations" for uuid in providers}
        assert set(calls[: len(on)]) == on
        seen.append(calls[len(on) :])
    assert [len(each) for each in seen] == [4, 2, 4]
    assert len({*seen[0], *seen[1]}) == 6


def test_one_inventory_changed_is_one(host: Counted) -> None:
    """Scenario 20."""
    host.world.driver.change(disk_gb=4321)
    (call,) = host.look()
    assert call.startswith("PUT /resource_providers/") and call.endswith("/inventories")


def test_a_claim_in_between_costs_a_retry_on_that_provider_only(host: Counted) -> None:
    """Scenario 28: one refused write, three reads of that provider and who is on it, one write."""
    (root,) = host.operations.tree()[0].roots
    host.operations.claim(request(VCPU=1))
    host.world.driver.change(disk_gb=4321)
    calls = host.look()
    here = f"/resource_providers/{root.uuid}"
    assert calls == [
        f"PUT {here}/inventories",
        *(f"GET {here}/{what}" for what in ("inventories", "traits", "aggregates")),
        f"PUT {here}/inventories",
        f"GET {here}/allocations",
    ]


def test_a_claim_is_one_write(host: Counted) -> None:
    asked = request(VCPU=2, MEMORY_MB=64, PGPU=1)
    host.taken()
    host.operations.claim(asked)
    assert host.taken() == [f"PUT /allocations/{asked.consumer}"]
    host.operations.claim(asked)
    assert host.taken() == [f"GET /allocations/{asked.consumer}"], "asked again: is it still held?"


def test_a_claim_that_a_scheduler_wrote_is_one_refused_write_and_one_read(host: Counted) -> None:
    asked = request(VCPU=2)
    host.raw.write_allocations(
        ConsumerAllocations(asked.consumer, host.operations.explain(asked).allocations)
    )
    host.taken()
    assert host.operations.claim(asked).adopted
    path = f"/allocations/{asked.consumer}"
    assert host.taken() == [f"PUT {path}", f"GET {path}"]


def test_a_claim_that_somebody_was_faster_than_is_one_refused_write_and_one_read(host: Counted) -> None:
    (root,) = host.operations.tree()[0].roots
    total = root.inventories["DISK_GB"].capacity
    other, asked = request(DISK_GB=total), request(DISK_GB=1)
    host.raw.write_allocations(ConsumerAllocations(other.consumer, {root.uuid: {"DISK_GB": total}}))
    host.taken()
    with pytest.raises(DoesNotFit):
        host.operations.claim(asked)
    assert host.taken() == [
        f"PUT /allocations/{asked.consumer}",
        f"GET /resource_providers/{root.uuid}/allocations",
    ]


def test_only_the_provider_that_placement_calls_full_is_read_of_all_that_a_claim_is_on(host: Counted) -> None:
    (root,) = host.operations.tree()[0].roots
    other, asked = request(PGPU=1), request(VCPU=1, DISK_GB=1, PGPU=1)
    foreseen = host.operations.explain(asked).allocations
    (card,) = foreseen.keys() - {root.uuid}
    host.raw.write_allocations(ConsumerAllocations(other.consumer, {card: {"PGPU": 1}}))
    host.taken()
    with pytest.raises(DoesNotFit, match="1 PGPU asked, 0 free"):
        host.operations.claim(asked)
    assert host.taken() == [
        f"PUT /allocations/{asked.consumer}",
        f"GET /resource_providers/{card}/allocations",
    ]


def test_a_claim_whose_answer_is_lost_is_one_write_and_one_read(host: Counted) -> None:
    asked = request(VCPU=2)
    path = f"/allocations/{asked.consumer}"
    host.lose(f"PUT {path}")
    host.taken()
    assert host.operations.claim(asked).state is ClaimState.CLAIMED
    assert host.taken() == [f"PUT {path}", f"GET {path}"]


def test_a_release_is_one_read_and_one_write(host: Counted) -> None:
    asked = request(VCPU=2)
    host.operations.claim(asked)
    host.taken()
    host.operations.release(asked.consumer)
    assert host.taken() == [f"GET /allocations/{asked.consumer}", f"PUT /allocations/{asked.consumer}"]


@pytest.mark.parametrize("end", ["confirm", "revert"])
def test_the_swap_of_a_move_is_one_write_and_so_is_its_end(host: Counted, end: str) -> None:
    asked = request(VCPU=2, MEMORY_MB=64)
    host.operations.claim(asked)
    host.taken()
    grown = replace(request(VCPU=3, MEMORY_MB=64), consumer=asked.consumer)
    assert host.operations.begin_move(MoveKind.RESIZE, MIGRATION, grown).state is MoveState.BEGUN
    calls = host.taken()
    assert writes(calls) == ["POST /allocations"] and len(calls) <= 3
    getattr(host.operations, f"{end}_move")(MIGRATION, None)
    calls = host.taken()
    assert len(writes(calls)) == 1 and len(calls) <= 3


def test_a_reshape_costs_the_same_for_any_number_of_its_own_consumers(placement: Placement) -> None:
    """Each of them is read once, whole: another client may have made it anew with more in it."""
    costs = []
    for number in (1, 12):
        with fast_directory() as directory:
            counted = Counted(placement.anew(Path(directory)), Path(directory))
            with closing(counted.world):
                counted.world.driver.change(flat_devices=True, gpus=(Gpu("0000:83:00.0", "VGPU", 16),))
                counted.look("the start")
                for _ in range(number):
                    counted.operations.claim(request(VGPU=1, VCPU=1))
                counted.world.driver.change(flat_devices=False)
                calls = counted.look()
                counted.world.driver.change(flat_devices=True)
                back = counted.look()
                costs.append((len(calls) - number, len(back) - number))
                for each in (calls, back):
                    assert each.count("POST /reshaper") == 1
                    assert len([call for call in each if call.startswith("GET /allocations/")]) == number
    assert costs[0] == costs[1]


def test_a_reshape_reads_a_consumer_that_somebody_else_wrote_to_since(host: Counted) -> None:
    """What Placement holds is believed, not the journal."""
    host.world.driver.change(flat_devices=True, gpus=(Gpu("0000:83:00.0", "VGPU", 16),))
    host.look()
    asked = request(VGPU=2, VCPU=1)
    host.operations.claim(asked)
    held = host.raw.allocations_of(asked.consumer)
    (root,) = held.allocations
    host.raw.write_allocations(replace(held, project_id="other"))
    host.world.driver.change(flat_devices=False)
    calls = host.look()
    assert f"GET /allocations/{asked.consumer}" in calls and calls.count("POST /reshaper") == 1
    now = host.raw.allocations_of(asked.consumer)
    assert now.project_id == "other" and now.allocations[root] == {"VCPU": 1}
    assert [amounts for uuid, amounts in now.allocations.items() if uuid != root] == [{"VGPU": 2}]


def test_a_note_is_one_request_and_one_in_all_where_placement_takes_none(host: Counted) -> None:
    host.taken()
    kept = 2 if host.raw.hosts() is not None else 0
    for _ in range(3):
        host.agent.leave_note()
    assert len(host.taken()) == 1 + kept
    assert host.agent.condition.state is HostState.READY
