"""The addresses of the embedded core and its TLS files; and the WSGI application: what text adds to a
request, around any core.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.served_core_client import make_certificate

from agent.placement.embedded import serve
from agent.placement.embedded.handlers import CoreResponse
from agent.placement.embedded.problems import RequestRefused
from agent.placement.embedded.serve import (
    BODY_BYTES_MAX,
    Bind,
    NoJson,
    ServeError,
    WsgiApplication,
    tls_context,
)


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


class Echo:
    """A core that remembers its last request and answers 200, or what `admit` raises."""

    body: Any = None
    path = ""

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        microversion: str | None = None,
        headers: Mapping[str, str] | None = None,
        admit: Callable[[], None] | None = None,
    ) -> CoreResponse:
        self.body, self.path = body, path
        try:
            if admit is not None:
                admit()
        except RequestRefused as refusal:
            return CoreResponse(refusal.problem.status, {}, {"errors": [{"detail": refusal.detail}]})
        return CoreResponse(200, {"location": "/x"}, {"ok": True})


def ask(
    core: Echo, method: str = "POST", body: bytes = b"", **environ: Any
) -> tuple[str, dict[str, str], bytes]:
    shown: dict[str, Any] = {}

    def start(status: str, headers: list[tuple[str, str]]) -> None:
        shown.update(status=status, headers=dict(headers))

    payload = b"".join(
        WsgiApplication(core)(
            {
                "REQUEST_METHOD": method,
                "PATH_INFO": "/allocations",
                "QUERY_STRING": "a=1",
                "CONTENT_LENGTH": str(len(body)),
                "CONTENT_TYPE": "application/json",
                "wsgi.input": io.BytesIO(body),
                "wsgi.url_scheme": "http",
                "SERVER_NAME": "host",
                "SERVER_PORT": "80",
                "HTTP_X_AUTH_TOKEN": "admin",
                **environ,
            },
            start,
        )
    )
    return shown["status"], shown["headers"], payload


def test_a_body_becomes_an_object_and_a_location_absolute() -> None:
    core = Echo()
    status, headers, payload = ask(core, body=b'{"a": 1}')
    assert (status, json.loads(payload)) == ("200 OK", {"ok": True})
    assert headers["location"] == "http://host:80/x" and headers["content-length"] == str(len(payload))
    assert core.body == {"a": 1} and core.path == "/allocations?a=1"


def test_head_has_the_headers_alone() -> None:
    assert ask(Echo(), "HEAD")[2] == b""


@pytest.mark.parametrize(
    ("environ", "status"),
    [
        ({"CONTENT_LENGTH": "x"}, "400"),
        ({"CONTENT_LENGTH": str(BODY_BYTES_MAX + 1)}, "413"),
        ({"CONTENT_LENGTH": "9"}, "400"),
        ({"CONTENT_TYPE": ""}, "400"),
    ],
)
def test_a_body_of_another_length_or_without_type_is_refused(environ: dict[str, str], status: str) -> None:
    assert ask(Echo(), body=b"{}", **environ)[0].startswith(status)


def test_a_body_that_is_not_json_reaches_the_core_as_such() -> None:
    core = Echo()
    ask(core, body=b"{")
    assert isinstance(core.body, NoJson) and "malformed JSON" in repr(core.body)


def test_an_unknown_caller_is_a_401_in_the_form_that_the_client_accepts() -> None:
    unknown = {"environ": {}, "HTTP_X_AUTH_TOKEN": None}
    status, headers, payload = ask(Echo(), **unknown)
    assert status.startswith("401") and json.loads(payload)["code"] == "401 Unauthorized"
    assert headers["x-openstack-request-id"].startswith("req-")
    _, headers, payload = ask(Echo(), **unknown, HTTP_ACCEPT="text/html")
    assert headers["content-type"] == "text/html; charset=UTF-8" and payload.startswith(b"<html>")
    _, headers, payload = ask(Echo(), **unknown, HTTP_ACCEPT="text/plain")
    assert payload.startswith(b"401 Unauthorized\n\n")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=30,
    )
)
def test_a_body_dumped_in_pieces_is_the_same_json(body: object) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serve, "PIECE_MEMBERS", 2)
        assert serve.in_pieces(body) == json.dumps(body)
