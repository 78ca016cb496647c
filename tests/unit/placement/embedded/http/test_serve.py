"""The addresses that a core is served at, and which of them only this machine reaches."""

from pathlib import Path

import pytest
from kits.served_core_client import make_certificate

from agent.placement.embedded.http.auth import ServeError
from agent.placement.embedded.http.serve import Bind, tls_context


@pytest.mark.parametrize(
    ("text", "host", "port", "local"),
    [
        ("127.0.0.1:8778", "127.0.0.1", 8778, True),
        ("[::1]:0", "::1", 0, True),
        ("0.0.0.0:8778", "0.0.0.0", 8778, False),
        ("[2001:db8::7]:8778", "2001:db8::7", 8778, False),
    ],
)
def test_a_tcp_address(text: str, host: str, port: int, local: bool) -> None:
    bind = Bind.parse(text)
    assert (bind.host, bind.port, bind.is_local, bind.is_loopback) == (host, port, local, local)


def test_a_socket_is_local_and_no_loopback() -> None:
    bind = Bind.parse("unix:/run/x.sock")
    assert bind.path == Path("/run/x.sock") and bind.is_local and not bind.is_loopback


@pytest.mark.parametrize("text", ["unix:x.sock", "127.0.0.1", "127.0.0.1:99999", "127.0.0.1:x", "no host:1"])
def test_another_address_is_refused_by_its_text(text: str) -> None:
    with pytest.raises(ServeError, match=f"Cannot listen at '?{text}"):
        Bind.parse(text)


def test_a_certificate_without_its_key_is_refused(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    tls_context(certificate, key)
    with pytest.raises(ServeError, match="cannot be used"):
        tls_context(certificate, tmp_path / "none.key")
