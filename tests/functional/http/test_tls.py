"""TLS at a TCP address: each connection's handshake is made by the thread that answers it."""

import socket
import ssl
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kits.served_core_client import make_certificate

from agent.http.listener import Listener
from agent.http.server import BoundedServer, Limits

LIMITS = Limits(threads=1, backlog=8, kept_alive=4, header_bytes=4096, body_bytes=4096)


def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [environ["wsgi.url_scheme"].encode()]


def test_a_client_without_a_handshake_keeps_no_thread(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = BoundedServer(("127.0.0.1", 0), application, LIMITS, wait_for_first_byte=True, tls=context)
    listener = Listener(server, "the test")
    listener.start()
    try:
        host, _, port = listener.address.rpartition(":")
        trust = ssl.create_default_context(cafile=str(certificate))
        with socket.create_connection((host, int(port)), 10) as silent:
            with urllib.request.urlopen(f"https://{host}:{port}/", timeout=10, context=trust) as reply:
                assert reply.read() == b"https"
            silent.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert not silent.recv(4096).startswith(b"HTTP/1.1 200"), "plain HTTP gets no answer"
    finally:
        listener.stop()
