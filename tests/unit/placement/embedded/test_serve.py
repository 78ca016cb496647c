"""The addresses of the embedded core and its TLS files; and the WSGI application: what text adds to a
request, around any core.
"""

from __future__ import annotations

import hashlib
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
from agent.placement.embedded.rules import Binding
from agent.placement.embedded.serve import (
    ROLES,
    Bind,
    NoJson,
    ServeError,
    Tokens,
    TokenUser,
    Unauthenticated,
    WsgiApplication,
    noauth,
    permits,
    tls_context,
)


@pytest.mark.parametrize(
    ("text", "host", "port", "local"),
    [
        ("127.0.0.1:8778", "127.0.0.1", 8778, True),
        ("127.9.9.9:0", "127.9.9.9", 0, True),
        ("[::1]:0", "::1", 0, True),
        ("192.0.2.7:80", "192.0.2.7", 80, False),
        ("0.0.0.0:8778", "0.0.0.0", 8778, False),
        ("[::]:80", "::", 80, False),
        ("[2001:db8::7]:8778", "2001:db8::7", 8778, False),
    ],
)
def test_a_tcp_address(text: str, host: str, port: int, local: bool) -> None:
    bind = Bind.parse(text)
    assert (bind.host, bind.port, bind.is_local, bind.is_loopback) == (host, port, local, local)


def test_a_socket_is_local_and_no_loopback() -> None:
    bind = Bind.parse("unix:/run/x.sock")
    assert bind.path == Path("/run/x.sock") and bind.is_local and not bind.is_loopback


@pytest.mark.parametrize(
    "text",
    [
        *("", "8778", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:65536", ":8778", "no host:1"),
        *("no.such.host.invalid:1", "unix:", "unix:a", "unix:x.sock"),
    ],
)
def test_what_is_no_address_is_refused_by_its_text(text: str) -> None:
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
        failure: Exception | None = None,
        binding: Binding | None = None,
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
        ({"CONTENT_LENGTH": str(64 * 2**20 + 1)}, "413"),
        ({"CONTENT_LENGTH": str(64 * 2**20)}, "400"),  # as long as it may be, and shorter than it says
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
        text = json.dumps(body).encode()
        assert b"".join(serve.in_pieces(body)) == text


TOKEN = "0123456789abcdef"
OTHER = "fedcba9876543210"


def token_file(directory: Path, text: str, mode: int = 0o600) -> Path:
    path = directory / "tokens"
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("headers", "caller"),
    [
        ({"HTTP_X_AUTH_TOKEN": "admin"}, TokenUser("admin", "admin", frozenset({"admin"}))),
        ({"HTTP_X_AUTH_TOKEN": "admin:p"}, TokenUser("admin", "p", frozenset({"admin"}))),
        ({"HTTP_X_AUTH_TOKEN": "admin", "HTTP_X_ROLES": ""}, TokenUser("admin", "admin", frozenset())),
        ({"HTTP_X_AUTH_TOKEN": "bob"}, TokenUser("bob", "bob", frozenset())),
        (
            {"HTTP_X_AUTH_TOKEN": "bob:p", "HTTP_X_ROLES": "member, Reader"},
            TokenUser("bob", "p", frozenset({"member", "reader"})),
        ),
        (
            {"HTTP_X_AUTH_TOKEN": "admin", "HTTP_OPENSTACK_SYSTEM_SCOPE": "all"},
            TokenUser("admin", "admin", frozenset()),
        ),
    ],
)
def test_noauth_believes_the_headers(headers: dict[str, str], caller: TokenUser) -> None:
    assert noauth(headers) == caller


def test_noauth_wants_to_be_told_something() -> None:
    with pytest.raises(Unauthenticated):
        noauth({})


@pytest.mark.parametrize("header", ["HTTP_AUTHORIZATION", "HTTP_X_AUTH_TOKEN"])
def test_a_token_is_known_in_either_header(tmp_path: Path, header: str) -> None:
    digest = hashlib.sha256(OTHER.encode()).hexdigest()
    tokens = Tokens.read(
        token_file(tmp_path, f"# two\n\nnova service {TOKEN}\nmetrics reader@p sha256:{digest}\n")
    )
    prefix = "Bearer " if header == "HTTP_AUTHORIZATION" else ""
    assert tokens({header: prefix + TOKEN}) == TokenUser("nova", None, frozenset({"service"}))
    assert tokens({header: prefix + OTHER}) == TokenUser("metrics", "p", frozenset({"reader"}))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"HTTP_X_AUTH_TOKEN": ""},
        {"HTTP_X_AUTH_TOKEN": "admin"},
        {"HTTP_X_AUTH_TOKEN": TOKEN[:-1]},
        {"HTTP_AUTHORIZATION": f"Basic {TOKEN}"},
        {"HTTP_AUTHORIZATION": "Bearer \u00ff"},
        {"HTTP_X_AUTH_TOKEN": "sha256:" + hashlib.sha256(TOKEN.encode()).hexdigest()},
        {"HTTP_X_ROLES": "admin", "HTTP_X_AUTH_TOKEN": "admin"},
    ],
)
def test_nothing_but_a_token_of_the_file_opens(tmp_path: Path, headers: dict[str, str]) -> None:
    tokens = Tokens.read(token_file(tmp_path, f"nova service {TOKEN}\n"))
    with pytest.raises(Unauthenticated):
        tokens(headers)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no token"),
        ("# nothing\n", "no token"),
        (f"nova {TOKEN}\n", "Line 1"),
        (f"# x\nnova root {TOKEN}\n", "Line 2"),
        (f"nova reader@ {TOKEN}\n", "Line 1"),
        ("nova service short\n", "fewer than 16"),
        ("nova service sha256:12\n", "64 hexadecimal"),
        (f"nova service {TOKEN}\u00e9\n", "ASCII"),
        (f"a admin {TOKEN} host=a\n", "Line 1 .* binds a to the host a, so it must grant service alone"),
        (f"a service,admin {TOKEN} host=a\n", "service alone, not 'service,admin'"),
        (f"a service@p {TOKEN} host=a\n", "service alone"),
        (f"a service {TOKEN} host=\n", "must be NAME"),
        (f"a service {TOKEN} a\n", "must be NAME"),
        (
            f"a service {TOKEN} host=a\na service {OTHER} host=b\n",
            "Line 2 .* the name of .* to a and b: give",
        ),
        (f"a service {TOKEN} host=a\na service {OTHER}\n", "the name of another line, .* a and no host"),
        (f"a service {TOKEN}\nb service {TOKEN} host=b\n", "the token of another line, .* no host and b"),
    ],
)
def test_a_token_file_that_does_not_parse_is_refused_without_showing_tokens(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(ServeError, match=said) as refused:
        Tokens.read(token_file(tmp_path, text))
    assert TOKEN not in str(refused.value)


def test_a_token_is_bound_to_a_name_or_a_uuid_and_may_be_replaced(tmp_path: Path) -> None:
    name, uuid = "4E8E5957-649F-477B-9E5B-F1F75B21C03C", "4e8e5957-649f-477b-9e5b-f1f75b21c03c"
    lines = [f"a service {TOKEN} host=a.example", f"b service {OTHER} host={name}"]
    lines += [f"a service new-{TOKEN} host=a.example"]
    tokens = Tokens.read(token_file(tmp_path, "\n".join(lines)))
    for token, who, host in (
        (TOKEN, "a", "a.example"),
        (f"new-{TOKEN}", "a", "a.example"),
        (OTHER, "b", uuid),
    ):
        caller = tokens({"HTTP_X_AUTH_TOKEN": token})
        assert caller == TokenUser(who, None, frozenset({"service"}), host)


def test_a_token_file_that_others_may_read_is_refused_unless_systemd_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = token_file(tmp_path, f"nova service {TOKEN}\n", mode=0o440)
    with pytest.raises(ServeError, match="0600"):
        Tokens.read(path)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert Tokens.read(path)({"HTTP_X_AUTH_TOKEN": TOKEN}).name == "nova"


def test_a_token_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ServeError, match="missing"):
        Tokens.read(tmp_path / "missing")


REQUESTS = st.tuples(
    st.sampled_from(["GET", "PUT", "POST", "DELETE"]),
    st.sampled_from(["/usages", "/reshaper", "/allocations/x", "/resource_providers"]),
    st.sampled_from(["", "project_id=p", "project_id=q", "project_id=q&project_id=p"]),
)


@given(REQUESTS, st.sets(st.sampled_from(ROLES)))
def test_a_role_more_never_allows_less(request: tuple[str, str, str], roles: set[str]) -> None:
    caller = TokenUser("x", "p", frozenset(roles))
    for role in ROLES:
        if permits(caller, *request):
            assert permits(caller._replace(roles=caller.roles | {role}), *request)


@given(REQUESTS)
def test_what_the_roles_are_for(request: tuple[str, str, str]) -> None:
    method, path, query = request
    assert permits(TokenUser("x", None, frozenset({"service"})), *request)
    assert permits(TokenUser("x", None, frozenset({"admin"})), *request) == (
        (method, path) != ("POST", "/reshaper")
    )
    assert permits(TokenUser("x", None, frozenset({"reader"})), *request) == (method == "GET")
    own_usages = method == "GET" and path == "/usages" and query.endswith("project_id=p")
    assert permits(TokenUser("x", "p", frozenset({"reader"})), *request) == own_usages
    assert not permits(TokenUser("x", "p", frozenset({"member"})), *request)
