"""Each kind of placement is opened as configured; transports to an embedded core, served or not."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from kits.stalling_disk import StallingDisk

from agent.durable.errors import DatabaseLocked
from agent.errors import PlacementUnavailable, SettingsError, StateError
from agent.placement.connect import EmbeddedTransport, check_options, open_transport
from agent.placement.embedded import Core
from agent.placement.embedded.serve import Server
from agent.placement.transport import SocketTransport
from agent.placement.transport_http import HttpTransport


def test_the_embedded_core_is_served_until_the_transport_is_closed(tmp_path: Path) -> None:
    socket = tmp_path / "placement.sock"
    options = {"serve": [f"unix:{socket}"]}
    with closing(open_transport("embedded", state_dir=tmp_path, options=options)) as transport:
        assert transport.request("GET", "/", microversion="1.39").status == 200
        assert SocketTransport(socket).request("GET", "/", microversion="1.39").status == 200
    assert not socket.exists()


def test_a_remote_transport_does_not_connect_yet() -> None:
    options = {"auth_type": "none", "endpoint_override": "http://127.0.0.1:9"}
    with closing(open_transport("remote", options=options)) as transport:
        assert isinstance(transport, HttpTransport)


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="must be 'embedded' or 'remote'"):
        open_transport("local")
    with pytest.raises(SettingsError, match="needs a state directory"):
        open_transport("embedded")
    with pytest.raises(SettingsError, match=r"\[placement\] serve: Refusing to listen"):
        open_transport("embedded", state_dir=tmp_path, options={"serve": ["0.0.0.0:0"]})
    with closing(open_transport("embedded", state_dir=tmp_path)), pytest.raises(StateError):
        open_transport("embedded", state_dir=tmp_path)
    missing = {"serve": [f"unix:{tmp_path}/missing/placement.sock"]}
    with pytest.raises(SettingsError, match=r"missing/placement\.sock"):
        check_options("embedded", missing)
    check_options("embedded", missing, to_be_made=tmp_path / "missing")
    assert not (tmp_path / "missing").exists()


class StoppedServer:
    def __init__(self, core: Core) -> None:
        self._core = core
        self.stopped_first = False

    def stop(self) -> None:
        self.stopped_first = self._core.request("GET", "/traits", microversion="1.39").status == 200


def test_a_request_is_a_function_call(tmp_path: Path) -> None:
    transport = EmbeddedTransport(Core.open(tmp_path))
    reply = transport.request("PUT", "/traits/CUSTOM_T", microversion="1.39")
    assert (reply.status, reply.body, reply.headers["location"]) == (201, None, "/traits/CUSTOM_T")
    transport.close()


def test_the_server_stops_before_the_core_is_closed(tmp_path: Path) -> None:
    core = Core.open(tmp_path)
    server = StoppedServer(core)
    transport = EmbeddedTransport(core, server)
    with pytest.raises(DatabaseLocked):
        Core.open(tmp_path)
    transport.close()
    assert server.stopped_first
    Core.open(tmp_path).close()


def allocation(host: str, amount: int) -> dict[str, object]:
    return {
        "allocations": {host: {"resources": {"VCPU": amount}}},
        "consumer_generation": None,
        "project_id": "p",
        "user_id": "u",
        "consumer_type": "INSTANCE",
    }


HOST, ONE, OTHER = (f"{n}0000000-0000-4000-8000-000000000000" for n in (1, 2, 3))


def test_a_write_that_the_disk_does_not_answer_is_unknown_until_it_is_sent_again(tmp_path: Path) -> None:
    core = Core.open(tmp_path, wait_s=0.05)
    transport, disk = EmbeddedTransport(core), StallingDisk(core._store.home)

    def send(method: str, path: str, body: object = None) -> int:
        return transport.request(method, path, body, microversion="1.39").status

    assert send("POST", "/resource_providers", {"name": "h", "uuid": HOST}) == 200
    inventory = {"inventories": {"VCPU": {"total": 4}}, "resource_provider_generation": 0}
    assert send("PUT", f"/resource_providers/{HOST}/inventories", inventory) == 200
    bodies = {f"/allocations/{ONE}": allocation(HOST, 1), "/allocations": {OTHER: allocation(HOST, 2)}}
    for path, body in bodies.items():
        method = "PUT" if path != "/allocations" else "POST"
        assert transport.certain
        with disk.stalled():
            with pytest.raises(PlacementUnavailable, match="outcome is unknown") as unknown:
                send(method, path, body)
            assert unknown.value.status == 504 and unknown.value.details["busy"]
            assert not transport.certain
            for read in ("/traits", f"/allocations/{ONE}", f"/allocations/{OTHER}"):
                assert send("GET", read) == 200, "reads are answered, and change nothing of that"
        assert send(method, path, body) == 204, "it was done, and is not done again"
        assert transport.certain
        assert send(method, path, body) == 409, "once answered, the same again is another write"
    usages = transport.request("GET", f"/resource_providers/{HOST}/usages", microversion="1.39").body
    assert usages["usages"] == {"VCPU": 3}
    transport.close()


def test_after_another_write_of_the_consumer_the_same_write_is_a_new_one(tmp_path: Path) -> None:
    core = Core.open(tmp_path, wait_s=0.05)
    transport, disk = EmbeddedTransport(core), StallingDisk(core._store.home)
    with disk.stalled(), pytest.raises(PlacementUnavailable):
        transport.request("PUT", "/traits/CUSTOM_T", microversion="1.39")
    core.request("GET", "/traits", microversion="1.39")
    core._store.home.read("SELECT 1")
    assert transport.request("DELETE", "/traits/CUSTOM_T", microversion="1.39").status == 204
    assert transport.request("PUT", "/traits/CUSTOM_T", microversion="1.39").status == 201
    transport.close()


def test_a_write_of_another_subject_takes_nothing_from_what_is_unknown(tmp_path: Path) -> None:
    core = Core.open(tmp_path, wait_s=0.05)
    transport, disk = EmbeddedTransport(core), StallingDisk(core._store.home)
    with disk.stalled(), pytest.raises(PlacementUnavailable):
        transport.request("PUT", "/traits/CUSTOM_T", microversion="1.39")
    core._store._wait_s = 30.0  # a busy machine takes longer than that disk
    assert transport.request("PUT", "/traits/CUSTOM_OTHER", microversion="1.39").status == 201
    again = transport.request("PUT", "/traits/CUSTOM_T", microversion="1.39")
    assert again.status == 201, "the answer to the first, which made it"
    transport.close()


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    core = Core.open(tmp_path)
    with Server(core, [f"unix:{tmp_path / 'placement.sock'}"]):
        yield tmp_path / "placement.sock"
    core.close()


def test_requests_reach_the_served_core(path: Path) -> None:
    transport = SocketTransport(path)
    created = transport.request("POST", "/resource_providers", {"name": "host"}, microversion="1.39")
    assert created.status == 200 and created.body["name"] == "host"
    assert created.headers["openstack-api-version"] == "placement 1.39"
    assert (transport.address(), transport.identity()) == (f"unix:{path}", "admin")
    transport.close()


def test_the_token_names_the_user(path: Path) -> None:
    reader = SocketTransport(path, token="user:project")
    assert reader.request("GET", "/traits", microversion="1.39").status == 403
    assert reader.identity() == "user:project"


def test_no_socket_is_a_state(tmp_path: Path) -> None:
    with pytest.raises(PlacementUnavailable, match="Check that it is served there"):
        SocketTransport(tmp_path / "none").request("GET", "/", microversion="1.39")
