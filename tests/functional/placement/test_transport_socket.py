"""The socket transport: requests to a served core, and no socket at all."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.errors import PlacementUnavailable
from agent.placement.embedded import Core
from agent.placement.embedded.serve import Server
from agent.placement.transport import SocketTransport


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
