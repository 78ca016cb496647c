"""What the agent asks of a placement, on three of them: embedded, OpenStack's, and one that fails on purpose.

The first two must answer every question alike. Whatever the third one answers, and whatever it is asked, the
agent gets an error of the right kind with a sentence, and nothing is written by mistake.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import os_resource_classes
import pytest
from kits.agent import opened, request, told
from kits.placements import Placement
from kits.wire import Answer, Wire

from agent.claims.claim import ClaimState
from agent.errors import (
    ClaimsClosed,
    PlacementConflict,
    PlacementError,
    PlacementFull,
    PlacementUnavailable,
    UnknownConsumer,
)
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.placement.host_note import HostNote
from agent.placement.transport import Reply
from agent.status.overview import HostState
from agent.tree import Inventory, Provider, ProviderTree

HOST, GPU, AGGREGATE, INSTANCE, MIGRATION, NOBODY = (
    f"{number}0000000-0000-4000-8000-000000000000" for number in range(1, 7)
)
ROOT = Provider(HOST, "host", None, {"VCPU": Inventory(8, max_unit=8, allocation_ratio=2.0)})
CARD = Provider(GPU, "card", HOST)
HELD = {HOST: {"VCPU": 4}}


@dataclass(frozen=True)
class Ask:
    """One call of the client, in the order of a story, with what every placement must answer."""

    method: str
    does: Callable[[PlacementClient], object]
    answer: object = None
    reads: bool = False
    """There is a body to make sense of."""
    claims: bool = False
    """A 409 without another code means that it does not fit."""
    requests: bool = True
    """Something is asked at all."""


def instance(generation: int | None, held: Mapping[str, Mapping[str, int]] = HELD) -> ConsumerAllocations:
    return ConsumerAllocations(INSTANCE, held, generation, "demo", "admin")


def swap(client: PlacementClient) -> None:
    """The instance's allocation becomes the migration's, in one request."""
    handed = ConsumerAllocations(MIGRATION, HELD, None, "demo", "admin", "MIGRATION")
    client.write_allocations(handed, instance(1, {GPU: {"VGPU": 1}}))


def reshape(client: PlacementClient) -> None:
    generations = client.generations(HOST)
    client.reshape({GPU: (generations[GPU], {"VGPU": Inventory(4)})})


STORY = (
    Ask("versions", lambda c: c.versions(), ("1.0", "1.39"), reads=True),
    Ask("speaks", lambda c: c.speaks("1.38"), True, requests=False),
    Ask("find_provider", lambda c: c.find_provider(name="host"), None, reads=True),
    Ask("read_tree", lambda c: c.read_tree(HOST), ProviderTree(), reads=True),
    Ask("create_provider", lambda c: c.create_provider(Provider(HOST, "house")), 0, reads=True),
    Ask("rename_provider", lambda c: c.rename_provider(HOST, "host"), 0, reads=True),
    Ask("create_provider", lambda c: c.create_provider(Provider(GPU, "card")), 0, reads=True),
    Ask("reparent_provider", lambda c: c.reparent_provider(GPU, "card", HOST), 0, reads=True),
    Ask("ensure_trait", lambda c: c.ensure_trait("CUSTOM_GOLD")),
    Ask("ensure_resource_class", lambda c: c.ensure_resource_class("CUSTOM_FPGA")),
    Ask(
        "resource_classes",
        lambda c: c.resource_classes() - {*os_resource_classes.STANDARDS},
        {"CUSTOM_FPGA"},
        reads=True,
    ),
    Ask("put_traits", lambda c: c.put_traits(HOST, 0, ["CUSTOM_GOLD"]), 1, reads=True),
    Ask("provider_traits", lambda c: c.provider_traits(HOST), {"CUSTOM_GOLD"}, reads=True),
    Ask("provider_traits", lambda c: c.provider_traits(NOBODY), frozenset(), reads=True),
    Ask("put_aggregates", lambda c: c.put_aggregates(HOST, 1, [AGGREGATE]), 2, reads=True),
    Ask("sharing_providers", lambda c: c.sharing_providers([AGGREGATE]), (), reads=True),
    Ask("aggregates_of", lambda c: c.aggregates_of(HOST), {AGGREGATE}, reads=True),
    Ask("providers", lambda c: [each.name for each in c.providers(f"uuid={HOST}")], ["host"], reads=True),
    Ask("leave_note", lambda c: c.leave_note(HOST, HostNote("ready", "0.1.0")), ""),
    Ask("put_inventories", lambda c: c.put_inventories(HOST, 2, ROOT.inventories), 3, reads=True),
    Ask(
        "allocation_candidates",
        lambda c: [*c.allocation_candidates("resources=VCPU:1")["provider_summaries"]],
        [HOST, GPU],
        reads=True,
    ),
    Ask(
        "provider_inventories",
        lambda c: c.provider_inventories(HOST),
        (3, dict(ROOT.inventories)),
        reads=True,
    ),
    Ask("generations", lambda c: c.generations(HOST), {HOST: 3, GPU: 0}, reads=True),
    Ask("reshape", lambda c: c.reshape({GPU: (0, {"VGPU": Inventory(2)})}, instance(None)), claims=True),
    Ask("allocations_of", lambda c: c.allocations_of(INSTANCE), instance(1), reads=True),
    Ask(
        "allocations_of_all", lambda c: c.allocations_of_all([INSTANCE]), {INSTANCE: instance(1)}, reads=True
    ),
    Ask("write_allocations", swap, claims=True),
    Ask(
        "provider_allocations",
        lambda c: c.provider_allocations(HOST).consumers,
        {MIGRATION: {"VCPU": 4}},
        reads=True,
    ),
    Ask(
        "read_tree_with",
        lambda c: c.read_tree_with(HOST, None, lambda uuid: c.provider_allocations(uuid).consumers)[1],
        {HOST: {MIGRATION: {"VCPU": 4}}, GPU: {INSTANCE: {"VGPU": 1}}},
        reads=True,
    ),
    Ask("provider_usages", lambda c: c.provider_usages(GPU), {"VGPU": 1}, reads=True),
    Ask("count_consumers", lambda c: c.count_consumers("MIGRATION", "demo", "admin"), 1, reads=True),
    Ask(
        "tree_usages",
        lambda c: c.tree_usages(HOST, "VCPU", 1),
        {HOST: {"VCPU": 4}, GPU: {"VGPU": 1}},
        reads=True,
    ),
    Ask("tree_usages", lambda c: c.tree_usages(HOST, "VCPU", 10_000), None, reads=True),
    Ask("reshape", reshape, reads=True, claims=True),
    Ask("read_provider", lambda c: c.read_provider(CARD).inventories, {"VGPU": Inventory(4)}, reads=True),
    Ask("delete_allocations", lambda c: c.delete_allocations(MIGRATION), True),
    Ask("delete_allocations", lambda c: c.delete_allocations(INSTANCE), True),
    Ask("delete_allocations", lambda c: c.delete_allocations(NOBODY), False),
    Ask(
        "put_inventories",
        lambda c: isinstance(c.put_inventories(GPU, c.generations(HOST).get(GPU, 0), {}), int),
        True,
        reads=True,
    ),
    Ask("delete_provider", lambda c: c.delete_provider(GPU), True),
    Ask("delete_provider", lambda c: c.delete_provider(GPU), False),
    Ask("bar_first_write", lambda c: c.bar_first_write(NOBODY).check(), claims=True),
)
OF_A_CORE = {"hosts", "host_candidates"}
"""What a core of Plimsoll alone answers: see tests/functional/fleet, and cli/test_placement_top.py."""
OUTCOMES = {"send_allocations", "send_reshape"}
"""What `write_allocations` and `reshape` are made of: see tests/unit/placement/test_replies.py."""


def test_the_story_has_everything_that_a_client_can_ask() -> None:
    methods = {
        name
        for name, _ in inspect.getmembers(PlacementClient, inspect.isfunction)
        if not name.startswith("_") and name != "close"
    }
    assert {ask.method for ask in STORY} == methods - OUTCOMES - OF_A_CORE


@pytest.mark.counts_migrations
def test_both_answer_every_question_alike(placement: Placement) -> None:
    with closing(PlacementClient(placement.transport())) as client:
        for ask in STORY:
            assert ask.does(client) == ask.answer, ask.method


def faulty(fault: Reply | None) -> Answer:
    """What answers everything with one fault; None is silence."""

    def answer(_: object) -> Reply:
        if fault is None:
            raise PlacementUnavailable("Placement did not answer.")
        return fault

    return answer


def error(status: int, code: str = "placement.undefined_code") -> Reply:
    body = {"errors": [{"status": status, "detail": "It was not done.", "code": code}]}
    return Reply(status, body)


FAULTS: dict[str, tuple[Reply | None, type[PlacementError]]] = {
    "silence": (None, PlacementUnavailable),
    "502": (Reply(502, None), PlacementUnavailable),
    "503": (Reply(503, None, {"retry-after": "7"}), PlacementUnavailable),
    "429": (Reply(429, None, {"retry-after": "7"}), PlacementUnavailable),
    "500 with a stack trace": (error(500), PlacementUnavailable),
    "401": (Reply(401, {"error": {"message": "Who are you?"}}), PlacementError),
    "403": (error(403), PlacementError),
    "400": (error(400), PlacementError),
    "409, somebody wrote": (error(409, "placement.concurrent_update"), PlacementConflict),
    "409, in use": (error(409, "placement.inventory.inuse"), PlacementError),
    "406 for ever": (Reply(406, {"errors": [{"status": 406}]}), PlacementError),
}


@pytest.mark.parametrize("ask", STORY, ids=lambda ask: ask.method)
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_an_error_of_its_kind(fault: str, ask: Ask) -> None:
    reply, kind = FAULTS[fault]
    failing = Wire(answer=faulty(reply))
    client = PlacementClient(failing)
    if ask.method == "count_consumers" and reply is not None and reply.status == 500:
        assert ask.does(client) is None, "what Placement cannot tell over PostgreSQL"
        return
    if not ask.requests:
        ask.does(client)
        assert failing.asked == []
        return
    with pytest.raises(PlacementError) as raised:
        ask.does(client)
    assert type(raised.value) is kind
    assert raised.value.message.startswith("Placement ") and "\n" not in raised.value.message
    assert raised.value.details.get("retry_after") == (
        7.0 if reply and "retry-after" in reply.headers else None
    )
    assert len(failing.asked) <= 2, "it is not for the client to insist"


@pytest.mark.parametrize("ask", STORY, ids=lambda ask: ask.method)
def test_a_409_that_says_no_more_means_full_for_claims_alone(ask: Ask) -> None:
    if not ask.requests:
        return
    with pytest.raises(PlacementError) as raised:
        ask.does(PlacementClient(Wire(answer=faulty(error(409)))))
    assert isinstance(raised.value, PlacementFull) is (ask.claims and not ask.reads)


@pytest.mark.parametrize("body", [None, [], {}, "<html>", {"errors": []}], ids=repr)
@pytest.mark.parametrize("ask", STORY, ids=lambda ask: ask.method)
def test_nonsense_is_not_taken_for_an_answer(ask: Ask, body: Any) -> None:
    client = PlacementClient(Wire(answer=faulty(Reply(200, body))))
    if ask.reads:
        with pytest.raises(PlacementError, match=r"[Cc]heck (that the address is Placement's|the URL)"):
            ask.does(client)
    else:
        ask.does(client)


@pytest.fixture(params=FAULTS)
def fault(request: pytest.FixtureRequest) -> Iterator[Reply | None]:
    yield FAULTS[request.param][0]


def test_an_agent_on_it_is_up_and_writes_nothing_and_goes_on_once_it_works(
    fault: Reply | None, placement: Placement, tmp_path: Path
) -> None:
    with opened(told(tmp_path, placement)) as world:
        world.wire.answer = faulty(fault)
        world.agent.reconcile("the start")
        assert world.agent.condition.state is HostState.DEGRADED
        with pytest.raises(ClaimsClosed):
            world.operations.claim(request(VCPU=1))
        with pytest.raises(UnknownConsumer):
            world.operations.release(NOBODY)
        world.wire.answer = None
        world.retry()
        assert world.agent.condition.state is HostState.READY, world.agent.condition.fault
        asked = request(VCPU=1)
        world.operations.claim(asked)
        world.wire.answer = faulty(fault)
        with suppress(PlacementError):
            world.operations.release(asked.consumer)
        with suppress(PlacementError, ClaimsClosed):
            world.operations.claim(request(VCPU=1))
        world.agent.verify()
        assert world.agent.condition.state is HostState.DEGRADED
        assert world.agent.host_status.status().reasons
        world.wire.answer = None
        world.retry()
        assert world.agent.condition.state is HostState.READY
        world.agent.deliver()
        claims = list(world.operations.tracker.claims().values())
        assert all(claim.state is ClaimState.CLAIMED for claim in claims)
        usages = world.operations.tree()[1]
        assert all(not any(each.values()) for each in usages.values())
