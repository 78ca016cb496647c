"""While a content is imported nobody else could get what is held in it already."""

from collections.abc import Callable
from contextlib import closing

import pytest
from hypothesis import given, settings
from kits.contents import contents, fresh_core, small
from kits.examples import examples
from kits.placements import OpenStack
from kits.wire import Wire

from agent.errors import PlimsollError
from agent.placement.snapshot import PlacementSnapshot, differences
from agent.placement.transfer import (
    UNTYPED_MICROVERSION,
    SnapshotClient,
    apply_import,
    plan_import,
    read_service,
)
from agent.placement.transport import Reply, Transport


class Watched(Wire):
    """Calls `looks` after each write; `refuses` paths like a service that keeps them from us."""

    def __init__(self, inner: Transport, looks: Callable[[], None], refuses: str = "-") -> None:
        detail = {"status": 403, "detail": "placement:reshaper is not allowed"}
        super().__init__(
            inner, lambda sent: Reply(403, {"errors": [detail]}) if sent.path == refuses else None
        )
        self.after = self._written
        self._looks = looks
        self.writes: list[str] = []

    def _written(self, call: str) -> None:
        if not call.startswith("GET"):
            self.writes.append(call)
            self._looks()


def free(content: PlacementSnapshot) -> dict[tuple[str, str], int]:
    """{(provider, class): how much a scheduler could still give}"""
    used = content.usages()
    return {
        (uuid, name): max(0, inventory.capacity - used.get(uuid, {}).get(name, 0))
        for uuid, provider in content.providers.items()
        for name, inventory in provider.inventories.items()
    }


def bring(transport: Transport, wanted: PlacementSnapshot) -> None:
    client = SnapshotClient(transport)
    found, evidence = read_service(client)
    plan = plan_import(wanted, found, evidence.names)
    apply_import(client, SnapshotClient(transport, microversion=UNTYPED_MICROVERSION), plan)


def watch(target: Transport, wanted: PlacementSnapshot) -> Watched:
    """Fails where more is offered at some moment than shall be free at the end."""
    at_the_end = free(wanted)

    def looks() -> None:
        now, _ = read_service(SnapshotClient(target))
        for slot, amount in free(now).items():
            assert amount <= at_the_end[slot], (watched.writes[-1], slot)
        for consumer in now.consumers.values():
            assert consumer.allocations == wanted.consumers[consumer.consumer].allocations

    watched = Watched(target, looks)
    return watched


@settings(max_examples=examples(25), deadline=None)
@given(contents())
def test_nothing_that_is_held_is_ever_offered(content: PlacementSnapshot) -> None:
    with fresh_core() as target:
        bring(watch(target, content), content)
        assert differences(content, read_service(SnapshotClient(target))[0]) == ()


@settings(max_examples=examples(2), deadline=None, derandomize=True)
@given(contents())
def test_nor_on_openstack_placement(openstack: OpenStack, content: PlacementSnapshot) -> None:
    openstack.empty()
    with closing(openstack.transport()) as target:
        bring(watch(target, content), content)
        assert differences(content, read_service(SnapshotClient(target))[0]) == ()


@settings(max_examples=examples(6), deadline=None)
@given(contents())
def test_nor_when_it_is_cut_off_after_any_write_and_begun_again(content: PlacementSnapshot) -> None:
    number, died = 0, True
    while died:
        number += 1
        with fresh_core() as target:
            watched = watch(target, content)
            died = _dies(watched, number, content)
            bring(watched, content)
            assert differences(content, read_service(SnapshotClient(target))[0]) == ()


class Death(PlimsollError):
    """The importing process is gone."""


def _dies(watched: Watched, number: int, content: PlacementSnapshot) -> bool:
    def looks() -> None:
        if len(dying.writes) == number:
            raise Death("gone")

    dying = Watched(watched, looks)
    try:
        bring(dying, content)
    except PlimsollError:
        assert len(dying.writes) == number
        return True
    return False


def test_a_consumer_comes_in_the_request_that_brings_its_inventory() -> None:
    with fresh_core() as target:
        watched = watch(target, small())
        bring(watched, small())
    assert watched.writes.count("POST /reshaper") == 1
    assert watched.writes[-1].startswith("PUT /resource_providers/")
    assert not any("/allocations" in each for each in watched.writes)


@pytest.mark.parametrize("kind", ["embedded", "openstack"])
def test_without_the_role_to_reshape_it_is_written_all_the_same(
    kind: str, request: pytest.FixtureRequest
) -> None:
    with fresh_core() as core:
        target = core
        if kind == "openstack":
            openstack: OpenStack = request.getfixturevalue("openstack")
            openstack.empty()
            target = openstack.transport()
        with closing(target):
            bring(Watched(target, lambda: None, refuses="/reshaper"), small())
            assert differences(small(), read_service(SnapshotClient(target))[0]) == ()
