"""A proxy in front of Placement that may answer for it: it passes a request on, or answers it by itself."""

from __future__ import annotations

import http.client
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from agent.placement.transport import Transport
from kits.placements import Running

TIMEOUT_S = 20.0
_OF_ONE_HOP = {"connection", "content-length", "host", "transfer-encoding"}


class Middlebox:
    """Serves at `url` in front of the Placement at that address of this machine.

    `placement` is that Placement as it is reached through the proxy. `asked` are the requests that the proxy
    answered by itself.
    """

    def __init__(self, address: str) -> None:
        self.asked: list[str] = []
        self._behind = urlsplit(address)
        self._made_up: tuple[str, int, bytes] | None = None
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.placement = Running(self.url)

    @contextmanager
    def answering(self, requests: str, status: int, body: Any = None) -> Iterator[None]:
        """In the block the proxy answers each request that begins so ("GET /allocations/")."""
        content = b"" if body is None else json.dumps(body).encode()
        self._made_up = (requests, status, content)
        try:
            yield
        finally:
            self._made_up = None

    def transport(self) -> Transport:
        """A connection through the proxy."""
        return self.placement.transport()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(
        self, request: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        """(status, headers, body) for "METHOD PATH": Placement's own, or what the proxy makes up."""
        if self._made_up is not None and request.startswith(self._made_up[0]):
            self.asked.append(request)
            _, status, content = self._made_up
            return status, [("Content-Type", "application/json")] if content else [], content
        connection = http.client.HTTPConnection(self._behind.netloc, timeout=TIMEOUT_S)
        try:
            method, path = request.split(" ", 1)
            connection.request(method, f"{self._behind.path}{path}", body, headers)
            answer = connection.getresponse()
            return answer.status, _passed_on(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # head and body are two packets: else each answer waits 40 ms

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                sent = dict(_passed_on(list(self.headers.items())))
                status, headers, content = outer.answer(f"{self.command} {self.path}", body, sent)
                self.send_response_only(status)
                for name, value in headers:
                    self.send_header(name, value)
                if status != http.HTTPStatus.NO_CONTENT:
                    self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_PUT = do_POST = do_DELETE = do_GET

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def _passed_on(headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers if name.lower() not in _OF_ONE_HOP]
