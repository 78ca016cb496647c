"""The embedded transport: a function call a request; closing stops the server before the core."""

from pathlib import Path

import pytest

from agent.durable.errors import DatabaseLocked
from agent.placement.embedded import Core
from agent.placement.transport_embedded import EmbeddedTransport


class Server:
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
    server = Server(core)
    transport = EmbeddedTransport(core, server)
    with pytest.raises(DatabaseLocked):
        Core.open(tmp_path)
    transport.close()
    assert server.stopped_first
    Core.open(tmp_path).close()
