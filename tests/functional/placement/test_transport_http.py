"""The agent against a real OpenStack Placement over HTTP, and the faults that one will not produce."""

import http.server
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
import requests
import responses
from kits.placements import OpenStack
from kits.served_core_client import make_certificate

from agent.config.options import AGENT_OPTIONS
from agent.errors import (
    IdentityError,
    PlacementConflict,
    PlacementError,
    PlacementFull,
    PlacementUnavailable,
    SettingsError,
)
from agent.placement.apply import apply
from agent.placement.client import ConsumerAllocations, PlacementClient
from agent.placement.connect import open_transport
from agent.placement.embedded import Core
from agent.placement.embedded.serve import Server
from agent.placement.transport import WriteUnknown
from agent.placement.transport_http import HttpTransport
from agent.providers.plan import plan
from agent.tree import Inventory, Provider, ProviderTree

pytest.importorskip("placement", reason="the real Placement is installed with the test extra")

EMPTY = ProviderTree()
KEYSTONE = "http://keystone.test/v3"
PLACEMENT = "http://placement.test"
REQUEST_ID = "x-openstack-request-id"
BY_A_PROXY = {"Via": "1.1 balancer"}
"""The headers of an answer that Placement did not give; the fixture `wire` makes all others its own."""


@pytest.fixture
def client(openstack: OpenStack) -> Iterator[PlacementClient]:
    connected = PlacementClient(openstack.transport())
    yield connected
    connected.close()


@pytest.fixture
def tree() -> ProviderTree:
    """A host of its own for each test, so that they may share one service."""
    root, gpu = str(uuid4()), str(uuid4())
    return ProviderTree(
        [
            Provider(
                root,
                f"host-{root}",
                None,
                {"VCPU": Inventory(16, max_unit=16, allocation_ratio=1.3)},
                frozenset({"COMPUTE_NODE"}),
            ),
            Provider(
                gpu,
                f"gpu-{gpu}",
                root,
                {"CUSTOM_FPGA": Inventory(8, reserved=8), "VGPU": Inventory(8)},
                frozenset({"CUSTOM_T4"}),
                frozenset({str(uuid4())}),
            ),
        ]
    )


def reach(client: PlacementClient, current: ProviderTree, desired: ProviderTree) -> ProviderTree:
    return apply(plan(current, desired), client, current)


def test_the_real_placement_holds_what_was_planned(client: PlacementClient, tree: ProviderTree) -> None:
    (root,) = tree.roots
    assert client.read_tree(root.uuid) == EMPTY
    written = reach(client, EMPTY, tree)
    assert written == tree == client.read_tree(root.uuid)
    assert {provider.uuid: provider.generation for provider in written} == client.generations(root.uuid)
    assert plan(client.read_tree(root.uuid), tree).empty
    bare = ProviderTree([replace(root, name=f"{root.name}-b", inventories={}, traits=frozenset())])
    assert reach(client, written, bare) == bare == client.read_tree(root.uuid)


def test_providers_move_and_swap_their_names(client: PlacementClient, tree: ProviderTree) -> None:
    (root,) = tree.roots
    _, gpu = tree.subtree(root.uuid)
    cell = Provider(str(uuid4()), f"cell-{root.uuid}", root.uuid)
    current = reach(client, EMPTY, tree.with_provider(cell))
    desired = ProviderTree(
        [root, replace(cell, name=gpu.name), replace(gpu, name=cell.name, parent=cell.uuid)]
    )
    assert reach(client, current, desired) == desired == client.read_tree(root.uuid)


def test_a_claim_in_between_is_no_obstacle(client: PlacementClient, tree: ProviderTree) -> None:
    (root,) = tree.roots
    written = reach(client, EMPTY, tree)
    client.write_allocations(ConsumerAllocations(str(uuid4()), {root.uuid: {"VCPU": 2}}))
    desired = written.with_provider(replace(root, inventories={"VCPU": Inventory(24)}))
    assert reach(client, written, desired) == desired == client.read_tree(root.uuid)


def test_names_and_uuids_of_others(client: PlacementClient, tree: ProviderTree) -> None:
    (root,) = tree.roots
    foreign = str(uuid4())
    client.create_provider(Provider(foreign, root.name))
    with pytest.raises(IdentityError, match=foreign):
        reach(client, EMPTY, tree)
    other_name = ProviderTree([replace(root, uuid=foreign, name="something-else")])
    with pytest.raises(IdentityError, match=root.name):
        reach(client, EMPTY, other_name)


def test_claims_swap_and_release(client: PlacementClient, tree: ProviderTree) -> None:
    (root,) = tree.roots
    reach(client, EMPTY, tree)
    consumer, migration = str(uuid4()), str(uuid4())
    assert client.allocations_of(consumer) == ConsumerAllocations(consumer, {})
    client.write_allocations(ConsumerAllocations(consumer, {root.uuid: {"VCPU": 16}}))
    held = client.allocations_of(consumer)
    assert held == ConsumerAllocations(consumer, {root.uuid: {"VCPU": 16}}, 1)
    client.write_allocations(
        replace(held, allocations={root.uuid: {"VCPU": 4}}),
        ConsumerAllocations(migration, {root.uuid: {"VCPU": 16}}, consumer_type="MIGRATION"),
    )
    assert client.provider_allocations(root.uuid).consumers == {
        consumer: {"VCPU": 4},
        migration: {"VCPU": 16},
    }
    assert client.provider_usages(root.uuid) == {"VCPU": 20}
    with pytest.raises(PlacementConflict):
        client.write_allocations(held)
    with pytest.raises(PlacementFull, match="Unable to allocate inventory"):
        client.write_allocations(ConsumerAllocations(str(uuid4()), {root.uuid: {"VCPU": 1}}))
    client.write_allocations(replace(client.allocations_of(migration), allocations={}))
    assert client.delete_allocations(consumer)
    assert not client.delete_allocations(consumer)


def test_what_is_in_use_is_not_taken_away(client: PlacementClient, tree: ProviderTree) -> None:
    (root,) = tree.roots
    written = reach(client, EMPTY, tree)
    client.write_allocations(ConsumerAllocations(str(uuid4()), {root.uuid: {"VCPU": 2}}))
    now = client.read_tree(root.uuid, known=written)[root.uuid]
    with pytest.raises(PlacementError) as raised:
        client.put_inventories(root.uuid, now.generation or 0, {})
    assert raised.value.placement_code == "placement.inventory.inuse"


def test_consumers_below_1_38_have_no_type(
    openstack: OpenStack, client: PlacementClient, tree: ProviderTree
) -> None:
    (root,) = tree.roots
    reach(client, EMPTY, tree)
    old = PlacementClient(open_transport("remote", options=openstack.options), microversion="1.30")
    consumer = str(uuid4())
    old.write_allocations(ConsumerAllocations(consumer, {root.uuid: {"VCPU": 1}}))
    assert old.allocations_of(consumer).consumer_type == "unknown"
    untyped = client.allocations_of(consumer)
    assert untyped.consumer_type == "unknown"
    client.write_allocations(replace(untyped, allocations={root.uuid: {"VCPU": 2}}))
    assert client.allocations_of(consumer).consumer_type == "INSTANCE"
    old.close()


def test_a_newer_agent_than_service_finds_a_common_version(openstack: OpenStack, tree: ProviderTree) -> None:
    (root,) = tree.roots
    client = PlacementClient(open_transport("remote", options=openstack.options), microversion="1.99")
    assert client.read_tree(root.uuid) == EMPTY
    assert client.microversion == "1.39"
    client.close()


def test_the_service_goes_away_and_comes_back(openstack: OpenStack, tree: ProviderTree) -> None:
    openstack.empty()
    client = PlacementClient(openstack.transport())
    (root,) = tree.roots
    written = reach(client, EMPTY, tree)
    openstack.close_door()
    for ask in (lambda: client.generations(root.uuid), lambda: client.put_traits(root.uuid, 0, ())):
        with pytest.raises(PlacementUnavailable, match="did not answer"):
            ask()
    openstack.open_door()
    assert client.read_tree(root.uuid) == written
    client.close()


def test_a_wrong_token_is_refused_with_a_sentence(openstack: OpenStack) -> None:
    client = PlacementClient(open_transport("remote", options={**openstack.options, "token": "nobody"}))
    with pytest.raises(PlacementError, match="did not create the trait CUSTOM_X") as raised:
        client.ensure_trait("CUSTOM_X")
    assert raised.value.status == 403
    client.close()


# Faults, and a Keystone, by `responses`.


def keystone_options(**changes: Any) -> Mapping[str, Any]:
    defaults = {option.dest: option.default for option in AGENT_OPTIONS["placement"]}
    known = {"kind": "remote", "auth_url": KEYSTONE, "username": "plimsoll", "password": "secret"}
    return {**defaults, **known, "region_name": "north", **changes}


VERSION = {
    "version": {
        "id": "v3.14",
        "status": "stable",
        "links": [{"rel": "self", "href": KEYSTONE}],
        "media-types": [{"base": "application/json", "type": "application/vnd.openstack.identity-v3+json"}],
    }
}


def speak_keystone(
    wire: responses.RequestsMock, issued: str = "2020-01-01T00:00:00", expires: str = "2999-01-01T00:00:00"
) -> None:
    endpoints = [
        {"id": name, "interface": name, "region": "north", "region_id": "north", "url": url}
        for name, url in (("internal", PLACEMENT), ("public", "http://public.test"))
    ]
    token = {
        "expires_at": f"{expires}.000000Z",
        "issued_at": f"{issued}.000000Z",
        "methods": ["password"],
        "user": {"id": "u", "name": "plimsoll", "domain": {"id": "default", "name": "Default"}},
        "catalog": [{"id": "p", "name": "placement", "type": "placement", "endpoints": endpoints}],
    }
    wire.assert_all_requests_are_fired = False
    wire.get(KEYSTONE, json=VERSION)
    wire.post(f"{KEYSTONE}/auth/tokens", json={"token": token}, headers={"X-Subject-Token": "t0ken"})


def _with_request_id(answer: requests.Response) -> requests.Response:
    if not BY_A_PROXY.items() <= answer.headers.items():
        answer.headers[REQUEST_ID] = "req-1"
    return answer


@pytest.fixture
def wire() -> Iterator[responses.RequestsMock]:
    with responses.RequestsMock(response_callback=_with_request_id) as mock:
        yield mock


@pytest.fixture
def remote() -> Iterator[PlacementClient]:
    connected = PlacementClient(HttpTransport.from_options(keystone_options()))
    yield connected
    connected.close()


def test_the_catalog_says_where_placement_is(wire: responses.RequestsMock, remote: PlacementClient) -> None:
    speak_keystone(wire)
    wire.put(f"{PLACEMENT}/traits/CUSTOM_X", status=201)
    remote.ensure_trait("CUSTOM_X")
    asked = wire.calls[-1].request
    assert asked.headers["X-Auth-Token"] == "t0ken"
    assert asked.headers["OpenStack-API-Version"] == "placement 1.39"
    assert asked.headers["User-Agent"].startswith("plimsoll ")
    transport = HttpTransport.from_options(keystone_options())
    assert (transport.address(), transport.identity()) == (PLACEMENT, "user u")
    transport.close()


@pytest.mark.parametrize("asks", ["address", "identity"])
def test_who_asks_where_is_not_known_while_keystone_is_away(wire: responses.RequestsMock, asks: str) -> None:
    wire.get(KEYSTONE, body=requests.ConnectionError("refused"))
    wire.post(f"{KEYSTONE}/auth/tokens", body=requests.ConnectionError("refused"))
    wire.assert_all_requests_are_fired = False
    transport = HttpTransport.from_options(keystone_options())
    with pytest.raises(PlacementError, match="find its address" if asks == "address" else "tell who asks"):
        getattr(transport, asks)()
    transport.close()


def test_an_address_alone_needs_no_keystone() -> None:
    options = {"auth_type": "none", "endpoint_override": PLACEMENT}
    transport = HttpTransport.from_options(options)
    assert transport.address() == PLACEMENT
    assert transport.identity() == "the owner of the token or the address: Keystone was not asked"
    transport.close()


def test_a_token_that_ran_out_is_fetched_again(wire: responses.RequestsMock, remote: PlacementClient) -> None:
    speak_keystone(wire)
    refused = wire.put(f"{PLACEMENT}/traits/CUSTOM_X", status=401)
    wire.put(f"{PLACEMENT}/traits/CUSTOM_X", status=201)
    remote.ensure_trait("CUSTOM_X")
    assert refused.call_count == 1
    assert tokens_fetched(wire) == 2


def tokens_fetched(wire: responses.RequestsMock) -> int:
    return sum(str(call.request.url).endswith("/auth/tokens") for call in wire.calls)


@pytest.mark.parametrize("hour", ["2001-01-01", "2099-01-01"], ids=["ahead", "behind"])
def test_a_token_lasts_as_long_as_keystone_says_whatever_the_wall_clock(
    wire: responses.RequestsMock, remote: PlacementClient, monkeypatch: pytest.MonkeyPatch, hour: str
) -> None:
    """The host's clock is years ahead of Keystone's, or behind it: a token an hour, and not one a request."""
    began = time.clock_gettime(time.CLOCK_BOOTTIME)
    now_s = 0.0
    monkeypatch.setattr("agent.placement.transport_http._boot_time", lambda: began + now_s)
    speak_keystone(wire, f"{hour}T00:00:00", f"{hour}T01:00:00")
    wire.put(f"{PLACEMENT}/traits/CUSTOM_X", status=201)
    for now_s, fetched in ((0.0, 1), (1.0, 1), (3400.0, 1), (3590.0, 2), (3600.0, 2)):
        remote.ensure_trait("CUSTOM_X")
        assert tokens_fetched(wire) == fetched, now_s


def test_a_request_waits_for_no_wall_clock(
    wire: responses.RequestsMock, remote: PlacementClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was set back after the start, by years."""
    slept: list[float] = []
    clock = SimpleNamespace(time=lambda: 0.0, sleep=slept.append)
    monkeypatch.setattr("keystoneauth1._fair_semaphore.time", clock)
    speak_keystone(wire)
    wire.put(f"{PLACEMENT}/traits/CUSTOM_X", status=201)
    remote.ensure_trait("CUSTOM_X")
    assert slept == []


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (401, PlacementError, "does not accept the agent"),
        (429, PlacementUnavailable, "Keystone did not authenticate"),
        (503, PlacementUnavailable, "Keystone did not authenticate"),
    ],
)
def test_keystone_says_no(
    wire: responses.RequestsMock, remote: PlacementClient, status: int, kind: type[PlacementError], words: str
) -> None:
    wire.get(KEYSTONE, json=VERSION)
    wire.post(f"{KEYSTONE}/auth/tokens", status=status, headers={"Retry-After": "7"})
    with pytest.raises(PlacementError, match=words) as raised:
        remote.ensure_trait("CUSTOM_X")
    assert type(raised.value) is kind
    assert raised.value.details.get("retry_after") == (7.0 if kind is PlacementUnavailable else None)


def test_keystone_does_not_answer(wire: responses.RequestsMock, remote: PlacementClient) -> None:
    wire.get(KEYSTONE, body=requests.ConnectionError("no route"))
    wire.post(f"{KEYSTONE}/auth/tokens", body=requests.ConnectionError("no route"))
    with pytest.raises(PlacementUnavailable, match="did not answer"):
        remote.ensure_trait("CUSTOM_X")


CONSUMER = "6d3a1fb4-5d6c-4a61-b1f5-0f5a5b6a0b01"


def test_reads_are_repeated_as_often_as_asked_and_writes_never(wire: responses.RequestsMock) -> None:
    speak_keystone(wire)
    options = {"connect_retries": 2, "connect_retry_delay": 0.0}
    options |= {"status_code_retries": 1, "status_code_retry_delay": 0.0}
    client = PlacementClient(HttpTransport.from_options(keystone_options(**options)))
    path = f"{PLACEMENT}/allocations/{CONSUMER}"
    wire.get(path, body=requests.ConnectionError("no route"))
    wire.get(path, body=requests.ConnectionError("no route"))
    wire.get(path, status=503)
    wire.get(path, json={"allocations": {}})
    assert not client.allocations_of(CONSUMER).allocations
    write = wire.put(f"{PLACEMENT}/traits/CUSTOM_X", body=requests.ConnectionError("no route"))
    with pytest.raises(PlacementUnavailable):
        client.ensure_trait("CUSTOM_X")
    assert write.call_count == 1
    write = wire.put(f"{PLACEMENT}/traits/CUSTOM_Y", status=503)
    with pytest.raises(PlacementError):
        client.ensure_trait("CUSTOM_Y")
    assert write.call_count == 1
    client.close()


@pytest.mark.parametrize(
    ("options", "scope"),
    [
        ({}, {"project": {"name": "service", "domain": {"name": "Default"}}}),
        ({"project_id": "p1"}, {"project": {"id": "p1"}}),
        ({"system_scope": "all"}, {"system": {"all": True}}),
        ({"domain_id": "d1"}, {"domain": {"id": "d1"}}),
        ({"trust_id": "t1"}, {"OS-TRUST:trust": {"id": "t1"}}),
    ],
)
def test_a_token_is_for_what_the_options_name(
    wire: responses.RequestsMock, options: dict[str, str], scope: dict[str, Any]
) -> None:
    speak_keystone(wire)
    wire.put(f"{PLACEMENT}/traits/CUSTOM_X", status=201)
    kind = {"auth_type": "v3password"} if "trust_id" in options else {}
    client = PlacementClient(HttpTransport.from_options(keystone_options(**options, **kind)))
    client.ensure_trait("CUSTOM_X")
    (asked,) = (call.request for call in wire.calls if call.request.url.endswith("/auth/tokens"))
    assert json.loads(asked.body)["auth"]["scope"] == scope
    client.close()


def test_the_catalog_has_no_placement(wire: responses.RequestsMock) -> None:
    speak_keystone(wire)
    client = PlacementClient(HttpTransport.from_options(keystone_options(region_name="south")))
    with pytest.raises(PlacementError, match="Check region_name") as raised:
        client.ensure_trait("CUSTOM_X")
    assert type(raised.value) is PlacementError
    client.close()
    transport = HttpTransport.from_options(keystone_options(region_name="south"))
    with pytest.raises(PlacementError, match=r"to find its address: .* Check region_name"):
        transport.address()
    transport.close()


@pytest.fixture
def direct() -> Iterator[PlacementClient]:
    connected = PlacementClient(
        HttpTransport.from_options({"auth_type": "none", "endpoint_override": PLACEMENT})
    )
    yield connected
    connected.close()


class Cutting:
    """Answers the first request on each connection, and closes it without a word at the second."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                with connection:
                    connection.settimeout(2)
                    self._hear(connection)
                    own = f"{REQUEST_ID}: req-1\r\n".encode()
                    connection.sendall(b"HTTP/1.1 200 OK\r\n" + own + b"Content-Length: 2\r\n\r\n{}")
                    self._hear(connection)

    def _hear(self, connection: socket.socket) -> None:
        line = connection.recv(65536).decode().partition(" HTTP")[0]
        self.heard += [line] if line else []


def test_a_read_on_a_connection_that_was_just_closed_is_asked_again_and_a_write_is_not() -> None:
    with closing(Cutting()) as server:
        options = {"auth_type": "none", "endpoint_override": server.url}
        with closing(HttpTransport.from_options(options)) as transport:
            for path in ("/a", "/b"):
                assert transport.request("GET", path, microversion="1.39").status == 200
            with pytest.raises(PlacementUnavailable, match="did not answer to PUT /c"):
                transport.request("PUT", "/c", {}, microversion="1.39")
            assert transport.request("GET", "/d", microversion="1.39").status == 200
        assert server.heard == ["GET /a", "GET /b", "GET /b", "PUT /c", "GET /d"]


def test_nothing_is_sent_twice(wire: responses.RequestsMock, direct: PlacementClient) -> None:
    wire.get(f"{PLACEMENT}/resource_providers", body=requests.ConnectionError("reset"))
    wire.put(f"{PLACEMENT}/traits/CUSTOM_X", body=requests.ReadTimeout("late"))
    with pytest.raises(PlacementUnavailable):
        direct.generations("host")
    with pytest.raises(PlacementUnavailable):
        direct.ensure_trait("CUSTOM_X")
    assert [call.request.method for call in wire.calls] == ["GET", "PUT"]


def test_every_wait_has_an_end(wire: responses.RequestsMock, direct: PlacementClient) -> None:
    wire.put(f"{PLACEMENT}/traits/CUSTOM_X", status=201)
    direct.ensure_trait("CUSTOM_X")
    assert wire.calls[0].request.req_kwargs["timeout"] == (5.0, 15.0)


def test_retry_after_is_told(wire: responses.RequestsMock, direct: PlacementClient) -> None:
    wire.put(
        f"{PLACEMENT}/traits/CUSTOM_X", status=503, headers={"Retry-After": "7"}, body="<html>busy</html>"
    )
    with pytest.raises(PlacementUnavailable) as raised:
        direct.ensure_trait("CUSTOM_X")
    assert raised.value.details["retry_after"] == 7.0


def test_a_proxys_page_is_not_placements_answer(
    wire: responses.RequestsMock, direct: PlacementClient
) -> None:
    wire.get(f"{PLACEMENT}/resource_providers", body="<html>hello</html>", headers=BY_A_PROXY)
    with pytest.raises(PlacementUnavailable, match="without x-openstack-request-id"):
        direct.generations("host")


READS: Mapping[str, tuple[str, Callable[[PlacementClient], object]]] = {
    "versions": ("/", lambda client: client.versions()),
    "tree": ("/resource_providers", lambda client: client.read_tree("host")),
    "find": ("/resource_providers", lambda client: client.find_provider(uuid="host")),
    "contents": (
        "/resource_providers/host/inventories",
        lambda client: client.read_provider(Provider("host", "host")),
    ),
    "traits": ("/resource_providers/host/traits", lambda client: client.provider_traits("host")),
    "consumer": (f"/allocations/{CONSUMER}", lambda client: client.allocations_of(CONSUMER)),
    "held": ("/resource_providers/host/allocations", lambda client: client.provider_allocations("host")),
}
EMPTY_BODY = {
    "allocations": {},
    "inventories": {},
    "resource_provider_generation": 1,
    "resource_providers": [],
    "traits": [],
    "versions": [{"min_version": "1.0", "max_version": "1.0"}],
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("status", [200, 203, 204, 400, 403, 404, 406, 409, 410, 429, 500, 502, 503])
def test_a_read_that_a_proxy_answers_is_not_answered(
    wire: responses.RequestsMock, direct: PlacementClient, read: str, status: int
) -> None:
    path, ask = READS[read]
    content = "" if status == 204 else json.dumps(EMPTY_BODY)
    made_up = wire.get(f"{PLACEMENT}{path}", status=status, body=content, headers=BY_A_PROXY)
    with pytest.raises(PlacementUnavailable, match="something between the agent and Placement") as raised:
        ask(direct)
    assert f"GET {path}:" in raised.value.message and f"status {status}" in raised.value.message
    assert raised.value.sent and raised.value.details["busy"]
    assert made_up.call_count == 1, "there is nothing to negotiate with a proxy"


@pytest.mark.parametrize("status", [200, 204, 400, 401, 404, 406, 409, 503])
def test_a_write_that_a_proxy_answers_is_unknown(
    wire: responses.RequestsMock, direct: PlacementClient, status: int
) -> None:
    wire.put(f"{PLACEMENT}/allocations/{CONSUMER}", status=status, headers=BY_A_PROXY)
    outcome = direct.send_allocations(ConsumerAllocations(CONSUMER, {"host": {"VCPU": 1}}))
    assert isinstance(outcome, WriteUnknown) and outcome.late
    assert "between the agent and Placement" in outcome.error.message


@pytest.mark.parametrize("status", [200, 404, 409])
def test_a_write_of_a_provider_that_a_proxy_answers_is_not_answered(
    wire: responses.RequestsMock, direct: PlacementClient, status: int
) -> None:
    wire.put(
        f"{PLACEMENT}/resource_providers/host/traits", status=status, json=EMPTY_BODY, headers=BY_A_PROXY
    )
    wire.delete(f"{PLACEMENT}/resource_providers/host", status=status, headers=BY_A_PROXY)
    with pytest.raises(PlacementUnavailable, match="without x-openstack-request-id"):
        direct.put_traits("host", 1, ["CUSTOM_X"])
    with pytest.raises(PlacementUnavailable, match="without x-openstack-request-id"):
        direct.delete_provider("host")


def test_a_proxys_retry_after_is_told(wire: responses.RequestsMock, direct: PlacementClient) -> None:
    wire.get(f"{PLACEMENT}/resource_providers", status=503, headers={**BY_A_PROXY, "Retry-After": "7"})
    with pytest.raises(PlacementUnavailable) as raised:
        direct.generations("host")
    assert raised.value.details["retry_after"] == 7.0


def test_a_read_that_authentication_in_front_of_placement_rejects_says_so(
    wire: responses.RequestsMock, direct: PlacementClient
) -> None:
    wire.get(f"{PLACEMENT}/resource_providers", status=401, headers=BY_A_PROXY)
    with pytest.raises(PlacementError, match="does not accept the token") as raised:
        direct.generations("host")
    assert type(raised.value) is PlacementError


@pytest.mark.parametrize(
    ("method", "path", "token", "version", "status"),
    [
        ("GET", "/", "", "1.39", 200),
        ("GET", "/resource_providers", "", "1.39", 401),
        ("GET", "/resource_providers", "stranger", "1.39", 403),
        ("GET", "/nowhere", "admin", "1.39", 404),
        ("GET", "/resource_providers/x/inventories", "admin", "1.39", 404),
        ("GET", "/resource_providers?nonsense=1", "admin", "1.39", 400),
        ("GET", "/resource_providers", "admin", "1.99", 406),
        ("GET", "/resource_providers", "admin", "nonsense", 400),
        ("PATCH", "/resource_providers", "admin", "1.39", 405),
        ("PUT", "/traits/CUSTOM_X", "stranger", "1.39", 403),
        ("PUT", "/traits/nonsense", "admin", "1.39", 400),
        ("POST", "/reshaper", "admin", "1.39", 415),
    ],
)
@pytest.mark.parametrize("served", ["openstack", "embedded"])
def test_every_answer_of_placement_has_its_request_id(
    openstack: OpenStack,
    tmp_path: Path,
    served: str,
    method: str,
    path: str,
    token: str,
    version: str,
    status: int,
) -> None:
    headers = {"X-Auth-Token": token} if token else {}
    headers["OpenStack-API-Version"] = f"placement {version}"
    with serving(openstack, served, tmp_path) as url:
        answer = requests.request(method, f"{url}{path}", headers=headers, timeout=10)
    assert answer.status_code == status
    assert answer.headers[REQUEST_ID].startswith("req-")


@contextmanager
def serving(openstack: OpenStack, served: str, directory: Path) -> Iterator[str]:
    """The address of the real Placement, or of an embedded core that is served."""
    if served == "openstack":
        yield openstack.options["endpoint_override"]
        return
    with closing(Core.open(directory)) as core, Server(core, ["127.0.0.1:0"]) as server:
        yield f"http://{server.addresses[0]}"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"auth_type": "smile"}, "auth_type = smile is unknown; the known ones are .*password"),
        ({"auth_type": "password"}, "auth_type = password needs auth_url"),
    ],
)
def test_options_that_cannot_work_are_refused(options: Mapping[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        open_transport("remote", options=options)


def test_ciphers_that_openssl_does_not_know_are_refused() -> None:
    options = {"auth_type": "none", "endpoint_override": PLACEMENT, "tls_ciphers": "ROT13"}
    with pytest.raises(SettingsError, match="tls_ciphers = ROT13 names no cipher that OpenSSL knows"):
        open_transport("remote", options=options)


def test_the_statuses_that_a_read_is_repeated_for(wire: responses.RequestsMock) -> None:
    speak_keystone(wire)
    # Of other statuses than those that keystoneauth repeats by itself.
    options = {"status_code_retries": 2, "status_code_retry_delay": 0.0, "retriable_status_codes": (500, 502)}
    transport = HttpTransport.from_options(keystone_options(**options))
    for status in (500, 502):
        wire.get(f"{PLACEMENT}/allocations/{CONSUMER}", status=status)
    wire.get(f"{PLACEMENT}/allocations/{CONSUMER}", json={"allocations": {}})
    reply = transport.request("GET", f"/allocations/{CONSUMER}", microversion="1.39")
    assert (reply.status, reply.body) == (200, {"allocations": {}})
    transport.close()


@contextmanager
def tls_server(directory: Path, most: ssl.TLSVersion) -> Iterator[tuple[str, str]]:
    """(address, certificate) of a Placement that speaks this version of TLS at most."""
    certificate, key = make_certificate(directory)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = most
    context.load_cert_chain(certificate, key)
    server = http.server.HTTPServer(("127.0.0.1", 0), VersionPage)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}", str(certificate)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class VersionPage(http.server.BaseHTTPRequestHandler):
    """Answers what Placement answers at `/`."""

    def do_GET(self) -> None:
        body = json.dumps({"versions": [{"id": "v1.0", "min_version": "1.0", "max_version": "1.39"}]})
        self.send_response(200)
        self.send_header(REQUEST_ID, "req-1")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output clean."""


@pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")
@pytest.mark.parametrize("verify", ["cafile", "insecure"])
@pytest.mark.parametrize(
    ("options", "answers"),
    [
        ({"tls_min_version": "1.2"}, True),
        ({"tls_min_version": "1.3"}, False),
        ({"tls_ciphers": "ECDHE+AESGCM"}, True),
        ({"tls_ciphers": "PSK"}, False),
    ],
)
def test_tls_is_spoken_as_the_options_say(
    tmp_path: Path, verify: str, options: Mapping[str, Any], answers: bool
) -> None:
    with tls_server(tmp_path, ssl.TLSVersion.TLSv1_2) as (address, certificate):
        trust = {"cafile": certificate} if verify == "cafile" else {"insecure": True}
        named = {"auth_type": "none", "endpoint_override": address, "timeout": 5, **trust, **options}
        with closing(HttpTransport.from_options(named)) as transport:
            if answers:
                assert transport.request("GET", "/", microversion="1.39").status == 200
            else:
                with pytest.raises(PlacementUnavailable):
                    transport.request("GET", "/", microversion="1.39")


@pytest.mark.parametrize("option", ["cafile", "certfile", "keyfile"])
def test_a_file_that_is_not_there_is_named(tmp_path: Path, option: str) -> None:
    there = tmp_path / "there.pem"
    there.touch()
    files = {"certfile": str(there), "keyfile": str(there)} if option != "cafile" else {}
    options = {"auth_type": "none", "endpoint_override": "https://127.0.0.1:9", "timeout": 2}
    transport = HttpTransport.from_options({**options, **files, option: "/not/there.pem"})
    told = pytest.raises(PlacementError, match=r"/not/there.pem.*Check cafile, certfile and keyfile")
    with closing(transport), told:
        transport.request("GET", "/", microversion="1.39")


def test_an_application_credential_asks_for_no_project(wire: responses.RequestsMock) -> None:
    speak_keystone(wire)
    wire.put(f"{PLACEMENT}/traits/CUSTOM_X", status=201)
    client = PlacementClient(
        HttpTransport.from_options(
            keystone_options(
                auth_type="v3applicationcredential",
                application_credential_id="id",
                application_credential_secret="secret",
            )
        )
    )
    client.ensure_trait("CUSTOM_X")
    (asked,) = [call.request for call in wire.calls if call.request.url.endswith("/auth/tokens")]
    assert "scope" not in json.loads(asked.body or "")["auth"]
    client.close()
