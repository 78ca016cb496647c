"""A host goes from its embedded placement to a remote one that is at work, and back, while its guests run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from kits.agent import World, opened, request, told
from kits.contents import small
from kits.placements import Embedded, OpenStack, Placement
from kits.wire import Wire

from agent.claims.request import ClaimRequest
from agent.cli.main import main
from agent.driver import Guest, GuestState
from agent.errors import ClaimsClosed, ExitCode, ImportRefused, UsageError
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.placement.snapshot import PlacementSnapshot, differences, select_trees
from agent.placement.transfer import (
    UNTYPED_MICROVERSION,
    SnapshotClient,
    apply_import,
    apply_removal,
    plan_import,
    plan_removal,
    read_counterpart,
    read_trees,
)
from agent.placement.transport import Transport
from agent.state.identity import establish_identity
from agent.status.overview import HostState
from agent.tree import Inventory, Provider

NEIGHBOUR = Provider("c0ffee00-0000-4000-8000-000000000001", "neighbour", None, {"VCPU": Inventory(4)})


class Site:
    """One host's directory, with the settings of before and after."""

    def __init__(self, directory: Path, openstack: OpenStack) -> None:
        openstack.empty()
        self.openstack = openstack
        self.state = directory / "state"
        self.state.mkdir()
        self.alone = self._configured(directory / "alone", Embedded(self.state))
        self.joined = self._configured(directory / "joined", openstack)
        self.document = directory / "node1.json"

    def _configured(self, directory: Path, placement: Placement) -> Path:
        directory.mkdir()
        file = told(directory, placement).files[0]
        file.write_text(file.read_text().replace(f"state_path = {directory}", f"state_path = {self.state}"))
        return file

    def run(self, *words: str, code: ExitCode = ExitCode.DONE) -> None:
        assert main(["placement", *words]) == code

    def held(self, file: Path) -> set[str]:
        """Who holds something in the placement of these settings."""
        with closing(PlacementClient(self.placement(file).transport())) as client:
            uuid = establish_identity(self.state, "node1", None).uuid
            return {c for p in client.generations(uuid) for c in client.provider_allocations(p).consumers}

    def placement(self, file: Path) -> Placement:
        return Embedded(self.state) if file == self.alone else self.openstack

    def agent(self, file: Path, guests: dict[str, ClaimRequest]) -> World:
        from agent.config.settings import load

        world = opened(load([file]))
        for uuid in guests:
            world.driver.add_guest(Guest(uuid, f"guest-{uuid[:4]}", GuestState.RUNNING, {"VCPU": 1}))
        world.agent.reconcile("the start")
        return world


@pytest.fixture
def site(tmp_path: Path, openstack: OpenStack) -> Site:
    return Site(tmp_path, openstack)


ASKED = [request(VCPU=2, MEMORY_MB=512), request(VCPU=1, PGPU=1), request(SRIOV_NET_VF=2)]
GUESTS = {each.consumer: each for each in ASKED}


def alone(site: Site) -> dict[str, object]:
    with closing(site.agent(site.alone, GUESTS)) as world:
        return {each.consumer: world.operations.claim(each) for each in ASKED}


def claims(world: World) -> dict[str, object]:
    return {claim.consumer: claim for claim in world.operations.tracker.claims().values()}


def test_a_host_joins_and_leaves_again(site: Site) -> None:
    claimed = alone(site)
    with closing(PlacementClient(site.openstack.transport())) as fleet:
        fleet.put_inventories(NEIGHBOUR.uuid, fleet.create_provider(NEIGHBOUR), NEIGHBOUR.inventories)
        fleet.write_allocations(ConsumerAllocations(NEIGHBOUR.uuid, {NEIGHBOUR.uuid: {"VCPU": 1}}))

    def move(source: Path, target: Path) -> None:
        steps: list[Callable[[], None]] = [
            lambda: site.run("export", "--config-file", str(source), "--root", "node1", str(site.document)),
            lambda: site.run("import", "--config-file", str(target), str(site.document)),
            lambda: site.run("remove", "--config-file", str(source), str(site.document)),
        ]
        for step in steps:
            step()
            assert site.held(source) | site.held(target) == set(claimed), "somebody has no owner"
        assert site.held(source) == set()

    for source, target in ((site.alone, site.joined), (site.joined, site.alone)):
        move(source, target)
        with closing(site.agent(target, GUESTS)) as world:
            assert world.agent.condition.state is HostState.READY, world.agent.condition.fault
            assert world.operations.reconciler.next_plan().empty
            assert claims(world) == claimed
            more = world.operations.claim(request(VCPU=1))
            assert world.operations.release(more.consumer)
    with closing(PlacementClient(site.openstack.transport())) as fleet:
        assert fleet.provider_allocations(NEIGHBOUR.uuid).consumers == {NEIGHBOUR.uuid: {"VCPU": 1}}
        assert fleet.find_provider(name="node1") is None


def test_a_host_that_is_pointed_elsewhere_without_its_claims_writes_nothing(site: Site) -> None:
    claimed = alone(site)
    with closing(site.agent(site.joined, GUESTS)) as world:
        fault = world.agent.condition.fault
        assert fault is not None and "does not hold 3 of its 3 claims" in fault.sentence
        assert "`plimsoll placement export` and `import`" in fault.sentence
        with pytest.raises(ClaimsClosed, match="comes from the embedded placement"):
            world.operations.claim(request(VCPU=1))
        with closing(PlacementClient(site.openstack.transport())) as fleet:
            assert fleet.find_provider(name="node1") is None
    with closing(site.agent(site.alone, GUESTS)) as world:
        assert world.agent.condition.state is HostState.READY
        assert claims(world) == claimed


def test_a_placement_that_was_lost_closes_claims_until_they_are_released(site: Site) -> None:
    with closing(site.agent(site.alone, {})) as world:
        consumer = world.operations.claim(request(VCPU=2)).consumer
    for file in site.state.glob("placement.db*"):
        file.unlink()
    with closing(site.agent(site.alone, {})) as world:
        assert "no longer knows its providers" in world.agent.host_status.status().reasons[0]
        with pytest.raises(ClaimsClosed):
            world.operations.claim(request(VCPU=1))
        assert world.operations.release(consumer)
        world.retry()
        assert world.agent.condition.state is HostState.READY
        assert world.operations.claim(request(VCPU=1)).allocations


def test_what_changed_after_the_export_is_not_removed(site: Site) -> None:
    claimed = alone(site)
    site.run("export", "--state-dir", str(site.state), "--root", "node1", str(site.document))
    with closing(site.agent(site.alone, GUESTS)) as world:
        late = world.operations.claim(request(VCPU=1)).consumer
    site.run("remove", "--state-dir", str(site.state), str(site.document), code=ExitCode.REFUSED)
    assert site.held(site.alone) == {*claimed, late}


def test_removing_is_told_before_and_can_be_repeated(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    claimed = alone(site)
    site.run("export", "--state-dir", str(site.state), str(site.document))
    site.run(
        "remove", "--state-dir", str(site.state), "--dry-run", str(site.document), code=ExitCode.DRIFT_FOUND
    )
    assert f"Delete the allocations of consumer {ASKED[0].consumer}." in capsys.readouterr().out
    assert site.held(site.alone) == set(claimed)
    for _ in range(2):
        site.run("remove", "--state-dir", str(site.state), str(site.document))
    assert site.held(site.alone) == set()


def test_a_part_is_whole_or_refused(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    alone(site)
    with closing(PlacementClient(Embedded(site.state).transport())) as client:
        client.put_inventories(NEIGHBOUR.uuid, client.create_provider(NEIGHBOUR), NEIGHBOUR.inventories)
        held = client.allocations_of(ASKED[0].consumer)
        both = {**held.allocations, NEIGHBOUR.uuid: {"VCPU": 1}}
        client.write_allocations(ConsumerAllocations(held.consumer, both, held.generation))
    export = ("export", "--state-dir", str(site.state), "--root", "node1")
    site.run(*export, code=ExitCode.USAGE)
    assert "also have allocations on neighbour" in capsys.readouterr().err
    site.run(*export, "--root", NEIGHBOUR.uuid)
    site.run("export", "--state-dir", str(site.state), "--root", "nobody", code=ExitCode.USAGE)
    assert "no root provider 'nobody'" in capsys.readouterr().err


def test_a_small_fleet_with_a_pool_of_its_own_goes_over_and_back(site: Site) -> None:
    """Sixty consumers on three hosts and a shared pool: each has an owner after each step."""
    rack = "7e1c1d3c-94d8-4e4b-9a57-4a8d3b1f0c02"
    hosts = [replace(NEIGHBOUR, uuid=str(uuid4()), name=f"host{n}") for n in range(3)]
    shares = frozenset({"MISC_SHARES_VIA_AGGREGATE"})
    pool = Provider(str(uuid4()), "pool", None, {"DISK_GB": Inventory(1000)}, shares)
    held = {}
    with closing(PlacementClient(Embedded(site.state).transport())) as client:
        for each in (*hosts, pool):
            generation = client.put_aggregates(each.uuid, client.create_provider(each), {rack})
            generation = client.put_traits(each.uuid, generation, each.traits)
            offered = {name: replace(i, allocation_ratio=16.0) for name, i in each.inventories.items()}
            client.put_inventories(each.uuid, generation, offered)
        for number in range(60):
            on = {hosts[number % 3].uuid: {"VCPU": 1 + number % 2}, pool.uuid: {"DISK_GB": 10}}
            held[str(uuid4())] = on
        for consumer, on in held.items():
            client.write_allocations(ConsumerAllocations(consumer, on))

    def known(file: Path) -> dict[str, object]:
        with closing(PlacementClient(site.placement(file).transport())) as client:
            found = {consumer: client.allocations_of(consumer).allocations for consumer in held}
            return {consumer: on for consumer, on in found.items() if on}

    for source, target in ((site.alone, site.joined), (site.joined, site.alone)):
        for words in (
            ("export", "--config-file", str(source), str(site.document)),
            ("import", "--config-file", str(target), str(site.document)),
            ("remove", "--config-file", str(source), str(site.document)),
        ):
            site.run(*words)
            assert {**known(source), **known(target)} == held, "somebody has no owner"
        assert known(source) == {} and known(target) == held


class Fleet(Wire):
    """Other hosts on one placement, which claim before each request."""

    def __init__(self, inner: Transport, hosts: int) -> None:
        super().__init__(inner)
        self.before = self._claim
        self._client = PlacementClient(inner)
        self._hosts = [Provider(str(uuid4()), f"other{number}") for number in range(hosts)]
        for each in self._hosts:
            generation = self._client.create_provider(each)
            self._client.put_inventories(each.uuid, generation, {"VCPU": Inventory(10_000)})

    def _claim(self, _: str) -> None:
        on = self._hosts[self.requests % len(self._hosts)].uuid
        self._client.write_allocations(ConsumerAllocations(str(uuid4()), {on: {"VCPU": 1}}))


def join(transport: Transport, wanted: PlacementSnapshot) -> None:
    client = SnapshotClient(transport)
    found, evidence = read_counterpart(client, wanted)
    plan = plan_import(wanted, found, evidence.names)
    apply_import(client, SnapshotClient(transport, microversion=UNTYPED_MICROVERSION), plan)
    assert differences(wanted, read_counterpart(client, wanted)[0]) == ()


def export(transport: Transport, roots: list[str]) -> PlacementSnapshot:
    return select_trees(read_trees(SnapshotClient(transport), roots), roots)


def leave(transport: Transport, unwanted: PlacementSnapshot) -> None:
    client = SnapshotClient(transport)
    apply_removal(client, plan_removal(unwanted, read_counterpart(client, unwanted)[0]))
    found, _ = read_counterpart(client, unwanted)
    assert not found.providers and not found.consumers


def roots_of(content: PlacementSnapshot) -> list[str]:
    return [each.name for each in content.providers.values() if each.parent is None]


def test_there_and_back_while_others_claim_at_the_same_cost_for_any_fleet(
    placement: Placement, tmp_path: Path
) -> None:
    counts = []
    for hosts in (1, 12):
        directory = tmp_path / str(hosts)
        directory.mkdir()
        with closing(Fleet(placement.anew(directory).transport(), hosts)) as fleet:
            join(fleet, small())
            carried = export(fleet, roots_of(small()))
            assert differences(small(), carried) == ()
            leave(fleet, carried)
            counts.append(fleet.requests)
    assert counts[0] == counts[1]


def test_who_has_the_name_already_is_found(placement: Placement, tmp_path: Path) -> None:
    with closing(placement.transport()) as transport:
        client = PlacementClient(transport)
        root, child = (Provider(str(uuid4()), "root"), Provider(str(uuid4()), roots_of(small())[0]))
        client.create_provider(root)
        client.create_provider(Provider(child.uuid, child.name, root.uuid))
        with pytest.raises(ImportRefused, match=f"is {child.uuid}, not "):
            join(transport, small())


def test_a_consumer_that_holds_something_elsewhere_is_found(placement: Placement) -> None:
    with closing(placement.transport()) as transport:
        client = PlacementClient(transport)
        other = Provider(str(uuid4()), "other")
        client.put_inventories(other.uuid, client.create_provider(other), {"VCPU": Inventory(8)})
        consumer = next(iter(small().consumers))
        client.write_allocations(ConsumerAllocations(consumer, {other.uuid: {"VCPU": 1}}))
        with pytest.raises(ImportRefused, match=consumer):
            join(transport, small())


def test_what_is_held_together_with_another_tree_names_that(placement: Placement) -> None:
    with closing(placement.transport()) as transport:
        client = PlacementClient(transport)
        hosts = [Provider(str(uuid4()), name) for name in ("one", "two")]
        for each in hosts:
            client.put_inventories(each.uuid, client.create_provider(each), {"VCPU": Inventory(8)})
        held = {each.uuid: {"VCPU": 1} for each in hosts}
        client.write_allocations(ConsumerAllocations(str(uuid4()), held))
        with pytest.raises(UsageError, match="also have allocations on two"):
            export(transport, ["one"])
        with pytest.raises(UsageError, match="no root provider 'nobody'"):
            export(transport, ["nobody"])
        both = export(transport, ["one", hosts[1].uuid])
        assert both.providers.keys() == {each.uuid for each in hosts}
