"""The transport is opened by its kind; what it needs is checked first."""

from contextlib import closing
from pathlib import Path

import pytest

from agent.errors import SettingsError, StateError
from agent.placement.connect import open_transport
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
