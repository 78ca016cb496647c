"""What is to be seen of a real agent on a fake host, over HTTP: the page, the health checks, the metrics."""

import json
import re
import socket
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from html.parser import HTMLParser
from typing import ClassVar
from urllib.parse import urlsplit

import pytest
from kits.status import (
    FORGOTTEN,
    GUESTS,
    HOST,
    MIGRATION,
    Sight,
    asks,
    fetch,
    fill,
    guest,
    listening,
    sight,
    uuid_of,
)
from prometheus_client.parser import text_string_to_metric_families

from agent.clock import HostClock
from agent.config.access import Address
from agent.driver import GuestState
from agent.errors import DoesNotFit, DriverError, DriverUnavailable, SettingsError
from agent.state.journal import Event

HOSTILE = '<script>alert("1")</script>&amp;\x1b[31m\'"><img src=x onerror=alert(2)>'


@pytest.fixture(scope="module")
def full() -> Iterator[Sight]:
    with sight() as shown:
        fill(shown)
        yield shown


@pytest.fixture
def fresh() -> Iterator[Sight]:
    with sight() as shown:
        yield shown


@pytest.fixture(scope="module")
def url(full: Sight) -> Iterator[str]:
    with listening(full.host_status) as where:
        yield where


class Page(HTMLParser):
    """What a browser would make of it: the tags, their attributes, and the text."""

    VOID: ClassVar = frozenset({"meta", "link", "img", "br", "hr", "input", "wbr"})

    def __init__(self, html: bytes) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.style = ""
        self._open: list[str] = []
        self.feed(html.decode())
        assert self._open == [], "every tag that was opened is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "style":
            self.style += data
        else:
            self.text += data


def page(url: str, path: str = "/") -> Page:
    status, headers, body = fetch(url + path)
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    return Page(body)


# The page


def test_the_page_shows_the_host(url: str) -> None:
    text = page(url).text
    for word in (HOST, *GUESTS, FORGOTTEN, "unclaimed", "same_host_resize", "VGPU", "6 / 8", MIGRATION):
        assert word in " ".join(text.split()), word
    assert "unclaimed instance" in text and "The last reshape" in text


def test_nothing_is_loaded_and_no_script_is_run(url: str) -> None:
    """Every element and attribute that could: there is none of them, and the policy would not let it."""
    found = page(url)
    names = {tag for tag, _ in found.tags}
    assert not names & {
        "script",
        "img",
        "link",
        "iframe",
        "object",
        "embed",
        "base",
        "audio",
        "video",
    }
    assert [each.get("action") for tag, each in found.tags if tag == "form"] == ["/#guests"]
    for tag, attributes in found.tags:
        assert "formaction" not in attributes
        assert not any(name.startswith("on") or name in ("style", "src", "srcset") for name in attributes)
        if "href" in attributes:
            assert str(attributes["href"]).startswith(("/", "#")), (tag, attributes)
    assert "url(" not in found.style and "@import" not in found.style


def test_the_policy_allows_the_one_style_sheet_and_nothing_else(url: str) -> None:
    _, headers, body = fetch(url + "/")
    digest = b64encode(sha256(Page(body).style.encode()).digest()).decode()
    policy = dict(each.strip().partition(" ")[::2] for each in headers["Content-Security-Policy"].split(";"))
    assert policy == {
        "default-src": "'none'",
        "style-src": f"'sha256-{digest}'",
        "base-uri": "'none'",
        "form-action": "'self'",
        "frame-ancestors": "'none'",
    }
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["Cache-Control"] == "no-store"


def test_it_can_be_read_on_a_phone_and_by_a_screen_reader(url: str) -> None:
    found = page(url)
    tags = dict(found.tags)
    assert tags["html"]["lang"] == "en"
    viewport = [
        each["content"] for tag, each in found.tags if tag == "meta" and each.get("name") == "viewport"
    ]
    assert viewport == ["width=device-width, initial-scale=1"]
    assert "prefers-color-scheme:dark" in found.style and "max-width:40rem" in found.style
    count = [tag for tag, _ in found.tags].count
    assert count("h1") == 1 and count("caption") == count("table") and count("main") == 1
    for tag, attributes in found.tags:
        if tag == "th":
            assert attributes.get("scope") in ("col", "row", "rowgroup")
        if tag == "svg":
            assert attributes.get("aria-hidden") == "true" or attributes.get("aria-label")
    ids = [each["id"] for _, each in found.tags if "id" in each]
    assert len(ids) == len(set(ids))
    for _, attributes in found.tags:
        assert attributes.get("aria-labelledby", ids[0]) in ids


def test_names_that_are_hostile_are_text(fresh: Sight) -> None:
    agent, operations, driver = fresh.world.agent, fresh.world.operations, fresh.world.driver
    driver.add_guest(guest(HOSTILE, VCPU=1))
    operations.claim(asks(HOSTILE + "2", VCPU=1))
    agent.reconcile("an event")
    operations.audit(heal=False)
    with listening(fresh.host_status) as url:
        _, _, body = fetch(url + "/")
    found = Page(body)
    assert b"<script" not in body and b"<img" not in body
    spelt = HOSTILE.replace("\x1b", "\\x1b")
    assert spelt in found.text and spelt + "2" in found.text and "\x1b" not in found.text


def test_it_draws_itself_anew_only_when_asked(url: str) -> None:
    def reloads(path: str) -> list[str | None]:
        tags = page(url, path).tags
        return [
            each["content"] for tag, each in tags if tag == "meta" and each.get("http-equiv") == "refresh"
        ]

    assert reloads("/") == []
    assert reloads("/?refresh=10") == ["10"]
    for wrong in ("0", "4", "x", "1e1", "99999", "-5", "10;url=http://evil"):
        assert fetch(f"{url}/?refresh={wrong}")[0] == 400


def test_a_host_that_was_never_seen_has_a_page(fresh: Sight) -> None:
    """The embedded placement and the driver fail: the problems stand on top."""
    fresh.world.driver.fail(5, DriverUnavailable("libvirtd does not answer <at all>."))
    fresh.world.agent.reconcile("an event")
    with listening(fresh.host_status) as url:
        text = page(url).text
        assert "Problems" in text and "libvirtd does not answer <at all>." in text
        assert text.count("libvirtd does not answer") <= 4
        status, _, body = fetch(url + "/readyz")
    told = json.loads(body)
    assert (status, told["ok"], told["failed"]) == (503, False, ["driver", "claims"])
    assert told["checks"]["driver"]["reason"] == "libvirtd does not answer <at all>."


# The listener


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
def test_a_well_agent_is_healthy(url: str, path: str) -> None:
    status, headers, body = fetch(url + path)
    told = json.loads(body)
    assert (status, headers["Content-Type"], told["ok"], told["failed"]) == (
        200,
        "application/json",
        True,
        [],
    )


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BIND"])
@pytest.mark.parametrize("path", ["/", "/metrics"])
def test_only_reading_is_possible(url: str, method: str, path: str) -> None:
    status, headers, _ = fetch(url + path, method)
    assert status == 405
    assert headers["Allow"] == "GET, HEAD" or method == "CONNECT"  # which the server does not even hand on


def test_head_is_get_without_the_body(url: str) -> None:
    status, headers, body = fetch(url + "/", "HEAD")
    assert (status, body) == (200, b"") and int(headers["Content-Length"]) > 1000


@pytest.mark.parametrize("path", ["/v1/status", "/v1/config", "/..%2f..%2fetc/passwd", "/metrics/", "/%00"])
def test_nothing_else_is_there(url: str, path: str) -> None:
    assert fetch(url + path)[0] == 404


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:9464", "127.0.0.1.evil.example", "", "[::1", "kvm-07"]
)
def test_loopback_is_served_to_loopback_only(url: str, host: str) -> None:
    """A web page that makes a name of its own point here (DNS rebinding) reads nothing."""
    for path in ("/", "/metrics", "/healthz"):
        status, _, body = fetch(url + path, Host=host)
        assert status in (400, 421) and HOST.encode() not in body


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9464", "127.0.0.1:1", "[::1]:9464"])
def test_by_every_name_of_loopback(url: str, host: str) -> None:
    assert fetch(url + "/healthz", Host=host)[0] == 200


def test_off_loopback_there_is_no_page(full: Sight) -> None:
    """The guests' names are not for the network; what Prometheus scrapes names none."""
    with listening(full.host_status, "0.0.0.0:0") as url:
        where = f"http://127.0.0.1:{urlsplit(url).port}"
        status, _, body = fetch(where + "/")
        assert status == 403 and b"loopback" in body
        assert fetch(where + "/metrics", Host="kvm-07.example")[0] == 200
        assert fetch(where + "/readyz")[0] == 200


def raw(url: str, sent: bytes) -> bytes:
    where = urlsplit(url)
    with socket.create_connection((where.hostname, where.port), timeout=10) as sock:
        sock.sendall(sent)
        received = b""
        while chunk := sock.recv(65536):
            received += chunk
        return received


def test_what_is_too_large_is_refused(url: str) -> None:
    head = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
    assert raw(url, head + b"X: " + b"a" * 9000 + b"\r\n\r\n").startswith(b"HTTP/1.1 431")
    assert raw(url, head + b"Content-Length: 9999\r\n\r\n").startswith(b"HTTP/1.1 413")
    assert raw(url, head + b"Transfer-Encoding: chunked\r\n\r\n").startswith(b"HTTP/1.1 411")
    assert raw(url, b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1.1 400")
    assert raw(url, b"GET / HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 421")
    assert raw(url, b"\x16\x03\x01\x02\x00\r\n\r\n").startswith(b"HTTP/1.1 400")


def test_an_address_that_is_taken_keeps_nobody_from_claiming(
    full: Sight, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    from agent.status.web import HttpListener

    taken = Address.parse(urlsplit(url).netloc)
    listener = HttpListener(full.host_status, [taken, Address.parse("127.0.0.1:0")])
    listener.start()
    try:
        assert len(listener.addresses) == 1
        assert f"Nothing is served at {taken}" in caplog.text
    finally:
        listener.stop()
        listener.stop()


@pytest.mark.parametrize(
    "text", ["9464", "localhost", "kvm-07:9464", "127.0.0.1:99999", "::1:9464", "unix:/x", ":1", ""]
)
def test_what_is_no_address_is_said(text: str) -> None:
    with pytest.raises(SettingsError, match="is not an address"):
        Address.parse(text)


def test_addresses() -> None:
    assert str(Address.parse("localhost:9464")) == "127.0.0.1:9464"
    assert str(Address.parse("[::1]:9464")) == "[::1]:9464" and Address.parse("[::1]:9464").is_loopback
    assert not Address.parse("0.0.0.0:9464").is_loopback


# Metrics


def test_the_age_of_the_last_pass_follows_no_step_of_the_wall_clock(
    fresh: Sight, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An alert on a stamp of the wall clock is raised by a step forward, and never after one back."""
    clocks = {"steady": 1000.0, "wall": 2000.0}
    monkeypatch.setattr(fresh.host_status, "_timer", lambda: clocks["steady"])
    monkeypatch.setattr(fresh.host_status, "_clock", lambda: clocks["wall"])
    fresh.world.agent.reconcile("a pass")
    for steady_s, wall_s, age_s in ((1000.0, 9e9, 0), (1060.0, 9e9, 60), (2000.0, 10.0, 1000)):
        clocks |= {"steady": steady_s, "wall": wall_s}
        found = samples(fresh.host_status.metrics())
        assert found["plimsoll_last_pass_age_seconds", ()] == age_s


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0, -3e7, 1e8])
def test_the_history_of_the_last_hour_is_that_hour_whatever_the_clock_was_set_to(
    fresh: Sight, monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    clocks = {"steady": 1000.0, "ahead": 1e9}
    clock = HostClock(lambda: clocks["steady"] + clocks["ahead"], lambda: clocks["steady"])
    events: list[Event] = []

    def pass_by(seconds: float) -> None:
        events.insert(0, Event(clock.now(), "", "reshape", str(len(events)), None, None))
        clocks["steady"] += seconds

    for _ in range(3):
        pass_by(3000)
    clocks["ahead"] += step_s
    for _ in range(2):
        pass_by(1000)  # 11 000, 8000, 5000, 2000 and 1000 s ago
    monkeypatch.setattr(fresh.journal, "history", lambda *_: tuple(events))
    monkeypatch.setattr(fresh.host_status, "_ages_s", clock.ages_s)
    for within_s, count in ((500, 0), (1500, 1), (3600, 2), (6000, 3), (20_000, 5)):
        found = fresh.host_status.history(within_s=within_s)
        assert [event.detail for event in found] == [event.detail for event in events[:count]]


def samples(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (each.name, tuple(sorted(each.labels.items()))): each.value
        for family in text_string_to_metric_families(text.decode())
        for each in family.samples
    }


def test_the_metrics_say_what_is_so(full: Sight, url: str) -> None:
    status, headers, body = fetch(url + "/metrics")
    assert status == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4")
    found = samples(body)

    def value(name: str, **labels: str) -> float:
        return found[f"plimsoll_{name}", tuple(sorted(labels.items()))]

    card = f"{HOST}_pci_0000:42:00.0"
    assert value("inventory_used", provider=card, resource_class="VGPU") == 6
    assert value("inventory_capacity", provider=HOST, resource_class="VCPU") == 128
    assert value("claim_requests_total", outcome="granted") == len(GUESTS)
    assert value("claim_duration_seconds_count") == len(GUESTS)
    assert value("claim_steps_total", step="grant") == len(GUESTS)
    assert value("claims", state="claimed") == len(GUESTS) + 1
    assert value("guests", state="running") == len(GUESTS) + 1
    assert value("unclaimed_guests") == 1
    assert value("moves", kind="same_host_resize", role="both", state="begun") == 1
    assert value("move_requests_total", kind="resize", outcome="begun") == 1
    assert value("move_steps_total", kind="same_host_resize", step="move_grant") == 1
    assert value("reshapes_total") == 1
    assert value("passes_total", outcome="changed") == 2
    assert value("pass_duration_seconds_count") == 2
    assert value("audit_findings", kind="unclaimed instance") == 1
    assert value("audits_total", outcome="done") == 1
    assert value("state", state="ready") == 1 and value("state", state="degraded") == 0
    assert value("claims_open") == value("driver_up") == value("placement_up") == 1
    assert value("health_check", probe="readyz", check="placement") == 1
    assert value("placement_requests_total", method="PUT", status="204") >= len(GUESTS)
    assert value("placement_request_duration_seconds_count", method="PUT") >= len(GUESTS)
    assert value("commit_duration_seconds_count") > len(GUESTS)
    assert value("pending_operations") == value("reshape_pending") == 0


def test_refusals_and_outages_are_counted(fresh: Sight) -> None:
    agent, operations = fresh.world.agent, fresh.world.operations
    for _ in range(3):
        with pytest.raises(DoesNotFit):
            operations.claim(asks("giant", VCPU=100_000))
    fresh.world.driver.fail(1)
    agent.reconcile("an event")
    found = samples(fresh.host_status.metrics())
    assert found["plimsoll_claim_requests_total", (("outcome", "plimsoll.claim.does_not_fit"),)] == 3
    assert found["plimsoll_passes_total", (("outcome", "failed"),)] == 1
    assert found["plimsoll_fault", (("concern", "driver"),)] == 1
    assert found["plimsoll_driver_up", ()] == 0 and found["plimsoll_claims_open", ()] == 0


def test_no_label_holds_what_a_guest_or_a_caller_makes_up(full: Sight, url: str) -> None:
    text = fetch(url + "/metrics")[2].decode()
    values = set(re.findall(r'="([^"]*)"', text))
    for name in (*GUESTS, FORGOTTEN, MIGRATION):
        assert name not in values
        assert uuid_of(name) not in text
    allowed = {full.world.agent.host_status.status().uuid}  # of the host itself
    uuids = re.findall(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", text)
    assert set(uuids) <= allowed


def test_names_and_units_follow_the_conventions(url: str) -> None:
    for family in text_string_to_metric_families(fetch(url + "/metrics")[2].decode()):
        if family.name.startswith("process_"):
            continue
        assert re.fullmatch(r"plimsoll_[a-z_]+", family.name) and family.documentation.endswith("."), family
        for each in family.samples:
            if family.type == "counter":
                assert each.name.endswith("_total")
            assert not re.search(r"_(ms|mb|kb|minutes|created)$", each.name)


def test_a_scrape_asks_nobody(full: Sight, url: str) -> None:
    before = full.world.wire.requests
    for path in ("/", "/metrics", "/readyz", "/livez"):
        fetch(url + path)
    full.host_status.overview()
    full.host_status.explain("web1")
    assert full.world.wire.requests == before


def test_a_scrape_while_the_hypervisor_hangs(fresh: Sight) -> None:
    """What is in memory is told at once."""
    fresh.world.driver.delay(0.0)
    fresh.world.driver.fail(3, DriverError("it hangs"))
    with listening(fresh.host_status) as url:
        assert fetch(url + "/metrics")[0] == fetch(url + "/livez")[0] == 200


def test_what_is_stuck_keeps_nobody_who_looks_waiting(fresh: Sight, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tracker's lock is never free again: the health checks answer, and tell; the others give up."""
    monkeypatch.setattr("agent.tracker.register.SNAPSHOT_WAIT_S", 0.2)
    monkeypatch.setattr("agent.status.host_status.LOOP_LATE_S", 0.1)
    with listening(fresh.host_status) as url, fresh.world.agent._tracker._register._lock:
        for _ in range(6):  # more than there are threads
            assert fetch(url + "/metrics")[0] == 500
        assert fetch(url + "/")[0] == 500
        status, _, body = fetch(url + "/livez")
    assert (status, json.loads(body)["failed"]) == (503, ["loop"])


def test_guests_states_are_all_told(full: Sight) -> None:
    found = samples(full.host_status.metrics())
    assert {dict(labels)["state"] for name, labels in found if name == "plimsoll_guests"} == set(GuestState)
