"""An offered repair, carried out at once on an unchanged host, is not refused.

Hosts, claims, guests and the writes of other clients are drawn. The law is docs/audit.md's: what does not fit
has its shortfalls in the finding, and no repair.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from kits.agent import World, request, told, world_of
from kits.examples import examples
from kits.placements import Placement, usual_placement
from kits.tracker import fast_directory

from agent.claims.request import ClaimRequest, RequestGroup
from agent.driver import Guest, GuestState, UsedUnit
from agent.errors import PlimsollError
from agent.moves.states import MoveKind
from agent.placement.client import ConsumerAllocations, PlacementClient
from drivers.fake.host import cell

SMALL = {
    "disk_gb": 40,
    "report_numa": False,
    "cells": [{"id": 0, "cpus": "0-7", "memory_mb": 8192}],
    "gpus": [
        {"address": "0000:42:00.0", "resource_class": "VGPU", "total": 2},
        {"address": "0000:83:00.0", "resource_class": "PGPU", "total": 1, "units": ["0000:83:00.0"]},
        {"address": "0000:84:00.0", "types": {"CUSTOM_VA": 4, "CUSTOM_VB": 2}},
    ],
    "nics": [
        {
            "ifname": "e0",
            "address": "0000:41:00.0",
            "physical_network": "p0",
            "vfs": ["0000:41:02.0", "0000:41:02.1"],
        }
    ],
    "guests": [],
}
OPTIONS = """reserved_host_memory_mb = 0
[compute]
cpu_dedicated_set = 4-7
cpu_shared_set = 0-3
[fake]
host_file = {}
"""
DEVICE_OF = {
    **{("SRIOV_NET_VF", f"0000:41:02.{number}"): "pci:0000:41:00.0" for number in range(2)},
    **{("PCPU", str(number)): "host" for number in range(4, 8)},
    **{("CUSTOM_VB", f"0000:84:00.0/{number}"): "pci:0000:84:00.0" for number in range(2)},
    ("CUSTOM_VA", "0000:84:00.0/2"): "pci:0000:84:00.0",
    ("PGPU", "0000:83:00.0"): "pci:0000:83:00.0",
}
CONSUMERS = [str(UUID(int=number)) for number in range(1, 7)]


class Drawn:
    """A world in which a seed draws what happens; what is refused did not happen."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.draw = world, random.Random(seed)
        self.client = PlacementClient(world.wire)
        self.names = {provider.name: provider.uuid for provider in world.operations.providers()}

    def happens(self) -> None:
        steps = (
            *(self.claims, self.claims, self.guest_runs, self.guest_runs, self.guest_runs, self.stranger),
            *(self.deletes, self.deletes, self.rewrites, self.schedules, self.schedules, self.shrinks),
            *(self.passes, self.moves, self.ends),
        )
        with suppress(PlimsollError):
            self.draw.choice(steps)(self.draw.choice(CONSUMERS))

    def claims(self, who: str) -> None:
        asked = {"VCPU": self.draw.choice((1, 2)), "MEMORY_MB": self.draw.choice((512, 2048, 6000))}
        classes = ("SRIOV_NET_VF", "PGPU", "PCPU", "CUSTOM_VB", "VGPU", "DISK_GB")
        for name in self.draw.sample(classes, self.draw.choice((0, 1, 2))):
            asked[name] = self.draw.choice((1, 2))
        self.world.operations.claim(ClaimRequest(who, (RequestGroup("", asked),)))

    def guest_runs(self, who: str) -> None:
        """With what is claimed for it, and often with something else."""
        claim = self.world.operations.tracker.claims()[who]
        units = [(name, unit) for _, name, unit in claim.exact]
        if units and self.draw.random() < 0.3:
            units.pop()
        units += [unit for unit in self._some_units() if unit not in units]
        rest = {name: n for name, n in claim.request.resources.items() if all(name != of for of, _ in units)}
        if self.draw.random() < 0.5:
            rest |= {"VCPU": self.draw.choice((1, 6, 30)), "MEMORY_MB": self.draw.choice((512, 4096, 7000))}
        state = self.draw.choice((GuestState.RUNNING, GuestState.RUNNING, GuestState.SHUTOFF))
        self._add(who, state, rest, units)

    def stranger(self, who: str) -> None:
        amounts = {"VCPU": self.draw.choice((1, 2, 30)), "MEMORY_MB": self.draw.choice((512, 4096, 7000))}
        if self.draw.random() < 0.2:
            amounts["VGPU"] = self.draw.choice((1, 3))
        self._add(who, GuestState.RUNNING, amounts, self._some_units())

    def _some_units(self) -> list[tuple[str, str]]:
        return self.draw.sample(sorted(DEVICE_OF), self.draw.choice((0, 0, 1, 1, 2)))

    def _add(
        self, who: str, state: GuestState, amounts: dict[str, int], units: list[tuple[str, str]]
    ) -> None:
        names = [name for name, _ in units]
        resources = {**amounts, **{name: names.count(name) for name in names}}
        used = tuple(UsedUnit(name, unit, DEVICE_OF.get((name, unit), "host")) for name, unit in units)
        self.world.driver.add_guest(Guest(who, f"n{who[-1]}", state, resources, used))

    def deletes(self, who: str) -> None:
        self.client.delete_allocations(who)

    def rewrites(self, who: str) -> None:
        held = self.client.allocations_of(who)
        allocations = {
            uuid: {name: max(1, amount + self.draw.choice((-1, 0, 1))) for name, amount in amounts.items()}
            for uuid, amounts in held.allocations.items()
        }
        self.client.write_allocations(replace(held, allocations=allocations))

    def schedules(self, who: str) -> None:
        """Another client, or an agent whose record is lost."""
        if self.client.allocations_of(who).allocations:
            return
        amounts = {"VCPU": self.draw.choice((1, 4)), "MEMORY_MB": self.draw.choice((512, 4000, 8000))}
        allocations = {self.names["node1"]: amounts}
        if self.draw.random() < 0.4:
            allocations[self.names["node1_pci_0000:83:00.0"]] = {"PGPU": 1}
        owner = self.draw.choice((("plimsoll", "plimsoll"), ("demo", "admin")))
        self.client.write_allocations(ConsumerAllocations(who, allocations, None, *owner, "INSTANCE"))

    def shrinks(self, who: str) -> None:
        cpus, memory_mb = self.draw.choice((6, 8)), self.draw.choice((4096, 8192))
        self.world.driver.change(
            disk_gb=self.draw.choice((10, 40)), cells=(cell(0, frozenset(range(cpus)), memory_mb),)
        )

    def passes(self, who: str) -> None:
        self.world.agent.reconcile("a pass")

    def moves(self, who: str) -> None:
        claim = self.world.operations.tracker.claims()[who]
        smaller = RequestGroup("", {"VCPU": 1, "MEMORY_MB": 256})
        migration = str(UUID(int=100 + CONSUMERS.index(who)))
        asked = replace(claim.request, groups=(smaller,))
        self.world.operations.begin_move(MoveKind.RESIZE, migration, asked)

    def ends(self, who: str) -> None:
        for move in self.world.operations.tracker.moves().values():
            if not move.ended and move.instance == who:
                end = self.draw.choice(("confirm_move", "revert_move"))
                getattr(self.world.operations, end)(move.migration)


@pytest.fixture
def small(tmp_path: Path, placement: Placement) -> Iterator[World]:
    with closing(_started(tmp_path, placement)) as world:
        yield world


def _started(directory: Path, placement: Placement) -> World:
    host_file = directory / "host.yaml"
    host_file.write_text(json.dumps(SMALL))
    return world_of(told(directory, placement, OPTIONS.format(host_file)))


@pytest.mark.parametrize("named", [False, True])
def test_a_card_that_has_vanished_is_told_of_whether_its_units_have_names(
    tmp_path: Path, placement: Placement, named: bool
) -> None:
    """By one finding: "nothing differs" beside a status with a reason sends the operator away."""
    with closing(_started(tmp_path, placement)) as world:
        name = "PGPU" if named else "VGPU"
        consumer = world.operations.tracker.claim(request(**{name: 1})).claim.consumer
        gpus = [card for card in SMALL["gpus"] if card.get("resource_class") != name]  # type: ignore[attr-defined]
        (tmp_path / "host.yaml").write_text(json.dumps(SMALL | {"gpus": gpus}))
        world.agent.reconcile("a card was taken out")
        (finding,) = world.operations.audit(heal=True).findings
        assert finding.kind == ("vanished unit" if named else "shrunk inventory") and not finding.repair
        assert consumer in finding.reason and "Bring the device back" in finding.reason
        world.operations.tracker.release(consumer)
        world.agent.reconcile("its claim is gone")
        assert world.operations.audit(heal=False).findings == ()


def _drawn_on(directory: Path) -> World:
    return _started(directory, usual_placement(directory))


@pytest.mark.parametrize("part", range(4))
def test_no_offered_repair_is_refused(part: int) -> None:
    number = examples(90)
    for seed in range(part * number, (part + 1) * number):
        with fast_directory() as name, closing(_drawn_on(Path(name))) as world:
            drawn = Drawn(world, seed)
            for _ in range(drawn.draw.choice((2, 3, 4, 5, 6))):
                with suppress(KeyError):  # a verb of a consumer without a claim
                    drawn.happens()
            world.agent.reconcile("at last")
            report = world.operations.audit(heal=True)
            refused = {
                f"{report.findings[index].kind}: {report.findings[index].reason}": why
                for index, why in (report.failed or {}).items()
            }
            assert not refused, f"seed {seed}"


def test_a_guest_with_a_unit_of_anothers_claim_is_offered_no_claim(small: World) -> None:
    asked = request(VCPU=1, PGPU=1)
    small.operations.claim(asked)
    gpu = UsedUnit("PGPU", "0000:83:00.0", "pci:0000:83:00.0")
    thief = Guest(CONSUMERS[0], "thief", GuestState.RUNNING, {"VCPU": 1, "PGPU": 1}, (gpu,))
    small.driver.add_guest(thief)
    small.agent.reconcile("a thief")
    unclaimed, shared = small.operations.audit(heal=False).findings
    assert (unclaimed.kind, unclaimed.repair) == ("unclaimed instance", ())
    assert f"it does not fit (PGPU: 0000:83:00.0 belongs to {asked.consumer})" in unclaimed.reason
    assert shared.kind == "shared unit"
    ((_, verdict),) = small.operations.claim_running()
    assert isinstance(verdict, PlimsollError)
    advice = " ".join(small.agent.host_status.status().reasons)
    assert "take it from one of them, then claim for the guest" in advice


@pytest.mark.counts_migrations
def test_a_claim_whose_place_another_client_took_is_not_written_again(small: World) -> None:
    asked = request(VCPU=1, MEMORY_MB=6000)
    small.operations.claim(asked)
    amounts = {"VCPU": 1, "MEMORY_MB": 6000}
    small.driver.add_guest(Guest(asked.consumer, "guest", GuestState.RUNNING, amounts))
    client = PlacementClient(small.wire)
    (held,) = client.allocations_of(asked.consumer).allocations.items()
    client.delete_allocations(asked.consumer)
    other = ConsumerAllocations(CONSUMERS[0], {held[0]: {"MEMORY_MB": 4000}}, None, "demo", "admin")
    client.write_allocations(other)
    small.agent.reconcile("another took it")
    report = small.operations.audit(heal=False)
    (differs,) = (each for each in report.findings if each.kind == "amounts differ")
    assert (
        differs.repair == () and "it does not fit (MEMORY_MB: only 4192 of 8192 are free)" in differs.reason
    )
    client.delete_allocations(CONSUMERS[0])
    report = small.operations.audit(heal=True)
    assert not report.failed and client.allocations_of(asked.consumer).allocations == dict([held])
