"""Who may come in through the embedded core's HTTP door, and what the files that say so look like."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.placement.embedded.serve import (
    ROLES,
    Bind,
    ServeError,
    Tokens,
    TokenUser,
    Unauthenticated,
    noauth,
    permits,
)

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
    ],
)
def test_a_token_file_that_does_not_parse_is_refused_without_showing_tokens(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(ServeError, match=said) as refused:
        Tokens.read(token_file(tmp_path, text))
    assert TOKEN not in str(refused.value)


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


@pytest.mark.parametrize(
    ("text", "host", "port", "is_local"),
    [
        ("127.0.0.1:8778", "127.0.0.1", 8778, True),
        ("127.9.9.9:0", "127.9.9.9", 0, True),
        ("[::1]:8778", "::1", 8778, True),
        ("192.0.2.7:80", "192.0.2.7", 80, False),
        ("0.0.0.0:80", "0.0.0.0", 80, False),
        ("[::]:80", "::", 80, False),
    ],
)
def test_addresses(text: str, host: str, port: int, is_local: bool) -> None:
    bind = Bind.parse(text)
    assert (bind.host, bind.port, bind.is_local) == (host, port, is_local)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8778",
        "127.0.0.1",
        "127.0.0.1:x",
        "127.0.0.1:65536",
        ":8778",
        "no.such.host.invalid:1",
        "unix:",
        "unix:a",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ServeError, match="Cannot listen at"):
        Bind.parse(text)
