"""The pages for machines and people: health, metrics, the status page."""

import html
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from unittest.mock import Mock
from uuid import NAMESPACE_DNS, uuid5

import pytest
from kits.status import HOST, Sight, sight
from werkzeug.test import Client, TestResponse

from agent.audit.finding import Finding
from agent.claims.claim import Claim, ClaimState
from agent.claims.request import ClaimRequest, RequestGroup
from agent.driver import Guest, GuestState
from agent.status.host_status import LOOP_LATE_S, PASS_STUCK_S, HealthInputs, judge_health
from agent.status.overview import Fault, HealthCheck, HostState, Overview
from agent.status.web import View, Web, render_page


@pytest.fixture(scope="module")
def host() -> Iterator[Sight]:
    with sight() as shown:
        yield shown


Get = Callable[..., TestResponse]


@pytest.fixture
def get(host: Sight) -> Get:
    def get(path: str, *, local: bool = True, at: str = "localhost", method: str = "GET") -> TestResponse:
        return Client(Web(host.host_status, local=local)).open(path, method=method, headers={"Host": at})

    return get


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz", "/metrics"])
@pytest.mark.parametrize("local", [True, False])
def test_health_and_metrics_are_at_every_address(get: Get, path: str, local: bool) -> None:
    reply = get(path, local=local)
    assert reply.status_code == 200 and reply.headers["Cache-Control"] == "no-store"


def test_the_page_is_at_loopback_only(get: Get) -> None:
    assert f"<h1>{HOST}</h1>".encode() in get("/").data
    refused = get("/", local=False)
    assert refused.status_code == 403 and b"at loopback addresses only" in refused.data


def test_a_loopback_address_refuses_requests_for_another_host(get: Get) -> None:
    assert get("/metrics", at="evil.example").status_code == 421
    assert get("/metrics", at="127.0.0.1:9464").status_code == 200
    assert get("/metrics", at="evil.example", local=False).status_code == 200


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [("/nothing", "GET", 404), ("/metrics", "POST", 405), ("/?refresh=1", "GET", 400)],
)
def test_other_requests_are_errors_in_text(get: Get, path: str, method: str, status: int) -> None:
    reply = get(path, method=method)
    assert reply.status_code == status and reply.content_type.startswith("text/plain")


def test_an_unexpected_error_shows_no_details(host: Sight, get: Get, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host.host_status, "health", Mock(side_effect=ZeroDivisionError("the secret inside")))
    reply = get("/healthz")
    assert reply.status_code == 500 and b"secret" not in reply.data


WELL = HealthInputs(HostState.READY, None, None, True, 1.0, 0.0, True, "/var/lib/plimsoll")


def failed(signs: HealthInputs) -> tuple[list[str], list[str]]:
    health = judge_health(signs)
    for check in (*health.live, *health.ready):
        assert bool(check.reason) is not check.ok
    return [each.name for each in health.live if not each.ok], [
        each.name for each in health.ready if not each.ok
    ]


def test_a_well_agent_is_alive_and_ready() -> None:
    assert failed(WELL) == ([], [])


@pytest.mark.parametrize(
    ("signs", "live", "ready"),
    [
        (replace(WELL, beat_age_s=LOOP_LATE_S), ["loop"], []),
        (replace(WELL, pass_s=PASS_STUCK_S), ["pass"], []),
        (replace(WELL, seen_host=False), [], ["inventory"]),
        (replace(WELL, fault=Fault("driver", "libvirt is away.", True)), [], ["driver"]),
        (replace(WELL, fault=Fault("placement", "It is away.", True)), [], ["placement"]),
        (replace(WELL, fault=Fault("identity", "Who am I?")), [], ["identity"]),
        (replace(WELL, fault=Fault("agent", "The disk is full.")), [], ["state"]),
        (replace(WELL, writable=False), [], ["state"]),
        (replace(WELL, closed="the agent is stopping"), [], ["claims"]),
        (replace(WELL, fault=Fault("reshape", "It waits.")), [], []),
    ],
)
def test_what_fails_says_so_and_why(signs: HealthInputs, live: list[str], ready: list[str]) -> None:
    assert failed(signs) == (live, ready)


def test_a_reason_is_the_fault_s_own_sentence() -> None:
    health = judge_health(replace(WELL, fault=Fault("placement", "Placement does not answer.", True)))
    (check,) = [each for each in health.ready if not each.ok]
    assert check.reason == "Placement does not answer."


HOSTILE = "a\u202eb\x1b[2Jc\x9bd\u2066e\u200bf\ng\U000e0041h<i>"
SPELT = "a\\u202eb\\x1b[2Jc\\x9bd\\u2066e\\u200bf\\ng\\U000e0041h&lt;i&gt;"


@cache
def empty() -> Overview:
    with sight() as shown:
        return shown.host_status.overview()


@cache
def crowd(count: int) -> Overview:
    guests = (
        Guest(str(uuid5(NAMESPACE_DNS, str(each))), f"web{each:04}", GuestState.RUNNING, {"VCPU": 1})
        for each in range(count)
    )
    return replace(empty(), guests=tuple(guests))


def shown(count: int, view: View) -> tuple[list[str], str]:
    """The names of the guests on the page, and the page."""
    text = render_page(crowd(count), None, (), view)
    return re.findall(r'<th scope="row">(web\d+)', text), text


@pytest.mark.parametrize("count", [0, 1, 25, 26, 505, 5000])
def test_each_guest_is_on_one_page_and_no_page_has_more_than_25(count: int) -> None:
    began = time.monotonic()
    names, view = [], View(page=1, refresh_s=10)
    for page in range(1, max(1, -(-count // 25)) + 1):
        on_it, text = shown(count, replace(view, page=page))
        assert len(on_it) <= 25
        names += on_it
        following = html.unescape(text).partition('rel="next" href="')[2].partition('"')[0]
        assert following == (f"/?page={page + 1}&refresh=10#guests" if len(names) < count else "")
        if page == 3:
            break
    assert names == [f"web{each:04}" for each in range(min(count, 75))]
    assert shown(count, View(page=999_999))[0][-1:] == ([f"web{count - 1:04}"] if count else [])
    assert time.monotonic() - began < 10


def test_a_text_finds_guests_in_any_case_and_goes_along_to_the_next_page() -> None:
    assert shown(505, View("WEB0504"))[0] == ["web0504"]
    assert len(shown(505, View("unclaimed"))[0]) == 25
    names, text = shown(505, View("web00", refresh_s=5))
    assert names[:2] == ["web0000", "web0001"] and "1 to 25 of 100" in text
    assert 'href="/?find=web00&amp;page=2&amp;refresh=5#guests"' in text
    assert "None of 505 guests and claims has this text." in shown(505, View('"><b>'))[1]


def test_the_link_of_a_state_shows_as_many_as_it_says() -> None:
    uuid = str(uuid5(NAMESPACE_DNS, "0"))
    asked = ClaimRequest(uuid, (RequestGroup("", {"VCPU": 1}),))
    overview = replace(crowd(30), claims={uuid: Claim(uuid, ClaimState.CLAIMED, asked, {})})
    links = re.findall(r'<a href="(\S+)">(\d+) ([\w ]+)</a>', render_page(overview, None, ()))
    assert {state for _, _, state in links} == {"claimed", "unclaimed"}
    for link, count, state in links:
        assert link == f"/?find={state}#guests"
        text = render_page(overview, None, (), View(state))
        tags = re.findall(r'<span class="tag \w+">([^<]+)', text)
        assert len(tags) == min(int(count), 25) and (int(count) <= 25 or f"of {count}<" in text)
        assert set(tags) == {state}


def test_a_character_that_cannot_be_seen_is_spelt_wherever_the_page_has_it() -> None:
    uuid = str(uuid5(NAMESPACE_DNS, "hostile"))
    finding = Finding("odd", uuid, f"The guest {HOSTILE} is odd.")
    overview = replace(
        crowd(0), guests=(Guest(uuid, HOSTILE, GuestState.RUNNING, {"VCPU": 1}),), findings=(finding,)
    )
    text = render_page(overview, None, (), View(HOSTILE.partition("<")[0]))
    assert text.count(SPELT) >= 1 and f"The guest {SPELT} is odd." in text
    assert [each for each in text if not each.isprintable() and each != "\n"] == []
    assert SPELT in render_page(overview, None, (), View("\\u202e")), "it is found by what is seen"


@pytest.mark.parametrize(("count", "folded"), [(10, False), (11, True), (500, True)])
def test_a_long_list_is_folded(count: int, folded: bool) -> None:
    finding = Finding("odd", "", "It differs.")
    text = render_page(replace(crowd(1), findings=(finding,) * count), None, ())
    assert (f"<details><summary>{count} findings</summary>" in text) == folded
    assert text.count("It differs.") == count


@pytest.mark.parametrize(
    "asked", ["page=0", "page=x", "page=1000000", "page=" + "9" * 5000, "find=" + "x" * 201]
)
def test_what_cannot_be_asked_is_refused(get: Get, asked: str) -> None:
    reply = get(f"/?{asked}")
    assert reply.status_code == 400 and asked.partition("=")[0] in reply.text and len(reply.text) < 400


def test_of_many_problems_the_first_can_be_read_at_once() -> None:
    status = replace(crowd(1).status, reasons=tuple(f"Problem {each} is there." for each in range(505)))
    health = replace(crowd(1).health, ready=(HealthCheck("placement", False, "Placement does not answer."),))
    text = render_page(replace(crowd(1), status=status, health=health), None, ())
    open_part = text.partition("<summary>495 more problems</summary>")[0]
    assert "Placement does not answer." in open_part and "Problem 9 is" in open_part
    assert "Problem 10 is" not in open_part and "Problem 504 is" in text
