"""`where` on a core and on a real OpenStack Placement: what brute force says, and in how many requests."""

import re
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest
from kits.examples import examples
from kits.fleet_questions import (
    Asked,
    brute_fits,
    brute_obstacle,
    put_fleet,
    random_fleet,
    random_request,
    uuid_of,
)
from kits.placements import OpenStack, Placement

from agent.claims.choice import Order
from agent.claims.request import ClaimRequest, RequestGroup
from agent.errors import PlacementError, UsageError
from agent.fleet import answer as answer_module
from agent.fleet.answer import (
    MIGRATION,
    PLACES_SHOWN_MAX,
    AskedRequest,
    Verdict,
    answer_body,
    query_of,
    where,
)
from agent.fleet.where import SHOWN_MAX, Demand, FleetHost, HostProvider, conditions_of, places_together
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.placement.connect import EmbeddedTransport
from agent.placement.embedded import Core
from agent.placement.embedded.fleet import read_table, room_query
from agent.placement.transport import Reply, Transport
from agent.tree import Inventory

FLEETS = examples(18)
TDX = "HW_CPU_X86_INTEL_TDX"


@pytest.mark.parametrize("seed", range(FLEETS))
def test_a_placement_is_asked_what_brute_force_says(placement: Placement, seed: int) -> None:
    random = Random(seed)
    fleet = random_fleet(random, 12)
    with closing(placement.transport()) as transport:
        client = PlacementClient(transport)
        put_fleet(client, fleet)
        for _ in range(12):
            asked = random_request(random)
            fitting = {host.root.name for host in fleet if not host.closed and brute_fits(asked.atoms, host)}
            answer = where(client, [AskedRequest(asked.request, {})])
            assert (answer.verdict is Verdict.FITS) == bool(fitting), asked.atoms
            if fitting:
                assert answer.fitting == len(fitting) or (placement.kind != "embedded" and loses_hosts(asked))
                assert {place.host for place in answer.places} <= fitting
                continue
            obstacles = [found for host in fleet if (found := brute_obstacle(asked, host))]
            able = sum(not forever for _, forever, _ in obstacles)
            if placement.kind == "embedded":
                assert answer.able == able
                assert answer.verdict is (Verdict.NOT_NOW if able else Verdict.NEVER)
                assert sum(row.hosts for row in answer.summary) == len(fleet)
                assert sum(row.fit_without for row in answer.summary) == sum(alone for *_, alone in obstacles)


@pytest.mark.parametrize("seed", range(examples(60)))
def test_the_room_for_a_request_is_how_many_guests_have_places_together(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    fleet = [host._replace(shared=()) for host in random_fleet(random, 8)]
    with closing(Core.open(tmp_path)) as core:
        put_fleet(PlacementClient(EmbeddedTransport(core)), fleet)
        for _ in range(12):
            asked = random_request(random)
            if needs_trees(asked):
                continue
            conditions = conditions_of(asked.request)
            query = room_query(query_of(conditions), {})
            table = read_table(core._store.model, None, query, "VCPU")
            room = {row.name: row.room for row in table.rows if row.counts}
            for host in fleet:
                if not host.closed:
                    together = places_together(Demand(conditions), [host], 1000, Order.PACK)
                    assert room[host.root.name] == len(together.places) == together.most, asked.atoms


def needs_trees(asked: Asked) -> bool:
    """Whether a query cannot say it: what the cells of a guest have together."""
    of_unsuffixed = any(atom[:2] in (("trait", ""), ("aggregate", "")) for atom in asked.atoms)
    return of_unsuffixed and bool(asked.request.topology.cells)


def loses_hosts(asked: Asked) -> bool:
    """Whether OpenStack's Placement may lose hosts of a shared pool, see docs/placement-differences.md."""
    suffixed = any(atom[0] == "amount" and atom[1] for atom in asked.atoms)
    of_unsuffixed = any(atom[:2] in (("trait", ""), ("aggregate", "")) for atom in asked.atoms)
    return suffixed and (of_unsuffixed or ("isolate",) in asked.atoms or ("apart",) in asked.atoms)


class Counting:
    """A transport that keeps the paths that it was asked for."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.asked: list[str] = []

    def request(self, method: str, path: str, body: Any = None, *, microversion: str) -> Reply:
        self.asked.append(path)
        return self._inner.request(method, path, body, microversion=microversion)

    def close(self) -> None:
        self._inner.close()


def plain_fleet(hosts: int) -> list[FleetHost]:
    """Hosts with 4 of 8 CPUs and 6 of 8 MiB in use, and a card of which half is in use."""
    fleet = []
    for number in range(hosts):
        name = f"host{number}"
        guest = {f"{name}-guest": {"VCPU": 4, "MEMORY_MB": 6}}
        basic = {"VCPU": Inventory(8), "MEMORY_MB": Inventory(8)}
        root = HostProvider(name, name, None, basic, guest[f"{name}-guest"], holders=guest)
        part = {f"{name}-guest": {"VGPU": 1}}
        cards = {"VGPU": Inventory(2)}
        card = HostProvider(
            f"{name}_gpu", f"{name}_gpu", name, cards, {"VGPU": 1}, frozenset({"CUSTOM_A"}), holders=part
        )
        fleet.append(FleetHost((root, card)))
    return fleet


@pytest.mark.parametrize("suffix", ["", "_GPU"])
def test_cards_are_asked_for_by_what_encrypts_the_guest(placement: Placement, suffix: str) -> None:
    """Of three hosts one has a confidential card, one another card, and one a card for developers."""
    modes = {
        "on": ("CUSTOM_CC", "CUSTOM_CC_ON"),
        "off": ("CUSTOM_CC_OFF",),
        "devtools": ("CUSTOM_CC", "CUSTOM_CC_DEVTOOLS"),
    }
    fleet = []
    for name, traits in modes.items():
        basic = {"VCPU": Inventory(8), "MEMORY_MB": Inventory(4096)}
        root = HostProvider(name, name, None, basic)
        keys = {"MEM_ENCRYPTION_CONTEXT": Inventory(2)}
        tdx = HostProvider(f"{name}_tdx", f"{name}_tdx", name, keys, traits=frozenset({TDX}))
        card = HostProvider(f"{name}_gpu", f"{name}_gpu", name, {"PGPU": Inventory(1)}, {}, frozenset(traits))
        fleet.append(FleetHost((root, tdx, card)))
    encrypted = {"hw:mem_encryption": "true", "hw:mem_encryption_model": "intel-tdx"}
    with closing(placement.transport()) as transport:
        client = PlacementClient(transport)
        for trait in {each for traits in modes.values() for each in traits}:
            client.ensure_trait(trait)
        put_fleet(client, fleet)

        def hosts(**more: str) -> list[str]:
            specs = {f"resources{suffix}:PGPU": "1", **more}
            body = {"flavor": {"vcpus": 1, "memory_mb": 128, "extra_specs": specs}}
            told = answer_body(client, {"requests": [body]})
            return [place["host"] for place in told["places"]]

        assert hosts() == ["off"]
        assert hosts(**encrypted) == ["on"]
        wanted = {f"trait{suffix}:CUSTOM_CC_DEVTOOLS": "required"}
        specs = {f"resources{suffix}:PGPU": "1", **encrypted, f"trait{suffix}:CUSTOM_CC_OFF": "required"}
        body = {"flavor": {"vcpus": 1, "memory_mb": 128, "extra_specs": specs}}
        told = answer_body(client, {"requests": [body]})
        assert hosts(**encrypted, **wanted) == ["devtools"]
    assert told["verdict"] == "never"
    assert "trait CUSTOM_CC_ON" in told["sentence"] and "beside the rest" in told["sentence"]
    (row,) = (row for row in told["summary"] if row["lacks"] == "trait CUSTOM_CC_ON")
    assert row["words"] == "hw:mem_encryption_model=intel-tdx"


def asked_of(**amounts: int) -> AskedRequest:
    own = {name: amount for name, amount in amounts.items() if name != "VGPU"}
    group = RequestGroup("1", {"VGPU": amounts["VGPU"]}, (frozenset({"CUSTOM_A"}),))
    return AskedRequest(ClaimRequest(uuid_of("asker"), (RequestGroup("", own), group)), {})


def test_request_counts(placement: Placement) -> None:
    with closing(placement.transport()) as transport:
        put_fleet(PlacementClient(transport), plain_fleet(12))
        counting = Counting(transport)
        client = PlacementClient(counting)
        core = placement.kind == "embedded"
        found_out = 0 if core else 1
        yes = where(client, [asked_of(VCPU=2, MEMORY_MB=2, VGPU=1)])
        assert (yes.verdict, yes.fitting) == (Verdict.FITS, 12)
        # OpenStack's has no names beside candidates: one request more for each host shown.
        assert len(counting.asked) == found_out + 1 + (0 if core else PLACES_SHOWN_MAX)
        counting.asked.clear()
        no = where(client, [asked_of(VCPU=2, MEMORY_MB=4, VGPU=1)])
        assert (no.verdict, no.able, len(no.nearest)) == (Verdict.NOT_NOW, 12, SHOWN_MAX)
        (move,) = no.changes
        assert list(move.instances) == [uuid_of("host0-guest")]
        classes, instances = 3, 1
        if core:
            assert len(counting.asked) == 1 + SHOWN_MAX + 2 * instances
        else:
            lists = 2  # all providers, and those that share
            assert len(counting.asked) <= 1 + lists + classes + 2 * SHOWN_MAX + 4 * instances
        counting.asked.clear()
        never = where(client, [asked_of(VCPU=2, MEMORY_MB=16, VGPU=1)])
        assert never.verdict is Verdict.NEVER
        assert len(counting.asked) == (1 if core else 1 + 2 + classes)


def test_a_placement_that_is_too_old_is_told_by_its_microversion(openstack: OpenStack) -> None:
    openstack.empty()
    too_old = pytest.raises(PlacementError, match=r"up to 1\.32, and this question needs 1\.36")
    with openstack.aged("1.32"), closing(openstack.transport()) as transport, too_old:
        where(PlacementClient(transport), [asked_of(VCPU=2, MEMORY_MB=2, VGPU=1)])


def test_a_limit_of_candidates_hides_no_host_or_the_answer_says_at_least(
    openstack: OpenStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two cards of eight can be chosen in 56 ways on each host."""
    openstack.empty()
    monkeypatch.setattr(answer_module, "CANDIDATES_MAX", 100)
    fleet = []
    for name in (f"wide{number}" for number in range(20)):
        cards = (HostProvider(f"{name}_{n}", f"{name}_{n}", name, {"VGPU": Inventory(1)}) for n in range(8))
        fleet.append(FleetHost((HostProvider(name, name, None, {"VCPU": Inventory(8)}), *cards)))
    groups = (RequestGroup("1", {"VGPU": 1}), RequestGroup("2", {"VGPU": 1}))
    asked = AskedRequest(ClaimRequest("", groups, group_policy="isolate"), {})
    with closing(openstack.transport()) as transport:
        client = PlacementClient(transport)
        put_fleet(client, fleet)
        with openstack.making_candidates("depth-first", 100):
            deep = where(client, [asked])
        assert (deep.verdict, deep.complete, deep.fitting) == (Verdict.FITS, False, 2)
        assert deep.sentence == "it fits: at least 2 hosts have room for it"
        with openstack.making_candidates("breadth-first", 100):
            assert where(client, [asked]).fitting == 20


def test_never_is_not_said_where_full_hosts_were_not_read(openstack: OpenStack) -> None:
    """OpenStack's Placement shows a host by what it has free; of the full ones SHOWN_MAX are read."""
    openstack.empty()
    all_of_it = {"VCPU": 4, "MEMORY_MB": 8}
    basic = {name: Inventory(total) for name, total in all_of_it.items()}
    names = [f"full{number}" for number in range(SHOWN_MAX + 2)]
    fleet = [
        FleetHost((HostProvider(name, name, None, basic, all_of_it, holders={f"{name}-guest": all_of_it}),))
        for name in names
    ]
    with closing(openstack.transport()) as transport:
        client = PlacementClient(transport)
        put_fleet(client, fleet)
        found = where(client, [AskedRequest(ClaimRequest("", (RequestGroup("", {"VCPU": 5}),)), {})])
        assert (found.verdict, len(found.not_known)) == (Verdict.NOT_NOW, 2)
        assert found.sentence == f"not now: none of {SHOWN_MAX} hosts could ever, and 2 more were not read"
        for name in names[:2]:
            client.delete_allocations(uuid_of(f"{name}-guest"))
        found = where(client, [AskedRequest(ClaimRequest("", (RequestGroup("", {"VCPU": 5}),)), {})])
        assert (found.verdict, len(found.not_known)) == (Verdict.NEVER, 1)


def test_an_instance_moves_only_where_all_that_it_holds_has_room(placement: Placement) -> None:
    """It holds more than what the request asks for."""
    fleet = [
        FleetHost(
            (
                HostProvider(name, name, None, {"VCPU": Inventory(cpus)}),
                HostProvider(f"{name}-gpu", f"{name}-gpu", name, {"PGPU": Inventory(4)}),
            )
        )
        for name, cpus in (("one", 10), ("two", 2))
    ]
    holds = {
        "x": {"one": {"VCPU": 5}, "one-gpu": {"PGPU": 1}},
        "y": {"one-gpu": {"PGPU": 2}},
        "z": {"two": {"VCPU": 2}, "two-gpu": {"PGPU": 3}},
    }
    with closing(placement.transport()) as transport:
        client = PlacementClient(transport)
        put_fleet(client, fleet)
        for name, by in holds.items():
            held = {uuid_of(each): amounts for each, amounts in by.items()}
            client.write_allocations(ConsumerAllocations(uuid_of(name), held))
        request = ClaimRequest("", (RequestGroup("1", {"PGPU": 2}),))
        answer = where(client, [AskedRequest(request, {})])
        assert answer.verdict is Verdict.NOT_NOW
        assert [dict(change.instances) for change in answer.changes] == [{uuid_of("x"): ""}]


def test_a_move_that_has_a_place_is_to_be_ended(placement: Placement) -> None:
    fleet = [FleetHost((HostProvider("one", "one", None, {"VCPU": Inventory(4)}),))]
    with closing(placement.transport()) as transport:
        client = PlacementClient(transport)
        put_fleet(client, fleet)
        held = {uuid_of("one"): {"VCPU": 3}}
        client.write_allocations(ConsumerAllocations(uuid_of("m"), held, consumer_type=MIGRATION))
        asked = AskedRequest(ClaimRequest("", (RequestGroup("", {"VCPU": 2}),)), {})
        (change,) = where(client, [asked]).changes
        assert change.migrations == (uuid_of("m"),)


def test_a_shared_pool_is_no_host_and_is_named_as_it_was_asked_for(placement: Placement) -> None:
    traits = frozenset({"MISC_SHARES_VIA_AGGREGATE"})
    pool = HostProvider("pool", "pool", None, {"DISK_GB": Inventory(4)}, traits=traits)
    asked = AskedRequest(ClaimRequest("", (RequestGroup("", {"DISK_GB": 1}),)), {})
    with closing(placement.transport()) as transport:
        client = PlacementClient(transport)
        put_fleet(client, [FleetHost((pool,))])
        with pytest.raises(UsageError, match=r"^'pool' is a provider that hosts share, and no host"):
            where(client, [asked], host="pool")


def test_a_host_without_a_name_is_refused(placement: Placement) -> None:
    body = {"requests": [{"groups": [{"resources": {"VCPU": 1}}]}], "host": ""}
    with (
        closing(placement.transport()) as transport,
        pytest.raises(UsageError, match=r"^host: .*name or uuid"),
    ):
        answer_body(PlacementClient(transport), body)


def test_what_a_lower_bound_does_not_settle_is_said_to_be_unknown(
    placement: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five have places, which is not found in few steps."""
    monkeypatch.setattr("agent.fleet.where.PACKING_STEPS_MAX", 30)
    fleet = []
    for name, sizes in (("a", (2, 4, 8, 4, 3, 4, 6)), ("b", (8, 7, 16, 2))):
        own = [
            HostProvider(f"{name}{n}", f"{name}{n}", name, {"VGPU": Inventory(m)})
            for n, m in enumerate(sizes)
        ]
        fleet.append(FleetHost((HostProvider(name, name, None, {"VCPU": Inventory(1)}), *own)))
    groups = tuple(RequestGroup(str(n), {"VGPU": size}) for n, size in enumerate((4, 3, 1, 2)))
    asked = AskedRequest(ClaimRequest("", groups, group_policy="isolate"), {})
    with closing(placement.transport()) as transport:
        client = PlacementClient(transport)
        put_fleet(client, fleet)
        five, more = (where(client, [asked], count=count) for count in (5, 20))
    assert re.match(r"not now: at least \d and at most 5 of 5 have a place; ", five.sentence)
    assert five.not_known[-1] == "Whether all 5 have places: not all ways to place them were compared."
    assert more.verdict is Verdict.NEVER and not any("Whether" in each for each in more.not_known)


def test_guests_have_places_also_where_another_choice_has_none(placement: Placement) -> None:
    """Each needs 2 and 3 on two providers; only one choice for the first leaves room for the second."""
    fleet = [
        FleetHost(
            (
                HostProvider("t", "t", None, {"VGPU": Inventory(11)}),
                HostProvider("c0", "c0", "t", {"VGPU": Inventory(1)}),
                HostProvider("c1", "c1", "t", {"VGPU": Inventory(4)}),
            )
        )
    ]
    groups = (RequestGroup("1", {"VGPU": 2}), RequestGroup("2", {"VGPU": 3}))
    asked = AskedRequest(ClaimRequest("", groups, group_policy="isolate"), {})
    with closing(placement.transport()) as transport:
        client = PlacementClient(transport)
        put_fleet(client, fleet)
        assert where(client, [asked], count=2).verdict is Verdict.FITS
        three = where(client, [asked], count=3)
        assert (three.verdict, len(three.places)) == (Verdict.NEVER, 2)
        assert three.sentence.startswith("never: 2 of 3 have a place; ")
