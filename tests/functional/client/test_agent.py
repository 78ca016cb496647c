"""The package against a real agent on the fake driver; each test runs with both clients."""

import asyncio
import itertools
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Queue
from typing import Any
from uuid import uuid4

import pytest
from kits.client import CLIENTS
from kits.served_agent import ServedAgent, served_agent

import plimsoll
from agent.driver import Guest, GuestState
from plimsoll.shapes import Addition, ClaimByFlavor, ClaimByGroups, Event, Flavor, Group, Maker
from plimsoll.wire import BOOT_ID, exchange, request_text

SMALL = {"VCPU": 1, "MEMORY_MB": 128}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedAgent]:
    with served_agent(tmp_path) as served:
        served.world.agent.reconcile("the start")
        yield served


@pytest.fixture(params=CLIENTS)
def agent(served: ServedAgent, request: pytest.FixtureRequest) -> plimsoll.Agent:
    return CLIENTS[request.param](str(served.socket))


def test_a_claim_is_made_shown_and_released(agent: plimsoll.Agent) -> None:
    consumer = str(uuid4())
    claim = agent.claim(consumer=consumer, name="web1", resources=SMALL)
    (allocation,) = claim.allocations.values()
    assert allocation.resources == SMALL and claim.state == "claimed"
    assert claim.request.groups[0].resources == SMALL and claim.since.tzinfo is not None
    assert agent.show_claim(consumer) == claim
    (instance,) = agent.instances()
    assert instance.claim == claim and instance.guest is None
    assert agent.release(consumer).released
    assert agent.instances() == ()
    with pytest.raises(plimsoll.NotFound) as caught:
        agent.release(consumer)
    assert caught.value.key == consumer and caught.value.status == 404


@pytest.mark.parametrize(
    ("boot", "in_s", "status"),
    [
        (None, -0.001, 408),
        (None, 60.0, 201),
        ("another", -1.0, 201),
        (None, None, 201),
        (None, "soon", 201),
    ],
)
def test_what_comes_after_its_caller_has_given_up_is_not_begun(
    agent: plimsoll.Agent, served: ServedAgent, boot: str | None, in_s: float | str | None, status: int
) -> None:
    """A copy that was stuck on its way; the clock of another host says nothing here."""
    consumer = str(uuid4())
    body = {"consumer": consumer, "groups": [{"resources": SMALL}]}
    moment = in_s if isinstance(in_s, str) else time.monotonic() + (in_s or 0.0)
    until = "" if in_s is None else f"{boot or BOOT_ID.read_text().strip()} {moment}"

    def sent(method: str, path: str, body: Any) -> int:
        text = request_text(method, path, body, "", until)
        return exchange(str(served.socket), text, time.monotonic() + 30).status

    assert sent("POST", "/v1/claims", body) == status
    assert [each.uuid for each in agent.instances()] == ([consumer] if status == 201 else [])
    if status == 408:
        agent.claim(body)
        assert sent("DELETE", f"/v1/claims/{consumer}", None) == 408
        assert agent.show_claim(consumer).state == "claimed", "a release that is late frees nothing"
        assert sent("POST", "/v1/pause", {"reason": "late"}) == 408 and agent.status().pause is None


def test_a_claim_that_a_stalled_agent_gets_to_late_is_not_made(
    agent: plimsoll.Agent, served: ServedAgent
) -> None:
    consumer = str(uuid4())
    with (
        served.world.operations.tracker.turns_on((), [consumer]),
        pytest.raises(plimsoll.OutcomeUnknown) as caught,
    ):
        agent.claim(consumer=consumer, resources=SMALL, timeout=0.3)
    assert caught.value.key == consumer
    with pytest.raises(plimsoll.NotFound):
        agent.release(consumer)
    time.sleep(0.3)
    assert agent.instances() == ()


@pytest.mark.parametrize("listens", [False, True])
def test_a_claim_is_not_begun_once_its_caller_has_hung_up(served: ServedAgent, listens: bool) -> None:
    """A caller that only sends no more waits for its answer."""
    consumer = str(uuid4())
    body = {"consumer": consumer, "groups": [{"resources": SMALL}]}
    # The connection is closed before the turn is given back, which the claim waits for.
    with served.world.operations.tracker.turns_on((), [consumer]), socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(served.socket))
        caller.sendall(request_text("POST", "/v1/claims", body, ""))
        time.sleep(0.2)
        caller.shutdown(socket.SHUT_WR)
        answer = caller.dup() if listens else None
    if answer is not None:
        assert answer.recv(100).startswith(b"HTTP/1.1 201")
        answer.close()
    time.sleep(0.3)
    assert len(plimsoll.Agent(str(served.socket)).instances()) == listens


def test_a_cancelled_claim_leaves_nothing(served: ServedAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plimsoll.async_agent.UNDO_S", 60.0)  # on a busy machine

    async def program() -> None:
        agent = plimsoll.AsyncAgent(str(served.socket))
        for tenth_ms in range(0, 60, 2):
            with suppress(TimeoutError):
                async with asyncio.timeout(tenth_ms / 10_000):
                    kept.add((await agent.claim(resources=SMALL)).consumer)
            instance = str(uuid4())
            kept.add((await agent.claim(consumer=instance, resources=SMALL)).consumer)
            with suppress(TimeoutError):
                async with asyncio.timeout(tenth_ms / 10_000):
                    begun.add(
                        (await agent.begin_move("resize", resources=SMALL, consumer=instance)).migration
                    )

    kept, begun = set[str](), set[str]()
    asyncio.run(program())
    agent = plimsoll.Agent(str(served.socket))
    assert {instance.uuid for instance in agent.instances()} == kept | begun
    assert {move.migration for move in agent.moves() if not move.ended} == begun


def test_an_interrupted_claim_is_released_where_its_key_is_its_own(tmp_path: Path) -> None:
    got: list[bytes] = []

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def serve(server: socket.socket) -> None:
        first, _ = server.accept()
        got.append(first.recv(65536))
        second, _ = server.accept()
        got.append(second.recv(65536))
        second.close()
        first.close()

    was = signal.signal(signal.SIGALRM, interrupt)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(tmp_path / "s"))
            server.listen()
            thread = threading.Thread(target=serve, args=(server,))
            thread.start()
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(KeyboardInterrupt) as caught:
                plimsoll.Agent(str(tmp_path / "s"), retries=0).claim(resources=SMALL)
            thread.join()
    finally:
        signal.signal(signal.SIGALRM, was)
    consumer = json.loads(got[0].partition(b"\r\n\r\n")[2])["consumer"]
    assert got[1].startswith(f"DELETE /v1/claims/{consumer} ".encode())
    (note,) = caught.value.__notes__
    assert consumer in note and "could not be undone" in note


def test_a_claim_whose_guest_has_just_started_is_not_released(
    agent: plimsoll.Agent, served: ServedAgent
) -> None:
    """Before a pass has seen the guest, as where the event of its start is late."""
    consumer = str(uuid4())
    agent.claim(consumer=consumer, name="web1", resources=SMALL)
    guest = Guest(consumer, "web1", GuestState.RUNNING, resources=SMALL)
    served.world.driver.change(guests=(guest,))
    with pytest.raises(plimsoll.Refused, match=r"web1 .* is running on this host"):
        agent.release(consumer)
    assert agent.show_claim(consumer).state == "claimed"
    served.world.driver.change(guests=())
    assert agent.release(consumer).released


def test_the_same_claim_again_is_the_same_claim(agent: plimsoll.Agent) -> None:
    first = agent.claim(resources=SMALL)
    assert agent.claim(consumer=first.consumer, resources=SMALL) == first
    named = agent.claim(name="db1", resources=SMALL)
    assert agent.claim(name="db1", resources=SMALL) == named
    assert len(agent.instances()) == 2


def test_claims_by_groups_and_by_a_flavor(agent: plimsoll.Agent) -> None:
    groups = ClaimByGroups(
        groups=(Group(resources={"VCPU": 2}), Group(suffix="_m", resources={"MEMORY_MB": 64}))
    )
    by_groups = agent.claim(groups, name="groups")
    assert {mapping.suffix for mapping in by_groups.mappings} == {"", "_m"}
    by_flavor = agent.claim(ClaimByFlavor(flavor=Flavor(vcpus=2, memory_mb=64)), name="flavor")
    assert by_flavor.request.groups[0].resources == {"VCPU": 2, "MEMORY_MB": 64}
    assert agent.claim({"groups": [{"resources": {"VCPU": 2}}]}, name="json").name == "json"


def test_a_claim_is_extended_to_amounts_in_all(agent: plimsoll.Agent, served: ServedAgent) -> None:
    claim = agent.claim(name="web1", resources=SMALL)
    larger = {"DISK_GB": 20, "VCPU": 3, "MEMORY_MB": 64}
    grown = agent.extend(claim.consumer, larger)
    (allocation,) = grown.allocations.values()
    assert allocation.resources == {"DISK_GB": 20, "VCPU": 3, "MEMORY_MB": 128}
    assert agent.extend(claim.consumer, larger) == grown == agent.show_claim(claim.consumer)
    assert grown.made_by == claim.made_by and grown.since == claim.since
    held = served.world.operations.client.allocations_of(claim.consumer).allocations
    assert list(held.values()) == [allocation.resources]
    with pytest.raises(plimsoll.Refused) as caught:
        agent.extend(claim.consumer, {"DISK_GB": 10**6})
    assert caught.value.shortfalls[0].resource_class == "DISK_GB"
    with pytest.raises(plimsoll.InvalidRequest, match="not extended by PGPU"):
        agent.extend(claim.consumer, {"PGPU": 1})
    with pytest.raises(plimsoll.InvalidRequest):
        agent.extend(claim.consumer, {"DISK_GB": 0})
    with pytest.raises(plimsoll.NotFound):
        agent.extend(str(uuid4()), {"DISK_GB": 1})
    assert agent.show_claim(claim.consumer) == grown
    assert agent.audit() == ()


def test_cells_are_not_extended(agent: plimsoll.Agent) -> None:
    one_cell = Flavor(vcpus=2, memory_mb=512, extra_specs={"hw:numa_nodes": 1})
    claim = agent.claim(ClaimByFlavor(flavor=one_cell), name="one-cell")
    with pytest.raises(plimsoll.InvalidRequest, match="not extended by MEMORY_MB"):
        agent.extend(claim.consumer, {"MEMORY_MB": 1024})
    assert agent.extend(claim.consumer, {"DISK_GB": 5}).cells == claim.cells


def test_a_refusal_has_its_shortfalls_as_values(agent: plimsoll.Agent) -> None:
    with pytest.raises(plimsoll.Refused) as caught:
        agent.claim(resources={"VCPU": 10_000}, name="giant")
    (shortfall,) = caught.value.shortfalls
    assert (shortfall.resource_class, shortfall.asked) == ("VCPU", 10_000) and shortfall.free > 0
    assert caught.value.code == "plimsoll.claim.does_not_fit" and caught.value.key == "giant"
    explained = agent.explain_claim(resources={"VCPU": 10_000})
    assert not explained.fits and explained.shortfalls == caught.value.shortfalls


def test_another_claim_of_a_consumer_is_a_conflict(agent: plimsoll.Agent) -> None:
    claim = agent.claim(resources=SMALL)
    with pytest.raises(plimsoll.Conflict):
        agent.claim(consumer=claim.consumer, resources={"VCPU": 2})


def test_a_paused_host_is_closed_and_that_is_a_refusal(agent: plimsoll.Agent) -> None:
    assert agent.pause("a new kernel").reason == "a new kernel"
    with pytest.raises(plimsoll.Closed, match="a new kernel") as caught:
        agent.claim(resources=SMALL)
    assert isinstance(caught.value, plimsoll.Refused) and caught.value.shortfalls == ()
    status = agent.status()
    assert status.pause is not None and not status.claims.open
    health = agent.readyz()
    assert not health.ok and health.failed == ("claims",)
    assert agent.healthz().ok is True and agent.livez().ok is True
    agent.resume()
    assert agent.status().pause is None and agent.readyz().ok


def test_a_malformed_request_is_invalid(agent: plimsoll.Agent) -> None:
    with pytest.raises(plimsoll.InvalidRequest, match="VCPU"):
        agent.claim(resources={"VCPU": 0})
    with pytest.raises(plimsoll.InvalidRequest):
        agent.show_claim("web1")
    with pytest.raises(plimsoll.InvalidRequest) as caught:
        agent.claim({"groups": ["x" * 8_000_000]}, name="big")
    assert caught.value.status == 413, "which the agent says before it has read all of it"


def test_what_the_host_has_and_did(agent: plimsoll.Agent) -> None:
    claim = agent.claim(name="web1", resources=SMALL)
    root = agent.tree().resource_providers[0]
    assert root.usages["VCPU"] == 1 and root.inventories["VCPU"].capacity > 1
    assert [event.event for event in agent.history("web1")] == ["grant", "begin"]
    (found,) = agent.explain("web1").found
    assert found.id == claim.consumer and found.kind == "consumer"
    assert agent.overview().instances == agent.instances()
    assert agent.plan().operations == () and agent.audit() == () and agent.heal_audit(dry_run=True) == ()
    assert agent.look().status.state == "ready"
    assert agent.config()["DEFAULT"]["host"].value == "node1"
    assert "plimsoll_" in agent.metrics() and agent.openapi()["openapi"] == "3.1.0"
    assert not agent.preview_reshape().due and agent.reshape() == ()


def test_capacity_defrag_and_where(agent: plimsoll.Agent) -> None:
    capacity = agent.capacity(resources=SMALL)
    assert capacity.guests > 1 and capacity.asked == SMALL
    assert agent.defrag(resources=SMALL).possible
    where = agent.where(Addition(groups=(Group(resources=SMALL),)), strategy="spread", count=2)
    assert where.verdict == "fits" and [place.host for place in where.places] == ["node1", "node1"]
    assert agent.where(resources={"VCPU": 10_000}).verdict == "never"


def test_a_device_is_cordoned_and_cleared(agent: plimsoll.Agent) -> None:
    address = agent.devices()[0].unit
    assert agent.cordon_device(address, "it fails").reason == "it fails"
    (device,) = (device for device in agent.devices() if device.unit == address)
    assert device.cordon is not None and device.cordon.address == address
    agent.clear_device(address)
    with pytest.raises(plimsoll.InvalidRequest):
        agent.clear_device(address)


def test_a_rebuild_is_begun_confirmed_and_reverted(agent: plimsoll.Agent) -> None:
    consumer = agent.claim(name="web1", resources=SMALL).consumer
    move = agent.begin_move("resize", resources={"VCPU": 2, "MEMORY_MB": 128}, consumer=consumer)
    again = agent.begin_move(
        "resize", resources={"VCPU": 2, "MEMORY_MB": 128}, consumer=consumer, migration=move.migration
    )
    assert again == move and move.new is not None and not move.ended
    assert agent.show_move(move.migration).instance == consumer and len(agent.moves()) == 1
    assert agent.revert_move(move.migration).ended
    second = agent.begin_move("resize", resources={"VCPU": 2}, consumer=consumer)
    confirmed = agent.confirm_move(second.migration)
    assert confirmed.ended and agent.confirm_move(second.migration) == confirmed
    with pytest.raises(plimsoll.NotFound):
        agent.show_move(str(uuid4()))


def test_the_context_of_a_claim_releases_where_its_block_raises(served: ServedAgent) -> None:
    with plimsoll.Agent(str(served.socket)) as agent:
        with agent.claim(resources=SMALL) as kept:
            pass
        with pytest.raises(KeyError), agent.claim(resources=SMALL):
            raise KeyError("the guest did not start")
        assert [instance.uuid for instance in agent.instances()] == [kept.consumer]
        with pytest.raises(TypeError), agent.show_claim(kept.consumer):
            pass


def test_the_context_leaves_a_claim_that_another_call_made(served: ServedAgent, tmp_path: Path) -> None:
    agent = plimsoll.Agent(str(served.socket))
    made = agent.claim(name="web1", resources=SMALL)
    xml = f"<domain><uuid>{uuid4()}</uuid><name>vm</name><memory>65536</memory><vcpu>1</vcpu></domain>"
    domain = agent.claim_domain(xml)
    for again in (
        lambda: agent.claim(name="web1", resources=SMALL),
        lambda: agent.claim(consumer=made.consumer, resources=SMALL),
        lambda: agent.claim_domain(xml),
    ):
        with pytest.raises(KeyError), again():
            raise KeyError("the guest did not start")
    assert {instance.uuid for instance in agent.instances()} == {made.consumer, domain.consumer}

    async def program() -> None:
        async with await plimsoll.AsyncAgent(str(served.socket)).claim(name="web1", resources=SMALL):
            raise KeyError("the guest did not start")

    with pytest.raises(KeyError):
        asyncio.run(program())
    assert agent.show_claim(made.consumer) == made
    for first in (
        lambda: agent.claim(name="web2", resources=SMALL),
        lambda: agent.claim_domain(xml.replace("</uuid>", "</uuid>").replace(domain.consumer, str(uuid4()))),
    ):
        with pytest.raises(KeyError), first():
            raise KeyError("the guest did not start")
    assert {instance.uuid for instance in agent.instances()} == {made.consumer, domain.consumer}


def test_of_two_that_claim_at_once_one_made_it(served: ServedAgent) -> None:
    agent, made = plimsoll.Agent(str(served.socket)), list[str]()
    body = {"consumer": str(uuid4()), "groups": [{"resources": SMALL}]}

    def claim() -> None:
        reply = exchange(
            str(served.socket), request_text("POST", "/v1/claims", body, ""), time.monotonic() + 30
        )
        made.append(reply.headers["plimsoll-made"])

    with served.world.operations.tracker.turns_on((), [body["consumer"]]):
        threads = [threading.Thread(target=claim) for _ in range(2)]
        for thread in threads:
            thread.start()
        time.sleep(0.2)
    for thread in threads:
        thread.join()
    assert sorted(made) == ["false", "true"] and len(agent.instances()) == 1


def test_so_does_the_one_with_an_event_loop(served: ServedAgent) -> None:
    async def program() -> None:
        async with plimsoll.AsyncAgent(str(served.socket)) as agent:
            async with await agent.claim(resources=SMALL) as kept:
                pass
            with pytest.raises(KeyError):
                async with await agent.claim(resources=SMALL):
                    raise KeyError("the guest did not start")
            several = await asyncio.gather(*(agent.claim(resources=SMALL) for _ in range(8)))
            assert {instance.uuid for instance in await agent.instances()} == {
                kept.consumer,
                *(claim.consumer for claim in several),
            }

    asyncio.run(program())


def test_a_release_that_fails_is_a_note_of_the_first_error(served: ServedAgent) -> None:
    with plimsoll.Agent(str(served.socket)) as agent:
        with pytest.raises(KeyError) as caught, agent.claim(resources=SMALL) as claim:
            agent.release(claim.consumer)
            raise KeyError("the guest did not start")
        (note,) = caught.value.__notes__
        assert note.startswith("The claim was not released: ")


def test_the_context_releases_by_an_agent_that_is_being_restarted(tmp_path: Path) -> None:
    agent, is_over = plimsoll.Agent(str(tmp_path / "s")), threading.Event()
    with served_agent(tmp_path) as served:
        served.world.agent.reconcile("the start")
        context = agent.claim(resources=SMALL)

    def restart() -> None:
        time.sleep(0.5)
        with served_agent(tmp_path) as served:
            served.world.agent.reconcile("the start")
            is_over.wait(20)

    thread = threading.Thread(target=restart)
    thread.start()
    try:
        with pytest.raises(KeyError) as caught, context:
            raise KeyError("the guest did not start")
        assert not hasattr(caught.value, "__notes__") and agent.instances() == ()
    finally:
        is_over.set()
        thread.join()


def test_who_made_a_claim_is_kept_and_shown(served: ServedAgent) -> None:
    agent = plimsoll.Agent(str(served.socket), made_by="ansible")
    claim = agent.claim(name="web1", resources=SMALL)
    assert claim.made_by == Maker(uid=os.getuid(), program="ansible")
    other = plimsoll.Agent(str(served.socket))
    assert other.claim(name="web1", resources=SMALL).made_by == claim.made_by, (
        "who asks again did not make it"
    )
    assert other.claim(name="web2", resources=SMALL).made_by == Maker(
        uid=os.getuid(), program="plimsoll/0.1.0"
    )
    assert f"ansible (uid {os.getuid()})" in served("instances").stdout
    moved = other.begin_move("resize", resources={"VCPU": 2}, consumer=claim.consumer)
    assert moved.old.made_by == claim.made_by
    assert moved.new is not None and moved.new.made_by == Maker(uid=os.getuid(), program="plimsoll/0.1.0")
    assert other.revert_move(moved.migration).ended
    assert other.show_claim(claim.consumer).made_by == claim.made_by
    rebuilt = other.begin_move("rebuild", resources=SMALL, consumer=claim.consumer).new
    assert rebuilt is not None and rebuilt.made_by == claim.made_by, "it has the same place"
    assert {kept.maker for kept in served.world.journal.claims().values()} == {
        kept.maker for kept in served.world.operations.tracker.claims().values()
    }


def followed(agent: plimsoll.Agent, after: str | None, many: int) -> list[Any]:
    """So many of the changes after that one, by either client."""
    if isinstance(agent, plimsoll.Agent):
        return list(itertools.islice(agent.watch(after, every=0.01), many))

    async def program() -> list[Any]:
        found: list[Any] = []
        async for change in agent._agent.watch(after, every=0.01):
            found.append(change)
            if len(found) == many:
                return found
        return found

    return asyncio.run(program())


def test_each_event_is_seen_once_and_in_order(agent: plimsoll.Agent) -> None:
    begin = agent.history(limit=1)[0].id
    consumers = [agent.claim(resources=SMALL).consumer for _ in range(3)]
    seen = followed(agent, begin, 6)
    assert [(event.consumer, event.event) for event in seen] == [
        (consumer, event) for consumer in consumers for event in ("begin", "grant")
    ]
    assert list(reversed(seen)) == list(agent.history(limit=6))
    assert followed(agent, seen[3].id, 2) == seen[4:]
    assert followed(agent, "0", 1)[0].event


def test_a_watch_from_now_sees_what_comes(served: ServedAgent) -> None:
    agent = plimsoll.Agent(str(served.socket))
    claim = agent.claim(resources=SMALL)
    watch = agent.watch(every=0.01)
    timer = threading.Timer(0.2, lambda: plimsoll.Agent(str(served.socket)).release(claim.consumer))
    timer.start()
    change = next(watch)
    timer.join()
    assert isinstance(change, Event) and (change.consumer, change.event) == (claim.consumer, "release")


@pytest.mark.parametrize("lost", ["1-0", "999999-1764223221000"])
def test_what_the_history_no_longer_has_is_a_gap(agent: plimsoll.Agent, lost: str) -> None:
    newest = agent.history(limit=1)[0].id
    assert followed(agent, lost, 1) == [plimsoll.Gap(newest)]
    with pytest.raises(plimsoll.NotFound, match="Read the host anew") as caught:
        agent.request("GET", f"/v1/history?after={lost}")
    assert (caught.value.status, caught.value.code) == (410, "plimsoll.history.gap")


@pytest.mark.parametrize("wrong", ["after=x", "after=-1", f"after={'9' * 40}", "after=0&within=1", "after="])
def test_what_is_no_id_of_an_event(agent: plimsoll.Agent, wrong: str) -> None:
    with pytest.raises(plimsoll.InvalidRequest, match="after"):
        agent.request("GET", f"/v1/history?{wrong}")


def test_a_watch_goes_on_over_a_restart_and_not_without_an_end(tmp_path: Path) -> None:
    seen: Queue[Any] = Queue()

    def follow() -> None:
        try:
            for change in plimsoll.Agent(str(tmp_path / "s")).watch(begin, every=0.01, patience=1.5):
                seen.put(change)
        except plimsoll.PlimsollError as error:
            seen.put(error)

    with served_agent(tmp_path) as served:
        served.world.agent.reconcile("the start")
        begin = plimsoll.Agent(str(served.socket)).history(limit=1)[0].id
        thread = threading.Thread(target=follow)
        thread.start()
        first = plimsoll.Agent(str(served.socket)).claim(resources=SMALL)
        assert [seen.get(timeout=10).event for _ in range(2)] == ["begin", "grant"]
    with served_agent(tmp_path) as served:
        served.world.agent.reconcile("the start")
        plimsoll.Agent(str(served.socket)).release(first.consumer)
        missed: list[Any] = []
        while not missed or missed[-1].event != "gone":
            missed.append(seen.get(timeout=10))
        assert [event.event for event in missed if event.consumer == first.consumer] == ["release", "gone"]
    assert isinstance(seen.get(timeout=10), plimsoll.Unavailable)
    thread.join()


def test_a_watch_of_no_agent_ends_at_once(agent: plimsoll.Agent, tmp_path: Path) -> None:
    with pytest.raises(plimsoll.Unavailable):
        followed(type(agent)(str(tmp_path / "none")), None, 1)


@contextmanager
def losing_answers(path: Path, target: Path, losses: int) -> Iterator[None]:
    """At `path`, the agent at `target`; its first answers are lost on the way."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            lost = 0
            while True:
                try:
                    near, _ = server.accept()
                except OSError:
                    return
                with near, socket.socket(socket.AF_UNIX) as far:
                    far.connect(str(target))
                    far.sendall(near.recv(65536))
                    answer = b"".join(iter(lambda: far.recv(65536), b""))
                    lost += 1
                    near.sendall(answer[: len(answer) // 2] if lost <= losses else answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_write_whose_answer_is_lost_is_done_once(served: ServedAgent, tmp_path: Path, kind: str) -> None:
    direct = plimsoll.Agent(str(served.socket))
    for named in ({}, {"name": "web1"}):
        before = len(direct.instances())
        with losing_answers(tmp_path / "cut", served.socket, 2):
            claim = CLIENTS[kind](str(tmp_path / "cut")).claim(resources=SMALL, **named)
        (tmp_path / "cut").unlink()
        assert len(direct.instances()) == before + 1 and direct.show_claim(claim.consumer) == claim
    with losing_answers(tmp_path / "cut", served.socket, 1):
        move = CLIENTS[kind](str(tmp_path / "cut")).begin_move(
            "resize", resources={"VCPU": 2}, consumer=claim.consumer
        )
    (tmp_path / "cut").unlink()
    assert [one.migration for one in direct.moves()] == [move.migration]
    with losing_answers(tmp_path / "cut", served.socket, 1):
        assert CLIENTS[kind](str(tmp_path / "cut")).confirm_move(move.migration).ended
    (tmp_path / "cut").unlink()
    with losing_answers(tmp_path / "cut", served.socket, 1):
        assert CLIENTS[kind](str(tmp_path / "cut")).release(claim.consumer).released
    (tmp_path / "cut").unlink()
    left = len(direct.instances())
    with (
        losing_answers(tmp_path / "cut", served.socket, 99),
        pytest.raises(plimsoll.OutcomeUnknown) as caught,
    ):
        CLIENTS[kind](str(tmp_path / "cut"), retries=0).claim(resources=SMALL)
    assert direct.claim(consumer=caught.value.key, resources=SMALL).consumer == caught.value.key
    assert len(direct.instances()) == left + 1
