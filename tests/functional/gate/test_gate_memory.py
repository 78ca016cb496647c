"""The gate and what no provider has: pages, memory on cells; and disks whose sizes are known late."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from kits.gate import GatedHost, domain, gated
from kits.tracker import Crash

from agent.claims.claim import Claim
from agent.claims.parse_request import claim_for_flavor, parse_flavor
from agent.claims.request import ClaimRequest
from agent.driver import Guest, GuestState, UsedMemory
from agent.errors import DoesNotFit, PlacementUnavailable, Refused
from agent.gate import gate
from agent.gate.decision import HookCall
from agent.moves.states import MoveState
from agent.placement.transport import Reply
from agent.status.overview import HostState
from drivers.fake.host import cell

LARGE_KIB = 2048
PAGES = "<memoryBacking><hugepages>{}</hugepages></memoryBacking>"
ANY_PAGES = PAGES.format("<page size='2' unit='MiB'/>")
STRICT = "<numatune><memory mode='strict' nodeset='{}'/></numatune>"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[GatedHost]:
    """Two cells of 4 GiB; 1 GiB of the first and 2 GiB of the second is in pages of 2 MiB."""
    with gated(tmp_path / "a") as found:
        cells = [
            cell(
                number,
                frozenset(range(4 * number, 4 * number + 4)),
                4096,
                pages={LARGE_KIB: 512 * (number + 1)},
            )
            for number in range(2)
        ]
        found.driver.change(cells=tuple(cells), disk_gb=100)
        found.world.agent.reconcile("cells")
        yield found


def starts(host: GatedHost, xml: str, uuid: str, *memory: UsedMemory, mib: int = 1024) -> Guest:
    vm = Guest(uuid, "vm", GuestState.RUNNING, {"VCPU": 2, "MEMORY_MB": mib}, memory=memory)
    host.starts(vm, xml)
    return vm


def by_flavor(memory_mb: int, **specs: str) -> ClaimRequest:
    told = {"vcpus": 1, "memory_mb": memory_mb, "extra_specs": specs}
    return claim_for_flavor(str(uuid4()), parse_flavor(told))


@pytest.mark.parametrize("pages", [ANY_PAGES, PAGES.format("")])
def test_pages_that_are_not_free_keep_a_guest_off(host: GatedHost, pages: str) -> None:
    told = host.refused("prepare", "begin", domain(str(uuid4()), memory_mb=4096, inside=pages))
    assert "4096 MEMORY_MB asked, 3072 free on node1" in told
    assert "1536 pages of 2048 KiB free on host cells 0, 1, 2048 asked" in told
    host.allowed("prepare", "begin", domain(str(uuid4()), memory_mb=3072, inside=pages))
    assert "0 pages" in host.refused("prepare", "begin", domain(str(uuid4()), inside=pages))


def test_pages_of_one_cell_are_counted_there(host: GatedHost) -> None:
    inside = STRICT.format(0) + ANY_PAGES
    told = host.refused("prepare", "begin", domain(str(uuid4()), memory_mb=2048, inside=inside))
    assert "512 pages of 2048 KiB free on host cell 0, 1024 asked" in told
    uuid = str(uuid4())
    starts(host, domain(uuid, inside=inside), uuid, UsedMemory(0, 1024, LARGE_KIB, 0))
    assert "0 pages" in host.refused("prepare", "begin", domain(str(uuid4()), memory_mb=2, inside=inside))
    host.allowed(
        "prepare", "begin", domain(str(uuid4()), memory_mb=2048, inside=STRICT.format("0-1") + ANY_PAGES)
    )


def test_pages_that_somebody_claimed_are_not_given_to_a_guest_nor_the_other_way_round(
    host: GatedHost,
) -> None:
    asked = by_flavor(2048, **{"hw:mem_page_size": "2MB"})
    host.world.operations.claim(asked)
    assert "512 pages" in host.refused(
        "prepare", "begin", domain(str(uuid4()), memory_mb=2048, inside=ANY_PAGES)
    )
    host.allowed("prepare", "begin", domain(str(uuid4()), inside=ANY_PAGES))
    assert not host.world.operations.explain(by_flavor(2, **{"hw:mem_page_size": "2MB"})).fits


def test_memory_that_must_be_on_a_cell_is_looked_for_there(host: GatedHost) -> None:
    told = host.refused("prepare", "begin", domain(str(uuid4()), memory_mb=3072, inside=STRICT.format(1)))
    assert "MiB free on host cell 1, 3072 asked" in told
    host.allowed("prepare", "begin", domain(str(uuid4()), memory_mb=2560, inside=STRICT.format(0)))
    assert "host cell 0" in host.refused("prepare", "begin", domain(str(uuid4()), inside=STRICT.format(0)))
    host.allowed("prepare", "begin", domain(str(uuid4()), inside=STRICT.format("0-1")))


def test_the_pages_of_a_guest_that_is_off_are_free_and_looked_for_when_it_starts_again(
    host: GatedHost,
) -> None:
    first, second = str(uuid4()), str(uuid4())
    xml = domain(first, memory_mb=3072, inside=ANY_PAGES)
    vm = starts(host, xml, first, UsedMemory(None, 3072, LARGE_KIB), mib=3072)
    assert "0 pages" in host.refused("prepare", "begin", domain(second, inside=ANY_PAGES))
    host.ends(vm, xml, defined=True)
    host.allowed("prepare", "begin", domain(second, inside=ANY_PAGES))
    assert "1024 pages" in host.refused("prepare", "begin", xml)
    host.allowed("release", "end", domain(second, inside=ANY_PAGES))
    host.allowed("prepare", "begin", xml)


def test_pages_are_kept_until_the_guest_is_seen_or_did_not_come(
    host: GatedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid = str(uuid4())
    host.driver.add_guest(Guest(uuid, "vm", GuestState.SHUTOFF, {"VCPU": 2, "MEMORY_MB": 3072}))
    host.allowed("prepare", "begin", domain(uuid, memory_mb=3072, inside=ANY_PAGES))
    host.world.agent.reconcile("it is still on its way")
    assert "0 pages" in host.refused("prepare", "begin", domain(str(uuid4()), inside=ANY_PAGES))
    monkeypatch.setattr(gate, "GRACE_S", 0.0)
    host.world.agent.reconcile("later")
    host.allowed("prepare", "begin", domain(str(uuid4()), inside=ANY_PAGES))


def test_a_refused_start_keeps_no_pages(host: GatedHost) -> None:
    host.refused("prepare", "begin", domain(str(uuid4()), vcpus=1000, memory_mb=3072, inside=ANY_PAGES))
    host.allowed("prepare", "begin", domain(str(uuid4()), memory_mb=3072, inside=ANY_PAGES))


def test_a_claim_of_pages_made_by_hand_is_held_to(host: GatedHost) -> None:
    asked = by_flavor(1024, **{"hw:mem_page_size": "2MB"})
    (placed,) = host.world.operations.claim(asked).cells
    near, far = placed.host_cell, 1 - placed.host_cell
    xml = "".join((STRICT, ANY_PAGES))
    told = host.refused("prepare", "begin", domain(asked.consumer, vcpus=1, inside=xml.format(far)))
    assert f"its claim has 0 pages of 2048 KiB on host cell {far}, 512 asked" in told
    assert "its claim has 0 MiB" in host.refused(
        "prepare", "begin", domain(asked.consumer, vcpus=1, inside=STRICT.format(near))
    )
    host.allowed("prepare", "begin", domain(asked.consumer, vcpus=1, inside=xml.format(near)))


# Disks


def test_disks_that_are_read_after_the_start_are_claimed_then(host: GatedHost) -> None:
    uuid = str(uuid4())
    host.allowed("prepare", "begin", domain(uuid))
    assert host.held(uuid) == {"node1": {"VCPU": 2, "MEMORY_MB": 1024}}
    vm = Guest(uuid, "vm", GuestState.RUNNING, {"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 30})
    host.driver.add_guest(replace(vm, problem="its disk was not read"))
    host.world.agent.reconcile("it runs")
    assert "DISK_GB" not in host.held(uuid)["node1"]
    host.driver.add_guest(vm)
    host.world.agent.reconcile("its disk was read")
    assert host.held(uuid) == {"node1": {"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 30}}
    claim = host.world.agent._tracker.claim_of(uuid)
    assert claim is not None and claim.request.resources["DISK_GB"] == 30
    host.world.agent.reconcile("the disk is reserved no longer")
    before = host.world.wire.requests
    host.world.agent.reconcile("nothing new")
    assert host.world.wire.requests == before
    host.allowed("prepare", "begin", domain(uuid))
    host.ends(vm, domain(uuid))
    assert host.held(uuid) == {}


def test_a_guest_that_starts_again_keeps_its_disks_while_they_cannot_be_read(host: GatedHost) -> None:
    uuid = str(uuid4())
    vm = Guest(uuid, "vm", GuestState.RUNNING, {"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 30})
    host.starts(vm, domain(uuid))
    host.world.agent.reconcile("its disk was read")
    claimed = host.held(uuid)
    assert claimed == {"node1": {"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 30}}
    host.driver.remove_guest(uuid)  # the driver has no size for it
    host.allowed("prepare", "begin", domain(uuid, devices=DISK))
    assert host.held(uuid) == claimed


def test_disks_that_do_not_fit_are_told_once_and_the_guest_keeps_what_it_has(
    host: GatedHost, caplog: pytest.LogCaptureFixture
) -> None:
    uuid = str(uuid4())
    host.allowed("prepare", "begin", domain(uuid))
    host.driver.add_guest(
        Guest(uuid, "vm", GuestState.RUNNING, {"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 500})
    )
    for _ in range(3):
        host.world.agent.reconcile("it runs")
    assert host.held(uuid) == {"node1": {"VCPU": 2, "MEMORY_MB": 1024}}
    (told,) = [each.getMessage() for each in caplog.records if "not claimed" in each.getMessage()]
    assert "500 GiB" in told and "500 DISK_GB asked, 100 free" in told


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("at", [1, 2])
def test_placement_that_goes_away_when_a_disk_is_read_is_asked_again(
    host: GatedHost, monkeypatch: pytest.MonkeyPatch, at: int, lost: bool
) -> None:
    """At the read, or at the write; and `lost` where the request was done and its answer did not come."""
    uuid = str(uuid4())
    host.allowed("prepare", "begin", domain(uuid))
    host.driver.add_guest(
        Guest(uuid, "vm", GuestState.RUNNING, {"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 30})
    )
    wire, numbers = host.world.wire, count(1)
    real = wire.request

    def failing(method: str, path: str, body: Any = None, *, microversion: str) -> Reply:
        number = next(numbers)
        if number < at or lost:
            reply = real(method, path, body, microversion=microversion)
        if number < at:
            return reply
        raise PlacementUnavailable("Placement does not answer.")

    with monkeypatch.context() as patch:
        patch.setattr(wire, "request", failing)
        host.world.agent.reconcile("it runs")
        assert host.world.agent.condition.state is HostState.DEGRADED
    host.world.retry()
    assert host.held(uuid)["node1"]["DISK_GB"] == 30
    claim = host.world.agent._tracker.claim_of(uuid)
    assert claim is not None and claim.request.resources["DISK_GB"] == 30


@pytest.mark.parametrize("written", [False, True])
def test_an_agent_that_dies_while_it_claims_a_disk_claims_it_when_it_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    vm = Guest(str(uuid4()), "vm", GuestState.RUNNING, {"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 30})

    def looks(host: GatedHost) -> None:
        host.driver.change(disk_gb=100)
        host.driver.add_guest(vm)
        host.world.agent.reconcile("it runs")

    with gated(tmp_path / "a") as host:
        host.allowed("prepare", "begin", domain(vm.uuid))
        host.driver.change(disk_gb=100)
        host.world.agent.reconcile("a disk")
        real = host.world.wire.request

        def dying(method: str, path: str, body: Any = None, *, microversion: str) -> Reply:
            if method == "GET" or written:
                reply = real(method, path, body, microversion=microversion)
            if method == "GET":
                return reply
            raise Crash

        with monkeypatch.context() as patch, pytest.raises(Crash):
            patch.setattr(host.world.wire, "request", dying)
            looks(host)
    with gated(tmp_path / "a") as host:
        looks(host)
        assert host.held(vm.uuid) == {"node1": {"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 30}}
        assert host.world.operations.audit(heal=False).findings == ()


def test_a_disk_is_not_claimed_with_what_was_asked_before_the_domain_was_changed(
    host: GatedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid = str(uuid4())
    host.allowed("prepare", "begin", domain(uuid, vcpus=3))
    host.driver.add_guest(
        Guest(uuid, "vm", GuestState.RUNNING, {"VCPU": 1, "MEMORY_MB": 1024, "DISK_GB": 30})
    )
    tracker = host.world.agent._tracker
    extend = tracker.extend

    def extend_late(claim: Claim, request: ClaimRequest) -> Claim | None:
        host.allowed("prepare", "begin", domain(uuid, vcpus=1))
        return extend(claim, request)

    with monkeypatch.context() as patch:
        patch.setattr(tracker, "extend", extend_late)
        host.world.agent.reconcile("it runs")
    assert host.held(uuid) == {"node1": {"VCPU": 1, "MEMORY_MB": 1024, "DISK_GB": 30}}


DISK = "<disk type='file'><source file='/images/vm.qcow2'/><target dev='vda'/></disk>"


def test_a_guest_that_comes_in_needs_room_for_the_disks_that_it_has(host: GatedHost, tmp_path: Path) -> None:
    """Nobody has read them at the destination, but placement knows how large they were."""
    vm = Guest(str(uuid4()), "vm", GuestState.RUNNING, {"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 30})
    xml = domain(vm.uuid, devices=DISK)
    host.starts(vm, xml)
    with gated(tmp_path / "b", "node2", host.world.wire) as other:
        other.driver.change(disk_gb=20)
        other.world.agent.reconcile("a small disk")
        told = other.refused("migrate", "begin", xml)
        assert "30 DISK_GB asked, 20 free on node2" in told
        other.driver.change(disk_gb=50)
        other.world.agent.reconcile("a larger disk")
        other.allowed("migrate", "begin", xml)
        other.allowed("prepare", "begin", xml)
        assert other.held(vm.uuid) == {"node2": {"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 30}}
        (move,) = other.world.agent.host_status.overview().moves
        assert move.state is MoveState.BEGUN
        changed = domain(vm.uuid, devices=DISK, vcpus=3)
        assert "end the move first" in other.refused("prepare", "begin", changed)
        (move,) = other.world.agent.host_status.overview().moves
        assert move.state is MoveState.BEGUN
        assert other.held(vm.uuid) == {"node2": {"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 30}}


def test_a_guest_whose_scheduler_has_claimed_here_too_needs_room_for_its_disks_once(
    host: GatedHost, tmp_path: Path
) -> None:
    vm = Guest(str(uuid4()), "vm", GuestState.RUNNING, {"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 30})
    xml = domain(vm.uuid, devices=DISK)
    host.starts(vm, xml)
    with gated(tmp_path / "b", "node2", host.world.wire) as other:
        other.driver.change(disk_gb=50)
        other.world.agent.reconcile("a disk")
        client, (root,) = other.world.operations.client, other.world.operations.tree()[0].roots
        held = client.allocations_of(vm.uuid)
        (amounts,) = held.allocations.values()
        client.write_allocations(replace(held, allocations={**held.allocations, root.uuid: amounts}))
        other.allowed("migrate", "begin", xml)
        assert other.held(vm.uuid) == {"node2": {"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 30}}


def test_a_claim_made_by_hand_does_not_grow(host: GatedHost) -> None:
    asked = by_flavor(1024)
    host.world.operations.claim(asked)
    host.driver.add_guest(
        Guest(asked.consumer, "vm", GuestState.RUNNING, {"VCPU": 1, "MEMORY_MB": 1024, "DISK_GB": 30})
    )
    host.world.agent.reconcile("it runs")
    assert host.held(asked.consumer) == {"node1": {"VCPU": 1, "MEMORY_MB": 1024}}


# Cells that are providers


def test_memory_on_a_cell_is_claimed_of_the_provider_of_that_cell(host: GatedHost) -> None:
    host.driver.change(report_numa=True)
    host.world.agent.reconcile("cells are reported")
    for number in (1, 0):
        uuid = str(uuid4())
        starts(host, domain(uuid, inside=STRICT.format(number)), uuid, UsedMemory(number, 1024, None, 0))
        held = host.held(uuid)
        assert held[f"node1_numa{number}"]["MEMORY_MB"] == 1024
        assert sum(amounts.get("MEMORY_MB", 0) for amounts in held.values()) == 1024


def test_a_guest_with_cells_of_its_own_has_its_memory_where_they_are(host: GatedHost) -> None:
    host.driver.change(report_numa=True)
    host.world.agent.reconcile("cells are reported")
    uuid = str(uuid4())
    guest_cells = "".join(
        f"<cell id='{number}' cpus='{number}' memory='{1024 * (number + 1)}' unit='MiB'/>"
        for number in range(2)
    )
    inside = (
        f"<cpu><numa>{guest_cells}</numa></cpu><numatune><memory mode='strict' nodeset='0-1'/>"
        "<memnode cellid='0' mode='strict' nodeset='1'/><memnode cellid='1' mode='strict' nodeset='0'/>"
        "</numatune>"
    )
    host.allowed("prepare", "begin", domain(uuid, memory_mb=3072, inside=inside))
    assert {name: amounts.get("MEMORY_MB") for name, amounts in host.held(uuid).items()} == {
        "node1_numa0": 2048,
        "node1_numa1": 1024,
    }


def test_a_domain_that_is_bound_to_another_cell_is_claimed_there(host: GatedHost) -> None:
    host.driver.change(report_numa=True)
    host.world.agent.reconcile("cells are reported")
    vm = Guest(str(uuid4()), "vm", GuestState.RUNNING, {"VCPU": 2, "MEMORY_MB": 1024})
    for number in (0, 1):
        xml = domain(vm.uuid, inside=STRICT.format(number))
        host.starts(vm, xml)
        assert host.held(vm.uuid)[f"node1_numa{number}"]["MEMORY_MB"] == 1024
        host.ends(vm, xml, defined=True)


GIB_PAGES = PAGES.format("<page size='1' unit='GiB'/>")
CELL = "<cpu><numa><cell id='0' cpus='0-1' memory='1024' unit='MiB'/></numa></cpu>"
PLUGGED = (
    "<memory model='dimm'><source>{}</source>"
    "<target><size unit='GiB'>1</size><node>0</node></target></memory>"
)
ONE_GIB = "<pagesize unit='GiB'>1</pagesize>"


def test_pages_of_a_size_that_the_host_lacks_are_refused_alike_by_a_claim_and_by_the_gate(
    host: GatedHost,
) -> None:
    operations = host.world.operations
    for inside, plugged in (
        (GIB_PAGES, ""),
        (GIB_PAGES + STRICT.format(0), ""),
        (GIB_PAGES + STRICT.format(0).replace("strict", "preferred"), ""),
        (GIB_PAGES + CELL, ""),
        (CELL, ONE_GIB),
        (ANY_PAGES + CELL, ONE_GIB),
        (CELL + STRICT.format(1), ONE_GIB),
        (CELL, "<nodemask>1</nodemask><pagesize unit='MiB'>16</pagesize>"),
    ):
        uuid = str(uuid4())
        devices, memory_mb = (PLUGGED.format(plugged), 2048) if plugged else ("", 1024)
        xml = domain(uuid, memory_mb=memory_mb, devices=devices, inside=inside)
        with pytest.raises(DoesNotFit, match="0 pages of 1"):
            operations.claim_domain(xml, ClaimRequest("", ()))
        assert not operations.explain_domain(xml, ClaimRequest("", ()))[1].fits
        with pytest.raises(Refused, match="0 pages of 1"):
            operations.gate(HookCall("prepare", "begin", xml))
        assert not operations.tracker.claims() and not host.held(uuid)


def test_a_claim_that_is_made_is_answered_again_whoever_has_taken_its_pages_since(host: GatedHost) -> None:
    """A domain that is claimed as it is has no cells: its pages are looked for when it starts."""
    operations = host.world.operations
    inside = ANY_PAGES + STRICT.format(0).replace("strict", "preferred")
    xml = domain(str(uuid4()), memory_mb=3072, inside=inside)
    claim = operations.claim_domain(xml, ClaimRequest("", ())).claim
    host.allowed("prepare", "begin", domain(str(uuid4()), memory_mb=1024, inside=ANY_PAGES))
    assert operations.claim_domain(xml, ClaimRequest("", ())).claim == claim
    assert "1024 pages" in host.refused("prepare", "begin", xml)
