"""The read-only HTTP listener: GET and HEAD of a few paths, over TCP, for whoever can connect.

Off loopback it has no page: that names guests, and there is nobody here to ask who is reading. On loopback a
request must be for loopback, too, so that no web page can have a browser read it under a name of its own
(DNS rebinding).
"""

import os
import socket
import threading
from collections.abc import Sequence

from agent import log
from agent.config.address import Address
from agent.http.server import BoundedServer
from agent.status.host_status import HostStatus
from agent.status.web import Web

LOG = log.get(__name__)

THREADS = 4
WAITING_MAX = 16
BACKLOG = 32
KEPT_CONNECTIONS_MAX = 8
HEADER_BYTES_MAX = 8 * 1024
BODY_BYTES_MAX = 1
"""0 would be no bound at all."""
IO_TIMEOUT_S = 5
REQUEST_TIMEOUT_S = 5.0
STOP_TIMEOUT_S = 5
IDLE_WAKE_S = 1.0


class HttpListener:
    """Serves `seeing` at each of the addresses; none is fine."""

    def __init__(self, seeing: HostStatus, addresses: Sequence[Address]) -> None:
        self._servers = [(address, _server(seeing, address)) for address in addresses]
        self._serving: list[BoundedServer] = []

    def start(self) -> None:
        """Listen; when this returns, requests are answered. An address that cannot be had is said in the log:
        claims matter more than looking at them."""
        # cheroot would take descriptor 3 for its socket if this were left over from whoever started us.
        os.environ.pop("LISTEN_PID", None)
        for address, server in self._servers:
            try:
                server.prepare()
            except OSError as error:
                LOG.error(
                    "Nothing is served at %s: %s; set [http] listen to an address of this machine that is "
                    "not in use, and restart the agent.",
                    address,
                    error.strerror or error,
                )
                continue
            thread = threading.Thread(target=server.serve, name=f"http {address}", daemon=True)
            thread.start()
            self._serving.append(server)
        if self._serving:
            LOG.info("The health checks and the metrics are at %s.", ", ".join(self.addresses))

    @property
    def addresses(self) -> list[str]:
        """Where it listens; a port 0 shows as the port that was given."""
        return [str(Address(*server.bind_addr[:2])) for server in self._serving]

    def stop(self) -> None:
        """Let requests under way end, and close; idempotent."""
        servers, self._serving = self._serving, []
        stoppers = [threading.Thread(target=server.stop, daemon=True) for server in servers]
        for stopper in stoppers:
            stopper.start()
        for stopper in stoppers:
            stopper.join(2 * STOP_TIMEOUT_S)


def _server(seeing: HostStatus, address: Address) -> BoundedServer:
    server = _TcpServer(
        tuple(address),
        Web(seeing, local=address.is_loopback),
        numthreads=THREADS,
        max=THREADS,
        server_name="plimsoll",
        request_queue_size=BACKLOG,
        timeout=IO_TIMEOUT_S,
        shutdown_timeout=STOP_TIMEOUT_S,
        accepted_queue_size=WAITING_MAX,
        accepted_queue_timeout=1,
    )
    server.request_timeout_s = REQUEST_TIMEOUT_S
    server.expiration_interval = IDLE_WAKE_S
    server.keep_alive_conn_limit = KEPT_CONNECTIONS_MAX
    server.max_request_body_size = BODY_BYTES_MAX
    server.max_request_header_size = HEADER_BYTES_MAX
    return server


class _TcpServer(BoundedServer):
    @staticmethod
    def bind_socket(socket_: socket.socket, bind_addr: tuple[str, int]) -> socket.socket:
        try:
            socket_.bind(bind_addr)
        except OSError:
            socket_.close()
            raise
        return socket_
