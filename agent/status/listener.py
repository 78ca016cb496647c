"""The read-only HTTP listener: GET and HEAD of a few paths, over TCP, for every client that can connect.

An address off loopback has no status page: the page names guests, and TCP does not tell who reads it. At a
loopback address a request must name a loopback host, so that no web page can have a browser read the status
under a name of its own (DNS rebinding).
"""

from collections.abc import Sequence

from agent import log
from agent.config.address import Address
from agent.http.errors import ListenError
from agent.http.listener import Listener, stop_all
from agent.http.server import BoundedServer, Limits
from agent.status.host_status import HostStatus
from agent.status.web import Web

LOG = log.get(__name__)

LIMITS = Limits(
    threads=4,
    backlog=32,
    waiting=16,
    connections=64,
    kept_alive=8,
    header_bytes=8 * 1024,
    body_bytes=1,  # 0 is no limit
    io_timeout_s=5,
    request_timeout_s=5.0,
)


class HttpListener:
    """Serves `host_status` at each of the addresses, of which there may be none."""

    def __init__(self, host_status: HostStatus, addresses: Sequence[Address]) -> None:
        self._listeners = [_listener(host_status, address) for address in addresses]

    def start(self) -> None:
        """Listen; when this returns, requests are answered.

        The log names an address that cannot be used; that does not keep the agent from starting.
        """
        for listener in self._listeners:
            try:
                listener.start()
            except ListenError as error:
                LOG.error(
                    "Nothing is served at %s: %s; set [http] listen to an address of this machine that is "
                    "not in use, and restart the agent.",
                    listener.address,
                    error,
                )
        if self.addresses:
            LOG.info("The health checks and the metrics are at %s.", ", ".join(self.addresses))

    @property
    def addresses(self) -> list[str]:
        """The addresses in use; a configured port 0 is shown as the real port."""
        return [listener.address for listener in self._listeners if listener.is_running]

    def stop(self) -> None:
        """Finish the requests under way and close; idempotent."""
        stop_all(self._listeners)


def _listener(host_status: HostStatus, address: Address) -> Listener:
    application = Web(host_status, local=address.is_loopback)
    return Listener(BoundedServer((address.host, address.port), application, LIMITS), f"http {address}")
