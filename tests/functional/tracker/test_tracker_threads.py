"""Sixteen clients at once: exactly what there is, is granted, and every unit once."""

from __future__ import annotations

import random
import threading
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from kits.placements import Placement
from kits.tracker import Kit, request, uuid_of

from agent.claims.claim import ClaimState
from agent.claims.request import ClaimRequest
from agent.errors import DoesNotFit, PlacementConflict, PlacementFull

CLIENTS = 16


def run_all(work: list[list[ClaimRequest]], kit: Kit) -> list[object]:
    """Each client makes its claims one after the other; what each was answered."""
    answers: list[object] = []
    start = threading.Barrier(len(work))

    def client(asked: list[ClaimRequest]) -> None:
        start.wait(20)
        for each in asked:
            try:
                answers.append(kit.tracker.claim(each).claim)
            except DoesNotFit as error:
                answers.append(error)

    threads = [threading.Thread(target=client, args=(asked,)) for asked in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return answers


def test_exactly_the_capacity_is_granted(tmp_path: Path, placement: Placement) -> None:
    """Scenario 35, sixteenfold: 16 x 8 claims for 4096 MiB in pieces of 64, and for 4 pinned CPUs."""
    with Kit(tmp_path, placement=placement) as kit:
        memory = [[request(MEMORY_MB=64) for _ in range(8)] for _ in range(CLIENTS - 4)]
        cpus = [[request(PCPU=1, MEMORY_MB=64) for _ in range(8)] for _ in range(4)]
        answers = run_all(memory + cpus, kit)
        assert len(answers) == 8 * CLIENTS
        assert len(kit.tracker.claims()) == 4096 // 64
        assert kit.used("host", "MEMORY_MB") == 4096
        assert {claim.state for claim in kit.tracker.claims().values()} == {ClaimState.CLAIMED}
        kit.check()
        kit.restart()
        kit.check()


def test_one_claim_made_by_all_clients_at_once_is_one_claim(tmp_path: Path, placement: Placement) -> None:
    with Kit(tmp_path, placement=placement) as kit:
        asked = request(PCPU=2, SRIOV_NET_VF=1)
        answers = run_all([[asked]] * CLIENTS, kit)
        assert len(answers) == CLIENTS
        assert all(each == answers[0] for each in answers)
        assert kit.placed_all() == {asked.consumer: {"host": {"PCPU": 2}, "nic0": {"SRIOV_NET_VF": 1}}}
        kit.check()


def test_claims_and_releases_and_another_writer_never_give_a_unit_twice(
    tmp_path: Path, placement: Placement
) -> None:
    """Each client claims and releases what it got; beside them somebody takes and frees VGPUs directly."""
    with Kit(tmp_path, placement=placement) as kit:
        stop = threading.Event()
        owners: dict[str, str] = {}
        failures: list[str] = []

        def client(seed: int) -> None:
            dice = random.Random(seed)
            for _ in range(6):
                asked = request(PCPU=dice.randint(1, 2), VGPU=dice.randint(1, 3))
                try:
                    claim = kit.tracker.claim(asked).claim
                except DoesNotFit:
                    continue
                for unit in claim.units[uuid_of("host")]["PCPU"]:
                    if owners.setdefault(unit, claim.consumer) != claim.consumer:
                        failures.append(unit)
                for unit in claim.units[uuid_of("host")]["PCPU"]:
                    del owners[unit]
                assert kit.tracker.release(claim.consumer)

        def other() -> None:
            while not stop.is_set():
                consumer = str(uuid4())
                with suppress(PlacementFull, PlacementConflict):
                    kit.schedule(consumer, gpu0={"VGPU": 1})
                kit.raw.delete_allocations(consumer)

        meddler = threading.Thread(target=other)
        threads = [threading.Thread(target=client, args=(seed,)) for seed in range(CLIENTS)]
        meddler.start()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        stop.set()
        meddler.join(20)
        assert (failures, owners, kit.placed_all()) == ([], {}, {})
        assert kit.tracker.claims() == {}
