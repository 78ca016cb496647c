"""Who sees the fleet's page, and what a browser that may not is told."""

from __future__ import annotations

import base64
import http.client
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest
from kits.embedded_api import Api, new

from agent.placement.embedded import Core
from agent.placement.embedded.serve import Server

TOKEN, READER, PROJECT, BOUND = (
    f"the-token-of-{who}-123" for who in ("operators", "readers", "project", "hv1")
)
TOKENS = (
    f"op service {TOKEN}\nlook reader {READER}\nuser reader@p {PROJECT}\nhv1 service {BOUND} host=alpha\n"
)
HTML = {"Accept": "text/html,application/xhtml+xml;q=0.9"}
Answer = tuple[int, Mapping[str, str], str]


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    with closing(Core.open(tmp_path / "state")) as core:
        api = Api(core)
        for name in ("alpha", "<b>beta"):
            api.set_inventories(api.provider(name), {"VCPU": {"total": 4}})
        yield core


@pytest.fixture
def trusting(core: Core) -> Iterator[str]:
    with Server(core, ["127.0.0.1:0"]) as server:
        yield server.addresses[0]


@pytest.fixture
def guarded(core: Core, tmp_path: Path) -> Iterator[str]:
    tokens = tmp_path / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text(TOKENS)
    with Server(core, ["127.0.0.1:0"], tokens_file=tokens) as server:
        yield server.addresses[0]


def ask(address: str, path: str = "/fleet", method: str = "GET", **headers: str) -> Answer:
    with closing(http.client.HTTPConnection(address, timeout=10)) as connection:
        connection.request(method, path, headers={**HTML, **headers})
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read().decode()


def basic(token: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"any:{token}".encode()).decode()}


def test_a_browser_on_this_machine_sees_it_and_loads_nothing_else(trusting: str) -> None:
    status, headers, text = ask(trusting)
    assert status == 200 and headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in headers["content-security-policy"] and "&lt;b&gt;beta" in text
    assert "2 hosts: 2 without a note" in text and "<b>" not in text
    status, headers, text = ask(trusting, method="HEAD")
    assert (status, text) == (200, "") and int(headers["content-length"]) > 1000


def test_a_page_of_another_name_cannot_have_a_browser_read_it(trusting: str) -> None:
    status, _, text = ask(trusting, Host="evil.example")
    assert status == 421 and "for localhost alone" in text


def test_programs_still_say_who_they_are(trusting: str, guarded: str) -> None:
    for address in (trusting, guarded):
        assert ask(address, Accept="application/json")[0] == 401
    assert ask(trusting, Accept="application/json", **{"X-Auth-Token": "admin"})[0] == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        (basic("wrong"), 401),
        ({"Authorization": "Basic %%%"}, 401),
        (basic(TOKEN), 200),
        (basic(READER), 200),
        (basic(BOUND), 200),
        ({"Authorization": f"Bearer {READER}"}, 200),
        (basic(PROJECT), 403),
    ],
)
def test_with_tokens_a_browser_asks_for_one(guarded: str, headers: dict[str, str], status: int) -> None:
    answer = ask(guarded, **headers, Host="placement.example")
    assert answer[0] == status
    assert answer[1].get("www-authenticate", "").startswith("Basic ") is (status == 401)


def test_a_browsers_password_is_for_the_page_alone(guarded: str) -> None:
    """Else a page elsewhere could have it send a write with what it remembers."""
    for method, path in (
        ("DELETE", f"/allocations/{new()}"),
        ("PUT", "/traits/CUSTOM_X"),
        ("GET", "/traits"),
    ):
        assert ask(guarded, path, method, **basic(TOKEN))[0] == 401


def test_what_cannot_be_shown_is_a_sentence(trusting: str) -> None:
    for path, status, said in (
        ("/fleet?page=x", 400, "page must be a number"),
        ("/fleet?room=m1.none", 400, "Cannot tell the room for 'm1.none'"),
        (f"/fleet/{new()}", 404, "No host has the root provider"),
        ("/fleet/a/b", 404, "could not be found"),
    ):
        answer = ask(trusting, path)
        assert (answer[0], answer[1]["content-type"]) == (status, "text/plain; charset=utf-8")
        assert said in answer[2] and answer[2].count("\n") == 1


def test_links_keep_what_was_asked(trusting: str) -> None:
    text = ask(trusting, "/fleet?room=VCPU:1&search=a&refresh=30&limit=1&sort=name")[2]
    assert '<meta http-equiv="refresh" content="30">' in text
    assert "?room=VCPU%3A1&amp;search=a&amp;refresh=30&amp;limit=1&amp;sort=-name#hosts" in text
    assert "page=2" in text and "every=" not in text


def test_a_standby_says_that_it_is_one(core: Core, trusting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core._home, "is_active", False)
    assert "This server follows another one" in ask(trusting)[2]


def test_prometheus_reads_the_metrics_as_a_browser_reads_the_page(
    core: Core, trusting: str, guarded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, headers, text = ask(trusting, "/metrics", Accept="text/plain;version=0.0.4, */*;q=0.5")
    assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert 'plimsoll_fleet_host_free{host="<b>beta",resource_class="VCPU"} 4\n' in text
    assert [ask(guarded, "/metrics", **each)[0] for each in ({}, basic(READER), basic(PROJECT))] == [
        401,
        200,
        403,
    ]
    assert ask(guarded, "/metrics", Authorization=f"Bearer {READER}")[0] == 200
    monkeypatch.setattr(core._home, "is_active", False)
    text = ask(trusting, "/metrics")[2]
    assert "plimsoll_fleet_active 0\n" in text and "host" not in text
